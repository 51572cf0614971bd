// Package exchange is how the ranks of a job that are processes of their own
// find each other before they are connected, and hear of each other's end: each
// puts small values under keys, and gets those of others.
//
// # What a process manager would serve
//
// [Exchange] is all that a rank sees, and the smallest thing that does the
// job: its number, how many there are, Put, and a Get that waits. In PMIx
// these are PMIx_Init, PMIx_Publish and PMIx_Lookup with PMIX_WAIT and
// PMIX_TIMEOUT, or PMIx_Put, PMIx_Commit and PMIx_Get for what is put before
// anybody asks; that a rank is gone is PMIX_ERR_PROC_ABORTED. There is no fence: one is every rank's Put and Get of
// the same key. Until there is a process manager, a [Hub] serves it over TCP
// on the loopback interface.
//
// # Hub and clients
//
// The process that starts the others listens ([Listen]), and gives each rank a
// [Ticket]: where the hub is, the rank's number, how many ranks there are, and
// a secret of this job, because anybody on the machine can connect to the port.
// Every rank, the one in the hub's own process too, joins with its ticket
// ([Join]).
//
// Both sides begin with eight bytes, the name and version of the protocol; then
// come frames: four bytes of length, most significant first, and so many bytes of JSON. The
// first frame of a client is its ticket, each later one a request with a
// number of the client's choice, which the answer bears too. A connection that
// says anything else, or stops in the middle of a frame, is closed: before its ticket was accepted that
// concerns nobody ([Hub.Refused] tells of it), after that the rank counts as lost.
//
// # Who is gone
//
// A rank is gone when its connection ends, which for a process that dies is at
// once, or when [Hub.Lose] says so. Every Get that waits for it ends then with
// a [*LostError]; what it put before stays. A rank whose process lives but
// does nothing is found by the bound of the Get that waits for it, and its
// error names the rank and the key.
//
// # Locks and goroutines
//
// The hub has a goroutine that accepts, one for each connection, and one for
// each Get that waits; all end in Close. Its one lock guards the table and is
// never held while something is sent. A client has one goroutine, which reads.
package exchange

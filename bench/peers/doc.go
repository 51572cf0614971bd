// The command peers measures what a hit costs in this cache and in others, side
// by side in one run:
//
//	go run ./bench/peers
//
// A hit is what a message pays every time: get a registration that is cached
// and put it back. The peers are Debian's packages, driven by the small C
// programs in the folder c; what is not installed is named with the package to
// install, and the rest is measured without it:
//
//	apt install gcc libucx-dev libfabric-dev
//
// Every contender does the same work (work.go) in a process of its own, over
// registrations that cost nothing, so that what is timed is the cache. The
// contenders take turns: one after the other does one piece of the work, and
// that again for each round, so that a machine that gets slower or busier does so
// for all of them. The table has the medians over the rounds, and each
// contender's ratio to the first peer's.
//
// A program like those in c, for another version or another cache, takes part
// with -also, for instance a UCX that was built elsewhere:
//
//	gcc -O2 -IUCX/include bench/peers/c/ucx.c -LUCX/lib -Wl,-rpath,UCX/lib -lucp -lucs -lucm -lpthread -o ucx-new
//	go run ./bench/peers -also ucx-new=./ucx-new
//
// The first part is the time of a hit, in processor time of the thread, which
// other work on the machine does not add to. The second part, contention, is how the
// time of single hits is spread, on one Region that everybody uses, and while
// somebody maps, registers and unmaps without pause: 50th, 99th and 99.9th
// percentile of an HDR histogram. A sample contains two readings of the clock,
// whose own time is shown in the table.
//
// With -format=go the same is printed in the format of Go's benchmarks, one line
// a round, for benchstat:
//
//	go run ./bench/peers -format=go > now.txt
//	benchstat -col /who now.txt
//
// Nothing is asserted about the figures. The exit status is 0 unless this
// project's own contenders fail, 2 for flags that make no sense.
package main

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
// for all of them. Threads are put on processors of their own, as far as there are
// that many, so that they run at the same moment. The tables have the medians over the rounds, and each
// contender's ratio to the newest peer's, the last one before ours.
//
// The UCX of another suite of Debian takes part with -suite: it is fetched by
// apt-get into the user's cache folder (~/.cache/holdfast-peers) together with the C
// library that it needs, and not installed:
//
//	go run ./bench/peers -suite testing
//
// libfabric's cache belongs to its providers, and those that cache host memory
// need an RDMA adapter; without one it is named as absent. The machine of
// .ci/softroce has one, in software. It is emulated, so that times there mean
// nothing; but it can be given one processor whose clock counts instructions, 2 ns
// each. -programs builds the C programs for it, those of the packages installed
// here and those of -suite; -also takes the programs in, the one named last being
// what ratios are to; -threads 1 leaves out what needs a second processor; and
// -instruction 2 turns times into numbers of instructions:
//
//	go run ./bench/peers -suite testing -programs /tmp/programs
//	SOFTROCE_ACCEL=icount SOFTROCE_TIMEOUT=1200 .ci/softroce -e FI_VERBS_USE_ODP=1 \
//	    -b ./bench/peers $(printf ' -f %s' /tmp/programs/*) -- sh -c '
//	        echo 1 > /proc/sys/vm/overcommit_memory
//	        peers -part hits -threads 1 -instruction 2 -rounds 1 -iters 100000 \
//	            -also libfabric=/bin/libfabric -also libfabric-testing=/bin/libfabric-testing \
//	            -also ucx=/bin/ucx -also ucx-testing=/bin/ucx-testing'
//
// Instructions are not time: one that waits for memory, or is locked, counts as
// one. Two things let the small machine have many ranges: FI_VERBS_USE_ODP makes
// libfabric's registrations on demand, which pin no memory; and overcommitting
// lets Go reserve gigabytes that nobody touches. Neither is part of a hit.
//
// A program like those in c, for another version or another cache, takes part
// with -also, for instance a UCX that was built elsewhere:
//
//	gcc -O2 -IUCX/include bench/peers/c/ucx.c -LUCX/lib -Wl,-rpath,UCX/lib -lucp -lucs -lucm -lpthread -o ucx-new
//	go run ./bench/peers -also ucx-new=./ucx-new
//
// There are four parts, each with a table (-part):
//
//   - hits: what a hit costs, in processor time of the thread, which other work on
//     the machine does not add to: with few ranges and many, of one size and of
//     mixed sizes, on one thread and two, and while another thread maps, registers
//     and unmaps without pause;
//   - front: the same for a few ranges in a View, and by GetBatch, beside Get;
//   - cold: what happens seldom: a miss, in processor time of the thread; the end of
//     a registered range, or of memory that is not registered, together with the
//     hit after it, in processor time of the process;
//   - contention: how the time of single hits is spread, on one Region that
//     everybody uses, and beside a churner: 50th, 99th and 99.9th percentile of an
//     HDR histogram. A sample contains two readings of the clock, whose own time is
//     shown in the table. The column "ran" is the share of the time for which the
//     threads that hit had a processor.
//
// With -format=markdown the tables are printed for a document. With -format=go the
// same is printed in the format of Go's benchmarks, one line a round, for
// benchstat:
//
//	go run ./bench/peers -format=go > now.txt
//	benchstat -col /who now.txt
//
// On a machine where others work, root can give the run a weight that nearly
// leaves them out. Since a session is scheduled as one (sched_autogroup), nice alone
// is not enough:
//
//	go build -o /tmp/peers ./bench/peers
//	setsid -w sh -c 'echo -20 > /proc/self/autogroup; exec nice -n -20 /tmp/peers -part contention'
//
// Nothing is asserted about the figures. The exit status is 0 unless this
// project's own contenders fail, 2 for flags that make no sense.
package main

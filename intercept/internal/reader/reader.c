//go:build linux && cgo && (amd64 || arm64 || riscv64 || loong64)

// The reader thread of the userfaultfd source. It is C because the thread that
// waits for an event to be read can be the Go runtime itself, in its scavenger
// or with the world stopped: a reader that needed the Go scheduler would hang
// the process. After it has started it never allocates, takes no lock, calls
// nothing of Go and receives no signal but those of the C library itself.

#define _GNU_SOURCE
#include "reader.h"

#include <errno.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

// The numbers that package uffd uses, against this machine's header.
_Static_assert(UFFDIO_API == 0xc018aa3f, "UFFDIO_API");
_Static_assert(UFFDIO_REGISTER == 0xc020aa00, "UFFDIO_REGISTER");
_Static_assert(UFFDIO_UNREGISTER == 0x8010aa01, "UFFDIO_UNREGISTER");
_Static_assert(UFFDIO_WRITEPROTECT == 0xc018aa06, "UFFDIO_WRITEPROTECT");
_Static_assert(UFFDIO_REGISTER_MODE_WP == 1 << 1, "UFFDIO_REGISTER_MODE_WP");
_Static_assert(UFFD_FEATURE_EVENT_REMAP == 1 << 2, "UFFD_FEATURE_EVENT_REMAP");
_Static_assert(UFFD_FEATURE_EVENT_REMOVE == 1 << 3, "UFFD_FEATURE_EVENT_REMOVE");
_Static_assert(UFFD_FEATURE_EVENT_UNMAP == 1 << 6, "UFFD_FEATURE_EVENT_UNMAP");
_Static_assert(sizeof(struct uffd_msg) == 32, "struct uffd_msg");

enum { MAX_FDS = 32, BATCH = 64, SLOT_WORDS = 4 };

// hca.CauseUnmap, hca.CauseRemap, hca.CauseDiscard and hca.CounterStep; the Go
// side checks that they agree.
enum { CAUSE_UNMAP = 1, CAUSE_REMAP = 2, CAUSE_DISCARD = 3 };
#define STEP ((uint64_t)1 << 16)

struct hf_reader {
	pthread_t thread;
	struct hf_shared sh;
	int stop, wake, n;
	struct pollfd fds[MAX_FDS + 1]; // the last one is stop
	struct uffd_msg msgs[BATCH];
};

static void count(struct hf_reader *r, enum hf_stat what, uint64_t by)
{
	// One writer: no locked instruction.
	uint64_t *p = &r->sh.stats[what];
	__atomic_store_n(p, __atomic_load_n(p, __ATOMIC_RELAXED) + by, __ATOMIC_RELAXED);
}

// Puts what a message says into the ring. Everything that is not known counts
// as the loss of its range, and as the loss of everything if it has none.
static void translate(struct hf_reader *r, const struct uffd_msg *m, uint64_t at, uint64_t stamp)
{
	uint64_t addr = 0, len = ~(uint64_t)0, cause = CAUSE_UNMAP;
	switch (m->event) {
	case UFFD_EVENT_UNMAP:
		addr = m->arg.remove.start;
		len = m->arg.remove.end - m->arg.remove.start;
		count(r, HF_UNMAPS, 1);
		break;
	case UFFD_EVENT_REMAP:
		addr = m->arg.remap.from;
		len = m->arg.remap.len;
		cause = CAUSE_REMAP;
		count(r, HF_REMAPS, 1);
		break;
	case UFFD_EVENT_REMOVE:
		addr = m->arg.remove.start;
		len = m->arg.remove.end - m->arg.remove.start;
		cause = CAUSE_DISCARD;
		count(r, HF_DISCARDS, 1);
		break;
	default:
		count(r, HF_OTHERS, 1);
		break;
	}
	uint64_t *slot = &r->sh.slots[(at & r->sh.mask) * SLOT_WORDS];
	__atomic_store_n(&slot[0], addr, __ATOMIC_RELAXED);
	__atomic_store_n(&slot[1], len, __ATOMIC_RELAXED);
	__atomic_store_n(&slot[2], cause, __ATOMIC_RELAXED);
	__atomic_store_n(&slot[3], stamp, __ATOMIC_RELAXED);
}

// Takes events from one descriptor. Answers how many, or -errno.
static int take(struct hf_reader *r, int fd)
{
	// Unsettled from before the kernel lets the first waiter go, which is
	// inside read, until the ring holds what was read.
	uint64_t before = __atomic_fetch_add(r->sh.counter, 1, __ATOMIC_SEQ_CST);
	ssize_t got = read(fd, r->msgs, sizeof r->msgs);
	if (got < 0) {
		int err = errno;
		__atomic_fetch_sub(r->sh.counter, 1, __ATOMIC_SEQ_CST);
		return err == EAGAIN || err == EINTR ? 0 : -err;
	}
	uint64_t n = (uint64_t)got / sizeof r->msgs[0];
	uint64_t at = __atomic_load_n(r->sh.done, __ATOMIC_RELAXED);

	__atomic_store_n(r->sh.claim, at + n, __ATOMIC_SEQ_CST);
	__atomic_thread_fence(__ATOMIC_SEQ_CST); // the claim is seen before any word of the slots
	for (uint64_t i = 0; i < n; i++)
		translate(r, &r->msgs[i], at + i, before / STEP);
	__atomic_store_n(r->sh.done, at + n, __ATOMIC_SEQ_CST);

	count(r, HF_READS, 1);
	__atomic_fetch_add(r->sh.counter, n * STEP - 1, __ATOMIC_SEQ_CST);
	return (int)n;
}

static void *run(void *arg)
{
	struct hf_reader *r = arg;
	const uint64_t one = 1;
	for (;;) {
		// poll, not epoll: it keeps the files while it waits, so that if somebody
		// closes a descriptor (closefrom) what is watched stays watched until the
		// next event, and then the fault is seen. epoll would forget it silently.
		int err = poll(r->fds, (nfds_t)r->n + 1, -1) < 0 && errno != EINTR ? errno : 0;
		if (!err && r->fds[r->n].revents)
			break;
		int events = 0;
		for (int i = 0; i < r->n && !err; i++) {
			short what = r->fds[i].revents;
			r->fds[i].revents = 0;
			if (!what)
				continue;
			int n = what & POLLIN ? take(r, r->fds[i].fd) : -EIO;
			if (n < 0)
				err = -n;
			else
				events += n;
		}
		if (err) {
			// Should never be. Nothing can be learned any more, so nothing may
			// be trusted: the counter stays unsettled for good, and nobody is
			// left waiting for a reader.
			__atomic_fetch_add(r->sh.counter, 1, __ATOMIC_SEQ_CST);
			__atomic_store_n(&r->sh.stats[HF_FAULT], (uint64_t)err, __ATOMIC_SEQ_CST);
		}
		// Who answers the bell sets rung back before looking at the ring, so
		// either that look finds these events or the bell is rung for them.
		if ((err || (events && !__atomic_exchange_n(r->sh.rung, 1, __ATOMIC_SEQ_CST))) &&
		    write(r->wake, &one, sizeof one) < 0 && errno != EAGAIN)
			__atomic_store_n(&r->sh.stats[HF_FAULT], (uint64_t)errno, __ATOMIC_SEQ_CST);
		if (err)
			break;
	}
	for (int i = 0; i < r->n; i++)
		close(r->fds[i].fd);
	return NULL;
}

int hf_start(struct hf_reader **out, struct hf_shared sh, const int *fds, int n, int stop, int wake)
{
	if (n < 1 || n > MAX_FDS)
		return EINVAL;
	struct hf_reader *r = calloc(1, sizeof *r);
	if (!r)
		return ENOMEM;
	r->sh = sh;
	r->stop = stop;
	r->wake = wake;
	r->n = n;
	for (int i = 0; i < n; i++)
		r->fds[i] = (struct pollfd){ .fd = fds[i], .events = POLLIN };
	r->fds[n] = (struct pollfd){ .fd = stop, .events = POLLIN };

	// The thread inherits the mask: every signal that can be blocked is.
	sigset_t all, old;
	sigfillset(&all);
	pthread_attr_t attr;
	int err = pthread_attr_init(&attr);
	if (!err) {
		pthread_attr_setstacksize(&attr, 256 << 10);
		pthread_sigmask(SIG_SETMASK, &all, &old);
		err = pthread_create(&r->thread, &attr, run, r);
		pthread_sigmask(SIG_SETMASK, &old, NULL);
		pthread_attr_destroy(&attr);
	}
	if (err) {
		free(r);
		return err;
	}
	pthread_setname_np(r->thread, "holdfast-events");
	*out = r;
	return 0;
}

void hf_stop(struct hf_reader *r)
{
	const uint64_t one = 1;
	// An eventfd that nobody else writes takes a one at any time.
	while (write(r->stop, &one, sizeof one) < 0 && errno == EINTR)
		;
	pthread_join(r->thread, NULL);
	free(r);
}

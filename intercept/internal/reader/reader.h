#ifndef HOLDFAST_READER_H
#define HOLDFAST_READER_H

#include <stdint.h>

/* Where the reader thread writes. All of it is Go memory that stays where it
 * is (pinned) until hf_stop has returned, and all of it is 64-bit atomics. */
struct hf_shared {
	uint64_t *counter; /* the monitor's counter */
	uint64_t *claim;   /* the ring, see package ring */
	uint64_t *done;
	uint64_t *slots;   /* mask+1 slots of 4 words */
	uint64_t mask;
	uint64_t *stats;   /* enum hf_stat */
	uint64_t *rung;    /* 1: `wake` was written and nobody has answered */
};

enum hf_stat { HF_READS, HF_UNMAPS, HF_REMAPS, HF_DISCARDS, HF_OTHERS, HF_FAULT, HF_STATS };

struct hf_reader;

/* Starts a thread that reads the n descriptors (at most 32, non-blocking
 * userfaultfds) until something is written to the eventfd `stop`. After events
 * were put into the ring and counted it writes to the eventfd `wake`, unless it
 * did before and `rung` was not set back since. Answers
 * 0 or an errno. On success the descriptors belong to the thread: it closes
 * them as its last act, which lets go whoever waits on them. */
int hf_start(struct hf_reader **out, struct hf_shared sh, const int *fds, int n, int stop, int wake);

/* Tells the thread to end and waits for it. */
void hf_stop(struct hf_reader *r);

#endif

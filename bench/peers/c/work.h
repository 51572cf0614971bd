/* The work that every contender does, for those that are written in C. A peer
 * defines, before it includes this file,
 *
 *   static void about(void);                  print "about NAME VERSION\n"
 *   static void peer_open(size_t regions);    make the cache, or absent("why")
 *   static inline void use(char *p, size_t);  get and put: the thing measured
 *   static long registrations(void);          how often it registered so far, -1: unknown
 *   static int gone(char *p, size_t);         memory is about to go, as its cache is
 *                                             told by its hooks; 0: it cannot be told
 *
 * and gets main. ../work.go says what the arguments mean and what is printed;
 * ../ours.go is the same program for the cache of this project. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { REGION = 64 << 10, STRIDE = 128 << 10, MAX_THREADS = 64, BUCKETS = 1 << 16 };

/* The contender cannot run here; the parent prints why. */
static inline void absent(const char *why) {
	printf("absent %s\n", why);
	exit(0);
}

/* Something broke; the parent prints it and goes on with the others. */
static void fail(const char *what) {
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static void about(void);
static void peer_open(size_t regions);
static inline void use(char *p, size_t len);
static long registrations(void);
static int gone(char *p, size_t len);

struct range {
	char *p;
	size_t len;
};

static struct {
	int contend, churn, apart, threads;
	uint32_t regions;
	uint64_t iters, limit_ns;
	char *base;
	struct range *table; /* mixed sizes: what is asked for; else NULL */
	pthread_barrier_t start;
	_Atomic int stop;
} job;

static inline uint64_t read_clock(clockid_t clock) {
	struct timespec t;
	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static inline uint64_t now(void) { return read_clock(CLOCK_MONOTONIC); }

static char *map(size_t len) {
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		fail("mmap");
	return p;
}

/* What one thread measured: how many samples took how many nanoseconds, the
 * long ones one by one. */
struct thread {
	pthread_t id;
	uint32_t number, last;
	uint64_t cpu; /* processor time, nanoseconds */
	uint32_t count[BUCKETS];
	uint64_t *longer, longers;
};

/* Puts this thread on a processor of its own, as far as there are that many: who is
 * the n-th goes to the n-th that it may use. */
static void pin(int n) {
	cpu_set_t may, one;
	if (sched_getaffinity(0, sizeof may, &may))
		fail("sched_getaffinity");
	n %= CPU_COUNT(&may);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (CPU_ISSET(cpu, &may) && n-- == 0) {
			CPU_ZERO(&one);
			CPU_SET(cpu, &one);
			if (sched_setaffinity(0, sizeof one, &one))
				fail("sched_setaffinity");
			return;
		}
	}
}

static void record(struct thread *t, uint64_t ns) {
	if (ns < BUCKETS) {
		t->count[ns]++;
		return;
	}
	if ((t->longers & (t->longers - 1)) == 0) {
		t->longer = realloc(t->longer, sizeof *t->longer * (t->longers ? t->longers * 2 : 1));
		if (!t->longer)
			fail("realloc");
	}
	t->longer[t->longers++] = ns;
}

/* Which range a generator's value means to a thread. */
static inline struct range pick(uint32_t x, uint32_t n, char *base) {
	uint32_t i = (x >> 8) % n;
	return job.table ? job.table[i] : (struct range){base + (size_t)i * STRIDE, REGION};
}

static void *worker(void *arg) {
	struct thread *t = arg;
	uint32_t x = t->number * 7919 + 1, n = job.regions;
	char *base = job.base;
	if (job.apart) {
		n /= job.threads;
		base += (size_t)t->number * n * STRIDE;
	}
	pin(t->number);
	pthread_barrier_wait(&job.start);
	uint64_t cpu = read_clock(CLOCK_THREAD_CPUTIME_ID);
	if (!job.contend && job.table) {
		for (uint64_t i = 0; i < job.iters; i++) {
			x = x * 1664525 + 1013904223;
			struct range *r = &job.table[(x >> 8) % n];
			use(r->p, r->len);
		}
	} else if (!job.contend) {
		for (uint64_t i = 0; i < job.iters; i++) {
			x = x * 1664525 + 1013904223;
			use(base + (size_t)((x >> 8) % n) * STRIDE, REGION);
		}
	} else {
		uint64_t end = now() + job.limit_ns;
		for (uint64_t i = 0; i < job.iters; i++) {
			x = x * 1664525 + 1013904223;
			struct range r = pick(x, n, base);
			uint64_t from = now();
			use(r.p, r.len);
			uint64_t to = now();
			record(t, to - from);
			if (to > end)
				break;
		}
	}
	t->cpu = read_clock(CLOCK_THREAD_CPUTIME_ID) - cpu;
	t->last = x;
	return NULL;
}

/* Maps, registers and unmaps without pause. */
static void *churner(void *arg) {
	uint64_t *rounds = arg;
	pin(job.threads);
	pthread_barrier_wait(&job.start);
	for (; !job.stop; ++*rounds) {
		char *p = map(REGION);
		use(p, REGION);
		munmap(p, REGION);
	}
	return NULL;
}

/* The least that two readings of the clock are apart, which is in every sample. */
static uint64_t clock_cost(void) {
	uint64_t least = UINT64_MAX;
	for (int i = 0; i < 10000; i++) {
		uint64_t from = now(), d = now() - from;
		if (d < least)
			least = d;
	}
	return least;
}

/* The ranges of mixed sizes, registered; ../work.go: layout and inside. */
static void lay_out(int inside) {
	job.table = calloc(job.regions, sizeof *job.table);
	if (!job.table)
		fail("calloc");
	size_t size = 0, at = 0;
	for (int pass = 0; pass < 2; pass++) {
		for (uint32_t i = 0; i < job.regions; i++) {
			uint32_t k = i % 19;
			if (i >= 1024)
				k = (uint32_t)__builtin_ctz(i) < 18 ? (uint32_t)__builtin_ctz(i) : 18;
			uint64_t full = (uint64_t)4096 << k, start = (uint64_t)i * 1000003 % 4096, len = full - (uint64_t)i * 7919 % 1024;
			if (pass == 0) {
				size += full + 8192;
				continue;
			}
			char *p = job.base + at + start;
			at += full + 8192;
			use(p, len);
			job.table[i] = (struct range){p, len};
			if (inside) {
				size_t rest = len - len / 2;
				job.table[i] = (struct range){p + len / 2, rest < 4096 ? rest : 4096};
			}
		}
		if (pass == 0)
			job.base = map(size);
	}
}

/* What happens seldom: a range that nobody asked for before, the end of a range,
 * or of memory that is not registered. After an end comes a hit on another range,
 * which has to find out; ranges that have ended are registered again off the
 * clock. */
static void cold(const char *mode) {
	enum { BATCH = 64 };
	char *more = map((size_t)(job.iters + 1) * STRIDE);
	uint64_t spent = 0;
	clockid_t clock = !strcmp(mode, "miss") ? CLOCK_THREAD_CPUTIME_ID : CLOCK_PROCESS_CPUTIME_ID;
	if (strcmp(mode, "miss") && !gone(more, REGION))
		absent("nobody can tell its cache that memory ends");
	for (uint64_t i = 0; i < job.iters;) {
		uint64_t batch = job.iters - i < BATCH ? job.iters - i : BATCH;
		if (batch >= job.regions)
			batch = job.regions - 1;
		long before = registrations();
		uint64_t from = read_clock(clock);
		for (uint64_t k = i; k < i + batch; k++) {
			if (!strcmp(mode, "miss")) {
				use(more + k * STRIDE, REGION);
				continue;
			}
			gone(!strcmp(mode, "end") ? job.base + (1 + k % (job.regions - 1)) * STRIDE : more, REGION);
			use(job.base, REGION);
		}
		spent += read_clock(clock) - from;
		for (uint64_t k = i; !strcmp(mode, "end") && k < i + batch; k++)
			use(job.base + (1 + k % (job.regions - 1)) * STRIDE, REGION);
		if (before >= 0 && registrations() - before != (strcmp(mode, "elsewhere") ? (long)batch : 0))
			fail("not what should have been was registered");
		i += batch;
	}
	printf("last 0\nns %.3f\n", (double)spent / job.iters);
}

int main(int argc, char **argv) {
	if (argc == 2 && !strcmp(argv[1], "about")) {
		about();
		return 0;
	}
	if (argc != 9) {
		fprintf(stderr, "use: hit|contend|miss|end|elsewhere regions threads apart iters churn limit-ns same|mixed|inside\n");
		return 2;
	}
	job.contend = !strcmp(argv[1], "contend");
	job.regions = strtoul(argv[2], NULL, 10);
	job.threads = atoi(argv[3]);
	job.apart = atoi(argv[4]);
	job.iters = strtoull(argv[5], NULL, 10);
	job.churn = strcmp(argv[6], "none") != 0;
	job.limit_ns = strtoull(argv[7], NULL, 10);
	if (job.threads < 1 || job.threads > MAX_THREADS || job.regions < 1 || (job.apart && (int)job.regions < job.threads)) {
		fprintf(stderr, "no such work: %u regions, %d threads\n", job.regions, job.threads);
		return 2;
	}
	int is_cold = !job.contend && strcmp(argv[1], "hit");
	peer_open(job.regions + (is_cold ? job.iters : 0));
	if (!strcmp(argv[8], "same")) {
		job.base = map((size_t)job.regions * STRIDE);
		for (uint32_t i = 0; i < job.regions; i++)
			use(job.base + (size_t)i * STRIDE, REGION);
	} else {
		lay_out(!strcmp(argv[8], "inside"));
	}
	if (registrations() >= 0 && registrations() != job.regions)
		fail("the regions were not registered once each");
	if (is_cold) {
		cold(argv[1]);
		return 0;
	}

	uint64_t churned = 0;
	pthread_t churn;
	struct thread *t = calloc(job.threads, sizeof *t);
	if (!t)
		fail("calloc");
	if (pthread_barrier_init(&job.start, NULL, job.threads + job.churn + 1))
		fail("pthread_barrier_init");
	for (int i = 0; i < job.threads; i++) {
		t[i].number = i;
		if ((errno = pthread_create(&t[i].id, NULL, worker, &t[i])))
			fail("pthread_create");
	}
	if (job.churn && (errno = pthread_create(&churn, NULL, churner, &churned)))
		fail("pthread_create");
	pthread_barrier_wait(&job.start);
	uint64_t from = now();
	for (int i = 0; i < job.threads; i++)
		pthread_join(t[i].id, NULL);
	uint64_t took = now() - from;
	job.stop = 1;
	if (job.churn)
		pthread_join(churn, NULL);
	if (!job.churn && registrations() >= 0 && registrations() != job.regions)
		fail("not every get was a hit");

	uint64_t last = 0, cpu = 0;
	for (int i = 0; i < job.threads; i++) {
		last += t[i].last;
		cpu += t[i].cpu;
	}
	printf("last %llu\n", (unsigned long long)last);
	printf("ran %.1f\n", 100.0 * (double)cpu / job.threads / (double)took);
	printf("churned %llu\n", (unsigned long long)churned);
	if (!job.contend) {
		printf("ns %.3f\n", (double)cpu / job.iters / job.threads);
		printf("wall %.3f\n", (double)took / job.iters);
		return 0;
	}
	printf("clock %llu\n", (unsigned long long)clock_cost());
	for (int b = 0; b < BUCKETS; b++) {
		uint64_t sum = 0;
		for (int i = 0; i < job.threads; i++)
			sum += t[i].count[b];
		if (sum)
			printf("sample %d %llu\n", b, (unsigned long long)sum);
	}
	for (int i = 0; i < job.threads; i++)
		for (uint64_t k = 0; k < t[i].longers; k++)
			printf("sample %llu 1\n", (unsigned long long)t[i].longer[k]);
	return 0;
}

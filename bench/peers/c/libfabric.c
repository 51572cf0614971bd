/* libfabric's memory registration cache through its public interface, as an MPI
 * library uses it: fi_mr_reg and fi_close. The cache is the provider's affair,
 * and of those in Debian's package only verbs and efa have one for host memory;
 * both need an adapter. So this looks for a provider that has one, and proves it
 * by what only a cache does: two registrations of a range at one time are one
 * and the same object, and the adapter's library was asked for one. What it
 * measures then has the adapter's registrations behind it. Hits do not go there,
 * which is counted; a miss does, and is no match for one over registrations that
 * cost nothing. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include "work.h"

static struct fid_domain *domain;

/* Registrations that reach the adapter's library are counted on the way there:
 * ibv_reg_mr goes through this function too, and the program's own comes before
 * the library's. */
static _Atomic long made;
static long before; /* how many before the work; -1: they go another way, unseen */

void *ibv_reg_mr_iova2(void *pd, void *addr, size_t len, uint64_t iova, unsigned access) {
	static void *(*_Atomic next)(void *, void *, size_t, uint64_t, unsigned);
	if (!next && !(next = dlsym(RTLD_NEXT, "ibv_reg_mr_iova2"))) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	made++;
	return next(pd, addr, len, iova, access);
}

static void about(void) {
	uint32_t v = fi_version();
	printf("about libfabric %u.%u\n", FI_MAJOR(v), FI_MINOR(v));
}

static struct fid_mr *reg(char *p, size_t len) {
	static _Atomic uint64_t key; /* for providers whose keys the user chooses */
	struct fid_mr *mr;
	int rc = fi_mr_reg(domain, p, len, FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 0, ++key, 0, &mr, NULL);
	if (rc) {
		fprintf(stderr, "fi_mr_reg: %s\n", fi_strerror(-rc));
		exit(1);
	}
	return mr;
}

static inline void use(char *p, size_t len) { fi_close(&reg(p, len)->fid); }

static int caches(void) {
	char *p = map(REGION);
	long none = made;
	struct fid_mr *a = reg(p, REGION), *b = reg(p, REGION);
	int same = a == b && made - none <= 1;
	before = made > none ? made : -1;
	fi_close(&a->fid);
	fi_close(&b->fid);
	munmap(p, REGION);
	return same;
}

static void peer_open(size_t regions) {
	char count[32], seen[512] = "";
	snprintf(count, sizeof count, "%zu", regions + 1024);
	setenv("FI_MR_CACHE_MAX_COUNT", count, 1);
	setenv("FI_MR_CACHE_MAX_SIZE", "1000000000000", 1);
	struct fi_info *hints = fi_allocinfo(), *list = NULL;
	if (!hints)
		fail("fi_allocinfo");
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT | FI_MR_RAW;
	hints->mode = ~0ull;
	fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &list);
	for (struct fi_info *i = list; i; i = i->next) {
		struct fid_fabric *fabric;
		const char *name = i->fabric_attr->prov_name;
		if (strstr(seen, name) || fi_fabric(i->fabric_attr, &fabric, NULL))
			continue;
		if (!fi_domain(fabric, i, &domain, NULL)) {
			if (caches())
				return;
			fi_close(&domain->fid);
		}
		fi_close(&fabric->fid);
		if (strlen(seen) + strlen(name) + 3 < sizeof seen)
			strcat(strcat(seen, *seen ? ", " : ""), name);
	}
	char why[1024];
	snprintf(why, sizeof why, "no provider caches registrations here: %s were asked and do not; verbs and efa do and need an adapter, as the machine of .ci/softroce has (see bench/peers/doc.go)", *seen ? seen : "none");
	absent(why);
}

static long registrations(void) { return before < 0 ? -1 : made - before; }

static int gone(char *p, size_t len) {
	(void)p, (void)len;
	return 0;
}

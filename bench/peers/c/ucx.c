/* UCX's registration cache, ucs_rcache, with registrations that cost nothing.
 * Its header is installed but is not part of UCX's stable interface, and it
 * leaves sysconf to be declared by who includes it. */
#define _GNU_SOURCE
#include <unistd.h>
#include <ucm/api/ucm.h>
#include <ucp/api/ucp.h>
#include <ucs/memory/rcache.h>
#include "work.h"

static ucs_rcache_t *cache;
static _Atomic long made;

static ucs_status_t reg(void *context, ucs_rcache_t *c, void *arg, ucs_rcache_region_t *r, uint16_t flags) {
	(void)context, (void)c, (void)arg, (void)r, (void)flags;
	made++;
	return UCS_OK;
}

static void dereg(void *context, ucs_rcache_t *c, ucs_rcache_region_t *r) {
	(void)context, (void)c, (void)r;
}

static void dump(void *context, ucs_rcache_t *c, ucs_rcache_region_t *r, char *buf, size_t max) {
	(void)context, (void)c, (void)r;
	snprintf(buf, max, "region");
}

static void about(void) {
	printf("about UCX %s\n", ucp_get_version_string());
}

static void peer_open(size_t regions) {
	static const ucs_rcache_ops_t ops = {.mem_reg = reg, .mem_dereg = dereg, .dump_region = dump};
	ucs_rcache_params_t p = {
		.region_struct_size = sizeof(ucs_rcache_region_t),
#if UCP_API_VERSION < UCP_VERSION(1, 16)
		.alignment = UCS_RCACHE_MIN_ALIGNMENT,
		.max_alignment = sysconf(_SC_PAGESIZE),
#endif
		.ucm_events = UCM_EVENT_VM_UNMAPPED,
		.ucm_event_priority = 1000,
		.ops = &ops,
		.flags = UCS_RCACHE_FLAG_NO_PFN_CHECK,
		.max_regions = SIZE_MAX,
		.max_size = SIZE_MAX,
		.max_unreleased = SIZE_MAX,
	};
	(void)regions;
	if (ucs_rcache_create(&p, "peer", NULL, &cache) != UCS_OK)
		fail("ucs_rcache_create");
}

/* From 1.16 on the alignment is an argument of the get and not of the cache. */
#if UCP_API_VERSION >= UCP_VERSION(1, 16)
#define ALIGNMENT UCS_RCACHE_MIN_ALIGNMENT,
#else
#define ALIGNMENT
#endif

static inline void use(char *p, size_t len) {
	ucs_rcache_region_t *r;
	if (ucs_rcache_get(cache, p, len, ALIGNMENT PROT_READ | PROT_WRITE, NULL, &r) != UCS_OK)
		fail("ucs_rcache_get");
	ucs_rcache_region_put(cache, r);
}

static long registrations(void) { return made; }

static int gone(char *p, size_t len) {
	ucm_vm_munmap(p, len); /* tells who listens, and unmaps nothing */
	return 1;
}

// SPDX-License-Identifier: MIT
/*
 * The smallest complete vendor, of a made-up device: what a newcomer copies (docs/design/vendor.md). Its "GPU" is a file
 * in memory for each allocation, which a descriptor shares, as those of drivers with virtual memory management do; its
 * copies are done when they have begun. Nothing outside of its folder would know it.
 */
#include "base/fd.h"
#include "gpu/copy.h"
#include "gpu/vendor.h"
#include "other-vendor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- memory ---- */

struct dev_memory {
	uint8_t uuid[DEV_UUID_BYTES];
};

struct dev_lane {
	uint64_t ticket;
};

struct dev_digester {
	uint64_t at, bytes;
};

static int memory_open(struct dev_memory **ret, const uint8_t uuid[static DEV_UUID_BYTES],
		       struct brumate_error *err)
{
	uint8_t own[DEV_UUID_BYTES];

	if (dev_uuid_parse(own, OTHER_UUID) < 0 || memcmp(own, uuid, sizeof(own)) != 0)
		return brumate_fail(err, ENODEV, "there is no such device");
	*ret = calloc(1, sizeof(**ret));
	return *ret ? 0 : brumate_fail(err, ENOMEM, "%m");
}

static void memory_close(struct dev_memory *m)
{
	free(m);
}

static int memory_node(const uint8_t uuid[static DEV_UUID_BYTES])
{
	return -1;
}

static uint64_t memory_free_bytes(struct dev_memory *m)
{
	return OTHER_BYTES;
}

/* A driver's addresses are the GPU's; here they are the process's own. */
static int map(uint64_t at, uint64_t bytes, int fd, struct brumate_error *err)
{
	const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
	void *place = mmap((void *)at, bytes, fd < 0 ? PROT_NONE : PROT_READ | PROT_WRITE,
			   flags | MAP_FIXED, fd, 0);

	return place == MAP_FAILED ? brumate_fail(err, errno, "mmap: %m") : 0;
}

static int memory_reserve(struct dev_memory *m, uint64_t bytes, uint64_t *ret,
			  struct brumate_error *err)
{
	void *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED)
		return brumate_fail(err, errno, "mmap: %m");
	*ret = (uint64_t)at;
	return 0;
}

static void memory_unreserve(struct dev_memory *m, uint64_t at, uint64_t bytes)
{
	munmap((void *)at, bytes);
}

static int memory_import(struct dev_memory *m, int fd, uint64_t bytes, uint64_t at,
			 struct brumate_error *err)
{
	return map(at, bytes, fd, err);
}

static int memory_create(struct dev_memory *m, uint64_t bytes, uint64_t at, int *ret_fd,
			 struct brumate_error *err)
{
	auto_close int fd = memfd_create("other-device", MFD_CLOEXEC);

	if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0)
		return brumate_fail(err, errno, "device memory: %m");
	int r = map(at, bytes, fd, err);
	if (r == 0)
		*ret_fd = take_fd(&fd);
	return r;
}

static int memory_allow(struct dev_memory *m, uint64_t at, uint64_t bytes,
			struct brumate_error *err)
{
	return 0;
}

static int memory_unmap(struct dev_memory *m, uint64_t at, uint64_t bytes,
			struct brumate_error *err)
{
	return map(at, bytes, -1, err);
}

static int memory_pin(struct dev_memory *m, void *at, uint64_t bytes, struct brumate_error *err)
{
	return 0;
}

static void memory_unpin(struct dev_memory *m, void *at)
{
}

/* ---- copies ---- */

static int lane_open(struct dev_memory *m, bool spin, struct dev_lane **ret,
		     struct brumate_error *err)
{
	*ret = calloc(1, sizeof(**ret));
	return *ret ? 0 : brumate_fail(err, ENOMEM, "%m");
}

static void lane_close(struct dev_lane *lane)
{
	free(lane);
}

static int copy_out(struct dev_lane *lane, void *to, uint64_t from, uint64_t bytes,
		    uint64_t *ret_ticket, struct brumate_error *err)
{
	memcpy(to, (const void *)from, bytes);
	*ret_ticket = ++lane->ticket;
	return 0;
}

static int copy_in(struct dev_lane *lane, uint64_t to, const void *from, uint64_t bytes,
		   uint64_t *ret_ticket, struct brumate_error *err)
{
	memcpy((void *)to, from, bytes);
	*ret_ticket = ++lane->ticket;
	return 0;
}

static int zero(struct dev_lane *lane, uint64_t at, uint64_t bytes, uint64_t *ret_ticket,
		struct brumate_error *err)
{
	memset((void *)at, 0, bytes);
	*ret_ticket = ++lane->ticket;
	return 0;
}

static int lane_wait(struct dev_lane *lane, uint64_t ticket, struct brumate_error *err)
{
	return 0;
}

/* ---- digests ---- */

static int digester_open(struct dev_memory *m, uint64_t bytes_max, struct dev_digester **ret,
			 struct brumate_error *err)
{
	*ret = calloc(1, sizeof(**ret));
	return *ret ? 0 : brumate_fail(err, ENOMEM, "%m");
}

static void digester_close(struct dev_digester *d)
{
	free(d);
}

static int digest(struct dev_digester *d, uint64_t at, uint64_t bytes, struct brumate_error *err)
{
	*d = (struct dev_digester){ at, bytes };
	return 0;
}

static int copy_and_digest(struct dev_digester *d, uint64_t at, uint64_t from, uint64_t bytes,
			   struct brumate_error *err)
{
	memcpy((void *)at, (const void *)from, bytes);
	return digest(d, at, bytes, err);
}

static int digest_wait(struct dev_digester *d, struct digest *ret, bool *ret_zero,
		       struct brumate_error *err)
{
	static const char zeros[CHUNK_BYTES_MAX];
	int r = 0;

	for (uint64_t done = 0; r == 0 && done < d->bytes; done += CHUNK_BYTES_MAX) {
		const void *at = (const void *)(d->at + done);
		uint64_t left = d->bytes - done,
			 n = left < CHUNK_BYTES_MAX ? left : CHUNK_BYTES_MAX;

		*ret_zero++ = !memcmp(at, zeros, n);
		r = chunk_digest(ret++, at, n);
	}
	return r < 0 ? brumate_fail(err, -r, "digest: %m") : 0;
}

static const struct dev_memory_ops memory_ops = {
	.open = memory_open,
	.close = memory_close,
	.node = memory_node,
	.free_bytes = memory_free_bytes,
	.reserve = memory_reserve,
	.unreserve = memory_unreserve,
	.import = memory_import,
	.create = memory_create,
	.allow = memory_allow,
	.unmap = memory_unmap,
	.pin = memory_pin,
	.unpin = memory_unpin,
	.lane_open = lane_open,
	.lane_close = lane_close,
	.copy_out = copy_out,
	.copy_in = copy_in,
	.zero = zero,
	.wait = lane_wait,
	.digester_open = digester_open,
	.digester_close = digester_close,
	.digest = digest,
	.copy_and_digest = copy_and_digest,
	.digest_wait = digest_wait,
};

/* ---- the driver ---- */

static int other_open(const struct dev_libraries *libraries, struct dev_info *ret,
		      struct brumate_error *err)
{
	*ret = (struct dev_info){ .driver_version = "6.16", .simulated = libraries->simulated };
	return 0;
}

static int other_gpus(struct dev_gpu *ret, size_t max, size_t *ret_n, struct brumate_error *err)
{
	*ret = (struct dev_gpu){ .name = "other", .total_bytes = OTHER_BYTES };
	strcpy(ret->uuid, OTHER_UUID);
	*ret_n = 1;
	return 0;
}

static int other_state(pid_t pid, enum dev_state *ret, struct brumate_error *err)
{
	*ret = pid == getpid() ? DEV_STATE_RUNNING : DEV_STATE_NONE;
	return 0;
}

static int other_process(pid_t pid, struct dev_process *ret, struct brumate_error *err)
{
	*ret = (struct dev_process){ .used_bytes = 1 << 20, .n_gpus = 1, .gpu_bytes = { 1 << 20 } };
	strcpy(ret->gpus[0], OTHER_UUID);
	return other_state(pid, &ret->state, err);
}

static const struct dev_backend backend = {
	.name = "other",
	.open = other_open,
	.gpus = other_gpus,
	.process = other_process,
	.state = other_state,
	.memory = &memory_ops,
};

static const char *feature_since(uint32_t feature)
{
	return "?";
}

/* No driver has calls that save a process: CRIU's plugin of the vendor does. */
extern const struct gpu_vendor gpu_vendor_other;
const struct gpu_vendor gpu_vendor_other = {
	.id = "other",
	.name = "Other",
	.api = "OTHER",
	.backend = &backend,
	.devices = OTHER_DEVICE,
	.driver_library = "libother.so",
	.graphics_libraries = (const char *const[]){ NULL },
	.feature_since = feature_since,
	.usage_tool = "other-top",
	.saved_by_criu = true,
	.tuning = { .control_ms = 100,
		    .link_bytes_per_ms = 10000000,
		    .large_stream_bytes = 16ull << 30 },
};

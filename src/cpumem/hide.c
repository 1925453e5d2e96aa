// SPDX-License-Identifier: MIT
/* The table that the plugin inside CRIU reads (criu-plugin/hidden.h). */
#include "cpumem/cpu-memory.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "criu-plugin/hidden.h"

static struct hidden_table *map_table(int fd)
{
	void *t =
		mmap(NULL, sizeof(struct hidden_table), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	return t == MAP_FAILED ? NULL : t;
}

static void unmap_table(struct hidden_table *t)
{
	if (t)
		munmap(t, sizeof(*t));
}
DEFINE_AUTO(struct hidden_table *, unmap_table)

int cpu_memory_table_new(void)
{
	auto_close int fd = memfd_create("brumate-hidden", MFD_CLOEXEC);

	if (fd < 0 || ftruncate(fd, sizeof(struct hidden_table)) < 0)
		return -errno;
	auto_(unmap_table) struct hidden_table *t = map_table(fd);
	if (!t)
		return -errno;
	t->magic = HIDDEN_MAGIC;
	return take_fd(&fd);
}

bool cpu_memory_table_is_heeded(int table_fd)
{
	auto_(unmap_table) struct hidden_table *t = map_table(table_fd);

	return t && atomic_load(&t->is_heeded);
}

int cpu_memory_hide(int table_fd, const struct cpu_memory *m)
{
	auto_(unmap_table) struct hidden_table *t = map_table(table_fd);

	if (!t)
		return -errno;
	if (m->n > HIDDEN_RANGES_MAX)
		return -E2BIG;
	for (size_t i = 0; i < m->n; i++) {
		const struct cpu_memory_region *r = &m->items[i];

		t->ranges[i] = (struct hidden_range){
			.pid = r->inner_pid,
			.start = r->va,
			.end = r->va + r->len_bytes,
		};
	}
	atomic_store_explicit(&t->n, (uint32_t)m->n, memory_order_release);
	return 0;
}

int cpu_memory_allow_device_maps(int table_fd)
{
	auto_(unmap_table) struct hidden_table *t = map_table(table_fd);

	if (!t)
		return -errno;
	atomic_store_explicit(&t->may_lose_maps, 1, memory_order_release);
	return 0;
}

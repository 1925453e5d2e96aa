// SPDX-License-Identifier: MIT
/*
 * All regions at once, by all cores. On few cores what will be written is made huge pages before, as far
 * as a process comes to no more memory than it had: of a chunk that is stored, most pages may have been
 * missing.
 */
#include "engine/host-fill.h"

#include <errno.h>
#include <unistd.h>

#include "base/array.h"
#include "cpumem/cpu-memory.h"
#include "chunks/team.h"

enum {
	SPARE_PART = 8, /* of what a process had, which it may have more */
	CORES_PER_PROCESS = 3,
};
/* Of a range that is made huge pages by one call. */
#define RANGE_BYTES (64ull << 20)

/* Where each region goes. */
struct fill {
	struct cpu_memory_target *targets;
	struct chunks_place *places;
	size_t n;
	struct cpu_memory_range *ranges; /* to be huge pages */
	size_t n_ranges;
};

static void fill_fini(struct fill *f)
{
	int last = -1;

	for (size_t i = 0; i < f->n; i++) {
		int pidfd = f->targets[i].pidfd;

		/* Those of one process have one pidfd, and come one after the other. */
		if (pidfd != last)
			close(pidfd);
		last = pidfd;
	}
	free(f->targets);
	free(f->places);
	free(f->ranges);
}
DEFINE_AUTO_FINI(struct fill, fill_fini)

static const struct proc_info *find_process(const struct proc_tree *tree, pid_t inner_pid)
{
	for (size_t i = 0; i < tree->n; i++)
		if (tree->items[i].inner_pid == inner_pid && tree->items[i].state != 'Z')
			return &tree->items[i];
	return NULL;
}

static int add_place(struct fill *f, const struct proc_tree *tree, size_t index,
		     const struct manifest_region *region, struct brumate_error *err)
{
	const struct proc_info *p = find_process(tree, region->pid);
	struct cpu_memory_target t = { .va = region->va, .len_bytes = region->len_bytes };

	if (!p)
		return brumate_fail(err, ESRCH,
				    "process %d, whose memory is to be filled, is not there",
				    region->pid);
	t.pid = p->id.pid;
	bool same = f->n && f->targets[f->n - 1].pid == t.pid;
	t.pidfd = same ? f->targets[f->n - 1].pidfd : proc_open(p->id);
	if (t.pidfd < 0)
		return brumate_fail(err, -t.pidfd, "process %d: %m", region->pid);
	f->targets[f->n] = t;
	f->places[f->n] = (struct chunks_place){ index, cpu_memory_write, &f->targets[f->n] };
	f->n++;
	return 0;
}

static int plan_fill(struct fill *f, const struct manifest *m, const struct proc_tree *tree,
		     struct brumate_error *err)
{
	int r = 0;

	f->targets = calloc(m->memory.n_regions, sizeof(*f->targets));
	f->places = calloc(m->memory.n_regions, sizeof(*f->places));
	if (!f->targets || !f->places)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < m->memory.n_regions && r == 0; i++)
		if (m->memory.regions[i].kind == MANIFEST_REGION_HOST)
			r = add_place(f, tree, i, &m->memory.regions[i], err);
	return r;
}

/* ---- huge pages ---- */

/* They are cleared under the lock of a process's memory, by one core at a time: 10 GB/s, whatever more there
 * are. Small ones are by all: 2.3 GB/s a core, so that four cores are as fast with them. */
static bool huge_pages_win(const struct fill *f)
{
	unsigned processes = 0;

	for (size_t i = 0; i < f->n; i++)
		processes += i == 0 || f->targets[i].pid != f->targets[i - 1].pid;
	return team_cores(TEAM_MAX) <= processes * CORES_PER_PROCESS;
}

static int add_range(struct fill *f, const struct cpu_memory_target *t, uint64_t offset,
		     uint64_t len)
{
	struct cpu_memory_range *ranges = array_room(f->ranges, f->n_ranges, sizeof(*ranges));

	if (!ranges)
		return -ENOMEM;
	f->ranges = ranges;
	f->ranges[f->n_ranges++] =
		(struct cpu_memory_range){ t->pid, t->pidfd, t->va + offset, len };
	return 0;
}

/* The run of parts from @i on that are alike stored or not, as long as a range may be. */
static uint64_t run_end(const struct chunks_reader *reader, size_t index, uint64_t i, uint64_t n)
{
	bool stored = chunks_part_is_stored(reader, index, i);
	uint64_t most = i + RANGE_BYTES / CHUNK_BYTES;

	while (i < n && i < most && chunks_part_is_stored(reader, index, i) == stored)
		i++;
	return i;
}

static int add_ranges(struct fill *f, const struct chunks_reader *reader, size_t k)
{
	size_t index = f->places[k].index;
	uint64_t n = f->targets[k].len_bytes / CHUNK_BYTES;
	int r = 0;

	for (uint64_t i = 0, end; r == 0 && i < n; i = end) {
		end = run_end(reader, index, i, n);
		if (chunks_part_is_stored(reader, index, i))
			r = add_range(f, &f->targets[k], i * CHUNK_BYTES, (end - i) * CHUNK_BYTES);
	}
	return r;
}

static uint64_t stored_bytes(const struct fill *f, const struct chunks_reader *reader, size_t k)
{
	uint64_t n = f->targets[k].len_bytes / CHUNK_BYTES, sum = 0;

	for (uint64_t i = 0; i < n; i++)
		if (chunks_part_is_stored(reader, f->places[k].index, i))
			sum += CHUNK_BYTES;
	return sum;
}

static uint64_t had_bytes(const struct manifest *m, pid_t pid)
{
	for (size_t i = 0; i < m->n_processes; i++)
		if (m->processes[i].pid == pid)
			return m->processes[i].rss_bytes;
	return 0;
}

static int plan_ranges(struct fill *f, const struct chunks_reader *reader, const struct manifest *m)
{
	uint64_t left = 0;
	pid_t pid = 0;
	int r = 0;

	for (size_t k = 0; k < f->n && r == 0; k++) {
		const struct manifest_region *region = &m->memory.regions[f->places[k].index];
		uint64_t bytes = stored_bytes(f, reader, k);

		if (region->pid != pid)
			left = had_bytes(m, region->pid) / SPARE_PART * (SPARE_PART + 1);
		pid = region->pid;
		if (bytes > left)
			continue;
		left -= bytes;
		r = add_ranges(f, reader, k);
	}
	return r;
}

int host_fill(struct chunks_reader *reader, const struct manifest *m, const struct proc_tree *tree,
	      bool (*cancelled)(void *arg), void *arg, struct brumate_error *err)
{
	auto_(fill_fini) struct fill f = { 0 };
	int r = plan_fill(&f, m, tree, err);

	if (r < 0)
		return r;
	if (huge_pages_win(&f) && plan_ranges(&f, reader, m) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	cpu_memory_make_huge(f.ranges, f.n_ranges, 0);
	return chunks_load_all(reader, f.places, f.n, 0, cancelled, arg, err);
}

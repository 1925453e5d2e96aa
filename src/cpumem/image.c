// SPDX-License-Identifier: MIT
/*
 * CPU memory in a checkpoint. See image.h.
 *
 * Processes that continue after the checkpoint only wait for a copy in memory, which all cores make while CRIU does
 * its own work: digests, compression and the disk come later. Processes that end are read by the store itself. Their
 * memory is only read, so nothing has to be undone after a failure.
 *
 * All regions are filled at once, by all cores. With few cores, memory to be written is turned into huge pages first,
 * unless the process would then use more memory than before: most pages of a stored chunk may have been missing.
 */
#include "cpumem/image.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/machine.h"
#include "base/thread.h"
#include "base/workers.h"
#include "cpumem/cpu-memory.h"
#include "criu-plugin/hidden.h"
#include "gpu/vendor.h"
#include "process/leftover.h"

/* Memory to be left for others in addition to a copy. */
#define SPARE_BYTES (256ull << 20)

enum {
	SPARE_PART = 8, /* of what a process had, which it may have more */
	CORES_PER_PROCESS = 3,
	CORES_MAX = 64,
};
/* Of a range that is made huge pages by one call. */
#define RANGE_BYTES (64ull << 20)

struct cpu_memory_image {
	char *plugin_dir; /* NULL: CRIU does it all */
	char *gpu_map;
	const struct criu_user *user; /* with whose rights memory is read; NULL: with ours */
	struct criu_plugin plugin;
	const struct gpu_vendor *vendor; /* whose GPUs the job uses */
	struct cpu_memory taken;
	struct cpu_memory_copy copy; /* of processes that go on */
	pthread_t copier;
	bool is_copying;
	int result; /* of the copy */
	struct brumate_error error;
	uint64_t start_ns;
};

int cpu_memory_image_open(struct cpu_memory_image **ret, const struct gpu_vendor *vendor,
			  const struct dev_gpu_pair *pairs, size_t n_pairs,
			  struct criu_options *options, struct brumate_error *err)
{
	auto_(cpu_memory_image_close) struct cpu_memory_image *c = calloc(1, sizeof(*c));

	if (!c)
		return brumate_fail(err, ENOMEM, "%m");
	c->vendor = vendor;
	/* Those of a vendor whose own plugin saves them are not for ours. */
	c->plugin = (struct criu_plugin){ .table_fd = -1,
					  .devices = vendor->saved_by_criu ? "" : vendor->devices,
					  .vendor = vendor->saved_by_criu ? vendor->id : NULL };
	if (c->plugin.vendor && n_pairs && !(c->gpu_map = dev_gpu_pairs_format(pairs, n_pairs)))
		return brumate_fail(err, ENOMEM, "%m");
	c->plugin.gpu_map = c->gpu_map;
	c->user = options->user;
	c->plugin_dir = criu_plugin_dir();
	if (c->plugin_dir) {
		c->plugin.table_fd = hidden_table_new();
		if (c->plugin.table_fd < 0)
			return brumate_fail(err, -c->plugin.table_fd, "a table for CRIU: %m");
		options->libdir = c->plugin_dir;
		options->plugin = &c->plugin;
	}
	*ret = take_ptr(&c);
	return 0;
}

int cpu_memory_image_join(struct cpu_memory_image **ret, int table_fd, struct brumate_error *err)
{
	auto_(cpu_memory_image_close) struct cpu_memory_image *c = calloc(1, sizeof(*c));

	if (!c)
		return brumate_fail(err, ENOMEM, "%m");
	c->plugin.table_fd = fcntl(table_fd, F_DUPFD_CLOEXEC, 0);
	if (c->plugin.table_fd < 0)
		return brumate_fail(err, errno, "a table for CRIU: %m");
	*ret = take_ptr(&c);
	return 0;
}

/* ---- out ---- */

static void *copy_thread(void *arg)
{
	struct cpu_memory_image *c = arg;

	c->result = cpu_memory_copy_out(&c->taken, &c->copy, 0, NULL, NULL, &c->error);
	return NULL;
}

static int start_copy(struct cpu_memory_image *c, struct brumate_error *err)
{
	int r = thread_start(&c->copier, copy_thread, c);

	if (r < 0)
		return brumate_fail(err, -r, "a thread that copies the job's memory: %m");
	c->is_copying = true;
	return 0;
}

static struct manifest_region describe_region(const struct cpu_memory_region *r)
{
	return (struct manifest_region){
		.kind = MANIFEST_REGION_HOST,
		.pid = r->inner_pid,
		.va = r->va,
		.len_bytes = r->len_bytes,
	};
}

/* Processes that end after the checkpoint stay frozen until the image is committed: no copy is needed. */
static int save_in_place(struct cpu_memory_image *c, struct chunks_writer *w,
			 struct brumate_error *err)
{
	int r = 0;

	for (size_t i = 0; i < c->taken.n && r == 0; i++) {
		struct cpu_memory_region *taken = &c->taken.items[i];
		const struct manifest_region region = describe_region(taken);

		r = chunks_add_from(w, &region, cpu_memory_read, taken, err);
	}
	return r;
}

/* Returns true if a copy fits into what is free: then it has its place. */
static bool reserve_copy(struct cpu_memory_image *c, struct progress *progress)
{
	if (c->taken.present_bytes + SPARE_BYTES <= machine_room_bytes() &&
	    cpu_memory_copy_reserve(&c->copy, &c->taken) == 0)
		return true;
	progress_note(progress,
		      "%.1f GB of the job's memory were saved by CRIU, slower, for lack of free "
		      "memory for a copy",
		      (double)c->taken.present_bytes / 1e9);
	return false;
}

/* The driver's mappings are only final now: the processes that it knows are saved, and none runs. */
static int check_device_maps(struct cpu_memory_image *c, const struct proc_tree *tree,
			     const struct cpu_memory_frozen *frozen, struct brumate_error *err)
{
	int r = leftover_check(tree, c->vendor, frozen->gpus, frozen->n_gpus, err);

	if (r <= 0)
		return r;
	r = cpu_memory_allow_device_maps(c->plugin.table_fd);
	return r < 0 ? brumate_fail(err, -r, "telling CRIU of mapped devices: %m") : 0;
}

static int hide(struct cpu_memory_image *c, enum cpu_memory_pids pids, struct brumate_error *err)
{
	int r = cpu_memory_hide(c->plugin.table_fd, &c->taken, pids);

	return r < 0 ? brumate_fail(err, -r, "telling CRIU what it need not save: %m") : 0;
}

/* Begins to save what was chosen. */
static int begin_saving(struct cpu_memory_image *c, const struct cpu_memory_frozen *frozen,
			struct brumate_error *err)
{
	struct chunks_writer *w;
	int r = frozen->writer(frozen->arg, &w, err);

	if (r < 0)
		return r;
	r = frozen->goes_on ? start_copy(c, err) : save_in_place(c, w, err);
	if (r < 0)
		return r;
	return hide(c, CPU_MEMORY_INNER_PIDS, err);
}

int cpu_memory_image_frozen(struct cpu_memory_image *c, const struct cpu_memory_frozen *frozen,
			    struct progress *progress, struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	int r;

	if (!c->plugin_dir)
		return 0;
	c->start_ns = clock_now_ns();
	if ((r = proc_tree_read(&tree, frozen->root, err)) < 0 ||
	    (r = check_device_maps(c, &tree, frozen, err)) < 0)
		return r;
	if (!cpu_memory_table_is_heeded(c->plugin.table_fd))
		return 0;
	if ((r = cpu_memory_choose(&c->taken, &tree, c->user, 0, err)) < 0)
		return r;
	if (c->taken.n && (!frozen->goes_on || reserve_copy(c, progress)))
		return begin_saving(c, frozen, err);
	cpu_memory_fini(&c->taken);
	return 0;
}

int cpu_memory_image_ask(struct cpu_memory_image *c, const struct attributes_call *calls, size_t n)
{
	return c->plugin_dir ? cpu_memory_table_ask(c->plugin.table_fd, calls, n) : -ENOENT;
}

int cpu_memory_image_take(struct cpu_memory_image *c, const struct proc_tree *tree,
			  struct brumate_error *err)
{
	int r = cpu_memory_choose(&c->taken, tree, NULL, 0, err);

	return r < 0 ? r : c->taken.n > 0;
}

int cpu_memory_image_leave(struct cpu_memory_image *c, struct chunks_writer *w,
			   struct brumate_error *err)
{
	int r = save_in_place(c, w, err);

	return r < 0 ? r : hide(c, CPU_MEMORY_OUR_PIDS, err);
}

int cpu_memory_image_filters(struct cpu_memory_image *c, struct manifest_filters **ret,
			     size_t *ret_n)
{
	return c->plugin_dir ? cpu_memory_table_filters(ret, ret_n, c->plugin.table_fd) : -ENOENT;
}

int cpu_memory_image_told(struct cpu_memory_image *c, struct attributes_told **ret, size_t *ret_n,
			  size_t *ret_keyrings)
{
	return c->plugin_dir ? cpu_memory_table_told(ret, ret_n, ret_keyrings, c->plugin.table_fd)
			     : -ENOENT;
}

static int fail_registers(const struct thread_notes *n, struct brumate_error *err)
{
	const uint64_t tiles = 3ull << 17;

	if (!n->kept_by)
		return brumate_fail(err, (int)n->error,
				    "registers of process %" PRId64
				    " that CRIU does not save (AMX): %m",
				    n->pid);
	brumate_fail(err, EOPNOTSUPP,
		     "thread %" PRId64
		     " has %s in use that CRIU does not save (components %#" PRIx64 ")",
		     n->kept_by, n->kept & ~tiles ? "registers" : "tile registers (AMX)", n->kept);
	brumate_hint(err, "try again; a program that never lets go of them (tilerelease) can be "
			  "suspended only");
	return -EOPNOTSUPP;
}

static int fail_bound(int64_t pid, struct brumate_error *err)
{
	brumate_fail(err, EOPNOTSUPP,
		     "process %" PRId64
		     " may not run memory that was written (PR_SET_MDWE), and CRIU's own "
		     "code for this processor needs to",
		     pid);
	brumate_hint(
		err,
		"suspend the job, or start its program without that, in a unit of systemd with "
		"MemoryDenyWriteExecute=no");
	return -EOPNOTSUPP;
}

int cpu_memory_image_threads(struct cpu_memory_image *c, struct progress *progress,
			     struct brumate_error *err)
{
	struct thread_notes notes = { 0 };
	int r = c->plugin_dir ? cpu_memory_table_threads(&notes, c->plugin.table_fd) : 0;

	if (r < 0)
		return brumate_fail(err, -r, "what CRIU's plugin says of threads: %m");
	if (notes.gpu_pid)
		return brumate_fail(err, EIO,
				    "CRIU's plugin for the GPU did not bring back what process "
				    "%" PRId64 " has there: its log tells why",
				    notes.gpu_pid);
	if (notes.bound_pid)
		return fail_bound(notes.bound_pid, err);
	if (notes.kept_by || notes.error)
		return fail_registers(&notes, err);
	if (notes.n_early_waits)
		progress_note(progress,
			      "%u system calls that wait for a time end before it, with EINTR",
			      notes.n_early_waits);
	return 0;
}

static void join_copy(struct cpu_memory_image *c)
{
	if (c->is_copying)
		pthread_join(c->copier, NULL);
	c->is_copying = false;
}

int cpu_memory_image_dumped(struct cpu_memory_image *c, struct progress *progress,
			    struct brumate_error *err)
{
	int r = fault_point("checkpoint.host-memory");

	if (!c->taken.n)
		return 0;
	join_copy(c);
	if (r < 0)
		return brumate_fail(err, -r, "injected while memory is copied: %m");
	if (c->result < 0) {
		if (err)
			*err = c->error;
		return c->result;
	}
	if (c->copy.bytes)
		progress_phase(progress, "host-memory", c->start_ns);
	return 0;
}

int cpu_memory_image_save(struct cpu_memory_image *c, struct chunks_writer *w,
			  struct brumate_error *err)
{
	const char *data = c->copy.bytes;
	int r = 0;

	for (size_t i = 0; data && i < c->taken.n && r == 0; i++) {
		const struct manifest_region region = describe_region(&c->taken.items[i]);

		r = chunks_add_bytes(w, &region, data, err);
		data += region.len_bytes;
	}
	return r;
}

void cpu_memory_image_saved(struct cpu_memory_image *c)
{
	cpu_memory_copy_fini(&c->copy);
}

void cpu_memory_image_close(struct cpu_memory_image *c)
{
	if (!c)
		return;
	join_copy(c);
	cpu_memory_copy_fini(&c->copy);
	cleanup_close(&c->plugin.table_fd);
	cpu_memory_fini(&c->taken);
	free(c->plugin_dir);
	free(c->gpu_map);
	free(c);
}

/* ---- in ---- */

/* Where each region goes. */
struct fill {
	struct cpu_memory_target *targets;
	struct chunks_place *places;
	size_t n;
	struct cpu_memory_range *ranges; /* to be huge pages */
	size_t n_ranges;
};

/* Targets of one process have the same descriptors, and are adjacent in the list. */
static void fill_fini(struct fill *f)
{
	int last = -1;

	for (size_t i = 0; i < f->n; i++) {
		const struct cpu_memory_target *t = &f->targets[i];

		if (t->pidfd == last)
			continue;
		last = t->pidfd;
		close(t->pidfd);
		if (t->mem_fd >= 0)
			close(t->mem_fd);
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

/* Opens what writing into process @p takes. */
static int open_target(struct cpu_memory_target *t, const struct proc_info *p,
		       const struct criu_user *user, struct brumate_error *err)
{
	auto_close int pidfd = proc_open(p->id);
	int mem_fd = -1;

	if (pidfd < 0)
		return brumate_fail(err, -pidfd, "process %d: %m", p->inner_pid);
	if (user && (mem_fd = cpu_memory_open(p->id.pid, pidfd, O_RDWR, user, err)) < 0)
		return mem_fd;
	t->pid = p->id.pid;
	t->pidfd = take_fd(&pidfd);
	t->mem_fd = mem_fd;
	return 0;
}

static int add_place(struct fill *f, const struct proc_tree *tree, size_t index,
		     const struct manifest_region *region, const struct criu_user *user,
		     struct brumate_error *err)
{
	const struct proc_info *p = find_process(tree, region->pid);
	const struct cpu_memory_target *last = f->n ? &f->targets[f->n - 1] : NULL;
	struct cpu_memory_target t = { .va = region->va, .len_bytes = region->len_bytes };
	int r = 0;

	if (!p)
		return brumate_fail(err, ESRCH,
				    "process %d, whose memory is to be filled, is not there",
				    region->pid);
	if (last && last->pid == p->id.pid) {
		t.pid = last->pid;
		t.pidfd = last->pidfd;
		t.mem_fd = last->mem_fd;
	} else if ((r = open_target(&t, p, user, err)) < 0) {
		return r;
	}
	f->targets[f->n] = t;
	f->places[f->n] = (struct chunks_place){ index, cpu_memory_write, &f->targets[f->n] };
	f->n++;
	return 0;
}

static int plan_fill(struct fill *f, const struct manifest *m, const struct proc_tree *tree,
		     const struct criu_user *user, struct brumate_error *err)
{
	int r = 0;

	f->targets = calloc(m->memory.n_regions, sizeof(*f->targets));
	f->places = calloc(m->memory.n_regions, sizeof(*f->places));
	if (!f->targets || !f->places)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < m->memory.n_regions && r == 0; i++)
		if (m->memory.regions[i].kind == MANIFEST_REGION_HOST)
			r = add_place(f, tree, i, &m->memory.regions[i], user, err);
	return r;
}

/* ---- huge pages ---- */

/* Huge pages are cleared under the lock of a process's memory, by one core at a time: 10 GB/s, regardless of the
 * number of cores. Small pages are cleared by all cores: 2.3 GB/s each, so that four cores are as fast with them. */
static bool huge_pages_win(const struct fill *f)
{
	unsigned processes = 0;

	for (size_t i = 0; i < f->n; i++)
		processes += i == 0 || f->targets[i].pid != f->targets[i - 1].pid;
	return workers_cores(CORES_MAX) <= processes * CORES_PER_PROCESS;
}

static int add_range(struct fill *f, const struct cpu_memory_target *t, uint64_t offset,
		     uint64_t len)
{
	return array_add(
		f->ranges, f->n_ranges,
		(struct cpu_memory_range){ t->pid, t->pidfd, t->mem_fd, t->va + offset, len });
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

bool cpu_memory_image_is_in(const struct manifest *m)
{
	for (size_t i = 0; i < m->memory.n_regions; i++)
		if (m->memory.regions[i].kind == MANIFEST_REGION_HOST)
			return true;
	return false;
}

static int fill_regions(struct chunks_reader *reader, const struct manifest *m,
			const struct proc_tree *tree, const struct criu_user *user,
			struct progress *progress, struct brumate_error *err)
{
	auto_(fill_fini) struct fill f = { 0 };
	int r = plan_fill(&f, m, tree, user, err);

	if (r < 0)
		return r;
	if (huge_pages_win(&f) && plan_ranges(&f, reader, m) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	cpu_memory_make_huge(f.ranges, f.n_ranges, 0);
	chunks_reader_map(reader);
	r = chunks_load_all(reader, f.places, f.n, 0, progress_is_over, progress, err);
	if (r == -ECANCELED)
		progress_check(progress, err);
	return r;
}

int cpu_memory_image_fill(const struct store_image *image, struct proc_id root,
			  const struct criu_user *user, struct progress *progress,
			  struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	auto_(chunks_reader_free) struct chunks_reader *reader = NULL;
	uint64_t start_ns = clock_now_ns();
	int r = fault_point("restore.host-memory");

	if (!cpu_memory_image_is_in(&image->manifest))
		return 0;
	if (r < 0)
		return brumate_fail(err, -r, "injected while memory is filled: %m");
	if ((r = proc_tree_read(&tree, root, err)) < 0 ||
	    (r = store_chunks_open(&reader, image, err)) < 0)
		return r;
	r = fill_regions(reader, &image->manifest, &tree, user, progress, err);
	if (r == 0)
		progress_phase(progress, "host-memory", start_ns);
	return r;
}

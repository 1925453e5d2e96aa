// SPDX-License-Identifier: MIT
/*
 * Chooses which memory of a frozen tree is saved: first mappings by their smaps entry, which is only read for
 * processes whose maps have a large enough one, then the parts of these that are worth it by the page map, with
 * several threads. Also fills the table by which the plugin inside CRIU hides them.
 */
#include "cpumem/cpu-memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/param.h>
#include <unistd.h>

#include "base/array.h"
#include "base/digest.h"
#include "base/workers.h"
#include "criu-plugin/hidden.h"
#include "process/process.h"

/* Bits of /proc/PID/pagemap: Documentation/admin-guide/mm/pagemap.rst of Linux. */
#define PAGE_FRAME_MASK	 ((1ull << 55) - 1)
#define PAGE_EXCLUSIVE	 (1ull << 56)
#define PAGE_GUARD	 (1ull << 58)
#define PAGE_FILE_SHARED (1ull << 61)
#define PAGE_SWAPPED	 (1ull << 62)
#define PAGE_PRESENT	 (1ull << 63)

enum {
	THREADS_MAX = 32,
	SMAPS_BYTES_MAX = 256 << 20,
	VMAS_MAX = 1 << 16,
	SPARSE_FACTOR = 64, /* less there than one page in so many: left to CRIU */
	SHARED_PART = 8,    /* more than one page in so many that others have too: left to CRIU */
};
#define PRESENT_BYTES_MIN (8ull << 20)
/* What a thread surveys at a time: its page map fits into a core's cache. */
#define PIECE_PAGES ((256u << 10) / sizeof(uint64_t))

/* Regions of one process share a descriptor, and are adjacent in the list. */
void cpu_memory_fini(struct cpu_memory *m)
{
	int last = -1;

	for (size_t i = 0; i < m->n; i++) {
		int fd = m->items[i].mem_fd;

		free(m->items[i].present);
		if (fd < 0 || fd == last)
			continue;
		close(fd);
		last = fd;
	}
	free(m->items);
	*m = CPU_MEMORY_EMPTY;
}

/* ---- what smaps says of a mapping; pure ---- */

/* Flags of plain memory: proc(5), VmFlags. CRIU saves everything else (huge TLB pages, device memory, userfaultfd,
 * droppable pages, guards, shadow stacks, flags of later kernels). */
static const char plain_flags[] = " rd wr ex mr mw me ac nr hg nh sd dd dc wf lo mg lf nl ";

static bool flags_are_plain(char *flags)
{
	char *rest = NULL;

	for (char *f = strtok_r(flags, " ", &rest); f; f = strtok_r(NULL, " ", &rest)) {
		char word[8];

		if (strlen(f) != 2)
			return false;
		snprintf(word, sizeof(word), " %s ", f);
		if (!strstr(plain_flags, word))
			return false;
	}
	return true;
}

/* Reads the first line of a mapping. Returns 1 for a candidate, 0 for none, -EBADMSG for another line. */
static int parse_head(const char *line, struct cpu_memory_vma *ret)
{
	struct proc_mapping m;

	if (!proc_mapping_parse(&m, line) || (m.start | m.end) % (uint64_t)sysconf(_SC_PAGESIZE))
		return -EBADMSG;
	*ret = (struct cpu_memory_vma){ m.start, m.end, 0 };
	bool is_anonymous = !*m.name || !strcmp(m.name, "[heap]") || !strncmp(m.name, "[anon:", 6);
	return is_anonymous && !m.inode && !strncmp(m.access, "rw", 2) && m.access[3] == 'p';
}

ssize_t cpu_memory_parse_smaps(char *text, struct cpu_memory_vma *ret, size_t room)
{
	struct cpu_memory_vma vma = { 0 };
	size_t n = 0;
	char *rest = NULL;
	int candidate = 0;
	uint64_t last_end = 0;

	for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		if (smaps_is_head(line)) {
			candidate = parse_head(line, &vma);
			if (candidate < 0 || vma.start < last_end)
				return -EBADMSG;
			last_end = vma.end;
		} else if (!strncmp(line, "VmFlags:", 8)) {
			if (candidate && n < room && flags_are_plain(line + 8))
				ret[n++] = vma;
			candidate = 0;
		} else {
			vma.there_bytes += smaps_bytes(line, "Rss:") + smaps_bytes(line, "Swap:");
		}
	}
	return (ssize_t)n;
}

/* ---- mappings ---- */

static uint64_t align_up(uint64_t v)
{
	return (v + CPU_MEMORY_ALIGN_BYTES - 1) & ~(CPU_MEMORY_ALIGN_BYTES - 1);
}

static uint64_t align_down(uint64_t v)
{
	return v & ~(CPU_MEMORY_ALIGN_BYTES - 1);
}

static bool is_large(uint64_t start, uint64_t end)
{
	return align_down(end) >= align_up(start) + PRESENT_BYTES_MIN;
}

/* Reservations of terabytes with little content are skipped: examining them would take long for little gain. */
static bool is_dense(const struct cpu_memory_vma *vma)
{
	return is_large(vma->start, vma->end) && vma->there_bytes >= PRESENT_BYTES_MIN &&
	       vma->there_bytes >= (vma->end - vma->start) / SPARSE_FACTOR;
}

static char *read_proc(pid_t pid, const char *name)
{
	char *text = NULL;

	return proc_file_read(pid, name, SMAPS_BYTES_MAX, &text, NULL) < 0 ? NULL : text;
}

/* Whether it is worth reading smaps, which walks all pages; this does not. */
static bool has_large_mapping(pid_t pid)
{
	auto_free char *text = read_proc(pid, "maps");
	char *rest = NULL;

	for (char *line = text ? strtok_r(text, "\n", &rest) : NULL; line;
	     line = strtok_r(NULL, "\n", &rest)) {
		unsigned long long start, end;

		if (sscanf(line, "%llx-%llx rw", &start, &end) == 2 && is_large(start, end))
			return true;
	}
	return false;
}

static int add_region(struct cpu_memory *m, const struct proc_info *p,
		      const struct cpu_memory_vma *vma)
{
	uint64_t start = align_up(vma->start), end = align_down(vma->end);
	uint64_t pages = (end - start) / (uint64_t)sysconf(_SC_PAGESIZE);
	const struct cpu_memory_region region = {
		.pid = p->id.pid,
		.inner_pid = p->inner_pid,
		.va = start,
		.len_bytes = end - start,
		.mem_fd = -1,
		.present = calloc((size_t)(pages + 63) / 64, sizeof(uint64_t)),
	};

	if (region.present && array_add(m->items, m->n, region) == 0)
		return 0;
	free(region.present);
	return -ENOMEM;
}

static int find_regions(struct cpu_memory *m, const struct proc_info *p)
{
	auto_free char *text = has_large_mapping(p->id.pid) ? read_proc(p->id.pid, "smaps") : NULL;
	auto_free struct cpu_memory_vma *vmas = text ? malloc(VMAS_MAX * sizeof(*vmas)) : NULL;
	ssize_t n = vmas ? cpu_memory_parse_smaps(text, vmas, VMAS_MAX) : 0;
	int r = 0;

	if (text && !vmas)
		return -ENOMEM;
	for (ssize_t i = 0; i < n && r == 0; i++)
		if (is_dense(&vmas[i]))
			r = add_region(m, p, &vmas[i]);
	return r;
}

/* ---- pages ---- */

struct count {
	_Atomic uint64_t present, shared;
	atomic_bool is_odd;
};

struct survey {
	struct cpu_memory *m;
	struct count *counts; /* one a region */
	uint64_t zero_frame;
};

static size_t pieces_of(const struct cpu_memory_region *r)
{
	uint64_t pages = r->len_bytes / (uint64_t)sysconf(_SC_PAGESIZE);

	return (size_t)((pages + PIECE_PAGES - 1) / PIECE_PAGES);
}

static int read_pagemap(pid_t pid, uint64_t va, uint64_t *entries, size_t n)
{
	uint64_t offset = va / (uint64_t)sysconf(_SC_PAGESIZE) * sizeof(*entries);
	size_t len = n * sizeof(*entries);
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/pagemap", pid);
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ssize_t got = pread(fd, entries, len, (off_t)offset);
	if (got < 0)
		return -errno;
	return (size_t)got == len ? 0 : -ENODATA;
}

/* The number of the frame that every page of zeros has until it is written to; 0 where the kernel does not tell. */
static uint64_t find_zero_frame(void)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uint64_t entry = 0;
	volatile char *p = mmap(NULL, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return 0;
	if (*p != 0 || read_pagemap(getpid(), (uintptr_t)p, &entry, 1) < 0)
		entry = 0;
	munmap((void *)(uintptr_t)p, page);
	return entry & PAGE_PRESENT ? entry & PAGE_FRAME_MASK : 0;
}

static void count_pages(const struct survey *s, struct cpu_memory_region *r, struct count *c,
			uint64_t first, const uint64_t *entries, size_t n)
{
	uint64_t present = 0, shared = 0;

	for (size_t i = 0; i < n; i++) {
		uint64_t e = entries[i];
		bool is_zero = s->zero_frame && (e & PAGE_FRAME_MASK) == s->zero_frame;

		if (e & (PAGE_GUARD | PAGE_FILE_SHARED))
			atomic_store(&c->is_odd, true);
		if (!(e & (PAGE_PRESENT | PAGE_SWAPPED)) || ((e & PAGE_PRESENT) && is_zero))
			continue;
		/* A piece's pages are whole words of the bitmap. */
		r->present[(first + i) / 64] |= 1ull << ((first + i) % 64);
		present++;
		shared += (e & PAGE_PRESENT) && !(e & PAGE_EXCLUSIVE);
	}
	atomic_fetch_add(&c->present, present);
	atomic_fetch_add(&c->shared, shared);
}

static int survey_piece(void *arg, size_t i, const struct worker *me, struct brumate_error *err)
{
	struct survey *s = arg;
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	auto_free uint64_t *entries = malloc(PIECE_PAGES * sizeof(*entries));
	size_t k = 0;

	if (!entries)
		return -ENOMEM;
	for (; i >= pieces_of(&s->m->items[k]); k++)
		i -= pieces_of(&s->m->items[k]);
	struct cpu_memory_region *r = &s->m->items[k];
	uint64_t first = i * PIECE_PAGES, pages = r->len_bytes / page;
	size_t n = (size_t)(pages - first < PIECE_PAGES ? pages - first : PIECE_PAGES);
	int e = read_pagemap(r->pid, r->va + first * page, entries, n);
	if (e == 0)
		count_pages(s, r, &s->counts[k], first, entries, n);
	return e;
}

static bool is_worth_it(const struct count *c, bool may_be_shared)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	if (c->is_odd || c->present * page < PRESENT_BYTES_MIN)
		return false;
	return !may_be_shared || c->shared * SHARED_PART <= c->present;
}

/* The last descriptor that was opened, for the next region of the same process. */
struct last_memory {
	pid_t pid;
	int fd;
};

/*
 * process_vm_readv(2) would give a process its own copy of each shared page that is read, as if it had been written
 * to (Linux 5.19 and later); a read of /proc/PID/mem, slower, does not. It also takes a pid,
 * which another process may have by then.
 */
static int open_region(struct cpu_memory_region *r, struct last_memory *last,
		       const struct criu_user *user, struct brumate_error *err)
{
	if (last->pid != r->pid) {
		int fd = cpu_memory_open(r->pid, -1, O_RDONLY, user, err);

		if (fd < 0)
			return fd;
		*last = (struct last_memory){ r->pid, fd };
	}
	r->mem_fd = last->fd;
	return 0;
}

static int keep_worthy(struct cpu_memory *m, const struct count *counts, bool may_be_shared,
		       const struct criu_user *user, struct brumate_error *err)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct last_memory last = { 0 };
	size_t kept = 0;
	int e = 0;

	for (size_t i = 0; i < m->n; i++) {
		struct cpu_memory_region *r = &m->items[i];

		if (!is_worth_it(&counts[i], may_be_shared)) {
			free(r->present);
			continue;
		}
		r->present_bytes = counts[i].present * page;
		m->present_bytes += r->present_bytes;
		m->len_bytes += r->len_bytes;
		if (e == 0 && (user || counts[i].shared))
			e = open_region(r, &last, user, err);
		m->items[kept++] = *r;
	}
	m->n = kept;
	return e;
}

static int survey(struct cpu_memory *m, bool may_be_shared, const struct criu_user *user,
		  unsigned threads, struct brumate_error *err)
{
	auto_free struct count *counts = calloc(m->n + 1, sizeof(*counts));
	struct survey s = { .m = m, .counts = counts, .zero_frame = find_zero_frame() };
	size_t pieces = 0;

	if (!counts)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < m->n; i++)
		pieces += pieces_of(&m->items[i]);
	threads = threads ? MIN(threads, THREADS_MAX) : workers_cores(THREADS_MAX);
	int r = workers_run(&(struct workers_items){ pieces, threads, survey_piece, &s }, NULL);
	if (r < 0)
		return brumate_fail(err, -r, "looking at the job's memory: %m");
	return keep_worthy(m, counts, may_be_shared, user, err);
}

static int by_place(const void *a, const void *b)
{
	const struct cpu_memory_region *x = a, *y = b;

	if (x->inner_pid != y->inner_pid)
		return x->inner_pid < y->inner_pid ? -1 : 1;
	if (x->pid != y->pid) /* in different namespaces they may be called the same */
		return x->pid < y->pid ? -1 : 1;
	return x->va < y->va ? -1 : x->va > y->va;
}

int cpu_memory_choose(struct cpu_memory *ret, const struct proc_tree *tree,
		      const struct criu_user *user, unsigned threads, struct brumate_error *err)
{
	auto_(cpu_memory_fini) struct cpu_memory m = CPU_MEMORY_EMPTY;
	int r = 0;

	for (size_t i = 0; i < tree->n && r == 0; i++)
		if (tree->items[i].state != 'Z')
			r = find_regions(&m, &tree->items[i]);
	if (r < 0)
		return brumate_fail(err, -r, "looking at the job's memory: %m");
	if ((r = survey(&m, tree->n > 1, user, threads, err)) < 0)
		return r;
	if (m.n)
		qsort(m.items, m.n, sizeof(*m.items), by_place);
	*ret = m;
	m = CPU_MEMORY_EMPTY;
	return 0;
}

/* ---- the table by which the plugin inside CRIU leaves it out (criu-plugin/hidden.h) ---- */

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

bool cpu_memory_table_is_heeded(int table_fd)
{
	auto_(unmap_table) struct hidden_table *t = map_table(table_fd);

	return t && atomic_load(&t->is_heeded);
}

static int by_range(const void *a, const void *b)
{
	const struct hidden_range *x = a, *y = b;

	if (x->pid != y->pid)
		return x->pid < y->pid ? -1 : 1;
	return x->start < y->start ? -1 : x->start > y->start;
}

/* Sorted before CRIU sees them: CRIU may run as a user, who could change the table during the sorting. */
int cpu_memory_hide(int table_fd, const struct cpu_memory *m, enum cpu_memory_pids pids)
{
	auto_(unmap_table) struct hidden_table *t = map_table(table_fd);

	if (!t)
		return -errno;
	if (m->n > HIDDEN_RANGES_MAX)
		return -E2BIG;
	auto_free struct hidden_range *ranges = calloc(m->n + 1, sizeof(*ranges));
	if (!ranges)
		return -ENOMEM;
	for (size_t i = 0; i < m->n; i++) {
		const struct cpu_memory_region *r = &m->items[i];

		ranges[i] = (struct hidden_range){
			.pid = pids == CPU_MEMORY_OUR_PIDS ? r->pid : r->inner_pid,
			.start = r->va,
			.end = r->va + r->len_bytes,
		};
	}
	qsort(ranges, m->n, sizeof(*ranges), by_range);
	memcpy(t->ranges, ranges, m->n * sizeof(*ranges));
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

int cpu_memory_table_ask(int table_fd, const struct attributes_call *calls, size_t n)
{
	auto_(unmap_table) struct hidden_table *t = map_table(table_fd);
	size_t n_taken = n < HIDDEN_CALLS_MAX ? n : HIDDEN_CALLS_MAX;

	if (!t)
		return -errno;
	_Static_assert(sizeof(t->calls.items[0].mask) == sizeof(calls[0].mask), "one mask");
	for (size_t i = 0; i < n_taken; i++) {
		struct hidden_call *c = &t->calls.items[i];

		*c = (struct hidden_call){ .pid = calls[i].pid,
					   .tid = calls[i].tid,
					   .number = calls[i].number,
					   .mask_argument = calls[i].mask_argument };
		memcpy(c->arguments, calls[i].arguments, sizeof(c->arguments));
		memcpy(c->mask, calls[i].mask, sizeof(c->mask));
	}
	atomic_store_explicit(&t->calls.n, (uint32_t)n_taken, memory_order_release);
	return 0;
}

/* The filters of a copy of the table, which CRIU cannot change. */
static int digest_filters(struct manifest_filters *ret, const struct filter_table *t)
{
	for (uint32_t i = 0; i < t->n; i++) {
		const struct filter_owner *o = &t->owners[i];

		if (o->offset > sizeof(t->chains) || o->len_bytes > sizeof(t->chains) - o->offset)
			return -EBADMSG;
		ret[i].pid = (pid_t)o->pid;
		int r = digest_buffer(&ret[i].digest, t->chains + o->offset, o->len_bytes);
		if (r < 0)
			return r;
	}
	return 0;
}

int cpu_memory_table_threads(struct thread_notes *ret, int table_fd)
{
	auto_(unmap_table) struct hidden_table *t = map_table(table_fd);

	if (!t)
		return -errno;
	*ret = t->threads;
	return 0;
}

int cpu_memory_table_told(struct attributes_told **ret, size_t *ret_n, size_t *ret_keyrings,
			  int table_fd)
{
	auto_(unmap_table) struct hidden_table *t = map_table(table_fd);

	if (!t)
		return -errno;
	const size_t n = t->tellings.n < THREAD_TOLD_MAX ? t->tellings.n : THREAD_TOLD_MAX;
	struct attributes_told *told = calloc(n + 1, sizeof(*told));
	if (!told)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		const struct thread_told *its = &t->tellings.items[i];

		told[i] = (struct attributes_told){ .pid = its->pid,
						    .tid = its->tid,
						    .timer_slack_ns = its->timer_slack_ns,
						    .keeps_capabilities = its->keeps_capabilities,
						    .write_or_run = its->write_or_run };
	}
	*ret = told;
	*ret_n = n;
	*ret_keyrings = t->tellings.n_keyrings;
	return 0;
}

int cpu_memory_table_filters(struct manifest_filters **ret, size_t *ret_n, int table_fd)
{
	auto_(unmap_table) struct hidden_table *t = map_table(table_fd);
	auto_free struct filter_table *copy = t ? malloc(sizeof(*copy)) : NULL;

	if (!copy)
		return -errno;
	memcpy(copy, &t->filters, sizeof(*copy));
	if (copy->error || copy->n > FILTER_OWNERS_MAX)
		return copy->error < 4096 && copy->error ? -(int)copy->error : -EBADMSG;
	auto_free struct manifest_filters *filters = calloc(copy->n + 1ul, sizeof(*filters));
	int r = filters ? digest_filters(filters, copy) : -ENOMEM;
	if (r < 0)
		return r;
	*ret = take_ptr(&filters);
	*ret_n = copy->n;
	return 0;
}

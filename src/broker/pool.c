// SPDX-License-Identifier: MIT
/*
 * Which segments exist, who uses them, and how much memory they may take; how a segment is made of the largest pages
 * available, populated, pinned and leased; and the directory on a disk for what does not fit into memory. See pool.h.
 */
#include "broker/pool.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/huge-pages.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/paths.h"
#include "base/size.h"
#include "wire/host-copy.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define GIB (1ull << 30)

#define RING_BYTES    (256 * MIB) /* of the limit, at most: for rings, which are never leased */
#define RESERVE_BYTES (256 * MIB) /* at least */

enum {
	SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
	PREFER_NODE = 1,       /* MPOL_PREFERRED */
	HUGE_2MIB = 21u << 26, /* MFD_HUGE_2MB */
	RECALL_MS = 2000,      /* what is not released by then is not waited for */
};

struct pool {
	char *disk;		/* directory of segments that are on a disk */
	uint64_t limit_bytes;	/* of pinned segments */
	uint64_t memory_bytes;	/* limit of all segments in memory; UINT64_MAX: none */
	uint64_t reserve_bytes; /* of the machine's memory, to be left to others */
	atomic_bool
		hugetlb_refused; /* the cgroup's limit does not allow us all reserved huge pages */

	struct pool_spare spare;
	pthread_mutex_t lock;		  /* of all below */
	struct segment *segments;	  /* all but foreign ones */
	uint64_t pinned_bytes;		  /* or about to be pinned */
	const struct dev_memory_ops *ops; /* pinned the segments, and unpins them */
	struct dev_memory *memory;
};

/* ---- one segment ---- */

/* Reserved huge pages are placed by the kernel; for other memory, huge_pages_map() finds an aligned address. */
static int map_segment(struct segment *s, bool hugetlb)
{
	const int protection = PROT_READ | PROT_WRITE;

	if (!hugetlb) {
		s->at = huge_pages_map(s->fd, 0, s->bytes, protection);
		return s->at ? 0 : -errno;
	}
	void *at = mmap(NULL, s->bytes, protection, MAP_SHARED, s->fd, 0);
	if (at == MAP_FAILED)
		return -errno;
	s->at = at;
	return 0;
}

static int make_file(struct segment *s, unsigned flags)
{
	struct stat st;
	auto_close int fd =
		memfd_create("brumate-segment", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);

	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)s->bytes) < 0 || fcntl(fd, F_ADD_SEALS, SEALS) < 0 ||
	    fstat(fd, &st) < 0)
		return -errno;
	s->dev = st.st_dev;
	s->ino = st.st_ino;
	s->fd = fd;
	int r = map_segment(s, flags & MFD_HUGETLB);
	if (r < 0)
		s->fd = -1;
	else
		take_fd(&fd);
	return r;
}

static void prefer_node(const struct segment *s)
{
	unsigned long mask[16] = { 0 };
	const unsigned bits = 8 * sizeof(mask[0]);

	if (s->node < 0 || (unsigned)s->node >= bits * 16)
		return;
	mask[(unsigned)s->node / bits] = 1ul << ((unsigned)s->node % bits);
	if (syscall(SYS_mbind, s->at, s->bytes, PREFER_NODE, mask, bits * 16 + 1, 0) < 0)
		log_debug("memory of node %d: %s", s->node, strerror(errno));
}

static bool has_shared_huge_pages(void)
{
	char line[128] = "";
	auto_fclose FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "re");

	return f && fgets(line, sizeof(line), f) && !strstr(line, "[never]") &&
	       !strstr(line, "[deny]");
}

/* @hugetlb: of reserved huge pages; mapping takes them, or fails if there are not enough. @blank: it may stay without
 * pages. */
static int make_memory(struct segment *s, bool hugetlb, bool blank)
{
	int r = make_file(s, hugetlb ? MFD_HUGETLB | HUGE_2MIB : 0);

	if (r < 0)
		return r;
	prefer_node(s);
	if (hugetlb)
		s->backing = SEGMENT_HUGETLB;
	else if (!blank && madvise(s->at, s->bytes, MADV_HUGEPAGE) == 0 && has_shared_huge_pages())
		s->backing = SEGMENT_LARGE_PAGES;
	return 0;
}

static int make_largest(struct segment *s)
{
	int r = s->pool->hugetlb_refused ? -ENOMEM : make_memory(s, true, false);

	return r < 0 ? make_memory(s, false, false) : 0;
}

/* Replaces the file of @s, which no other process has, by one of ordinary memory. */
static int make_ordinary_instead(struct segment *s)
{
	struct segment fresh = { .fd = -1, .bytes = s->bytes, .node = s->node };
	int r = make_memory(&fresh, false, false);

	if (r < 0)
		return r;
	munmap(s->at, s->bytes);
	close(s->fd);
	s->fd = fresh.fd;
	s->dev = fresh.dev;
	s->ino = fresh.ino;
	s->at = fresh.at;
	s->backing = fresh.backing;
	return 0;
}

static int open_foreign(struct segment *s, int fd)
{
	if (s->backing == SEGMENT_DISK)
		return (s->fd = spill_open(fd)) < 0 ? s->fd : 0;
	s->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	return s->fd < 0 ? -errno : map_segment(s, false);
}

static void free_segment(struct segment *s)
{
	if (s->at)
		munmap(s->at, s->bytes);
	cleanup_close(&s->fd);
	free(s);
}

bool segment_is_worth_pinning(const struct segment *s)
{
	bool large = s->backing == SEGMENT_LARGE_PAGES || s->backing == SEGMENT_HUGETLB;

	return s->pinning == SEGMENT_PINNED ||
	       (s->pinning == SEGMENT_PINNABLE && (large || s->owner == SEGMENT_TAKEN));
}

bool segment_is_blank(const struct segment *s)
{
	return s->owner == SEGMENT_TAKEN && s->pages != SEGMENT_POPULATED;
}

bool segment_is_used(const struct segment *s)
{
	return s->owner == SEGMENT_TAKEN && s->pages == SEGMENT_POPULATED &&
	       s->backing != SEGMENT_DISK;
}

void segment_pin(struct segment *s, const struct dev_memory_ops *ops, struct dev_memory *m)
{
	struct brumate_error err;

	if (s->pinning == SEGMENT_PINNED || !segment_is_worth_pinning(s))
		return;
	if (ops->pin(m, s->at, s->bytes, &err) < 0) {
		log_warn("host memory stays unpinned: %s", err.text);
		return;
	}
	pthread_mutex_lock(&s->pool->lock);
	s->pinning = SEGMENT_PINNED;
	pthread_mutex_unlock(&s->pool->lock);
}

void segment_zero(const struct segment *s, uint64_t inside, uint64_t bytes)
{
	off_t data = lseek(s->fd, (off_t)inside, SEEK_DATA);
	bool hole = data < 0 ? errno == ENXIO : (uint64_t)data >= inside + bytes;

	if (!hole)
		memset(s->at + inside, 0, bytes);
}

/* ---- segments on a disk ---- */

static int fail_disk(const struct pool *p, int r, struct brumate_error *err)
{
	brumate_fail(err, -r, "%s: %m", p->disk);
	brumate_hint(err, "set SpillDirectory= in [Broker] of brumate.conf");
	return r;
}

/* Examines the directory, or its nearest ancestor that exists. */
static int stat_disk(const struct pool *p, struct statfs *ret)
{
	auto_free char *path = strdup(p->disk);

	while (path && statfs(path, ret) < 0) {
		char *slash = strrchr(path, '/');

		if (errno != ENOENT || !slash || !path[1])
			return -errno;
		slash[slash == path] = '\0';
	}
	return path ? 0 : -ENOMEM;
}

/* Bytes that are free in the directory, or will be once it is created. -EOPNOTSUPP: its file system is in memory. */
static int disk_free_bytes(const struct pool *p, uint64_t *ret, struct brumate_error *err)
{
	struct statfs fs;
	int r = stat_disk(p, &fs);

	if (r < 0)
		return fail_disk(p, r, err);
	if (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC) {
		brumate_fail(err, EOPNOTSUPP, "%s: a file system in memory, which saves none",
			     p->disk);
		brumate_hint(err, "set SpillDirectory= in [Broker] of brumate.conf");
		return -EOPNOTSUPP;
	}
	*ret = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
	return 0;
}

/* For file systems without O_TMPFILE. */
static int open_named_file(const struct pool *p, int flags)
{
	auto_free char *path = path_format("%s/segment-XXXXXX", p->disk);

	if (!path)
		return -ENOMEM;
	int fd = mkostemp(path, flags);
	if (fd < 0)
		return -errno;
	unlink(path);
	return fd;
}

static int open_nameless_file(const struct pool *p, int flags)
{
	int fd = open(p->disk, O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC | flags, 0600);

	if (fd >= 0)
		return fd;
	if (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT)
		return open_named_file(p, O_CLOEXEC | flags);
	return -errno;
}

/* A file (owned) of @bytes with all blocks allocated, open for O_DIRECT if the file system supports it. */
static int open_disk_file(const struct pool *p, uint64_t bytes, struct brumate_error *err)
{
	int r = fault_point("data.spill-open");

	if (r == 0)
		r = mkdir_parents(p->disk, 0700);
	int opened = r < 0 ? r : open_nameless_file(p, O_DIRECT);
	if (opened == -EINVAL) /* goes through the page cache instead, which is slower */
		opened = open_nameless_file(p, 0);
	if (opened < 0)
		return fail_disk(p, opened, err);
	auto_close int fd = opened;
	if (fallocate(fd, 0, 0, (off_t)bytes) < 0 &&
	    (errno != EOPNOTSUPP || ftruncate(fd, (off_t)bytes) < 0))
		return fail_disk(p, -errno, err);
	return take_fd(&fd);
}

/* ---- the stock; all of this under the lock ---- */

static void add_to_list(struct pool *p, struct segment *s)
{
	s->owner = SEGMENT_TAKEN;
	s->next = p->segments;
	p->segments = s;
}

static void set_plain(struct segment *s)
{
	if (s->pinning != SEGMENT_PLAIN)
		s->pool->pinned_bytes -= s->bytes;
	s->pinning = SEGMENT_PLAIN;
}

static void drop_segment(struct segment *s)
{
	struct segment **at = &s->pool->segments;

	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	if (s->pinning == SEGMENT_PINNED)
		s->pool->ops->unpin(s->pool->memory, s->at);
	set_plain(s);
	free_segment(s);
}

static void give_segment_back(struct segment *s)
{
	s->owner = SEGMENT_FREE;
	s->users = 0;
	if (s->pinning == SEGMENT_PLAIN || s->pages != SEGMENT_POPULATED)
		drop_segment(s);
}

/* Takes back leased segments that have no holder any more. */
static void end_leases(struct pool *p)
{
	for (struct segment *s = p->segments, *next; s; s = next) {
		next = s->next;
		if (s->owner != SEGMENT_LEASED || s->users || flock(s->fd, LOCK_EX | LOCK_NB) < 0)
			continue;
		flock(s->fd, LOCK_UN);
		give_segment_back(s);
	}
}

static struct segment *find_free(struct pool *p, uint64_t bytes, int node)
{
	struct segment *found = NULL;

	for (struct segment *s = p->segments; s; s = s->next) {
		if (s->owner != SEGMENT_FREE || s->bytes != bytes)
			continue;
		found = s;
		if (node < 0 || s->node == node)
			break;
	}
	return found;
}

/* Drops free segments until @bytes more fit under the limit, if that helps. */
static bool make_room(struct pool *p, uint64_t bytes, uint64_t limit)
{
	uint64_t in_use = 0;

	for (struct segment *s = p->segments; s; s = s->next)
		if (s->pinning != SEGMENT_PLAIN && s->owner != SEGMENT_FREE)
			in_use += s->bytes;
	if (in_use + bytes > limit)
		return false;
	for (struct segment *s = p->segments, *next; s && p->pinned_bytes + bytes > limit;
	     s = next) {
		next = s->next;
		if (s->owner == SEGMENT_FREE)
			drop_segment(s);
	}
	return p->pinned_bytes + bytes <= limit;
}

static uint64_t bytes_there(const struct segment *s)
{
	struct stat st;
	uint64_t bytes = fstat(s->fd, &st) < 0 ? 0 : (uint64_t)st.st_blocks * 512;

	return s->pages == SEGMENT_POPULATED || bytes > s->bytes ? s->bytes : bytes;
}

/* How much memory the segment takes, or will take. */
static uint64_t bytes_counted(const struct segment *s)
{
	if (s->backing == SEGMENT_DISK)
		return 0;
	return s->pages == SEGMENT_PROMISED ? s->bytes : bytes_there(s);
}

static uint64_t count_owned(const struct pool *p, enum segment_owner owner)
{
	uint64_t bytes = 0;

	for (struct segment *s = p->segments; s; s = s->next)
		if (s->owner == owner)
			bytes += bytes_counted(s);
	return bytes;
}

/* Free bytes that are pinned; p->pinned_bytes also counts what is about to be pinned. */
static uint64_t count_free_pinned(const struct pool *p)
{
	uint64_t bytes = 0;

	for (struct segment *s = p->segments; s; s = s->next)
		if (s->owner == SEGMENT_FREE && s->pinning == SEGMENT_PINNED)
			bytes += bytes_counted(s);
	return bytes;
}

/* Bytes that new segments may have in memory. */
static uint64_t memory_left(const struct pool *p)
{
	uint64_t used = 0, promised = p->reserve_bytes;
	uint64_t left = machine_room_bytes();

	for (struct segment *s = p->segments; s; s = s->next) {
		used += bytes_counted(s);
		if (s->pages == SEGMENT_PROMISED)
			promised += s->bytes - bytes_there(s);
	}
	left -= promised < left ? promised : left;
	used = used < p->memory_bytes ? p->memory_bytes - used : 0;
	return used < left ? used : left;
}

static int fail_no_room(const struct pool *p, uint64_t wanted, uint64_t memory, uint64_t disk,
			struct brumate_error *err)
{
	int r = brumate_fail(err, ENOSPC,
			     "host copy: %s needed, %s of memory free and %s in "
			     "%s; %s hold saved jobs",
			     SIZE_TEXT(wanted), SIZE_TEXT(memory), SIZE_TEXT(disk), p->disk,
			     SIZE_TEXT(count_owned(p, SEGMENT_LEASED)));

	brumate_hint(err, "resume or end a suspended job, add memory, or set SpillDirectory= in "
			  "[Broker] of brumate.conf to a larger file system");
	return r;
}

/* How many of @n segments would have to be allocated. */
static size_t count_new(const struct pool *p, size_t n, uint64_t bytes)
{
	for (struct segment *s = p->segments; s && n; s = s->next)
		if (s->owner == SEGMENT_FREE && s->bytes == bytes)
			n--;
	return n;
}

/* Frees all unused segments except those of @bytes. */
static void drop_others(struct pool *p, uint64_t bytes)
{
	for (struct segment *s = p->segments, *next; s; s = next) {
		next = s->next;
		if (s->owner == SEGMENT_FREE && s->bytes != bytes)
			drop_segment(s);
	}
}

/* How many of @n segments fit into memory. Unused segments of other sizes are freed first. */
static size_t count_in_memory(struct pool *p, size_t n, uint64_t bytes)
{
	size_t made = count_new(p, n, bytes);
	uint64_t left = memory_left(p);
	uint64_t used = count_owned(p, SEGMENT_TAKEN) + count_owned(p, SEGMENT_LEASED);

	if (made * bytes > left) {
		drop_others(p, bytes);
		left = memory_left(p);
	}
	if (made > left / bytes)
		n = n - made + left / bytes;
	used = used < p->memory_bytes ? p->memory_bytes - used : 0;
	return n < used / bytes ? n : used / bytes;
}

/* Sets *ret to the number of segments that will be in memory; the rest must fit on the disk. */
static int divide(struct pool *p, size_t n, uint64_t bytes, size_t *ret, struct brumate_error *err)
{
	size_t here = count_in_memory(p, n, bytes);
	uint64_t disk = 0;

	if (here == n) {
		*ret = n;
		return 0;
	}
	int r = disk_free_bytes(p, &disk, err);
	if (r < 0)
		return brumate_wrap(err, r, "host copy: %s needed, %s of memory free",
				    SIZE_TEXT(n * bytes), SIZE_TEXT(here * bytes));
	if ((n - here) * bytes > disk)
		return fail_no_room(p, n * bytes, here * bytes, disk, err);
	*ret = here;
	return 0;
}

static struct segment *segment_new(struct pool *p, uint64_t bytes, int node)
{
	struct segment *s = calloc(1, sizeof(*s));

	if (s)
		*s = (struct segment){ .pool = p, .fd = -1, .bytes = bytes, .node = node };
	return s;
}

static int add_segment(struct pool *p, struct segment **ret, uint64_t bytes, int node,
		       enum segment_pinning pinning, bool blank)
{
	struct segment *s = segment_new(p, bytes, node);

	if (!s)
		return -ENOMEM;
	int r = blank ? make_memory(s, false, true) : make_largest(s);
	if (r < 0) {
		free(s);
		return r;
	}
	s->pinning = pinning;
	s->pages = s->backing == SEGMENT_HUGETLB || blank ? SEGMENT_BLANK : SEGMENT_PROMISED;
	add_to_list(p, s);
	if (pinning != SEGMENT_PLAIN)
		p->pinned_bytes += bytes;
	*ret = s;
	return 0;
}

static int take_segment(struct pool *p, struct segment **ret, uint64_t bytes, int node,
			uint64_t limit)
{
	struct segment *s = find_free(p, bytes, node);

	if (!s)
		return add_segment(p, ret, bytes, node,
				   make_room(p, bytes, limit) ? SEGMENT_PINNABLE : SEGMENT_PLAIN,
				   false);
	s->owner = SEGMENT_TAKEN;
	*ret = s;
	return 0;
}

static uint64_t ring_bytes(const struct pool *p)
{
	return p->limit_bytes / 4 < RING_BYTES ? p->limit_bytes / 4 : RING_BYTES;
}

static int take_in_memory(struct pool *p, struct segment **ret, uint64_t bytes, int node,
			  struct brumate_error *err)
{
	int r = take_segment(p, ret, bytes, node, p->limit_bytes - ring_bytes(p));

	return r < 0 ? brumate_fail(err, -r, "host memory of %llu MiB: %m",
				    (unsigned long long)(bytes / MIB))
		     : 0;
}

static int take_on_disk(struct pool *p, struct segment **ret, uint64_t bytes,
			struct brumate_error *err)
{
	struct segment *s = segment_new(p, bytes, -1);

	if (!s)
		return brumate_fail(err, ENOMEM, "host copy: %m");
	s->backing = SEGMENT_DISK;
	s->pages = SEGMENT_POPULATED;
	int r = open_disk_file(p, bytes, err);
	if (r < 0) {
		free(s);
		return r;
	}
	s->fd = r;
	add_to_list(p, s);
	*ret = s;
	return 0;
}

static struct segment *find_leased(const struct pool *p, const struct stat *st, uint64_t bytes)
{
	for (struct segment *s = p->segments; s; s = s->next)
		if (s->owner == SEGMENT_LEASED && s->dev == st->st_dev && s->ino == st->st_ino &&
		    s->bytes == bytes)
			return s;
	return NULL;
}

/* ---- for users of segments ---- */

int segment_exchange(struct segment **s)
{
	struct segment *fresh, *old = *s;
	struct pool *p = old->pool;

	pthread_mutex_lock(&p->lock);
	int r = add_segment(p, &fresh, old->bytes, old->node, SEGMENT_PLAIN, true);
	if (r == 0) {
		fresh->users = old->users;
		give_segment_back(old);
		*s = fresh;
	}
	pthread_mutex_unlock(&p->lock);
	return r;
}

/* Replaces huge pages that were refused by a file of ordinary memory, if there is room for it. */
static int exchange_file(struct segment *s)
{
	struct pool *p = s->pool;

	if (!atomic_exchange(&p->hugetlb_refused, true))
		log_warn("huge pages that are free are refused, as a limit of the cgroup does "
			 "(hugetlb.2MB.max): others instead");
	pthread_mutex_lock(&p->lock);
	int r = memory_left(p) < s->bytes ? -ENOMEM : make_ordinary_instead(s);
	if (r == 0)
		s->pages = SEGMENT_PROMISED;
	pthread_mutex_unlock(&p->lock);
	return r;
}

static int fill_segment(struct segment *s, enum huge_pages_effort effort)
{
	return huge_pages_fill(s->at, s->bytes,
			       s->backing == SEGMENT_SMALL_PAGES ? effort : HUGE_PAGES_UNASKED);
}

static int populate(struct segment *s, enum huge_pages_effort effort, struct brumate_error *err)
{
	int r = fill_segment(s, effort);

	if (r == -ENOMEM && s->backing == SEGMENT_HUGETLB) {
		r = exchange_file(s);
		if (r == 0)
			r = fill_segment(s, effort);
	}
	if (r < 0)
		return brumate_fail(err, -r, "host memory of %llu MiB: %m",
				    (unsigned long long)(s->bytes >> 20));
	pthread_mutex_lock(&s->pool->lock);
	if (s->backing == SEGMENT_SMALL_PAGES && r > 0)
		s->backing = SEGMENT_LARGE_PAGES;
	s->pages = SEGMENT_POPULATED;
	pthread_mutex_unlock(&s->pool->lock);
	return 0;
}

int segment_populate(struct segment *s, struct brumate_error *err)
{
	if (s->pages == SEGMENT_POPULATED)
		return s->backing != SEGMENT_DISK;
	return populate(s, HUGE_PAGES_IF_CHEAP, err);
}

/* A segment without pages is useless to the pool, and will not be taken back. */
static void note_lease(struct segment *s, bool written)
{
	pthread_mutex_lock(&s->pool->lock);
	s->owner = SEGMENT_LEASED;
	if (s->pages == SEGMENT_PROMISED && !written)
		s->pages = SEGMENT_BLANK;
	if (s->pages != SEGMENT_POPULATED)
		set_plain(s);
	pthread_mutex_unlock(&s->pool->lock);
}

int segment_lease(struct segment *s, bool written, struct brumate_error *err)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", s->fd);
	auto_close int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return brumate_fail(err, errno, "host memory: lease: %m");
	if (flock(fd, LOCK_SH | LOCK_NB) < 0)
		return brumate_fail(err, errno, "host memory: lease: lock: %m");
	note_lease(s, written);
	return take_fd(&fd);
}

void pool_set_spare(struct pool *p, const struct pool_spare *spare)
{
	p->spare = *spare;
}

/* Where there is too little memory, waits for spare host copies to be released, of which nothing tells. */
bool pool_make_room(struct pool *p, size_t n, uint64_t bytes)
{
	uint64_t deadline_ns = deadline_in_ms(RECALL_MS);
	bool has = pool_has_room(p, n, bytes);

	if (has || !p->spare.recall || !p->spare.recall(p->spare.arg))
		return has;
	while (!(has = pool_has_room(p, n, bytes)) && deadline_left_ms(deadline_ns))
		nanosleep(&(struct timespec){ .tv_nsec = NS_PER_MS }, NULL);
	return has;
}

int pool_take(struct pool *p, struct segment **ret, size_t n, uint64_t bytes, const int *nodes,
	      struct brumate_error *err)
{
	size_t i = 0, in_memory = 0;

	pool_make_room(p, n, bytes);
	pthread_mutex_lock(&p->lock);
	end_leases(p);
	int r = divide(p, n, bytes, &in_memory, err);
	while (i < n && r == 0) {
		r = i < in_memory ? take_in_memory(p, &ret[i], bytes, nodes ? nodes[i] : -1, err)
				  : take_on_disk(p, &ret[i], bytes, err);
		if (r == 0)
			ret[i++]->users = 1;
	}
	while (r < 0 && i-- > 0)
		give_segment_back(ret[i]);
	pthread_mutex_unlock(&p->lock);
	return r;
}

bool pool_has_room(struct pool *p, size_t n, uint64_t bytes)
{
	pthread_mutex_lock(&p->lock);
	end_leases(p);
	bool has = count_in_memory(p, n, bytes) == n;
	pthread_mutex_unlock(&p->lock);
	return has;
}

int pool_take_blank(struct pool *p, struct segment **ret, size_t n, uint64_t bytes,
		    const int *nodes, struct brumate_error *err)
{
	size_t i = 0;
	int r = 0;

	pthread_mutex_lock(&p->lock);
	while (i < n && r == 0) {
		r = add_segment(p, &ret[i], bytes, nodes ? nodes[i] : -1, SEGMENT_PLAIN, true);
		if (r == 0)
			ret[i++]->users = 1;
	}
	while (r < 0 && i-- > 0)
		give_segment_back(ret[i]);
	pthread_mutex_unlock(&p->lock);
	return r < 0 ? brumate_fail(err, -r, "host copy: %m") : 0;
}

struct segment *pool_take_ring(struct pool *p, uint64_t bytes, bool must)
{
	struct segment *s = NULL;

	pthread_mutex_lock(&p->lock);
	end_leases(p);
	if ((find_free(p, bytes, -1) || make_room(p, bytes, p->limit_bytes) || must) &&
	    take_segment(p, &s, bytes, -1, p->limit_bytes) < 0)
		s = NULL;
	pthread_mutex_unlock(&p->lock);
	return s;
}

/* ---- what is ready before it is asked for ---- */

/* Makes the segment of ordinary pages: reserved huge pages are ready anyway, and may be meant for others. */
static struct segment *begin_ready(struct pool *p, uint64_t bytes, int node)
{
	struct segment *s = segment_new(p, bytes, node);

	if (!s)
		return NULL;
	if (make_memory(s, false, false) < 0) {
		free(s);
		return NULL;
	}
	s->pinning = SEGMENT_PINNABLE;
	s->pages = SEGMENT_PROMISED;
	p->pinned_bytes += bytes;
	add_to_list(p, s);
	return s;
}

int pool_prepare(struct pool *p, uint64_t bytes, int node)
{
	struct segment *s = NULL;
	int r = 0;

	pthread_mutex_lock(&p->lock);
	end_leases(p);
	if (p->pinned_bytes + bytes > p->limit_bytes - ring_bytes(p))
		r = -EDQUOT;
	else if (memory_left(p) < bytes || !(s = begin_ready(p, bytes, node)))
		r = -ENOMEM;
	pthread_mutex_unlock(&p->lock);
	if (r < 0)
		return r;
	/* Large pages are pinned three times as fast: 43 GB/s instead of 12 (H200, driver 580.159). */
	r = populate(s, HUGE_PAGES_WITH_PATIENCE, NULL);
	pthread_mutex_lock(&p->lock);
	give_segment_back(s);
	pthread_mutex_unlock(&p->lock);
	return r < 0 ? -ENOMEM : 0;
}

/* Under the lock. */
static struct segment *find_unpinned(const struct pool *p)
{
	for (struct segment *s = p->segments; s; s = s->next)
		if (s->owner == SEGMENT_FREE && s->pinning == SEGMENT_PINNABLE)
			return s;
	return NULL;
}

int pool_pin_ready(struct pool *p, const struct dev_memory_ops *ops, struct dev_memory *m)
{
	pthread_mutex_lock(&p->lock);
	end_leases(p);
	struct segment *s = find_unpinned(p);
	if (s)
		s->owner = SEGMENT_TAKEN; /* a starting copy waits for this one at most */
	pthread_mutex_unlock(&p->lock);
	if (!s)
		return 0;
	segment_pin(s, ops, m);
	int r = s->pinning == SEGMENT_PINNED ? 1 : -ENOMEM;
	pthread_mutex_lock(&p->lock);
	give_segment_back(s);
	pthread_mutex_unlock(&p->lock);
	return r;
}

uint64_t pool_free_bytes(struct pool *p)
{
	pthread_mutex_lock(&p->lock);
	end_leases(p);
	uint64_t bytes = count_owned(p, SEGMENT_FREE);
	pthread_mutex_unlock(&p->lock);
	return bytes;
}

static bool is_of_kind(const struct segment *s, const struct pool_kind *kind)
{
	return s->owner == SEGMENT_FREE && s->bytes == kind->segment_bytes &&
	       (kind->node < 0 || s->node == kind->node);
}

/* Under the lock. */
static uint64_t count_kind(const struct pool *p, const struct pool_kind *kind)
{
	uint64_t bytes = 0;

	for (const struct segment *s = p->segments; s; s = s->next)
		bytes += is_of_kind(s, kind) ? s->bytes : 0;
	return bytes;
}

uint64_t pool_ready_bytes(struct pool *p, const struct pool_kind *kind)
{
	pthread_mutex_lock(&p->lock);
	uint64_t bytes = count_kind(p, kind);
	pthread_mutex_unlock(&p->lock);
	return bytes;
}

/* Under the lock: a free segment that is not wanted for any of @kinds. */
static struct segment *find_surplus(const struct pool *p, const struct pool_kind *kinds, size_t n)
{
	for (struct segment *s = p->segments; s; s = s->next) {
		bool wanted = false;

		for (size_t i = 0; i < n && s->owner == SEGMENT_FREE && !wanted; i++)
			wanted = is_of_kind(s, &kinds[i]) &&
				 count_kind(p, &kinds[i]) < kinds[i].bytes + s->bytes;
		if (s->owner == SEGMENT_FREE && !wanted)
			return s;
	}
	return NULL;
}

void pool_keep(struct pool *p, const struct pool_kind *kinds, size_t n)
{
	struct segment *s;

	do { /* so that a starting copy need not wait until all is freed */
		pthread_mutex_lock(&p->lock);
		s = find_surplus(p, kinds, n);
		if (s)
			drop_segment(s);
		pthread_mutex_unlock(&p->lock);
	} while (s);
}

/* Under the lock. */
static struct segment *find_any_free(const struct pool *p)
{
	for (struct segment *s = p->segments; s; s = s->next)
		if (s->owner == SEGMENT_FREE)
			return s;
	return NULL;
}

void pool_trim(struct pool *p, uint64_t bytes)
{
	uint64_t left = pool_free_bytes(p);

	while (left > bytes) { /* so that a starting copy need not wait until all is freed */
		pthread_mutex_lock(&p->lock);
		struct segment *s = find_any_free(p);
		if (s) {
			left -= s->bytes < left ? s->bytes : left;
			drop_segment(s);
		}
		pthread_mutex_unlock(&p->lock);
		if (!s)
			return;
	}
}

static int adopt_foreign(struct pool *p, struct segment **ret, int fd, uint64_t bytes, bool spilled)
{
	struct segment *s = segment_new(p, bytes, -1);

	if (!s)
		return -ENOMEM;
	s->owner = SEGMENT_FOREIGN;
	s->pages = SEGMENT_POPULATED;
	s->backing = spilled ? SEGMENT_DISK : SEGMENT_SMALL_PAGES;
	int r = open_foreign(s, fd);
	if (r < 0)
		free_segment(s);
	else
		*ret = s;
	return r;
}

int pool_adopt(struct pool *p, struct segment **ret, int fd, uint64_t bytes, bool spilled,
	       struct brumate_error *err)
{
	struct stat st;
	int r = segment_check(fd, bytes);

	spilled = r < 0 && spilled && spill_is_segment(fd, bytes);
	if ((r < 0 && !spilled) || fstat(fd, &st) < 0)
		return brumate_fail(err, EBADF, "host copy: a descriptor is not memory of %llu MiB",
				    (unsigned long long)(bytes / MIB));
	pthread_mutex_lock(&p->lock);
	struct segment *s = find_leased(p, &st, bytes);
	if (s)
		s->users++;
	pthread_mutex_unlock(&p->lock);
	if (s) {
		*ret = s;
		return 0;
	}
	r = adopt_foreign(p, ret, fd, bytes, spilled);
	return r < 0 ? brumate_fail(err, -r, "host copy: %m") : 0;
}

/* Whether a leased segment belongs to its holders alone: the pool will not take it back, and does not count it. */
static bool is_left_to_holders(const struct segment *s)
{
	if (s->users)
		return false;
	return s->backing == SEGMENT_DISK ||
	       (s->pinning == SEGMENT_PLAIN && s->pages != SEGMENT_PROMISED &&
		s->pool->memory_bytes == UINT64_MAX);
}

void pool_put(struct segment *s)
{
	if (!s)
		return;
	if (s->owner == SEGMENT_FOREIGN) {
		free_segment(s);
		return;
	}
	struct pool *p = s->pool;
	pthread_mutex_lock(&p->lock);
	s->users -= s->users > 0;
	if (s->owner == SEGMENT_TAKEN)
		give_segment_back(s);
	else if (is_left_to_holders(s))
		drop_segment(s);
	pthread_mutex_unlock(&p->lock);
}

/* ---- the whole pool ---- */

void pool_pinned_by(struct pool *p, const struct dev_memory_ops *ops, struct dev_memory *m)
{
	pthread_mutex_lock(&p->lock);
	p->ops = ops;
	p->memory = m;
	pthread_mutex_unlock(&p->lock);
}

void pool_unpin(struct pool *p)
{
	pthread_mutex_lock(&p->lock);
	end_leases(p);
	for (struct segment *s = p->segments; s; s = s->next) {
		if (s->pinning != SEGMENT_PINNED)
			continue;
		p->ops->unpin(p->memory, s->at);
		s->pinning = SEGMENT_PINNABLE;
	}
	pthread_mutex_unlock(&p->lock);
}

void pool_info(struct pool *p, struct broker_room *ret)
{
	uint64_t disk_bytes = 0, spare = p->spare.bytes ? p->spare.bytes(p->spare.arg) : 0;

	if (disk_free_bytes(p, &disk_bytes, NULL) < 0)
		disk_bytes = 0;
	pthread_mutex_lock(&p->lock);
	end_leases(p);
	uint64_t free_bytes = count_owned(p, SEGMENT_FREE);
	*ret = (struct broker_room){ .limit_bytes = p->limit_bytes,
				     .pinned_bytes = p->pinned_bytes,
				     .leased_bytes = count_owned(p, SEGMENT_LEASED),
				     .free_bytes = free_bytes,
				     .free_pinned_bytes = count_free_pinned(p),
				     .memory_bytes = memory_left(p) + free_bytes + spare,
				     .disk_bytes = disk_bytes };
	snprintf(ret->disk, sizeof(ret->disk), "%s", p->disk);
	pthread_mutex_unlock(&p->lock);
}

uint64_t pool_segment_bytes(uint64_t total_bytes)
{
	if (total_bytes <= 256 * MIB)
		return 8 * MIB;
	return total_bytes <= 4 * GIB ? 64 * MIB : 256 * MIB;
}

int pool_new(struct pool **ret, const struct pool_options *o, struct brumate_error *err)
{
	struct pool *p = calloc(1, sizeof(*p));
	char *disk = o->disk ? strdup(o->disk) : path_format("%s/spill", path_state_dir());
	uint64_t total = 0;

	if (!p || !disk) {
		free(p);
		free(disk);
		return brumate_fail(err, ENOMEM, "%m");
	}
	machine_meminfo("MemTotal", &total);
	p->disk = disk;
	p->limit_bytes = o->limit_bytes ? o->limit_bytes : machine_pool_bytes();
	p->memory_bytes = o->memory_bytes ? o->memory_bytes : UINT64_MAX;
	p->reserve_bytes = total / 64 > RESERVE_BYTES ? total / 64 : RESERVE_BYTES;
	pthread_mutex_init(&p->lock, NULL);
	*ret = p;
	return 0;
}

void pool_free(struct pool *p)
{
	if (!p)
		return;
	while (p->segments)
		drop_segment(p->segments);
	pthread_mutex_destroy(&p->lock);
	free(p->disk);
	free(p);
}

// SPDX-License-Identifier: MIT
/* Which segments there are, who has them, and how much memory they may take. See pool.h. */
#include "broker/pool-private.h"
#include "broker/spill.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/room.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "wire/host-copy.h"
#include "wire/transfer.h"

#define MIB (1ull << 20)
#define GIB (1ull << 30)

#define RING_BYTES    (256 * MIB) /* of the limit, at most: for rings, never leased */
#define RESERVE_BYTES (256 * MIB) /* at least */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	struct segment *segments; /* all but foreign ones */
	uint64_t limit_bytes, kept_bytes;
	uint64_t memory_bytes;		  /* that all segments in memory may have */
	uint64_t reserve_bytes;		  /* of the machine's memory: left to others */
	const struct dev_memory_ops *ops; /* what pinned them, to unpin them with */
	struct dev_memory *memory;
} pool = { .memory_bytes = UINT64_MAX };

void pool_bound(uint64_t memory_bytes)
{
	pool.memory_bytes = memory_bytes ? memory_bytes : UINT64_MAX;
}

void pool_init(uint64_t limit_bytes)
{
	uint64_t total = 0;

	machine_meminfo("MemTotal", &total);
	pool.limit_bytes = limit_bytes ? limit_bytes : total / 4;
	pool.reserve_bytes = total / 64 > RESERVE_BYTES ? total / 64 : RESERVE_BYTES;
}

uint64_t pool_segment_bytes(uint64_t total_bytes)
{
	if (total_bytes <= 256 * MIB)
		return 8 * MIB;
	return total_bytes <= 4 * GIB ? 64 * MIB : 256 * MIB;
}

static uint64_t ring_bytes(void)
{
	return pool.limit_bytes / 4 < RING_BYTES ? pool.limit_bytes / 4 : RING_BYTES;
}

/* Under the lock. */
static void unlink_segment(struct segment *s)
{
	struct segment **p = &pool.segments;

	while (*p != s)
		p = &(*p)->next;
	*p = s->next;
	if (s->kept)
		pool.kept_bytes -= s->bytes;
}

/* Under the lock. */
static void drop(struct segment *s)
{
	unlink_segment(s);
	if (s->pinned)
		pool.ops->unpin(pool.memory, s->at);
	segment_free(s);
}

/* Under the lock. */
static void give_back(struct segment *s)
{
	s->state = SEGMENT_FREE;
	s->users = 0;
	if (!s->kept || !s->touched)
		drop(s);
}

/* Under the lock: takes back what is held no more. */
static void end_leases(void)
{
	for (struct segment *s = pool.segments, *next; s; s = next) {
		next = s->next;
		if (s->state != SEGMENT_LEASED || s->users || flock(s->fd, LOCK_EX | LOCK_NB) < 0)
			continue;
		flock(s->fd, LOCK_UN);
		give_back(s);
	}
}

/* Under the lock. */
static struct segment *find_free(uint64_t bytes, int node)
{
	struct segment *found = NULL;

	for (struct segment *s = pool.segments; s; s = s->next) {
		if (s->state != SEGMENT_FREE || s->bytes != bytes)
			continue;
		found = s;
		if (node < 0 || s->node == node)
			break;
	}
	return found;
}

/* Under the lock: frees segments that nobody uses until @bytes more fit under the limit, if that helps. */
static bool make_room(uint64_t bytes, uint64_t limit)
{
	uint64_t in_use = 0;

	for (struct segment *s = pool.segments; s; s = s->next)
		in_use += s->kept && s->state != SEGMENT_FREE ? s->bytes : 0;
	if (in_use + bytes > limit)
		return false;
	for (struct segment *s = pool.segments, *next; s && pool.kept_bytes + bytes > limit;
	     s = next) {
		next = s->next;
		if (s->state == SEGMENT_FREE)
			drop(s);
	}
	return pool.kept_bytes + bytes <= limit;
}

/* Of its pages. */
static uint64_t bytes_there(const struct segment *s)
{
	struct stat st;
	uint64_t bytes = fstat(s->fd, &st) < 0 ? 0 : (uint64_t)st.st_blocks * 512;

	return s->touched || bytes > s->bytes ? s->bytes : bytes;
}

/* That it takes of memory, or will. */
static uint64_t bytes_counted(const struct segment *s)
{
	return s->spilled ? 0 : s->promised ? s->bytes : bytes_there(s);
}

/* Under the lock. */
static uint64_t count(int state)
{
	uint64_t bytes = 0;

	for (struct segment *s = pool.segments; s; s = s->next)
		if ((int)s->state == state)
			bytes += bytes_counted(s);
	return bytes;
}

/* Under the lock: bytes that new segments may have in memory. */
static uint64_t memory_left(void)
{
	uint64_t used = 0, spoken_for = pool.reserve_bytes;
	uint64_t left = room_memory_bytes();

	for (struct segment *s = pool.segments; s; s = s->next) {
		used += bytes_counted(s);
		spoken_for += s->promised ? s->bytes - bytes_there(s) : 0;
	}
	left -= spoken_for < left ? spoken_for : left;
	used = used < pool.memory_bytes ? pool.memory_bytes - used : 0;
	return used < left ? used : left;
}

static int fail_no_room(uint64_t wanted, uint64_t memory, uint64_t disk, struct brumate_error *err)
{
	int r = brumate_fail(err, ENOSPC,
			     "host copy: %.1f GiB wanted, %.1f GiB of memory free and %.1f GiB in "
			     "%s; %.1f GiB hold saved jobs",
			     (double)wanted / GIB, (double)memory / GIB, (double)disk / GIB,
			     spill_dir(), (double)count(SEGMENT_LEASED) / GIB);

	brumate_hint(err, "resume or end a suspended job, add memory, or set SpillDirectory= in "
			  "[Broker] of brumate.conf to a larger file system");
	return r;
}

/* Under the lock: how many of @n segments would have to be made. */
static size_t count_new(size_t n, uint64_t bytes)
{
	for (struct segment *s = pool.segments; s && n; s = s->next)
		if (s->state == SEGMENT_FREE && s->bytes == bytes)
			n--;
	return n;
}

/* Under the lock: frees what is free in the pool, but for segments of @bytes. */
static void drop_others(uint64_t bytes)
{
	for (struct segment *s = pool.segments, *next; s; s = next) {
		next = s->next;
		if (s->state == SEGMENT_FREE && s->bytes != bytes)
			drop(s);
	}
}

/* Under the lock: how many segments can be in memory, of @n. What is free in the pool goes first. */
static size_t count_in_memory(size_t n, uint64_t bytes)
{
	size_t made = count_new(n, bytes);
	uint64_t left = memory_left(), used = count(SEGMENT_TAKEN) + count(SEGMENT_LEASED);

	if (made * bytes > left) {
		drop_others(bytes);
		left = memory_left();
	}
	if (made > left / bytes)
		n = n - made + left / bytes;
	used = used < pool.memory_bytes ? pool.memory_bytes - used : 0;
	return n < used / bytes ? n : used / bytes;
}

/* Under the lock: *ret of @n segments will be in memory; the rest must fit on the disk. */
static int divide(size_t n, uint64_t bytes, size_t *ret, struct brumate_error *err)
{
	size_t here = count_in_memory(n, bytes);
	uint64_t disk = 0;

	if (here == n) {
		*ret = n;
		return 0;
	}
	int r = spill_free_bytes(&disk, err);
	if (r < 0)
		return brumate_wrap(err, r, "host copy: %.1f GiB wanted, %.1f GiB of memory free",
				    (double)(n * bytes) / GIB, (double)(here * bytes) / GIB);
	if ((n - here) * bytes > disk)
		return fail_no_room(n * bytes, here * bytes, disk, err);
	*ret = here;
	return 0;
}

/* Under the lock. */
static int add_segment(struct segment **ret, uint64_t bytes, int node, bool kept, bool blank)
{
	struct segment *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	*s = (struct segment){ .fd = -1, .bytes = bytes, .node = node };
	int r = blank ? segment_make_blank(s) : segment_make(s);
	if (r < 0) {
		free(s);
		return r;
	}
	s->kept = kept;
	s->promised = !s->hugetlb && !blank;
	s->state = SEGMENT_TAKEN;
	s->next = pool.segments;
	pool.segments = s;
	if (kept)
		pool.kept_bytes += bytes;
	*ret = s;
	return 0;
}

/* Under the lock. */
static int take_one(struct segment **ret, uint64_t bytes, int node, uint64_t limit)
{
	struct segment *s = find_free(bytes, node);

	if (!s)
		return add_segment(ret, bytes, node, make_room(bytes, limit), false);
	s->state = SEGMENT_TAKEN;
	*ret = s;
	return 0;
}

/* Under the lock. */
static int take_spilled(struct segment **ret, uint64_t bytes, struct brumate_error *err)
{
	struct segment *s = calloc(1, sizeof(*s));

	if (!s)
		return brumate_fail(err, ENOMEM, "host copy: %m");
	*s = (struct segment){ .bytes = bytes, .node = -1, .spilled = true, .touched = true };
	s->fd = spill_open(bytes, err);
	if (s->fd < 0) {
		int r = s->fd;

		free(s);
		return r;
	}
	s->state = SEGMENT_TAKEN;
	s->next = pool.segments;
	pool.segments = s;
	*ret = s;
	return 0;
}

/* Under the lock. */
static int take_in_memory(struct segment **ret, uint64_t bytes, int node, struct brumate_error *err)
{
	int r = take_one(ret, bytes, node, pool.limit_bytes - ring_bytes());

	return r < 0 ? brumate_fail(err, -r, "host memory of %llu MiB: %m",
				    (unsigned long long)(bytes / MIB))
		     : 0;
}

int pool_take_blank(struct segment **s)
{
	struct segment *fresh, *old = *s;

	pthread_mutex_lock(&lock);
	int r = add_segment(&fresh, old->bytes, old->node, false, true);
	if (r == 0) {
		fresh->users = old->users;
		give_back(old);
		*s = fresh;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

int pool_take(struct segment **ret, size_t n, uint64_t bytes, const int *nodes,
	      struct brumate_error *err)
{
	size_t i = 0, in_memory = 0;

	pthread_mutex_lock(&lock);
	end_leases();
	int r = divide(n, bytes, &in_memory, err);
	while (i < n && r == 0) {
		r = i < in_memory ? take_in_memory(&ret[i], bytes, nodes ? nodes[i] : -1, err)
				  : take_spilled(&ret[i], bytes, err);
		if (r == 0)
			ret[i++]->users = 1;
	}
	while (r < 0 && i-- > 0)
		give_back(ret[i]);
	pthread_mutex_unlock(&lock);
	return r;
}

struct segment *pool_take_ring(uint64_t bytes, bool must)
{
	struct segment *s = NULL;

	pthread_mutex_lock(&lock);
	end_leases();
	if ((find_free(bytes, -1) || make_room(bytes, pool.limit_bytes) || must) &&
	    take_one(&s, bytes, -1, pool.limit_bytes) < 0)
		s = NULL;
	pthread_mutex_unlock(&lock);
	return s;
}

int pool_make_ordinary(struct segment *s)
{
	pthread_mutex_lock(&lock);
	int r = memory_left() < s->bytes ? -ENOMEM : segment_make_again(s);
	if (r == 0)
		s->promised = true;
	pthread_mutex_unlock(&lock);
	return r;
}

void pool_note_touched(struct segment *s)
{
	pthread_mutex_lock(&lock);
	s->touched = true;
	s->promised = false;
	pthread_mutex_unlock(&lock);
}

/* What has no pages is of no use to the pool, which it will not come back to. */
void pool_note_lease(struct segment *s, bool written)
{
	pthread_mutex_lock(&lock);
	s->state = SEGMENT_LEASED;
	s->promised = s->promised && written;
	if (s->kept && !s->touched) {
		s->kept = false;
		pool.kept_bytes -= s->bytes;
	}
	pthread_mutex_unlock(&lock);
}

/* Under the lock. */
static struct segment *find_leased(const struct stat *st, uint64_t bytes)
{
	for (struct segment *s = pool.segments; s; s = s->next)
		if (s->state == SEGMENT_LEASED && s->dev == st->st_dev && s->ino == st->st_ino &&
		    s->bytes == bytes)
			return s;
	return NULL;
}

static int adopt_foreign(struct segment **ret, int fd, uint64_t bytes, bool spilled)
{
	struct segment *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	*s = (struct segment){ .fd = -1, .bytes = bytes, .touched = true, .node = -1 };
	s->state = SEGMENT_FOREIGN;
	s->spilled = spilled;
	int r = spilled ? segment_open_foreign(s, fd) : segment_map_foreign(s, fd);
	if (r < 0)
		segment_free(s);
	else
		*ret = s;
	return r;
}

int pool_adopt(struct segment **ret, int fd, uint64_t bytes, bool spilled,
	       struct brumate_error *err)
{
	struct stat st;
	int r = segment_check(fd, bytes);

	spilled = r < 0 && spilled && spill_is_segment(fd, bytes);
	if ((r < 0 && !spilled) || fstat(fd, &st) < 0)
		return brumate_fail(err, EBADF, "host copy: a descriptor is no memory of %llu MiB",
				    (unsigned long long)(bytes / MIB));
	pthread_mutex_lock(&lock);
	*ret = find_leased(&st, bytes);
	if (*ret)
		(*ret)->users++;
	pthread_mutex_unlock(&lock);
	if (*ret)
		return 0;
	r = adopt_foreign(ret, fd, bytes, spilled);
	return r < 0 ? brumate_fail(err, -r, "host copy: %m") : 0;
}

void pool_put(struct segment *s)
{
	if (!s)
		return;
	if (s->state == SEGMENT_FOREIGN) {
		segment_free(s);
		return;
	}
	pthread_mutex_lock(&lock);
	s->users -= s->users > 0;
	if (s->state == SEGMENT_TAKEN)
		give_back(s);
	else if (!s->users &&
		 (s->spilled || (!s->kept && !s->promised && pool.memory_bytes == UINT64_MAX)))
		drop(s); /* its holders keep it; it is of no more use here, if not to be counted */
	pthread_mutex_unlock(&lock);
}

void pool_pinned_by(const struct dev_memory_ops *ops, struct dev_memory *m)
{
	pthread_mutex_lock(&lock);
	pool.ops = ops;
	pool.memory = m;
	pthread_mutex_unlock(&lock);
}

void pool_unpin(void)
{
	pthread_mutex_lock(&lock);
	end_leases();
	for (struct segment *s = pool.segments; s; s = s->next) {
		if (s->pinned)
			pool.ops->unpin(pool.memory, s->at);
		s->pinned = false;
	}
	pthread_mutex_unlock(&lock);
}

void pool_info(struct pool_info *ret)
{
	uint64_t disk_bytes = 0;

	if (spill_free_bytes(&disk_bytes, NULL) < 0)
		disk_bytes = 0;
	pthread_mutex_lock(&lock);
	end_leases();
	uint64_t free_bytes = count(SEGMENT_FREE);
	*ret = (struct pool_info){ pool.limit_bytes,	       pool.kept_bytes,
				   count(SEGMENT_LEASED),      free_bytes,
				   memory_left() + free_bytes, disk_bytes };
	pthread_mutex_unlock(&lock);
}

// SPDX-License-Identifier: MIT
/* Which segments there are, who has them, and how much memory they may take. See pool.h. */
#include "broker/pool-private.h"
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "wire/transfer.h"

#define MIB (1ull << 20)
#define GIB (1ull << 30)

#define RING_BYTES   (256 * MIB) /* of the limit, at most: for rings, never leased */
#define MARGIN_BYTES (256 * MIB) /* of the machine's memory: left to others */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	struct segment *segments; /* all but foreign ones */
	uint64_t limit_bytes, kept_bytes;
	uint64_t promised_bytes;	  /* of segments whose pages are not there yet */
	const struct dev_memory_ops *ops; /* what pinned them, to unpin them with */
	struct dev_memory *memory;
} pool;

static bool read_meminfo(const char *key, uint64_t *ret_bytes)
{
	auto_fclose FILE *f = fopen("/proc/meminfo", "re");
	char line[256];
	unsigned long long kib;
	size_t len = strlen(key);

	while (f && fgets(line, sizeof(line), f)) {
		if (strncmp(line, key, len) || sscanf(line + len, ": %llu", &kib) != 1)
			continue;
		*ret_bytes = kib << 10;
		return true;
	}
	return false;
}

void pool_init(uint64_t limit_bytes)
{
	uint64_t total = 0;

	if (!limit_bytes && read_meminfo("MemTotal", &total))
		limit_bytes = total / 4;
	pool.limit_bytes = limit_bytes;
}

uint64_t pool_segment_bytes(uint64_t total_bytes)
{
	if (total_bytes <= 256 * MIB)
		return 8 * MIB;
	return total_bytes <= 16 * GIB ? 64 * MIB : GIB;
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
	if (s->promised)
		pool.promised_bytes -= s->bytes;
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
	if (!s->kept || !s->touched)
		drop(s);
}

/* Under the lock: takes back what is held no more. */
static void end_leases(void)
{
	for (struct segment *s = pool.segments, *next; s; s = next) {
		next = s->next;
		if (s->state != SEGMENT_LEASED || flock(s->fd, LOCK_EX | LOCK_NB) < 0)
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

/* Under the lock: frees segments that nobody uses until @bytes more fit under the limit. */
static bool make_room(uint64_t bytes, uint64_t limit)
{
	for (struct segment *s = pool.segments, *next; s && pool.kept_bytes + bytes > limit;
	     s = next) {
		next = s->next;
		if (s->state == SEGMENT_FREE)
			drop(s);
	}
	return pool.kept_bytes + bytes <= limit;
}

/* Under the lock. */
static uint64_t count(int state)
{
	uint64_t bytes = 0;

	for (struct segment *s = pool.segments; s; s = s->next)
		if ((int)s->state == state)
			bytes += s->bytes;
	return bytes;
}

static int fail_no_memory(uint64_t wanted, uint64_t available, struct brumate_error *err)
{
	int r = brumate_fail(err, ENOMEM,
			     "host memory: %.1f GiB wanted, %.1f GiB free, %.1f GiB pinned by "
			     "brumate, %.1f GiB of that in saved jobs",
			     (double)wanted / GIB, (double)available / GIB,
			     (double)pool.kept_bytes / GIB, (double)count(SEGMENT_LEASED) / GIB);

	brumate_hint(err, "resume or end a suspended job, checkpoint to disk, or add memory");
	return r;
}

/* Under the lock: whether the machine has @bytes more; what is free in the pool goes first. */
static int check_memory(uint64_t bytes, struct brumate_error *err)
{
	uint64_t available = 0, wanted = bytes + pool.promised_bytes + MARGIN_BYTES;

	if (!bytes || !read_meminfo("MemAvailable", &available) || wanted <= available)
		return 0;
	make_room(pool.limit_bytes, 0);
	read_meminfo("MemAvailable", &available);
	if (wanted <= available)
		return 0;
	available -= pool.promised_bytes < available ? pool.promised_bytes : available;
	return fail_no_memory(bytes, available, err);
}

/* Under the lock. */
static int add_segment(struct segment **ret, uint64_t bytes, int node, bool kept)
{
	struct segment *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	*s = (struct segment){ .fd = -1, .bytes = bytes, .node = node };
	int r = segment_make(s);
	if (r < 0) {
		free(s);
		return r;
	}
	s->kept = kept;
	s->promised = !s->hugetlb;
	s->state = SEGMENT_TAKEN;
	s->next = pool.segments;
	pool.segments = s;
	if (kept)
		pool.kept_bytes += bytes;
	if (s->promised)
		pool.promised_bytes += bytes;
	*ret = s;
	return 0;
}

/* Under the lock. */
static int take_one(struct segment **ret, uint64_t bytes, int node, uint64_t limit)
{
	struct segment *s = find_free(bytes, node);

	if (!s)
		return add_segment(ret, bytes, node, make_room(bytes, limit));
	s->state = SEGMENT_TAKEN;
	*ret = s;
	return 0;
}

/* Under the lock: how many of @n segments would have to be made. */
static size_t count_new(size_t n, uint64_t bytes)
{
	for (struct segment *s = pool.segments; s && n; s = s->next)
		if (s->state == SEGMENT_FREE && s->bytes == bytes)
			n--;
	return n;
}

int pool_take(struct segment **ret, size_t n, uint64_t bytes, const int *nodes,
	      struct brumate_error *err)
{
	size_t i = 0;

	pthread_mutex_lock(&lock);
	end_leases();
	int r = check_memory(count_new(n, bytes) * bytes, err);
	for (; i < n && r == 0; i++) {
		r = take_one(&ret[i], bytes, nodes ? nodes[i] : -1,
			     pool.limit_bytes - ring_bytes());
		if (r < 0) {
			brumate_fail(err, -r, "host memory of %llu MiB: %m",
				     (unsigned long long)(bytes / MIB));
			break;
		}
	}
	while (r < 0 && i-- > 0)
		give_back(ret[i]);
	pthread_mutex_unlock(&lock);
	return r;
}

size_t pool_take_ring(struct segment **ret, size_t n, uint64_t bytes)
{
	size_t i = 0;

	pthread_mutex_lock(&lock);
	end_leases();
	for (; i < n; i++) {
		struct segment *s = find_free(bytes, -1);

		if (!s && !make_room(bytes, pool.limit_bytes))
			break;
		if (take_one(&ret[i], bytes, -1, pool.limit_bytes) < 0)
			break;
	}
	pthread_mutex_unlock(&lock);
	return i;
}

void pool_keep_promise(struct segment *s)
{
	pthread_mutex_lock(&lock);
	if (s->promised)
		pool.promised_bytes -= s->bytes;
	s->promised = false;
	pthread_mutex_unlock(&lock);
}

void pool_note_lease(struct segment *s)
{
	pthread_mutex_lock(&lock);
	s->state = SEGMENT_LEASED;
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

static int adopt_foreign(struct segment **ret, int fd, uint64_t bytes)
{
	struct segment *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	*s = (struct segment){ .fd = -1, .bytes = bytes, .touched = true, .node = -1 };
	s->state = SEGMENT_FOREIGN;
	int r = segment_map_foreign(s, fd);
	if (r < 0)
		segment_free(s);
	else
		*ret = s;
	return r;
}

int pool_adopt(struct segment **ret, int fd, uint64_t bytes, struct brumate_error *err)
{
	struct stat st;
	int r = transfer_check_segment(fd, bytes);

	if (r == 0 && fstat(fd, &st) < 0)
		r = -errno;
	if (r < 0)
		return brumate_fail(err, EBADF, "host copy: a descriptor is no memory of %llu MiB",
				    (unsigned long long)(bytes / MIB));
	pthread_mutex_lock(&lock);
	*ret = find_leased(&st, bytes);
	pthread_mutex_unlock(&lock);
	if (*ret)
		return 0;
	r = adopt_foreign(ret, fd, bytes);
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
	if (s->state == SEGMENT_TAKEN)
		give_back(s);
	else if (!s->kept) /* its holders keep it; it is of no more use here */
		drop(s);
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
	pthread_mutex_lock(&lock);
	end_leases();
	*ret = (struct pool_info){ pool.limit_bytes, pool.kept_bytes, count(SEGMENT_LEASED),
				   count(SEGMENT_FREE) };
	pthread_mutex_unlock(&lock);
}

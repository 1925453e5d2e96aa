// SPDX-License-Identifier: MIT
/* One segment of host memory: made of the largest pages there are, touched, pinned, leased. */
#include "broker/pool-private.h"
#include "base/huge-pages.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
	SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
	PREFER_NODE = 1,       /* MPOL_PREFERRED */
	HUGE_2MIB = 21u << 26, /* MFD_HUGE_2MB */
};

/* Ours while we live: nothing else may be forked with it, or the lease never ends. */
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

static bool shared_huge_pages(void)
{
	char line[128] = "";
	auto_fclose FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "re");

	return f && fgets(line, sizeof(line), f) && !strstr(line, "[never]") &&
	       !strstr(line, "[deny]");
}

int segment_make_blank(struct segment *s)
{
	int r = make_file(s, 0);

	if (r == 0)
		prefer_node(s);
	return r;
}

static int make_ordinary(struct segment *s)
{
	int r = make_file(s, 0);

	if (r < 0)
		return r;
	if (madvise(s->at, s->bytes, MADV_HUGEPAGE) == 0)
		s->huge = shared_huge_pages();
	prefer_node(s);
	return 0;
}

/* While this broker lives: hugetlb.*.max of its cgroup does not let it have all that it set aside. */
static atomic_bool hugetlb_refused;

int segment_make(struct segment *s)
{
	/* Mapping pages of hugetlbfs sets them aside, or fails where there are not enough. */
	int r = hugetlb_refused ? -ENOMEM : make_file(s, MFD_HUGETLB | HUGE_2MIB);

	if (r < 0)
		return make_ordinary(s);
	s->hugetlb = s->huge = true;
	prefer_node(s);
	return 0;
}

int segment_make_again(struct segment *s)
{
	struct segment fresh = { .fd = -1, .bytes = s->bytes, .node = s->node };
	int r = make_ordinary(&fresh);

	if (r < 0)
		return r;
	munmap(s->at, s->bytes);
	close(s->fd);
	s->fd = fresh.fd;
	s->dev = fresh.dev;
	s->ino = fresh.ino;
	s->at = fresh.at;
	s->huge = fresh.huge;
	s->hugetlb = false;
	return 0;
}

int segment_map_foreign(struct segment *s, int fd)
{
	s->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	return s->fd < 0 ? -errno : map_segment(s, false);
}

int segment_open_foreign(struct segment *s, int fd)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	s->fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
	if (s->fd < 0 && errno == EINVAL)
		s->fd = open(path, O_RDWR | O_CLOEXEC);
	return s->fd < 0 ? -errno : 0;
}

void segment_free(struct segment *s)
{
	if (s->at)
		munmap(s->at, s->bytes);
	cleanup_close(&s->fd);
	free(s);
}

int segment_touch(struct segment *s, struct brumate_error *err)
{
	if (s->touched)
		return 0;
	int r = huge_pages_fill(s->at, s->bytes, s->huge);
	if (r == -ENOMEM && s->hugetlb) {
		if (!atomic_exchange(&hugetlb_refused, true))
			log_warn("huge pages that are free are refused, as a limit of the cgroup does "
				 "(hugetlb.2MB.max): others instead");
		r = pool_make_ordinary(s);
		if (r == 0)
			r = huge_pages_fill(s->at, s->bytes, s->huge);
	}
	if (r < 0)
		return brumate_fail(err, -r, "host memory of %llu MiB: %m",
				    (unsigned long long)(s->bytes >> 20));
	s->huge = r > 0;
	pool_note_touched(s);
	return 0;
}

bool segment_is_worth_pinning(const struct segment *s)
{
	return s->kept && (s->pinned || s->huge || s->state == SEGMENT_TAKEN);
}

bool segment_is_blank(const struct segment *s)
{
	return s->state == SEGMENT_TAKEN && !s->touched;
}

void segment_pin(struct segment *s, const struct dev_memory_ops *ops, struct dev_memory *m)
{
	struct brumate_error err;

	if (s->pinned || !segment_is_worth_pinning(s))
		return;
	if (ops->pin(m, s->at, s->bytes, &err) < 0)
		log_warn("host memory stays unpinned: %s", err.text);
	else
		s->pinned = true;
}

void segment_zero(const struct segment *s, uint64_t inside, uint64_t bytes)
{
	off_t data = lseek(s->fd, (off_t)inside, SEEK_DATA);
	bool hole = data < 0 ? errno == ENXIO : (uint64_t)data >= inside + bytes;

	if (!hole)
		memset(s->at + inside, 0, bytes);
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
	pool_note_lease(s, written);
	return take_fd(&fd);
}

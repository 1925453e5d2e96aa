// SPDX-License-Identifier: MIT
/* Which memory is taken, out of foreign text and of a live process; copies of it, byte for byte. */
#include "process/little.h"
#include "cpumem/cpu-memory.h"
#include "criu-plugin/hidden.h"

#include <grp.h>
#include <linux/capability.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define MIB (1ull << 20)

/* ---- the text of smaps ---- */

static ssize_t parse(const char *text, struct cpu_memory_vma *ret)
{
	char copy[4096];

	CHECK(strlen(text) < sizeof(copy));
	strcpy(copy, text);
	return cpu_memory_parse_smaps(copy, ret, 4);
}

#define MAPPING(range, perms, inode, name, flags)                                 \
	range " " perms " 00000000 00:00 " inode "                    " name "\n" \
	      "Size: 4 kB\nRss: 4 kB\nVmFlags: " flags " \n"

static void text_of_smaps(void)
{
	struct cpu_memory_vma v[4];

	CHECK(parse(MAPPING("1000-3000", "rw-p", "0", "", "rd wr mr mw me ac sd"), v) == 1);
	CHECK(v[0].start == 0x1000 && v[0].end == 0x3000 && v[0].there_bytes == 4096);
	CHECK(parse(MAPPING("1000-3000", "rw-p", "0", "[heap]", "rd wr mr mw me ac"), v) == 1);
	CHECK(parse(MAPPING("1000-3000", "rw-p", "0", "[anon:x]", "rd wr mr mw me hg"), v) == 1);

	const char *left[] = {
		MAPPING("1000-3000", "rw-s", "0", "", "rd wr sh mr mw me ms"),
		MAPPING("1000-3000", "r--p", "0", "", "rd mr mw me ac"),
		MAPPING("1000-3000", "rw-p", "77", "/a", "rd wr mr mw me ac"),
		MAPPING("1000-3000", "rw-p", "0", "[stack]", "rd wr mr mw me gd ac"),
		MAPPING("1000-3000", "rw-p", "0", "", "rd wr mr mw me ht"),
		MAPPING("1000-3000", "rw-p", "0", "", "rd wr mr mw me um"),
		MAPPING("1000-3000", "rw-p", "0", "", "rd wr mr mw me zz"),
		"1000-3000 rw-p 00000000 00:00 0 \nSize: 4 kB\n", /* not said: not taken */
	};
	for (size_t i = 0; i < sizeof(left) / sizeof(left[0]); i++)
		CHECK(parse(left[i], v) == 0);
	CHECK(parse("3000-1000 rw-p 00000000 00:00 0 \n", v) == -EBADMSG);
	CHECK(parse("1000-1800 rw-p 00000000 00:00 0 \n", v) == -EBADMSG);
	CHECK(parse("abc\n", v) == -EBADMSG);
	CHECK(parse("3000-4000 rw-p 00000000 00:00 0 \n1000-2000 rw-p 00000000 00:00 0 \n", v) ==
	      -EBADMSG);
	CHECK(parse("", v) == 0 && parse("\n\nVmFlags: rd\n", v) == 0);
}

/* ---- a process ---- */

struct area {
	uint64_t *p;
	uint64_t len_bytes;
};

/* Filled with a pattern, all but every third page; a page that cannot be touched keeps it apart. */
static struct area area_new(uint64_t len_bytes)
{
	struct area a = { mmap(NULL, len_bytes + 4096, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
			  len_bytes };

	CHECK(a.p != MAP_FAILED);
	CHECK(mprotect((char *)a.p + len_bytes, 4096, PROT_NONE) == 0);
	for (uint64_t i = 0; i < len_bytes / 8; i++)
		if (i / 512 % 3)
			a.p[i] = i * 0x9e3779b97f4a7c15ull + 1;
	return a;
}

static struct proc_tree tree_of(const struct little *l)
{
	struct brumate_error err;
	struct proc_tree tree = PROC_TREE_EMPTY;

	CHECK(proc_tree_read(&tree, little_id(l), &err) == 0);
	return tree;
}

static const struct cpu_memory_region *region_of(const struct cpu_memory *m, const struct area *a)
{
	uint64_t start = (uintptr_t)a->p, end = start + a->len_bytes;

	for (size_t i = 0; i < m->n; i++)
		if (m->items[i].va >= start && m->items[i].va + m->items[i].len_bytes <= end)
			return &m->items[i];
	return NULL;
}

static void wait_here(void *arg)
{
	(void)arg;
	little_ready();
	for (;;)
		pause();
}

static void touch_pages(const struct area *a)
{
	for (uint64_t page = 0; page < a->len_bytes / 4096; page++)
		((volatile uint64_t *)a->p)[page * 512 + 7] = page;
}

/* In the child: pages of its own, where it shared all with its parent. */
static void touch_and_wait(void *arg)
{
	touch_pages(arg);
	wait_here(NULL);
}

static void expect_equal(const struct cpu_memory *m, const struct area *a)
{
	const struct cpu_memory_region *r = region_of(m, a);
	auto_(cpu_memory_copy_fini) struct cpu_memory_copy copy = CPU_MEMORY_COPY_EMPTY;
	auto_free uint64_t *block = malloc(2 * MIB);
	struct brumate_error err;

	CHECK(r && block);
	CHECK(r->va % CPU_MEMORY_ALIGN_BYTES == 0 && r->len_bytes % CPU_MEMORY_ALIGN_BYTES == 0);
	CHECK(cpu_memory_copy_reserve(&copy, m) == 0 && copy.len_bytes == m->len_bytes);
	CHECK(cpu_memory_copy_out(m, &copy, 3, NULL, NULL, &err) == 0);
	const char *base = copy.bytes;
	for (const struct cpu_memory_region *before = m->items; before < r; before++)
		base += before->len_bytes;
	const char *ours = (const char *)(uintptr_t)r->va;
	for (uint64_t at = 0; at < r->len_bytes; at += 2 * MIB) {
		CHECK(cpu_memory_read((void *)(uintptr_t)r, at, block, 2 * MIB) == 0);
		CHECK(!memcmp(block, ours + at, 2 * MIB));
		CHECK(!memcmp(base + at, ours + at, 2 * MIB));
	}
	CHECK(cpu_memory_read((void *)(uintptr_t)r, r->len_bytes, block, 4096) == -ERANGE);
	CHECK(cpu_memory_read((void *)(uintptr_t)r, 0, block, 100) == -ERANGE);
}

static int stop_at_once(void *arg, uint64_t done_bytes)
{
	CHECK(done_bytes > 0);
	return *(int *)arg;
}

static void stopping(const struct cpu_memory *m)
{
	auto_(cpu_memory_copy_fini) struct cpu_memory_copy copy = CPU_MEMORY_COPY_EMPTY;
	struct brumate_error err;
	int stop = -ECANCELED;

	CHECK(cpu_memory_copy_reserve(&copy, m) == 0);
	CHECK(cpu_memory_copy_out(m, &copy, 2, stop_at_once, &stop, &err) == -ECANCELED);
}

static void choosing_and_copying(void)
{
	struct area a = area_new(40 * MIB), small = area_new(3 * MIB), shared = area_new(24 * MIB);
	struct brumate_error err;
	struct cpu_memory m;

	struct little l = little_start(touch_and_wait, &a);
	little_wait_ready(&l);
	/* The pages the child wrote to are to be the same here. */
	touch_pages(&a);
	struct proc_tree tree = tree_of(&l);
	CHECK(cpu_memory_choose(&m, &tree, NULL, 2, &err) == 0);
	const struct cpu_memory_region *r = region_of(&m, &a);
	CHECK(r && r->pid == l.pid && r->present_bytes <= r->len_bytes);
	CHECK(!region_of(&m, &small));
	expect_equal(&m, &a);
	expect_equal(&m, &shared);
	stopping(&m);
	cpu_memory_fini(&m);

	/* With its parent in the tree, what they share stays with CRIU. */
	struct proc_info two[2] = { tree.items[0], tree.items[0] };
	CHECK(proc_read(&two[1], getpid(), &err) == 0);
	const struct proc_tree both = { two, 2 };
	CHECK(cpu_memory_choose(&m, &both, NULL, 2, &err) == 0);
	CHECK(region_of(&m, &a) && !region_of(&m, &shared));
	cpu_memory_fini(&m);

	little_end(&l);
	CHECK(cpu_memory_choose(&m, &tree, NULL, 2, &err) == 0 &&
	      m.n == 0); /* it is gone: nothing to take */
	proc_tree_fini(&tree);
}

/* Bytes of a copy that are in memory. */
static uint64_t there_bytes(const char *p, uint64_t len_bytes)
{
	auto_free unsigned char *there = malloc(len_bytes / 4096);
	uint64_t sum = 0;

	CHECK(there && mincore((void *)(uintptr_t)p, len_bytes, there) == 0);
	for (uint64_t i = 0; i < len_bytes / 4096; i++)
		sum += there[i] & 1 ? 4096 : 0;
	return sum;
}

/* In huge pages where all of one is there, and there only. */
static void sparse_stays_sparse(void)
{
	enum { BLOCKS = 20, SPARSE = 7, LEN = BLOCKS * 2 * MIB };
	struct brumate_error err;
	struct cpu_memory m;
	auto_(cpu_memory_copy_fini) struct cpu_memory_copy copy = CPU_MEMORY_COPY_EMPTY;
	char *p = mmap(NULL, LEN + 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		       0);
	CHECK(p != MAP_FAILED);
	p += (2 * MIB - (uintptr_t)p % (2 * MIB)) % (2 * MIB);
	madvise(p, LEN, MADV_NOHUGEPAGE);
	CHECK(mprotect(p + LEN, 4096, PROT_NONE) == 0);
	for (uint64_t at = 0; at < LEN; at += 4096)
		if (at / (2 * MIB) % 2 || at / 4096 % SPARSE == 0)
			p[at] = (char)(at / 4096) | 1;
	struct little l = little_start(wait_here, NULL);

	little_wait_ready(&l);
	struct proc_tree tree = tree_of(&l);
	CHECK(cpu_memory_choose(&m, &tree, NULL, 2, &err) == 0);
	const struct cpu_memory_region *r = region_of(&m, &(struct area){ (uint64_t *)p, LEN });
	CHECK(r && r->len_bytes == LEN);
	const struct cpu_memory one = { .items = &m.items[r - m.items], .n = 1, .len_bytes = LEN };
	CHECK(cpu_memory_copy_reserve(&copy, &one) == 0 && there_bytes(copy.bytes, LEN) == 0);
	CHECK(cpu_memory_copy_out(&one, &copy, 2, NULL, NULL, &err) == 0);
	CHECK(there_bytes(copy.bytes, LEN) == r->present_bytes);
	CHECK(!memcmp(copy.bytes, p, LEN));
	cpu_memory_fini(&m);
	little_end(&l);
	proc_tree_fini(&tree);
	CHECK(munmap(p, LEN + 4096) == 0);
}

static void writing(void)
{
	auto_free char *data = malloc(2 * MIB), *back = malloc(2 * MIB);
	char *p = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct little l = little_start(wait_here, NULL);
	struct cpu_memory_target t = { l.pid, (uintptr_t)p, 4 * MIB, -1, -1 };

	CHECK(data && back && p != MAP_FAILED);
	little_wait_ready(&l);
	for (size_t i = 0; i < 2 * MIB; i++)
		data[i] = (char)(i / 4096 % 2 ? i * 31 + 1 : 0);
	CHECK(cpu_memory_write(&t, 2 * MIB, data, 2 * MIB) == 0);
	CHECK(cpu_memory_write(&t, 0, NULL, 2 * MIB) == 0); /* zeros */
	CHECK(cpu_memory_write(&t, 2 * MIB + 4096, data, 2 * MIB) == -ERANGE);
	CHECK(cpu_memory_write(&t, UINT64_MAX, data, 2 * MIB) == -ERANGE);
	struct cpu_memory_region r = {
		.mem_fd = -1, .pid = l.pid, .va = (uintptr_t)p, .len_bytes = 4 * MIB
	};
	uint64_t all[16];
	memset(all, 0xff, sizeof(all));
	r.present = all;
	CHECK(cpu_memory_read(&r, 2 * MIB, back, 2 * MIB) == 0 && !memcmp(back, data, 2 * MIB));
	CHECK(munmap(p, 4 * MIB) == 0);
	little_end(&l);
	CHECK(cpu_memory_write(&t, 2 * MIB, data, 2 * MIB) == -ESRCH);
}

/* What was there, what is written then, and zeros elsewhere, whatever pages the kernel gives. */
static void writing_huge(void)
{
	enum { LEN = 6 * MIB };
	auto_free char *data = malloc(LEN), *back = malloc(LEN);
	char *p = mmap(NULL, LEN + 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		       0);
	CHECK(data && back && p != MAP_FAILED);
	p += (2 * MIB - (uintptr_t)p % (2 * MIB)) % (2 * MIB);
	struct little l = little_start(wait_here, NULL);
	auto_close int pidfd = (int)syscall(SYS_pidfd_open, l.pid, 0);
	const struct cpu_memory_range ranges[] = {
		{ l.pid, pidfd, -1, (uintptr_t)p, 4 * MIB },
		{ l.pid, pidfd, -1, (uintptr_t)p + LEN + 64 * MIB,
		  2 * MIB }, /* not there: no matter */
	};
	struct cpu_memory_target t = { l.pid, (uintptr_t)p, LEN, pidfd, -1 };
	uint64_t all[LEN / 4096 / 64];
	struct cpu_memory_region r = {
		.mem_fd = -1, .pid = l.pid, .va = (uintptr_t)p, .len_bytes = LEN, .present = all
	};

	little_wait_ready(&l);
	memset(all, 0xff, sizeof(all));
	memset(data, 0, LEN);
	cpu_memory_make_huge(ranges, 2, 2);
	CHECK(cpu_memory_read(&r, 0, back, LEN) == 0 && !memcmp(back, data, LEN));
	for (size_t i = MIB; i < LEN; i++)
		data[i] = (char)(i / 4096 % 3 ? i * 31 + 1 : 0);
	for (size_t at = 0; at < LEN; at += 2 * MIB)
		CHECK(cpu_memory_write(&t, at, data + at, 2 * MIB) == 0);
	CHECK(cpu_memory_read(&r, 0, back, LEN) == 0 && !memcmp(back, data, LEN));
	little_end(&l);
}

/* ---- the table that a CRIU shares with us ---- */

/* CRIU may be a user's, and what is cut under our hands is a SIGBUS. */
static void table_cannot_be_cut(void)
{
	auto_close int fd = hidden_table_new();
	char byte = 0;

	CHECK(fd >= 0);
	CHECK(ftruncate(fd, 0) < 0 && errno == EPERM);
	CHECK(ftruncate(fd, 1ll << 40) < 0 && errno == EPERM);
	CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) < 0); /* nor can both be kept from writing */
	CHECK(pwrite(fd, &byte, 1, sizeof(struct hidden_table) - 1) == 1);
	CHECK(!cpu_memory_table_is_heeded(fd));
}

/* ---- a user's process, as root sees it ---- */

enum { SOMEBODY = 12345 };

static const struct criu_user somebody = { .uid = SOMEBODY, .gid = SOMEBODY };

static void become(uid_t uid, bool keeps_a_capability)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct caps[2] = { { .permitted = 1u << CAP_NET_RAW } };

	CHECK(prctl(PR_SET_KEEPCAPS, keeps_a_capability) == 0);
	CHECK(setgroups(0, NULL) == 0 && setresgid(uid, uid, uid) == 0 &&
	      setresuid(uid, uid, uid) == 0);
	if (keeps_a_capability)
		CHECK(syscall(SYS_capset, &header, caps) == 0);
	CHECK(prctl(PR_SET_DUMPABLE, 1) == 0);
}

static void is_roots(void *arg)
{
	wait_here(arg);
}

static void is_his(void *arg)
{
	become(SOMEBODY, false);
	wait_here(arg);
}

static void is_more_than_his(void *arg)
{
	become(SOMEBODY, true);
	wait_here(arg);
}

/* Becomes another program when it is told to. */
static void starts_another(void *arg)
{
	sigset_t usr1;
	int signal;

	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	sigprocmask(SIG_BLOCK, &usr1, NULL);
	become(SOMEBODY, false);
	little_ready();
	sigwait(&usr1, &signal);
	execl("/bin/sleep", "sleep", "1000", NULL);
}

static int open_as_somebody(void (*fn)(void *), struct little *l)
{
	*l = little_start(fn, NULL);
	little_wait_ready(l);
	auto_close int pidfd = proc_open(little_id(l));
	return cpu_memory_open(l->pid, pidfd, O_RDWR, &somebody, NULL);
}

/* The kernel decides whose memory a user's job has, and once. */
static void memory_of_a_user(void)
{
	char *p = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	auto_free char *data = malloc(2 * MIB);
	struct little l;
	int fd;

	if (geteuid() != 0)
		return;
	CHECK(p != MAP_FAILED && data);
	memset(data, 7, 2 * MIB);
	fd = open_as_somebody(is_roots, &l);
	CHECK(fd == -EACCES || fd == -EPERM);
	little_end(&l);
	fd = open_as_somebody(is_more_than_his, &l);
	CHECK(fd == -EACCES || fd == -EPERM);
	little_end(&l);

	fd = open_as_somebody(is_his, &l);
	CHECK(fd >= 0 && geteuid() == 0);
	struct cpu_memory_target t = { 0, (uintptr_t)p, 2 * MIB, -1, fd };
	CHECK(cpu_memory_write(&t, 0, data, 2 * MIB) == 0);
	CHECK(cpu_memory_write(&t, 2 * MIB, data, 1) == -ERANGE);
	uint64_t all[8];
	memset(all, 0xff, sizeof(all));
	struct cpu_memory_region r = {
		.mem_fd = fd, .va = (uintptr_t)p, .len_bytes = 2 * MIB, .present = all
	};
	memset(data, 0, 2 * MIB);
	CHECK(cpu_memory_read(&r, 0, data, 2 * MIB) == 0 && data[0] == 7 && data[2 * MIB - 1] == 7);
	close(fd);
	little_end(&l);

	fd = open_as_somebody(starts_another, &l);
	CHECK(fd >= 0);
	t.mem_fd = fd;
	CHECK(cpu_memory_write(&t, 0, data, 4096) == 0);
	char comm[16];
	CHECK(kill(l.pid, SIGUSR1) == 0);
	do {
		auto_free char *text = NULL;

		CHECK(proc_file_read(l.pid, "comm", 64, &text, NULL) == 0);
		snprintf(comm, sizeof(comm), "%.5s", text);
	} while (strcmp(comm, "sleep"));
	CHECK(cpu_memory_write(&t, 0, data, 4096) <
	      0); /* its memory is gone, and no other is reached */
	close(fd);
	little_end(&l);
}

int main(void)
{
	text_of_smaps();
	table_cannot_be_cut();
	memory_of_a_user();
	choosing_and_copying();
	sparse_stays_sparse();
	writing();
	writing_huge();
	return 0;
}

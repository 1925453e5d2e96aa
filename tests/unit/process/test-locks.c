// SPDX-License-Identifier: MIT
/* Locks of bytes of files: read from a little process, as text, as calls, and missed where they are gone. */
#include "little.h"
#include "process/locks.h"

#include <stdlib.h>
#include <sys/syscall.h>

enum { FD = 100, OTHER_FD };

static char name[] = "/tmp/brumate-test-locks-XXXXXX";

static void lock(int fd, int type, off_t start, off_t len)
{
	struct flock f = { .l_type = (short)type, .l_start = start, .l_len = len };

	CHECK(fcntl(fd, F_SETLK, &f) == 0);
}

static void have_locks(void *arg)
{
	const bool *closes = arg;
	int fd = open(name, O_RDWR);

	CHECK(dup2(fd, FD) == FD && close(fd) == 0 &&
	      dup2(open("/dev/null", O_RDWR), OTHER_FD) == OTHER_FD);
	lock(FD, F_WRLCK, 10, 5);
	lock(FD, F_RDLCK, 100, 0);
	if (*closes)
		close(open(name, O_RDONLY));
	little_pause(NULL);
}

static void read_them(struct file_locks *ret, struct proc_tree *tree, const struct little *l)
{
	struct brumate_error err = { 0 };
	struct proc_id id = little_id(l);

	little_wait_ready(l);
	CHECK(proc_tree_read(tree, id, &err) == 0);
	CHECK(file_locks_read(ret, tree) == 0);
}

static void test_text(const struct file_locks *l)
{
	size_t len = 0, len_again = 0;
	auto_(file_locks_fini) struct file_locks again = FILE_LOCKS_EMPTY;
	auto_free char *text = file_locks_encode(l, &len);

	CHECK(text && file_locks_decode(&again, text, len) == 0 && again.n == l->n);
	auto_free char *same = file_locks_encode(&again, &len_again);
	CHECK(same && len == len_again && !memcmp(text, same, len));
}

static void test_calls(const struct file_locks *l)
{
	auto_free struct attributes_call *calls = NULL;
	size_t n = 0;
	struct flock f;

	CHECK(file_locks_add_calls(l, &calls, &n) == 0 && n == 2);
	CHECK(calls[0].number == SYS_fcntl && calls[0].arguments[0] == FD &&
	      calls[0].arguments[1] == F_SETLK && calls[0].mask_argument == 2);
	memcpy(&f, calls[0].mask, sizeof(f));
	CHECK(f.l_type == F_WRLCK && f.l_start == 10 && f.l_len == 5);
	memcpy(&f, calls[1].mask, sizeof(f));
	CHECK(f.l_type == F_RDLCK && f.l_start == 100 && f.l_len == 0);
}

static void test_foreign(void)
{
	static const char *const bad[] = {
		"",
		"brumate locks 2\n",
		"brumate locks 1\n1 2 process write 0 1 /a",
		"brumate locks 1\n0 2 process write 0 1 /a\n",
		"brumate locks 1\n1 -2 process write 0 1 /a\n",
		"brumate locks 1\n1 2 thread write 0 1 /a\n",
		"brumate locks 1\n1 2 process both 0 1 /a\n",
		"brumate locks 1\n1 2 process write 5 4 /a\n",
		"brumate locks 1\n1 2 process write 0 9223372036854775808 /a\n",
		"brumate locks 1\n1 2 process write 0 1 a\n",
		"brumate locks 1\n1 2 process write 0 1 /\\q\n",
		"brumate locks 1\n1 2 process write 0 1 \n",
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		auto_(file_locks_fini) struct file_locks l = FILE_LOCKS_EMPTY;

		CHECK(file_locks_decode(&l, bad[i], strlen(bad[i])) == -EBADMSG);
	}
}

int main(void)
{
	auto_(file_locks_fini) struct file_locks locks = FILE_LOCKS_EMPTY, gone = FILE_LOCKS_EMPTY;
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY, other = PROC_TREE_EMPTY;
	struct brumate_error err = { 0 };
	bool closes = false;

	close(mkstemp(name));
	struct little l = little_start(have_locks, &closes);
	read_them(&locks, &tree, &l);
	CHECK(locks.n == 2 && locks.items[0].fd == FD && locks.items[0].writes &&
	      locks.items[0].start == 10 && locks.items[0].end == 14);
	CHECK(locks.items[1].start == 100 && locks.items[1].end == INT64_MAX &&
	      !locks.items[1].writes);
	test_text(&locks);
	test_calls(&locks);
	CHECK(file_locks_check(&locks, &tree, &err) == 0);
	CHECK(file_locks_can_be_had(&locks, &err) == -EBUSY && strstr(err.text, name));
	little_end(&l);
	CHECK(file_locks_can_be_had(&locks, &err) == 0);

	closes = true;
	l = little_start(have_locks, &closes);
	read_them(&gone, &other, &l);
	CHECK(gone.n == 0);
	for (size_t i = 0; i < locks.n; i++)
		locks.items[i].pid = other.items[0].inner_pid;
	CHECK(file_locks_check(&locks, &other, &err) == -EBUSY);
	CHECK(strstr(err.text, "could not be given a lock on bytes 10 to 14 of /tmp/") &&
	      *err.hint);
	little_end(&l);
	unlink(name);
	test_foreign();
	return 0;
}

// SPDX-License-Identifier: MIT
/* The line that matters, from logs of real failures (logs/), and from odd bytes; CRIU's image files. */
#include "base/fd.h"
#include "check.h"
#include "criu/images.h"
#include "criu/criu.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

static const char *logs;

static void from_real_logs(void)
{
	static const struct {
		const char *file, *reason, *hint;
	} cases[] = {
		{ "badsize", "File srv/job/fl has bad size 18 (expect 6)", "has changed since" },
		{ "dev", "Can't dump file 3 of that type [20600] (chr 10:229)", "cannot save" },
		{ "flock",
		  "Some file locks are hold by dumping tasks! You can try --file-locks to dump "
		  "them.",
		  "lock" },
		{ "ghost",
		  "Can't dump ghost file /srv/job/ghost.bin of 3145728 size, increase limit",
		  "deleted file" },
		{ "hugetlb", "Can't lookup mount=18 for fd=-3 path=/anon_hugepage (deleted)",
		  "one more" },
		{ "in_flight", "Can't retrieve FD from socket", "try again" },
		{ "io_uring", "send_fds failed (-22)", "io_uring" },
		{ "memfd_secret", "Can't lookup mount=15 for fd=3 path=/secretmem (deleted)",
		  "memfd_secret" },
		{ "missing", "Can't open file srv/job/fl on restore: No such file or directory",
		  "is missing" },
		{ "perf", "Can't dump file 3 of that type [600] (anon anon_inode:[perf_event])",
		  "cannot save" },
		{ "pidfd", "pidfd: pidfd pid 1 is not a part of process tree..", "pidfd" },
		{ "shm", "Task 12166 with SysVIPC shmem map @7f88ee3ba000 doesn't live in IPC ns",
		  "System V" },
		{ "taken", "Can't fork for 12771: File exists", "pid namespace" },
		{ "tcp", "inet: Connected TCP socket, consider using --tcp-established option.",
		  "TCP" },
		{ "unix", "unix: External socket is used. Consider using --ext-unix-sk option.",
		  "unix socket" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char path[512], reason[512];
		char *text;
		size_t len;

		snprintf(path, sizeof(path), "%s/%s.log", logs, cases[i].file);
		CHECK(file_read(AT_FDCWD, path, 1 << 20, &text, &len) == 0);
		CHECK(criu_log_reason(text, len, reason, sizeof(reason)) == 0);
		CHECK_STR(reason, cases[i].reason);
		CHECK(criu_hint_for(reason) && strstr(criu_hint_for(reason), cases[i].hint));
		free(text);
	}
}

static int reason_of(const char *log, char *ret, size_t room)
{
	return criu_log_reason(log, strlen(log), ret, room);
}

static void from_odd_bytes(void)
{
	char reason[32];

	CHECK(reason_of("", reason, sizeof(reason)) == -ENOENT);
	CHECK(reason_of("(00.1) Error (criu/util.c:1): rlimit: Can't setup RLIMIT_NOFILE\n", reason,
			32) == -ENOENT);
	CHECK(reason_of("Error (", reason, sizeof(reason)) == -ENOENT);
	CHECK(reason_of("Error (x): ", reason, sizeof(reason)) == -ENOENT);
	CHECK(reason_of("Error (x): \x1b[31mred", reason, sizeof(reason)) == 0);
	CHECK_STR(reason, "?[31mred"); /* nothing for a terminal to obey */
	CHECK(reason_of("Error (x): abcdefghijklmnopqrstuvwxyzabcdefghijkl", reason,
			sizeof(reason)) == 0);
	CHECK(strlen(reason) == sizeof(reason) - 1);
	CHECK(reason_of("Error (a): Dump files (pid: 3) failed with -1\nError (b): Dumping FAILED.",
			reason, 32) == 0);
	CHECK(!strncmp(reason, "Dump files", 10)); /* a consequence is better than nothing */
	CHECK(reason_of("pie: 12: Error (a): Unable to create a thread: -17\n"
			"pie: 12: Error (b): Restorer fail 12\nError (c): Restoring FAILED.\n",
			reason, 32) == 0);
	CHECK(!strncmp(reason, "Unable to create a thread", 25));
	CHECK(criu_hint_for("something new") == NULL && criu_hint_for(NULL) == NULL);
}

static void images(void)
{
	/* one process: pid 10827 = pgid = sid = thread, as CRIU 4.2.1 wrote it */
	static const uint8_t pstree[] = { 0x19, 0x43, 0x56, 0x54, 0x30, 0x30, 0x27, 0x50, 0x0e,
					  0x00, 0x00, 0x00, 0x08, 0xcb, 0x54, 0x10, 0x00, 0x18,
					  0xcb, 0x54, 0x20, 0xcb, 0x54, 0x28, 0xcb, 0x54 };
	static const uint8_t stats[] = { 0x40, 0x59, 0x10, 0x55, 0x06, 0x33, 0x09, 0x57, 0x10, 0x00,
					 0x00, 0x00, 0x0a, 0x0e, 0x08, 0x79, 0x10, 0xe0, 0x59, 0x18,
					 0xa0, 0x19, 0x20, 0xf0, 0x0e, 0x38, 0x84, 0x0e };
	struct criu_image_tree tree;
	struct criu_image_stats s;

	CHECK(criu_image_tree_decode(&tree, pstree, sizeof(pstree)) == 0);
	CHECK(tree.n == 1 && tree.items[0].pid == 10827 && tree.items[0].ppid == 0);
	CHECK(tree.items[0].n_threads == 1 && tree.items[0].threads[0] == 10827);
	criu_image_tree_fini(&tree);
	for (size_t n = 0; n < sizeof(pstree); n++)
		CHECK(criu_image_tree_decode(&tree, pstree, n) == -EBADMSG);

	CHECK(criu_image_stats_decode(&s, stats, sizeof(stats)) == 0);
	CHECK(s.pages_written == 1796 && s.frozen_seconds > 0.0114 && s.frozen_seconds < 0.0115);
	for (size_t n = 0; n < sizeof(stats); n++)
		CHECK(criu_image_stats_decode(&s, stats, n) == -EBADMSG);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	logs = argv[1];
	from_real_logs();
	from_odd_bytes();
	images();
	return 0;
}

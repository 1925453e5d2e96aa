// SPDX-License-Identifier: MIT
/* The filters of system calls of a process that is traced are written down, oldest first, and equal ones once. */
#include "check.h"
#include "criu-plugin/plugin.h"
#include "sanitized.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static struct filter_table table;
static const struct sock_filter allow[] = { { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW } };
static const struct sock_filter load[] = { { BPF_LD | BPF_W | BPF_ABS, 0, 0, 0 },
					   { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW } };

static void install(const struct sock_filter *filter, unsigned short n)
{
	const struct sock_fprog program = { n, (struct sock_filter *)(uintptr_t)filter };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
		_exit(1);
}

/* Stopped and traced, with @n filters. */
static pid_t start(int n)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
			_exit(1);
		for (int i = 0; i < n; i++)
			install(i ? load : allow, i ? 2 : 1);
		raise(SIGSTOP);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
	return pid;
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	CHECK(waitpid(pid, NULL, 0) == pid);
}

static void must_be(uint32_t at, const struct sock_filter *filter, uint32_t n)
{
	struct filter_head head;

	memcpy(&head, table.chains + at, sizeof(head));
	CHECK(head.flags == 0 && head.len_bytes == n * sizeof(*filter));
	CHECK(!memcmp(table.chains + at + sizeof(head), filter, head.len_bytes));
}

int main(void)
{
	if (SANITIZED_THREADS)
		SKIP("the thread sanitizer has a thread of its own, which nobody traces");
	const uint32_t first_bytes = sizeof(struct filter_head) + sizeof(allow);
	pid_t none = start(0), two = start(2), too = start(2);

	filters_read(&table, two);
	if (table.error == EACCES)
		SKIP("this machine lets nobody read filters of system calls");
	CHECK(!table.error && table.n == 1 && table.owners[0].pid == two);
	CHECK(table.owners[0].offset == 0 && table.owners[0].len_bytes == table.used_bytes);
	CHECK(table.used_bytes == first_bytes + sizeof(struct filter_head) + sizeof(load));
	must_be(0, allow, 1);
	must_be(first_bytes, load, 2);
	filters_read(&table, two);
	filters_read(&table, none);
	CHECK(table.n == 1 && !table.error);

	const uint32_t used = table.used_bytes;
	filters_read(&table, too);
	CHECK(table.n == 2 && table.owners[1].pid == too && table.owners[1].offset == 0);
	CHECK(table.used_bytes == used);

	/* What finds no room is said, and no half of it is there. */
	table.used_bytes = FILTER_CHAINS_BYTES - 8;
	filters_read(&table, too);
	CHECK(table.error == ENOSPC && table.n == 2);
	table = (struct filter_table){ .n = 1, .used_bytes = FILTER_CHAINS_BYTES };
	end(none);
	end(two);
	end(too);
	filters_read(&table, too);
	CHECK(table.error == ENOENT && table.n == 1);
	return 0;
}

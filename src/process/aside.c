// SPDX-License-Identifier: MIT
/* See aside.h. */
#include "process/aside.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "process/process.h"
#include "process/reap.h"

void *aside_memory(size_t len_bytes)
{
	void *memory =
		mmap(NULL, len_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

void aside_free(void *memory, size_t len_bytes)
{
	if (memory)
		munmap(memory, len_bytes);
}

static _Noreturn void run_child(int (*fn)(void *arg), void *arg, int fd)
{
	prctl(PR_SET_NAME, "brumate-aside"); /* nobody is to take it for us */
	fd_close_others(fd, fd);
	_exit(fn(arg) & 0xff);
}

int aside_run(int (*fn)(void *arg), void *arg, int fd, uint64_t timeout_ms)
{
	pid_t pid = reap_fork();

	if (pid < 0)
		return pid;
	if (pid == 0)
		run_child(fn, arg, fd);
	int status = reap_wait_for(pid, timeout_ms);
	if (status < 0)
		return status;
	return WIFEXITED(status) ? -WEXITSTATUS(status) : -EIO;
}

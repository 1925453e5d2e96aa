// SPDX-License-Identifier: MIT
/* Which sockets of agents go: those of nobody, and no others. */
#include "client/agent.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fd.h"
#include "check.h"

static char dir[] = "/tmp/brumate-sweep-XXXXXX";

/* Numbers that no process has. */
enum { DESERTED = 999999901, LISTENING, NO_SOCKET };

static void path_of(char ret[static 64], int number)
{
	snprintf(ret, 64, "%s/%d", dir, number);
}

static int listen_at(int number)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	path_of(address.sun_path, number);
	CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
	CHECK(listen(fd, 1) == 0);
	return fd;
}

static bool is_there(int number)
{
	char path[64];

	path_of(path, number);
	return access(path, F_OK) == 0;
}

int main(void)
{
	const struct proc_tree nobody = PROC_TREE_EMPTY;
	struct proc_id self;
	char path[64];

	CHECK(mkdtemp(dir) && proc_identify(&self, getpid(), NULL) == 0);
	close(listen_at(DESERTED));
	close(listen_at(getpid())); /* of one that lives, whatever became of its socket */
	int fd = listen_at(LISTENING);
	path_of(path, NO_SOCKET);
	CHECK(mknod(path, S_IFREG | 0600, 0) == 0);
	agent_sweep(dir, self, &nobody);
	CHECK(!is_there(DESERTED));
	CHECK(is_there(getpid()) && is_there(LISTENING) && is_there(NO_SOCKET));
	close(fd);
	agent_sweep(dir, self, &nobody);
	CHECK(!is_there(LISTENING) && is_there(getpid()));
	agent_sweep("/nonexistent", self, &nobody);
	CHECK(remove_tree(AT_FDCWD, dir) == 0);
	return 0;
}

// SPDX-License-Identifier: MIT
/* The reader runs between fork and exit in a process that had threads: system calls only. */
#include "engine/tty.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/paths.h"

enum { MASTER_FD = 0, LOG_FD = 1, KEPT_FDS = 2 };

static void copy_until_hung_up(void)
{
	char buf[4096];

	for (;;) {
		ssize_t n = read(MASTER_FD, buf, sizeof(buf));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) /* EIO: no slave is open any more */
			_exit(0);
		for (ssize_t done = 0, w; done < n; done += w) {
			w = write(LOG_FD, buf + done, (size_t)(n - done));
			if (w <= 0)
				break; /* a full disk costs output, never the job */
		}
	}
}

static void become_reader(int master_fd, int log_fd)
{
	int out = log_fd >= 0 ? log_fd : open("/dev/null", O_WRONLY);
	int kept_master = fcntl(master_fd, F_DUPFD, KEPT_FDS),
	    kept_out = fcntl(out, F_DUPFD, KEPT_FDS);

	setsid();
	prctl(PR_SET_NAME, "brumate-tty");
	if (kept_master < 0 || kept_out < 0 || dup2(kept_master, MASTER_FD) < 0 ||
	    dup2(kept_out, LOG_FD) < 0)
		_exit(1);
	close_range(KEPT_FDS, ~0u, 0);
	copy_until_hung_up();
}

int tty_with_reader(const char *root, int log_fd)
{
	auto_free char *path = path_format("%s/dev/ptmx", root);
	if (!path)
		return -ENOMEM;
	auto_close int master = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (master < 0 || grantpt(master) < 0 || unlockpt(master) < 0)
		return -errno;
	auto_close int slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (slave < 0)
		return -errno;

	/* Not protected: an end of it while we live is reaped with the job's orphans. */
	pid_t pid = fork();
	if (pid < 0)
		return -errno;
	if (pid == 0)
		become_reader(master, log_fd);
	return take_fd(&slave);
}

// SPDX-License-Identifier: MIT
/* Reaching a job's shim, and starting one where none lives. Used by all that command a job. */
#include "client/shim.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/paths.h"
#include "base/start.h"

enum { START_TIMEOUT_MS = 30000, SHIM_LOG_MODE = 0600 };

/* What the shim says of its start: "R", or "E", why it failed, a newline and a hint. */
static int wait_ready(int fd, const char *log, struct brumate_error *err)
{
	char said[sizeof(err->text) + sizeof(err->hint) + 2] = "";

	if (fd_wait(fd, POLLIN, deadline_in_ms(START_TIMEOUT_MS)) < 0)
		return brumate_fail(err, ETIMEDOUT,
				    "brumate-shim did not come up in %d s (log: %s)",
				    START_TIMEOUT_MS / 1000, log);
	ssize_t n = read(fd, said, sizeof(said) - 1);
	if (n >= 1 && *said == 'R')
		return 0;
	if (n <= 1 || *said != 'E')
		return brumate_fail(err, ECHILD, "brumate-shim ended at once (log: %s)", log);
	char *hint = said + strcspn(said, "\n");
	if (*hint)
		*hint++ = '\0';
	brumate_fail(err, ECHILD, "brumate-shim cannot start: %s", said + 1);
	brumate_hint(err, "%s", hint);
	return -ECHILD;
}

int shim_start(const char *dir, struct brumate_error *err)
{
	auto_free char *program = path_find_helper("brumate-shim");
	auto_free char *log = path_format("%s/shim.log", dir);
	if (!program)
		return brumate_fail(
			err, ENOENT,
			"brumate-shim: not installed next to this program or in libexec");
	if (!log)
		return brumate_fail(err, ENOMEM, "%m");

	auto_close int log_fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, SHIM_LOG_MODE);
	if (log_fd < 0)
		return brumate_fail(err, errno, "%s: %m", log);
	int ends[2];
	if (pipe2(ends, O_CLOEXEC) < 0)
		return brumate_fail(err, errno, "pipe: %m");
	auto_close int read_end = ends[0], write_end = ends[1];
	auto_close int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null_fd < 0)
		return brumate_fail(err, errno, "/dev/null: %m");
	/* The shim's own log is in the job's directory. */
	const char *const argv[] = { program, "brumate-shim", "--ready-fd", "3", dir, NULL };
	const int fds[] = { null_fd, null_fd, log_fd, write_end };
	int r = spawn_program(argv, fds, 4);
	cleanup_close(&write_end);
	return r < 0 ? brumate_fail(err, -r, "fork: %m") : wait_ready(read_end, log, err);
}

struct proc_id shim_identify(const struct wire *w)
{
	struct proc_id id = PROC_ID_NONE;
	struct ucred cred;

	if (fd_peer(w->fd, &cred) == 0)
		proc_identify(&id, cred.pid, NULL);
	return id;
}

int shim_find(struct wire *ret, const struct job *j, struct brumate_error *err)
{
	auto_free char *path = path_format("%s/shim.sock", j->dir);

	return path ? wire_connect(ret, path, err) : brumate_fail(err, ENOMEM, "%m");
}

int shim_connect(struct wire *ret, const struct job *j, struct brumate_error *err)
{
	uint64_t deadline_ns = deadline_in_ms(START_TIMEOUT_MS);

	/* A shim on its way out may refuse, and two commands may start one each: the second shim to
	 * come finds the lock taken and leaves, so trying again is enough. */
	for (;;) {
		int r = shim_find(ret, j, err);

		if (r == 0 && shim_has_ended(j)) { /* it dies, and has yet to close its socket */
			wire_fini(ret);
			r = brumate_fail(err, ECONNREFUSED, "it has ended");
		}
		if (r != -ECONNREFUSED && r != -ENOENT)
			return r;
		if (deadline_left_ms(deadline_ns) == 0)
			return brumate_wrap(err, r, "shim of job %s", j->id);
		r = shim_start(j->dir, err);
		if (r < 0 && access(j->dir, F_OK) < 0 &&
		    errno == ENOENT) /* removed since it was found */
			return brumate_fail(err, ENOENT, "no job %s", j->id);
		if (r < 0)
			return brumate_wrap(err, r, "job %s", j->id);
	}
}

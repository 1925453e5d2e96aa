// SPDX-License-Identifier: MIT
/* Runs the program that gives a key, and forgets what it printed. */
#include "engine/key-program.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "process/reap.h"

enum { TIMEOUT_MS = 30000, TEXT_BYTES = 2 * SEAL_KEY_BYTES + 2 };

static int spawn(pid_t *ret, const char *path, int out_fd)
{
	char *argv[] = { (char *)path, NULL };
	posix_spawn_file_actions_t actions;

	if (posix_spawn_file_actions_init(&actions))
		return -ENOMEM;
	int r = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	if (!r)
		r = posix_spawn_file_actions_adddup2(&actions, out_fd, 1);
	if (!r) {
		reap_lock();
		r = posix_spawn(ret, path, &actions, NULL, argv, environ);
		if (!r)
			reap_protect(*ret);
		reap_unlock();
	}
	posix_spawn_file_actions_destroy(&actions);
	return -r;
}

/* Reads until the end, or more than a key is long. Returns the bytes or -errno. */
static ssize_t read_key(int fd, uint8_t *text)
{
	uint64_t deadline_ns = deadline_in_ms(TIMEOUT_MS);
	size_t len = 0;

	while (len < TEXT_BYTES) {
		int r = fd_wait(fd, POLLIN, deadline_ns);
		ssize_t n = r < 0 ? -1 : read(fd, text + len, TEXT_BYTES - len);

		if (r < 0)
			return r;
		if (n < 0 && errno != EINTR)
			return -errno;
		if (n == 0)
			break;
		len += n > 0 ? (size_t)n : 0;
	}
	return (ssize_t)len;
}

static int fail_ended(int status, const char *path, struct brumate_error *err)
{
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	if (WIFEXITED(status))
		brumate_fail(err, ENOKEY, "key program %s: failed with exit status %d", path,
			     WEXITSTATUS(status));
	else
		brumate_fail(err, ENOKEY, "key program %s: killed by signal %d", path,
			     WTERMSIG(status));
	brumate_hint(err, "run it by hand, as the user that brumate runs as");
	return -ENOKEY;
}

int key_program_ask(struct store_key *ret, const char *path, struct brumate_error *err)
{
	uint8_t text[TEXT_BYTES];
	int p[2], status = 0;
	pid_t pid;

	if (pipe2(p, O_CLOEXEC) < 0)
		return brumate_fail(err, errno, "key program %s: %m", path);
	auto_close int in = p[0];
	int r = spawn(&pid, path, p[1]);
	close(p[1]);
	if (r < 0)
		return brumate_fail(err, ENOKEY, "key program %s: %s", path, strerror(-r));

	ssize_t n = read_key(in, text);
	cleanup_close(&in); /* one that prints more ends by that */
	if (n < 0)
		kill(pid, SIGKILL); /* nobody else waits for it: the number is still its own */
	reap_wait(pid, &status);
	if (n < 0)
		r = brumate_fail(err, (int)-n, "key program %s: %s", path,
				 n == -ETIMEDOUT ? "says nothing" : strerror((int)-n));
	else
		r = fail_ended(status, path, err);
	if (r == 0)
		r = store_key_parse(ret, path, text, (size_t)n, err);
	explicit_bzero(text, sizeof(text));
	return r;
}

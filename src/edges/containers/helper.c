// SPDX-License-Identifier: MIT
/*
 * brumate-container SOCKET IMAGES TABLE CRIU: does the work of brumate's plugin in a container engine's CRIU. SOCKET,
 * IMAGES and TABLE (criu-plugin/hidden.h) are descriptors, CRIU is the process in which the plugin runs. A request is
 * a packet "WORD [PID]", its answer a packet "ok [TIDS | SEAL]" (an agent's TID is followed by an "a") or "no
 * REASON". The plugin closes the connection at its end. After that, once CRIU has ended, a container that continues
 * to run gets its GPUs back, regardless of the dump's result. So this program outlives CRIU; if it dies before the
 * plugin, the plugin starts another.
 *
 * brumate-container --heir DIR: does that last part for a container whose helper has died with CRIU; started by the
 * keeper of the container's memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/paths.h"
#include "base/start.h"
#include "edges/containers/container.h"
#include "edges/containers/container-verbs.h"
#include "process/process.h"

/* ---- cgroups of both versions, by /proc/PID/cgroup and the mounts of this process ---- */

enum { TEXT_BYTES_MAX = 1 << 20 };

/* Whether the comma-separated list @options starts with the list of controllers @wanted, or contains its first one. */
static bool has_option(const char *options, const char *wanted)
{
	size_t len = strcspn(wanted, ",");

	for (const char *p = options; *p; p += strspn(p, ",")) {
		size_t n = strcspn(p, ",\n");

		if (n == len && !strncmp(p, wanted, n))
			return true;
		p += n;
		if (*p == '\n')
			break;
	}
	return false;
}

/* Where the hierarchy with @controllers ("": of version 2) is mounted (owned), or NULL. A line of the table: device,
 * place, type, options. */
static char *find_mount(const char *mounts, const char *controllers)
{
	char place[256], type[32], options[256];

	for (const char *line = mounts; line && *line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (sscanf(line, "%*s %255s %31s %255s", place, type, options) != 3)
			continue;
		if (*controllers ? !strcmp(type, "cgroup") && has_option(options, controllers)
				 : !strcmp(type, "cgroup2"))
			return strdup(place);
	}
	return NULL;
}

/* @line: "ID:CONTROLLERS:PATH". */
static void join(const char *mounts, char *line)
{
	char *controllers = strchr(line, ':');
	char *path = controllers ? strchr(controllers + 1, ':') : NULL;

	if (!path)
		return;
	*path++ = '\0';
	auto_free char *mount = find_mount(mounts, controllers + 1);
	auto_free char *file = mount ? path_format("%s%s/cgroup.procs", mount, path) : NULL;
	auto_close int fd = file ? open(file, O_WRONLY | O_CLOEXEC) : -1;
	/* Without permission everything stays as it is. */
	if (fd >= 0)
		fd_write_full(fd, "0", 1);
}

/* Moves this process into the cgroups of the parent of @pid, as far as that is allowed. */
static void cgroup_join_parent_of(pid_t pid)
{
	auto_free char *cgroups = NULL, *mounts = NULL;
	struct proc_info info;
	char file[64];

	if (proc_read(&info, pid, NULL) < 0)
		return;
	snprintf(file, sizeof(file), "/proc/%d/cgroup", info.ppid);
	if (file_read(AT_FDCWD, file, TEXT_BYTES_MAX, &cgroups, NULL) < 0 ||
	    file_read(AT_FDCWD, "/proc/self/mounts", TEXT_BYTES_MAX, &mounts, NULL) < 0)
		return;
	char *rest = cgroups;
	for (char *line; (line = strsep(&rest, "\n"));)
		join(mounts, line);
}

/* ---- answers ---- */

enum { REQUEST_BYTES = 64, ANSWER_BYTES = 4096, WAIT_MS = 60000, RETURN_TRIES = 10 };

struct service {
	int socket_fd, images_dir_fd, table_fd;
	int criu_fd;		     /* readable once CRIU has ended */
	struct container *container; /* borrowed */
};

static void answer(const struct service *h, int r, const char *more,
		   const struct brumate_error *err)
{
	char text[ANSWER_BYTES];

	if (r >= 0)
		snprintf(text, sizeof(text), "ok%s", more);
	else
		snprintf(text, sizeof(text), "no %s%s%s%s", err->text, err->hint[0] ? " (" : "",
			 err->hint, err->hint[0] ? ")" : "");
	if (send(h->socket_fd, text, strlen(text), MSG_NOSIGNAL) < 0)
		log_warn("the plugin has gone: %m");
}

/* ---- requests ---- */

static int load(const struct service *h, pid_t pid, char more[static ANSWER_BYTES],
		struct brumate_error *err)
{
	auto_free struct container_thread *threads = NULL;
	size_t n = 0, len = 0;
	int r = container_load(h->container, pid, &threads, &n, err);

	for (size_t i = 0; r >= 0 && i < n; i++) {
		len += (size_t)snprintf(more + len, ANSWER_BYTES - len, " %d%s", threads[i].tid,
					threads[i].is_agent ? "a" : "");
		if (len >= ANSWER_BYTES - 8)
			return brumate_fail(err, E2BIG, "too many GPU processes");
	}
	return r;
}

static int tell_seal(const struct service *h, const char *word, char more[static ANSWER_BYTES],
		     struct brumate_error *err)
{
	char seal[DIGEST_TEXT_BYTES];
	int r = !strcmp(word, "look") ? container_look(h->container, h->images_dir_fd, seal, err)
				      : container_finish(h->container, seal, err);

	if (r >= 0)
		snprintf(more, ANSWER_BYTES, " %s", seal);
	return r;
}

static int save(const struct service *h, pid_t pid, char more[static ANSWER_BYTES],
		struct brumate_error *err)
{
	int r = container_save(h->container, pid, h->images_dir_fd, err);

	if (r > 0) {
		const char *vendor = container_plugin(h->container);

		snprintf(more, ANSWER_BYTES, " gpu%s%s", *vendor ? " " : "", vendor);
	}
	return r;
}

static int open_images(const struct service *h, char more[static ANSWER_BYTES],
		       struct brumate_error *err)
{
	int r = container_open(h->container, h->images_dir_fd, err);

	if (r < 0)
		return r;
	auto_free char *plugin = container_plugin_restore(h->container);
	if (!plugin)
		return brumate_fail(err, ENOMEM, "%m");
	if (strlen(plugin) > ANSWER_BYTES - 8)
		return brumate_fail(err, E2BIG, "too many GPUs that are not the same");
	if (*plugin)
		snprintf(more, ANSWER_BYTES, " %s", plugin);
	return r;
}

static int do_request(const struct service *h, const char *word, pid_t pid,
		      char more[static ANSWER_BYTES], struct brumate_error *err)
{
	char name[REQUEST_BYTES + 16];

	snprintf(name, sizeof(name), "container.%s", word);
	int r = fault_point(name);
	if (r < 0)
		return brumate_fail(err, -r, "injected at %s: %m", name);
	if (!strcmp(word, "save"))
		return save(h, pid, more, err);
	if (!strcmp(word, "check"))
		return container_check(h->container, pid, err);
	if (!strcmp(word, "memory"))
		return container_take_memory(h->container, h->table_fd, err);
	if (!strcmp(word, "finish") || !strcmp(word, "look"))
		return tell_seal(h, word, more, err);
	if (!strcmp(word, "open"))
		return open_images(h, more, err);
	if (!strcmp(word, "adopt"))
		return container_adopt(h->container, pid, err);
	if (!strcmp(word, "load"))
		return load(h, pid, more, err);
	if (!strcmp(word, "restore"))
		return container_restore(h->container, err);
	if (!strcmp(word, "keep"))
		return container_keep(h->container);
	return brumate_fail(err, EINVAL, "unknown request");
}

/* When CRIU itself has died, processes that it forked may still have the plugin's end of the connection. */
static bool wait_for_request(const struct service *h)
{
	struct pollfd fds[] = { { .fd = h->socket_fd, .events = POLLIN },
				{ .fd = h->criu_fd, .events = POLLIN } };

	while (poll(fds, 2, -1) < 0)
		if (errno != EINTR)
			return false;
	return fds[0].revents;
}

/* Returns false once the plugin has closed the connection. */
static bool serve(const struct service *h)
{
	char request[REQUEST_BYTES], word[REQUEST_BYTES], more[ANSWER_BYTES] = "";
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int pid = 0;

	if (!wait_for_request(h))
		return false;
	ssize_t n = recv(h->socket_fd, request, sizeof(request) - 1, 0);

	if (n < 0 && errno == EINTR)
		return true;
	if (n <= 0)
		return false;
	request[n] = '\0';
	int r = sscanf(request, "%31s %d", word, &pid) < 1
			? brumate_fail(&err, EINVAL, "empty request")
			: do_request(h, word, pid, more, &err);
	if (r < 0)
		log_error("%s: %s", request, err.text);
	answer(h, r, more, &err);
	return true;
}

/* ---- the end ---- */

/* The container can get its GPUs once CRIU has ended; it does not need them once it has ended itself. */
static void wait_for_an_end(const struct container *c)
{
	const struct proc_id ids[] = { container_criu(c), container_root(c) };
	struct pollfd fds[] = { { .fd = -1, .events = POLLIN }, { .fd = -1, .events = POLLIN } };
	bool has_ended = false;

	for (size_t i = 0; i < 2; i++) {
		fds[i].fd = ids[i].pid ? proc_open(ids[i]) : -1;
		has_ended = has_ended || (ids[i].pid && proc_has_ended(ids[i]));
	}
	while (!has_ended && poll(fds, 2, WAIT_MS) <= 0)
		log_info("CRIU has not ended yet: pid=%d", ids[0].pid);
	cleanup_close(&fds[0].fd);
	cleanup_close(&fds[1].fd);
}

static int give_back(struct container *c)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int r = -EAGAIN;

	for (int i = 0; r < 0 && i < RETURN_TRIES; i++) {
		if (i) /* another process holds it, which we can neither see nor wait for */
			poll(NULL, 0, 1000);
		r = container_return(c, &err);
		if (r < 0)
			log_error("the container has no GPU yet: %s", err.text);
	}
	return r;
}

static int end(struct container *c, struct brumate_error *err)
{
	wait_for_an_end(c);
	container_abandon(c);
	int r = give_back(c);
	return r < 0 ? brumate_fail(err, -r, "GPUs were not given back: %m") : 0;
}

static int run_helper(struct service *h, struct proc_id criu, struct brumate_error *err)
{
	int r = proc_identify(&criu, criu.pid, err);

	if (r < 0)
		return r;
	auto_close int criu_fd = proc_open(criu);
	h->criu_fd = criu_fd;
	fault_register_peer("criu", criu.pid);
	/* At a restore CRIU is already in the container's cgroups, which end with the container. */
	cgroup_join_parent_of(criu.pid);
	auto_(container_free) struct container *c = container_new(criu, err);
	if (!c)
		return -EIO;
	h->container = c;
	while (serve(h))
		;
	return end(c, err);
}

/* The helper of the container has died, and perhaps CRIU, too. Another process may have taken over first. */
static int inherit(const char *dir, struct brumate_error *err)
{
	auto_(container_free) struct container *c = container_new(PROC_ID_NONE, err);
	int r = c ? container_inherit(c, dir, err) : -EIO;

	if (r == -ENOENT || r == -EBUSY)
		return 0;
	return r < 0 ? r : end(c, err);
}

static int exit_code(int r, const struct brumate_error *err)
{
	if (r < 0)
		log_error("%s", err->text);
	return r < 0 ? (int)brumate_exit_code(err) : EXIT_OK;
}

bool helper_is_meant(int argc, char **argv)
{
	static const char digits[] = "0123456789";

	return argc == 5 ? argv[1][0] && !argv[1][strspn(argv[1], digits)]
			 : argc == 3 && !strcmp(argv[1], "--heir");
}

int helper_main(int argc, char **argv)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	log_init("brumate-container");
	signal(SIGPIPE, SIG_IGN);
	children_wait_for_us();
	limits_raise_files();
	if (argc == 3)
		return exit_code(inherit(argv[2], &err), &err);
	struct service h = { .socket_fd = atoi(argv[1]),
			     .images_dir_fd = atoi(argv[2]),
			     .table_fd = atoi(argv[3]) };
	fcntl(h.socket_fd, F_SETFD, FD_CLOEXEC);
	fcntl(h.images_dir_fd, F_SETFD, FD_CLOEXEC);
	fcntl(h.table_fd, F_SETFD, FD_CLOEXEC);
	int r = run_helper(&h, (struct proc_id){ .pid = atoi(argv[4]) }, &err);
	if (r < 0)
		answer(&h, -1, "", &err);
	return exit_code(r, &err);
}

// SPDX-License-Identifier: MIT
/*
 * brumate-container SOCKET IMAGES CRIU: what brumate's plugin in a container engine's CRIU has done. SOCKET and IMAGES are
 * descriptors, CRIU is the process whose plugin asks. A request is a packet "WORD [PID]", its answer a packet "ok [TIDS]" or
 * "no REASON". The connection ends with the plugin; then, once CRIU has ended, a container that goes on gets its GPUs back,
 * whatever became of the dump. So this program outlives CRIU, and where it dies before the plugin, the plugin starts another.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/start.h"
#include "container/cgroup.h"
#include "engine/container.h"
#include "process/process.h"

enum { REQUEST_BYTES = 64, ANSWER_BYTES = 4096, WAIT_MS = 60000, RETURN_TRIES = 10 };

struct helper {
	int socket_fd, images_dir_fd;
	struct proc_id criu;
	struct container *container;
};

static void answer(const struct helper *h, int r, const char *more, const struct brumate_error *err)
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

static int load(const struct helper *h, pid_t pid, char more[static ANSWER_BYTES],
		struct brumate_error *err)
{
	auto_free pid_t *tids = NULL;
	size_t n = 0, len = 0;
	int r = container_load(h->container, pid, h->images_dir_fd, &tids, &n, err);

	for (size_t i = 0; r >= 0 && i < n; i++) {
		len += (size_t)snprintf(more + len, ANSWER_BYTES - len, " %d", tids[i]);
		if (len >= ANSWER_BYTES - 8)
			return brumate_fail(err, E2BIG, "too many GPU processes");
	}
	return r;
}

static int do_request(const struct helper *h, const char *word, pid_t pid,
		      char more[static ANSWER_BYTES], struct brumate_error *err)
{
	char name[REQUEST_BYTES + 16];

	snprintf(name, sizeof(name), "container.%s", word);
	int r = fault_point(name);
	if (r < 0)
		return brumate_fail(err, -r, "injected at %s: %m", name);
	if (!strcmp(word, "save")) {
		r = container_save(h->container, pid, h->images_dir_fd, err);
		strcpy(more, r > 0 ? " gpu" : "");
		return r;
	}
	if (!strcmp(word, "check"))
		return container_check(h->container, pid, err);
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

/* Returns false once the plugin has hung up. */
static bool serve(const struct helper *h)
{
	char request[REQUEST_BYTES], word[REQUEST_BYTES], more[ANSWER_BYTES] = "";
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int pid = 0;
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

static void wait_for_criu(const struct helper *h)
{
	while (proc_wait_gone(h->criu, deadline_in_ms(WAIT_MS)) == -ETIMEDOUT)
		log_info("CRIU has not ended yet: pid=%d", h->criu.pid);
}

static int give_back(const struct helper *h)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int r = -EAGAIN;

	for (int i = 0; r < 0 && i < RETURN_TRIES; i++) {
		if (i) /* what holds it is neither ours to see nor to wait for */
			poll(NULL, 0, 1000);
		r = container_return(h->container, &err);
		if (r < 0)
			log_error("the container has no GPU yet: %s", err.text);
	}
	return r;
}

static int run(struct helper *h, struct brumate_error *err)
{
	int r = proc_identify(&h->criu, h->criu.pid, err);

	if (r < 0)
		return r;
	fault_register_peer("criu", h->criu.pid);
	/* At a restore CRIU is in the container's cgroups already, which end with the container. */
	cgroup_join_parent_of(h->criu.pid);
	h->container = container_new(err);
	if (!h->container)
		return -EIO;
	while (serve(h))
		;
	wait_for_criu(h);
	container_abandon(h->container);
	r = give_back(h);
	container_free(h->container);
	return r < 0 ? brumate_fail(err, -r, "GPUs were not given back: %m") : 0;
}

int main(int argc, char **argv)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	log_init("brumate-container");
	if (argc != 4) {
		fprintf(stderr,
			"usage: brumate-container SOCKET IMAGES CRIU (started by CRIU's plugin)\n");
		return EXIT_USAGE;
	}
	struct helper h = { .socket_fd = atoi(argv[1]),
			    .images_dir_fd = atoi(argv[2]),
			    .criu.pid = atoi(argv[3]) };
	fcntl(h.socket_fd, F_SETFD, FD_CLOEXEC);
	fcntl(h.images_dir_fd, F_SETFD, FD_CLOEXEC);
	signal(SIGPIPE, SIG_IGN);
	limits_raise_files();
	if (run(&h, &err) < 0) {
		log_error("%s", err.text);
		answer(&h, -1, "", &err);
		return (int)brumate_exit_code(&err);
	}
	return EXIT_OK;
}

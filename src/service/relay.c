// SPDX-License-Identifier: MIT
/*
 * The calling thread waits in wire_call(); a second one waits for the cancellation and then shuts the
 * connection down, which ends the first one's wait. Owns no connection.
 */
#include "service/relay.h"
#include "base/clock.h"
#include "base/thread.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

struct watch {
	const struct cancel *cancel;
	int done_fd;
	int wire_fd;
	atomic_bool cancelled;
};

static bool is_cancelled(const struct pollfd *fds)
{
	for (int i = 0; i < CANCEL_FDS; i++)
		if (fds[i].revents)
			return true;
	return false;
}

static void *watch(void *arg)
{
	struct watch *w = arg;
	struct pollfd fds[CANCEL_FDS + 1];

	for (int i = 0; i < CANCEL_FDS; i++)
		fds[i] = w->cancel->fds[i];
	fds[CANCEL_FDS] = (struct pollfd){ .fd = w->done_fd, .events = POLLIN };

	while (poll(fds, CANCEL_FDS + 1, -1) < 0)
		if (errno != EINTR)
			return NULL;
	if (is_cancelled(fds)) {
		atomic_store(&w->cancelled, true);
		shutdown(w->wire_fd, SHUT_RDWR);
	}
	return NULL;
}

int relay_call(struct wire *w, const char *method, json_t *parameters, wire_reply_fn on_reply,
	       void *arg, const struct cancel *cancel, json_t **ret, struct brumate_error *err)
{
	return relay_call_fds(w, method, parameters, NULL, 0, on_reply, arg, cancel, ret, err);
}

int relay_call_fds(struct wire *w, const char *method, json_t *parameters, const int *fds,
		   size_t n_fds, wire_reply_fn on_reply, void *arg, const struct cancel *cancel,
		   json_t **ret, struct brumate_error *err)
{
	auto_close int done_fd = eventfd(0, EFD_CLOEXEC);
	struct watch state = { .cancel = cancel, .done_fd = done_fd, .wire_fd = w->fd };
	pthread_t thread;

	if (done_fd < 0)
		return brumate_fail(err, errno, "eventfd: %m");
	int r = thread_start(&thread, watch, &state);
	if (r < 0)
		return brumate_fail(err, -r, "%s: thread: %m", method);

	r = wire_call(w, method, parameters, fds, n_fds, on_reply, arg, ret, DEADLINE_NEVER, err);
	eventfd_write(done_fd, 1);
	pthread_join(thread, NULL);
	if (r < 0 && atomic_load(&state.cancelled))
		return brumate_fail(err, ECANCELED, "cancelled");
	return r;
}

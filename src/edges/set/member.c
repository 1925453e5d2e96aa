// SPDX-License-Identifier: MIT
/*
 * `brumate set member`: one member's end of the channel (set.h). It calls the method as any command does; the job's shim connects to a
 * socket of ours, and a thread passes on what it says there and what the coordinator answers.
 */
#include "edges/set/set.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/paths.h"
#include "base/thread.h"
#include "cli/client.h"
#include "wire/wire.h"

enum { PACKET_BYTES = 2048, SHIM_BYTES = SET_LINES_BYTES + 64 };

struct channel {
	int listen_fd, link_fd; /* the shim; -1: not there, or not any more */
	int cancel[2];		/* readable once the coordinator has gone */
	int stop[2];		/* readable once the operation has ended */
	pthread_mutex_t lock;	/* of stdout */
	uint64_t deadline_ns;	/* the member gives up then, though its stdin is open */
};

static void say(struct channel *c, json_t *line)
{
	auto_json json_t *owned = line;
	auto_free char *text = owned ? json_dumps(owned, JSON_COMPACT) : NULL;

	pthread_mutex_lock(&c->lock);
	if (text) {
		puts(text);
		fflush(stdout);
	}
	pthread_mutex_unlock(&c->lock);
}

/* One line of stdin, without stdio: poll(2) must know of what has come. 1, 0 at its end, -errno. */
static int read_line(char *ret, size_t room)
{
	size_t len = 0;

	for (;;) {
		ssize_t n = read(STDIN_FILENO, ret + len, 1);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : 0;
		if (ret[len] == '\n')
			break;
		if (++len == room - 1)
			return -EMSGSIZE;
	}
	ret[len] = '\0';
	return 1;
}

/* ---- the thread ---- */

static void hear_shim(struct channel *c)
{
	const size_t heading = strlen(SET_CONNECTIONS);
	char word[SHIM_BYTES];
	ssize_t n = recv(c->link_fd, word, sizeof(word) - 1, 0);

	if (n <= 0) {
		cleanup_close(&c->link_fd);
		return;
	}
	word[n] = '\0';
	say(c, !strncmp(word, SET_CONNECTIONS, heading)
		       ? json_pack("{s:s}", "connections", word + heading)
		       : json_pack("{s:s}", "at", word));
}

static int take_limit(struct channel *c, json_t *o, struct brumate_error *err)
{
	int64_t ms = 0;
	int r = wire_get_int(o, "limit_ms", 1, INT32_MAX, &ms, err);

	if (r == 0 && ms)
		c->deadline_ns = deadline_in_ms((uint64_t)ms);
	return r;
}

/* False: nobody coordinates any more. */
static bool hear_coordinator(struct channel *c)
{
	char line[PACKET_BYTES], packet[PACKET_BYTES + 8];
	auto_json json_t *o = NULL;

	if (read_line(line, sizeof(line)) <= 0 || !(o = json_loads(line, 0, NULL)) ||
	    take_limit(c, o, NULL) < 0)
		return false;
	if (json_is_string(json_object_get(o, "go")))
		snprintf(packet, sizeof(packet), "go %s", text_of(o, "go"));
	else if (json_object_get(o, "again"))
		snprintf(packet, sizeof(packet), "again");
	else
		return false;
	return c->link_fd >= 0 && send(c->link_fd, packet, strlen(packet), MSG_NOSIGNAL) > 0;
}

static void give_up(struct channel *c)
{
	cleanup_close(&c->link_fd);
	cleanup_close(&c->listen_fd);
	if (write(c->cancel[1], "", 1) < 0)
		return;
}

static void *pass_on(void *arg)
{
	struct channel *c = arg;

	for (;;) {
		struct pollfd p[] = {
			{ .fd = c->stop[0], .events = POLLIN },
			{ .fd = c->link_fd, .events = POLLIN },
			{ .fd = c->link_fd < 0 ? c->listen_fd : -1, .events = POLLIN },
			{ .fd = STDIN_FILENO, .events = POLLIN },
		};

		const int n = poll(p, sizeof(p) / sizeof(p[0]), deadline_left_ms(c->deadline_ns));
		if (n < 0)
			continue;
		if (p[0].revents)
			return NULL;
		if (p[1].revents)
			hear_shim(c);
		if (p[2].revents)
			c->link_fd = accept4(c->listen_fd, NULL, NULL, SOCK_CLOEXEC);
		if (n == 0 || (p[3].revents && !hear_coordinator(c))) {
			give_up(c);
			return NULL;
		}
	}
}

/* ---- the call ---- */

static int make_socket(struct channel *c, struct sockaddr_un *address, struct brumate_error *err)
{
	int r = path_make_runtime_dir(err);
	int n = snprintf(address->sun_path, sizeof(address->sun_path), "%s/set-member-%d",
			 path_runtime_dir(), getpid());

	if (r < 0)
		return r;
	if (n < 0 || (size_t)n >= sizeof(address->sun_path))
		return brumate_fail(err, ENAMETOOLONG, "%s: %m", path_runtime_dir());
	unlink(address->sun_path); /* an earlier process had this number */
	c->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	mode_t mask = umask(0177);
	r = c->listen_fd < 0 ||
			    bind(c->listen_fd, (struct sockaddr *)address, sizeof(*address)) < 0 ||
			    listen(c->listen_fd, 1) < 0
		    ? brumate_fail(err, errno, "%s: %m", address->sun_path)
		    : 0;
	umask(mask);
	return r;
}

static int call(struct channel *c, const char *word, json_t *parameters, json_t **ret,
		struct brumate_error *err)
{
	pthread_t thread;
	int r = pipe2(c->cancel, O_CLOEXEC) < 0 || pipe2(c->stop, O_CLOEXEC) < 0 ? -errno : 0;

	if (r == 0)
		r = thread_start(&thread, pass_on, c);
	if (r < 0)
		return brumate_fail(err, -r, "thread: %m");
	r = client_call(strcmp(word, "restore") ? "Checkpoint" : "Restore", parameters, NULL, NULL,
			c->cancel[0], ret, err);
	if (write(c->stop[1], "", 1) == 1)
		pthread_join(thread, NULL);
	return r;
}

static int read_order(struct channel *c, json_t **ret, const char **ret_word,
		      json_t **ret_parameters, struct brumate_error *err)
{
	auto_free char *line = malloc(LINE_BYTES_MAX);
	int r = line ? read_line(line, LINE_BYTES_MAX) : -ENOMEM;

	if (r < 0)
		return brumate_fail(err, -r, "stdin: %m");
	if (r == 0 || !(*ret = json_loads(line, 0, NULL)))
		return brumate_fail(err, EPROTO, "stdin: no coordinator speaks there");
	r = wire_need_string(*ret, "do", ret_word, err);
	if (r == 0)
		r = wire_get_object(*ret, "parameters", ret_parameters, err);
	if (r == 0)
		r = take_limit(c, *ret, err);
	return r == 0 && !*ret_parameters ? brumate_fail(err, EPROTO, "stdin: nothing is asked for")
					  : r;
}

int member_run(struct brumate_error *err)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct channel c = {
		-1, -1, { -1, -1 }, { -1, -1 }, PTHREAD_MUTEX_INITIALIZER, DEADLINE_NEVER
	};
	auto_json json_t *order = NULL, *reply = NULL;
	const char *word = NULL;
	json_t *parameters = NULL;

	signal(SIGPIPE, SIG_IGN);
	int r = read_order(&c, &order, &word, &parameters, err);
	if (r == 0)
		r = make_socket(&c, &address, err);
	if (r == 0 &&
	    json_object_set_new(parameters, "together", json_string(address.sun_path)) < 0)
		r = brumate_fail(err, ENOMEM, "%m");
	if (r == 0)
		r = call(&c, word, parameters, &reply, err);
	if (address.sun_path[0])
		unlink(address.sun_path);
	say(&c, r < 0 ? json_pack("{s:o}", "failed", wire_error_to_json(err))
		      : json_pack("{s:O?}", "done", json_object_get(reply, "summary")));
	return 0; /* the coordinator has it; this command itself has not failed */
}

// SPDX-License-Identifier: MIT
/*
 * The coordinator of a set: starts the channels, has all members come to each meeting before one goes on from it, decides
 * at the last. It keeps nothing: where it dies, the members give up, or go on, by what the store says.
 */
#include "edges/set/set.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/paths.h"
#include "cli/client.h"
#include "cli/output.h"
#include "wire/wire.h"

enum {
	WORDS_MAX = 256,
	GIVE_UP_MS = 60000,
	CONNECTIONS_BYTES_MAX = 16 << 20, /* of a member: more than a hundred thousand */
	CHANNEL_END_MS = 5000,
	/* Beyond the time: until members give up by themselves, and until nobody is waited for any more. */
	BEYOND_TIME_MS = 750,
	END_MS = 1500,
	/* How long one that is idle waits for the others at first, and at most. */
	IDLE_MS = 20,
	IDLE_MS_MAX = 160,
};

void set_fini(struct set *s)
{
	for (size_t i = 0; i < s->n; i++) {
		struct member *m = &s->members[i];

		cleanup_close(&m->in);
		cleanup_close(&m->out);
		cleanup_close(&m->said);
		free(m->node);
		free(m->what);
		free(m->buf);
		json_decref(m->parameters);
		json_decref(m->done);
		json_decref(m->outside);
		free(m->connections);
	}
	free(s->members);
	*s = (struct set){ 0 };
}

struct member *set_add(struct set *s, const char *node, size_t node_len, const char *what,
		       json_t *parameters)
{
	struct member *members = array_room(s->members, s->n, sizeof(*members));
	struct member *m = members ? &members[s->n] : NULL;

	s->members = members ? members : s->members;
	if (!m) {
		json_decref(parameters);
		return NULL;
	}
	*m = (struct member){ .in = -1, .out = -1, .said = -1, .parameters = parameters };
	s->n++;
	m->node = strndup(node, node_len);
	m->what = strdup(what);
	return m->node && m->what && parameters ? m : NULL;
}

/* ---- channels ---- */

/* @word with each %n replaced by the node (owned). */
static char *fill_in(const char *word, const char *node)
{
	char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	for (; f && *word; word++) {
		if (word[0] == '%' && word[1] == 'n') {
			fputs(node, f);
			word++;
		} else {
			putc(*word, f);
		}
	}
	if (f && fclose(f) == 0)
		return text;
	free(text);
	return NULL;
}

/* The words of the command that speaks for @m; what is allocated stays until exec or exit. */
static char **channel_argv(const struct set *s, const struct member *m)
{
	static char brumate[] = "brumate", set[] = "set", member[] = "member";
	char **argv = calloc(WORDS_MAX + 4, sizeof(*argv));
	char *via = *m->node ? strdup(s->via) : NULL, *rest = via;
	size_t n = 0;

	if (!argv || (*m->node && !via))
		goto fail;
	for (char *word; (word = strsep(&rest, " "));) {
		if (!*word)
			continue;
		if (n == WORDS_MAX || !(argv[n++] = fill_in(word, m->node)))
			goto fail;
	}
	argv[n++] = brumate;
	argv[n++] = set;
	argv[n] = member;
	free(via);
	return argv;
fail:
	free(via);
	free(argv);
	return NULL;
}

static _Noreturn void run_channel(char **argv, bool is_here, int in, int out, int said)
{
	setpgid(0, 0); /* Ctrl-C is for us: we have the members give up, and wait until they have */
	if (dup2(in, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 ||
	    dup2(said, STDERR_FILENO) < 0)
		_exit(EXIT_FAILED);
	if (is_here)
		execv("/proc/self/exe", argv);
	else
		execvp(argv[0], argv);
	dprintf(STDERR_FILENO, "%s: %m\n", argv[0]);
	_exit(EXIT_NO_COMMAND);
}

static int start_channel(const struct set *s, struct member *m, struct brumate_error *err)
{
	int to[2] = { -1, -1 }, from[2] = { -1, -1 }, said[2] = { -1, -1 };
	auto_free char **argv = channel_argv(s, m);

	if (!argv)
		return brumate_fail(err, ENOMEM, "%m");
	if (pipe2(to, O_CLOEXEC) < 0 || pipe2(from, O_CLOEXEC) < 0 || pipe2(said, O_CLOEXEC) < 0)
		return brumate_fail(err, errno, "pipe: %m");
	m->pid = fork();
	if (m->pid == 0)
		run_channel(argv, !*m->node, to[0], from[1], said[1]);
	close(to[0]);
	close(from[1]);
	close(said[1]);
	m->in = to[1];
	m->out = from[0];
	m->said = said[0];
	fcntl(m->said, F_SETFL, O_NONBLOCK);
	fcntl(m->in, F_SETFL, O_NONBLOCK);
	return m->pid < 0 ? brumate_fail(err, errno, "fork: %m") : 0;
}

/* ---- what members say ---- */

static void fail_member(struct member *m, int code, const char *text)
{
	if (!m->why.code)
		brumate_fail(&m->why, code, "%s", text);
}

static void send_line(struct member *m, json_t *line)
{
	auto_json json_t *owned = line;
	auto_free char *text = owned ? json_dumps(owned, JSON_COMPACT) : NULL;
	auto_free char *whole = text ? path_format("%s\n", text) : NULL;
	size_t len = whole ? strlen(whole) : 0;

	/* One that has gone is heard of at its other end. */
	for (size_t done = 0; m->in >= 0 && done < len;) {
		ssize_t n = write(m->in, whole + done, len - done);

		/* What fits into a pipe was not read: it listens to nobody, and nobody waits for that. */
		if (n < 0 && errno == EAGAIN) {
			fail_member(m, EPROTO, "its channel does not read what it is told");
			m->ended = true;
		}
		if (n < 0 && errno != EINTR)
			cleanup_close(&m->in);
		done += n > 0 ? (size_t)n : 0;
	}
}

static void take_connections(struct member *m, const char *lines)
{
	if (!strncmp(lines, SET_DRAINS, strlen(SET_DRAINS))) {
		m->drains = true;
		lines += strlen(SET_DRAINS);
	}
	const size_t have = m->connections ? strlen(m->connections) : 0, more = strlen(lines);
	char *all = have + more < CONNECTIONS_BYTES_MAX ? realloc(m->connections, have + more + 1)
							: NULL;

	if (!all) {
		fail_member(m, ENOMEM, "there is no room for all that it is connected to");
		return;
	}
	memcpy(all + have, lines, more + 1);
	m->connections = all;
}

static void take_line(struct member *m, const char *line)
{
	auto_json json_t *o = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
	json_t *failed = json_object_get(o, "failed");

	/* A member is to wait at a meeting for the coordinator: one that says again where it is may do that for ever. */
	if (json_is_string(json_object_get(o, "at")) && !*m->at)
		m->has_met = snprintf(m->at, sizeof(m->at), "%s", text_of(o, "at")) > 0;
	else if (json_is_string(json_object_get(o, "connections")))
		take_connections(m, text_of(o, "connections"));
	else if (json_is_object(failed))
		wire_error_from_json(&m->why, failed);
	else if (json_object_get(o, "done"))
		m->done = m->done ? m->done : json_incref(json_object_get(o, "done"));
	else
		fail_member(m, EPROTO,
			    "its channel says what no member does: is there another brumate?");
	m->ended = m->ended || failed || m->done || m->why.code;
}

/* Another machine's words are no orders to this terminal. */
static void print_said(const struct member *m)
{
	fprintf(stderr, "%s: ", *m->node ? m->node : "here");
	print_plain(stderr, m->last_said);
	fputc('\n', stderr);
}

/* Passes on what it says to people, but for the last line: that may be why it fails. */
static void pass_on_said(struct member *m, const char *text, size_t len)
{
	char *last = m->last_said;

	for (size_t i = 0; i < len; i++) {
		size_t have = strlen(last);

		if (have && last[have - 1] == '\n') {
			last[have - 1] = '\0';
			print_said(m);
			last[0] = '\0';
			have = 0;
		}
		if (text[i] == '\n' ? have : have + 2 < sizeof(m->last_said)) {
			last[have] = text[i];
			last[have + 1] = '\0';
		}
	}
}

/* What it has left behind may hold that end for ever: nobody waits for it to close. */
static void hear_said(struct member *m)
{
	char text[SAID_BYTES];
	ssize_t n = m->said < 0 ? 0 : read(m->said, text, sizeof(text));

	if (n > 0)
		pass_on_said(m, text, (size_t)n);
	else if (n == 0 || (errno != EINTR && errno != EAGAIN))
		cleanup_close(&m->said);
}

static void hear(struct member *m)
{
	char *buf = m->len + 1 < LINE_BYTES_MAX ? realloc(m->buf, m->len + 4097) : NULL;
	ssize_t n = -1;

	if (buf) {
		m->buf = buf;
		n = read(m->out, buf + m->len, 4096);
		if (n < 0 && errno == EINTR)
			return;
	}
	if (n <= 0) {
		cleanup_close(&m->out);
		m->ended = true;
		if (!m->done)
			fail_member(m, EPIPE, "its channel has ended");
		return;
	}
	m->len += (size_t)n;
	buf[m->len] = '\0';
	for (char *end; (end = memchr(m->buf, '\n', m->len));) {
		*end = '\0';
		take_line(m, m->buf);
		m->len -= (size_t)(end + 1 - m->buf);
		memmove(m->buf, end + 1, m->len + 1);
	}
}

/* Reads once from each channel that has something. 0; -ETIMEDOUT, also where one always has; -ECANCELED. */
static int hear_some(struct set *s, uint64_t deadline_ns, int cancel_fd)
{
	const int left_ms = deadline_left_ms(deadline_ns);
	auto_free struct pollfd *fds = calloc(2 * s->n + 1, sizeof(*fds));
	struct pollfd *said = fds ? fds + s->n + 1 : NULL;

	if (!fds)
		return -ENOMEM;
	for (size_t i = 0; i < s->n; i++) {
		fds[i] = (struct pollfd){ .fd = s->members[i].out, .events = POLLIN };
		said[i] = (struct pollfd){ .fd = s->members[i].said, .events = POLLIN };
	}
	fds[s->n] = (struct pollfd){ .fd = cancel_fd, .events = POLLIN };
	int n = left_ms ? poll(fds, 2 * s->n + 1, left_ms) : 0;
	if (n == 0)
		return -ETIMEDOUT;
	for (size_t i = 0; n > 0 && i < s->n; i++) {
		if (said[i].revents)
			hear_said(&s->members[i]);
		if (fds[i].revents)
			hear(&s->members[i]);
	}
	return n > 0 && fds[s->n].revents ? -ECANCELED : 0;
}

/* ---- meetings ---- */

static bool one_has_ended(const struct set *s)
{
	for (size_t i = 0; i < s->n; i++)
		if (s->members[i].ended)
			return true;
	return false;
}

/* First one that has not been there at all: those that come again have only just been sent away. */
static const struct member *find_late(const struct set *s, const char *at)
{
	const struct member *late = NULL;

	for (size_t i = 0; i < s->n; i++) {
		const struct member *m = &s->members[i];

		if (!strcmp(m->at, at))
			continue;
		if (!m->comes_again)
			return m;
		late = late ? late : m;
	}
	return late;
}

void set_name_member(char *ret, size_t room, const struct member *m)
{
	snprintf(ret, room, "%s%s%s", m->node, *m->node ? ":" : "", m->what);
}

/* How long a member may still take, where that is limited. A network or a machine that is lost closes no channel, and a coordinator may
 * stand still: a member has a limit of its own, which passes after ours, unless that is in weeks. */
static int64_t limit_ms(const struct set *s)
{
	const int left_ms = deadline_left_ms(s->deadline_ns);

	return left_ms >= 0 && left_ms < INT32_MAX - BEYOND_TIME_MS ? left_ms + BEYOND_TIME_MS : 0;
}

/* When its launcher has started a member is not known, and its time begins then: the limit is said again at each meeting. */
static void send_answer(const struct set *s, struct member *m, const char *word, const char *text)
{
	json_t *line = json_pack("{s:s}", word, text);

	if (line && limit_ms(s))
		json_object_set_new(line, "limit_ms", json_integer(limit_ms(s)));
	send_line(m, line);
}

static void send_again(const struct set *s, struct member *m)
{
	m->at[0] = '\0';
	m->comes_again = true;
	cleanup_free(&m->connections);
	send_answer(s, m, "again", "");
}

/* Those that are idle let nothing through, which a kernel of one that is not may wait for: they are to, for a moment. The
 * pauses become longer, for members that have nothing to do with each other are idle at once only by chance. */
static bool have_some_go_on(struct set *s, const char *at, unsigned *pause_ms)
{
	if (strcmp(at, "idle") != 0 || deadline_left_ms(s->deadline_ns) == 0)
		return false;
	*pause_ms = *pause_ms < IDLE_MS_MAX / 2 ? *pause_ms * 2 : IDLE_MS_MAX;
	for (size_t i = 0; i < s->n; i++)
		if (!strcmp(s->members[i].at, at))
			send_again(s, &s->members[i]);
	return true;
}

/* Waits until all have come to @at. */
static int meet(struct set *s, const char *at, struct brumate_error *err)
{
	unsigned pause_ms = IDLE_MS;
	uint64_t until_ns = strcmp(at, "idle") ? s->deadline_ns : deadline_in_ms(pause_ms);
	const struct member *late;
	char point[32], who[300];

	while (!one_has_ended(s) && (late = find_late(s, at))) {
		int r = hear_some(s, until_ns, s->cancel_fd);

		if (r == -ETIMEDOUT && have_some_go_on(s, at, &pause_ms)) {
			until_ns = deadline_in_ms(pause_ms);
			if (until_ns > s->deadline_ns)
				until_ns = s->deadline_ns;
			continue;
		}
		if (r == 0)
			continue;
		set_name_member(who, sizeof(who), late);
		if (r == -ETIMEDOUT)
			return brumate_fail(err, ETIMEDOUT, "member %s was not %s in time", who,
					    at);
		return brumate_fail(err, -r, r == -ECANCELED ? "cancelled" : "%m");
	}
	if (one_has_ended(s))
		return brumate_fail(err, ECANCELED, "a member has ended");
	snprintf(point, sizeof(point), "set.all-%s", at);
	int r = fault_point(point);
	return r < 0 ? brumate_fail(err, -r, "injected: %m") : 0;
}

static void have_all_go_on(struct set *s, const char *path)
{
	for (size_t i = 0; i < s->n; i++) {
		s->members[i].at[0] = '\0';
		s->members[i].comes_again = false;
		cleanup_free(&s->members[i].connections);
		send_answer(s, &s->members[i], "go", path);
	}
}

static bool some_are_outside(const struct set *s)
{
	for (size_t i = 0; i < s->n; i++)
		if (json_array_size(s->members[i].outside))
			return true;
	return false;
}

/* While the members run, a connection that one of them has just made or closed has one end only: they look twice. */
static int look(struct set *s, const char *at, struct brumate_error *err)
{
	int r = connections_check(s, false, err);

	if (r < 0 || !some_are_outside(s))
		return r;
	for (size_t i = 0; i < s->n; i++)
		send_again(s, &s->members[i]);
	r = meet(s, at, err);
	return r < 0 ? r : connections_check(s, false, err);
}

/* Two that are connected have to do the same. */
static int find_draining(struct set *s, struct brumate_error *err)
{
	for (size_t i = 0; i < s->n; i++)
		if (s->members[i].drains != s->members[0].drains) {
			brumate_fail(
				err, EOPNOTSUPP,
				"of some members root saves the connections, of others a user");
			brumate_hint(err, "save jobs of one user as a set");
			return -EOPNOTSUPP;
		}
	s->drains = s->members[0].drains;
	return 0;
}

/* They are looked at while the members run, and at the @n-th meeting once all stand still; later, ones that are saved run on. */
static int check_connections(struct set *s, const char *at, size_t n, struct brumate_error *err)
{
	int r = n == 0 ? find_draining(s, err) : 0;

	return r < 0 ? r : n == 0 ? look(s, at, err) : n == 2 ? connections_check(s, true, err) : 0;
}

static bool is_left_out(const struct set *s, const char *at)
{
	return !s->drains && (!strcmp(at, "frozen") || !strcmp(at, "drained"));
}

/* ---- the end ---- */

static bool all_have_ended(const struct set *s)
{
	for (size_t i = 0; i < s->n; i++)
		if (!s->members[i].ended)
			return false;
	return true;
}

static bool all_are_closed(const struct set *s)
{
	for (size_t i = 0; i < s->n; i++)
		if (s->members[i].out >= 0)
			return false;
	return true;
}

/* Its exit status is known only now. The last line that it said may be the reason, as a launcher's is. */
static void tell_how_ended(struct member *m, int status)
{
	const bool is_reason = m->why.code == EPIPE;
	char *last = m->last_said;

	for (size_t left = 64; m->said >= 0 && left; left--) /* what it has left may go on */
		hear_said(m);
	last[strcspn(last, "\n")] = '\0';
	const char *colon = *last ? ": " : "";
	if (!is_reason && *last)
		print_said(m);
	else if (is_reason && WIFSIGNALED(status))
		brumate_fail(&m->why, EPIPE, "its channel has ended: by signal %d%s%s",
			     WTERMSIG(status), colon, last);
	else if (is_reason && WEXITSTATUS(status))
		brumate_fail(&m->why, EPIPE,
			     "its channel has ended: the command that speaks for it exited with "
			     "%d%s%s",
			     WEXITSTATUS(status), colon, last);
}

/* A process that has closed its channel may never end. */
static bool has_ended(pid_t pid, uint64_t deadline_ns)
{
	auto_close int fd = (int)syscall(SYS_pidfd_open, pid, 0);
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return fd >= 0 && poll(&p, 1, deadline_left_ms(deadline_ns)) > 0;
}

/* @most_ms from now, and never much later than the set's own time. */
static uint64_t end_in_ms(const struct set *s, uint64_t most_ms)
{
	const uint64_t most_ns = deadline_in_ms(most_ms), left_ns = DEADLINE_NEVER - s->deadline_ns,
		       beyond_ns = END_MS * NS_PER_MS,
		       end_ns = left_ns < beyond_ns ? DEADLINE_NEVER : s->deadline_ns + beyond_ns;

	return most_ns < end_ns ? most_ns : end_ns;
}

/* Channels that hang are killed; the members at their other ends come to their end without them. */
static void end_channels(struct set *s, uint64_t most_ms)
{
	const uint64_t deadline_ns = end_in_ms(s, most_ms);

	for (size_t i = 0; i < s->n; i++)
		cleanup_close(&s->members[i].in);
	while (!all_are_closed(s))
		if (hear_some(s, deadline_ns, -1) < 0)
			break;
	for (size_t i = 0; i < s->n; i++) {
		struct member *m = &s->members[i];
		int status;

		if (m->pid <= 0)
			continue;
		if (m->out >= 0 || !has_ended(m->pid, deadline_ns))
			kill(-m->pid, SIGKILL);
		cleanup_close(&m->out);
		if (waitpid(m->pid, &status, 0) == m->pid)
			tell_how_ended(m, status);
	}
}

/* Those that have come to a meeting say how they ended, which takes as long as their undo. */
static bool some_give_up(const struct set *s)
{
	for (size_t i = 0; i < s->n; i++)
		if (s->members[i].has_met && !s->members[i].ended)
			return true;
	return false;
}

/* How that has ended is not known here. */
static void tell_silent(struct set *s)
{
	char who[300];

	for (size_t i = 0; i < s->n; i++) {
		if (!s->members[i].has_met || s->members[i].ended)
			continue;
		s->some_are_silent = true;
		set_name_member(who, sizeof(who), &s->members[i]);
		print_note("member %s has not said yet that it has given up; `brumate ps` there "
			   "says what becomes of it",
			   who);
	}
}

static void have_all_give_up(struct set *s)
{
	const uint64_t deadline_ns = end_in_ms(s, GIVE_UP_MS);
	int r = 0;

	interrupt_take(); /* a second one says that nobody wants to wait for that, either */
	for (size_t i = 0; i < s->n; i++)
		cleanup_close(&s->members[i].in);
	while (some_give_up(s) && r == 0)
		r = hear_some(s, deadline_ns, s->cancel_fd);
	tell_silent(s);
	end_channels(s, r == -ECANCELED ? 0 : CHANNEL_END_MS);
}

/* The member whose failure is the cause: the others have only learnt of it. */
static const struct member *find_cause(const struct set *s)
{
	const struct member *second = NULL;

	for (size_t i = 0; i < s->n; i++) {
		const struct member *m = &s->members[i];

		if (m->why.code && m->why.code != ECANCELED && m->why.code != EPIPE)
			return m;
		if (m->why.code && (!second || m->why.code == EPIPE))
			second = m;
	}
	return second;
}

static int explain(const struct set *s, int r, const struct brumate_error *own,
		   struct brumate_error *err)
{
	const struct member *m =
		r == -ECANCELED && strcmp(own->text, "cancelled") ? find_cause(s) : NULL;
	char who[300];

	*err = m ? m->why : *own;
	if (!m)
		return r;
	set_name_member(who, sizeof(who), m);
	return brumate_wrap(err, -m->why.code, "member %s", who);
}

static void send_order(const struct set *s, struct member *m, const char *word)
{
	const int64_t ms = limit_ms(s);

	json_t *line = json_pack("{s:s,s:O}", "do", word, "parameters", m->parameters);
	if (line && ms)
		json_object_set_new(line, "limit_ms", json_integer(ms));
	send_line(m, line);
}

int set_run(struct set *s, const char *word, const char *const *meetings, struct set_writer *w,
	    int (*commit)(struct set *s, struct set_writer *w, void *arg,
			  struct brumate_error *err),
	    void *arg, bool *ret_decided, struct brumate_error *err)
{
	struct brumate_error own = BRUMATE_ERROR_NONE;
	size_t n = 0;
	int r = 0;

	*ret_decided = false;
	signal(SIGPIPE, SIG_IGN);
	for (size_t i = 0; i < s->n && r == 0; i++)
		r = start_channel(s, &s->members[i], &own);
	for (size_t i = 0; i < s->n && r == 0; i++)
		send_order(s, &s->members[i], word);
	for (size_t i = 0; meetings[i] && r == 0; i++) {
		if (is_left_out(s, meetings[i]))
			continue;
		r = meet(s, meetings[i], &own);
		if (r == 0)
			r = check_connections(s, meetings[i], n++, &own);
		if (r == 0 && !meetings[i + 1] && (r = commit(s, w, arg, &own)) == 0)
			fault_point("set.committed");
		if (r == 0)
			have_all_go_on(s, w->path);
		s->touched = s->touched || r == 0;
	}
	if (r < 0) {
		have_all_give_up(s);
		return explain(s, r, &own, err);
	}
	*ret_decided = true;
	fault_point("set.done");
	while (!all_have_ended(s) && hear_some(s, s->deadline_ns, -1) == 0)
		;
	end_channels(s, CHANNEL_END_MS);
	return 0;
}

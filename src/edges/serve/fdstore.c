// SPDX-License-Identifier: MIT
/* Sockets that the service manager keeps. See fdstore.h. */
#include "edges/serve/fdstore.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/notify.h"
#include "base/packet.h"
#include "base/start.h"
#include "cli/output.h"
#include "client/shim.h"
#include "process/listeners.h"
#include "wire/wire.h"

#define NAME_BEGINS "brumate-job-"

enum { ANSWER_MS = 2000, PAUSE_MS = 30000, STATE_BYTES = 320, NAME_BYTES_MAX = 255 };
_Static_assert((int)LISTENERS_MAX <= (int)PACKET_FDS_MAX, "one datagram has all of a job");

struct kept {
	char id[JOB_ID_BYTES];
	struct listeners sockets;
	struct proc_id shim; /* which has the same */
	uint64_t again_ns;   /* until when it is not asked, as it did not answer; 0: it is */
	bool is_there;	     /* in the look that is under way */
	bool is_stored;	     /* the manager has all of them */
	bool is_spoilt;	     /* what it gave was not all good */
};

struct fdstore {
	struct kept *items; /* owned */
	size_t n;
};

/* ---- the manager ---- */

/* 0, or -errno: it does not know. */
static int tell(const char *what, const char *name, const struct listeners *l)
{
	char state[STATE_BYTES];
	int fds[LISTENERS_MAX];

	for (size_t i = 0; i < l->n; i++)
		fds[i] = l->items[i].fd;
	snprintf(state, sizeof(state), "%s=1\nFDNAME=%s", what, name);
	int r = notify_manager(state, fds, l->n);
	if (r < 0)
		print_note("%s of %s: the service manager is not told: %s", what, name,
			   strerror(-r));
	return r;
}

static void store(struct kept *k)
{
	char name[sizeof(NAME_BEGINS) + JOB_ID_BYTES];

	snprintf(name, sizeof(name), NAME_BEGINS "%s", k->id);
	k->is_stored = tell("FDSTORE", name, &k->sockets) == 0;
}

static int remove_all(struct kept *k)
{
	char name[sizeof(NAME_BEGINS) + JOB_ID_BYTES];

	snprintf(name, sizeof(name), NAME_BEGINS "%s", k->id);
	int r = tell("FDSTOREREMOVE", name, &LISTENERS_EMPTY);
	k->is_stored = false;
	return r;
}

/* False: the manager has not got the message, which is to be sent again. Nothing listens here meanwhile. */
static bool give_up(struct kept *k)
{
	listeners_fini(&k->sockets);
	return remove_all(k) == 0;
}

/* ---- what it gave ---- */

/* NULL without memory. */
static struct kept *find_or_add(struct fdstore *s, const char *id)
{
	for (size_t i = 0; i < s->n; i++)
		if (!strcmp(s->items[i].id, id))
			return &s->items[i];
	struct kept *more = array_room(s->items, s->n, sizeof(*more));
	if (!more)
		return NULL;
	s->items = more;
	struct kept *k = &s->items[s->n++];
	*k = (struct kept){ .shim = PROC_ID_NONE };
	snprintf(k->id, sizeof(k->id), "%s", id);
	return k;
}

/* Takes @fd. */
static void take(struct fdstore *s, const char *name, int fd)
{
	auto_close int given = fd;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	const size_t begins = strlen(NAME_BEGINS);
	const bool ours = !strncmp(name, NAME_BEGINS, begins) && job_id_is_valid(name + begins);
	struct kept *k = ours ? find_or_add(s, name + begins) : NULL;

	if (!ours)
		print_note("a descriptor of the service manager is of no job, and is dropped: %s",
			   name);
	else if (k && listeners_add(&k->sockets, take_fd(&given), &err) < 0)
		print_note("what the service manager has kept for job %s is dropped: %s", k->id,
			   err.text);
	if (!ours && strlen(name) <= NAME_BYTES_MAX)
		tell("FDSTOREREMOVE", name, &LISTENERS_EMPTY);
	if (!k)
		return;
	/* One that is bad has all of its name removed: what is good is stored once more. */
	if (err.code)
		remove_all(k);
	k->is_spoilt = k->is_spoilt || err.code;
	k->is_stored = !k->is_spoilt;
}

struct fdstore *fdstore_new(void)
{
	const char *given = getenv("LISTEN_FDNAMES");
	auto_free char *names = strdup(given ? given : "");
	char *rest = names;
	const int n = start_take_sockets();
	struct fdstore *s = notify_is_wanted() && names ? calloc(1, sizeof(*s)) : NULL;

	for (int i = 0; i < n; i++) {
		const char *name = rest ? strsep(&rest, ":") : "";

		if (s)
			take(s, name, START_SOCKETS + i);
		else
			close(START_SOCKETS + i);
	}
	return s;
}

void fdstore_free(struct fdstore *s)
{
	for (size_t i = 0; s && i < s->n; i++)
		listeners_fini(&s->items[i].sockets);
	if (s)
		free(s->items);
	free(s);
}

/* ---- the shims ---- */

/* Gives the shim what is kept here, and gets what it holds. 0, or -errno: try again. */
static int exchange(const struct kept *k, const struct job *j, struct listeners *ret,
		    struct proc_id *ret_shim, struct brumate_error *err)
{
	auto_json json_t *call = json_pack("{s:s}", "method", "io.brumate.job.Hold");
	auto_(wire_message_fini) struct wire_message m = WIRE_MESSAGE_EMPTY;
	const uint64_t until_ns = deadline_in_ms(ANSWER_MS);
	auto_(listeners_fini) struct listeners l = LISTENERS_EMPTY;
	int fds[LISTENERS_MAX];
	struct wire w;
	int r = call ? shim_connect(&w, j, err) : brumate_fail(err, ENOMEM, "%m");

	if (r < 0)
		return r;
	for (size_t i = 0; i < k->sockets.n; i++)
		fds[i] = k->sockets.items[i].fd;
	*ret_shim = shim_identify(&w);
	r = wire_send(&w, call, fds, k->sockets.n, until_ns, err);
	if (r == 0)
		r = wire_receive(&w, &m, until_ns, err);
	wire_fini(&w);
	if (r == 0 && json_object_get(m.json, "error"))
		r = brumate_fail(err, EBUSY, "the shim of job %s is busy", j->id);
	for (size_t i = 0; r == 0 && i < m.n_fds; i++)
		r = listeners_add(&l, take_fd(&m.fds[i]), err);
	if (r == 0)
		*ret = take_struct(l, LISTENERS_EMPTY);
	return r;
}

static bool are_same_sockets(const struct listeners *one, const struct listeners *other)
{
	size_t n = 0;

	for (size_t i = 0; i < one->n; i++)
		for (size_t k = 0; k < other->n; k++) {
			struct stat a, b;

			n += fstat(one->items[i].fd, &a) == 0 &&
			     fstat(other->items[k].fd, &b) == 0 && a.st_ino == b.st_ino;
		}
	return one->n == other->n && n == one->n;
}

void fdstore_begin(struct fdstore *s)
{
	for (size_t i = 0; s && i < s->n; i++)
		s->items[i].is_there = false;
}

void fdstore_see(struct fdstore *s, const char *id)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	auto_(listeners_fini) struct listeners held = LISTENERS_EMPTY;
	struct kept *k = s ? find_or_add(s, id) : NULL;

	if (!k)
		return;
	k->is_there = true;
	if ((k->is_stored && !proc_has_ended(k->shim)) || clock_now_ns() < k->again_ns ||
	    job_load(&j, id, NULL) < 0)
		return;
	const uint64_t asked_ns = clock_now_ns();
	if (exchange(k, &j, &held, &k->shim, NULL) < 0) {
		/* One that stands still, not one that is busy, which says so at once. */
		if (clock_now_ns() - asked_ns > NS_PER_S)
			k->again_ns = deadline_in_ms(PAUSE_MS);
		return;
	}
	if (k->sockets.n && !are_same_sockets(&k->sockets, &held)) {
		print_note("what the service manager has kept for job %s are not its ports, "
			   "and is dropped",
			   id);
		give_up(k);
	}
	if (!held.n) /* the shim has yet to listen */
		return;
	if (!k->sockets.n)
		k->sockets = take_struct(held, LISTENERS_EMPTY);
	if (!k->is_stored)
		store(k);
}

void fdstore_end(struct fdstore *s)
{
	size_t left = 0;

	for (size_t i = 0; s && i < s->n; i++)
		if (s->items[i].is_there || !give_up(&s->items[i]))
			s->items[left++] = s->items[i];
	if (s)
		s->n = left;
}

// SPDX-License-Identifier: MIT
/*
 * Moving checkpoints. Export and Import: as streams through an fd of the caller, which may be a slow pipe. Push,
 * Pull, RemoteCheckpoints and RemoteRemove: to and from a place elsewhere (store/source.h); every call has its address and
 * credentials, as a daemon uses none of its own for clients.
 */
#include "service/move.h"
#include "service/access.h"
#include "service/service.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"

/* ---- streams ---- */

enum { PIPE_BYTES = 1 << 20 };

/* The caller's fd, which does not block while we use it. */
struct channel {
	const struct service_call *call;
	int fd;
	int flags; /* to be restored; -1: unchanged */
};

static void channel_fini(struct channel *c)
{
	if (c->flags >= 0)
		fcntl(c->fd, F_SETFL, c->flags);
}
DEFINE_AUTO_FINI(struct channel, channel_fini)

static int channel_init(struct channel *c, const struct service_call *call,
			struct brumate_error *err)
{
	struct stat st;

	if (!call->fd)
		return wire_fail_parameter(err, "fd", "a file descriptor must come with the call");
	c->fd = *call->fd;
	if (fstat(c->fd, &st) < 0)
		return brumate_fail(err, errno, "the stream: %m");
	if (S_ISDIR(st.st_mode))
		return brumate_fail(err, EISDIR, "the stream: %m");
	if (S_ISREG(st.st_mode) || S_ISBLK(st.st_mode))
		return 0; /* never blocks for long */
	if (S_ISFIFO(
		    st.st_mode)) /* its 64 kB would cause far too many switches; fails beyond a quota */
		fcntl(c->fd, F_SETPIPE_SZ, PIPE_BYTES);
	int flags = fcntl(c->fd, F_GETFL);
	if (flags < 0 || fcntl(c->fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return brumate_fail(err, errno, "the stream: %m");
	c->flags = flags;
	return 0;
}

static int await_fd(const struct channel *c, short events)
{
	struct pollfd fds[CANCEL_FDS + 1] = { { .fd = c->fd, .events = events } };

	memcpy(fds + 1, c->call->cancel.fds, sizeof(c->call->cancel.fds));
	while (poll(fds, CANCEL_FDS + 1, -1) < 0)
		if (errno != EINTR)
			return -errno;
	for (int i = 1; i <= CANCEL_FDS; i++)
		if (fds[i].revents)
			return -ECANCELED;
	return 0;
}

static int channel_write(void *arg, const void *buf, size_t len)
{
	const struct channel *c = arg;

	for (const char *p = buf; len;) {
		ssize_t n = write(c->fd, p, len);

		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return -errno;
		if (n > 0) {
			p += n;
			len -= (size_t)n;
			continue;
		}
		int r = await_fd(c, POLLOUT);
		if (r < 0)
			return r;
	}
	return 0;
}

static ssize_t channel_read(void *arg, void *buf, size_t room)
{
	const struct channel *c = arg;

	for (;;) {
		ssize_t n = read(c->fd, buf, room);

		if (n >= 0)
			return n;
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
		int r = await_fd(c, POLLIN);
		if (r < 0)
			return r;
	}
}

int service_export(const struct service_call *call, json_t *parameters, json_t **ret,
		   struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	auto_(channel_fini) struct channel channel = { .call = call, .flags = -1 };
	struct meter meter = meter_of(call, "export", 1);
	auto_free char *dir = NULL;
	const char *word;
	int r = wire_need_string(parameters, "checkpoint", &word, err);

	if (r == 0)
		r = access_store_there(&dir, parameters, err);
	if (r == 0)
		r = access_believed_image(&image, dir, word, parameters, err);
	if (r == 0)
		r = channel_init(&channel, call, err);
	if (r < 0)
		return r;

	meter_step(&meter);
	r = store_export(&image, channel_write, &channel, meter_progress, &meter, err);
	if (r < 0)
		return r;
	return service_answer(ret, err, "{s:s,s:I}", "checkpoint", image.manifest.id, "bytes",
			      (json_int_t)manifest_bytes(&image.manifest));
}

int service_import(const struct service_call *call, json_t *parameters, json_t **ret,
		   struct brumate_error *err)
{
	auto_(channel_fini) struct channel channel = { .call = call, .flags = -1 };
	auto_(authority_fini) struct authority authority = AUTHORITY_EMPTY;
	struct meter meter = meter_of(call, "import", 1);
	char id[MANIFEST_ID_BYTES];
	auto_free char *dir = NULL;
	int r = access_store_to_write(&dir, parameters, err);

	if (r == 0)
		r = access_authority(&authority, parameters, err);
	if (r == 0)
		r = channel_init(&channel, call, err);
	if (r < 0)
		return r;

	meter_step(&meter);
	r = store_import(id, dir, &authority, channel_read, &channel, meter_progress, &meter, err);
	if (r < 0)
		return r;
	return service_answer(ret, err, "{s:s,s:s}", "checkpoint", id, "dir", dir);
}

/* ---- places elsewhere ---- */

int place_get(struct source_place *ret, json_t *parameters, struct brumate_error *err)
{
	struct source_place p;
	int r = wire_need_string(parameters, "url", &p.url, err);

	if (r == 0)
		r = wire_get_object(parameters, "remote", &p.remote, err);
	if (r == 0 && !p.remote)
		r = wire_fail_parameter(err, "remote", "is missing");
	if (r == 0)
		r = source_find_kind(&p.kind, p.url, err);
	if (r == 0)
		*ret = p;
	return r;
}

static json_t *moved_to_json(const char *id, const char *url, const char *dir,
			     const struct source_sums *s, uint64_t start_ns)
{
	return json_pack("{s:s,s:s,s:s*,s:I,s:I,s:I,s:I,s:f}", "checkpoint", id, "url", url, "dir",
			 dir, "files", (json_int_t)s->files, "bytes", (json_int_t)s->bytes,
			 "moved_files", (json_int_t)s->moved_files, "moved_bytes",
			 (json_int_t)s->moved_bytes, "seconds", clock_since_s(start_ns));
}

int service_push(const struct service_call *call, json_t *parameters, json_t **ret,
		 struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	struct meter meter = meter_of(call, "push", 1);
	uint64_t start_ns = clock_now_ns();
	auto_free char *dir = NULL, *url = NULL;
	struct source_sums sums;
	struct source_place p;
	const char *word;
	int r = place_get(&p, parameters, err);
	if (r == 0)
		r = wire_need_string(parameters, "checkpoint", &word, err);
	if (r == 0)
		r = access_store_there(&dir, parameters, err);
	if (r == 0)
		r = access_believed_image(&image, dir, word, parameters, err);
	if (r < 0)
		return r;

	meter_step(&meter);
	r = p.kind->push(&p, &image, &url, &sums, meter_progress, &meter, err);
	if (r < 0)
		return r;
	return service_answer(ret, err, "o",
			      moved_to_json(image.manifest.id, url, NULL, &sums, start_ns));
}

int service_pull(const struct service_call *call, json_t *parameters, json_t **ret,
		 struct brumate_error *err)
{
	auto_(authority_fini) struct authority authority = AUTHORITY_EMPTY;
	struct meter meter = meter_of(call, "pull", 1);
	uint64_t start_ns = clock_now_ns();
	auto_free char *dir = NULL, *url = NULL;
	char id[MANIFEST_ID_BYTES];
	struct source_sums sums;
	struct source_place p;
	int r = place_get(&p, parameters, err);
	if (r == 0)
		r = access_store_to_write(&dir, parameters, err);
	if (r == 0)
		r = access_authority(&authority, parameters, err);
	if (r < 0)
		return r;

	meter_step(&meter);
	r = p.kind->pull(&p, dir, &authority, id, &url, &sums, meter_progress, &meter, err);
	if (r < 0)
		return r;
	return service_answer(ret, err, "o", moved_to_json(id, url, dir, &sums, start_ns));
}

struct listing {
	json_t *checkpoints;
	bool failed;
};

static void list_checkpoint(void *arg, const char *id, const char *url, const struct manifest *m,
			    const struct brumate_error *why)
{
	struct listing *l = arg;
	json_t *o;

	if (m)
		o = json_pack("{s:s,s:s?,s:s,s:o,s:s,s:I,s:I,s:I,s:b}", "id", id, "path", url,
			      "job", m->job.id, "job_name", wire_string(m->job.name), "created",
			      m->created, "bytes", (json_int_t)manifest_bytes(m), "gpus",
			      (json_int_t)m->n_gpus, "processes", (json_int_t)m->n_processes,
			      "simulated", m->job.simulated);
	else
		o = json_pack("{s:s,s:s?,s:i,s:i,s:i,s:b,s:o}", "id", id, "path", url, "bytes", 0,
			      "gpus", 0, "processes", 0, "simulated", 0, "error",
			      wire_string(why->text));
	if (json_array_append_new(l->checkpoints, o) < 0)
		l->failed = true;
}

int service_remote_checkpoints(const struct service_call *call, json_t *parameters, json_t **ret,
			       struct brumate_error *err)
{
	auto_json json_t *checkpoints = json_array();
	struct meter meter = meter_of(call, "list", 1);
	struct listing l = { .checkpoints = checkpoints };
	struct source_place p;
	int r = place_get(&p, parameters, err);

	if (r < 0)
		return r;
	meter_step(&meter);
	r = p.kind->list(&p, list_checkpoint, &l, meter_progress, &meter, err);
	if (r < 0)
		return r;
	return service_answer(ret, err, "{s:O}", "checkpoints", l.failed ? NULL : checkpoints);
}

int service_remote_remove(const struct service_call *call, json_t *parameters, json_t **ret,
			  struct brumate_error *err)
{
	struct meter meter = meter_of(call, "remove", 1);
	struct source_place p;
	int r = place_get(&p, parameters, err);

	if (r < 0)
		return r;
	meter_step(&meter);
	r = p.kind->remove(&p, meter_progress, &meter, err);
	if (r < 0)
		return r;
	return service_answer(ret, err, "o", json_object());
}

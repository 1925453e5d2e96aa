// SPDX-License-Identifier: MIT
/*
 * Export and Import: checkpoints as streams through an fd of the caller's. The fd may be a pipe whose
 * other end stands still, so it is waited for together with the cancellation of the call.
 */
#include "service/access.h"
#include "service/meter.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIPE_BYTES = 1 << 20 };

/* The caller's fd, which does not block while we use it. */
struct channel {
	const struct service_call *call;
	int fd;
	int flags; /* to be put back; -1: left as it is */
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
		    st.st_mode)) /* its 64 kB would change hands far too often; refused beyond a quota */
		fcntl(c->fd, F_SETPIPE_SZ, PIPE_BYTES);
	int flags = fcntl(c->fd, F_GETFL);
	if (flags < 0 || fcntl(c->fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return brumate_fail(err, errno, "the stream: %m");
	c->flags = flags;
	return 0;
}

static int await(const struct channel *c, short events)
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
		int r = await(c, POLLOUT);
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
		int r = await(c, POLLIN);
		if (r < 0)
			return r;
	}
}

/* A checkpoint holds what root read of the job, more than its user may: memory of programs that are setuid,
 * say. It is not handed to the user. */
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
		r = access_root(call, "export a checkpoint", err);
	if (r == 0)
		r = access_store(&dir, call, parameters, err);
	if (r == 0)
		r = access_image(&image, call, dir, word, err);
	if (r == 0)
		r = channel_init(&channel, call, err);
	if (r < 0)
		return r;

	meter_step(&meter);
	r = store_export(&image, channel_write, &channel, meter_progress, &meter, err);
	if (r < 0)
		return r;
	*ret = json_pack("{s:s,s:I}", "checkpoint", image.manifest.id, "bytes",
			 (json_int_t)manifest_bytes(&image.manifest));
	return *ret ? 0 : brumate_fail(err, ENOMEM, "%m");
}

/* To restore a checkpoint is to become whatever it says, so only root may bring one in. */
int service_import(const struct service_call *call, json_t *parameters, json_t **ret,
		   struct brumate_error *err)
{
	auto_(channel_fini) struct channel channel = { .call = call, .flags = -1 };
	struct meter meter = meter_of(call, "import", 1);
	char id[MANIFEST_ID_BYTES];
	auto_free char *dir = NULL;

	int r = access_root(call, "import a checkpoint", err);
	if (r == 0)
		r = access_store(&dir, call, parameters, err);
	if (r == 0)
		r = channel_init(&channel, call, err);
	if (r < 0)
		return r;

	meter_step(&meter);
	r = store_import(id, dir, channel_read, &channel, meter_progress, &meter, err);
	if (r < 0)
		return r;
	*ret = json_pack("{s:s,s:s}", "checkpoint", id, "dir", dir);
	return *ret ? 0 : brumate_fail(err, ENOMEM, "%m");
}

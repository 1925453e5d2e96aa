// SPDX-License-Identifier: MIT
/*
 * A checkpoint that is used where it is: its files are here for a while, chunks are read out of its packs
 * when they are asked for, straight into memory. Connections outlive those who read by them, so that none is
 * made anew for every region.
 */
#include "remote/object.h"
#include "remote/pull.h"
#include "remote/remote.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "chunks/chunks.h"

/* What one thread reads by. */
struct reader {
	struct remote_image *image;
	struct client client; /* of its own: it is stopped by itself */
	struct connection connection;
	struct reader *next;
};

struct remote_image {
	const struct remote_config *config;
	const struct remote_place *place;
	struct pull pull;
	char **keys; /* of the packs; owned */
	struct pack_source source;
	pthread_mutex_t lock;
	struct reader *idle; /* under lock */
};

static void reader_free(struct reader *r)
{
	connection_fini(&r->connection);
	client_fini(&r->client);
	free(r);
}

static struct reader *take_idle(struct remote_image *i)
{
	pthread_mutex_lock(&i->lock);
	struct reader *r = i->idle;
	if (r)
		i->idle = r->next;
	pthread_mutex_unlock(&i->lock);
	return r;
}

static int reader_open(void *arg, void **ret, struct brumate_error *err)
{
	struct remote_image *i = arg;
	struct reader *reader = take_idle(i);

	if (reader) {
		*ret = reader;
		return 0;
	}
	reader = calloc(1, sizeof(*reader));
	if (!reader)
		return brumate_fail(err, ENOMEM, "%m");
	reader->image = i;
	reader->client.stop_fd = -1;
	int r = client_init(&reader->client, i->config, i->place, err);
	if (r == 0)
		r = connection_init(&reader->connection, &reader->client, err);
	if (r < 0)
		reader_free(reader);
	else
		*ret = reader;
	return r;
}

static void reader_close(void *arg)
{
	struct reader *r = arg;
	struct remote_image *i = r->image;

	if (atomic_load(&r->client.stop)) {
		reader_free(r);
		return;
	}
	pthread_mutex_lock(&i->lock);
	r->next = i->idle;
	i->idle = r;
	pthread_mutex_unlock(&i->lock);
}

static void reader_stop(void *arg)
{
	struct reader *r = arg;

	client_stop(&r->client);
}

static int reader_read(void *arg, uint32_t pack, uint64_t offset, void *buf, size_t len_bytes,
		       struct brumate_error *err)
{
	struct reader *reader = arg;
	const struct manifest_pack *p = &reader->image->pull.found.manifest.memory.packs[pack];
	int r = object_get_bytes(&reader->connection, reader->image->keys[pack], offset, len_bytes,
				 buf, err);

	/* The manifest names it, so that it is missing is damage. */
	if (r == -ENOENT)
		return brumate_fail(err, EBADMSG, "%s: missing, expected %llu bytes", p->path,
				    (unsigned long long)p->len_bytes);
	if (r == -EREMOTEIO || r == -ETIMEDOUT || r == -ECONNREFUSED || r == -EHOSTUNREACH)
		brumate_hint(err, "run it again later; with --pull, what has come is kept then");
	return r;
}

static int make_keys(struct remote_image *i)
{
	const struct manifest *m = &i->pull.found.manifest;

	i->keys = calloc(m->memory.n_packs + 1, sizeof(*i->keys));
	for (size_t k = 0; i->keys && k < m->memory.n_packs; k++) {
		struct place_file f = place_file(m, m->n_files + k);

		i->keys[k] = place_file_key(i->place, m->id, &f);
		if (!i->keys[k])
			return -ENOMEM;
	}
	return i->keys ? 0 : -ENOMEM;
}

int remote_open(struct remote_image **ret, const struct remote_config *config,
		const struct remote_place *place, const char *word, store_progress_fn progress,
		void *arg, struct brumate_error *err)
{
	const struct client_watch watch = { progress, arg, 0 };
	auto_(remote_close) struct remote_image *i = calloc(1, sizeof(*i));

	if (!i)
		return brumate_fail(err, ENOMEM, "%m");
	*i = (struct remote_image){ .config = config, .place = place, .pull = PULL_EMPTY };
	i->pull.files_only = true;
	pthread_mutex_init(&i->lock, NULL);
	int r = client_init(&i->pull.client, config, place, err);
	if (r == 0)
		r = find_one(&i->pull.client, word, &i->pull.found, &watch, err);
	if (r < 0)
		return r;
	if (make_keys(i) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	i->source = (struct pack_source){ .threads = (unsigned)config->connections,
					  .open = reader_open,
					  .read = reader_read,
					  .stop = reader_stop,
					  .close = reader_close,
					  .arg = i };
	*ret = take_ptr(&i);
	return 0;
}

const struct manifest *remote_manifest(const struct remote_image *i)
{
	return &i->pull.found.manifest;
}

int remote_copy_manifest(const struct remote_image *i, struct manifest *ret,
			 struct brumate_error *err)
{
	return manifest_decode(ret, i->pull.found.text, i->pull.found.len, err);
}

int remote_fetch(struct remote_image *i, const char *dir, store_progress_fn progress, void *arg,
		 struct brumate_error *err)
{
	struct client_watch watch = { progress, arg, 0 };
	int r = pull_files(&i->pull, dir, &watch, err);

	if (r < 0)
		return brumate_wrap(err, r, "checkpoint %s", i->pull.found.manifest.id);
	r = fcntl(i->pull.writer.dir_fd, F_DUPFD_CLOEXEC, 0);
	return r < 0 ? brumate_fail(err, errno, "%s: %m", dir) : r;
}

const struct pack_source *remote_source(const struct remote_image *i)
{
	return &i->source;
}

void remote_close(struct remote_image *i)
{
	struct reader *r;

	if (!i)
		return;
	while ((r = take_idle(i)))
		reader_free(r);
	for (size_t k = 0; i->keys && k < i->pull.found.manifest.memory.n_packs; k++)
		free(i->keys[k]);
	free(i->keys);
	pull_fini(&i->pull);
	pthread_mutex_destroy(&i->lock);
	free(i);
}

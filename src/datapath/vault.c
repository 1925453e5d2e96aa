// SPDX-License-Identifier: MIT
/* Memory of a job outside its processes, held here and by the keeper. See vault.h. */
#include "datapath/vault.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/paths.h"

enum { TABLE_BYTES_MAX = 256 << 20 };

static const char table_name[] = "parked.json";

static struct keeper_tag piece_tag(const struct vault_piece *p)
{
	return (struct keeper_tag){ KEEPER_DEVICE, (uint32_t)p->process.pid, p->id };
}

static struct keeper_tag segment_tag(size_t i)
{
	return (struct keeper_tag){ KEEPER_HOST, 0, i };
}

static const struct keeper_tag digests_tag = { KEEPER_DIGESTS, 0, 0 };

static void kept_fini(struct vault_baseline *k)
{
	free(k->pieces);
	host_copy_fini(&k->copy);
	*k = (struct vault_baseline){ 0 };
}

void vault_fini(struct vault *h)
{
	for (size_t i = 0; i < h->n_pieces; i++)
		cleanup_close(&h->pieces[i].fd);
	free(h->pieces);
	host_copy_fini(&h->copy);
	kept_fini(&h->kept);
	keeper_close(&h->keeper);
	*h = VAULT_EMPTY;
}

/* ---- looking ---- */

bool vault_has_device(const struct vault *h)
{
	for (size_t i = 0; i < h->n_pieces; i++)
		if (h->pieces[i].fd < 0)
			return false;
	return true;
}

uint64_t vault_bytes(const struct vault *h)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < h->n_pieces; i++)
		sum += h->pieces[i].len_bytes;
	return sum;
}

size_t vault_find(const struct vault *h, struct proc_id id, size_t *ret_first)
{
	size_t first = 0, n = 0;

	while (first < h->n_pieces && !proc_is_same(h->pieces[first].process, id))
		first++;
	while (first + n < h->n_pieces && proc_is_same(h->pieces[first + n].process, id))
		n++;
	*ret_first = first;
	return n;
}

struct device_piece *vault_device_pieces(const struct vault *h)
{
	struct device_piece *pieces = calloc(h->n_pieces + 1, sizeof(*pieces));

	for (size_t i = 0; pieces && i < h->n_pieces; i++) {
		pieces[i].len_bytes = h->pieces[i].len_bytes;
		memcpy(pieces[i].gpu, h->pieces[i].gpu, sizeof(pieces[i].gpu));
	}
	return pieces;
}

bool vault_is_alone(const struct vault *h)
{
	struct pollfd p = { .fd = h->keeper.fd };

	if (!h->n_pieces)
		return false;
	return h->keeper.fd < 0 || (poll(&p, 1, 0) > 0 && p.revents);
}

/* ---- the table ---- */

int vault_save(const struct vault *h, const struct job *j, struct brumate_error *err)
{
	auto_free char *text = vault_encode(h);
	auto_free char *path = path_format("%s/%s", j->dir, table_name);

	if (!text || !path)
		return brumate_fail(err, ENOMEM, "table of job %s: %m", j->id);
	/* As the record of a living job: worthless after the machine went down, so not synced. */
	int r = file_swap(AT_FDCWD, path, text, strlen(text), 0600);
	return r < 0 ? brumate_fail(err, -r, "%s: %m", path) : 0;
}

static int read_table(struct vault *ret, size_t *ret_segments, const struct job *j,
		      struct brumate_error *err)
{
	auto_free char *path = path_format("%s/%s", j->dir, table_name);
	auto_free char *text = NULL;
	size_t len;

	if (!path)
		return brumate_fail(err, ENOMEM, "%m");
	int r = file_read(AT_FDCWD, path, TABLE_BYTES_MAX, &text, &len);
	if (r < 0)
		return r == -ENOENT ? 1 : brumate_fail(err, -r, "%s: %m", path);
	r = vault_decode(ret, ret_segments, text, len, err);
	return r < 0 ? brumate_wrap(err, r, "%s", path) : 0;
}

/* ---- the keeper ---- */

static void take_kept(void *arg, struct keeper_tag tag, int fd)
{
	struct vault *h = arg;

	if (tag.kind == KEEPER_DIGESTS && !h->copy.digests)
		digest_table_open(&h->copy.digests, fd, h->copy.total_bytes);
	if (tag.kind == KEEPER_HOST && tag.id < h->copy.n_segments &&
	    h->copy.segments[tag.id] < 0) {
		h->copy.segments[tag.id] = fd;
		return;
	}
	for (size_t i = 0; tag.kind == KEEPER_DEVICE && i < h->n_pieces; i++)
		if ((uint32_t)h->pieces[i].process.pid == tag.pid && h->pieces[i].id == tag.id &&
		    h->pieces[i].fd < 0) {
			h->pieces[i].fd = fd;
			return;
		}
	close(fd); /* of an operation that came to nothing */
}

/* A copy of which a part is missing is none. */
static void check_copy(struct vault *h)
{
	bool whole = h->copied;

	for (size_t i = 0; i < h->copy.n_segments; i++)
		whole = whole && h->copy.segments[i] >= 0;
	if (whole)
		return;
	host_copy_fini(&h->copy);
	h->copied = false;
}

static int make_segments(struct vault *h, size_t n)
{
	h->copy.segments = calloc(n + 1, sizeof(int));
	if (!h->copy.segments)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		h->copy.segments[i] = -1;
	h->copy.n_segments = n;
	return 0;
}

/* Pieces of a running job are not held; a copy that is not whole, or has no digests, is of no use. */
static void take_as_kept(struct vault *h)
{
	if (!h->copied || !vault_make_baseline(h, NULL))
		vault_drop_copy(h);
	free(take_ptr(&h->pieces));
	h->n_pieces = 0;
	h->of_running = false;
}

int vault_load(struct vault *h, const struct job *j, struct brumate_error *err)
{
	struct vault loaded = VAULT_EMPTY;
	size_t segments = 0;
	int r = read_table(&loaded, &segments, j, err);

	if (r != 0)
		return r < 0 ? r : 0;
	if (make_segments(&loaded, segments) < 0) {
		vault_fini(&loaded);
		return brumate_fail(err, ENOMEM, "%m");
	}
	if (keeper_open(&loaded.keeper, j, err) == 0)
		keeper_give(&loaded.keeper, take_kept, &loaded, err);
	check_copy(&loaded);
	fault_register_peer("keeper", loaded.keeper.pid);
	if (loaded.of_running)
		take_as_kept(&loaded);
	*h = loaded;
	return 0;
}

static int keep_all(struct vault *h, struct brumate_error *err)
{
	size_t n = 0, room = h->n_pieces + h->copy.n_segments + 1;
	auto_free struct keeper_tag *tags = calloc(room + 1, sizeof(*tags));
	auto_free int *fds = calloc(room + 1, sizeof(*fds));

	if (!tags || !fds)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < h->n_pieces; i++)
		if (h->pieces[i].fd >= 0) {
			tags[n] = piece_tag(&h->pieces[i]);
			fds[n++] = h->pieces[i].fd;
		}
	for (size_t i = 0; i < h->copy.n_segments; i++) {
		tags[n] = segment_tag(i);
		fds[n++] = h->copy.segments[i];
	}
	if (h->copy.digests) {
		tags[n] = digests_tag;
		fds[n++] = h->copy.digests->fd;
	}
	return keeper_hold(&h->keeper, tags, fds, n, err);
}

int vault_guard(struct vault *h, const struct job *j, struct brumate_error *err)
{
	int r = -EPIPE;

	for (int tries = 0; r == -EPIPE && tries < 3; tries++) {
		if (vault_is_alone(h))
			keeper_close(&h->keeper);
		r = h->keeper.fd < 0 ? keeper_open(&h->keeper, j, err) : 0;
		fault_register_peer("keeper", h->keeper.pid);
		if (r == 0)
			r = keep_all(h, err);
	}
	return r;
}

/* ---- letting go ---- */

void vault_drop_pieces(struct vault *h, bool (*fn)(void *arg, const struct vault_piece *p),
		       void *arg)
{
	auto_free struct keeper_tag *tags = calloc(h->n_pieces + 1, sizeof(*tags));
	size_t n = 0;

	for (size_t i = 0; i < h->n_pieces; i++) {
		if (h->pieces[i].fd < 0 || (fn && !fn(arg, &h->pieces[i])))
			continue;
		cleanup_close(&h->pieces[i].fd);
		if (tags)
			tags[n++] = piece_tag(&h->pieces[i]);
	}
	if (n && h->keeper.fd >= 0)
		keeper_drop(&h->keeper, tags, n, NULL);
}

void vault_drop_device(struct vault *h)
{
	vault_drop_pieces(h, NULL, NULL);
}

static void drop_segments(struct vault *h, size_t n)
{
	auto_free struct keeper_tag *tags = calloc(n + 1, sizeof(*tags));

	for (size_t i = 0; tags && i < n; i++)
		tags[i] = segment_tag(i);
	if (!tags || !n || h->keeper.fd < 0)
		return;
	tags[n] = digests_tag;
	keeper_drop(&h->keeper, tags, n + 1, NULL);
}

void vault_release_copy(struct vault *h, struct host_copy *ret)
{
	size_t n = h->copy.n_segments;

	if (ret && n) {
		host_copy_fini(ret);
		*ret = h->copy;
		h->copy = HOST_COPY_EMPTY;
	}
	host_copy_fini(&h->copy);
	h->copied = false;
	drop_segments(h, n);
}

void vault_give_up_baseline(struct vault *h, struct host_copy *base)
{
	size_t n = base->n_segments;

	host_copy_fini(base);
	drop_segments(h, n);
}

void vault_drop_baseline(struct vault *h)
{
	vault_give_up_baseline(h, &h->kept.copy);
	kept_fini(&h->kept);
}

void vault_drop_copy(struct vault *h)
{
	vault_release_copy(h, NULL);
}

void vault_clear(struct vault *h, const struct job *j)
{
	auto_free char *path = path_format("%s/%s", j->dir, table_name);

	if (path)
		unlink(path);
	vault_drop_device(h);
	vault_drop_copy(h);
	vault_drop_baseline(h);
	vault_fini(h);
	fault_register_peer("keeper", 0);
}

void vault_release(struct vault *h, const struct job *j)
{
	struct vault_baseline kept = h->kept;

	h->kept = (struct vault_baseline){ 0 };
	vault_clear(h, j);
	h->kept = kept;
}

// SPDX-License-Identifier: MIT
/* Device memory outside its processes, held here and by the keeper. See vault.h. */
#include "datapath/vault.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/paths.h"
#include "base/schema.h"

enum { TABLE_VERSION = 1, TABLE_BYTES_MAX = 256 << 20, GUARD_TRIES = 3, EMPTY_TRIES = 3 };

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

static void baseline_fini(struct vault_baseline *k)
{
	free(k->pieces);
	host_copy_fini(&k->copy);
	*k = (struct vault_baseline){ 0 };
}

void vault_fini(struct vault *v)
{
	for (size_t i = 0; i < v->n_pieces; i++)
		cleanup_close(&v->pieces[i].fd);
	free(v->pieces);
	host_copy_fini(&v->copy);
	baseline_fini(&v->baseline);
	keeper_close(&v->keeper);
	*v = VAULT_EMPTY;
}

/* ---- looking ---- */

struct vault_piece vault_piece_of(struct proc_id process, const struct agent_piece *piece)
{
	struct vault_piece p = { .process = process,
				 .id = piece->id,
				 .va = piece->va,
				 .len_bytes = piece->len_bytes,
				 .fd = -1 };

	dev_uuid_format(p.gpu, piece->gpu);
	return p;
}

bool vault_has_device(const struct vault *v)
{
	for (size_t i = 0; i < v->n_pieces; i++)
		if (v->pieces[i].fd < 0)
			return false;
	return true;
}

bool vault_is_lost(const struct vault *v)
{
	return v->n_pieces && !v->copied && !vault_has_device(v);
}

uint64_t vault_bytes(const struct vault *v)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < v->n_pieces; i++)
		sum += v->pieces[i].len_bytes;
	return sum;
}

uint64_t vault_copy_data_bytes(const struct vault *v)
{
	const struct host_copy *c = &v->copy;
	const size_t n = (size_t)(c->total_bytes / CHUNK_BYTES_MAX);
	struct digest zero;
	size_t zeros = 0;

	if (!c->digests || !digest_table_is_whole(c->digests) || chunk_digest_zeros(&zero) < 0)
		return c->total_bytes;
	for (size_t i = 0; i < n; i++)
		zeros += !memcmp(&digest_table_digests(c->digests)[i], &zero, sizeof(zero));
	return (n - zeros) * (uint64_t)CHUNK_BYTES_MAX;
}

uint64_t vault_device_bytes(const struct vault *v, const char *gpu)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < v->n_pieces; i++)
		if (!strcmp(v->pieces[i].gpu, gpu) && v->pieces[i].fd >= 0)
			sum += v->pieces[i].len_bytes;
	return sum;
}

size_t vault_find(const struct vault *v, struct proc_id id, size_t *ret_first)
{
	size_t first = 0, n = 0;

	while (first < v->n_pieces && !proc_is_same(v->pieces[first].process, id))
		first++;
	while (first + n < v->n_pieces && proc_is_same(v->pieces[first + n].process, id))
		n++;
	*ret_first = first;
	return n;
}

struct device_piece *vault_device_pieces(const struct vault *v)
{
	struct device_piece *pieces = calloc(v->n_pieces + 1, sizeof(*pieces));

	for (size_t i = 0; pieces && i < v->n_pieces; i++) {
		pieces[i].len_bytes = v->pieces[i].len_bytes;
		memcpy(pieces[i].gpu, v->pieces[i].gpu, sizeof(pieces[i].gpu));
	}
	return pieces;
}

bool vault_is_alone(const struct vault *v)
{
	struct pollfd p = { .fd = v->keeper.fd };

	return v->keeper.fd < 0 || (poll(&p, 1, 0) > 0 && p.revents);
}

/* ---- the table ---- */

struct vault_table {
	int version;
	const struct vault_piece *pieces;
	size_t n_pieces;
	struct vault_table_copy {
		uint64_t n_segments, segment_bytes, total_bytes;
	} copy;
	bool kept, spare;
};

static const struct schema_field piece_fields[] = {
	NUMBER(struct vault_piece, "pid", process.pid, FIELD_INT, 1, 1 << 22),
	NUMBER(struct vault_piece, "start", process.start_ticks, FIELD_U64, 0, INT64_MAX),
	NUMBER(struct vault_piece, "id", id, FIELD_U64, 1, INT64_MAX),
	NUMBER(struct vault_piece, "va", va, FIELD_U64, 0, INT64_MAX),
	NUMBER(struct vault_piece, "len", len_bytes, FIELD_U64, 1, 1ll << 48),
	LINE(struct vault_piece, "gpu", gpu),
	NUMBER(struct vault_piece, "token", token, FIELD_U64, INT64_MIN, INT64_MAX,
	       .lenient = true),
};

static const struct schema_field copy_fields[] = {
	NUMBER(struct vault_table_copy, "segments", n_segments, FIELD_U64, 1, VAULT_SEGMENTS_MAX),
	NUMBER(struct vault_table_copy, "segment", segment_bytes, FIELD_U64, 1, 1ll << 50),
	NUMBER(struct vault_table_copy, "total", total_bytes, FIELD_U64, 0, 1ll << 50),
};

static const struct schema_field table_fields[] = {
	NUMBER(struct vault_table, "version", version, FIELD_INT, TABLE_VERSION, TABLE_VERSION),
	LIST(struct vault_table, "pieces", pieces, n_pieces, piece_fields, VAULT_PIECES_MAX,
	     .lenient = true),
	PART(struct vault_table, "copy", copy, copy_fields, .nullable = true),
	FIELD(struct vault_table, "kept", kept, FIELD_BOOL, .lenient = true),
	FIELD(struct vault_table, "spare", spare, FIELD_BOOL, .lenient = true),
};

char *vault_encode(const struct vault *v)
{
	const bool of_baseline = !v->n_pieces && v->baseline.n_pieces;
	const struct host_copy *copy = of_baseline ? &v->baseline.copy : &v->copy;
	struct vault_table t = {
		.version = TABLE_VERSION,
		.pieces = of_baseline ? v->baseline.pieces : v->pieces,
		.n_pieces = of_baseline ? v->baseline.n_pieces : v->n_pieces,
		.kept = of_baseline || v->of_running,
		.spare = (of_baseline && v->baseline.spare) || v->of_spare,
	};
	auto_json json_t *o = json_object();

	if (of_baseline || v->copied)
		t.copy = (struct vault_table_copy){ copy->n_segments, copy->segment_bytes,
						    copy->total_bytes };
	return o && schema_encode(o, table_fields, N_OF(table_fields), &t, 0) == 0
		       ? json_dumps(o, JSON_COMPACT)
		       : NULL;
}

/* The sizes must match the pieces: they are used as offsets into the fds. */
static int check_sizes(const struct vault *v, const struct vault_table_copy *copy,
		       struct brumate_error *err)
{
	auto_free struct device_piece *pieces = vault_device_pieces(v);

	if (!pieces)
		return brumate_fail(err, ENOMEM, "%m");
	uint64_t want = host_copy_offset(pieces, v->n_pieces);
	if (copy->total_bytes != want || copy->segment_bytes * copy->n_segments < want)
		return brumate_fail(err, EBADMSG, "copy: %llu bytes in %llu segments of %llu",
				    (unsigned long long)copy->total_bytes,
				    (unsigned long long)copy->n_segments,
				    (unsigned long long)copy->segment_bytes);
	return 0;
}

static int decode_table(struct vault *v, size_t *ret_segments, json_t *o, struct brumate_error *err)
{
	struct vault_table t = { 0 };
	int r = schema_decode(table_fields, N_OF(table_fields), &t, o, 0, err);

	v->pieces = (struct vault_piece *)t.pieces;
	v->n_pieces = t.n_pieces;
	for (size_t i = 0; i < v->n_pieces; i++)
		v->pieces[i].fd = -1;
	v->of_running = t.kept;
	v->of_spare = t.spare;
	v->copied = t.copy.n_segments;
	v->copy.total_bytes = t.copy.total_bytes;
	v->copy.segment_bytes = t.copy.segment_bytes;
	*ret_segments = t.copy.n_segments;
	return r < 0 || !v->copied ? r : check_sizes(v, &t.copy, err);
}

int vault_decode(struct vault *ret, size_t *ret_segments, const char *text, size_t len_bytes,
		 struct brumate_error *err)
{
	auto_json json_t *o = NULL;
	struct vault v = VAULT_EMPTY;
	size_t segments = 0;
	int r = wire_decode(&o, text, len_bytes, err);

	if (r == 0)
		r = decode_table(&v, &segments, o, err);
	if (r < 0) {
		free(v.pieces);
		if (err && r != -ENOMEM)
			err->code = EBADMSG;
		return r == -ENOMEM ? r : -EBADMSG;
	}
	*ret = v;
	*ret_segments = segments;
	return 0;
}

int vault_save(const struct vault *v, const struct target *target, struct brumate_error *err)
{
	auto_free char *text = vault_encode(v);
	auto_free char *path = path_format("%s/%s", target->dir, table_name);

	if (!text || !path)
		return brumate_fail(err, ENOMEM, "table of job %s: %m", target->id);
	/* Not synced: like the record of a running job, it is worthless after a crash of the machine. */
	int r = file_swap(AT_FDCWD, path, text, strlen(text), 0600);
	return r < 0 ? brumate_fail(err, -r, "%s: %m", path) : 0;
}

static int read_table(struct vault *ret, size_t *ret_segments, const struct target *target,
		      struct brumate_error *err)
{
	auto_free char *path = path_format("%s/%s", target->dir, table_name);
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

/* What the keeper returned, and which of it the table does not name. */
struct given {
	struct vault *vault;
	struct keeper_tag *unnamed;
	size_t n_unnamed;
};

/* Finds the field for the fd of @tag; NULL: the table does not name it. */
static int *find_place(struct vault *v, struct keeper_tag tag)
{
	if (tag.kind == KEEPER_HOST && tag.id < v->copy.n_segments)
		return &v->copy.segments[tag.id];
	for (size_t i = 0; tag.kind == KEEPER_DEVICE && i < v->n_pieces; i++)
		if ((uint32_t)v->pieces[i].process.pid == tag.pid && v->pieces[i].id == tag.id)
			return &v->pieces[i].fd;
	return NULL;
}

static void take_fd_back(void *arg, struct keeper_tag tag, int fd)
{
	struct given *g = arg;
	struct vault *v = g->vault;
	int *place = find_place(v, tag);

	if (place && *place < 0) {
		*place = fd;
		return;
	}
	if (tag.kind == KEEPER_DIGESTS && v->copy.n_segments) {
		if (!v->copy.digests)
			digest_table_open(&v->copy.digests, fd, v->copy.total_bytes);
	} else if (!place) {
		(void)array_add(g->unnamed, g->n_unnamed, tag);
	}
	close(fd);
}

/* Takes all fds from the keeper. What the table does not name is left from an operation that failed: the keeper drops
 * it, as nothing else would while the job lives. A keeper that has died has dropped it, and what it gave stays held. */
static int take_all_back(struct vault *v, struct brumate_error *err)
{
	struct given g = { .vault = v };
	int r = keeper_give(&v->keeper, take_fd_back, &g, err);

	if (r == 0 && g.n_unnamed) {
		fault_point("vault.given");
		r = keeper_drop(&v->keeper, g.unnamed, g.n_unnamed, err);
		r = r == -EPIPE ? 0 : r;
	}
	free(g.unnamed);
	return r;
}

/* Makes the keeper drop everything, as nothing would do so later. */
static void empty_keeper(const struct target *target)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int r = -EPIPE;

	for (int tries = 0; r < 0 && r != -ENOENT && tries < EMPTY_TRIES; tries++) {
		struct vault nothing = VAULT_EMPTY;

		r = keeper_connect(&nothing.keeper, target, &err);
		nothing.keeper.peer.may_end = true; /* with what it holds */
		if (r == 0)
			r = take_all_back(&nothing, &err);
		if (r == 0)
			keeper_dismiss(&nothing.keeper);
		vault_fini(&nothing);
	}
	if (r < 0 && r != -ENOENT)
		log_warn("the keeper still holds memory that is not needed: job=%s reason=\"%s\"",
			 target->id, err.text);
}

/* Drops a host copy that lacks a segment. */
static void check_copy(struct vault *v)
{
	bool whole = v->copied;

	for (size_t i = 0; i < v->copy.n_segments; i++)
		whole = whole && v->copy.segments[i] >= 0;
	if (!whole)
		vault_drop_copy(v);
}

static int make_segments(struct vault *v, size_t n)
{
	v->copy.segments = calloc(n + 1, sizeof(int));
	if (!v->copy.segments)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		v->copy.segments[i] = -1;
	v->copy.n_segments = n;
	return 0;
}

/* For a running program the vault has no pieces. The copy is useless unless it is complete and has digests. */
static void take_as_baseline(struct vault *v)
{
	if (!v->copied || !vault_make_baseline(v, NULL))
		vault_drop_copy(v);
	v->baseline.spare = v->of_spare;
	free(take_ptr(&v->pieces));
	v->n_pieces = 0;
	v->of_running = v->of_spare = false;
}

int vault_load(struct vault *v, const struct target *target, struct brumate_error *err)
{
	struct vault loaded = VAULT_EMPTY;
	size_t segments = 0;
	int r = read_table(&loaded, &segments, target, err);

	if (r < 0)
		return r;
	if (r > 0) {
		empty_keeper(target);
		return 0;
	}
	if (make_segments(&loaded, segments) < 0) {
		vault_fini(&loaded);
		return brumate_fail(err, ENOMEM, "%m");
	}
	/* If the root has ended, nothing that is held is needed. In all other cases nothing may be dropped until the
	 * keeper's fds are known. */
	r = keeper_open(&loaded.keeper, target, false, err);
	fault_register_peer("keeper", loaded.keeper.pid);
	if (r == 0)
		r = take_all_back(&loaded, err);
	if (r < 0 && r != -ESRCH) {
		vault_fini(&loaded);
		return r;
	}
	loaded.keeper.peer.may_end = true;
	check_copy(&loaded);
	if (loaded.of_running)
		take_as_baseline(&loaded);
	*v = loaded;
	return 0;
}

static int give_to_keeper(struct vault *v, struct brumate_error *err)
{
	size_t n = 0, room = v->n_pieces + v->copy.n_segments + 1;
	auto_free struct keeper_tag *tags = calloc(room + 1, sizeof(*tags));
	auto_free int *fds = calloc(room + 1, sizeof(*fds));

	if (!tags || !fds)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < v->n_pieces; i++)
		if (v->pieces[i].fd >= 0) {
			tags[n] = piece_tag(&v->pieces[i]);
			fds[n++] = v->pieces[i].fd;
		}
	for (size_t i = 0; i < v->copy.n_segments; i++) {
		tags[n] = segment_tag(i);
		fds[n++] = v->copy.segments[i];
	}
	if (v->copy.digests) {
		tags[n] = digests_tag;
		fds[n++] = v->copy.digests->fd;
	}
	return keeper_hold(&v->keeper, tags, fds, n, err);
}

int vault_guard(struct vault *v, const struct target *target, struct brumate_error *err)
{
	int r = -EPIPE;

	for (int tries = 0; r == -EPIPE && tries < GUARD_TRIES; tries++) {
		if (vault_is_alone(v))
			keeper_close(&v->keeper);
		r = v->keeper.fd < 0 ? keeper_open(&v->keeper, target, true, err) : 0;
		fault_register_peer("keeper", v->keeper.pid);
		if (r == 0)
			r = give_to_keeper(v, err);
	}
	return r;
}

/* ---- letting go ---- */

/* A batch of tags for the keeper to drop. It has a fixed size: an allocation could fail, and the keeper would then
 * hold the fds of nobody. */
struct dropping {
	struct keeper *keeper;
	struct keeper_tag tags[KEEPER_FDS_MAX];
	size_t n;
};

static void end_dropping(struct dropping *d)
{
	if (d->n && d->keeper->fd >= 0)
		keeper_drop(d->keeper, d->tags, d->n, NULL);
	d->n = 0;
}

static void drop_tag(struct dropping *d, struct keeper_tag tag)
{
	d->tags[d->n++] = tag;
	if (d->n == KEEPER_FDS_MAX)
		end_dropping(d);
}

void vault_drop_pieces(struct vault *v, bool (*fn)(void *arg, const struct vault_piece *p),
		       void *arg)
{
	struct dropping d = { .keeper = &v->keeper };

	for (size_t i = 0; i < v->n_pieces; i++) {
		if (v->pieces[i].fd < 0 || (fn && !fn(arg, &v->pieces[i])))
			continue;
		cleanup_close(&v->pieces[i].fd);
		drop_tag(&d, piece_tag(&v->pieces[i]));
	}
	end_dropping(&d);
}

void vault_drop_device(struct vault *v)
{
	vault_drop_pieces(v, NULL, NULL);
}

static void drop_segments(struct vault *v, size_t n)
{
	struct dropping d = { .keeper = &v->keeper };

	for (size_t i = 0; i < n; i++)
		drop_tag(&d, segment_tag(i));
	if (n)
		drop_tag(&d, digests_tag);
	end_dropping(&d);
}

void vault_release_copy(struct vault *v, struct host_copy *ret)
{
	size_t n = v->copy.n_segments;

	if (ret && n) {
		host_copy_fini(ret);
		*ret = v->copy;
		v->copy = HOST_COPY_EMPTY;
	}
	host_copy_fini(&v->copy);
	v->copied = false;
	drop_segments(v, n);
}

void vault_give_up_baseline(struct vault *v, struct host_copy *base)
{
	size_t n = base->n_segments;

	host_copy_fini(base);
	drop_segments(v, n);
}

void vault_drop_baseline(struct vault *v)
{
	vault_give_up_baseline(v, &v->baseline.copy);
	baseline_fini(&v->baseline);
}

void vault_drop_copy(struct vault *v)
{
	vault_release_copy(v, NULL);
}

static void empty_vault(struct vault *v, const struct target *target)
{
	auto_free char *path = path_format("%s/%s", target->dir, table_name);

	if (path)
		unlink(path);
	vault_drop_device(v);
	vault_drop_copy(v);
	vault_drop_baseline(v);
	if (v->keeper.fd <
	    0) /* a call failed, so the keeper may still hold what was to be dropped */
		empty_keeper(target);
}

void vault_clear(struct vault *v, const struct target *target)
{
	empty_vault(v, target);
	keeper_dismiss(&v->keeper);
	vault_fini(v);
	fault_register_peer("keeper", 0);
}

void vault_release(struct vault *v, const struct target *target)
{
	struct vault_baseline baseline = v->baseline;
	struct keeper keeper;

	v->baseline = (struct vault_baseline){ 0 };
	empty_vault(v, target);
	keeper = v->keeper;
	v->keeper = KEEPER_EMPTY;
	vault_fini(v);
	v->keeper = keeper;
	v->baseline = baseline;
}

/* ---- the baseline ---- */

static struct vault_piece *copy_pieces(const struct vault *v)
{
	struct vault_piece *pieces = calloc(v->n_pieces + 1, sizeof(*pieces));

	for (size_t i = 0; pieces && i < v->n_pieces; i++) {
		pieces[i] = v->pieces[i];
		pieces[i].fd = -1;
	}
	return pieces;
}

/* Makes @ret a second host copy of the same memory, with fds of its own and without digests. */
static int copy_segments(struct host_copy *ret, const struct host_copy *from)
{
	struct host_copy copy = { from->total_bytes, from->segment_bytes, NULL, 0, NULL };

	copy.segments = calloc(from->n_segments + 1, sizeof(int));
	if (!copy.segments)
		return -ENOMEM;
	for (; copy.n_segments < from->n_segments; copy.n_segments++) {
		int fd = fcntl(from->segments[copy.n_segments], F_DUPFD_CLOEXEC, 0);

		if (fd < 0) {
			int r = -errno;

			host_copy_fini(&copy);
			return r;
		}
		copy.segments[copy.n_segments] = fd;
	}
	host_copy_fini(ret);
	*ret = copy;
	return 0;
}

bool vault_make_baseline(struct vault *v, struct host_copy *ret)
{
	if (!v->n_pieces || !v->copy.n_segments || !v->copy.digests ||
	    !digest_table_is_whole(v->copy.digests) || host_copy_is_spilled(&v->copy))
		return false;
	struct vault_piece *pieces = copy_pieces(v);
	if (!pieces || (ret && copy_segments(ret, &v->copy) < 0)) {
		free(pieces);
		return false;
	}
	v->baseline = (struct vault_baseline){ pieces, v->n_pieces, v->copy, false };
	v->copy = HOST_COPY_EMPTY;
	v->copied = false;
	return true;
}

static bool is_same(const struct vault_piece *a, const struct vault_piece *b)
{
	return proc_is_same(a->process, b->process) && a->id == b->id &&
	       a->len_bytes == b->len_bytes;
}

/* The order matters, too, as a copy is one run of bytes. Ids are never reused. */
bool vault_baseline_fits(const struct vault *v, const struct vault_piece *pieces, size_t n)
{
	bool same = v->baseline.n_pieces == n && n;

	for (size_t i = 0; same && i < n; i++)
		same = is_same(&pieces[i], &v->baseline.pieces[i]);
	return same && digest_table_is_whole(v->baseline.copy.digests);
}

bool vault_take_baseline(struct vault *v, struct host_copy *ret)
{
	if (!v->baseline.n_pieces)
		return false;
	if (!vault_baseline_fits(v, v->pieces, v->n_pieces)) {
		vault_drop_baseline(v);
		return false;
	}
	*ret = v->baseline.copy;
	v->baseline.copy = HOST_COPY_EMPTY;
	free(v->baseline.pieces);
	v->baseline = (struct vault_baseline){ 0 };
	return true;
}

uint64_t vault_baseline_bytes(const struct vault *v)
{
	return v->baseline.n_pieces ? v->baseline.copy.total_bytes : 0;
}

uint64_t vault_spare_bytes(const struct vault *v)
{
	return v->baseline.spare ? host_copy_memory_bytes(&v->baseline.copy) : 0;
}

bool vault_drop_spare(struct vault *v, const struct target *target)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (!v->baseline.spare)
		return false;
	if (!v->n_pieces) {
		vault_clear(v, target);
		return true;
	}
	vault_drop_baseline(v);
	if (vault_save(v, target, &err) < 0)
		log_warn("the table of memory that is held is old: job=%s reason=\"%s\"",
			 target->id, err.text);
	return true;
}

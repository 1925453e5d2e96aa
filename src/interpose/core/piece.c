// SPDX-License-Identifier: MIT
/*
 * Pieces: physical allocations and where they are mapped, kept in step with the driver. A piece lives
 * while it is mapped, the program has a handle of it or a call under way uses it; then it is released.
 * The second half takes pieces away, brings them back from descriptors, and makes them the process's own
 * again. Only the agent's thread comes there, with the gate closed: nobody else reads or writes the tables.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "interpose/core/backend.h"
#include "interpose/core/gate.h"
#include "interpose/core/memory.h"
#include "interpose/core/room.h"

static const struct origin ours = { .pid = 0 }, unknown = { .pid = -1 };

static struct piece *adopt_handle(uint64_t handle, size_t bytes, const struct memory_kind *kind,
				  const struct origin *origin)
{
	struct piece *piece = calloc(1, sizeof(*piece));

	if (!piece)
		return NULL;
	piece->handle = handle;
	piece->bytes = bytes;
	piece->kind = *kind;
	piece->origin = *origin;
	piece->pins = 1;
	memory_lock();
	piece->node = (struct node){ .start = ++memory.last_id, .bytes = 1 };
	tree_add(&memory.pieces, &piece->node);
	memory.piece_bytes += bytes;
	memory_unlock();
	return piece;
}

/* On a GPU that is shared so much stays free for who copies others out of it: the broker's own context there. */
enum { SPARE_PART = 32, SPARE_BYTES_MAX = 512 << 20 };

/* Whether what is there now leaves that. */
static bool leaves_spare(void)
{
	uint64_t free_bytes, total_bytes;

	if (backend_free(&free_bytes, &total_bytes))
		return true;
	const uint64_t part = total_bytes / SPARE_PART;
	return free_bytes >= (part < SPARE_BYTES_MAX ? part : SPARE_BYTES_MAX);
}

static int create_beside_others(uint64_t *ret, size_t bytes, const struct memory_kind *kind)
{
	int r = backend_create(ret, bytes, kind);

	if (r || leaves_spare())
		return r;
	backend_release(*ret);
	return -ENOMEM;
}

/* A thread that waits is not in the driver: this job may be suspended meanwhile, and be back when there is room. */
static bool wait_for_neighbours(void)
{
	gate_leave();
	const bool again = room_wait_for_neighbours();
	gate_enter();
	return again;
}

/* Where jobs share the GPU, others leave before it is full. */
static int create_shared(uint64_t *ret, size_t bytes, const struct memory_kind *kind)
{
	int r;

	do
		r = create_beside_others(ret, bytes, kind);
	while (r == -ENOMEM && wait_for_neighbours());
	return r;
}

static int create(uint64_t *ret, size_t bytes, const struct memory_kind *kind)
{
	unsigned int seen = snapshot_look();
	bool asked = false;
	int r = room_is_shared() ? create_shared(ret, bytes, kind) : -ENOMEM;

	if (r == -ENOMEM)
		r = backend_create(ret, bytes, kind);
	if (r == -ENOMEM && addresses_drop_memory())
		r = backend_create(ret, bytes, kind);
	while (r == -ENOMEM && (snapshot_wait(&seen) || room_ask(&asked)))
		r = backend_create(ret, bytes, kind);
	return r;
}

int piece_new(struct piece **ret, size_t bytes, const struct memory_kind *kind)
{
	uint64_t handle;
	int r = create(&handle, bytes, kind);

	if (r)
		return r;
	*ret = adopt_handle(handle, bytes, kind, &ours);
	if (*ret)
		return 0;
	backend_release(handle);
	return -ENOMEM;
}

int piece_import(struct piece **ret, int fd, size_t bytes, const struct origin *origin)
{
	struct memory_kind kind;
	struct piece *piece;
	uint64_t handle;
	int r;

	r = backend_import(&handle, fd);
	if (r)
		return r;
	r = backend_kind_of(handle, &kind);
	piece = r ? NULL : adopt_handle(handle, bytes, &kind, origin ? origin : &unknown);
	if (!piece) {
		backend_release(handle);
		return r ? r : -ENOMEM;
	}
	*ret = piece;
	return 0;
}

static void drop_descriptor(struct piece *piece)
{
	if (piece->fd)
		close(piece->fd - 1);
	piece->fd = 0;
}

/* With the lock, which it releases. Releases the piece if nothing holds it. */
static void unlock_and_put(struct piece *piece)
{
	bool last = !piece->refs && !piece->pins && !piece->mappings;

	if (last) {
		tree_remove(&memory.pieces, &piece->node);
		memory.piece_bytes -= piece->bytes;
		if (piece->away)
			memory.away--;
	}
	memory_unlock();
	if (!last)
		return;
	if (piece->handle)
		backend_release(piece->handle);
	drop_descriptor(piece);
	free(piece);
}

void piece_unref(struct piece *piece)
{
	memory_lock();
	piece->refs--;
	unlock_and_put(piece);
}

void piece_unpin(struct piece *piece)
{
	memory_lock();
	piece->pins--;
	unlock_and_put(piece);
}

struct piece *piece_at(uint64_t va)
{
	struct mapping *mapping = tree_find(&memory.mappings, va);

	return mapping ? mapping->piece : NULL;
}

int piece_map(struct piece *piece, uint64_t va, size_t bytes, size_t offset)
{
	struct mapping *mapping = calloc(1, sizeof(*mapping));
	int r;

	if (!mapping)
		return -ENOMEM;
	r = backend_map(va, bytes, offset, piece->handle);
	if (r) {
		free(mapping);
		return r;
	}
	mapping->node = (struct node){ .start = va, .bytes = bytes };
	mapping->piece = piece;
	mapping->offset = offset;
	mapping->mapped = true;
	memory_lock();
	tree_add(&memory.mappings, &mapping->node);
	mapping->next = piece->mappings;
	piece->mappings = mapping;
	if (piece->bytes < offset + bytes) {
		memory.piece_bytes += offset + bytes - piece->bytes;
		piece->bytes = offset + bytes;
	}
	memory_unlock();
	return 0;
}

/* With the lock: takes the mapping out of the tables; its piece stays, pinned. */
static struct piece *drop_mapping(struct mapping *mapping)
{
	struct piece *piece = mapping->piece;
	struct mapping **at = &piece->mappings;

	while (*at != mapping)
		at = &(*at)->next;
	*at = mapping->next;
	tree_remove(&memory.mappings, &mapping->node);
	free(mapping);
	piece->pins++;
	return piece;
}

int range_unmap(uint64_t va, size_t bytes)
{
	int r = backend_unmap(va, bytes);
	struct mapping *mapping;

	if (r)
		return r;
	for (uint64_t end = va + bytes; va < end;) {
		memory_lock();
		mapping = tree_ceil(&memory.mappings, va);
		if (!mapping || mapping->node.start >= end) {
			memory_unlock();
			break;
		}
		va = mapping->node.start + mapping->node.bytes;

		struct piece *piece = drop_mapping(mapping);

		memory_unlock();
		piece_unpin(piece);
	}
	return 0;
}

static void remember_access(struct mapping *mapping, const struct access *access, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (access[i].device >= 0 && access[i].device < DEVICES_MAX)
			mapping->access[access[i].device] = (uint8_t)access[i].flags;
}

void range_note_access(uint64_t va, size_t bytes, const struct access *access, size_t n)
{
	struct mapping *mapping;

	memory_lock();
	mapping = tree_floor(&memory.mappings, va);
	if (!mapping || va - mapping->node.start >= mapping->node.bytes)
		mapping = tree_ceil(&memory.mappings, va);
	while (mapping && mapping->node.start < va + bytes) {
		remember_access(mapping, access, n);
		if (mapping->node.start + mapping->node.bytes >= va + bytes)
			break;
		mapping = tree_next(&memory.mappings, mapping);
	}
	memory_unlock();
}

int range_access(uint64_t va, size_t bytes, const struct access *access, size_t n)
{
	int r = backend_set_access(va, bytes, access, n);

	if (!r)
		range_note_access(va, bytes, access, n);
	return r;
}

/* ---- taking away and bringing back ---- */

static void set_away(struct piece *piece, bool away)
{
	memory_lock();
	if (piece->away != away)
		memory.away += away ? 1 : -1u;
	piece->away = away;
	memory_unlock();
}

static int unmap_piece(struct piece *piece)
{
	for (struct mapping *mapping = piece->mappings; mapping; mapping = mapping->next) {
		int r = 0;

		if (mapping->mapped)
			r = backend_unmap(mapping->node.start, mapping->node.bytes);
		if (r)
			return r;
		mapping->mapped = false;
	}
	return 0;
}

enum { GRANTS_MAX = 64 };

/* Mappings that their devices are to reach again: those side by side that are reached alike take one call. */
struct grants {
	const struct mapping *all[GRANTS_MAX];
	size_t n;
	int error; /* the first */
};

static int compare_mappings(const void *a, const void *b)
{
	uint64_t one = (*(const struct mapping *const *)a)->node.start;
	uint64_t other = (*(const struct mapping *const *)b)->node.start;

	return one < other ? -1 : one > other;
}

static int grant_from(const struct mapping *first, uint64_t bytes)
{
	struct access desc[DEVICES_MAX];
	size_t n = 0;

	for (int i = 0; i < DEVICES_MAX; i++)
		if (first->access[i])
			desc[n++] = (struct access){ i, first->access[i] };
	return n ? backend_set_access(first->node.start, bytes, desc, n) : 0;
}

/* Grants what lies side by side from the @i-th mapping on, and returns where it ends. A driver that wants a call for each
 * gets that. */
static size_t grant_next(struct grants *g, size_t i)
{
	const struct mapping *first = g->all[i];
	uint64_t end = first->node.start + first->node.bytes;
	size_t n = 1;

	for (; i + n < g->n && g->all[i + n]->node.start == end; n++) {
		if (memcmp(g->all[i + n]->access, first->access, sizeof(first->access)))
			break;
		end += g->all[i + n]->node.bytes;
	}
	int r = grant_from(first, end - first->node.start);
	if (r && n > 1) {
		r = 0;
		for (size_t k = i; k < i + n && !r; k++)
			r = grant_from(g->all[k], g->all[k]->node.bytes);
	}
	g->error = r;
	return i + n;
}

static int grants_end(struct grants *g)
{
	size_t n = 0;

	for (size_t i = 0; i < g->n; i++)
		if (g->all[i]->mapped)
			g->all[n++] = g->all[i];
	g->n = n;
	qsort(g->all, g->n, sizeof(*g->all), compare_mappings);
	for (size_t i = 0; i < g->n && !g->error;)
		i = grant_next(g, i);
	g->n = 0;
	return g->error;
}

static void grants_add(struct grants *g, const struct mapping *mapping)
{
	if (g->n == GRANTS_MAX)
		grants_end(g);
	g->all[g->n++] = mapping;
}

/* Maps @handle wherever the piece is not mapped; the devices reach it there after grants_end(). */
static int map_piece(struct piece *piece, uint64_t handle, struct grants *grants)
{
	for (struct mapping *mapping = piece->mappings; mapping; mapping = mapping->next) {
		int r = 0;

		if (mapping->mapped)
			continue;
		r = backend_map(mapping->node.start, mapping->node.bytes, mapping->offset, handle);
		if (r)
			return r;
		mapping->mapped = true;
		grants_add(grants, mapping);
	}
	return 0;
}

void pieces_abandon(void)
{
	struct piece *piece = NULL;

	memory_lock();
	while ((piece = tree_next(&memory.pieces, piece)))
		piece->away = false;
	memory.away = 0;
	memory_unlock();
}

int piece_take(struct piece *piece)
{
	int r;

	if (piece->away && !piece->handle)
		return 0;
	set_away(piece, true);
	drop_descriptor(piece);
	r = unmap_piece(piece);
	if (!r)
		r = backend_release(piece->handle);
	if (!r)
		piece->handle = 0;
	return r;
}

/* What others of the job map next, and the driver does not export. */
static void keep_descriptor(struct piece *piece, int fd)
{
	if (piece->given && !piece->fd)
		piece->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0) + 1;
}

int piece_export(struct piece *piece, int *ret_fd)
{
	int fd;

	if (!piece->imported)
		return backend_export(ret_fd, piece->handle);
	if (!piece->fd)
		return -EOPNOTSUPP;
	fd = fcntl(piece->fd - 1, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 0;
}

int piece_bring(struct piece *piece, int fd)
{
	int r;

	if (!piece->away)
		return 0;
	if (piece->handle) { /* and what is mapped may be half a copy of it */
		r = unmap_piece(piece);
	} else {
		r = backend_import(&piece->handle, fd);
		piece->imported = !r && !piece_is_alias(piece);
		if (piece->imported)
			keep_descriptor(piece, fd);
	}
	if (!r)
		set_away(piece, false);
	return r;
}

/* A piece that is here, but not wherever it was mapped; NULL: none. */
static struct piece *find_unmapped(void)
{
	struct piece *piece = NULL;

	while ((piece = tree_next(&memory.pieces, piece)))
		for (struct mapping *m = piece->mappings; m && !piece->away; m = m->next)
			if (!m->mapped)
				return piece;
	return NULL;
}

static int settle_device(int device)
{
	bool entered = context_enter_known(device);
	struct grants grants = { .n = 0 };
	struct piece *piece = NULL;
	int r = 0, granted;

	while (!r && (piece = tree_next(&memory.pieces, piece)))
		if (!piece->away && piece->kind.device == device)
			r = map_piece(piece, piece->handle, &grants);
	granted = grants_end(&grants);
	if (entered)
		context_leave(device, NULL);
	return r ? r : granted;
}

int pieces_settle(void)
{
	const struct piece *piece;
	int r = 0;

	while (!r && (piece = find_unmapped()))
		r = settle_device(piece->kind.device);
	return r;
}

enum { WAIT_TRIES = 3 };

/* Memory at addresses of its own, for copies: pieces one behind the other, which the driver gives access
 * to and unmaps in one call each. */
struct scratch {
	uint64_t va;
	uint64_t bytes, mapped_bytes;
};

/* Its addresses are of a length that nobody asks for again: kept, they would drive others out. */
static void scratch_fini(struct scratch *scratch)
{
	if (scratch->mapped_bytes)
		backend_unmap(scratch->va, scratch->mapped_bytes);
	if (scratch->va)
		backend_unreserve(scratch->va, scratch->bytes);
}

static int scratch_init(struct scratch *ret, uint64_t bytes)
{
	uint64_t va;
	int r = addresses_reserve(&va, bytes);

	if (!r)
		*ret = (struct scratch){ .va = va, .bytes = bytes };
	return r;
}

static int scratch_map(struct scratch *scratch, uint64_t bytes, uint64_t handle)
{
	int r = backend_map(scratch->va + scratch->mapped_bytes, bytes, 0, handle);

	if (!r)
		scratch->mapped_bytes += bytes;
	return r;
}

static int scratch_grant(const struct scratch *scratch, int device)
{
	struct access desc = { device, ACCESS_READ_WRITE };

	return backend_set_access(scratch->va, scratch->mapped_bytes, &desc, 1);
}

/* Where all of the piece can be written once it is mapped; 0: nowhere. */
static uint64_t writable_at(const struct piece *piece)
{
	for (const struct mapping *mapping = piece->mappings; mapping; mapping = mapping->next)
		if (!mapping->offset && mapping->node.bytes == piece->bytes &&
		    mapping->access[piece->kind.device] == ACCESS_READ_WRITE)
			return mapping->node.start;
	return 0;
}

/* A piece whose copy is under way, and where that goes from and to. */
struct owning {
	struct piece *piece;
	uint64_t own;
	uint64_t from, to;
	bool placed, copied;
};

/* Pieces of one device. */
struct copies {
	struct owning all[PIECES_OWN_MAX];
	size_t n;
	struct scratch scratch;
};

static int create_own(struct copies *copies, struct piece *piece)
{
	struct owning *o = &copies->all[copies->n];
	int r = backend_create(&o->own, piece->bytes, &piece->kind);

	if (r)
		return r;
	o->piece = piece;
	copies->n++;
	return 0;
}

/* Adds the piece to the scratch, and what it is copied to where that has no place of its own. */
static int map_for_copy(struct scratch *scratch, struct owning *o)
{
	int r;

	o->from = scratch->va + scratch->mapped_bytes;
	r = scratch_map(scratch, o->piece->bytes, o->piece->handle);
	if (r || o->to)
		return r;
	o->to = scratch->va + scratch->mapped_bytes;
	return scratch_map(scratch, o->piece->bytes, o->own);
}

static int fill_scratch(struct copies *copies)
{
	uint64_t bytes = 0;
	int r;

	for (size_t i = 0; i < copies->n; i++)
		bytes += copies->all[i].piece->bytes * (copies->all[i].to ? 1 : 2);
	r = scratch_init(&copies->scratch, bytes);
	for (size_t i = 0; i < copies->n && !r; i++)
		r = map_for_copy(&copies->scratch, &copies->all[i]);
	return r ? r : scratch_grant(&copies->scratch, copies->all[0].piece->kind.device);
}

/* What is mapped where the piece was is not the piece, nor a copy of it. */
static void take_own_away(struct owning *o)
{
	if (unmap_piece(o->piece))
		set_away(o->piece, true);
	o->placed = false;
}

/* Maps what the pieces are copied to where they were. */
static int place_copies(struct copies *copies)
{
	struct grants grants = { .n = 0 };
	int first = 0, granted;

	for (size_t i = 0; i < copies->n; i++) {
		struct owning *o = &copies->all[i];
		int r = unmap_piece(o->piece);

		if (!r) {
			o->placed = true;
			r = map_piece(o->piece, o->own, &grants);
		}
		first = first ? first : r;
		if (r && o->placed)
			take_own_away(o);
	}
	granted = grants_end(&grants);
	for (size_t i = 0; i < copies->n && granted; i++)
		if (copies->all[i].placed)
			take_own_away(&copies->all[i]);
	return first ? first : granted;
}

static int begin_copies(struct copies *copies)
{
	int first = 0;

	for (size_t i = 0; i < copies->n; i++) {
		struct owning *o = &copies->all[i];
		int r = o->placed ? backend_copy(o->to, o->from, o->piece->bytes) : 0;

		o->copied = o->placed && !r;
		first = first ? first : r;
	}
	return first;
}

static int wait_for_copies(void)
{
	int r = 0;

	for (int tries = 0; tries == 0 || (r && tries < WAIT_TRIES); tries++)
		r = backend_wait_current();
	return r;
}

/* What was copied is the piece from now on; what was not copied is released, and the piece mapped later. */
static void end_copies(struct copies *copies)
{
	scratch_fini(&copies->scratch);
	for (size_t i = 0; i < copies->n; i++) {
		struct owning *o = &copies->all[i];

		if (!o->copied) {
			if (o->placed)
				take_own_away(o);
			backend_release(o->own);
			continue;
		}
		backend_release(o->piece->handle);
		o->piece->handle = o->own;
		o->piece->imported = false;
		drop_descriptor(o->piece);
	}
}

/* With a context of their GPU current. */
static int own_created(struct copies *copies)
{
	int begun, placed, r;

	for (size_t i = 0; i < copies->n; i++)
		copies->all[i].to = writable_at(copies->all[i].piece);
	placed = fill_scratch(copies);
	if (!placed)
		placed = place_copies(copies);
	begun = begin_copies(copies);
	r = wait_for_copies();
	if (!r)
		end_copies(copies);
	/* What a copy may still be using stays where it is, and is lost. */
	for (size_t i = 0; i < copies->n && r; i++)
		if (copies->all[i].placed)
			set_away(copies->all[i].piece, true);
	return placed ? placed : begun ? begun : r;
}

/* Copies a piece without a change to where it is; what was copied goes to others. */
static int export_created(struct copies *copies, int *ret_fd)
{
	struct owning *o = &copies->all[0];
	int r = fill_scratch(copies), waited;

	if (!r)
		r = backend_copy(o->to, o->from, o->piece->bytes);
	waited = wait_for_copies();
	if (waited)
		return r ? r : waited;
	scratch_fini(&copies->scratch);
	if (!r)
		r = backend_export(ret_fd, o->own);
	backend_release(o->own);
	return r;
}

int piece_copy(struct piece *piece, int *ret_fd)
{
	struct copies copies = { .n = 0 };
	void *retained;
	int r = create_own(&copies, piece);

	if (r)
		return r;
	r = context_enter(piece->kind.device, &retained);
	if (r) {
		backend_release(copies.all[0].own);
		return r;
	}
	r = export_created(&copies, ret_fd);
	context_leave(piece->kind.device, retained);
	return r;
}

int pieces_own(struct piece *const pieces[], size_t n)
{
	struct copies copies = { .n = 0 };
	int created = 0, owned;
	void *retained;

	while (copies.n < n && !created)
		created = create_own(&copies, pieces[copies.n]);
	if (!copies.n)
		return created;
	owned = context_enter(pieces[0]->kind.device, &retained);
	if (owned) {
		for (size_t i = 0; i < copies.n; i++)
			backend_release(copies.all[i].own);
		return created ? created : owned;
	}
	owned = own_created(&copies);
	context_leave(pieces[0]->kind.device, retained);
	return created ? created : owned;
}

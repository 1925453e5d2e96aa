// SPDX-License-Identifier: MIT
/*
 * IPC handles of our memory, which the driver has none for. A ticket says which process made it and what
 * it is of; who opens it asks that process's agent for descriptors of the pieces. Memory that another
 * process has open is not taken away.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "interpose/core/agent.h"
#include "interpose/core/backend.h"
#include "interpose/core/gate.h"
#include "interpose/core/memory.h"

#define TICKET_MAGIC 0x627275636d656d31ull

enum { PATIENCE_MS = 60000, RETRY_MS = 10 };

/* Memory of another process, mapped here. */
struct opened {
	struct block block; /* as queries see it */
	struct ticket ticket;
	uint64_t region;
	unsigned int count;
};

int ticket_make(struct ticket *ret, uint64_t va)
{
	struct ticket ticket = { .magic = TICKET_MAGIC,
				 .token = agent_token(),
				 .pid = getpid(),
				 .job = neighbour_here() };
	const struct block *block;
	int r = -ENOENT;

	memory_lock();
	block = tree_find(&memory.blocks, va);
	if (block)
		r = -EINVAL;
	if (block && block->region) {
		r = 0;
		ticket.block = block->node.start;
		ticket.id = block->id;
		ticket.bytes = block->node.bytes;
		ticket.region_bytes = block->region->node.bytes;
		ticket.offset = block->node.start - block->region->node.start;
	}
	memory_unlock();
	if (!r)
		*ret = ticket;
	return r;
}

bool ticket_is_ours(const struct ticket *ticket)
{
	return ticket->magic == TICKET_MAGIC;
}

/* ---- the exporter's agent ---- */

/* The region of the block that a request is about. With the lock. */
static struct region *region_of(const struct agent_request *request)
{
	struct block *block = tree_get(&memory.blocks, request->ids[1]);

	if (request->ids[0] != agent_token() || !block || block->id != request->ids[2])
		return NULL;
	return block->region;
}

static bool request_is_complete(const struct agent_request *request, struct agent_reply *reply)
{
	if (request->n == 4)
		return true;
	reply->error = -EBADMSG;
	return false;
}

static const char open_elsewhere[] = "open in another process";

/* What is lent next: a piece, pinned, and how much of the region it is. */
struct loan {
	struct piece *piece;
	uint64_t bytes;
};

static int export_loan(const struct loan *loan, int *ret)
{
	if (loan->piece->imported)
		return -EAGAIN;
	if (backend_export(ret, loan->piece->handle))
		return -EIO;
	return 0;
}

/* What is mapped that far into the region, counted as lent. False: nothing, or an error. */
static bool next_to_lend(const struct agent_request *request, uint64_t skip, struct loan *ret,
			 int *ret_error)
{
	struct mapping *mapping = NULL;
	struct region *region;

	memory_lock();
	region = region_of(request);
	*ret_error = region ? 0 : -ENOENT;
	if (region && skip < region->node.bytes)
		mapping = tree_get(&memory.mappings, region->node.start + skip);
	if (mapping) {
		*ret = (struct loan){ mapping->piece, mapping->node.bytes };
		ret->piece->pins++;
		ret->piece->lent++;
		if (!ret->piece->shared)
			ret->piece->shared = open_elsewhere;
	}
	memory_unlock();
	return mapping;
}

/* One process less uses the pieces of [from, to) of the region. */
static void take_back(const struct agent_request *request, uint64_t from, uint64_t to)
{
	struct mapping *mapping = NULL;
	struct region *region;

	memory_lock();
	region = region_of(request);
	if (region)
		mapping = tree_ceil(&memory.mappings, region->node.start + from);
	while (mapping && mapping->node.start - region->node.start < to &&
	       mapping->node.start - region->node.start < region->node.bytes) {
		struct piece *piece = mapping->piece;

		if (piece->lent && !--piece->lent && piece->shared == open_elsewhere)
			piece->shared = NULL;
		mapping = tree_next(&memory.mappings, mapping);
	}
	memory_unlock();
}

void lend_pieces(struct agent_job *job, struct agent_reply *reply)
{
	const struct agent_request *request = job->request;
	struct loan loan;
	uint64_t skip;

	if (!request_is_complete(request, reply))
		return;
	skip = request->ids[3];
	if (gate_is_closed())
		reply->error = -EAGAIN;
	while (job->n_fds < AGENT_PIECES_MAX && !reply->error &&
	       next_to_lend(request, skip, &loan, &reply->error)) {
		reply->pieces[job->n_fds] = (struct agent_piece){ .id = loan.piece->node.start,
								  .va = skip,
								  .len_bytes = loan.bytes };
		skip += loan.bytes;
		reply->error = export_loan(&loan, &job->fds[job->n_fds]);
		if (!reply->error)
			job->n_fds++;
		piece_unpin(loan.piece);
	}
	reply->n = (uint32_t)job->n_fds;
	if (reply->error)
		take_back(request, request->ids[3], skip);
}

void lend_take_back(struct agent_job *job, struct agent_reply *reply)
{
	if (request_is_complete(job->request, reply))
		take_back(job->request, 0, job->request->ids[3]);
}

/* ---- the importer ---- */

/* The maker's agent may be serving somebody who waits for this process's gate to close: whatever waits
 * for an agent waits outside the gate. */
static int reach_lender(const struct ticket *ticket)
{
	int conn;

	gate_leave();
	conn = neighbour_connect(ticket->job, ticket->pid);
	gate_enter();
	return conn;
}

static int ask_lender(int conn, uint32_t op, const struct ticket *ticket, uint64_t skip,
		      struct agent_reply *reply, int fds[static AGENT_PIECES_MAX], size_t *ret_n)
{
	struct agent_request request = {
		.version = AGENT_VERSION,
		.op = op,
		.n = 4,
		.ids = { ticket->token, ticket->block, ticket->id, skip },
	};
	int r;

	gate_leave();
	r = neighbour_ask(conn, &request, reply, fds, ret_n);
	gate_enter();
	return r < 0 ? r : reply->error;
}

static int map_loan(struct opened *opened, const struct agent_piece *told, int fd, int device)
{
	struct access access = { device, ACCESS_READ_WRITE };
	struct piece *piece;
	int r = piece_import(&piece, fd, told->len_bytes);

	if (r)
		return r;
	opened->block.device = piece->kind.device;
	memory_lock();
	piece->shared = "memory of another process";
	memory_unlock();
	r = piece_map(piece, opened->region + told->va, told->len_bytes, 0);
	piece_unpin(piece);
	return r ? r : range_access(opened->region + told->va, told->len_bytes, &access, 1);
}

/* Maps all of what the exporter lends; *ret_mapped bytes of it if that fails in the middle. */
static int map_lent(int conn, struct opened *opened, int device, uint64_t *ret_mapped)
{
	uint64_t all = opened->ticket.region_bytes;
	struct agent_reply reply;
	int fds[AGENT_PIECES_MAX];
	int r = 0;

	while (*ret_mapped < all && !r) {
		size_t n = 0;
		int asked =
			ask_lender(conn, AGENT_LEND, &opened->ticket, *ret_mapped, &reply, fds, &n);

		if (asked < 0 || !n || n != reply.n)
			r = asked == -EAGAIN ? -EAGAIN : -EINVAL;
		for (size_t i = 0; i < n; i++) {
			const struct agent_piece *told = &reply.pieces[i];

			if (!r && (told->va != *ret_mapped || told->len_bytes > all - told->va))
				r = -EINVAL;
			if (!r)
				r = map_loan(opened, told, fds[i], device);
			if (!r)
				*ret_mapped += told->len_bytes;
			close(fds[i]);
		}
	}
	return r;
}

static int open_lent_once(struct opened *opened, int device)
{
	uint64_t va;
	uint64_t mapped = 0;
	struct agent_reply reply;
	int fds[AGENT_PIECES_MAX];
	size_t n = 0;
	int r;
	auto_close int conn = reach_lender(&opened->ticket);

	if (conn < 0)
		return -EINVAL;
	r = addresses_reserve(&va, opened->ticket.region_bytes);
	if (r)
		return r;
	opened->region = va;
	r = map_lent(conn, opened, device, &mapped);
	if (!r)
		return r;
	addresses_release(va, opened->ticket.region_bytes, mapped ? range_unmap(va, mapped) : 0);
	if (mapped)
		ask_lender(conn, AGENT_TAKE_BACK, &opened->ticket, mapped, &reply, fds, &n);
	return r;
}

/* While the exporter's memory is away it lends nothing. We wait outside the gate: we may be next. */
static int open_patiently(struct opened *opened, int device)
{
	const struct timespec retry = { .tv_nsec = RETRY_MS * NS_PER_MS };
	uint64_t deadline_ns = deadline_in_ms(PATIENCE_MS);
	int r;

	while ((r = open_lent_once(opened, device)) == -EAGAIN && clock_now_ns() < deadline_ns) {
		gate_leave();
		nanosleep(&retry, NULL);
		gate_enter();
	}
	return r;
}

/* The same handle opened again is the same memory. */
static bool find_opened(const struct ticket *ticket, uint64_t *ret)
{
	struct opened *opened = NULL;

	memory_lock();
	while ((opened = tree_next(&memory.opened, opened)) &&
	       memcmp(&opened->ticket, ticket, sizeof(*ticket)) != 0)
		;
	if (opened) {
		opened->count++;
		*ret = opened->block.node.start;
	}
	memory_unlock();
	return opened;
}

static bool ticket_is_sound(const struct ticket *t)
{
	return t->region_bytes && t->region_bytes % SLAB_UNIT_BYTES == 0 && t->bytes &&
	       t->offset < t->region_bytes && t->bytes <= t->region_bytes - t->offset && t->pid > 0;
}

int lent_open(uint64_t *ret, const struct ticket *ticket, const struct context *context)
{
	struct opened *opened;
	int r;

	if (!ticket_is_sound(ticket))
		return -EINVAL;
	if (ticket->token == agent_token())
		return -ELOOP;
	if (find_opened(ticket, ret))
		return 0;
	opened = calloc(1, sizeof(*opened));
	if (!opened)
		return -ENOMEM;
	opened->ticket = *ticket;
	opened->count = 1;
	opened->block.context = context->handle;
	r = open_patiently(opened, context->device);
	if (r) {
		free(opened);
		return r;
	}
	opened->block.node =
		(struct node){ .start = opened->region + ticket->offset, .bytes = ticket->bytes };
	memory_lock();
	opened->block.id = ++memory.last_id;
	tree_add(&memory.opened, &opened->block.node);
	memory_unlock();
	*ret = opened->block.node.start;
	return 0;
}

/* Of one that is in no table any more. */
static void close_opened(struct opened *opened)
{
	auto_close int conn = reach_lender(&opened->ticket);
	struct agent_reply reply;
	int fds[AGENT_PIECES_MAX];
	size_t n = 0;

	addresses_release(opened->region, opened->ticket.region_bytes,
			  range_unmap(opened->region, opened->ticket.region_bytes));
	if (conn >= 0)
		ask_lender(conn, AGENT_TAKE_BACK, &opened->ticket, opened->ticket.region_bytes,
			   &reply, fds, &n);
	free(opened);
}

int lent_close(uint64_t va)
{
	struct opened *opened;
	void *owner = NULL;
	bool last = false;

	memory_lock();
	opened = tree_get(&memory.opened, va);
	if (opened) {
		owner = opened->block.context;
		last = !--opened->count;
		if (last)
			tree_remove(&memory.opened, &opened->block.node);
	}
	memory_unlock();
	if (!opened)
		return -ENOENT;
	if (last) {
		backend_wait(owner);
		close_opened(opened);
	}
	return 0;
}

void lent_drop(void *context)
{
	for (;;) {
		struct opened *opened = NULL;

		memory_lock();
		while ((opened = tree_next(&memory.opened, opened)) &&
		       opened->block.context != context)
			;
		if (opened)
			tree_remove(&memory.opened, &opened->block.node);
		memory_unlock();
		if (!opened)
			return;
		close_opened(opened);
	}
}

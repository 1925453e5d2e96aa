// SPDX-License-Identifier: MIT
/*
 * Legacy IPC handles of our memory, which the driver has none for. A handle says which process made it
 * and what it is of; who opens it asks that process's agent for descriptors of the pieces. Handles that
 * the driver made pass through. Memory that another process has open is not taken away.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "interpose/core/agent-ops.h"
#include "interpose/cuda/calls.h"

#define HANDLE_MAGIC 0x627275636d656d31ull

enum { PATIENCE_MS = 60000, RETRY_MS = 10 };

/* What an IPC handle of ours says. */
struct ticket {
	uint64_t magic, token, block, id;
	uint64_t region_bytes, offset, bytes; /* the block in its region */
	int32_t pid;
	uint32_t job;
};
_Static_assert(sizeof(struct ticket) == sizeof(CUipcMemHandle), "one fits in the other");

/* Memory of another process, mapped here. */
struct opened {
	struct block block; /* as queries see it */
	struct ticket ticket;
	uint64_t region;
	unsigned int count;
};

CUresult ipc_get(CUipcMemHandle *ret, CUdeviceptr ptr)
{
	struct ticket ticket = { .magic = HANDLE_MAGIC,
				 .token = agent_token(),
				 .pid = getpid(),
				 .job = neighbour_here() };
	struct block *block;
	bool ours = false;

	memory_lock();
	block = tree_find(&memory.blocks, ptr);
	if (block && block->region) {
		ours = true;
		ticket.block = block->node.start;
		ticket.id = block->id;
		ticket.bytes = block->node.bytes;
		ticket.region_bytes = block->region->node.bytes;
		ticket.offset = block->node.start - block->region->node.start;
	}
	memory_unlock();
	if (!ours)
		return block ? CUDA_ERROR_INVALID_VALUE : driver.cuIpcGetMemHandle(ret, ptr);
	if (!ret)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(ret, &ticket, sizeof(ticket));
	return CUDA_SUCCESS;
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

static bool is_complete(const struct agent_request *request, struct agent_reply *reply)
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

static int lend_one(const struct loan *loan, int *ret)
{
	if (loan->piece->imported)
		return -EAGAIN;
	if (driver.cuMemExportToShareableHandle(ret, loan->piece->handle,
						CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0))
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

void ipc_lend(struct agent_job *job, struct agent_reply *reply)
{
	const struct agent_request *request = job->request;
	struct loan loan;
	uint64_t skip;

	if (!is_complete(request, reply))
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
		reply->error = lend_one(&loan, &job->fds[job->n_fds]);
		if (!reply->error)
			job->n_fds++;
		piece_unpin(loan.piece);
	}
	reply->n = (uint32_t)job->n_fds;
	if (reply->error)
		take_back(request, request->ids[3], skip);
}

void ipc_take_back(struct agent_job *job, struct agent_reply *reply)
{
	if (is_complete(job->request, reply))
		take_back(job->request, 0, job->request->ids[3]);
}

/* ---- the importer ---- */

/* The maker's agent may be serving somebody who waits for this process's gate to close: whatever waits
 * for an agent waits outside the gate. */
static int reach(const struct ticket *ticket)
{
	int conn;

	gate_leave();
	conn = neighbour_connect(ticket->job, ticket->pid);
	gate_enter();
	return conn;
}

static int ask(int conn, uint32_t op, const struct ticket *ticket, uint64_t skip,
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

static CUresult map_one(struct opened *opened, const struct agent_piece *told, int fd, int device)
{
	CUmemAccessDesc desc = { { CU_MEM_LOCATION_TYPE_DEVICE, device },
				 CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp prop;
	struct piece *piece;
	CUresult r;

	r = driver.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
						  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (r)
		return r;
	r = driver.cuMemGetAllocationPropertiesFromHandle(&prop, handle);
	piece = r ? NULL : piece_adopt(handle, told->len_bytes, &prop);
	if (!piece) {
		driver.cuMemRelease(handle);
		return r ? r : CUDA_ERROR_OUT_OF_MEMORY;
	}
	opened->block.device = prop.location.id;
	memory_lock();
	piece->shared = "memory of another process";
	memory_unlock();
	r = piece_map(piece, opened->region + told->va, told->len_bytes, 0);
	piece_unpin(piece);
	return r ? r : range_access(opened->region + told->va, told->len_bytes, &desc, 1);
}

/* Maps all of what the exporter lends; *ret_mapped bytes of it if that fails in the middle. */
static CUresult map_lent(int conn, struct opened *opened, int device, uint64_t *ret_mapped)
{
	uint64_t all = opened->ticket.region_bytes;
	struct agent_reply reply;
	int fds[AGENT_PIECES_MAX];
	CUresult r = CUDA_SUCCESS;

	while (*ret_mapped < all && !r) {
		size_t n = 0;
		int asked = ask(conn, AGENT_LEND, &opened->ticket, *ret_mapped, &reply, fds, &n);

		if (asked < 0 || !n || n != reply.n)
			r = asked == -EAGAIN ? CUDA_ERROR_NOT_READY : CUDA_ERROR_INVALID_VALUE;
		for (size_t i = 0; i < n; i++) {
			const struct agent_piece *told = &reply.pieces[i];

			if (!r && (told->va != *ret_mapped || told->len_bytes > all - told->va))
				r = CUDA_ERROR_INVALID_VALUE;
			if (!r)
				r = map_one(opened, told, fds[i], device);
			if (!r)
				*ret_mapped += told->len_bytes;
			close(fds[i]);
		}
	}
	return r;
}

static CUresult open_once(struct opened *opened, int device)
{
	CUdeviceptr va;
	uint64_t mapped = 0;
	struct agent_reply reply;
	int fds[AGENT_PIECES_MAX];
	size_t n = 0;
	CUresult r;
	auto_close int conn = reach(&opened->ticket);

	if (conn < 0)
		return CUDA_ERROR_INVALID_VALUE;
	r = addresses_reserve(&va, opened->ticket.region_bytes);
	if (r)
		return r;
	opened->region = va;
	r = map_lent(conn, opened, device, &mapped);
	if (!r)
		return r;
	addresses_release(va, opened->ticket.region_bytes,
			  mapped ? range_unmap(va, mapped) : CUDA_SUCCESS);
	if (mapped)
		ask(conn, AGENT_TAKE_BACK, &opened->ticket, mapped, &reply, fds, &n);
	return r;
}

/* While the exporter's memory is away it lends nothing. We wait outside the gate: we may be next. */
static CUresult open_patiently(struct opened *opened, int device)
{
	const struct timespec retry = { .tv_nsec = RETRY_MS * NS_PER_MS };
	uint64_t deadline_ns = deadline_in_ms(PATIENCE_MS);
	CUresult r;

	while ((r = open_once(opened, device)) == CUDA_ERROR_NOT_READY &&
	       clock_now_ns() < deadline_ns) {
		gate_leave();
		nanosleep(&retry, NULL);
		gate_enter();
	}
	return r;
}

/* The same handle opened again is the same memory. */
static bool find_opened(const struct ticket *ticket, CUdeviceptr *ret)
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

static bool is_sound(const struct ticket *t)
{
	return t->region_bytes && t->region_bytes % SLAB_UNIT_BYTES == 0 && t->bytes &&
	       t->offset < t->region_bytes && t->bytes <= t->region_bytes - t->offset && t->pid > 0;
}

CUresult ipc_open(CUdeviceptr *ret, CUipcMemHandle wire, unsigned int flags)
{
	struct ticket ticket;
	struct opened *opened;
	struct context *context;
	CUresult r;

	memcpy(&ticket, &wire, sizeof(ticket));
	if (ticket.magic != HANDLE_MAGIC || !memory_managed())
		return driver.cuIpcOpenMemHandle_v2(ret, wire, flags);
	context = context_current(&r);
	if (!context)
		return r;
	if (!ret || flags & ~(unsigned int)CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || !is_sound(&ticket))
		return CUDA_ERROR_INVALID_VALUE;
	if (ticket.token == agent_token())
		return CUDA_ERROR_INVALID_CONTEXT;
	if (find_opened(&ticket, ret))
		return CUDA_SUCCESS;
	opened = calloc(1, sizeof(*opened));
	if (!opened)
		return CUDA_ERROR_OUT_OF_MEMORY;
	opened->ticket = ticket;
	opened->count = 1;
	opened->block.context = context->handle;
	r = open_patiently(opened, context->device);
	if (r) {
		free(opened);
		return r;
	}
	opened->block.node =
		(struct node){ .start = opened->region + ticket.offset, .bytes = ticket.bytes };
	memory_lock();
	opened->block.id = ++memory.last_id;
	tree_add(&memory.opened, &opened->block.node);
	memory_unlock();
	*ret = opened->block.node.start;
	return CUDA_SUCCESS;
}

/* Of one that is in no table any more. */
static void close_opened(struct opened *opened)
{
	auto_close int conn = reach(&opened->ticket);
	struct agent_reply reply;
	int fds[AGENT_PIECES_MAX];
	size_t n = 0;

	addresses_release(opened->region, opened->ticket.region_bytes,
			  range_unmap(opened->region, opened->ticket.region_bytes));
	if (conn >= 0)
		ask(conn, AGENT_TAKE_BACK, &opened->ticket, opened->ticket.region_bytes, &reply,
		    fds, &n);
	free(opened);
}

CUresult ipc_close(CUdeviceptr ptr)
{
	struct opened *opened;
	CUcontext owner = NULL;
	bool last = false;

	memory_lock();
	opened = tree_get(&memory.opened, ptr);
	if (opened) {
		owner = opened->block.context;
		last = !--opened->count;
		if (last)
			tree_remove(&memory.opened, &opened->block.node);
	}
	memory_unlock();
	if (!opened)
		return driver.cuIpcCloseMemHandle(ptr);
	if (last) {
		context_synchronize(owner);
		close_opened(opened);
	}
	return CUDA_SUCCESS;
}

void ipc_drop(CUcontext context)
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

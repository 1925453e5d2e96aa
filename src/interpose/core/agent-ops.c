// SPDX-License-Identifier: MIT
/*
 * The operations of the agent: closing the gate, and taking all pieces away and bringing them back
 * while it is closed. Runs in the agent's thread alone.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "interpose/core/agent-ops.h"

static void __attribute__((format(printf, 4, 5)))
fail(struct agent_reply *reply, int error, CUresult result, const char *fmt, ...)
{
	va_list args;

	reply->error = error;
	reply->result = (int32_t)result;
	va_start(args, fmt);
	vsnprintf(reply->text, sizeof(reply->text), fmt, args);
	va_end(args);
}

static int errno_of(CUresult r)
{
	switch (r) {
	case CUDA_SUCCESS:
		return 0;
	case CUDA_ERROR_OUT_OF_MEMORY:
		return -ENOMEM;
	case CUDA_ERROR_INVALID_VALUE:
		return -EINVAL;
	default:
		return -EIO;
	}
}

static struct piece *piece_by_id(uint64_t id)
{
	struct piece *piece;

	memory_lock();
	piece = tree_get(&memory.pieces, id);
	if (piece)
		piece->pins++;
	memory_unlock();
	return piece;
}

/* The next piece after @id, pinned. */
static struct piece *piece_after(uint64_t id)
{
	struct piece *piece;

	memory_lock();
	piece = tree_ceil(&memory.pieces, id + 1);
	if (piece)
		piece->pins++;
	memory_unlock();
	return piece;
}

static unsigned int count_away(void)
{
	unsigned int n;

	memory_lock();
	n = memory.away;
	memory_unlock();
	return n;
}

static void hello(struct agent_job *job, struct agent_reply *reply)
{
	memory_lock();
	reply->managed_bytes = memory.piece_bytes;
	for (int i = 0; i < DEVICES_MAX; i++)
		reply->managed_bytes -= memory.devices[i].kept_bytes;
	reply->driver_bytes = memory.driver_bytes;
	memory_unlock();
}

/* Says what would be lost; true if nothing. */
static bool check_sharing(struct agent_reply *reply)
{
	struct piece *piece = NULL;

	memory_lock();
	while ((piece = tree_next(&memory.pieces, piece)) && !piece->shared)
		;
	if (piece)
		fail(reply, -EOPNOTSUPP, 0,
		     "%llu bytes of device memory are shared (%s): that cannot be taken away and "
		     "brought back",
		     (unsigned long long)piece->bytes, piece->shared);
	memory_unlock();
	return !piece;
}

/* Closes the gate at a moment when no stream is being captured. */
static int close_gate(uint64_t deadline_ns)
{
	for (;;) {
		int r = gate_close(deadline_ns);

		if (r < 0 || !capture_active())
			return r;
		gate_open();
		r = capture_wait(deadline_ns);
		if (r < 0)
			return r;
	}
}

static void gate(struct agent_job *job, struct agent_reply *reply)
{
	uint64_t deadline_ns = deadline_in_ms(job->request->timeout_ms);
	int r;

	if (gate_is_closed())
		return;
	r = close_gate(deadline_ns);
	if (r < 0) {
		fail(reply, r, 0,
		     capture_active() ? "a stream is being captured into a CUDA graph"
				      : "a thread is still in a call of the CUDA driver");
		return;
	}
	r = idle_wait(deadline_ns);
	if (r < 0)
		fail(reply, r, 0, "work on the GPU did not end in time");
	if (r < 0 || !check_sharing(reply))
		gate_open();
	else
		addresses_drop_memory();
}

/* Whether the gate is closed, as the operation needs. */
static bool need_closed(struct agent_reply *reply)
{
	if (gate_is_closed())
		return true;
	fail(reply, -EPERM, 0, "the gate is open");
	return false;
}

static void describe(const struct piece *piece, struct agent_piece *ret)
{
	ret->id = piece->node.start;
	ret->va = piece->mappings ? piece->mappings->node.start : 0;
	ret->len_bytes = piece->bytes;
	if (piece->device >= 0 && piece->device < DEVICES_MAX)
		memcpy(ret->gpu, memory.devices[piece->device].uuid, AGENT_UUID_BYTES);
	ret->flags = (piece->imported ? AGENT_PIECE_IMPORTED : 0) |
		     (piece->shared ? AGENT_PIECE_SHARED : 0);
}

static void list(struct agent_job *job, struct agent_reply *reply)
{
	struct piece *piece;

	memory_lock();
	piece = tree_ceil(&memory.pieces, job->next_id);
	while (piece && reply->n < AGENT_PIECES_MAX) {
		if (piece->bytes && (piece->mappings || piece->refs)) /* not one that was freed */
			describe(piece, &reply->pieces[reply->n++]);
		piece = tree_next(&memory.pieces, piece);
	}
	reply->more = piece != NULL;
	job->next_id = piece ? piece->node.start : 0;
	memory_unlock();
}

/* With a context of the piece's GPU current, where the program has one. */
static CUresult in_context(struct piece *piece, CUresult (*call)(struct piece *piece, int *fd),
			   int *fd)
{
	bool entered = context_enter_known(piece->device);
	CUresult r = call(piece, fd);

	if (entered)
		context_leave(piece->device, NULL);
	return r;
}

static CUresult take_piece(struct piece *piece, int *fd)
{
	return piece_take(piece);
}

/* Without a call of the driver, which may be holding this process. */
static bool is_gone(const struct piece *piece)
{
	return piece->away && !piece->handle;
}

static CUresult bring_piece(struct piece *piece, int *fd)
{
	return piece_bring(piece, *fd);
}

static CUresult export_piece(struct piece *piece, int *ret)
{
	if (piece->away)
		return CUDA_ERROR_NOT_MAPPED;
	if (piece->imported)
		return CUDA_ERROR_NOT_SUPPORTED;
	return driver.cuMemExportToShareableHandle(ret, piece->handle,
						   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

static void export(struct agent_job *job, struct agent_reply *reply)
{
	for (uint32_t i = 0; i < job->request->n; i++) {
		uint64_t id = job->request->ids[i];
		struct piece *piece = piece_by_id(id);
		CUresult r = CUDA_ERROR_NOT_FOUND;

		if (piece) {
			r = in_context(piece, export_piece, &job->fds[job->n_fds]);
			piece_unpin(piece);
		}
		if (r) {
			fail(reply, piece ? errno_of(r) : -ENOENT, r, "export of piece %llu failed",
			     (unsigned long long)id);
			return;
		}
		job->n_fds++;
	}
	reply->n = job->request->n;
}

static void unmap(struct agent_job *job, struct agent_reply *reply)
{
	struct piece *piece = NULL;
	bool taken = false;
	uint64_t id = 0;

	if (!need_closed(reply))
		return;
	while ((piece = piece_after(id))) {
		bool here = !is_gone(piece);
		CUresult r = here ? in_context(piece, take_piece, NULL) : CUDA_SUCCESS;

		taken |= here;
		id = piece->node.start;
		piece_unpin(piece);
		if (r) {
			fail(reply, errno_of(r), r, "piece %llu cannot be unmapped",
			     (unsigned long long)id);
			return;
		}
	}
	if (taken) /* the driver may be holding this process where nothing was */
		stacks_lower();
}

/* As the program set them, before it runs: false where the driver has no memory for that. */
static bool set_stacks_back(struct agent_reply *reply)
{
	CUresult r = stacks_set_back();

	if (r)
		fail(reply, errno_of(r), r,
		     r == CUDA_ERROR_OUT_OF_MEMORY
			     ? "not enough free device memory for the stacks of kernels"
			     : "the limit of the stacks of kernels cannot be set back");
	return !r;
}

static void map(struct agent_job *job, struct agent_reply *reply)
{
	if (!need_closed(reply))
		return;
	if (job->n_fds != job->request->n) {
		fail(reply, -EBADMSG, 0, "%zu descriptors for %u pieces", job->n_fds,
		     job->request->n);
		return;
	}
	devices_refresh();
	for (uint32_t i = 0; i < job->request->n; i++) {
		uint64_t id = job->request->ids[i];
		struct piece *piece = piece_by_id(id);
		CUresult r = CUDA_ERROR_NOT_FOUND;

		if (piece) {
			r = in_context(piece, bring_piece, &job->fds[i]);
			piece_unpin(piece);
		}
		if (r) {
			fail(reply, piece ? errno_of(r) : -ENOENT, r, "piece %llu cannot be mapped",
			     (unsigned long long)id);
			return;
		}
	}
	if (!count_away())
		set_stacks_back(reply);
}

/* Pieces of one device that are made the process's own together: their copies follow each other without
 * a wait. */
struct batch {
	struct piece *pieces[PIECES_OWN_MAX];
	size_t n;
	bool no_room;
};

/* Lets go of those that are the process's own now; true if there were some. */
static bool drop_owned(struct batch *batch)
{
	size_t left = 0, n = batch->n;

	for (size_t i = 0; i < n; i++)
		if (batch->pieces[i]->imported)
			batch->pieces[left++] = batch->pieces[i];
		else
			piece_unpin(batch->pieces[i]);
	batch->n = left;
	return left < n;
}

/* Counts those that stay imported, for want of room or because the driver refused. */
static void own_batch(struct batch *batch, struct agent_reply *reply)
{
	CUresult r = CUDA_SUCCESS;
	bool some = true;

	/* What was replaced may have left room for the next. */
	while (batch->n && !batch->no_room && some) {
		r = pieces_own(batch->pieces, batch->n);
		some = drop_owned(batch) && r == CUDA_ERROR_OUT_OF_MEMORY;
		batch->no_room = !some && r == CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (r && r != CUDA_ERROR_OUT_OF_MEMORY && !reply->error)
		fail(reply, errno_of(r), r, "%zu pieces stay imported", batch->n);
	reply->n += (uint32_t)batch->n;
	while (batch->n)
		piece_unpin(batch->pieces[--batch->n]);
}

static void own(struct agent_job *job, struct agent_reply *reply)
{
	struct batch batch = { .n = 0 };
	struct piece *piece;
	uint64_t id = 0;

	if (!need_closed(reply))
		return;
	if (count_away()) {
		fail(reply, -EBUSY, 0, "some memory is not mapped yet");
		return;
	}
	if (!set_stacks_back(reply)) /* before the copies take what room there is */
		return;
	while ((piece = piece_after(id))) {
		id = piece->node.start;
		if (!piece->imported) {
			piece_unpin(piece);
			continue;
		}
		if (batch.n == PIECES_OWN_MAX ||
		    (batch.n && batch.pieces[0]->device != piece->device))
			own_batch(&batch, reply);
		batch.pieces[batch.n++] = piece;
	}
	own_batch(&batch, reply);
}

static void open_gate(struct agent_job *job, struct agent_reply *reply)
{
	unsigned int away = count_away();

	if (away)
		fail(reply, -EBUSY, 0, "%u pieces of device memory are not mapped", away);
	else if (gate_is_closed() && set_stacks_back(reply))
		gate_open();
}

static void detach(struct agent_job *job, struct agent_reply *reply)
{
}

void agent_run(struct agent_job *job, struct agent_reply *reply)
{
	static void (*const ops[])(struct agent_job *, struct agent_reply *) = {
		[AGENT_HELLO] = hello,
		[AGENT_GATE] = gate,
		[AGENT_LIST] = list,
		[AGENT_EXPORT] = export,
		[AGENT_UNMAP] = unmap,
		[AGENT_MAP] = map,
		[AGENT_OWN] = own,
		[AGENT_OPEN] = open_gate,
		[AGENT_DETACH] = detach,
		[AGENT_LEND] = ipc_lend,
		[AGENT_TAKE_BACK] = ipc_take_back,
	};
	const struct agent_request *request = job->request;

	if (request->op >= sizeof(ops) / sizeof(*ops) || !ops[request->op])
		fail(reply, -EOPNOTSUPP, 0, "no operation %u", request->op);
	else if (request->op != AGENT_HELLO && request->version != AGENT_VERSION)
		fail(reply, -EPROTONOSUPPORT, 0, "version %u, this is %d", request->version,
		     AGENT_VERSION);
	else
		ops[request->op](job, reply);
	reply->gate = count_away()	 ? AGENT_GATE_UNMAPPED
		      : gate_is_closed() ? AGENT_GATE_CLOSED
					 : AGENT_GATE_OPEN;
}

void agent_hung_up(void)
{
	if (!gate_is_closed() || count_away())
		return;
	/* Without memory for it kernels that want more get the driver's error; the next time may go well. */
	stacks_set_back();
	gate_open();
}

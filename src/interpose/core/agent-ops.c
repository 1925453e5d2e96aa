// SPDX-License-Identifier: MIT
/*
 * The operations of the agent: closing the gate, and taking all pieces away and bringing them back
 * while it is closed. Runs in the agent's thread alone.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "interpose/core/agent.h"
#include "interpose/core/backend.h"
#include "interpose/core/drain.h"
#include "interpose/core/gate.h"
#include "interpose/core/memory.h"
#include "interpose/core/snapshot.h"

/* ---- operations ---- */

static void __attribute__((format(printf, 4, 5)))
fail(struct agent_reply *reply, int error, int result, const char *fmt, ...)
{
	va_list args;

	reply->error = error;
	reply->result = backend_number(result);
	va_start(args, fmt);
	vsnprintf(reply->text, sizeof(reply->text), fmt, args);
	va_end(args);
}

static int errno_of(int result)
{
	if (!result || result == -ENOMEM || result == -EINVAL || result == -ESHUTDOWN)
		return result;
	return -EIO;
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

/* The first piece that others have of whom nobody knows, or who are not of this job. With the lock. */
static const struct piece *find_shared(char how[static AGENT_TEXT_BYTES])
{
	const struct piece *piece = NULL;

	while ((piece = tree_next(&memory.pieces, (void *)piece)) && !piece->shared && !piece->lent)
		;
	if (piece && piece->shared)
		snprintf(how, AGENT_TEXT_BYTES, "%s", piece->shared);
	else if (piece)
		snprintf(how, AGENT_TEXT_BYTES, "open in process %d, which is not of this job",
			 piece->borrower);
	return piece;
}

/* Whether an event is open here that another process made, or one of this process in another job. With the lock. */
static bool find_shared_event(char how[static AGENT_TEXT_BYTES])
{
	int32_t borrower, maker = event_find_open(&borrower);

	if (maker)
		snprintf(how, AGENT_TEXT_BYTES, "an event of process %d", maker);
	else if (borrower)
		snprintf(how, AGENT_TEXT_BYTES,
			 "an event that process %d has open, which is not of this job", borrower);
	return maker || borrower;
}

/* With the lock. */
static bool has_aliases(void)
{
	struct piece *piece = NULL;

	while ((piece = tree_next(&memory.pieces, piece)) && !piece_is_alias(piece))
		;
	return piece;
}

static void tell_sharing(struct agent_reply *reply)
{
	const char *by_driver = atomic_load(&memory.shared_by_driver);
	char how[AGENT_TEXT_BYTES], event[AGENT_TEXT_BYTES];
	bool pieces, events, aliases;

	memory_lock();
	pieces = find_shared(how);
	events = find_shared_event(event);
	aliases = has_aliases();
	memory_unlock();
	reply->n = AGENT_SHARING_KNOWN | (by_driver || pieces || events ? AGENT_SHARES : 0) |
		   (atomic_load(&memory.peers_by_driver) ? AGENT_HAS_PEERS : 0) |
		   (agent_life() == AGENT_LIFE_STARTING ? AGENT_IS_STARTING : 0) |
		   (aliases ? AGENT_HAS_ALIASES : 0) |
		   (snapshot_is_held() ? AGENT_HAS_SNAPSHOT : 0) | AGENT_OWNS_AHEAD |
		   atomic_load(&memory.withheld);
	if (pieces)
		snprintf(reply->text, sizeof(reply->text), "device memory (%.120s)", how);
	else if (by_driver || events)
		snprintf(reply->text, sizeof(reply->text), "%s", by_driver ? by_driver : event);
}

static void run_hello(struct agent_job *job, struct agent_reply *reply)
{
	memory_lock();
	reply->managed_bytes = memory.piece_bytes;
	for (int i = 0; i < DEVICES_MAX; i++)
		reply->managed_bytes -= memory.devices[i].kept_bytes;
	reply->driver_bytes = memory.driver_bytes;
	memory_unlock();
	tell_sharing(reply);
}

/* Says what would be lost; true if nothing. */
static bool check_sharing(struct agent_reply *reply)
{
	const struct piece *piece;
	char how[AGENT_TEXT_BYTES];

	memory_lock();
	piece = find_shared(how);
	if (piece)
		fail(reply, -EOPNOTSUPP, 0,
		     "%llu bytes of device memory are shared (%s): that cannot be taken away and "
		     "brought back",
		     (unsigned long long)piece->bytes, how);
	memory_unlock();
	return !piece;
}

static void fail_ending(struct agent_reply *reply)
{
	fail(reply, -ESHUTDOWN, 0, "it is ending");
}

/* With the gate closed over an idle GPU: whether what it holds can be taken away. @failed: as of drain(). */
static bool check_whole(int failed, struct agent_reply *reply)
{
	if (failed == -ESHUTDOWN || agent_life() == AGENT_LIFE_ENDING || !backend_is_there())
		fail_ending(reply);
	else if (failed)
		fail(reply, -EREMOTEIO, failed, "a context has failed for good");
	else
		return check_sharing(reply);
	return false;
}

static void note_held(const uint64_t *items, size_t n)
{
	memory_lock();
	for (int i = 0; i < DEVICES_MAX; i++) {
		struct device *device = &memory.devices[i];

		device->held_bytes = 0;
		for (size_t k = 0; device->known && k + AGENT_SNAPSHOT_ITEM <= n;
		     k += AGENT_SNAPSHOT_ITEM)
			if (!memcmp(device->uuid, items + k, AGENT_UUID_BYTES))
				device->held_bytes += items[k + AGENT_SNAPSHOT_ITEM - 1];
	}
	memory_unlock();
}

static void run_gate(struct agent_job *job, struct agent_reply *reply)
{
	const struct agent_request *request = job->request;
	const char *why = NULL;
	int r, failed = 0;

	if (gate_is_closed())
		return;
	if (agent_life() == AGENT_LIFE_ENDING) {
		fail_ending(reply);
		return;
	}
	r = drain(request->n ? (unsigned int)request->ids[0] : 0, job->n_fds ? job->fds[0] : -1,
		  deadline_in_ms(request->timeout_ms), &failed, &why);
	if (r < 0)
		fail(reply, r, 0, "%s", why);
	else if (!check_whole(failed, reply))
		gate_open();
	if (r < 0 || reply->error)
		return;
	tell_sharing(reply);
	note_held(NULL, 0); /* no operation begins before the last one has ended */
	snapshot_forget();
	lent_void();
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

static void describe_piece(const struct piece *piece, struct agent_piece *ret)
{
	ret->id = piece->node.start;
	ret->va = piece->mappings ? piece->mappings->node.start : 0;
	ret->len_bytes = piece->bytes;
	if (piece->kind.device >= 0 && piece->kind.device < DEVICES_MAX)
		memcpy(ret->gpu, memory.devices[piece->kind.device].uuid, AGENT_UUID_BYTES);
	ret->flags = (piece->imported ? AGENT_PIECE_IMPORTED : 0) |
		     (piece->shared ? AGENT_PIECE_SHARED : 0);
}

/* Not one that was freed. */
static bool is_in_use(const struct piece *piece)
{
	return piece->bytes && (piece->mappings || piece->refs);
}

static void run_list(struct agent_job *job, struct agent_reply *reply)
{
	struct piece *piece;

	memory_lock();
	piece = tree_ceil(&memory.pieces, job->next_id);
	while (piece && reply->n < AGENT_PIECES_MAX) {
		if (is_in_use(piece) && !piece_is_alias(piece))
			describe_piece(piece, &reply->pieces[reply->n++]);
		piece = tree_next(&memory.pieces, piece);
	}
	reply->more = piece != NULL;
	job->next_id = piece ? piece->node.start : 0;
	memory_unlock();
}

static void describe_alias(const struct piece *piece, struct agent_alias *ret)
{
	*ret = (struct agent_alias){ .id = piece->node.start,
				     .len_bytes = piece->bytes,
				     .token = piece->origin.token,
				     .piece = piece->origin.piece,
				     .pid = piece->origin.pid,
				     .flags = piece->away ? AGENT_ALIAS_AWAY : 0 };
}

static void run_aliases(struct agent_job *job, struct agent_reply *reply)
{
	struct piece *piece;

	reply->token = agent_token();
	memory_lock();
	piece = tree_ceil(&memory.pieces, job->next_id);
	while (piece && reply->n < AGENT_PIECES_MAX) {
		if (is_in_use(piece) && piece_is_alias(piece))
			describe_alias(piece, &reply->aliases[reply->n++]);
		piece = tree_next(&memory.pieces, piece);
	}
	reply->more = piece != NULL;
	job->next_id = piece ? piece->node.start : 0;
	memory_unlock();
}

/* With a context of the piece's GPU current, where the program has one. */
static int call_in_context(struct piece *piece, int (*call)(struct piece *piece, int *fd), int *fd)
{
	bool entered = context_enter_known(piece->kind.device);
	int r = call(piece, fd);

	if (entered)
		context_leave(piece->kind.device, NULL);
	return r;
}

static int take_piece(struct piece *piece, int *fd)
{
	return piece_take(piece);
}

/* Without a call of the driver, which may be holding this process. */
static bool piece_is_gone(const struct piece *piece)
{
	return piece->away && !piece->handle;
}

static int bring_piece(struct piece *piece, int *fd)
{
	return piece_bring(piece, *fd);
}

static int export_piece(struct piece *piece, int *ret)
{
	return piece->away ? -ENXIO : piece_export(piece, ret);
}

static void run_export(struct agent_job *job, struct agent_reply *reply)
{
	for (uint32_t i = 0; i < job->request->n; i++) {
		uint64_t id = job->request->ids[i];
		struct piece *piece = piece_by_id(id);
		int r = -ENOENT;

		if (piece) {
			r = call_in_context(piece, export_piece, &job->fds[job->n_fds]);
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

static void run_unmap(struct agent_job *job, struct agent_reply *reply)
{
	bool only_aliases = job->request->n, taken = false;
	struct piece *piece = NULL;
	uint64_t id = 0;

	if (!need_closed(reply))
		return;
	lent_void(); /* nobody answers any more: the gates of all members are closed */
	while ((piece = piece_after(id))) {
		bool here = !piece_is_gone(piece) && (!only_aliases || piece_is_alias(piece));
		int r = here ? call_in_context(piece, take_piece, NULL) : 0;

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
		backend_lower_stacks();
}

/* As the program set them, before it runs: false where the driver has no memory for that. */
static bool set_stacks_back(struct agent_reply *reply)
{
	int r = backend_set_stacks_back();

	if (r)
		fail(reply, errno_of(r), r,
		     r == -ENOMEM ? "not enough free device memory for the stacks of kernels"
				  : "the limit of the stacks of kernels cannot be set back");
	return !r;
}

static void run_map(struct agent_job *job, struct agent_reply *reply)
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
		int r = -ENOENT;

		if (piece) {
			r = call_in_context(piece, bring_piece, &job->fds[i]);
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

/* Pieces of this process itself that are away. */
static unsigned int count_own_away(void)
{
	struct piece *piece = NULL;
	unsigned int n = 0;

	memory_lock();
	while ((piece = tree_next(&memory.pieces, piece)))
		n += piece->away && !piece_is_alias(piece);
	memory_unlock();
	return n;
}

/* Counts those that stay imported, for want of room or because the driver refused. */
static void own_batch(struct batch *batch, struct agent_reply *reply)
{
	int r = 0;
	bool some = true;

	/* What was replaced may have left room for the next. */
	while (batch->n && !batch->no_room && some) {
		r = pieces_own(batch->pieces, batch->n);
		some = drop_owned(batch) && r == -ENOMEM;
		batch->no_room = !some && r == -ENOMEM;
	}
	if (r && r != -ENOMEM && !reply->error)
		fail(reply, errno_of(r), r, "%zu pieces stay imported", batch->n);
	reply->n += (uint32_t)batch->n;
	while (batch->n)
		piece_unpin(batch->pieces[--batch->n]);
}

static void run_own(struct agent_job *job, struct agent_reply *reply)
{
	const bool with_given = job->request->n & AGENT_OWN_GIVEN;
	const bool ahead = job->request->n & AGENT_OWN_AHEAD;
	struct batch batch = { .n = 0 };
	struct piece *piece;
	uint64_t id = 0;

	if (!need_closed(reply))
		return;
	if (!ahead && count_own_away()) {
		fail(reply, -EBUSY, 0, "some memory is not mapped yet");
		return;
	}
	if (!ahead && !set_stacks_back(reply)) /* before the copies take what room there is */
		return;
	while ((piece = piece_after(id))) {
		id = piece->node.start;
		if (!piece->imported || piece->away || (piece->given && !with_given)) {
			reply->n += piece->imported;
			piece_unpin(piece);
			continue;
		}
		if (batch.n == PIECES_OWN_MAX ||
		    (batch.n && batch.pieces[0]->kind.device != piece->kind.device))
			own_batch(&batch, reply);
		batch.pieces[batch.n++] = piece;
	}
	own_batch(&batch, reply);
}

/* What neighbours answered meanwhile may be of memory that was replaced since. */
static void open_gate(void)
{
	lent_void();
	gate_open();
}

static void run_open_gate(struct agent_job *job, struct agent_reply *reply)
{
	unsigned int away = count_away();

	if (away)
		fail(reply, -EBUSY, 0, "%u pieces of device memory are not mapped", away);
	else if (gate_is_closed() && set_stacks_back(reply))
		open_gate();
}

static void run_snapshot(struct agent_job *job, struct agent_reply *reply)
{
	note_held(job->request->ids, job->request->n);
	snapshot_note(job->request->n);
}

static void run_detach(struct agent_job *job, struct agent_reply *reply)
{
}

/* The driver has shut down: nothing is to be mapped any more, and nobody held back. */
static void let_end(struct agent_reply *reply)
{
	agent_set_life(AGENT_LIFE_ENDING);
	pieces_abandon();
	gate_open();
	if (!reply->text[0])
		fail_ending(reply);
}

void agent_run(struct agent_job *job, struct agent_reply *reply)
{
	static void (*const ops[])(struct agent_job *, struct agent_reply *) = {
		[AGENT_HELLO] = run_hello,
		[AGENT_GATE] = run_gate,
		[AGENT_LIST] = run_list,
		[AGENT_EXPORT] = run_export,
		[AGENT_UNMAP] = run_unmap,
		[AGENT_MAP] = run_map,
		[AGENT_OWN] = run_own,
		[AGENT_OPEN] = run_open_gate,
		[AGENT_DETACH] = run_detach,
		[AGENT_LEND] = lend_pieces,
		[AGENT_TAKE_BACK] = lend_take_back,
		[AGENT_ALIASES] = run_aliases,
		[AGENT_SNAPSHOT] = run_snapshot,
		[AGENT_LEND_EVENT] = lend_event,
		[AGENT_TAKE_EVENT_BACK] = lend_take_event_back,
	};
	const struct agent_request *request = job->request;

	if (request->op >= sizeof(ops) / sizeof(*ops) || !ops[request->op])
		fail(reply, -EOPNOTSUPP, 0, "no operation %u", request->op);
	else if (request->op != AGENT_HELLO && request->version != AGENT_VERSION)
		fail(reply, -EPROTONOSUPPORT, 0, "version %u, this is %d", request->version,
		     AGENT_VERSION);
	else
		ops[request->op](job, reply);
	if (reply->error == -ESHUTDOWN)
		let_end(reply);
	reply->gate = count_away()	 ? AGENT_GATE_UNMAPPED
		      : gate_is_closed() ? AGENT_GATE_CLOSED
					 : AGENT_GATE_OPEN;
}

void agent_hung_up(void)
{
	if (!gate_is_closed() || count_away())
		return;
	/* Without memory for it kernels that want more get the driver's error; the next time may go well. */
	backend_set_stacks_back();
	open_gate();
}

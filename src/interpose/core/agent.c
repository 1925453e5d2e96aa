// SPDX-License-Identifier: MIT
/*
 * The agent: one thread that listens on a socket in the job's directory and serves root and the job's own user, one
 * connection at a time. At rest it is blocked and its socket is all that we have open in the process. A program that
 * closes the socket ends the agent, and nothing else. Only while it closes the gate together with other members does a
 * second thread answer those.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/packet.h"
#include "base/thread.h"
#include "interpose/core/agent.h"
#include "interpose/core/backend.h"
#include "interpose/core/gate.h"
#include "interpose/core/memory.h"
#include "interpose/core/room.h"
#include "interpose/core/wake.h"

/* Out of the way of programs that count on low numbers or walk through them. */
enum { LISTEN_FD_MIN = 500, STACK_BYTES = 1 << 20, JOB_DIGITS = 8 };

/* The uid that stands for all users without a number in this user namespace (user_namespaces(7)), by default. */
enum { OVERFLOW_UID = 65534 };

static atomic_int owner;   /* the process the agent belongs to */
static atomic_int settled; /* the process whose agent_start() is through */
static atomic_uint life;   /* enum agent_life */
static atomic_bool managed;
static atomic_bool stays_closed; /* after AGENT_COPY the gate stays closed when the peer hangs up */
static int listen_fd = -1;
static atomic_int served_fd = -1; /* the connection being served; for a fork's child to close */
static uint64_t token;		  /* names this process, also after it was restored */
static struct sockaddr_un address;

uint64_t agent_token(void)
{
	return token;
}

bool memory_managed(void)
{
	return atomic_load_explicit(&managed, memory_order_acquire);
}

void agent_set_life(enum agent_life now)
{
	atomic_store(&life, now);
}

enum agent_life agent_life(void)
{
	return (enum agent_life)atomic_load(&life);
}

/* The program may have closed our descriptor, and its number may be another file by now. */
static bool is_still_ours(void)
{
	struct sockaddr_un at = { 0 };
	socklen_t len = sizeof(at);

	return !getsockname(listen_fd, (struct sockaddr *)&at, &len) && at.sun_family == AF_UNIX &&
	       !strncmp(at.sun_path, address.sun_path, sizeof(at.sun_path));
}

bool agent_client_is_gone(void)
{
	struct pollfd client = { .fd = atomic_load(&served_fd), .events = POLLRDHUP };

	return poll(&client, 1, 0) > 0;
}

/* ---- operations: closing the gate, and taking all pieces away and bringing them back while it is closed ---- */

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

/* The first piece that unknown processes have, or processes of another job. With the lock. */
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

/* Whether an event is open here permanently that another process made, or one of this process in another job. With the lock. */
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
	gate_settle();
	tell_sharing(reply);
	note_held(NULL, 0); /* no operation begins before the last one has ended */
	snapshot_forget();
	lent_void();
	events_take_away();
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

/* A piece that was freed is in the table until its last user releases it. */
static bool is_in_use(const struct piece *piece)
{
	return piece->bytes && (piece->mappings || piece->refs);
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

/* Pieces in use, the aliases or the others: as many as a packet holds. The next goes on where this one ends. */
static void list_pieces(struct agent_job *job, struct agent_reply *reply, bool aliases)
{
	struct piece *piece;

	memory_lock();
	piece = tree_ceil(&memory.pieces, job->next_id);
	for (; piece && reply->n < AGENT_PIECES_MAX; piece = tree_next(&memory.pieces, piece)) {
		if (!is_in_use(piece) || piece_is_alias(piece) != aliases)
			continue;
		if (aliases)
			describe_alias(piece, &reply->aliases[reply->n++]);
		else
			describe_piece(piece, &reply->pieces[reply->n++]);
	}
	reply->more = piece != NULL;
	job->next_id = piece ? piece->node.start : 0;
	memory_unlock();
}

static void run_list(struct agent_job *job, struct agent_reply *reply)
{
	list_pieces(job, reply, false);
}

static void run_aliases(struct agent_job *job, struct agent_reply *reply)
{
	reply->token = agent_token();
	list_pieces(job, reply, true);
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

/* Calls @call for each piece that was asked for, with a descriptor of it, up to the first failure: then @what failed. */
static bool each_piece(struct agent_job *job, struct agent_reply *reply,
		       int (*call)(struct piece *piece, int *fd), const char *what)
{
	for (uint32_t i = 0; i < job->request->n; i++) {
		uint64_t id = job->request->ids[i];
		struct piece *piece = piece_by_id(id);
		int r = -ENOENT;

		if (piece) {
			r = call_in_context(piece, call, &job->fds[i]);
			piece_unpin(piece);
		}
		if (r) {
			fail(reply, piece ? errno_of(r) : -ENOENT, r, "%s of piece %llu failed",
			     what, (unsigned long long)id);
			return false;
		}
		if (job->n_fds == i)
			job->n_fds++;
	}
	return true;
}

static void run_export(struct agent_job *job, struct agent_reply *reply)
{
	if (each_piece(job, reply, export_piece, "export"))
		reply->n = job->request->n;
}

static int copy_alias(struct piece *piece, int *ret)
{
	if (!piece_is_alias(piece) || piece->away)
		return -ENXIO;
	device_get(piece->kind.device); /* the program may not have asked about that GPU */
	return piece_copy(piece, ret);
}

static void run_copy(struct agent_job *job, struct agent_reply *reply)
{
	if (!need_closed(reply))
		return;
	atomic_store(&stays_closed, true);
	for (uint32_t i = 0; i < job->request->n; i++) {
		uint64_t id = job->request->ids[i];
		struct piece *piece = piece_by_id(id);
		int r = piece ? copy_alias(piece, &job->fds[job->n_fds]) : -ENOENT;

		if (piece && !r)
			describe_piece(piece, &reply->pieces[i]);
		if (piece)
			piece_unpin(piece);
		if (r) {
			fail(reply, piece ? errno_of(r) : -ENOENT, r, "copy of piece %llu failed",
			     (unsigned long long)id);
			return;
		}
		job->n_fds++;
	}
	reply->n = job->n_fds;
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

/* Restores the program's limits before it runs. Returns false where the driver has no memory for that. */
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
	if (each_piece(job, reply, bring_piece, "map") && !count_away())
		set_stacks_back(reply);
}

/* Pieces of one device that are made the process's own together: their copies follow each other without
 * a wait. */
struct batch {
	struct piece *pieces[PIECES_OWN_MAX];
	size_t n;
	bool no_room;
};

/* Unpins the pieces that are the process's own now, and takes them out of the batch; true if there were some. */
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
	atomic_store(&stays_closed, false);
	gate_open();
}

static void run_open_gate(struct agent_job *job, struct agent_reply *reply)
{
	unsigned int away = count_away();
	int r = 0;

	if (away)
		fail(reply, -EBUSY, 0, "%u pieces of device memory are not mapped", away);
	else if (gate_is_closed() && (r = pieces_settle()))
		fail(reply, errno_of(r), r, "device memory cannot be mapped");
	else if (gate_is_closed() && set_stacks_back(reply))
		open_gate();
}

static void run_snapshot(struct agent_job *job, struct agent_reply *reply)
{
	note_held(job->request->ids, job->request->n);
	snapshot_note(job->request->n);
}

/* DETACH only ends the connection: see serve_connection(). */
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

/* Fills @reply, which is zeroed but for its version. */
static void run_operation(struct agent_job *job, struct agent_reply *reply)
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
		[AGENT_COPY] = run_copy,
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

/* The peer has hung up without DETACH. */
static void end_alone(void)
{
	if (!gate_is_closed() || count_away() || atomic_load(&stays_closed) || pieces_settle())
		return;
	/* Without memory for it kernels that want more get the driver's error; the next time may go well. */
	backend_set_stacks_back();
	open_gate();
}

/* ---- connections ---- */

/* Whether @n received bytes are a request, as far as its own length goes. */
static bool is_request(const struct agent_request *request, ssize_t n)
{
	size_t head = offsetof(struct agent_request, ids);

	return n >= (ssize_t)head && request->n <= AGENT_PIECES_MAX &&
	       (size_t)n >= head + request->n * sizeof(request->ids[0]);
}

/* Another member or job. It asks once, since one that its gate holds back would hang up late, and its end says nothing of
 * the gate here. */
static bool is_of_neighbour(const struct agent_request *request)
{
	return request->op == AGENT_LEND || request->op == AGENT_TAKE_BACK ||
	       request->op == AGENT_LEND_EVENT || request->op == AGENT_TAKE_EVENT_BACK;
}

enum outcome {
	HUNG_UP,
	SERVED,
	DONE, /* the connection ends, and the gate stays as it is */
};

static enum outcome serve_request(int fd)
{
	struct agent_request request = { 0 };
	struct agent_job job = { .request = &request };
	struct agent_reply reply;
	struct packet_fds came = { job.fds, AGENT_PIECES_MAX };
	ssize_t n = packet_receive(fd, &request, sizeof(request), &came, DEADLINE_NEVER);
	bool sound = came.state == PACKET_WHOLE && is_request(&request, n);
	ssize_t sent = -EPIPE;

	job.n_fds = came.n;
	/* Only these requests take descriptors; others may give some. */
	bool takes = request.op == AGENT_MAP || request.op == AGENT_GATE;

	if (!sound || !takes) {
		packet_close_fds(job.fds, job.n_fds);
		job.n_fds = 0;
	}
	if (!sound)
		return HUNG_UP;
	do {
		memset(&reply, 0, sizeof(reply));
		reply.version = AGENT_VERSION;
		run_operation(&job, &reply);
		sent = packet_send(fd, &reply, sizeof(reply), job.fds,
				   takes || reply.error ? 0 : job.n_fds, DEADLINE_NEVER);
	} while (sent >= 0 && reply.more);
	packet_close_fds(job.fds, job.n_fds);
	if (is_of_neighbour(&request))
		return DONE;
	if (sent < 0)
		return HUNG_UP;
	return request.op == AGENT_DETACH ? DONE : SERVED;
}

static void serve_connection(int fd)
{
	enum outcome outcome;

	do
		outcome = serve_request(fd);
	while (outcome == SERVED);
	if (outcome == HUNG_UP)
		end_alone();
}

/* A peer without a number here is outside of our user namespace and our pid namespace. To open a socket of ours
 * nevertheless it needs the rights of root there. */
static bool is_from_outside(const struct ucred *peer)
{
	return peer->uid == OVERFLOW_UID && peer->pid == 0;
}

static bool may_ask(int fd)
{
	struct ucred peer;

	return fd_peer(fd, &peer) == 0 &&
	       (peer.uid == 0 || peer.uid == geteuid() || is_from_outside(&peer));
}

/* Whether accepting may go well the next time. If the program has no descriptor left while a client waits, it is tried
 * again after a pause, since no event says when it has one. */
static bool accept_may_pass(int error)
{
	const struct timespec pause = { .tv_nsec = 50 * NS_PER_MS };

	if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS) {
		nanosleep(&pause, NULL);
		return true;
	}
	return error == EINTR || error == ECONNABORTED || error == EAGAIN;
}

/* ---- neighbours who ask while the agent's thread waits ---- */

enum { WAITING_MAX = 8 };

static pthread_t lender;
static atomic_int lender_fd = -1; /* as served_fd */
static int lender_told = -1;	  /* an eventfd: it is to end */
static int waiting[WAITING_MAX];  /* connections that it accepted, and whom it does not serve */
static size_t n_waiting;

static bool asks_as_neighbour(int fd)
{
	struct agent_request request = { 0 };

	return recv(fd, &request, sizeof(request), MSG_PEEK | MSG_DONTWAIT) >=
		       (ssize_t)offsetof(struct agent_request, ids) &&
	       is_of_neighbour(&request);
}

/* A client that asks for something else waits until the agent's thread is free. */
static void serve_neighbour(int conn)
{
	struct pollfd p[] = { { .fd = lender_told, .events = POLLIN },
			      { .fd = conn, .events = POLLIN } };
	bool ends = !may_ask(conn);

	atomic_store(&lender_fd, conn);
	while (!ends && poll(p, 2, -1) < 0 && errno == EINTR)
		;
	if (!ends && p[1].revents && asks_as_neighbour(conn)) {
		serve_request(conn);
		ends = true;
	}
	if (!ends)
		waiting[n_waiting++] = conn;
	atomic_store(&lender_fd, -1);
	if (ends)
		close(conn);
}

static void *lend_meanwhile(void *arg)
{
	struct pollfd p[] = { { .fd = lender_told, .events = POLLIN },
			      { .fd = listen_fd, .events = POLLIN } };

	gate_exempt();
	while (n_waiting < WAITING_MAX) {
		int conn;

		if (poll(p, 2, -1) < 0 && errno == EINTR)
			continue;
		if (p[0].revents || !is_still_ours())
			break;
		conn = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
		if (conn < 0)
			break;
		serve_neighbour(conn);
	}
	return NULL;
}

void agent_lend_meanwhile(void)
{
	lender_told = eventfd(0, EFD_CLOEXEC);
	if (lender_told >= 0 && thread_start(&lender, lend_meanwhile, NULL) < 0)
		cleanup_close(&lender_told);
}

void agent_lend_no_more(void)
{
	if (lender_told < 0)
		return;
	eventfd_write(lender_told, 1);
	pthread_join(lender, NULL);
	cleanup_close(&lender_told);
}

static int next_connection(void)
{
	return n_waiting ? waiting[--n_waiting] : accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
}

/* The shim makes the file and then looks for agents; an agent listens and then looks for the file. So one of the two
 * sees the other. */
static bool job_is_held(void)
{
	char path[sizeof(address.sun_path) + sizeof(AGENT_HOLD_FILE)];
	size_t dir = (size_t)(strrchr(address.sun_path, '/') - address.sun_path);

	snprintf(path, sizeof(path), "%.*s/%s", (int)dir, address.sun_path, AGENT_HOLD_FILE);
	return !access(path, F_OK);
}

static int listen_at_address(void);

/* If /tmp is cleared, the file of the socket is gone, and no event says so: it is looked for now and then. The shim
 * makes the directory again. */
static void listen_again(void)
{
	if (access(address.sun_path, F_OK) == 0 || errno != ENOENT)
		return;
	auto_close int fd = listen_at_address();
	if (fd >= 0 && is_still_ours())
		dup3(fd, listen_fd, O_CLOEXEC);
}

static void look_around(void)
{
	listen_again();
	gate_look_in();
}

/* With the usual policy for memory the thread sees which mappings have one of their own (process/attributes.c), also in a
 * program that numactl(8) started. */
static void leave_memory_policy(void)
{
	int mode = MPOL_DEFAULT;

	if (syscall(SYS_get_mempolicy, &mode, NULL, 0ul, NULL, 0ul) == 0 && mode != MPOL_DEFAULT)
		syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0ul);
}

static void *agent_thread(void *arg)
{
	prctl(PR_SET_NAME, AGENT_THREAD_NAME);
	leave_memory_policy();
	gate_exempt();
	if (job_is_held())
		gate_settle();
	else
		gate_open();
	while (is_still_ours()) {
		auto_close int fd = next_connection();

		if (fd < 0 && !accept_may_pass(errno))
			break;
		if (fd < 0)
			look_around();
		atomic_store(&served_fd, fd);
		if (fd >= 0 && may_ask(fd))
			serve_connection(fd);
		atomic_store(&served_fd, -1);
	}
	return NULL;
}

/* The highest number there may be is below LISTEN_FD_MIN in tight places. */
static int move_high(int fd)
{
	int high = fcntl(fd, F_DUPFD_CLOEXEC, LISTEN_FD_MIN);

	if (high < 0)
		return fd;
	close(fd);
	return high;
}

static int address_of(struct sockaddr_un *ret, const char *dir, int pid)
{
	int n;

	*ret = (struct sockaddr_un){ .sun_family = AF_UNIX };
	n = snprintf(ret->sun_path, sizeof(ret->sun_path), "%s/%d", dir, pid);
	return n < 0 || (size_t)n >= sizeof(ret->sun_path) ? -ENAMETOOLONG : 0;
}

/* Directories of agents are named by the ids of their jobs, hexadecimal, and are in one folder. */
uint32_t neighbour_here(void)
{
	const char *dir = getenv(AGENT_DIR_VARIABLE), *slash = dir ? strrchr(dir, '/') : NULL;
	char *end;
	unsigned long id = slash ? strtoul(slash + 1, &end, 16) : 0;

	return slash && end - slash - 1 == JOB_DIGITS && !*end ? (uint32_t)id : 0;
}

int neighbour_connect(uint32_t there, int pid)
{
	const char *dir = getenv(AGENT_DIR_VARIABLE);
	char beside[sizeof(((struct sockaddr_un *)NULL)->sun_path)];
	struct sockaddr_un at;
	auto_close int fd = -1;

	if (!dir)
		return -ENOENT;
	if (there != neighbour_here()) {
		const char *slash = strrchr(dir, '/');
		int n = slash ? snprintf(beside, sizeof(beside), "%.*s/%0*x", (int)(slash - dir),
					 dir, JOB_DIGITS, there)
			      : -1;

		if (n < 0 || (size_t)n >= sizeof(beside))
			return -ENOENT;
		dir = beside;
	}
	if (address_of(&at, dir, pid) < 0)
		return -ENOENT;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof(at)) < 0)
		return -errno;
	return take_fd(&fd);
}

/* Returns the socket (owned), or -errno. */
static int listen_at_address(void)
{
	const struct timeval look = { .tv_sec = AGENT_LOOKS_S };
	auto_close int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	/* The mode of the socket is that of the file to be: nobody else gets in before a chmod. */
	if (fd < 0 || fchmod(fd, AGENT_MODE_WITH_ROOM) < 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &look, sizeof(look)) < 0 ||
	    bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, 8) < 0)
		return -errno;
	return take_fd(&fd);
}

static int listen_at(const char *dir)
{
	if (address_of(&address, dir, (int)getpid()) < 0)
		return -ENAMETOOLONG;
	if (getrandom(&token, sizeof(token), GRND_NONBLOCK) != sizeof(token))
		return -EAGAIN;
	unlink(address.sun_path);
	int fd = listen_at_address();
	if (fd < 0)
		return fd;
	listen_fd = move_high(fd);
	return 0;
}

/* The gate is closed before anybody can find the agent, which opens it. */
static int start_thread(const char *dir)
{
	int r;

	gate_hold();
	r = listen_at(dir);
	if (r < 0)
		return r;
	atomic_store_explicit(&managed, true, memory_order_release);
	wake_begin(address.sun_path);
	r = thread_start_detached(agent_thread, NULL, STACK_BYTES);
	if (r < 0) {
		atomic_store(&managed, false);
		wake_begin(NULL);
		unlink(address.sun_path);
		close(listen_fd);
	}
	return r;
}

void agent_start(void)
{
	const char *dir = getenv(AGENT_DIR_VARIABLE);
	int nobody = 0, saved = errno, self = (int)getpid();

	if (!dir || !*dir)
		return;
	if (atomic_compare_exchange_strong(&owner, &nobody, self)) {
		atomic_store(&life, AGENT_LIFE_STARTING);
		if (start_thread(dir) < 0)
			gate_open();
		atomic_store(&settled, self);
	}
	while (atomic_load(&settled) != self)
		sched_yield(); /* a moment: who starts it waits for nothing */
	errno = saved;
}

void agent_forget(void)
{
	int conns[] = { atomic_exchange(&served_fd, -1), atomic_exchange(&lender_fd, -1) };

	if (listen_fd >= 0 && is_still_ours())
		close(listen_fd);
	listen_fd = -1;
	for (size_t i = 0; i < sizeof(conns) / sizeof(*conns); i++)
		cleanup_close(&conns[i]);
	while (n_waiting)
		close(waiting[--n_waiting]);
	cleanup_close(&lender_told);
	snapshot_forget();
	wake_begin(NULL);
	atomic_store(&managed, false);
	atomic_store(&life, AGENT_LIFE_READY);
	atomic_store(&owner, 0);
	atomic_store(&settled, 0);
}

// SPDX-License-Identifier: MIT
/*
 * What processes give each other: IPC handles of our memory, which the driver has none for, descriptors of
 * pieces, and IPC handles of events. Both are tickets. A ticket says which process made it and what it is of; who opens it
 * asks that process's agent for descriptors of the pieces. What is mapped here of another member of the job is an
 * alias: it is taken away with the rest, and comes back once its maker has its memory again. What goes over
 * the borders of a job is counted as shared.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/packet.h"
#include "interpose/core/agent.h"
#include "interpose/core/backend.h"
#include "interpose/core/gate.h"
#include "interpose/core/memory.h"

#define TICKET_MAGIC	   0x627275636d656d31ull
#define FILE_TICKET_MAGIC  0x627275636d656d66ull /* block 0, and the id of a piece */
#define EVENT_TICKET_MAGIC 0x627275636576656eull

enum {
	TRIES = 6000, /* a minute of them: time that the job is suspended does not count */
	RETRY_MS = 10,
	FILE_SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE,
};

/* Memory of another process, mapped here. */
struct opened {
	struct block block; /* as queries see it */
	struct ticket ticket;
	uint64_t region;
	unsigned int count;
};

/* A ticket of this process that is of nothing yet. */
static struct ticket new_ticket(uint64_t magic)
{
	return (struct ticket){
		.magic = magic, .token = agent_token(), .pid = getpid(), .job = neighbour_here()
	};
}

int ticket_make(struct ticket *ret, uint64_t va)
{
	struct ticket ticket = new_ticket(TICKET_MAGIC);
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

static bool write_ticket(int fd, const struct ticket *ticket)
{
	return write(fd, ticket, sizeof(*ticket)) == (ssize_t)sizeof(*ticket) &&
	       fcntl(fd, F_ADD_SEALS, FILE_SEALS) == 0;
}

int lent_file(int *ret_fd, struct piece *piece)
{
	struct ticket ticket = new_ticket(FILE_TICKET_MAGIC);
	auto_close int fd = -1;

	if (piece->origin.pid)
		return -EINVAL;
	ticket.id = piece->node.start;
	ticket.bytes = piece->bytes;
	fd = memfd_create("brumate-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0 || !write_ticket(fd, &ticket))
		return -EIO;
	memory_lock();
	piece->given = true;
	memory_unlock();
	*ret_fd = take_fd(&fd);
	return 0;
}

/* Whether @fd is a file of ours. The seals matter: a file that others can write to could make us ask any process. */
static bool read_ticket(struct ticket *ret, int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == (off_t)sizeof(*ret) &&
	       fcntl(fd, F_GET_SEALS) == FILE_SEALS &&
	       pread(fd, ret, sizeof(*ret), 0) == (ssize_t)sizeof(*ret) &&
	       ret->magic == FILE_TICKET_MAGIC && !ret->block && ret->id && ret->bytes &&
	       ret->pid > 0;
}

/* ---- the exporter's agent ---- */

/* LEND, ids: what they say. The last two say who asks: its job, and its process there. */
enum { LEND_TOKEN, LEND_BLOCK, LEND_ID, LEND_SKIP, LEND_JOB, LEND_PID, LEND_IDS };

/* The region of the block that a request is about. With the lock. */
static struct region *region_of(const struct agent_request *request)
{
	struct block *block = tree_get(&memory.blocks, request->ids[LEND_BLOCK]);
	bool found = block && block->id == request->ids[LEND_ID] &&
		     request->ids[LEND_TOKEN] == agent_token();

	return found ? block->region : NULL;
}

/* The piece that a request is about by itself. With the lock. */
static struct piece *piece_of(const struct agent_request *request)
{
	struct piece *piece = NULL;

	if (request->ids[LEND_TOKEN] == agent_token() && !request->ids[LEND_BLOCK])
		piece = tree_get(&memory.pieces, request->ids[LEND_ID]);
	return piece && piece->given && (piece->refs || piece->mappings) ? piece : NULL;
}

static bool request_is_complete(const struct agent_request *request, struct agent_reply *reply)
{
	if (request->n == LEND_IDS)
		return true;
	reply->error = -EBADMSG;
	return false;
}

/* What is lent next: a piece, pinned, and how much of what was asked for it is. */
struct loan {
	struct piece *piece;
	uint64_t bytes;
};

static int export_loan(const struct loan *loan, int *ret)
{
	int r = piece_export(loan->piece, ret);

	return r == -EOPNOTSUPP ? -EAGAIN : r ? -EIO : 0;
}

/* What is lent that far into what was asked for. With the lock. */
static struct loan find_loan(const struct agent_request *request, int *ret_error)
{
	struct region *region = region_of(request);
	struct piece *piece = piece_of(request);
	uint64_t skip = request->ids[LEND_SKIP];
	struct mapping *mapping = NULL;

	*ret_error = region || piece ? 0 : -ENOENT;
	if (piece)
		return skip ? (struct loan){ NULL, 0 } : (struct loan){ piece, piece->bytes };
	if (region && skip < region->node.bytes)
		mapping = tree_get(&memory.mappings, region->node.start + skip);
	return mapping ? (struct loan){ mapping->piece, mapping->node.bytes }
		       : (struct loan){ NULL, 0 };
}

static bool is_of_this_job(const struct agent_request *request)
{
	return request->ids[LEND_JOB] == neighbour_here();
}

/* Like find_loan(), but the piece is pinned, and counted where it leaves the job. Returns false for nothing, or an
 * error. */
static bool next_to_lend(const struct agent_request *request, struct loan *ret, int *ret_error)
{
	memory_lock();
	*ret = find_loan(request, ret_error);
	if (ret->piece) {
		ret->piece->pins++;
		ret->piece->given = true;
	}
	if (ret->piece && !is_of_this_job(request)) {
		ret->piece->lent++;
		ret->piece->borrower = (int32_t)request->ids[LEND_PID];
	}
	memory_unlock();
	return ret->piece;
}

static void count_back(struct piece *piece)
{
	if (piece->lent)
		piece->lent--;
}

/* Notes that one process of another job has released the pieces of [from, to). */
static void take_back(const struct agent_request *request, uint64_t from, uint64_t to)
{
	struct mapping *mapping = NULL;
	struct region *region;
	struct piece *piece;

	if (is_of_this_job(request))
		return;
	memory_lock();
	region = region_of(request);
	piece = piece_of(request);
	if (piece)
		count_back(piece);
	if (region)
		mapping = tree_ceil(&memory.mappings, region->node.start + from);
	while (mapping && mapping->node.start - region->node.start < to &&
	       mapping->node.start - region->node.start < region->node.bytes) {
		count_back(mapping->piece);
		mapping = tree_next(&memory.mappings, mapping);
	}
	memory_unlock();
}

/* While members wait for each other they lend what they have; what is lent too late finds a socket that lent_void() has shut. */
static bool may_lend(const struct agent_request *request)
{
	return !gate_is_closed() || (is_of_this_job(request) && drain_waits());
}

void lend_pieces(struct agent_job *job, struct agent_reply *reply)
{
	struct agent_request request = *job->request;
	struct loan loan;

	if (!request_is_complete(&request, reply))
		return;
	if (!may_lend(&request))
		reply->error = -EAGAIN;
	while (job->n_fds < AGENT_PIECES_MAX && !reply->error &&
	       next_to_lend(&request, &loan, &reply->error)) {
		reply->pieces[job->n_fds] = (struct agent_piece){ .id = loan.piece->node.start,
								  .va = request.ids[LEND_SKIP],
								  .len_bytes = loan.bytes };
		request.ids[LEND_SKIP] += loan.bytes;
		reply->error = export_loan(&loan, &job->fds[job->n_fds]);
		if (!reply->error)
			job->n_fds++;
		piece_unpin(loan.piece);
	}
	reply->n = (uint32_t)job->n_fds;
	if (reply->error)
		take_back(&request, job->request->ids[LEND_SKIP], request.ids[LEND_SKIP]);
}

void lend_take_back(struct agent_job *job, struct agent_reply *reply)
{
	if (request_is_complete(job->request, reply))
		take_back(job->request, 0, job->request->ids[LEND_SKIP]);
}

/* ---- questions to another process's agent ---- */

/*
 * The other process may be serving a client that waits for this process's gate to close, so a thread waits for its
 * answer outside the gate. The answer is taken inside, where memory stays what it is, and dropped if the gate closes
 * before that. A connection is good for one question.
 */
struct question {
	struct question *next;
	int conn;
};

static void add_question(struct question *q)
{
	memory_lock();
	q->next = memory.questions;
	memory.questions = q;
	memory_unlock();
}

static void end_question(struct question *q)
{
	struct question **at = &memory.questions;

	memory_lock();
	while (*at && *at != q)
		at = &(*at)->next;
	if (*at)
		*at = q->next;
	memory_unlock();
	cleanup_close(&q->conn);
}

/* Descriptors that wait in a socket keep memory, and nobody could dump them. */
static void empty_socket(int conn)
{
	struct pollfd p = { .fd = conn, .events = POLLIN };
	int fds[AGENT_PIECES_MAX];
	struct packet_fds came = { fds, AGENT_PIECES_MAX };
	char rest;

	shutdown(conn, SHUT_RDWR); /* wakes the thread that waits, and nothing more comes */
	while (poll(&p, 1, 0) > 0 && p.revents & POLLIN &&
	       packet_receive(conn, &rest, sizeof(rest), &came, DEADLINE_NEVER) > 0)
		packet_close_fds(fds, came.n);
}

void lent_void(void)
{
	memory_lock();
	for (struct question *q = memory.questions; q; q = q->next)
		empty_socket(q->conn);
	memory_unlock();
}

/* Waits for the answer. One with descriptors stays in the socket, for take_answer(); the error of any other is returned. */
static int wait_for_answer(int conn)
{
	struct pollfd p = { .fd = conn, .events = POLLIN };
	struct agent_reply reply;
	ssize_t n;

	while (poll(&p, 1, -1) < 0 && errno == EINTR)
		;
	n = recv(conn, &reply, sizeof(reply), MSG_PEEK);
	if (n != (ssize_t)sizeof(reply))
		return -EAGAIN;
	if (reply.version != AGENT_VERSION || reply.error > 0 || reply.n > AGENT_PIECES_MAX)
		return -EBADMSG;
	return reply.error;
}

static int put_question(struct question *q, const struct ticket *ticket,
			const struct agent_request *request)
{
	int conn = neighbour_connect(ticket->job, ticket->pid), r = -EAGAIN;

	if (conn < 0)
		return -EINVAL;
	q->conn = conn;
	add_question(q);
	if (packet_send(conn, request, sizeof(*request), NULL, 0, DEADLINE_NEVER) >= 0)
		r = wait_for_answer(conn);
	return r;
}

static int take_answer(const struct question *q, struct agent_reply *reply, int *fds, size_t *ret_n)
{
	struct packet_fds came = { fds, AGENT_PIECES_MAX };
	ssize_t n = packet_receive(q->conn, reply, sizeof(*reply), &came, DEADLINE_NEVER);

	if (n == (ssize_t)sizeof(*reply) && came.state == PACKET_WHOLE && came.n == reply->n) {
		*ret_n = came.n;
		return 0;
	}
	if (n >= 0)
		packet_close_fds(fds, came.n);
	return n <= 0 ? -EAGAIN : -EBADMSG;
}

static int ask_lender(uint32_t op, const struct ticket *ticket, uint64_t skip,
		      struct agent_reply *reply, int fds[static AGENT_PIECES_MAX], size_t *ret_n)
{
	const struct agent_request request = {
		.version = AGENT_VERSION,
		.op = op,
		.n = LEND_IDS,
		.ids = { ticket->token, ticket->block, ticket->id, skip, neighbour_here(),
			 (uint64_t)getpid() },
	};
	struct question q = { .conn = -1 };
	int r;

	*ret_n = 0;
	gate_leave();
	r = put_question(&q, ticket, &request);
	if (r && q.conn >= 0)
		end_question(&q);
	gate_enter();
	if (!r)
		r = take_answer(&q, reply, fds, ret_n);
	if (q.conn >= 0)
		end_question(&q);
	return r;
}

/* Tells the maker that this process does not have it open any more. Within a job it need not know. */
static void give_back(uint32_t op, const struct ticket *ticket, uint64_t bytes)
{
	struct agent_reply reply;
	int fds[AGENT_PIECES_MAX];
	size_t n = 0;

	if (ticket->job != neighbour_here())
		ask_lender(op, ticket, bytes, &reply, fds, &n);
	packet_close_fds(fds, n);
}

/* ---- the importer ---- */

static const char of_another_job[] = "memory of a process that is not of this job";

/* Imports what was lent. A piece of a process of this job keeps its origin; one of another job counts as shared. */
static int import_loan(struct piece **ret, const struct ticket *ticket,
		       const struct agent_piece *told, int fd)
{
	struct origin origin = { ticket->token, told->id, ticket->pid, ticket->job };
	bool near = ticket->job == neighbour_here();
	int r = piece_import(ret, fd, told->len_bytes, near ? &origin : NULL);

	if (r || near)
		return r;
	memory_lock();
	(*ret)->shared = of_another_job;
	memory_unlock();
	return 0;
}

static int map_loan(struct opened *opened, const struct agent_piece *told, int fd, int device)
{
	struct access access = { device, ACCESS_READ_WRITE };
	struct piece *piece;
	int r = import_loan(&piece, &opened->ticket, told, fd);

	if (r)
		return r;
	opened->block.device = piece->kind.device;
	r = piece_map(piece, opened->region + told->va, told->len_bytes, 0);
	piece_unpin(piece);
	return r ? r : range_access(opened->region + told->va, told->len_bytes, &access, 1);
}

/* Maps all of what the exporter lends; *ret_mapped bytes of it if that fails in the middle. */
static int map_lent(struct opened *opened, int device, uint64_t *ret_mapped)
{
	uint64_t all = opened->ticket.region_bytes;
	struct agent_reply reply;
	int fds[AGENT_PIECES_MAX];
	int r = 0;

	while (*ret_mapped < all && !r) {
		size_t n;

		r = ask_lender(AGENT_LEND, &opened->ticket, *ret_mapped, &reply, fds, &n);
		if (r || !n)
			r = r == -EAGAIN ? -EAGAIN : -EINVAL;
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
	int r = addresses_reserve(&va, opened->ticket.region_bytes);

	if (r)
		return r;
	opened->region = va;
	r = map_lent(opened, device, &mapped);
	if (!r)
		return r;
	addresses_release(va, opened->ticket.region_bytes, mapped ? range_unmap(va, mapped) : 0);
	if (mapped)
		give_back(AGENT_TAKE_BACK, &opened->ticket, mapped);
	return r;
}

static void wait_outside(void)
{
	const struct timespec retry = { .tv_nsec = RETRY_MS * NS_PER_MS };

	gate_leave();
	nanosleep(&retry, NULL);
	gate_enter();
}

/* While the exporter's memory is away it lends nothing. We wait outside the gate: we may be next. */
static int open_patiently(struct opened *opened, int device)
{
	int r;

	for (int i = 0; (r = open_lent_once(opened, device)) == -EAGAIN && i < TRIES; i++)
		wait_outside();
	return r;
}

/* A handle that is opened again gives the same memory. */
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

/* @opened is in no table any more. */
static void close_opened(struct opened *opened)
{
	addresses_release(opened->region, opened->ticket.region_bytes,
			  range_unmap(opened->region, opened->ticket.region_bytes));
	give_back(AGENT_TAKE_BACK, &opened->ticket, opened->ticket.region_bytes);
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
		if (capture_forbid()) {
			backend_wait(owner);
			capture_permit();
		}
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

/* ---- descriptors ---- */

/* What this process made itself: the same memory, by one more handle. */
static int find_own(struct piece **ret, const struct ticket *ticket)
{
	struct piece *piece;

	memory_lock();
	piece = tree_get(&memory.pieces, ticket->id);
	if (piece && piece->given)
		piece->pins++;
	else
		piece = NULL;
	memory_unlock();
	if (piece)
		*ret = piece;
	return piece ? 0 : -EINVAL;
}

static int import_once(struct piece **ret, const struct ticket *ticket)
{
	struct agent_reply reply;
	int fds[AGENT_PIECES_MAX];
	size_t n;
	int r = ask_lender(AGENT_LEND, ticket, 0, &reply, fds, &n);

	if (r == -EAGAIN)
		return r;
	if (r || n != 1 || reply.pieces[0].id != ticket->id)
		r = -EINVAL;
	if (!r)
		r = import_loan(ret, ticket, &reply.pieces[0], fds[0]);
	packet_close_fds(fds, n);
	return r;
}

int lent_import(struct piece **ret, int fd)
{
	struct ticket ticket;
	int r;

	if (!read_ticket(&ticket, fd))
		return -ENODATA;
	if (ticket.token == agent_token())
		return find_own(ret, &ticket);
	for (int i = 0; (r = import_once(ret, &ticket)) == -EAGAIN && i < TRIES; i++)
		wait_outside();
	return r;
}

/*
 * ---- events ----
 *
 * The driver's handle of an event is good only as long as the driver keeps what is behind it: who opens a ticket asks the
 * agent of the event's maker for the driver's handle of that moment. So an event that is given away is no obstacle to an
 * operation, and its ticket is as good after it. One that is open in another process of the job is closed there while the gate
 * is closed, when all that was recorded is done, and opened again by its ticket when it is used next: the program goes on with
 * the name that the driver gave it first, which then stands for what the driver calls it now.
 */

/* An event that this process gave to others, or got from one. */
struct event {
	struct node
		node; /* start: the driver's handle; of one that another process made, the first */
	void *now;    /* of such a one: the driver's handle; NULL: it is closed */
	bool fixed;   /* it is in a graph */
	uint64_t id;
	void *context;	      /* NULL: gone, and the driver's event with it */
	struct ticket ticket; /* of one that another process made; else empty */
	unsigned int lent;    /* processes outside the job that have it open */
	int32_t borrower;     /* one of them */
	unsigned int pins;    /* questions to the driver about it that are under way */
	bool dropped;	      /* out of the table: the last unpin_event() ends it */
};

static bool is_imported(const struct event *event)
{
	return event->ticket.magic;
}

static void *handle_of(const struct event *event)
{
	return (void *)(uintptr_t)event->node.start;
}

static struct event *add_event(void *handle, void *context)
{
	struct event *event = calloc(1, sizeof(*event));

	if (!event)
		return NULL;
	event->node = (struct node){ .start = (uintptr_t)handle, .bytes = 1 };
	event->id = ++memory.last_id;
	event->context = context;
	tree_add(&memory.events, &event->node);
	atomic_fetch_add(&memory.n_events, 1);
	return event;
}

static bool is_renamed(const struct event *event)
{
	return is_imported(event) && event->now != handle_of(event);
}

/* With the lock. */
static void rename_event(struct event *event, void *now)
{
	const bool before = is_renamed(event);

	event->now = now;
	if (is_renamed(event) && !before)
		atomic_fetch_add(&memory.n_renamed, 1);
	else if (before && !is_renamed(event))
		atomic_fetch_sub(&memory.n_renamed, 1);
}

static void remove_event(struct event *event)
{
	if (is_renamed(event))
		atomic_fetch_sub(&memory.n_renamed, 1);
	tree_remove(&memory.events, &event->node);
	atomic_fetch_sub(&memory.n_events, 1);
	event->dropped = true;
}

void lent_event_back(const struct ticket *ticket)
{
	give_back(AGENT_TAKE_EVENT_BACK, ticket, 0);
}

bool ticket_is_of_event(const struct ticket *ticket)
{
	return ticket->magic == EVENT_TICKET_MAGIC;
}

int event_give(struct ticket *ret, void *handle, void *context)
{
	struct ticket ticket = new_ticket(EVENT_TICKET_MAGIC);
	struct event *event;

	memory_lock();
	event = tree_get(&memory.events, (uintptr_t)handle);
	if (!event)
		event = add_event(handle, context);
	if (event) {
		ticket.block = event->node.start;
		ticket.id = event->id;
		*ret = ticket;
	}
	memory_unlock();
	return event ? 0 : -ENOMEM;
}

int event_note_taken(void *handle, void *context, const struct ticket *ticket)
{
	struct event *event;

	memory_lock();
	event = add_event(handle, context);
	if (event) {
		event->ticket = *ticket;
		event->now = handle;
	}
	memory_unlock();
	return event ? 0 : -ENOMEM;
}

/* Nobody else has @event. */
static void end_event(struct event *event)
{
	if (is_imported(event))
		lent_event_back(&event->ticket);
	free(event);
}

bool event_drop(void **handle)
{
	struct event *event;
	bool pinned = false;

	if (!atomic_load_explicit(&memory.n_events, memory_order_relaxed))
		return true;
	memory_lock();
	event = tree_get(&memory.events, (uintptr_t)*handle);
	if (event) {
		remove_event(event);
		pinned = event->pins;
		if (is_imported(event))
			*handle = event->now;
	}
	memory_unlock();
	if (event && !pinned)
		end_event(event);
	return !pinned;
}

void events_drop(void *context)
{
	for (;;) {
		struct event *event = NULL;
		bool pinned = false;

		memory_lock();
		while ((event = tree_next(&memory.events, event)) && event->context != context)
			;
		if (event) {
			remove_event(event);
			event->context = NULL;
			pinned = event->pins;
		}
		memory_unlock();
		if (!event)
			return;
		if (!pinned)
			end_event(event);
	}
}

int lent_event(uint8_t ret[static AGENT_EVENT_BYTES], const struct ticket *ticket)
{
	struct agent_reply reply;
	int fds[AGENT_PIECES_MAX], r;
	size_t n;

	if (ticket->pid <= 0)
		return -EINVAL;
	for (int i = 0;
	     (r = ask_lender(AGENT_LEND_EVENT, ticket, 0, &reply, fds, &n)) == -EAGAIN && i < TRIES;
	     i++)
		wait_outside();
	if (r)
		return r == -EAGAIN ? r : -EINVAL;
	packet_close_fds(fds, n);
	memcpy(ret, reply.event, AGENT_EVENT_BYTES);
	return 0;
}

bool event_is_renamed(void *name)
{
	struct event *event;
	bool is;

	if (!atomic_load_explicit(&memory.n_renamed, memory_order_relaxed))
		return false;
	memory_lock();
	event = tree_get(&memory.events, (uintptr_t)name);
	is = event && is_renamed(event);
	memory_unlock();
	return is;
}

int event_resolve(void **name, void **ret_context, struct ticket *ret_ticket)
{
	struct event *event;
	int r = 0;

	if (!atomic_load_explicit(&memory.n_renamed, memory_order_relaxed))
		return 0;
	memory_lock();
	event = tree_get(&memory.events, (uintptr_t)*name);
	if (event && is_imported(event)) {
		r = event->now ? 0 : -ENXIO;
		*ret_context = event->context;
		*ret_ticket = event->ticket;
		*name = event->now ? event->now : *name;
	}
	memory_unlock();
	return r;
}

bool event_bring(void *name, void *handle)
{
	struct event *event;
	bool is_away;

	memory_lock();
	event = tree_get(&memory.events, (uintptr_t)name);
	is_away = event && is_imported(event) && !event->now;
	if (is_away)
		rename_event(event, handle);
	memory_unlock();
	return is_away;
}

void event_fix(void *name)
{
	struct event *event;

	if (!atomic_load_explicit(&memory.n_events, memory_order_relaxed))
		return;
	memory_lock();
	event = tree_get(&memory.events, (uintptr_t)name);
	if (event)
		event->fixed = true;
	memory_unlock();
}

/* Whether it can be closed, and opened again by its ticket. */
static bool may_go(const struct event *event)
{
	return is_imported(event) && !event->fixed && event->ticket.job == neighbour_here();
}

void events_take_away(void)
{
	for (;;) {
		struct event *event = NULL;
		void *now = NULL;

		memory_lock();
		while ((event = tree_next(&memory.events, event)) && !(may_go(event) && event->now))
			;
		if (event) {
			now = event->now;
			rename_event(event, NULL);
		}
		memory_unlock();
		if (!now)
			return;
		backend_event_destroy(now);
	}
}

int32_t event_find_open(int32_t *ret_borrower)
{
	struct event *event = NULL;
	int32_t maker = 0;

	*ret_borrower = 0;
	while ((event = tree_next(&memory.events, event))) {
		if (is_imported(event) && !may_go(event))
			maker = event->ticket.pid;
		else if (event->lent)
			*ret_borrower = event->borrower;
	}
	return maker;
}

/* ---- the maker's agent: events ---- */

static void unpin_event(struct event *event)
{
	bool last;

	memory_lock();
	last = !--event->pins && event->dropped;
	memory_unlock();
	if (!last)
		return;
	if (event->context)
		backend_event_destroy(handle_of(event));
	free(event);
}

/* The event that a request is about. With the lock. */
static struct event *event_of(const struct agent_request *request)
{
	struct event *event = tree_get(&memory.events, request->ids[LEND_BLOCK]);

	bool found = event && event->id == request->ids[LEND_ID] &&
		     request->ids[LEND_TOKEN] == agent_token();

	return found && !is_imported(event) ? event : NULL;
}

static int export_event(const struct agent_request *request, uint8_t ret[static AGENT_EVENT_BYTES])
{
	struct event *event;
	void *context = NULL;
	int r;

	memory_lock();
	event = event_of(request);
	if (event) {
		event->pins++;
		context = event->context;
	}
	memory_unlock();
	if (!event)
		return -ENOENT;
	r = backend_event_export(context, handle_of(event), ret);
	if (!r && !is_of_this_job(request)) {
		memory_lock();
		event->lent++;
		event->borrower = (int32_t)request->ids[LEND_PID];
		memory_unlock();
	}
	unpin_event(event);
	return r ? -EIO : 0;
}

void lend_event(struct agent_job *job, struct agent_reply *reply)
{
	if (request_is_complete(job->request, reply))
		reply->error =
			may_lend(job->request) ? export_event(job->request, reply->event) : -EAGAIN;
}

void lend_take_event_back(struct agent_job *job, struct agent_reply *reply)
{
	struct event *event;

	if (!request_is_complete(job->request, reply) || is_of_this_job(job->request))
		return;
	memory_lock();
	event = event_of(job->request);
	if (event && event->lent)
		event->lent--;
	memory_unlock();
}

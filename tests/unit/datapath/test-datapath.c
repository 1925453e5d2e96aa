// SPDX-License-Identifier: MIT
/*
 * The data path by itself: no job, no store. A thread of this process is the agent, which gives out device memory
 * of the simulated driver; broker and keeper are the real ones. What a checkpoint would hold is a buffer.
 */
#include "../broker/pieces.h"

#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/packet.h"
#include "datapath/park.h"
#include "datapath/move.h"

enum { PIECES = AGENT_PIECES_MAX + 6, COPIED_MS = 30000 }; /* an agent exports them in two turns */

static uint64_t piece_bytes(size_t i)
{
	return (i < 3 ? i + 1 : 1) * CHUNK;
}

/* ---- the agent ---- */

static const struct target_owner test_owner;
static struct target owner;
static struct datapath d;
static struct vault vault;
static struct set set; /* its memory; fd -1: unmapped */
static _Atomic enum agent_gate gate;
static int listen_fd;

static size_t count_mapped(void)
{
	size_t n = 0;

	for (size_t i = 0; i < PIECES; i++)
		n += set.fds[i] >= 0;
	return n;
}

/* As many as one reply takes. */
static void list_pieces(struct agent_reply *reply, size_t first)
{
	for (size_t i = first; i < PIECES && reply->n < AGENT_PIECES_MAX; i++) {
		struct agent_piece *p = &reply->pieces[reply->n++];

		*p = (struct agent_piece){ .id = i + 1,
					   .va = (i + 1) << 30,
					   .len_bytes = piece_bytes(i) };
		CHECK(dev_uuid_parse(p->gpu, set.pieces[i].gpu) == 0);
	}
	reply->more = first + reply->n < PIECES;
}

/* What the second turn of an export does before it answers. */
static _Atomic enum { EXPORTS, EXPORTS_LATE, EXPORTS_NO_MORE } second_turn;

static size_t export_pieces(const struct agent_request *request, int *fds,
			    struct agent_reply *reply)
{
	const bool second = request->ids[0] > AGENT_PIECES_MAX;

	if (second && second_turn == EXPORTS_NO_MORE) {
		reply->error = -EIO;
		return 0;
	}
	if (second &&
	    second_turn == EXPORTS_LATE) /* what the first turn gave is copied meanwhile */
		CHECK(move_wait_copied(&d, 0, COPIED_MS) > 0);
	for (size_t i = 0; i < request->n; i++)
		fds[i] = set.fds[request->ids[i] - 1];
	return request->n;
}

/* Returns how many of @fds go with the reply. */
static size_t act(const struct agent_request *request, int *fds, struct agent_reply *reply)
{
	if (request->op == AGENT_GATE)
		gate = AGENT_GATE_CLOSED;
	if (request->op == AGENT_EXPORT)
		return export_pieces(request, fds, reply);
	if (request->op == AGENT_UNMAP) {
		set_close_fds(&set);
		gate = AGENT_GATE_UNMAPPED;
	}
	if (request->op == AGENT_MAP) {
		for (size_t i = 0; i < request->n; i++)
			set.fds[request->ids[i] - 1] = fds[i];
		gate = count_mapped() == PIECES ? AGENT_GATE_CLOSED : AGENT_GATE_UNMAPPED;
	}
	if (request->op == AGENT_OPEN)
		gate = AGENT_GATE_OPEN;
	return 0;
}

static bool send_list(int socket_fd)
{
	bool sent = true, more = true;

	for (size_t first = 0; sent && more; first += AGENT_PIECES_MAX) {
		struct agent_reply reply = { .version = AGENT_VERSION, .gate = gate };

		list_pieces(&reply, first);
		more = reply.more;
		sent = packet_send(socket_fd, &reply, sizeof(reply), NULL, 0, DEADLINE_NEVER) > 0;
	}
	return sent;
}

static bool serve_request(int socket_fd)
{
	int given[AGENT_PIECES_MAX];
	struct packet_fds fds = { .items = given, .room = AGENT_PIECES_MAX };
	struct agent_request request;
	struct agent_reply reply = { .version = AGENT_VERSION };

	if (packet_receive(socket_fd, &request, sizeof(request), &fds, DEADLINE_NEVER) !=
	    (ssize_t)sizeof(request))
		return false;
	if (request.op == AGENT_LIST)
		return send_list(socket_fd);
	size_t n_fds = act(&request, given, &reply);
	reply.gate = gate;
	return packet_send(socket_fd, &reply, sizeof(reply), given, n_fds, DEADLINE_NEVER) > 0;
}

static void *serve(void *arg)
{
	int fd;

	while ((fd = accept(listen_fd, NULL, NULL)) >= 0) {
		while (serve_request(fd))
			;
		close(fd);
	}
	return arg;
}

/* ---- a checkpoint ---- */

static char *saved;
static uint64_t saved_bytes;

static int save(void *arg, const struct host_copy *copy, uint64_t start, uint64_t end,
		const struct digest *digests, struct brumate_error *err)
{
	CHECK(start == saved_bytes && end <= copy->total_bytes);
	CHECK(vault.n_pieces == PIECES); /* whose memory it is */
	saved = realloc(saved, copy->total_bytes);
	CHECK(saved);
	copy_read(copy, start, saved + start, end - start);
	saved_bytes = end;
	return 0;
}

static int plan(void *arg, struct feed *feed, struct digest_table *digests, bool verify,
		struct brumate_error *err)
{
	CHECK(feed_n_chunks(feed) * CHUNK_BYTES_MAX == saved_bytes);
	for (size_t i = 0; i < feed_n_chunks(feed); i++)
		feed_chunk_is(feed, i, FEED_READ);
	return 0;
}

static int fill(void *arg, struct feed *feed, bool (*is_cancelled)(void *arg), void *cancel_arg,
		struct brumate_error *err)
{
	CHECK(!is_cancelled(cancel_arg));
	for (size_t i = 0; i < feed_n(feed); i++) {
		CHECK(feed_admit(feed, i, true) == 1);
		memcpy(feed_room(feed, i), saved + feed_chunk(feed, i) * CHUNK_BYTES_MAX,
		       CHUNK_BYTES_MAX);
		CHECK(feed_filled(feed, i) == 0);
	}
	return 0;
}

/* ---- the data path ---- */

static struct progress progress;
static atomic_bool wants_to_stop;

static bool is_stopped(void *arg)
{
	return wants_to_stop;
}

static void begin(void)
{
	const struct progress_caller caller = { .is_cancelled = is_stopped };
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	struct brumate_error err;
	struct proc_id self;

	wants_to_stop = false;
	progress_init(&progress, &caller, 0);
	must(proc_identify(&self, getpid(), &err), &err);
	owner = (struct target){ .owned_by = &test_owner,
				 .id = "container",
				 .dir = node_dir,
				 .root = self,
				 .simulated = true };
	d = (struct datapath){ .target = &owner,
			       .agent_dir = path_format("%s/agents", node_dir),
			       .uses_agents = true,
			       .vault = &vault,
			       .progress = &progress,
			       .lock_timeout_ms = 1000 };
	must(proc_tree_read(&tree, self, &err), &err);
	must(park_find(&d, &tree, &self, 1, &progress, &err), &err);
	CHECK(d.n_agents == 1 && !progress.n_notes);
}

static void end(void)
{
	move_stop(&d);
	datapath_fini(&d);
	progress_fini(&progress);
}

static void park(void)
{
	struct brumate_error err;

	must(park_gate(&d, &err), &err);
	must(park_take(&d, true, &err), &err);
	CHECK(vault.n_pieces == PIECES && vault_has_device(&vault));
	must(move_start_out(&d, &err), &err);
	must(park_unmap(&d, &err), &err);
}

static void check_back(void)
{
	struct brumate_error err;

	park_map_early(&d);
	must(move_wait(&d, &err), &err);
	must(park_map(&d, &err), &err);
	CHECK(gate == AGENT_GATE_CLOSED && count_mapped() == PIECES);
	must(park_open(&d, &err), &err);
	CHECK(gate == AGENT_GATE_OPEN && progress.released_ns && !vault.n_pieces);
	set_check_device(&set);
}

static void there_and_back(void)
{
	struct brumate_error err;

	begin();
	d.sink = (struct datapath_sink){ .save = save, .while_copying = true };
	park();
	must(move_wait(&d, &err), &err);
	CHECK(vault.copied && d.sums.bytes == host_copy_offset(set.pieces, PIECES));
	CHECK(saved_bytes == d.sums.bytes && !move_is_on(&d));
	vault_drop_device(&vault);
	must(move_start_in(&d, NULL, &err), &err);
	check_back();
	end();
}

/* The pieces are known, and nothing of them is there but what a checkpoint has. */
static void from_a_checkpoint(void)
{
	const struct datapath_source source = { .plan = plan, .feed = fill };
	struct brumate_error err;

	begin();
	park();
	must(move_wait(&d, &err), &err);
	vault_drop_device(&vault);
	vault_drop_copy(&vault);
	must(move_start_in(&d, &source, &err), &err);
	check_back();
	end();
}

static void given_up(void)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	begin();
	wants_to_stop = true;
	park();
	CHECK(move_wait(&d, &err) == -ECANCELED && !vault.copied);
	must(park_return(&d, &err), &err);
	CHECK(gate == AGENT_GATE_OPEN && count_mapped() == PIECES);
	set_check_device(&set);
	end();
}

/* The copy of what is exported does not wait for the rest. */
static void copied_while_parked(void)
{
	second_turn = EXPORTS_LATE;
	saved_bytes = 0;
	there_and_back();
	second_turn = EXPORTS;
}

/* Nothing that was begun ahead outlives it, and the next try begins anew. */
static void not_all_is_exported(void)
{
	struct brumate_error err;

	begin();
	second_turn = EXPORTS_NO_MORE;
	must(park_gate(&d, &err), &err);
	CHECK(park_take(&d, true, &err) == -EIO && !move_is_on(&d));
	second_turn = EXPORTS;
	CHECK(gate == AGENT_GATE_CLOSED && count_mapped() == PIECES);
	park();
	must(move_wait(&d, &err), &err);
	vault_drop_device(&vault);
	must(move_start_in(&d, NULL, &err), &err);
	check_back();
	end();
}

static void listen_as_agent(void)
{
	auto_free char *dir = path_format("%s/agents", node_dir);
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	CHECK(mkdir(dir, 0700) == 0);
	listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/%d", dir, getpid());
	CHECK(listen_fd >= 0 && !bind(listen_fd, (struct sockaddr *)&address, sizeof(address)) &&
	      !listen(listen_fd, 8));
}

int main(void)
{
	pthread_t thread;

	vault = VAULT_EMPTY;
	node_start();
	driver_open();
	broker_start();
	set = set_make(PIECES, piece_bytes, 1);
	listen_as_agent();
	CHECK(pthread_create(&thread, NULL, serve, NULL) == 0);
	there_and_back();
	from_a_checkpoint();
	given_up();
	copied_while_parked();
	not_all_is_exported();
	shutdown(listen_fd, SHUT_RDWR);
	pthread_join(thread, NULL);
	set_free(&set);
	free(saved);
	end_broker(&b);
	node_end();
	return 0;
}

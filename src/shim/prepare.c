// SPDX-License-Identifier: MIT
/*
 * Host memory for a copy of the job's device memory, ready before the copy is wanted: the first suspend would otherwise
 * wait for the kernel to give it out. The broker has it ready, as long as a pipe of ours is open, and decides how
 * much. The shim says for which processes, once the job has run for a while, and again when they have changed; and how much
 * of a host copy it keeps. A job that does not run needs none.
 *
 * A spare host copy is released when the broker hangs up, as it does when another process needs the memory: it alone
 * knows. So a copy that the broker does not know of is released, too.
 *
 * Where all agents of the job ask for room (client/room.h), the broker may keep the GPUs open for it. It hangs up where that
 * is to be another way by now. A process of the job that misses that device memory gets it back.
 */
#include "shim/shim.h"

#include <stdlib.h>
#include <string.h>

#include "base/conf.h"
#include "base/log.h"
#include "client/agent.h"
#include "client/broker.h"
#include "client/room.h"
#include "process/process.h"

/* A job that has run for a minute is to find its memory ready, one that ends soon is to cost nothing. */
enum {
	FIRST_MS = 10000,
	AGAIN_MS = 3000, /* after an operation, before what is still pinned is released */
	HUNG_UP_MS = 100,
	EVERY_MS = 30000,
	LITTLE_MOST_MS = 600000,
};

/* What the broker keeps ready. */
struct kept {
	int fd;	     /* as long as it is open; -1: nothing */
	pid_t *pids; /* for these */
	size_t n_pids;
	uint64_t bytes; /* of the job's host copy, as the broker knows them */
};

/* A look at the processes, and what the broker answers if it has to be asked again. */
struct look {
	struct proc_members members;
	struct gpu_kind gpu_kind;
	bool listens;	 /* processes that may need the memory which this takes can ask for it */
	bool gives_back; /* GPUs were open, and are to be no more */
	struct broker_prepare request;
	enum {
		LOOK_NO_NEWS,
		LOOK_FAILED,
		LOOK_ANSWERED,
	} result;
	struct broker_prepared answer;
	pid_t *pids; /* of the request; owned */
	int fd;
};

struct prepare {
	struct shim *shim;
	struct loop_source hang_up, timer, miss; /* a process misses device memory */
	struct loop_task task, give_back;
	uint64_t pause_ms; /* before the next look */
	struct kept kept;
	struct look look; /* of the task */
	struct room room; /* what of device memory is taken so */
	bool may_open;	  /* GPUs for that */
	bool little;	  /* the processes have too little */
	bool asked;	  /* the broker has been, at least once */
	bool gives_back;  /* at the next look */
};

static void release(struct prepare *p)
{
	loop_watch(&p->hang_up, -1, 0);
	cleanup_close(&p->kept.fd);
	free(p->kept.pids);
	p->kept = (struct kept){ .fd = -1 };
}

/* Threads have their part for themselves while they work. */
static void watch(struct prepare *p)
{
	loop_watch(&p->hang_up, loop_task_works(&p->task) ? -1 : p->kept.fd, 0);
	loop_watch(&p->miss, loop_task_works(&p->give_back) ? -1 : p->room.listen_fd, POLLIN);
}

/* Not during an operation, which may be about to use it; what is left of it then is looked at again. */
static void give_spare_back(struct shim *s)
{
	if (!s->view.spare_bytes || shim_begin_now(s, "release of its host copy", 0, NULL) < 0)
		return;
	s->ending = true; /* others wait for it, also where that takes the kernel a while */
	const bool given = vault_drop_spare(&s->vault, &s->job.target);
	if (given) {
		s->job.kept_bytes = 0;
		job_save(&s->job, NULL);
	}
	shim_end(s);
	if (given)
		log_info("the host copy of the running job is given back: job=%s", s->job.id);
}

/* Programs that look how much there is are not to count on what is going. */
static void hung_up(void *arg)
{
	struct prepare *p = arg;

	give_spare_back(p->shim);
	p->gives_back = p->gives_back || p->room.held_fd >= 0;
	room_tell(&p->room, NULL, 0);
	release(p);
	if (!loop_has_time(&p->timer))
		return;
	p->pause_ms = HUNG_UP_MS;
	loop_after(&p->timer, p->pause_ms);
}

/* After a look. GPUs that are open are announced, and without any nobody has to listen. */
static void take_answer(void *arg)
{
	struct prepare *p = arg;
	struct look *l = &p->look;

	if (l->result == LOOK_ANSWERED) {
		release(p);
		p->little = l->fd < 0;
	}
	if (l->fd >= 0)
		p->kept = (struct kept){ take_fd(&l->fd), take_ptr(&l->pids), l->request.n,
					 l->request.kept_bytes };
	free(take_ptr(&l->pids));
	if (l->result == LOOK_NO_NEWS)
		return;
	p->asked = true;
	if (l->result == LOOK_ANSWERED && l->answer.n_open)
		room_tell(&p->room, l->answer.open, l->answer.n_open);
	else
		room_close(&p->room);
	if (l->request.spare && p->kept.fd < 0) /* nobody would have it given back */
		give_spare_back(p->shim);
}

static void prepare_update(void *part)
{
	struct prepare *p = part;
	struct shim *s = p->shim;
	const struct shim_view *v = &s->view;

	if (!s->returns_spare)
		give_spare_back(s);
	if (s->returns_spare && !loop_task_works(&p->task) && !loop_task_works(&p->give_back)) {
		/* During an operation what is ready stays ready: a suspend is about to use it. */
		const bool wants = v->state == JOB_RUNNING && v->data_path == JOB_DATA_BROKER;
		const bool news =
			v->use == SHIM_FREE && v->spare_bytes && v->kept_bytes != p->kept.bytes;

		if (wants && !loop_has_time(&p->timer))
			p->pause_ms = p->asked ? AGAIN_MS : FIRST_MS;
		const bool soon = wants && news && p->pause_ms != HUNG_UP_MS;
		if (soon)
			p->pause_ms = HUNG_UP_MS;
		if (wants && (soon || !loop_has_time(&p->timer)))
			loop_after(&p->timer, p->pause_ms);
		if (!wants) {
			loop_never(&p->timer);
			release(p);
			room_close(&p->room);
		}
	}
	watch(p);
}

static int compare_pids(const void *a, const void *b)
{
	pid_t x = *(const pid_t *)a, y = *(const pid_t *)b;

	return x < y ? -1 : x > y;
}

/* Whether all processes of the tree that have an agent would ask for the device memory that is held; false if there are
 * none. */
static bool all_ask_for_room(const char *dir, const struct proc_tree *tree)
{
	auto_close int dir_fd = dir ? agent_dir_open(dir) : -1;
	bool any = false;

	for (size_t i = 0; i < tree->n && dir_fd >= 0; i++) {
		const pid_t pid = tree->items[i].inner_pid;

		if (!agent_listens(dir, pid))
			continue;
		if (!agent_asks_for_room(dir_fd, pid))
			return false;
		any = true;
	}
	return any;
}

/* Finds the members of the job, in order. */
static int find_pids(struct prepare *p)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	struct look *l = &p->look;

	if (proc_members_read(&tree, &l->members, NULL) < 0)
		return -ESRCH;
	l->pids = calloc(tree.n + 1, sizeof(*l->pids));
	if (!l->pids)
		return -ENOMEM;
	for (size_t i = 0; i < tree.n; i++)
		l->pids[i] = tree.items[i].id.pid;
	qsort(l->pids, tree.n, sizeof(*l->pids), compare_pids);
	l->request.pids = l->pids;
	l->request.n = tree.n;
	l->request.yields = l->listens && all_ask_for_room(p->room.dir, &tree);
	return 0;
}

static bool has_news(const struct kept *kept, const struct broker_prepare *request)
{
	return broker_has_hung_up(kept->fd) || request->n != kept->n_pids ||
	       request->kept_bytes != kept->bytes ||
	       memcmp(request->pids, kept->pids, request->n * sizeof(*kept->pids)) != 0;
}

/* In its own thread: the broker may have to be started, and to load the driver. */
static void look(void *arg)
{
	struct prepare *p = arg;
	struct look *l = &p->look;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	auto_(broker_client_close) struct broker_client b = BROKER_CLIENT_EMPTY;
	int r = find_pids(p);

	if (l->gives_back)
		room_give_back(&l->gpu_kind);
	if (r < 0 || !has_news(&p->kept, &l->request))
		return;
	r = broker_client_open(&b, &l->gpu_kind, &err);
	if (r == 0)
		r = broker_client_prepare(&b, &l->request, &l->answer, &l->fd, &err);
	if (r < 0)
		log_debug("no memory is made ready: reason=\"%s\"", err.text);
	l->result = r < 0 ? LOOK_FAILED : LOOK_ANSWERED;
}

static void prepare_due(void *arg)
{
	struct prepare *p = arg;
	const struct shim_view *v = &p->shim->view;

	if (loop_task_works(&p->task) || loop_task_works(&p->give_back))
		return; /* after it */
	/* Processes that have little are looked at less and less often. */
	p->pause_ms = p->little && p->pause_ms >= EVERY_MS && p->pause_ms < LITTLE_MOST_MS
			      ? p->pause_ms * 2
			      : EVERY_MS;
	loop_after(&p->timer, p->pause_ms);
	if (v->use != SHIM_FREE)
		return;
	p->look = (struct look){
		.members = v->members,
		.gpu_kind = v->gpu_kind,
		.request = { .kept_bytes = v->kept_bytes, .spare = v->spare_bytes },
		/* Before the broker opens any: a process may need the memory at once. */
		.listens = p->may_open && room_listen(&p->room),
		.gives_back = p->gives_back,
		.fd = -1,
	};
	p->gives_back =
		loop_task_start(p->shim->loop, &p->task, look, take_answer, p) < 0 && p->gives_back;
	watch(p);
}

static void answer_missing(void *arg)
{
	struct prepare *p = arg;

	room_give_back(&p->look.gpu_kind);
	room_answer(&p->room);
}

static void missed(void *arg)
{
	struct prepare *p = arg;

	room_tell(&p->room, NULL, 0);
	if (loop_task_start(p->shim->loop, &p->give_back, answer_missing, NULL, p) < 0)
		log_debug("nobody gives device memory back yet: no thread");
}

static void prepare_start(void *part, struct shim *s)
{
	struct prepare *p = part;
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;

	p->shim = s;
	p->kept.fd = p->look.fd = -1;
	p->room = ROOM_NONE;
	loop_add(s->loop, &p->hang_up, hung_up, p);
	loop_add(s->loop, &p->timer, prepare_due, p);
	loop_add(s->loop, &p->miss, missed, p);
	s->returns_spare = conf_load(&conf, NULL) == 0 && conf.prepare;
	if (!s->returns_spare)
		return;
	p->may_open = conf.prepare_gpu && !s->job.by_pid;
	p->room.dir = p->may_open ? job_agent_dir(&s->job.target) : NULL;
	room_tell(&p->room, NULL, 0); /* of a predecessor's */
}

static void prepare_stop(void *part)
{
	struct prepare *p = part;

	free(take_ptr(&p->look.pids));
	cleanup_close(&p->look.fd);
	release(p);
	room_close(&p->room);
	cleanup_free(&p->room.dir);
}

const struct shim_part prepare_part = {
	.size_bytes = sizeof(struct prepare),
	.start = prepare_start,
	.update = prepare_update,
	.stop = prepare_stop,
};

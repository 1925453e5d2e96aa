// SPDX-License-Identifier: MIT
/* Groups of jobs with one intent. See group.h. Owns the directories under $BRUMATE_STATE_DIR/groups; never talks to a process. */
#include "job/group.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/paths.h"
#include "base/schema.h"
#include "base/thread.h"
#include "job/record.h"

enum { GROUP_VERSION = 1, GROUP_BYTES_MAX = 64 << 20, POINT_BYTES = 64 };

static const char group_record_name[] = "group.json", group_lock_name[] = "lock";

/* ---- the record ---- */

static const char *const way_names[GROUP_WAY__MAX] = { "forward", "back", "finish" };
static const char *const step_state_names[GROUP_STEP_STATE__MAX] = { "waits", "begun", "done",
								     "undone" };

static const struct schema_field step_fields[] = {
	TEXT(struct group_step, "job", job),
	TEXT(struct group_step, "act", act.method),
	PLAIN(struct group_step, "act_parameters", act.parameters, FIELD_OPTIONAL),
	TEXT(struct group_step, "undo", undo.method),
	PLAIN(struct group_step, "undo_parameters", undo.parameters, FIELD_OPTIONAL),
	WORD(struct group_step, state, step_state_names),
};

static const struct schema_field group_fields[] = {
	TEXT(struct group, "id", id),
	TEXT(struct group, "created", created),
	WORD(struct group, way, way_names),
	TEXT(struct group, "reason", reason),
	LIST(struct group, "steps", steps, n_steps, step_fields, GROUP_STEPS_MAX),
};

void group_fini(struct group *g)
{
	schema_free(group_fields, N_OF(group_fields), g);
	free(g->dir);
	cleanup_close(&g->lock_fd);
	*g = GROUP_EMPTY;
}

char *group_encode(const struct group *g)
{
	auto_json json_t *o = json_pack("{s:i}", "version", GROUP_VERSION);

	return o && schema_encode(o, group_fields, N_OF(group_fields), g, GROUP_VERSION) == 0
		       ? json_dumps(o, JSON_INDENT(1))
		       : NULL;
}

int group_decode(struct group *ret, const char *text, size_t len_bytes, struct brumate_error *err)
{
	auto_(group_fini) struct group g = GROUP_EMPTY;
	auto_json json_t *o = json_loadb(text, len_bytes, JSON_REJECT_DUPLICATES, NULL);
	int64_t version = 0;

	if (!json_is_object(o))
		return brumate_fail(err, EBADMSG, "is no JSON object");
	int r = wire_get_int(o, "version", 0, INT32_MAX, &version, err);
	if (r == 0 && version != GROUP_VERSION)
		r = brumate_fail(err, EBADMSG, "is of version %d, expected %d", (int)version,
				 GROUP_VERSION);
	if (r == 0)
		r = schema_decode(group_fields, N_OF(group_fields), &g, o, GROUP_VERSION, err);
	if (r == 0 && !job_id_is_valid(g.id))
		r = brumate_fail(err, EBADMSG, "\"%s\" is no id", g.id);
	if (r < 0)
		return r == -ENOMEM ? r : -EBADMSG;
	*ret = take_struct(g, GROUP_EMPTY);
	return 0;
}

struct group_step *group_add(struct group *g, const char *job)
{
	struct group_step *more = array_room(g->steps, g->n_steps, sizeof(*more));

	if (!more)
		return NULL;
	g->steps = more;
	struct group_step *s = &g->steps[g->n_steps++];
	*s = (struct group_step){ 0 };
	snprintf(s->job, sizeof(s->job), "%s", job);
	return s;
}

int group_act_set(struct group_act *ret, const char *method, json_t *parameters)
{
	snprintf(ret->method, sizeof(ret->method), "%s", method);
	ret->parameters = parameters ? json_dumps(parameters, JSON_COMPACT) : NULL;
	return parameters && !ret->parameters ? -ENOMEM : 0;
}

static int save_group(const struct group *g, struct brumate_error *err)
{
	auto_free char *text = group_encode(g);
	auto_free char *path = path_format("%s/%s", g->dir, group_record_name);

	if (!text || !path)
		return brumate_fail(err, ENOMEM, "group %s: %m", g->id);
	int r = file_swap(AT_FDCWD, path, text, strlen(text), 0600);
	return r < 0 ? brumate_fail(err, -r, "%s: %m", path) : 0;
}

static int remove_group(struct group *g, struct brumate_error *err)
{
	auto_free char *path = path_format("%s/%s", g->dir, group_record_name);

	/* The record first: a directory without one is of a group that has ended. */
	if (!path || (unlink(path) < 0 && errno != ENOENT))
		return brumate_fail(err, errno, "the record of group %s cannot be removed: %m",
				    g->id);
	remove_tree(AT_FDCWD, g->dir);
	cleanup_close(&g->lock_fd);
	cleanup_free(&g->dir);
	return 0;
}

/* ---- who leads it ---- */

/* The directory of all groups, locked: directories are made and taken over one at a time. */
static int lock_groups(char **ret_path, bool make)
{
	auto_free char *path = path_format("%s/groups", path_state_dir());
	int r = !path ? -ENOMEM : make ? mkdir_parents(path, 0700) : 0;

	if (r < 0)
		return r;
	auto_close int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || flock(fd, LOCK_EX) < 0)
		return -errno;
	*ret_path = take_ptr(&path);
	return take_fd(&fd);
}

/* -EWOULDBLOCK: its leader lives. */
static int lead(const char *dir, int flags)
{
	auto_free char *path = path_format("%s/%s", dir, group_lock_name);
	auto_close int fd = path ? open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600) : -1;

	return fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0 ? -errno : take_fd(&fd);
}

int group_begin(struct group *g, struct brumate_error *err)
{
	auto_free char *groups = NULL;
	auto_close int all_fd = lock_groups(&groups, true);
	uint32_t random = 0;

	if (all_fd < 0)
		return brumate_fail(err, -all_fd, "groups: %m");
	if (getrandom(&random, sizeof(random), 0) != sizeof(random))
		return brumate_fail(err, errno, "getrandom: %m");
	snprintf(g->id, sizeof(g->id), "%08x", random);
	clock_stamp(g->created);
	g->way = GROUP_FORWARD;
	g->dir = path_format("%s/%s", groups, g->id);
	if (!g->dir)
		return brumate_fail(err, ENOMEM, "%m");
	if (mkdir(g->dir, 0700) < 0) {
		brumate_fail(err, errno, "%s: %m", g->dir);
		cleanup_free(&g->dir);
		return -err->code;
	}
	g->lock_fd = lead(g->dir, O_CREAT);
	int r = g->lock_fd < 0 ? brumate_fail(err, -g->lock_fd, "%s: %m", g->dir)
			       : save_group(g, err);
	if (r < 0)
		remove_group(g, NULL);
	return r;
}

static int load_group(struct group *ret, const char *dir, struct brumate_error *err)
{
	auto_free char *path = path_format("%s/%s", dir, group_record_name);
	auto_free char *text = NULL;
	size_t len_bytes = 0;
	int r = path ? file_read(AT_FDCWD, path, GROUP_BYTES_MAX, &text, &len_bytes) : -ENOMEM;

	if (r < 0)
		return brumate_fail(err, -r, "%s: %m", path ? path : dir);
	r = group_decode(ret, text, len_bytes, err);
	return r < 0 ? brumate_wrap(err, r, "%s", path) : 0;
}

/* Of one whose leader died. 1: nobody has to do anything. */
static int take_over(struct group *ret, const char *dir, struct brumate_error *err)
{
	auto_close int lock_fd = lead(dir, 0);

	if (lock_fd == -EWOULDBLOCK)
		return 1;
	int r = load_group(ret, dir, err);
	if (r == -ENOENT || (r == 0 && ret->way == GROUP_FINISH)) { /* it ended, or never began */
		group_fini(ret);
		remove_tree(AT_FDCWD, dir);
		return 1;
	}
	if (r == 0 && lock_fd < 0)
		r = brumate_fail(err, -lock_fd, "%s: %m", dir);
	if (r == 0 && !(ret->dir = strdup(dir)))
		r = brumate_fail(err, ENOMEM, "%m");
	if (r < 0)
		return r;
	ret->lock_fd = take_fd(&lock_fd);
	if (ret->way == GROUP_FORWARD) {
		ret->way = GROUP_BACK;
		snprintf(ret->reason, sizeof(ret->reason), "the command that led it has died");
	}
	return 0;
}

/* The next group after those in @seen, or 1. Its leader is found out while no other is. */
static int take_over_next(struct group *ret, DIR *all, char **ret_dir, struct brumate_error *err)
{
	auto_free char *groups = NULL;
	auto_close int all_fd = lock_groups(&groups, false);
	struct dirent *entry;
	int r = 1;

	while (all_fd >= 0 && r == 1 && dir_next(all, &entry) > 0) {
		cleanup_free(ret_dir);
		*ret_dir = job_id_is_valid(entry->d_name)
				   ? path_format("%s/%s", groups, entry->d_name)
				   : NULL;
		r = *ret_dir ? take_over(ret, *ret_dir, err) : 1;
	}
	return r;
}

int group_take_over(void (*fn)(void *arg, struct group *g, const char *dir,
			       const struct brumate_error *why),
		    void *arg, struct brumate_error *err)
{
	auto_free char *groups = path_format("%s/groups", path_state_dir());
	auto_closedir DIR *all = groups ? dir_open(AT_FDCWD, groups) : NULL;

	if (!all)
		return errno == ENOENT ? 0 : brumate_fail(err, errno, "groups: %m");
	for (;;) {
		auto_(group_fini) struct group g = GROUP_EMPTY;
		auto_free char *dir = NULL;
		struct brumate_error why = BRUMATE_ERROR_NONE;
		int r = take_over_next(&g, all, &dir, &why);

		if (r == 1)
			return 0;
		fn(arg, r < 0 ? NULL : &g, dir, r < 0 ? &why : NULL);
	}
}

bool group_find_job(const char *job)
{
	auto_free char *groups = path_format("%s/groups", path_state_dir());
	auto_closedir DIR *all = groups ? dir_open(AT_FDCWD, groups) : NULL;
	struct dirent *entry;
	bool found = false;

	while (all && !found && dir_next(all, &entry) > 0) {
		auto_(group_fini) struct group g = GROUP_EMPTY;
		auto_free char *dir = path_format("%s/%s", groups, entry->d_name);

		if (!dir || !job_id_is_valid(entry->d_name) || load_group(&g, dir, NULL) < 0)
			continue;
		for (size_t i = 0; i < g.n_steps; i++)
			found = found || !strcmp(g.steps[i].job, job);
	}
	return found;
}

/* ---- doing it ---- */

/* The steps, which are taken at once. */
struct running {
	struct group *g;
	group_run_fn run;
	void *arg;
	bool is_undo, is_rest;
	int turn_fd;
	pthread_mutex_t lock;
	struct brumate_error first; /* under the lock: why the first one failed */
	int result;		    /* under the lock: of that one */
};

struct running_step {
	struct running *all;
	struct group_step *step;
	pthread_t thread;
	bool has_thread;
};

static void end_step(struct running *all, struct group_step *step, int r,
		     const struct brumate_error *why)
{
	struct brumate_error unsaved = BRUMATE_ERROR_NONE;

	pthread_mutex_lock(&all->lock);
	if (r == 0) {
		step->state = all->is_undo ? GROUP_STEP_UNDONE : GROUP_STEP_DONE;
		/* What the record does not say is done once more. */
		if (save_group(all->g, &unsaved) < 0)
			log_warn("%s", unsaved.text);
		r = fault_point("group.step.end");
	}
	if (r < 0 && all->result == 0) {
		all->result = r;
		all->first = *why;
		if (!all->first.code)
			brumate_fail(&all->first, -r, "group %s: %m", all->g->id);
		if (!all->is_undo || r != -EHOSTDOWN)
			eventfd_write(all->turn_fd, 1);
	}
	pthread_mutex_unlock(&all->lock);
}

static void *take_step(void *arg)
{
	struct running_step *s = arg;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct running *all = s->all;
	const struct group_call call = { all->g,
					 s->step,
					 all->is_undo ? &s->step->undo : &s->step->act,
					 all->is_undo,
					 all->is_rest,
					 all->turn_fd,
					 all->arg };

	end_step(all, s->step, all->run(&call, &err), &err);
	return NULL;
}

static int pass_point(const struct group *g, const char *side, struct brumate_error *err)
{
	char point[POINT_BYTES];

	snprintf(point, sizeof(point), "group.%s.%s", way_names[g->way], side);
	int r = fault_point(point);
	return r < 0 ? brumate_fail(err, -r, "group %s: %m", g->id) : 0;
}

static void take_steps(struct running_step *taken, size_t n)
{
	for (size_t i = 0; i + 1 < n; i++)
		taken[i].has_thread = thread_start(&taken[i].thread, take_step, &taken[i]) == 0;
	for (size_t i = 0; i < n; i++)
		if (!taken[i].has_thread)
			take_step(&taken[i]);
	for (size_t i = 0; i < n; i++)
		if (taken[i].has_thread)
			pthread_join(taken[i].thread, NULL);
}

/* Forward: all of them. Back: those that may have been done. */
static int run_steps(struct running *all, struct brumate_error *err)
{
	struct group *g = all->g;
	auto_free struct running_step *taken = calloc(g->n_steps + 1, sizeof(*taken));
	size_t n = 0, n_undone = 0;
	eventfd_t of_the_way_there;

	if (!taken)
		return brumate_fail(err, ENOMEM, "group %s: %m", g->id);
	eventfd_read(all->turn_fd, &of_the_way_there);
	all->is_undo = g->way == GROUP_BACK;
	for (size_t i = 0; i < g->n_steps; i++) {
		struct group_step *s = &g->steps[i];

		n_undone += s->state == GROUP_STEP_UNDONE;
		if (all->is_undo && s->state != GROUP_STEP_BEGUN && s->state != GROUP_STEP_DONE)
			continue;
		taken[n++] = (struct running_step){ .all = all, .step = s };
		if (!all->is_undo)
			s->state = GROUP_STEP_BEGUN;
	}
	all->is_rest = all->is_undo && n_undone == g->n_steps - 1;
	int r = save_group(g, err);
	if (r == 0)
		r = pass_point(g, "begin", err);
	if (r < 0)
		return r;
	all->result = 0;
	all->first = BRUMATE_ERROR_NONE;
	take_steps(taken, n);
	if (all->result < 0)
		*err = all->first;
	return all->result < 0 ? all->result : pass_point(g, "end", err);
}

static int go_back(struct running *all, struct brumate_error *err)
{
	struct group *g = all->g;
	struct brumate_error why = BRUMATE_ERROR_NONE;

	g->way = GROUP_BACK;
	int r = run_steps(all, &why);
	if (r == 0)
		r = remove_group(g, &why);
	if (r < 0) {
		snprintf(g->reason, sizeof(g->reason), "%.500s", why.text);
		save_group(g, NULL);
		brumate_wrap(err, r, "not all of it is undone yet (%.300s)", why.text);
		brumate_hint(err, "the next command goes on with that");
	}
	return r;
}

/* Forward to the commit, and else back. */
static int go_forward(struct running *all, struct brumate_error *err)
{
	struct group *g = all->g;
	int r = run_steps(all, err);

	if (r == 0 && (r = fault_point("group.commit.begin")) < 0)
		brumate_fail(err, -r, "group %s: %m", g->id);
	if (r == 0)
		r = remove_group(g, err);
	if (r < 0) {
		snprintf(g->reason, sizeof(g->reason), "%.500s", err->text);
		go_back(all, err);
	}
	return r;
}

int group_run(struct group *g, group_run_fn run, void *arg, struct brumate_error *err)
{
	auto_close int turn_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	struct running all = { .g = g, .run = run, .arg = arg, .turn_fd = turn_fd };
	struct brumate_error own = BRUMATE_ERROR_NONE;

	if (turn_fd < 0)
		return brumate_fail(err, errno, "eventfd: %m");
	pthread_mutex_init(&all.lock, NULL);
	int r = g->way == GROUP_FORWARD ? go_forward(&all, &own) : go_back(&all, &own);
	pthread_mutex_destroy(&all.lock);
	if (r < 0 && err)
		*err = own;
	return r;
}

// SPDX-License-Identifier: MIT
/* What operations ask of, and note in, the record of whom they are for. See target.h. */
#include "job/target.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "process/pidns.h"
#include "process/reaper.h"

enum { CMDLINE_BYTES_MAX = 2 * PATH_MAX };

void target_fini(struct target *t)
{
	free(t->gpus);
	free(t->stopped);
	free(t->dir);
	free(t->log);
	free(t->checkpoint);
	free(t->checkpoint_path);
}

/* ---- states ---- */

const char *const job_state_names[JOB_STATE__MAX] = {
	[JOB_CREATED] = "created",
	[JOB_RUNNING] = "running",
	[JOB_SUSPENDING] = "suspending",
	[JOB_SUSPENDED] = "suspended",
	[JOB_RESUMING] = "resuming",
	[JOB_CHECKPOINTING] = "checkpointing",
	[JOB_CHECKPOINTED] = "checkpointed",
	[JOB_RESTORING] = "restoring",
	[JOB_EXITED] = "exited",
	[JOB_LOST] = "lost",
};

const char *job_state_name(enum job_state state)
{
	return state < JOB_STATE__MAX ? job_state_names[state] : "?";
}

bool job_state_is_passing(enum job_state state)
{
	return state == JOB_SUSPENDING || state == JOB_RESUMING || state == JOB_CHECKPOINTING ||
	       state == JOB_RESTORING;
}

const char *const job_data_path_names[JOB_DATA_PATH__MAX] = {
	[JOB_DATA_DRIVER] = "driver",
	[JOB_DATA_BROKER] = "broker",
};

const char *job_data_path_name(enum job_data_path path)
{
	return path < JOB_DATA_PATH__MAX ? job_data_path_names[path] : "?";
}

#define TO(state) (1u << (state))

static const unsigned may_go[JOB_STATE__MAX] = {
	[JOB_CREATED] = TO(JOB_RUNNING) | TO(JOB_RESTORING) | TO(JOB_EXITED) | TO(JOB_LOST),
	[JOB_RUNNING] = TO(JOB_SUSPENDING) | TO(JOB_CHECKPOINTING) | TO(JOB_EXITED) | TO(JOB_LOST),
	[JOB_SUSPENDING] = TO(JOB_SUSPENDED) | TO(JOB_RUNNING) | TO(JOB_EXITED) | TO(JOB_LOST),
	[JOB_SUSPENDED] = TO(JOB_RESUMING) | TO(JOB_CHECKPOINTING) | TO(JOB_EXITED) | TO(JOB_LOST),
	[JOB_RESUMING] = TO(JOB_RUNNING) | TO(JOB_SUSPENDED) | TO(JOB_EXITED) | TO(JOB_LOST),
	[JOB_CHECKPOINTING] = TO(JOB_RUNNING) | TO(JOB_SUSPENDED) | TO(JOB_CHECKPOINTED) |
			      TO(JOB_EXITED) | TO(JOB_LOST),
	[JOB_CHECKPOINTED] = TO(JOB_RESTORING),
	[JOB_RESTORING] = TO(JOB_RUNNING) | TO(JOB_CHECKPOINTED) | TO(JOB_EXITED) | TO(JOB_LOST),
	[JOB_EXITED] = TO(JOB_RESTORING),
	[JOB_LOST] = TO(JOB_RESTORING),
};

bool job_may_go(enum job_state from, enum job_state to)
{
	return may_go[from] & TO(to);
}

enum job_state target_state_after_restore(const struct target *t)
{
	enum job_state before = t->op.before;

	return before == JOB_EXITED || before == JOB_LOST ? before : JOB_CHECKPOINTED;
}

int target_save(struct target *t, struct brumate_error *err)
{
	return t->owned_by->save ? t->owned_by->save(t, err) : 0;
}

int target_set_state(struct target *t, enum job_state state, struct brumate_error *err)
{
	const enum job_state from = t->state;

	assert(from == state || job_may_go(from, state));
	t->state = state;
	int r = target_save(t, err);
	if (state != from && t->owned_by->changed)
		t->owned_by->changed(t, from);
	return r;
}

/* ---- checkpoints ---- */

void target_next_sequence(struct target *t)
{
	const uint64_t now_ms = clock_wall_ns() / NS_PER_MS;

	t->sequence = t->sequence < now_ms ? now_ms : t->sequence + 1;
	if (t->sequence > MANIFEST_SEQUENCE_MAX)
		t->sequence = MANIFEST_SEQUENCE_MAX;
}

int target_name_checkpoint(struct target *t, const char *id, const char *path)
{
	auto_free char *new_id = strdup(id), *new_path = strdup(path);

	if (!new_id || !new_path)
		return -ENOMEM;
	free(t->checkpoint);
	free(t->checkpoint_path);
	t->checkpoint = take_ptr(&new_id);
	t->checkpoint_path = take_ptr(&new_path);
	return 0;
}

int target_open_criu_dir(const struct target *t, struct brumate_error *err)
{
	static const char name[] = "criu";
	bool is_ours = t->uid == 0 || t->uid == geteuid();
	auto_close int dir_fd = open(t->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (dir_fd < 0)
		return brumate_fail(err, errno, "%s: %m", t->dir);
	if (is_ours)
		return take_fd(&dir_fd);
	if (mkdirat(dir_fd, name, 0700) < 0 && errno != EEXIST)
		return brumate_fail(err, errno, "%s/%s: %m", t->dir, name);
	auto_close int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fchown(fd, t->uid, t->gid) < 0)
		return brumate_fail(err, errno, "%s/%s: %m", t->dir, name);
	return take_fd(&fd);
}

/* ---- its processes ---- */

int target_set_place(struct target *t)
{
	t->pid_ns = pidns_own();
	return proc_boot_id(t->boot_id);
}

/* A process of a job that lives in a pid namespace of its own finds other processes by the numbers in the records of
 * jobs outside, or none. A container that was restarted is another namespace as well, which has none of the old
 * processes. */
static bool is_out_of_sight(const struct target *t)
{
	if (!t->pid_ns || t->pid_ns == pidns_own())
		return false;
	auto_free char *init = pidns_own_status_path();
	return init != NULL;
}

enum proc_life target_look_for(const struct target *t, struct proc_id id)
{
	char boot_id[PROC_BOOT_ID_BYTES];

	if (proc_boot_id(boot_id) < 0)
		return PROC_UNKNOWN;
	if (strcmp(boot_id, t->boot_id))
		return PROC_GONE;
	return is_out_of_sight(t) ? PROC_UNKNOWN : proc_look(id);
}

/* Looks for the job's root process. PROC_UNKNOWN also to a process of a job that lives in a pid namespace of its own. */
static enum proc_life look_for_root(const struct target *t)
{
	return t->root.pid ? target_look_for(t, t->root) : PROC_GONE;
}

struct proc_id target_command(const struct target *t)
{
	/* The record may not tell of it, as it was written before that could be seen. */
	const struct proc_id found = t->command.pid ? t->command : reaper_find_command(t->root);

	return found.pid ? found : t->root;
}

bool target_has_ended(const struct target *t)
{
	enum proc_life life = look_for_root(t);

	return life == PROC_GONE || life == PROC_ZOMBIE;
}

void target_forget_processes(struct target *t)
{
	t->root = t->command = t->init = PROC_ID_NONE;
	t->op = (struct job_op){ 0 };
}

/* ---- its members ---- */

const struct job_stopped *target_find_stopped(const struct target *t, struct proc_id id)
{
	for (size_t i = 0; i < t->n_stopped; i++)
		if (proc_is_same(t->stopped[i].id, id))
			return &t->stopped[i];
	return NULL;
}

/* Whether process @pid was started as client/shim.c starts the shim of @t. */
static bool is_shim_of(const struct target *t, pid_t pid)
{
	auto_free char *line = NULL;
	size_t n;
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d/cmdline", pid);
	if (file_read(AT_FDCWD, path, CMDLINE_BYTES_MAX, &line, &n) < 0 || n < 2)
		return false;
	const char *last = line + n - 1; /* a NUL byte ends each */
	while (last > line && last[-1])
		last--;
	return !strcmp(basename(line), "brumate-shim") && !strcmp(basename(last), t->id);
}

struct proc_members target_members(const struct target *t)
{
	struct proc_members m = {
		.root = t->root, .reaper = t->init, .apart = t->op.criu, .uid = t->uid
	};
	struct proc_info root;

	if (m.reaper.pid || !t->root.pid)
		return m;
	/* Of a root that has been reaped, what it left is the shim's, which may be us. */
	const bool there =
		proc_read(&root, t->root.pid, NULL) == 0 && proc_is_same(root.id, t->root);
	const pid_t parent = there ? root.ppid : getpid();
	if (is_shim_of(t, parent))
		proc_identify(&m.reaper, parent, NULL);
	return m;
}

int target_kill_members(const struct target *t, uint64_t deadline_ns)
{
	const struct proc_members m = target_members(t);

	return proc_members_kill(&m, deadline_ns);
}

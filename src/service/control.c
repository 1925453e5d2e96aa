// SPDX-License-Identifier: MIT
/* Taking processes in, ending jobs, waiting for them and forgetting them. */
#include "service/access.h"
#include "service/jobs.h"
#include "service/meaning.h"
#include "service/service.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/paths.h"

enum { COMMAND_BYTES_MAX = 4 << 20, GRACE_MS_MAX = 3600 * 1000 };

/* Command and directory of a running process, for its record. Owns what it points to. */
struct command_line {
	char *text; /* arguments, each ended by a NUL */
	char **argv;
	char cwd[PATH_MAX];
};

static void command_line_fini(struct command_line *c)
{
	free(c->text);
	free(c->argv);
}
DEFINE_AUTO_FINI(struct command_line, command_line_fini)

static int read_command_line(struct command_line *ret, const struct proc_info *root,
			     struct brumate_error *err)
{
	char path[64];
	size_t len = 0, n = 0;

	snprintf(path, sizeof(path), "/proc/%d/cwd", (int)root->id.pid);
	ssize_t cwd_len = readlink(path, ret->cwd, sizeof(ret->cwd) - 1);
	if (cwd_len < 0)
		return brumate_fail(err, errno, "%s: %m", path);
	ret->cwd[cwd_len] = '\0';

	snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)root->id.pid);
	int r = file_read(AT_FDCWD, path, COMMAND_BYTES_MAX, &ret->text, &len);
	if (r < 0)
		return brumate_fail(err, -r, "%s: %m", path);
	for (size_t i = 0; i < len; i += strlen(ret->text + i) + 1)
		n++;
	ret->argv = calloc(n + 2, sizeof(*ret->argv));
	if (!ret->argv)
		return brumate_fail(err, ENOMEM, "%m");
	n = 0;
	for (size_t i = 0; i < len; i += strlen(ret->text + i) + 1)
		ret->argv[n++] = ret->text + i;
	if (n == 0) /* a program may wipe its arguments: its name is left */
		ret->argv[0] = (char *)root->comm;
	return 0;
}

static int adopt(struct job *ret, const struct service_call *call, const struct proc_info *root,
		 const char *name, bool simulated, struct brumate_error *err)
{
	auto_(command_line_fini) struct command_line line = { 0 };
	struct service_call quiet = *call;
	struct job j;
	int r = read_command_line(&line, root, err);
	if (r < 0)
		return r;

	struct job_spec spec = {
		.name = name,
		.argv = line.argv,
		.cwd = line.cwd,
		.uid = root->uid,
		.gid = root->gid,
		.simulated = simulated,
		.by_pid = true,
		.root = root->id,
	};
	r = job_create(&j, &spec, err);
	if (r < 0)
		return r;
	quiet.on_reply = NULL;
	r = shim_relay(&quiet, &j, "Adopt", NULL, NULL, err);
	if (r < 0) {
		forget_job(&j);
		job_fini(&j);
		return r;
	}
	*ret = j;
	return 0;
}

int take_in(struct job *ret, const struct service_call *call, pid_t pid, const char *name,
	    bool simulated, struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	int r = access_tree(&tree, call, pid, err);
	if (r < 0)
		return r;
	if (pid == 1 || pid == getpid())
		return brumate_fail(err, EINVAL, "process %d cannot be a job", (int)pid);

	struct job j;
	if (job_find_by_pid(&j, pid, NULL) == 0) {
		*ret = j;
		return 0;
	}
	return adopt(ret, call, &tree.items[0], name, simulated, err);
}

/* The record as it is now, which the shim may have changed since @j was read. */
static int reply_fresh(const struct job *j, json_t **ret, struct brumate_error *err)
{
	auto_(job_fini) struct job now = JOB_EMPTY;
	int r = job_load(&now, j->id, err);
	if (r < 0)
		return r;

	json_t *reply = json_pack("{s:o}", "job", describe_job(&now));
	if (!reply)
		return brumate_fail(err, ENOMEM, "job %s: %m", j->id);
	*ret = reply;
	return 0;
}

int service_manage(const struct service_call *call, json_t *parameters, json_t **ret,
		   struct brumate_error *err)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	const char *name;
	bool simulated = false;
	int64_t pid = 0;
	int r = wire_get_int(parameters, "pid", 1, INT_MAX, &pid, err);

	if (r == 0 && !pid)
		r = wire_fail_parameter(err, "pid", "is missing");
	if (r == 0)
		r = wire_get_string(parameters, "name", &name, err);
	if (r == 0)
		r = get_simulated(parameters, &simulated, err);
	if (r < 0)
		return r;

	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	r = access_tree(&tree, call, (pid_t)pid, err);
	if (r < 0)
		return r;
	if (job_find_by_pid(&j, (pid_t)pid, NULL) == 0)
		return brumate_fail(err, EEXIST, "process %d belongs to job %s (%s) already",
				    (int)pid, j.id, j.name);
	r = take_in(&j, call, (pid_t)pid, name, simulated, err);
	return r < 0 ? r : reply_fresh(&j, ret, err);
}

static bool has_ended(const struct job *j)
{
	return j->state == JOB_EXITED || j->state == JOB_LOST || j->state == JOB_CHECKPOINTED;
}

int service_kill(const struct service_call *call, json_t *parameters, json_t **ret,
		 struct brumate_error *err)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	const char *word;
	int64_t number = 0, grace_ms = 0;
	int r = wire_need_string(parameters, "job", &word, err);

	if (r == 0)
		r = wire_get_int(parameters, "signal", 0, NSIG - 1, &number, err);
	if (r == 0)
		r = wire_get_int(parameters, "grace_ms", 0, GRACE_MS_MAX, &grace_ms, err);
	if (r == 0)
		r = access_job(&j, call, word, err);
	if (r < 0)
		return r;
	if (has_ended(&j))
		return brumate_fail(err, ESRCH, "job %s is not running (%s)", j.id,
				    job_state_name(j.state));
	return shim_relay(call, &j, "Kill", parameters, ret, err);
}

int service_wait(const struct service_call *call, json_t *parameters, json_t **ret,
		 struct brumate_error *err)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	const char *word;
	int r = wire_need_string(parameters, "job", &word, err);

	if (r == 0)
		r = access_job(&j, call, word, err);
	if (r < 0)
		return r;
	if (has_ended(&j))
		return reply_fresh(&j, ret, err);
	return shim_relay(call, &j, "Wait", NULL, ret, err);
}

static int remove_checkpoint(const struct service_call *call, const char *dir, const char *word,
			     struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	int r = access_image(&image, call, dir, word, err);
	bool damaged = r == -EBADMSG || r == -EPROTONOSUPPORT;
	if (r < 0 && !(damaged && call->uid == 0))
		return r;
	if (strchr(word, '/'))
		return brumate_fail(err, EINVAL, "%s: want an id; say where it is with --dir",
				    word);
	/* A damaged one has no manifest to tell its full id: it goes by the exact name only. */
	return store_remove(dir, damaged ? word : image.manifest.id, err);
}

/* Exactly one of "job", "checkpoint" and "what". */
static int get_what(struct meaning_question *ret, json_t *parameters, struct brumate_error *err)
{
	const char *job, *checkpoint, *what;
	int r = wire_get_string(parameters, "job", &job, err);

	if (r == 0)
		r = wire_get_string(parameters, "checkpoint", &checkpoint, err);
	if (r == 0)
		r = wire_get_string(parameters, "what", &what, err);
	if (r < 0)
		return r;
	if (!!job + !!checkpoint + !!what != 1)
		return wire_fail_parameter(err, "job", "want one of job, checkpoint and what");
	ret->word = job ? job : checkpoint ? checkpoint : what;
	ret->kind = job ? "job" : checkpoint ? "checkpoint" : NULL;
	return 0;
}

static int remove_what(const struct service_call *call, json_t *parameters,
		       struct brumate_error *err)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	struct meaning_question q = { .call = call };
	auto_free char *dir = NULL;
	int r = get_what(&q, parameters, err);

	if (r == 0)
		r = meaning_in_store(&q, parameters, &dir, err);
	if (r == 0)
		r = meaning_find(&j, &q, err);
	if (r < 0)
		return r;
	if (r == MEANS_JOB)
		return job_remove(&j, err);
	r = remove_checkpoint(call, dir, q.word, err);
	return r == -ENOENT && !q.kind && !q.dir_given ? meaning_fail_unknown(err, q.word) : r;
}

int service_remove(const struct service_call *call, json_t *parameters, json_t **ret,
		   struct brumate_error *err)
{
	int r = remove_what(call, parameters, err);

	if (r == 0)
		*ret = json_object();
	return r == 0 && !*ret ? brumate_fail(err, ENOMEM, "%m") : r;
}

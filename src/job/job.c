// SPDX-License-Identifier: MIT
/*
 * Jobs on disk: creating, finding, listing, changing state, removing. Owns the directories under
 * $BRUMATE_STATE_DIR/jobs; never talks to a process.
 */
#include "job/job.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/nearest.h"
#include "base/paths.h"
#include "job/events.h"
#include "job/labels.h"
#include "job/log.h"
#include "job/record.h"
#include "criu/criu.h"
#include "process/pidns.h"
#include "process/reaper.h"
#include "wire/agent.h"

enum {
	RECORD_BYTES_MAX = 16 << 20,
	RECORD_AT_SIGHT_BYTES = 16 << 10, /* a larger one is decoded */
	SPARE_STEP_BYTES = 4096,
	SUMMARY_BYTES_MAX = 1 << 20,
	CMDLINE_BYTES_MAX = 2 * PATH_MAX
};

static const char record_name[] = "job.json", spare_name[] = "job.json.spare",
		  removed_prefix[] = ".removed-";

/* ---- the record ---- */

static char *jobs_dir(void)
{
	return path_format("%s/jobs", path_state_dir());
}

static bool is_name(const char *name)
{
	size_t len = strlen(name);

	if (!len || len >= JOB_NAME_BYTES || !isalnum((unsigned char)name[0]))
		return false;
	for (const char *p = name; *p; p++)
		if (!isalnum((unsigned char)*p) && !strchr("._-", *p))
			return false;
	return true;
}

/* The names of the job's directory and of that of all jobs are safe once those that hold them are synced. */
static int sync_parents(const struct job *j)
{
	auto_close int dir_fd = open(j->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int r = dir_fd < 0 ? -errno : sync_dir(dir_fd, "..");

	return r < 0 ? r : sync_dir(dir_fd, "../..");
}

/* Room on disk is put by for one record. What takes the place of the record frees that of the one before. */
static void put_space_by(const char *spare, size_t record_bytes)
{
	const off_t want_bytes = (off_t)(record_bytes / SPARE_STEP_BYTES + 2) * SPARE_STEP_BYTES;
	auto_close int fd = open(spare, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0 || (off_t)st.st_blocks * 512 >= want_bytes)
		return;
	/* Where it cannot be had, the next save tries again. */
	if (fallocate(fd, 0, 0, want_bytes) < 0)
		log_debug("no room is put by: path=%s reason=\"%m\"", spare);
}

/* The file is written where its room is, cut, and renamed: nobody sees half of it. */
static int write_to_spare(const char *dir, const char *spare, const char *path, const char *text,
			  size_t len_bytes)
{
	auto_close int fd = RESERVE_TRY(open(spare, O_WRONLY | O_CLOEXEC | O_NOFOLLOW));

	if (fd < 0)
		return -ENOSPC;
	int r = fd_write_full(fd, text, len_bytes);
	if (r == 0 && (ftruncate(fd, (off_t)len_bytes) < 0 || fsync(fd) < 0))
		r = -errno;
	if (r == 0 && rename(spare, path) < 0)
		r = -errno;
	return r < 0 ? r : sync_dir(AT_FDCWD, dir);
}

static int write_record(const struct job *j, struct brumate_error *err)
{
	auto_json json_t *o = record_encode(j);
	auto_free char *text = o ? json_dumps(o, JSON_INDENT(1)) : NULL;
	auto_free char *path = path_format("%s/%s", j->dir, record_name);
	auto_free char *spare = path_format("%s/%s", j->dir, spare_name);

	if (!text || !path || !spare)
		return brumate_fail(err, ENOMEM, "record of job %s: %m", j->id);

	/* A record that says the job lives is worthless after a crash of the machine; one that says
	 * where it is saved is not. */
	bool lasting = j->state == JOB_CHECKPOINTED || j->state == JOB_EXITED;
	int r = lasting ? file_replace(AT_FDCWD, path, text, strlen(text), 0600)
			: file_swap(AT_FDCWD, path, text, strlen(text), 0600);
	if (r == -ENOSPC || r == -EDQUOT)
		r = write_to_spare(j->dir, spare, path, text, strlen(text));
	if (r == 0)
		put_space_by(spare, strlen(text));
	if (r == 0 && lasting)
		r = sync_parents(j);
	return r < 0 ? brumate_fail(err, -r, "%s: %m", path) : 0;
}

int job_save(struct job *j, struct brumate_error *err)
{
	int r = fault_point("job.save");

	r = r < 0 ? brumate_fail(err, -r, "injected at job.save: %m") : write_record(j, err);
	/* Where the directory was removed nobody wants the record any more. */
	j->unsaved = r < 0 && r != -ENOENT ? -r : 0;
	return r;
}

static int save_owner(struct target *t, struct brumate_error *err)
{
	return job_save((struct job *)t, err);
}

static int describe_owner(const struct target *t, struct manifest *m)
{
	const struct job *j = (const struct job *)t;
	size_t n = 0;

	m->job.by_pid = j->by_pid;
	while (j->argv[n])
		n++;
	m->job.argv = calloc(n + 1, sizeof(char *));
	m->job.cwd = strdup(j->cwd);
	if (!m->job.argv || !m->job.cwd)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		if (!(m->job.argv[i] = strdup(j->argv[i])))
			return -ENOMEM;
	return labels_copy(&m->job.labels, j->labels, NULL);
}

/* Of a job that was taken in, agents are where its container has them. */
static char *agent_dir_of_owner(const struct target *t)
{
	return t->owned_by->was_started(t) || t->data_path != JOB_DATA_BROKER
		       ? job_agent_dir(t)
		       : path_format("/proc/%d/root" AGENT_CONTAINER_DIR, t->root.pid);
}

static bool was_started(const struct target *t)
{
	return !((const struct job *)t)->by_pid;
}

static bool may_stand_still(const struct target *t)
{
	return was_started(t) && !job_wakes((const struct job *)t);
}

const struct target_owner job_target_owner = {
	.save = save_owner,
	.changed = event_add_state,
	.describe = describe_owner,
	.agent_dir = agent_dir_of_owner,
	.was_started = was_started,
	.may_stand_still = may_stand_still,
};

int job_load(struct job *ret, const char *id, struct brumate_error *err)
{
	if (!job_id_is_valid(id))
		return brumate_fail(err, ENOENT, "no job %s", id);

	auto_free char *dir = path_format("%s/jobs/%s", path_state_dir(), id);
	auto_free char *path = path_format("%s/jobs/%s/%s", path_state_dir(), id, record_name);
	auto_free char *text = NULL;
	size_t len;

	if (!dir || !path)
		return brumate_fail(err, ENOMEM, "%m");
	int r = file_read(AT_FDCWD, path, RECORD_BYTES_MAX, &text, &len);
	if (r == -ENOENT)
		return brumate_fail(err, ENOENT, "no job %s", id);
	if (r < 0)
		return brumate_fail(err, -r, "%s: %m", path);

	struct job j;
	r = record_decode(&j, text, len, err);
	if (r < 0)
		return brumate_wrap(err, r, "%s", path);
	if (strcmp(j.id, id)) {
		r = brumate_fail(err, EBADMSG, "%s: record of another job, %s", path, j.id);
		job_fini(&j);
		return r;
	}
	j.dir = take_ptr(&dir);
	*ret = j;
	return 0;
}

/* ---- listing and finding ---- */

static uint64_t mtime_ms(const struct stat *st)
{
	return (uint64_t)st->st_mtim.tv_sec * 1000 + (uint64_t)st->st_mtim.tv_nsec / NS_PER_MS;
}

struct listed {
	char id[JOB_ID_BYTES];
	struct job job;
	struct brumate_error why;
	bool ok;
};

static int by_age(const void *a, const void *b)
{
	const struct listed *x = a, *y = b;

	if (x->ok != y->ok)
		return x->ok ? -1 : 1;
	return x->ok ? strcmp(x->job.created, y->job.created) : strcmp(x->id, y->id);
}

/* Whether the record of job @id says that it ended, and was written before @since_ms; false where that is not certain. Most
 * jobs that were ever started are such. */
static bool ended_before(DIR *dir, const char *id, uint64_t since_ms)
{
	char path[JOB_ID_BYTES + 16], text[RECORD_AT_SIGHT_BYTES];
	struct stat st;

	if (!since_ms)
		return false;
	snprintf(path, sizeof(path), "%.8s/%s", id, record_name);
	auto_close int fd =
		openat(dirfd(dir), path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW);
	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || mtime_ms(&st) >= since_ms)
		return false;
	const ssize_t n = read(fd, text, sizeof(text));
	return n > 0 && n < (ssize_t)sizeof(text) && record_says_ended(text, (size_t)n);
}

/* Reads the records of all jobs. What cannot be looked at is no damage: without it the list would not be whole. */
static int list_records(struct listed **all, size_t *n, DIR *dir, uint64_t since_ms,
			size_t *n_before, struct brumate_error *err)
{
	struct dirent *entry;
	int r;

	while ((r = dir_next(dir, &entry)) > 0) {
		if (!job_id_is_valid(entry->d_name))
			continue;
		if (ended_before(dir, entry->d_name, since_ms)) {
			++*n_before;
			continue;
		}
		struct listed *more = array_room(*all, *n, sizeof(**all));
		if (!more)
			return brumate_fail(err, ENOMEM, "jobs: %m");
		*all = more;
		struct listed *l = &more[*n];
		*l = (struct listed){ 0 };
		memcpy(l->id, entry->d_name, 9);
		r = job_load(&l->job, l->id, &l->why);
		l->ok = r == 0;
		if (r == -EMFILE || r == -ENFILE || r == -ENOMEM) {
			if (err)
				*err = l->why;
			return r;
		}
		if (r != -ENOENT) /* else: removed meanwhile */
			(*n)++;
	}
	return r < 0 ? brumate_fail(err, -r, "jobs: %m") : 0;
}

int job_list_since(uint64_t since_ms, size_t *ret_n_before,
		   void (*fn)(void *arg, const struct job *j, const char *id,
			      const struct brumate_error *why),
		   void *arg, struct brumate_error *err)
{
	*ret_n_before = 0;
	auto_free char *path = jobs_dir();
	auto_closedir DIR *dir = path ? dir_open(AT_FDCWD, path) : NULL;
	if (!dir)
		return errno == ENOENT ? 0
				       : brumate_fail(err, errno, "%s: %m", path ? path : "jobs");

	struct listed *all = NULL;
	size_t n = 0;
	int r = list_records(&all, &n, dir, since_ms, ret_n_before, err);

	if (n)
		qsort(all, n, sizeof(*all), by_age);
	for (size_t i = 0; i < n; i++) {
		if (r == 0)
			fn(arg, all[i].ok ? &all[i].job : NULL, all[i].id,
			   all[i].ok ? NULL : &all[i].why);
		job_fini(&all[i].job);
	}
	free(all);
	return r;
}

int job_list(void (*fn)(void *arg, const struct job *j, const char *id,
			const struct brumate_error *why),
	     void *arg, struct brumate_error *err)
{
	size_t n_before;

	return job_list_since(0, &n_before, fn, arg, err);
}

struct search {
	const char *word;
	pid_t pid;
	struct nearest near; /* names of jobs, for a hint */
	int error;	     /* a tree could not be looked at */
	char id[JOB_ID_BYTES];
	int n_prefix;
	bool exact;
};

static void match_word(void *arg, const struct job *j, const char *id,
		       const struct brumate_error *why)
{
	struct search *s = arg;

	if (j)
		nearest_consider(&s->near, j->name);
	bool exact = !strcmp(id, s->word) || (j && !strcmp(j->name, s->word));
	const size_t len = strlen(s->word);
	if (s->exact || (!exact && (len < JOB_PREFIX_BYTES_MIN || strncmp(id, s->word, len) != 0)))
		return;
	s->exact = exact;
	s->n_prefix++;
	strcpy(s->id, id);
}

int job_find(struct job *ret, const char *word, struct brumate_error *err)
{
	struct search s = { .word = word, .near.word = word };
	int r = *word ? job_list(match_word, &s, err) : 0;

	if (r < 0)
		return r;
	if (!s.n_prefix) {
		brumate_fail(err, ENOENT, "no job %s", word);
		if (s.near.found[0])
			brumate_hint(err, "did you mean %s?", s.near.found);
		else
			brumate_hint(err, "`brumate ps` lists the jobs that are there");
		return -ENOENT;
	}
	if (!s.exact && s.n_prefix > 1) {
		brumate_fail(err, ENOTUNIQ, "%s is the beginning of %d jobs' ids", word,
			     s.n_prefix);
		brumate_error_exit(err, EXIT_NOT_FOUND);
		brumate_hint(err, "give more of the id, or the name");
		return -ENOTUNIQ;
	}
	return job_load(ret, s.id, err);
}

static void match_pid(void *arg, const struct job *j, const char *id,
		      const struct brumate_error *why)
{
	struct search *s = arg;
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;

	if (s->exact || !j || job_has_ended(j))
		return;
	const struct proc_members members = job_members(j);
	int r = proc_members_read(&tree, &members, NULL);
	if (r < 0 && r != -ESRCH)
		s->error = r;
	for (size_t i = 0; i < tree.n; i++)
		if (tree.items[i].id.pid == s->pid) {
			s->exact = true;
			strcpy(s->id, id);
		}
}

int job_find_by_pid(struct job *ret, pid_t pid, struct brumate_error *err)
{
	struct search s = { .pid = pid };
	int r = job_list(match_pid, &s, err);

	if (r < 0)
		return r;
	if (!s.exact && s.error < 0)
		return brumate_fail(err, -s.error, "the job of process %d cannot be told: %m", pid);
	if (!s.exact)
		return brumate_fail(err, ENOENT, "process %d belongs to no job", pid);
	return job_load(ret, s.id, err);
}

int job_find_by_init(struct job *ret, struct brumate_error *err)
{
	auto_free char *status = pidns_own_status_path(), *jobs = jobs_dir();
	size_t len = jobs ? strlen(jobs) : 0;
	char id[JOB_ID_BYTES] = "";

	if (!jobs)
		return brumate_fail(err, ENOMEM, "%m");
	if (status && !strncmp(status, jobs, len) && status[len] == '/')
		snprintf(id, sizeof(id), "%.8s", status + len + 1);
	if (!job_id_is_valid(id))
		return brumate_fail(err, ENOENT, "this process is in the pid namespace of no job");
	return job_load(ret, id, err);
}

/* ---- creating and removing ---- */

/* What a removal has left that was killed in the middle is nobody's job any more. */
static void sweep_removed(const char *jobs)
{
	auto_closedir DIR *dir = dir_open(AT_FDCWD, jobs);
	struct dirent *entry;

	while (dir && dir_next(dir, &entry) > 0)
		if (!strncmp(entry->d_name, removed_prefix, strlen(removed_prefix)))
			remove_tree(dirfd(dir), entry->d_name);
}

static int make_dir(struct job *j, const char *id, struct brumate_error *err)
{
	auto_free char *jobs = jobs_dir();
	int r = jobs ? mkdir_parents(jobs, 0700) : -ENOMEM;

	if (r < 0)
		return brumate_fail(err, -r, "%s: %m", jobs ? jobs : "jobs");
	sweep_removed(jobs);
	for (int tries = 0; tries < 16; tries++) {
		uint32_t random;

		if (id)
			snprintf(j->id, sizeof(j->id), "%s", id);
		else if (getrandom(&random, sizeof(random), 0) == sizeof(random))
			snprintf(j->id, sizeof(j->id), "%08x", random);
		free(j->dir);
		j->dir = path_format("%s/%s", jobs, j->id);
		if (!j->dir)
			return brumate_fail(err, ENOMEM, "%m");
		if (mkdir(j->dir, 0700) == 0)
			return 0;
		if (errno != EEXIST)
			return brumate_fail(err, errno, "%s: %m", j->dir);
		if (id)
			return brumate_fail(err, EEXIST, "job %s exists", id);
	}
	return brumate_fail(err, EEXIST, "no free job id found");
}

static void default_name(struct job *j)
{
	const char *command = j->argv && j->argv[0] ? j->argv[0] : "job";
	const char *slash = strrchr(command, '/');
	size_t n = 0;

	for (const char *p = slash ? slash + 1 : command; *p && n < 40; p++)
		if (isalnum((unsigned char)*p) || (n && strchr("._-", *p)))
			j->name[n++] = *p;
	snprintf(j->name + n, sizeof(j->name) - n, "%s%.4s", n ? "-" : "", j->id);
}

static int fill(struct job *j, const struct job_spec *spec)
{
	size_t n = 0;

	while (spec->argv && spec->argv[n])
		n++;
	j->argv = calloc(n + 1, sizeof(*j->argv));
	j->cwd = strdup(spec->cwd ? spec->cwd : "/");
	if (!j->argv || !j->cwd)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		if (!(j->argv[i] = strdup(spec->argv[i])))
			return -ENOMEM;
	if (spec->log)
		j->log = strdup(spec->log);
	else if (!spec->by_pid)
		j->log = job_log_default(j->id);
	if (!j->log && !spec->by_pid)
		return -ENOMEM;
	j->uid = spec->uid;
	j->gid = spec->gid;
	j->gpu_kind = gpu_kind_here(spec->simulated);
	if (spec->vendor)
		snprintf(j->vendor, sizeof(j->vendor), "%s", spec->vendor);
	j->by_pid = spec->by_pid;
	j->data_path = spec->data_path;
	j->root = spec->root;
	j->owner = spec->owner;
	j->exit_code = JOB_EXIT_UNKNOWN;
	j->sequence = spec->id ? 0 : clock_wall_ns() / NS_PER_MS;
	clock_stamp(j->created);
	return target_set_place(&j->target);
}

static int check_name(const char *name, struct brumate_error *err)
{
	if (!is_name(name))
		return brumate_fail(err, EINVAL,
				    "name \"%s\": expected 1 to %d letters, digits, '.', '_', '-', "
				    "first a letter or digit",
				    name, JOB_NAME_BYTES - 1);

	struct search s = { .word = name, .near.word = name };
	int r = job_list(match_word, &s, err);
	if (r < 0)
		return r;
	if (s.exact) {
		brumate_fail(err, EEXIST, "name %s is taken by job %s", name, s.id);
		auto_(job_fini) struct job taken = JOB_EMPTY;
		const bool lives = job_load(&taken, s.id, NULL) == 0 && !job_has_ended(&taken);
		brumate_hint(err, "choose another --name, or remove that job: %s`brumate rm %s`",
			     lives ? "`brumate kill`, then " : "", s.id);
		return -EEXIST;
	}
	return 0;
}

int job_create(struct job *ret, const struct job_spec *spec, struct brumate_error *err)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	int r;

	if (spec->id && !job_id_is_valid(spec->id))
		return brumate_fail(err, EBADMSG,
				    "id \"%s\" of a job: expected 8 hexadecimal digits", spec->id);
	if (spec->name && (r = check_name(spec->name, err)) < 0)
		return r;
	if ((r = labels_copy(&j.labels, spec->labels, err)) < 0 ||
	    (r = make_dir(&j, spec->id, err)) < 0)
		return r;
	j.attributes = spec->attributes;
	r = fill(&j, spec);
	if (r < 0) {
		rmdir(j.dir);
		return brumate_fail(err, -r, "job %s: %m", j.id);
	}
	if (spec->name)
		snprintf(j.name, sizeof(j.name), "%s", spec->name);
	else
		default_name(&j);
	if ((r = job_save(&j, err)) < 0) {
		remove_tree(AT_FDCWD, j.dir);
		return r;
	}
	event_add(&j.target, "created",
		  json_pack("{s:o,s:b}", "command", wire_string(j.argv[0] ? j.argv[0] : ""),
			    "simulated", j.simulated));
	*ret = take_struct(j, JOB_EMPTY);
	return 0;
}

/* A lock file of the job (owned), or -errno. */
static int open_lock(const struct job *j, const char *name)
{
	auto_free char *path = path_format("%s/%s", j->dir, name);
	int fd = path ? RESERVE_TRY(open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC)) : -1;

	return fd < 0 ? -errno : fd;
}

static bool is_unlocked(const struct job *j, const char *name)
{
	auto_close int fd = open_lock(j, name);

	if (fd < 0)
		return fd == -ENOENT;
	return flock(fd, LOCK_SH | LOCK_NB) == 0;
}

int job_keep_shims_out(const struct job *j)
{
	auto_close int fd = open_lock(j, "shim.lock");

	if (fd < 0)
		return fd;
	return flock(fd, LOCK_EX | LOCK_NB) < 0 ? -errno : take_fd(&fd);
}

bool shim_has_ended(const struct job *j)
{
	return is_unlocked(j, "shim.lock");
}

static bool keeper_has_ended(const struct job *j)
{
	return is_unlocked(j, JOB_KEEPER_LOCK);
}

/* ---- its agents ---- */

static char *agent_dir_of(const char *id)
{
	return path_format("%s/agents/%s", path_runtime_dir(), id);
}

char *job_agent_dir(const struct target *t)
{
	return agent_dir_of(t->id);
}

char *job_agent_place(const struct target *t)
{
	return agent_dir_of(*t->started_as ? t->started_as : t->id);
}

/* Others may go through the directory, but not list it. */
static int let_pass(const char *path)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return -errno;
	if ((st.st_mode & 0111) == 0111)
		return 0;
	return chmod(path, (st.st_mode & 07777) | 0111) < 0 ? -errno : 0;
}

int job_make_agent_dir(const struct target *t, struct brumate_error *err)
{
	auto_free char *parent = path_format("%s/agents", path_runtime_dir());
	auto_free char *path = job_agent_dir(t);

	if (!parent || !path)
		return brumate_fail(err, ENOMEM, "%m");
	int r = path_make_runtime_dir(err);
	if (r < 0)
		return r;
	r = mkdir_parents(parent, 0711);
	if (r == 0)
		r = remove_tree(AT_FDCWD, path);
	if (r == 0 && t->uid != geteuid() && (r = let_pass(path_runtime_dir())) == 0)
		r = let_pass(parent);
	if (r == 0 && mkdir(path, 0700) < 0)
		r = -errno;
	if (r == 0 && t->uid != geteuid() && chown(path, t->uid, t->gid) < 0)
		r = -errno;
	/* A removal of the job looks here once more after it has taken the job's directory away. */
	if (r == 0 && access(t->dir, F_OK) < 0) {
		r = -errno;
		remove_tree(AT_FDCWD, path);
	}
	return r < 0 ? brumate_fail(err, -r, "%s: %m", path) : 0;
}

/* The job that has the place of agents @path, by a link if it is a copy. */
static void holder_of_place(char ret[static JOB_ID_BYTES], const struct target *t, const char *path)
{
	ssize_t n = readlink(path, ret, JOB_ID_BYTES - 1);

	if (n < 0)
		snprintf(ret, JOB_ID_BYTES, "%s", t->started_as);
	else
		ret[n] = '\0';
}

int job_check_agent_place(const struct target *t, struct brumate_error *err)
{
	auto_(job_fini) struct job holder = JOB_EMPTY;
	auto_free char *place = job_agent_place(t);
	char id[JOB_ID_BYTES];

	if (!place)
		return brumate_fail(err, ENOMEM, "%m");
	holder_of_place(id, t, place);
	if (!strcmp(id, t->id))
		return 0;
	int r = job_load(&holder, id, NULL);
	if (r == -ENOENT)
		return 0;
	if (r < 0)
		return brumate_fail(err, -r, "job %s: %m", id);
	if (job_has_ended(&holder))
		return 0;
	brumate_fail(err, EBUSY, "job %s (%s), which has the same processes, is still there (%s)",
		     holder.id, holder.name, job_state_name(holder.state));
	brumate_hint(err, "end it first: brumate kill %s; only root can restore a copy next to it",
		     holder.id);
	return -EBUSY;
}

int job_take_agent_place(const struct target *t, struct brumate_error *err)
{
	auto_free char *place = job_agent_place(t);

	if (!place)
		return brumate_fail(err, ENOMEM, "%m");
	int r = remove_tree(AT_FDCWD, place);
	if (r == 0 && symlink(t->id, place) < 0)
		r = -errno;
	/* As in job_make_agent_dir(). */
	if (r == 0 && access(t->dir, F_OK) < 0) {
		r = -errno;
		unlink(place);
	}
	return r < 0 ? brumate_fail(err, -r, "%s: %m", place) : 0;
}

/* Only a copy has a link to this job. A link to another job that is there stays. */
static void remove_agent_places(const struct target *t)
{
	auto_free char *own = job_agent_dir(t), *place = job_agent_place(t);
	auto_free char *jobs = jobs_dir(), *other = NULL;
	char id[JOB_ID_BYTES];

	if (!own || !place || !jobs)
		return;
	holder_of_place(id, t, place);
	if (*t->started_as && !strcmp(id, t->id))
		unlink(place);
	ssize_t n = readlink(own, id, sizeof(id) - 1);
	id[n > 0 ? n : 0] = '\0';
	other = path_format("%s/%s", jobs, id);
	if (n < 0 || (other && access(other, F_OK) < 0 && errno == ENOENT))
		remove_tree(AT_FDCWD, own);
}

/* A job that was saved and stopped may have held TCP connections, whose packets are still dropped for
 * its restore; with the record goes the log that names the filter. */
static void release_network(const struct job *j)
{
	auto_close int dir_fd = target_open_criu_dir(&j->target, NULL);

	if (j->state == JOB_CHECKPOINTED && dir_fd >= 0)
		criu_release_network(dir_fd, JOB_DUMP_LOG);
}

/* Whether its log is one that brumate made. */
static bool job_has_own_log(const struct job *j)
{
	auto_free char *own = job_log_default(j->id);

	return j->log && own && !strcmp(own, j->log);
}

/* Even if we are killed meanwhile, the job is removed or it is not: one rename takes its directory away. @ret_is_ours:
 * no other was first. 0; 1: what @err names is left of it; -errno. */
static int remove_record(const struct job *j, bool *ret_is_ours, struct brumate_error *err)
{
	auto_free char *jobs = jobs_dir();
	auto_free char *removed = jobs ? path_format("%s/%s%s", jobs, removed_prefix, j->id) : NULL;

	if (!removed)
		return brumate_fail(err, ENOMEM, "%s: %m", j->dir);
	fault_point("job.remove");
	remove_agent_places(&j->target);
	release_network(j);
	sweep_removed(jobs);
	*ret_is_ours = rename(j->dir, removed) == 0;
	if (!*ret_is_ours)
		return errno == ENOENT ? 0 : brumate_fail(err, errno, "%s: %m", j->dir);
	int r = fault_point("job.removed");
	/* An operation that began meanwhile may have made it again. It stays if it belongs to another job of this
	 * id. */
	if (access(j->dir, F_OK) < 0 && errno == ENOENT)
		remove_agent_places(&j->target);
	if (r == 0)
		r = remove_tree(AT_FDCWD, removed);
	if (r == 0 || r == -ENOENT) /* swept by another */
		return 0;
	brumate_fail(err, -r, "%s: %m", removed);
	return 1;
}

int job_remove(struct job *j, bool with_log, struct brumate_error *err)
{
	if (!job_has_ended(j)) {
		brumate_fail(err, EBUSY, "job %s (%s) is %s", j->id, j->name,
			     job_state_name(j->state));
		brumate_hint(err, "end it first: `brumate kill %s`", j->id);
		return -EBUSY;
	}
	if (with_log && job_has_own_log(j))
		unlink(j->log);
	bool is_ours;
	int r = remove_record(j, &is_ours, err);
	if (r >= 0 && is_ours)
		event_add(&j->target, "removed", NULL);
	return r;
}

int job_release(const struct job *j, struct brumate_error *err)
{
	bool is_ours;
	int r = remove_record(j, &is_ours, err);

	if (r < 0)
		return r;
	if (is_ours)
		event_add(&j->target, "released", json_pack("{s:i}", "pid", (int)j->root.pid));
	return 0;
}

/* ---- as users see it ---- */

bool job_is_abandoned(const struct job *j)
{
	enum proc_life life = j->owner.pid ? target_look_for(&j->target, j->owner) : PROC_UNKNOWN;

	return life == PROC_GONE || life == PROC_ZOMBIE;
}

bool job_names_checkpoint(const struct job *j, const char *path)
{
	struct stat named, asked;

	return j->checkpoint_path && stat(j->checkpoint_path, &named) == 0 &&
	       stat(path, &asked) == 0 && named.st_dev == asked.st_dev &&
	       named.st_ino == asked.st_ino;
}

json_t *job_last_summary(const struct job *j)
{
	auto_free char *path = path_format("%s/last.json", j->dir);
	auto_free char *text = NULL;

	if (!path || file_read(AT_FDCWD, path, SUMMARY_BYTES_MAX, &text, NULL) < 0)
		return NULL;
	return json_loads(text, 0, NULL);
}

uint64_t job_since_last_ms(const struct job *j)
{
	auto_free char *path = path_format("%s/last.json", j->dir);
	const uint64_t now_ns = clock_wall_ns();
	struct stat st;

	if (!path || stat(path, &st) < 0)
		return UINT64_MAX;
	const uint64_t then_ns =
		(uint64_t)st.st_mtim.tv_sec * NS_PER_S + (uint64_t)st.st_mtim.tv_nsec;
	return now_ns > then_ns ? (now_ns - then_ns) / NS_PER_MS : 0;
}

/* A checkpoint has its name only once it is complete. 1, 0, or -errno. */
static int is_saved(const struct job *j)
{
	if (!j->op.image_path[0])
		return 0;
	if (access(j->op.image_path, F_OK) == 0)
		return 1;
	return errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
}

bool job_has_lost_memory(const struct job *j)
{
	auto_free char *table = path_format("%s/parked.json", j->dir);

	return j->state == JOB_SUSPENDED && table && access(table, F_OK) == 0 &&
	       shim_has_ended(j) && keeper_has_ended(j);
}

/* The state as it is seen: where shim and job have both ended, the record still says that the job lives. */
static enum job_state seen_state(const struct job *j)
{
	bool ended = j->state == JOB_EXITED || j->state == JOB_LOST ||
		     j->state == JOB_CHECKPOINTED || j->state == JOB_CREATED;

	if (!ended && job_has_lost_memory(j))
		return JOB_LOST;
	if (ended || !job_has_ended(j) || !shim_has_ended(j))
		return j->state;
	/* That is what the next shim will make of it: docs/states.md. */
	if (j->state == JOB_RESTORING)
		return target_state_after_restore(&j->target);
	int saved = j->state == JOB_CHECKPOINTING ? is_saved(j) : 0;
	if (saved < 0)
		return j->state;
	return saved ? JOB_CHECKPOINTED : JOB_LOST;
}

static json_t *or_null(json_t *v, bool there)
{
	if (there)
		return v;
	json_decref(v);
	return json_null();
}

/* Makes text for people: what is not UTF-8 is replaced, and NULL becomes null. */
static json_t *shown(const char *text)
{
	return text ? wire_string(text) : json_null();
}

static json_t *shown_option(const struct request *r, const struct request_option *o)
{
	const void *at = request_at(r, o);

	switch (o->type) {
	case REQUEST_FLAG:
		return json_boolean(*(const bool *)at);
	case REQUEST_TIME:
		return json_integer(*(const uint32_t *)at);
	default:
		return shown(*(const char *)at ? at : NULL);
	}
}

/* What was not given: how to compress is left out, a path is null. */
static int show_request(json_t *ret, const struct request *r)
{
	REQUEST_FOR_EACH (o, REQUEST_SCHEDULE) {
		if (o->type == REQUEST_WORD && !*(const char *)request_at(r, o))
			continue;
		if (json_object_set_new(ret, o->name, shown_option(r, o)) < 0)
			return -ENOMEM;
	}
	return 0;
}

uint64_t schedule_left_ms(const struct job_schedule *schedule, uint64_t now_ms)
{
	if (!schedule->every_ms)
		return 0;
	uint64_t left_ms = schedule->next_ms > now_ms ? schedule->next_ms - now_ms : 1;
	return left_ms < schedule->every_ms ? left_ms : schedule->every_ms;
}

/* The Schedule type of io.brumate (owned); null where there is none. */
static json_t *schedule_to_json(const struct job_schedule *s)
{
	const uint64_t now_ms = clock_wall_ns() / NS_PER_MS;
	char next[CLOCK_STAMP_BYTES];

	if (!s->every_ms)
		return json_null();
	clock_stamp_of(next, now_ms + schedule_left_ms(s, clock_boot_ns() / NS_PER_MS));
	auto_json json_t *o =
		json_pack("{s:I,s:o,s:o,s:o}", "every_ms", (json_int_t)s->every_ms, "keep_last",
			  or_null(json_integer(s->keep_last), s->keep_last), "keep_within_ms",
			  or_null(json_integer((json_int_t)s->keep_within_ms), s->keep_within_ms),
			  "dir", json_null());
	if (!o || show_request(o, &s->request) < 0 ||
	    json_object_set_new(o, "next", json_string(next)) < 0 ||
	    json_object_set_new(o, "failure", shown(*s->failure ? s->failure : NULL)) < 0)
		return NULL;
	return take_ptr(&o);
}

bool job_wakes(const struct job *j)
{
	const char *value = labels_find(j->labels, JOB_WAKE_LABEL);

	return value && !strcmp(value, JOB_WAKE_LABEL_YES) && j->data_path == JOB_DATA_BROKER;
}

bool job_is_pinned(const struct job *j, const struct brumate_conf *conf)
{
	const char *value = labels_find(j->labels, JOB_PIN_LABEL);
	const struct conf_member m = conf_member_of(conf, j->name);

	return m.pin == CONF_PIN_UNSET ? value && !strcmp(value, "yes") : m.pin == CONF_PIN_YES;
}

int job_priority(const struct job *j, const struct brumate_conf *conf)
{
	const struct conf_member m = conf_member_of(conf, j->name);

	return m.priority_given ? m.priority : j->attributes.priority;
}

/* What is to be known of it before all else. */
static json_t *shown_message(const struct job *j)
{
	char text[JOB_MESSAGE_BYTES];

	if (!j->unsaved)
		return shown(j->message[0] ? j->message : NULL);
	errno = j->unsaved;
	snprintf(text, sizeof(text),
		 "the record of this cannot be written, which is tried again until it can be: %m");
	return json_string(text);
}

bool job_ended_ms(uint64_t *ret_ms, const struct job *j)
{
	auto_free char *path = path_format("%s/%s", j->dir, record_name);
	struct stat st;

	if ((j->state != JOB_EXITED && j->state != JOB_LOST && j->state != JOB_CHECKPOINTED) ||
	    !path || stat(path, &st) < 0)
		return false;
	*ret_ms = mtime_ms(&st);
	return true;
}

static json_t *shown_end(const struct job *j)
{
	char stamp[CLOCK_STAMP_BYTES];
	uint64_t ms;

	if (!job_ended_ms(&ms, j))
		return json_null();
	clock_stamp_of(stamp, ms);
	return json_string(stamp);
}

/* The reaper stands for a command that has ended. */
static struct proc_id shown_process(const struct job *j)
{
	return proc_has_ended(job_command(j)) ? j->root : job_command(j);
}

json_t *job_and_processes_to_json(const struct job *j, struct proc_tree *ret_tree)
{
	const struct proc_members members = job_members(j);
	enum job_state state = seen_state(j);
	bool alive = state != JOB_LOST && !job_has_ended(j) &&
		     proc_members_read(ret_tree, &members, NULL) == 0;
	json_t *argv = json_array();

	for (char **arg = j->argv; arg && *arg; arg++)
		json_array_append_new(argv, wire_string(*arg));
	auto_json json_t *o = json_pack(
		"{s:s,s:s,s:s,s:o,s:i,s:I,s:I,s:o,s:o,s:o,s:s,s:b,s:b,s:b,s:s,s:b,s:I,s:o,s:s?"
		",s:o,s:o,s:o,s:o,s:o,s:o}",
		"id", j->id, "name", j->name, "state", job_state_name(state), "pid",
		or_null(json_integer(shown_process(j).pid), alive), "processes",
		(int)(ret_tree->n - (alive && reaper_is(j->root))), "uid", (json_int_t)j->uid,
		"gid", (json_int_t)j->gid, "argv", argv, "cwd", shown(j->cwd), "log", shown(j->log),
		"created", j->created, "simulated", j->simulated, "by_pid", j->by_pid,
		"pid_namespace", j->init.pid != 0, "data_path", job_data_path_name(j->data_path),
		"parked", j->parked && state == JOB_SUSPENDED, "kept_bytes",
		(json_int_t)(alive && state != JOB_SUSPENDED ? j->kept_bytes : 0), "exit_code",
		or_null(json_integer(j->exit_code),
			state == JOB_EXITED && j->exit_code != JOB_EXIT_UNKNOWN),
		"checkpoint", j->checkpoint, "checkpoint_path", shown(j->checkpoint_path),
		"message", shown_message(j), "schedule", schedule_to_json(&j->schedule), "labels",
		labels_to_json(j->labels), "ended", shown_end(j), "ports",
		or_null(json_string(j->ports), *j->ports && state == JOB_CHECKPOINTED));
	return o && job_attributes_encode(o, &j->attributes) == 0 ? take_ptr(&o) : NULL;
}

json_t *job_to_json(const struct job *j)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;

	return job_and_processes_to_json(j, &tree);
}

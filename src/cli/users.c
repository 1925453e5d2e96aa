// SPDX-License-Identifier: MIT
/*
 * Users' instances of brumate are found by their shims that run, by the environment of these, and by the runtime
 * directories that users have. What a child prints passes to ours as text without anything that a terminal acts upon; it
 * has no terminal itself. See users.h.
 */
#include "cli/users.h"
#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/output.h"
#include "cli/verbs.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/paths.h"
#include "base/start.h"
#include "base/user.h"
#include "job/record.h"
#include "process/process.h"
#include "service/service.h"

enum {
	PLACES_MAX = 1024,
	PLACES_OF_USER_MAX = 16, /* what one user has keeps no other user's out */
	AT_ONCE = 32,
	ENVIRONMENT_MAX = 1 << 20,
	VARIABLES_MAX = 64,
	VARIABLE_BYTES_MAX = 8192,
	REPLY_BYTES_MAX = 32 << 20,
	FOLDED_MAX = 1 << 24,
	LOOK_CPU_S = 5,
	USER_BYTES = 64,
};

/* An instance of brumate of a user. Owned. */
struct place {
	uid_t uid;
	gid_t gid;
	char user[USER_BYTES]; /* its name, or its number */
	char **env;	       /* NULL-terminated: the variables that say where the instance is */
	size_t n_env;
	json_t *jobs; /* NULL: could not be looked at */
	bool is_cut;  /* the user has more, which are left out */
};

struct places {
	struct place *items;
	size_t n;
	unsigned look_ms;
	json_t *notes;	   /* borrowed, of what is not looked at; NULL: it is printed at once */
	uint64_t n_folded; /* as List says it, of all */
};

static void place_fini(struct place *p)
{
	for (size_t i = 0; i < p->n_env; i++)
		free(p->env[i]);
	free(p->env);
	json_decref(p->jobs);
}

static void places_fini(struct places *all)
{
	for (size_t i = 0; i < all->n; i++)
		place_fini(&all->items[i]);
	free(all->items);
	*all = (struct places){ 0 };
}
DEFINE_AUTO_FINI(struct places, places_fini)

static void note(struct places *all, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void note(struct places *all, const char *fmt, ...)
{
	char text[256];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	if (all->notes)
		json_array_append_new(all->notes, wire_string(text));
	else
		print_note("%s", text);
}

/* ---- where they are ---- */

static bool says_where(const char *variable)
{
	static const char *const begins[] = { "BRUMATE_",
					      "XDG_STATE_HOME=", "XDG_CONFIG_HOME=", "HOME=" };

	for (size_t i = 0; i < sizeof(begins) / sizeof(begins[0]); i++)
		if (!strncmp(variable, begins[i], strlen(begins[i])))
			return strlen(variable) < VARIABLE_BYTES_MAX;
	return false;
}

static int add_variable(struct place *p, const char *variable)
{
	if (p->n_env == VARIABLES_MAX)
		return 0;
	char **more = realloc(p->env, (p->n_env + 2) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	p->env = more;
	p->env[p->n_env] = strdup(variable);
	p->env[p->n_env + 1] = NULL;
	return p->env[p->n_env] ? (p->n_env++, 0) : -ENOMEM;
}

static int compare_variables(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Two shims of one instance have the same variables. */
static bool is_same_place(const struct place *a, const struct place *b)
{
	if (a->uid != b->uid || a->n_env != b->n_env)
		return false;
	for (size_t i = 0; i < a->n_env; i++)
		if (strcmp(a->env[i], b->env[i]) != 0)
			return false;
	return true;
}

/* Says so once for each user of whom not all are looked at. */
static bool has_room(struct places *all, const struct place *p)
{
	struct place *first = NULL;
	size_t n = 0;

	for (size_t i = all->n; i-- > 0;)
		if (all->items[i].uid == p->uid) {
			first = &all->items[i];
			n++;
		}
	if (n < PLACES_OF_USER_MAX && all->n < PLACES_MAX)
		return true;
	if (!first || !first->is_cut)
		note(all,
		     "user %u has processes of more than %d instances of brumate: the others "
		     "are left out",
		     (unsigned)p->uid, (int)n);
	if (first)
		first->is_cut = true;
	return false;
}

static int add_place(struct places *all, struct place *p)
{
	if (p->n_env)
		qsort(p->env, p->n_env, sizeof(*p->env), compare_variables);
	for (size_t i = 0; i < all->n; i++)
		if (is_same_place(&all->items[i], p)) {
			place_fini(p);
			return 0;
		}
	const bool is_full = !has_room(all, p);
	int r = is_full ? 0 : array_add(all->items, all->n, *p);
	if (is_full || r < 0)
		place_fini(p);
	return r;
}

static void name_user(struct place *p)
{
	const struct passwd *user = getpwuid(p->uid);

	if (user && strlen(user->pw_name) < USER_BYTES)
		snprintf(p->user, sizeof(p->user), "%s", user->pw_name);
	else
		snprintf(p->user, sizeof(p->user), "%u", (unsigned)p->uid);
}

/* The instance of the shim @shim. 0; 1: it has ended, or has no environment. */
static int place_of_shim(struct place *ret, const struct proc_info *shim)
{
	struct place p = { .uid = shim->uid, .gid = shim->gid };
	auto_free char *env = NULL;
	size_t len = 0;

	if (proc_file_read(shim->id.pid, "environ", ENVIRONMENT_MAX, &env, &len) < 0)
		return 1;
	for (size_t i = 0; i < len; i += strlen(env + i) + 1)
		if (says_where(env + i) && add_variable(&p, env + i) < 0) {
			place_fini(&p);
			return -ENOMEM;
		}
	name_user(&p);
	*ret = p;
	return 0;
}

static const char shim_name[] = "brumate-shim";

static bool is_users_shim(const struct proc_info *p)
{
	return p->uid != 0 && p->state != 'Z' && !strcmp(p->comm, shim_name);
}

/* At a glance, as most processes are none. */
static bool has_name_of_shim(pid_t pid)
{
	auto_free char *comm = NULL;

	return proc_file_read(pid, "comm", PROC_COMM_BYTES, &comm, NULL) == 0 &&
	       !strncmp(comm, shim_name, strlen(shim_name));
}

static int find_by_shims(struct places *all, struct brumate_error *err)
{
	auto_closedir DIR *proc = dir_open(AT_FDCWD, "/proc");
	pid_t pid;
	int r = proc ? 0 : -errno;

	while (r >= 0 && (r = proc_next(proc, &pid)) > 0) {
		struct proc_info info;
		struct place p;

		if (!has_name_of_shim(pid) || proc_read(&info, pid, NULL) < 0 ||
		    !is_users_shim(&info))
			continue;
		r = place_of_shim(&p, &info);
		r = r ? r : add_place(all, &p);
	}
	return r < 0 ? brumate_fail(err, -r, "/proc: %m") : 0;
}

static bool has_user(const struct places *all, uid_t uid)
{
	for (size_t i = 0; i < all->n; i++)
		if (all->items[i].uid == uid)
			return true;
	return false;
}

/* A user with a runtime directory had jobs since the machine was started; where their records are follows from the home. */
static int consider_runtime_dir(struct places *all, DIR *dir, const char *name, const char *begin)
{
	const size_t n = strlen(begin);
	struct place p = { 0 };
	struct stat st;
	char *end;

	if (strncmp(name, begin, n) != 0 || !isdigit((unsigned char)name[n]))
		return 0;
	const unsigned long uid = strtoul(name + n, &end, 10);
	if ((*end && *end != '.') || !uid || uid >= UINT_MAX || has_user(all, (uid_t)uid) ||
	    fstatat(dirfd(dir), name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(st.st_mode) ||
	    st.st_uid != uid)
		return 0;
	const struct passwd *user = getpwuid((uid_t)uid);
	if (!user || !user->pw_dir || user->pw_dir[0] != '/')
		return 0;
	auto_free char *home = path_format("HOME=%s", user->pw_dir);
	p.uid = (uid_t)uid;
	p.gid = user->pw_gid;
	name_user(&p);
	int r = home ? add_variable(&p, home) : -ENOMEM;
	return r < 0 ? r : add_place(all, &p);
}

static int find_by_runtime_dirs(struct places *all, const char *path, const char *begin,
				struct brumate_error *err)
{
	auto_closedir DIR *dir = dir_open(AT_FDCWD, path);
	struct dirent *entry;
	int r = dir || errno == ENOENT ? 0 : -errno;

	while (r >= 0 && dir && (r = dir_next(dir, &entry)) > 0)
		r = consider_runtime_dir(all, dir, entry->d_name, begin);
	return r < 0 ? brumate_fail(err, -r, "%s: %m", path) : 0;
}

static int find_places(struct places *all, struct brumate_error *err)
{
	auto_free char *users = path_format("%s/users", path_runtime_dir());
	int r = find_by_shims(all, err);

	if (r == 0 && users)
		r = find_by_runtime_dirs(all, users, "", err);
	return r < 0 ? r : find_by_runtime_dirs(all, "/tmp", "brumate-", err);
}

/* ---- as a user ---- */

struct as_user {
	gid_t *groups; /* owned */
	size_t n_groups;
	char **env; /* NULL-terminated; owned, its strings borrowed but the last */
	char *path;
};

static void as_user_fini(struct as_user *u)
{
	free(u->groups);
	free(u->env);
}
DEFINE_AUTO_FINI(struct as_user, as_user_fini)

static int prepare_user(struct as_user *ret, const struct place *p, struct brumate_error *err)
{
	static char path[] = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

	ret->env = calloc(p->n_env + 2, sizeof(*ret->env));
	if (!ret->env)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < p->n_env; i++)
		ret->env[i] = p->env[i];
	ret->env[p->n_env] = path;
	return user_groups(&ret->groups, &ret->n_groups, p->uid, p->gid, err);
}

/* Whether child @pid has ended, or does so in time, and is reaped. No signal ends one that waits for a user's file system. */
static bool child_ends(pid_t pid, int *ret_status, uint64_t deadline_ns)
{
	auto_close int pid_fd = (int)syscall(SYS_pidfd_open, pid, 0);

	if (pid_fd < 0 || fd_wait(pid_fd, POLLIN, deadline_ns) < 0)
		return false;
	while (waitpid(pid, ret_status, 0) < 0)
		if (errno != EINTR)
			return false;
	return true;
}

/* After SIGKILL. */
enum { KILLED_MS = 1000 };

/* ---- looking ---- */

/* Users of whom a child of an earlier look is there still, as no signal ends it: `metrics --listen` would have more of them
 * with every look. */
struct held_users {
	uid_t *items;
	size_t n;
};

static const char look_name[] = "brumate-look";

static void held_users_fini(struct held_users *h)
{
	free(h->items);
}
DEFINE_AUTO_FINI(struct held_users, held_users_fini)

static int find_held_users(struct held_users *ret)
{
	auto_free pid_t *children = NULL;
	size_t n = 0;
	int r = proc_children(getpid(), &children, &n);

	for (size_t i = 0; r == 0 && i < n; i++) {
		struct proc_info child;

		if (proc_read(&child, children[i], NULL) == 0 && !strcmp(child.comm, look_name) &&
		    !child_ends(children[i], NULL, 0))
			r = array_add(ret->items, ret->n, child.uid);
	}
	return r;
}

static bool is_held(const struct held_users *h, uid_t uid)
{
	for (size_t i = 0; i < h->n; i++)
		if (h->items[i] == uid)
			return true;
	return false;
}

/* A child that looks at the jobs of one instance. */
struct look {
	struct place *place;
	pid_t pid; /* 0: none */
	int fd;	   /* what it says */
	char *text;
	size_t len;
	bool failed;
};

/* In the child, which has our memory and nothing of ours to write to: it says what List replies, and ends. */
static void list_as_user(int fd, const struct place *p, const struct as_user *u, json_t *parameters)
{
	const struct rlimit cpu = { LOOK_CPU_S, LOOK_CPU_S };
	auto_json json_t *reply = NULL;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	prctl(PR_SET_NAME, look_name);
	if (chdir("/") < 0 || user_become(p->uid, p->gid, u->groups, u->n_groups) < 0)
		return;
	setrlimit(RLIMIT_CPU, &cpu);
	environ = u->env;
	service_only_looks(); /* what it started would have its limits, and an end with it */
	if (client_ask("List", parameters, &reply, &err) < 0)
		return;
	auto_free char *text = json_dumps(reply, JSON_COMPACT);
	if (text)
		fd_write_full(fd, text, strlen(text));
}

static int look_begin(struct look *l, struct place *p, json_t *parameters,
		      struct brumate_error *err)
{
	auto_(as_user_fini) struct as_user u = { 0 };
	int ends[2], r = prepare_user(&u, p, err);

	*l = (struct look){ .place = p, .fd = -1 };
	if (r < 0)
		return r;
	if (pipe2(ends, O_CLOEXEC) < 0)
		return brumate_fail(err, errno, "pipe: %m");
	fflush(NULL);
	l->pid = fork();
	if (l->pid == 0) {
		int null = open("/dev/null", O_RDWR | O_CLOEXEC);
		const int fds[] = { null, null, null, ends[1] };

		if (null >= 0 && spawn_leave(fds, 4) == 0)
			list_as_user(3, p, &u, parameters);
		_exit(0);
	}
	close(ends[1]);
	l->fd = ends[0];
	return l->pid < 0 ? brumate_fail(err, errno, "fork: %m") : 0;
}

/* What there is to read. Returns whether more may come. */
static bool look_read(struct look *l)
{
	char buf[65536];
	ssize_t n = read(l->fd, buf, sizeof(buf));

	if (n < 0 && errno == EINTR)
		return true;
	char *more = n > 0 && l->len + (size_t)n <= REPLY_BYTES_MAX
			     ? realloc(l->text, l->len + (size_t)n)
			     : NULL;
	if (!more) {
		l->failed = n != 0;
		return false;
	}
	memcpy(more + l->len, buf, (size_t)n);
	l->text = more;
	l->len += (size_t)n;
	return true;
}

/* A user's program may answer in the place of a shim. What a job says of itself goes into lists that scripts read, and into
 * names of series. */
static bool is_a_job(json_t *job)
{
	if (!json_is_object(job) || !job_id_is_valid(text_of(job, "id")))
		return false;
	for (int i = 0; i < JOB_STATE__MAX; i++)
		if (!strcmp(text_of(job, "state"), job_state_names[i]))
			return true;
	return false;
}

/* The jobs of a reply, of which only those count that can be some; whose they are is not theirs to say. */
static json_t *jobs_of(const struct look *l, json_t *reply)
{
	json_t *jobs = json_object_get(reply, "jobs"), *all = json_array(), *job;
	size_t i;

	if (!json_is_array(jobs)) {
		json_decref(all);
		return NULL;
	}
	json_array_foreach (jobs, i, job) {
		if (!is_a_job(job))
			continue;
		json_object_set_new(job, "user", json_string(l->place->user));
		json_object_set_new(job, "uid", json_integer((json_int_t)l->place->uid));
		json_array_append(all, job);
	}
	return all;
}

/* How many it leaves out is for it to say, within reason. */
static uint64_t folded_of(json_t *reply)
{
	const json_int_t n = json_integer_value(json_object_get(reply, "folded"));

	return n > 0 && n <= FOLDED_MAX ? (uint64_t)n : 0;
}

/* Waits for it until the time is over, and ends it. */
static void look_end(struct places *all, struct look *l, uint64_t deadline_ns)
{
	while (!l->failed && l->fd >= 0) {
		if (fd_wait(l->fd, POLLIN, deadline_ns) < 0)
			l->failed = true;
		else if (!look_read(l))
			break;
	}
	cleanup_close(&l->fd);
	if (l->pid > 0) {
		kill(l->pid, SIGKILL);
		child_ends(l->pid, NULL, deadline_in_ms(KILLED_MS));
	}
	auto_json json_t *reply = l->failed ? NULL : json_loadb(l->text, l->len, 0, NULL);
	l->place->jobs = jobs_of(l, reply);
	all->n_folded += folded_of(reply);
	if (!l->place->jobs)
		note(all, "the jobs of user %s cannot be looked at", l->place->user);
	free(l->text);
}

/* Several at once, each in its own child, and all of these within the same time. */
static int look_at_places(struct places *all, json_t *parameters, struct brumate_error *err)
{
	struct look looks[AT_ONCE];
	int r = 0;

	for (size_t done = 0; done < all->n && r == 0;) {
		const uint64_t deadline_ns = deadline_in_ms(all->look_ms);
		auto_(held_users_fini) struct held_users held = { 0 };
		size_t n = 0;

		r = find_held_users(&held);
		if (r < 0)
			return brumate_fail(err, -r, "/proc: %m");
		for (; r == 0 && n < AT_ONCE && done + n < all->n; n++) {
			struct place *p = &all->items[done + n];

			looks[n] = (struct look){ .place = p, .fd = -1, .failed = true };
			if (!is_held(&held, p->uid))
				r = look_begin(&looks[n], p, parameters, err);
		}
		for (size_t i = 0; i < n; i++)
			look_end(all, &looks[i], deadline_ns);
		done += n;
	}
	return r;
}

int users_refuse(struct brumate_error *err)
{
	if (getuid() == 0)
		return 0;
	brumate_fail(err, EPERM, "--all-users is for root");
	brumate_hint(err, "`brumate ps` lists your own jobs");
	return -EPERM;
}

/* Root's own are first. */
static int list_places(struct places *all, json_t *parameters, struct brumate_error *err)
{
	auto_json json_t *own = NULL;
	int r = users_refuse(err);

	if (r == 0)
		r = client_ask("List", parameters, &own, err);
	if (r < 0)
		return r;
	const struct place root = { .user = "root",
				    .jobs = json_incref(json_object_get(own, "jobs")) };
	if (array_add(all->items, all->n, root) < 0) {
		json_decref(root.jobs);
		return brumate_fail(err, ENOMEM, "%m");
	}
	struct places others = { .look_ms = all->look_ms, .notes = all->notes };
	json_t *job;
	size_t i;
	json_array_foreach (root.jobs, i, job)
		json_object_set_new(job, "user", json_string("root"));
	r = find_places(&others, err);
	if (r == 0)
		r = look_at_places(&others, parameters, err);
	for (i = 0; i < others.n; i++)
		if (array_add(all->items, all->n, others.items[i]) < 0)
			place_fini(&others.items[i]);
	all->n_folded = folded_of(own) + others.n_folded;
	free(others.items);
	return r;
}

/* A user may have copied a record: of those with one id, one is a job. */
static int add_jobs(json_t *jobs, json_t *seen, const struct place *p)
{
	json_t *job;
	size_t i;

	json_array_foreach (p->jobs, i, job) {
		auto_free char *key = path_format("%u/%s", (unsigned)p->uid, text_of(job, "id"));

		if (!key)
			return -ENOMEM;
		if (json_object_get(seen, key))
			continue;
		if (json_object_set_new(seen, key, json_true()) < 0 ||
		    json_array_append(jobs, job) < 0)
			return -ENOMEM;
	}
	return 0;
}

int users_list(json_t **ret, json_t *parameters, unsigned look_ms, json_t *notes,
	       struct brumate_error *err)
{
	auto_(places_fini) struct places all = { .look_ms = look_ms, .notes = notes };
	auto_json json_t *jobs = json_array(), *seen = json_object();
	int r = list_places(&all, parameters, err);

	if (r < 0)
		return r;
	for (size_t i = 0; r == 0 && i < all.n; i++)
		r = add_jobs(jobs, seen, &all.items[i]);
	json_t *folded = json_is_true(json_object_get(parameters, "recent"))
				 ? json_integer((json_int_t)all.n_folded)
				 : NULL;
	*ret = r == 0 ? json_pack("{s:O,s:o*}", "jobs", jobs, "folded", folded) : NULL;
	return *ret ? 0 : brumate_fail(err, ENOMEM, "%m");
}

/* ---- acting ---- */

/* A child that carries a command out, and what it has printed of a line. */
struct relayed {
	int fd;
	FILE *to;
	char line[8192];
	size_t len;
};

static void print_line(struct relayed *r, bool whole)
{
	r->line[r->len] = '\0';
	for (size_t i = 0; i < r->len; i++)
		if (!r->line[i])
			r->line[i] = '?';
	print_plain(r->to, r->line);
	if (whole)
		fputc('\n', r->to);
	fflush(r->to);
	r->len = 0;
}

/* Returns whether more may come. */
static bool relay_some(struct relayed *r)
{
	char buf[4096];
	ssize_t n = read(r->fd, buf, sizeof(buf));

	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return errno == EINTR;
	for (ssize_t i = 0; i < n; i++) {
		if (buf[i] == '\n' || r->len == sizeof(r->line) - 1)
			print_line(r, buf[i] == '\n');
		if (buf[i] != '\n')
			r->line[r->len++] = buf[i];
	}
	if (n <= 0 && r->len)
		print_line(r, false);
	return n > 0;
}

/* What the command itself needs beyond --timeout. */
enum { BEYOND_TIMEOUT_MS = 1500 };

/* A command that a child carries out as a user. */
struct errand {
	const struct place *of; /* borrowed */
	const char *verb;
	pid_t pid;  /* 0: none is under way */
	int pid_fd; /* of the child */
	struct relayed relayed[2];
	uint64_t deadline_ns;
	bool killed; /* after its deadline, or by a second Ctrl-C */
};

/* What a command needs that is about several jobs. */
struct errands {
	struct errand *items;
	size_t n;
	int n_interrupts;
};

static void errands_fini(struct errands *all)
{
	for (size_t i = 0; i < all->n; i++)
		if (all->items[i].pid) {
			cleanup_close(&all->items[i].pid_fd);
			cleanup_close(&all->items[i].relayed[0].fd);
			cleanup_close(&all->items[i].relayed[1].fd);
		}
	free(all->items);
}

/* The directory of root's own shell may be one that nobody else gets to; the user can enter that of a process which runs as
 * that user. */
static void enter_as_user(const char *cwd, const char *relative)
{
	if (cwd && chdir(cwd) == 0)
		return;
	if (relative) {
		dprintf(STDERR_FILENO,
			"brumate: %s: its user cannot enter this directory\n"
			"hint: give the path from / on\n",
			relative);
		_exit(EXIT_USAGE);
	}
	if (chdir("/") < 0)
		_exit(EXIT_FAILED);
}

/* The first path of the line that is not from / on; NULL: none. */
static const char *find_relative(const struct invocation *in)
{
	for (const struct option_spec *o = in->command->options; o->name; o++)
		if ((o->completes == COMPLETES_DIR || o->completes == COMPLETES_FILE) &&
		    in->values[o->id] && in->values[o->id][0] != '/')
			return in->values[o->id];
	return NULL;
}

static int errand_begin(struct errand *e, const struct place *p, const struct invocation *in,
			char *const *argv, uint64_t deadline_ns, struct brumate_error *err)
{
	auto_(as_user_fini) struct as_user u = { 0 };
	auto_free char *cwd = getcwd(NULL, 0);
	int out[2], errors[2], r = prepare_user(&u, p, err);

	if (r < 0)
		return r;
	if (pipe2(out, O_CLOEXEC) < 0)
		return brumate_fail(err, errno, "pipe: %m");
	auto_close int out_end = out[0], out_write = out[1];
	if (pipe2(errors, O_CLOEXEC) < 0)
		return brumate_fail(err, errno, "pipe: %m");
	auto_close int errors_end = errors[0], errors_write = errors[1];
	fcntl(out_end, F_SETFL, O_NONBLOCK);
	fcntl(errors_end, F_SETFL, O_NONBLOCK);
	fflush(NULL);
	const pid_t pid = fork();
	if (pid == 0) {
		int null = open("/dev/null", O_RDWR | O_CLOEXEC);
		int self = open("/proc/self/exe", O_PATH | O_CLOEXEC);
		const int fds[] = { null, out_write, errors_write, self };

		if (null >= 0 && self >= 0 && spawn_leave(fds, 4) == 0 &&
		    fcntl(3, F_SETFD, FD_CLOEXEC) == 0 &&
		    user_become(p->uid, p->gid, u.groups, u.n_groups) == 0) {
			enter_as_user(cwd, find_relative(in));
			execveat(3, "", argv, u.env, AT_EMPTY_PATH);
		}
		_exit(EXIT_FAILED);
	}
	if (pid < 0)
		return brumate_fail(err, errno, "fork: %m");
	const int pid_fd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (pid_fd < 0) {
		const int code = errno;

		kill(pid, SIGKILL);
		while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
			;
		return brumate_fail(err, code, "pidfd_open: %m");
	}
	*e = (struct errand){ .of = p,
			      .verb = argv[1],
			      .pid = pid,
			      .pid_fd = pid_fd,
			      .relayed = { { .fd = take_fd(&out_end), .to = stdout },
					   { .fd = take_fd(&errors_end), .to = stderr } },
			      .deadline_ns = deadline_ns };
	return 0;
}

static bool errand_has_ended(const struct errand *e)
{
	return e->killed || fd_wait(e->pid_fd, POLLIN, 0) == 0;
}

/* What it said at last; what it left behind may hold the pipes, and say more for ever. */
static void hear_the_rest(struct errand *e)
{
	enum { READS_MAX = 64 };

	for (int i = 0; i < 2; i++) {
		for (int n = 0; n < READS_MAX && e->relayed[i].fd >= 0; n++)
			if (!relay_some(&e->relayed[i]))
				break;
		if (e->relayed[i].len)
			print_line(&e->relayed[i], false);
	}
}

/* @ret_status: the exit status of the command; -ETIMEDOUT: it did not end. */
static int errand_end(struct errand *e, int *ret_status, struct brumate_error *err)
{
	int status = 0;

	hear_the_rest(e);
	const bool has_ended = child_ends(e->pid, &status, deadline_in_ms(KILLED_MS));
	cleanup_close(&e->pid_fd);
	cleanup_close(&e->relayed[0].fd);
	cleanup_close(&e->relayed[1].fd);
	e->pid = 0;
	if (e->killed) {
		brumate_fail(err, ETIMEDOUT,
			     "the command for %s as user %s did not end, and was killed: it may "
			     "have been stopped",
			     e->verb, e->of->user);
		brumate_hint(err, "`brumate ps --all-users` says how the job is");
		return -ETIMEDOUT;
	}
	*ret_status = has_ended && WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILED;
	return 0;
}

/* Ctrl-C is for the children, which have no terminal; the second one kills them. */
static void pass_interrupts_on(struct errands *all)
{
	int number;

	while ((number = interrupt_take())) {
		all->n_interrupts++;
		for (size_t i = 0; i < all->n; i++) {
			struct errand *e = &all->items[i];

			if (!e->pid)
				continue;
			kill(e->pid, all->n_interrupts > 1 ? SIGKILL : number);
			e->killed = e->killed || all->n_interrupts > 1;
		}
	}
}

/* Relays what those say that are under way, until something happens or @deadline_ns; kills those whose time is over. */
static int errands_wait(struct errands *all, uint64_t deadline_ns)
{
	auto_free struct pollfd *fds = calloc(3 * all->n + 1, sizeof(*fds));

	if (!fds)
		return -ENOMEM;
	fds[3 * all->n] = (struct pollfd){ .fd = interrupt_watch(false), .events = POLLIN };
	for (size_t i = 0; i < all->n; i++) {
		const struct errand *e = &all->items[i];
		const int of[] = { e->relayed[0].fd, e->relayed[1].fd, e->pid_fd };

		for (size_t k = 0; k < 3; k++)
			fds[3 * i + k] =
				(struct pollfd){ .fd = e->pid ? of[k] : -1, .events = POLLIN };
		if (e->pid && e->deadline_ns < deadline_ns)
			deadline_ns = e->deadline_ns;
	}
	if (poll(fds, 3 * all->n + 1, deadline_left_ms(deadline_ns)) < 0 && errno != EINTR)
		return -errno;
	pass_interrupts_on(all);
	for (size_t i = 0; i < all->n; i++) {
		struct errand *e = &all->items[i];

		for (size_t k = 0; e->pid && k < 2; k++)
			if (fds[3 * i + k].revents && !relay_some(&e->relayed[k]))
				cleanup_close(&e->relayed[k].fd);
		if (e->pid && !errand_has_ended(e) && !deadline_left_ms(e->deadline_ns)) {
			kill(e->pid, SIGKILL);
			e->killed = true;
		}
	}
	return 0;
}

/* ---- whose a job is ---- */

static bool is_job(json_t *job, const char *word)
{
	const char *id = text_of(job, "id");

	return !strcmp(id, word) || !strcmp(text_of(job, "name"), word) ||
	       (strlen(word) >= 2 && !strncmp(id, word, strlen(word)));
}

static bool is_user(const struct place *p, const char *user, size_t len)
{
	char number[USER_BYTES];

	snprintf(number, sizeof(number), "%u", (unsigned)p->uid);
	return (strlen(p->user) == len && !strncmp(p->user, user, len)) ||
	       (strlen(number) == len && !strncmp(number, user, len));
}

/* The instance that has "USER/JOB"; that of the user if none has: its own words are those to be read then. */
static const struct place *find_place(const struct places *all, const char *word)
{
	const char *slash = strchr(word, '/');
	const struct place *found = NULL;
	json_t *job;
	size_t k;

	for (size_t i = 0; i < all->n; i++) {
		const struct place *p = &all->items[i];

		if (!is_user(p, word, (size_t)(slash - word)))
			continue;
		found = found ? found : p;
		json_array_foreach (p->jobs, k, job)
			if (is_job(job, slash + 1))
				return p;
	}
	return found;
}

/* "USER/JOB", and nothing that is there as a path. */
static bool is_name_of_user(const char *word)
{
	const char *slash = strchr(word, '/');
	struct stat st;

	return slash && slash != word && slash[1] && !strchr(slash + 1, '/') && word[0] != '.' &&
	       isalnum((unsigned char)slash[1]) && lstat(word, &st) < 0 && !strchr(word, ':');
}

/* What export prints is for no terminal. */
static bool takes_jobs(const struct command *c)
{
	if (c->run == verb_export)
		return false;
	return c->completes == COMPLETES_JOB || c->completes == COMPLETES_LIVING ||
	       c->completes == COMPLETES_RUNNING || c->completes == COMPLETES_SUSPENDED ||
	       c->completes == COMPLETES_CHECKPOINT;
}

/* ---- the line of a child ---- */

/* What of the line is left out, and what stands instead of one word. Pointers are those of the line itself. */
struct change {
	const struct invocation *in;
	const char *operand; /* the one operand that stays; NULL: none */
	const char *instead; /* what stands for it, or is added */
	const char *option;  /* a flag that goes, as "--all-users"; NULL: none */
	bool without_pid;    /* --pid goes, with its value */
};

static bool is_operand(const struct invocation *in, const char *word)
{
	for (int i = 0; i < in->n_operands; i++)
		if (in->operands[i] == word)
			return true;
	return false;
}

static bool is_inside(const char *word, const char *value)
{
	return value && value > word && value <= word + strlen(word);
}

/* The arguments of a child (owned, its strings borrowed), NULL without memory. */
static char **change_line(const struct change *c, char *const *argv)
{
	const char *pid = c->without_pid ? c->in->values[OPT_PID] : NULL;
	size_t n = 0, used = 0;

	while (argv[n])
		n++;
	char **line = calloc(n + 5, sizeof(*line));
	if (!line)
		return NULL;
	line[used++] = (char *)"brumate";
	line[used++] = (char *)c->in->command->name;
	for (size_t i = 0; i < n; i++) {
		const bool separate = pid && i + 1 < n && argv[i + 1] == pid;

		if (!strcmp(argv[i], "--") || (c->option && !strcmp(argv[i], c->option)) ||
		    separate || argv[i] == pid || is_inside(argv[i], pid) ||
		    is_operand(c->in, argv[i]))
			continue;
		line[used++] = argv[i];
	}
	line[used++] = (char *)"--";
	if (c->instead)
		line[used++] = (char *)c->instead;
	return line;
}

static int begin_act(struct errand *e, const struct place *p, const struct change *c,
		     char *const *argv, struct brumate_error *err)
{
	auto_free char **line = change_line(c, argv);
	uint64_t deadline_ns = DEADLINE_NEVER;

	/* A wrong one is for the command to refuse. */
	if (parse_deadline(&deadline_ns, c->in->values[OPT_TIMEOUT], 0, NULL) == 0 &&
	    deadline_ns != DEADLINE_NEVER)
		deadline_ns += BEYOND_TIMEOUT_MS * NS_PER_MS;
	return line ? errand_begin(e, p, c->in, line, deadline_ns, err)
		    : brumate_fail(err, ENOMEM, "%m");
}

/* The exit status of one that has ended. If it did not, the others are not concerned. */
static int end_act(struct errand *e)
{
	struct brumate_error why = BRUMATE_ERROR_NONE;
	int one = EXIT_OK;

	return errand_end(e, &one, &why) < 0 ? print_error(&why) : one;
}

static int act_for(int *status, const struct place *p, const struct change *c, char *const *argv,
		   struct brumate_error *err)
{
	struct errand e = { 0 };
	struct errands one = { .items = &e, .n = 1 };
	int r = begin_act(&e, p, c, argv, err);

	while (r == 0 && !errand_has_ended(&e))
		if (errands_wait(&one, DEADLINE_NEVER) < 0)
			break;
	if (r < 0)
		return r;
	const int ended = end_act(&e);
	*status = *status ? *status : ended;
	return 0;
}

/* ---- the three ways to ask for it ---- */

static const char *states_of(const struct command *c)
{
	return c->run == verb_suspend	? "running"
	       : c->run == verb_resume	? "suspended"
	       : c->run == verb_restore ? "checkpointed"
					: "running suspended";
}

static int act_for_own(int *status, const struct invocation *in, verb_fn run,
		       struct brumate_error *err)
{
	struct invocation own = *in;

	own.values[OPT_ALL_USERS] = NULL;
	own.values[OPT_ALL] = "";
	int r = run(&own, err);
	if (r > 0)
		*status = r;
	if (r >= 0)
		return 0;
	*status = print_error(err);
	*err = BRUMATE_ERROR_NONE;
	return 0;
}

/* Whether the job has ended since it was listed: one that cannot be looked at has not. */
static bool has_ended_since(const struct place *of, const char *id)
{
	struct place again = *of;
	struct places now = { .items = &again, .n = 1, .look_ms = USERS_LOOK_MS };
	json_t *job;
	size_t k;

	again.jobs = NULL;
	if (look_at_places(&now, NULL, NULL) < 0 || !again.jobs)
		return false;
	bool ended = true;
	json_array_foreach (again.jobs, k, job)
		ended = ended && (strcmp(text_of(job, "id"), id) != 0 ||
				  words_contain(STATES_ENDED, text_of(job, "state")));
	json_decref(again.jobs);
	return ended;
}

/* A round through the jobs of all users, of each user's one at a time. */
struct round {
	const struct invocation *in;
	char *const *argv;
	const char *states;
	struct places *all;
	struct errands errands; /* one for each of the places */
	size_t *next;		/* of the jobs of each */
	size_t n_found;
	int *status;
};

static void round_fini(struct round *r)
{
	errands_fini(&r->errands);
	free(r->next);
}
DEFINE_AUTO_FINI(struct round, round_fini)

/* One that ends meanwhile needs nothing more; one that was saved has to come back. */
static void end_listed(struct round *r, size_t i)
{
	const struct place *p = &r->all->items[i];
	const char *id = text_of(json_array_get(p->jobs, r->next[i] - 1), "id");
	int one = end_act(&r->errands.items[i]);

	if (one && r->in->command->run != verb_restore && has_ended_since(p, id)) {
		print_note("job %s/%s has ended meanwhile", p->user, id);
		one = EXIT_OK;
	}
	*r->status = *r->status ? *r->status : one;
}

/* A user's command that takes longer than this is waited for while the jobs of others have their turn: it may never end. */
enum { FOR_ALL_MS = 10000 };

/* Until that of place @i has ended, or @deadline_ns; what has ended is put down. */
static int wait_for_listed(struct round *r, size_t i, uint64_t deadline_ns,
			   struct brumate_error *err)
{
	struct errand *const of = &r->errands.items[i];

	while (of->pid) {
		const int code = errands_wait(&r->errands, deadline_ns);

		if (code < 0)
			return brumate_fail(err, -code, "poll: %m");
		for (size_t k = 0; k < r->errands.n; k++)
			if (r->errands.items[k].pid && errand_has_ended(&r->errands.items[k]))
				end_listed(r, k);
		if (!deadline_left_ms(deadline_ns))
			break;
	}
	return 0;
}

/* The next job of place @i that it is for, unless one is under way there. False: there is none. */
static bool begin_listed(struct round *r, size_t i)
{
	const struct place *p = &r->all->items[i];

	while (!r->errands.items[i].pid && r->next[i] < json_array_size(p->jobs)) {
		json_t *job = json_array_get(p->jobs, r->next[i]++);
		const char *id = text_of(job, "id");
		const struct change c = { .in = r->in, .instead = id, .option = "--all-users" };

		if (!words_contain(r->states, text_of(job, "state")))
			continue;
		r->n_found++;
		struct brumate_error why = BRUMATE_ERROR_NONE;
		if (begin_act(&r->errands.items[i], p, &c, r->argv, &why) < 0) {
			const int one = print_error(&why); /* the others are not concerned */
			*r->status = *r->status ? *r->status : one;
		}
		return true;
	}
	return false;
}

/* Whether one of its jobs, from the nth on, is in one of @states. */
static bool place_has(const struct place *p, size_t nth, const char *states)
{
	for (; nth < json_array_size(p->jobs); nth++)
		if (words_contain(states, text_of(json_array_get(p->jobs, nth), "state")))
			return true;
	return false;
}

/* Whether a user's job has had no turn. */
static bool has_left(const struct round *r)
{
	for (size_t i = 0; i < r->all->n; i++)
		if (r->all->items[i].uid != 0 &&
		    place_has(&r->all->items[i], r->next[i], r->states))
			return true;
	return false;
}

static bool has_one_under_way(const struct round *r, size_t *ret)
{
	for (size_t i = 0; i < r->errands.n; i++)
		if (r->errands.items[i].pid) {
			*ret = i;
			return true;
		}
	return false;
}

/* One job of each user's after the other, so that a user with thousands is no more in the way of the rest than one whose
 * command never ends. After Ctrl-C none is begun. */
static int act_in_rounds(struct round *r, struct brumate_error *err)
{
	size_t last;
	int code = 0;

	for (bool any = true; any && code >= 0 && !r->errands.n_interrupts;) {
		any = false;
		for (size_t i = 0; code >= 0 && i < r->all->n && !r->errands.n_interrupts; i++) {
			if (r->all->items[i].uid == 0 || !begin_listed(r, i))
				continue;
			any = true;
			code = wait_for_listed(r, i, deadline_in_ms(FOR_ALL_MS), err);
		}
		/* Each user with more jobs has one at work. */
		if (!any && code >= 0 && has_one_under_way(r, &last)) {
			code = wait_for_listed(r, last, deadline_in_ms(FOR_ALL_MS), err);
			any = true;
		}
	}
	while (code >= 0 && has_one_under_way(r, &last))
		code = wait_for_listed(r, last, DEADLINE_NEVER, err);
	if (code == 0 && r->errands.n_interrupts && has_left(r))
		code = brumate_fail(err, ECANCELED, "%s: cancelled: not all jobs had their turn",
				    r->in->command->name);
	return code < 0 ? code : 0;
}

static bool has_own(const struct places *all, const char *states)
{
	for (size_t i = 0; i < all->n; i++)
		if (all->items[i].uid == 0 && place_has(&all->items[i], 0, states))
			return true;
	return false;
}

static int act_for_all(int *status, const struct invocation *in, char *const *argv, verb_fn run,
		       struct brumate_error *err)
{
	auto_(places_fini) struct places all = { .look_ms = USERS_LOOK_MS };
	auto_(round_fini) struct round round = { .in = in,
						 .argv = argv,
						 .states = states_of(in->command),
						 .all = &all,
						 .status = status };
	int r = in->n_operands || in->values[OPT_ALL] || in->values[OPT_PID]
			? brumate_fail(err, EINVAL, "%s: --all-users takes no job",
				       in->command->name)
			: list_places(&all, NULL, err);

	if (r < 0)
		return r;
	round.errands.items = calloc(all.n, sizeof(*round.errands.items));
	round.next = calloc(all.n, sizeof(*round.next));
	if (!round.errands.items || !round.next)
		return brumate_fail(err, ENOMEM, "%m");
	round.errands.n = all.n;
	const bool own = has_own(&all, round.states);
	if (own && (r = act_for_own(status, in, run, err)) < 0)
		return r;
	r = act_in_rounds(&round, err);
	if (r == 0 && !own && !round.n_found)
		print_note("%s: nothing to do: no job of any user is %s", in->command->name,
			   round.states);
	return r;
}

static int act_by_names(int *status, const struct invocation *in, char *const *argv, verb_fn run,
			struct brumate_error *err)
{
	auto_(places_fini) struct places all = { .look_ms = USERS_LOOK_MS };
	int r = list_places(&all, NULL, err);

	/* As with other names, all are looked up before anything is done to the first. */
	for (int i = 0; r == 0 && i < in->n_operands; i++)
		if (is_name_of_user(in->operands[i]) && !find_place(&all, in->operands[i])) {
			brumate_fail(err, ENOENT, "no user %.*s has jobs here",
				     (int)strcspn(in->operands[i], "/"), in->operands[i]);
			brumate_hint(err, "`brumate ps --all-users` lists the jobs of all users");
			return -ENOENT;
		}
	for (int i = 0; r == 0 && i < in->n_operands; i++) {
		const char *word = in->operands[i];
		const struct place *p = is_name_of_user(word) ? find_place(&all, word) : NULL;
		const struct change c = { .in = in, .instead = p ? strchr(word, '/') + 1 : word };
		struct invocation one = *in;

		if (p && p->uid != 0) {
			r = act_for(status, p, &c, argv, err);
			continue;
		}
		char *const own[] = { (char *)c.instead, NULL };
		one.operands = own;
		one.n_operands = 1;
		int done = run(&one, err);
		if (done < 0) {
			done = print_error(err);
			*err = BRUMATE_ERROR_NONE;
		}
		*status = *status ? *status : done;
	}
	return r;
}

/* The job of another user that process @pid is of: by the shim above it, whose last argument is the directory of the job. */
static bool find_by_pid(struct place *ret, char ret_id[static JOB_ID_BYTES], pid_t pid)
{
	enum { ANCESTORS_MAX = 64, LINE_BYTES_MAX = 1 << 16 };
	struct proc_info p;

	for (int n = 0; n < ANCESTORS_MAX && pid > 1 && proc_read(&p, pid, NULL) == 0;
	     n++, pid = p.ppid) {
		auto_free char *line = NULL;
		size_t len = 0;

		if (!is_users_shim(&p) ||
		    proc_file_read(pid, "cmdline", LINE_BYTES_MAX, &line, &len) < 0 || len < 2)
			continue;
		const char *last = line + len - 1;
		while (last > line && last[-1])
			last--;
		const char *slash = strrchr(last, '/');
		if (!slash || !job_id_is_valid(slash + 1) || place_of_shim(ret, &p) != 0)
			return false;
		snprintf(ret_id, JOB_ID_BYTES, "%s", slash + 1);
		return true;
	}
	return false;
}

static int act_by_pid(int *status, const struct invocation *in, char *const *argv,
		      struct brumate_error *err)
{
	char id[JOB_ID_BYTES];
	struct place p;
	int64_t pid;
	int r = parse_pid(&pid, in->values[OPT_PID], err);

	if (r < 0)
		return r;
	if (!find_by_pid(&p, id, (pid_t)pid))
		return 0;
	const struct change c = { .in = in, .instead = id, .without_pid = true };
	print_note("process %d is of job %s of user %s, which is what is meant", (int)pid, id,
		   p.user);
	r = act_for(status, &p, &c, argv, err);
	place_fini(&p);
	return r < 0 ? r : 1;
}

static bool names_users(const struct invocation *in)
{
	for (int i = 0; i < in->n_operands; i++)
		if (is_name_of_user(in->operands[i]))
			return true;
	return false;
}

int users_act(int *ret_status, const struct invocation *in, char *const *argv, verb_fn run,
	      struct brumate_error *err)
{
	const struct command *c = in->command;
	const bool operates = c->run == verb_suspend || c->run == verb_resume ||
			      c->run == verb_checkpoint || c->run == verb_restore;
	int r;

	*ret_status = EXIT_OK;
	if (operates && in->values[OPT_ALL_USERS])
		r = act_for_all(ret_status, in, argv, run, err);
	else if (getuid() == 0 && takes_jobs(c) && names_users(in))
		r = act_by_names(ret_status, in, argv, run, err);
	else if (getuid() == 0 && operates && in->values[OPT_PID])
		return act_by_pid(ret_status, in, argv, err);
	else
		return 0;
	return r < 0 ? r : 1;
}

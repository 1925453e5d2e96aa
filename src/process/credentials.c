// SPDX-License-Identifier: MIT
/* Credentials of threads from /proc/PID/task/TID; see proc(5), "status" and "attr/current". */
#include "process/credentials.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/array.h"
#include "base/fd.h"
#include "process/process.h"

enum {
	STATUS_BYTES_MAX = 2 << 20, /* a thread may be in 65536 groups */
	PF_EXITING = 0x4,	    /* linux/sched.h */
};

void credentials_fini(struct credentials *c)
{
	free(c->groups);
	*c = CREDENTIALS_EMPTY;
}

static int compare_gids(const void *one, const void *other)
{
	const gid_t *a = one, *b = other;

	return *a < *b ? -1 : *a > *b;
}

int credentials_set_groups(struct credentials *c, const gid_t *groups, size_t n)
{
	gid_t *copy = calloc(n + 1, sizeof(*copy));

	if (!copy)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		copy[i] = groups[i];
	qsort(copy, n, sizeof(*copy), compare_gids);
	free(c->groups);
	c->groups = copy;
	c->n_groups = n;
	return 0;
}

bool credentials_are_same(const struct credentials *one, const struct credentials *other)
{
	return !memcmp(one->uids, other->uids, sizeof(one->uids)) &&
	       !memcmp(one->gids, other->gids, sizeof(one->gids)) &&
	       !memcmp(one->capabilities, other->capabilities, sizeof(one->capabilities)) &&
	       one->n_groups == other->n_groups &&
	       (!one->n_groups ||
		!memcmp(one->groups, other->groups, one->n_groups * sizeof(*one->groups))) &&
	       one->no_new_privs == other->no_new_privs && one->seccomp == other->seccomp &&
	       !strcmp(one->label, other->label);
}

bool credentials_are_of_user(const struct credentials *c, uid_t uid)
{
	for (int i = 0; i < CREDENTIALS_ID__MAX; i++)
		if (c->uids[i] != uid)
			return false;
	for (int i = 0; i < CREDENTIALS_SET__MAX; i++)
		if (i != CREDENTIALS_BOUNDING && c->capabilities[i])
			return false;
	return true;
}

/* ---- one thread ---- */

static int parse_ids(uint32_t *ret, const char *field)
{
	char *end;

	if (!field)
		return -EBADMSG;
	for (int i = 0; i < CREDENTIALS_ID__MAX; i++) {
		ret[i] = (uint32_t)strtoul(field, &end, 10);
		if (end == field)
			return -EBADMSG;
		field = end;
	}
	return 0;
}

static int parse_groups(struct credentials *c, const char *field)
{
	while (field && *field && *field != '\n') {
		char *end;
		gid_t gid = (gid_t)strtoul(field, &end, 10);

		if (end == field) {
			field++;
			continue;
		}
		if (array_add(c->groups, c->n_groups, gid) < 0)
			return -ENOMEM;
		field = end;
	}
	if (c->n_groups)
		qsort(c->groups, c->n_groups, sizeof(*c->groups), compare_gids);
	return field ? 0 : -EBADMSG;
}

static int parse_capabilities(struct credentials *c, const char *status)
{
	static const char *const names[CREDENTIALS_SET__MAX] = {
		[CREDENTIALS_INHERITABLE] = "CapInh", [CREDENTIALS_PERMITTED] = "CapPrm",
		[CREDENTIALS_IN_EFFECT] = "CapEff",   [CREDENTIALS_BOUNDING] = "CapBnd",
		[CREDENTIALS_AMBIENT] = "CapAmb",
	};

	for (int i = 0; i < CREDENTIALS_SET__MAX; i++) {
		const char *field = proc_status_field(status, names[i]);
		char *end;

		if (!field)
			return -EBADMSG;
		c->capabilities[i] = strtoull(field, &end, 16);
		if (end == field)
			return -EBADMSG;
	}
	return 0;
}

int credentials_parse(struct credentials *ret, const char *status)
{
	auto_(credentials_fini) struct credentials c = CREDENTIALS_EMPTY;
	const char *no_new_privs = proc_status_field(status, "NoNewPrivs");
	const char *seccomp =
		proc_status_field(status, "Seccomp"); /* not there without the feature */
	int r = parse_ids(c.uids, proc_status_field(status, "Uid"));

	if (r == 0)
		r = parse_ids(c.gids, proc_status_field(status, "Gid"));
	if (r == 0)
		r = parse_groups(&c, proc_status_field(status, "Groups"));
	if (r == 0)
		r = parse_capabilities(&c, status);
	if (r == 0 && !no_new_privs)
		r = -EBADMSG;
	if (r < 0)
		return r;
	c.no_new_privs = strtoul(no_new_privs, NULL, 10);
	c.seccomp = seccomp ? (unsigned)strtoul(seccomp, NULL, 10) : 0;
	*ret = c;
	c = CREDENTIALS_EMPTY;
	return 0;
}

/* A kernel without a security module that has labels says EINVAL, or has no such file. */
static int read_label(struct credentials *c, pid_t pid)
{
	auto_free char *text = NULL;
	int r = proc_file_read(pid, "attr/current", CREDENTIALS_LABEL_BYTES - 1, &text, NULL);

	if (r == -EINVAL || r == -ENOENT || r == -EOPNOTSUPP)
		return 0;
	if (r < 0)
		return r;
	text[strcspn(text, "\n")] = '\0';
	snprintf(c->label, sizeof(c->label), "%s", text);
	return 0;
}

/* Without the label. */
static int read_thread(struct credentials *ret, pid_t pid, pid_t tid)
{
	auto_free char *status = NULL;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/task/%d/status", pid, tid);
	int r = file_read(AT_FDCWD, path, STATUS_BYTES_MAX, &status, NULL);
	if (r == 0)
		r = credentials_parse(ret, status);
	return r == -ENOENT ? -ESRCH : r;
}

int credentials_read(struct credentials *ret, pid_t pid)
{
	auto_(credentials_fini) struct credentials c = CREDENTIALS_EMPTY;
	int r = read_thread(&c, pid, pid);

	if (r == 0)
		r = read_label(&c, pid);
	if (r < 0)
		return r;
	*ret = c;
	c = CREDENTIALS_EMPTY;
	return 0;
}

/* ---- a tree ---- */

static void of_process_fini(struct credentials_of_process *p)
{
	for (size_t i = 0; i < p->n; i++)
		credentials_fini(&p->items[i]);
	free(p->items);
	*p = (struct credentials_of_process){ 0 };
}
DEFINE_AUTO_FINI(struct credentials_of_process, of_process_fini)

void credentials_of_tree_fini(struct credentials_of_tree *t)
{
	for (size_t i = 0; i < t->n; i++)
		of_process_fini(&t->items[i]);
	free(t->items);
	*t = CREDENTIALS_OF_TREE_EMPTY;
}

static int add_thread(struct credentials_of_process *p, pid_t pid, pid_t tid)
{
	auto_(credentials_fini) struct credentials c = CREDENTIALS_EMPTY;
	int r = p->n ? read_thread(&c, pid, tid) : credentials_read(&c, pid);

	if (r < 0)
		return r == -ESRCH ? 0 : r; /* it has ended */
	if (p->n)
		memcpy(c.label, p->items[0].label, sizeof(c.label));
	for (size_t i = 0; i < p->n; i++)
		if (credentials_are_same(&p->items[i], &c))
			return 0;
	if (array_add(p->items, p->n, c) < 0)
		return -ENOMEM;
	c = CREDENTIALS_EMPTY;
	return 0;
}

/* Its first thread comes first. Without items where it has ended. */
static int read_process(struct credentials_of_process *ret, const struct proc_info *info)
{
	auto_(of_process_fini) struct credentials_of_process p = { .info = *info };
	const pid_t pid = info->id.pid;
	int r = add_thread(&p, pid, pid);

	auto_closedir DIR *dir = proc_dir_open(pid, "task");
	if (!dir && errno != ENOENT && errno != ESRCH)
		return -errno;
	for (struct dirent *e; r == 0 && dir && (e = readdir(dir));)
		if (e->d_name[0] != '.' && atoi(e->d_name) != pid)
			r = add_thread(&p, pid, atoi(e->d_name));
	if (r != -ENOMEM && proc_is_gone(info->id))
		return 0; /* no failed read of it matters */
	if (r < 0)
		return r;
	*ret = p;
	p = (struct credentials_of_process){ 0 };
	return 0;
}

static int fail_to_read(const struct proc_info *info, int r, struct brumate_error *err)
{
	if (r == -ENOMEM)
		return brumate_fail(err, ENOMEM, "%m");
	return brumate_fail(err, EIO, "process %d (%s): its rights cannot be read: %s",
			    info->id.pid, info->comm, strerror(-r));
}

/* Its first thread may have ended before the others. */
static bool has_ended(const struct proc_info *info)
{
	return info->state == 'X' || (info->state == 'Z' && info->n_threads <= 1);
}

int credentials_of_tree(struct credentials_of_tree *ret, const struct proc_tree *tree,
			struct brumate_error *err)
{
	auto_(credentials_of_tree_fini) struct credentials_of_tree t = CREDENTIALS_OF_TREE_EMPTY;

	t.items = calloc(tree->n + 1, sizeof(*t.items));
	if (!t.items)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < tree->n; i++) {
		if (has_ended(&tree->items[i]))
			continue;
		int r = read_process(&t.items[t.n], &tree->items[i]);
		if (r < 0)
			return fail_to_read(&tree->items[i], r, err);
		t.n += t.items[t.n].n > 0;
	}
	*ret = t;
	t = CREDENTIALS_OF_TREE_EMPTY;
	return 0;
}

/* Whether a thread is in exit(2), where it has released the memory or is about to. 1, 0, -errno. */
static int thread_ends(int task_fd, const char *name)
{
	auto_free char *text = NULL;
	int r = file_read(task_fd, name, STATUS_BYTES_MAX, &text, NULL);
	const char *flags = r < 0 ? NULL : proc_stat_field(text, 9);

	if (r < 0)
		return r;
	return flags ? (strtoul(flags, NULL, 10) & PF_EXITING) != 0 : -EBADMSG;
}

/* The kernel gives the files of a thread whose memory nobody may read to root (proc(5)), and those of one that has none
 * any more, as it ends. 1, 0: that, and 1 of one that ends; -errno. */
static int thread_lets_itself_be_read(int task_fd, const char *tid, uid_t uid)
{
	struct stat st;
	char name[32];

	snprintf(name, sizeof(name), "%.16s/stat", tid);
	if (fstatat(task_fd, name, &st, 0) < 0)
		return errno == ENOENT || errno == ESRCH ? 1 : -errno;
	/* Looked at in this order, one that begins to end meanwhile is seen to. */
	int r = st.st_uid == uid ? 1 : thread_ends(task_fd, name);
	return r == -ENOENT || r == -ESRCH ? 1 : r;
}

static int lets_itself_be_read(pid_t pid, uid_t uid)
{
	auto_closedir DIR *dir = proc_dir_open(pid, "task");
	struct dirent *e;
	int r, lets = 1;

	if (!dir)
		return errno == ENOENT || errno == ESRCH ? 1 : -errno;
	while (lets == 1 && (r = dir_next(dir, &e)) > 0)
		lets = thread_lets_itself_be_read(dirfd(dir), e->d_name, uid);
	if (lets != 1)
		return lets;
	return r < 0 && r != -ENOENT && r != -ESRCH ? r : 1;
}

static int refuse(const struct proc_info *info, uid_t uid, const char *why,
		  struct brumate_error *err)
{
	brumate_fail(err, EPERM, "process %d (%s) %s, and the job is of uid %u", info->id.pid,
		     info->comm, why, (unsigned)uid);
	brumate_hint(err, "an operation on the job would reveal its memory: end "
			  "this process first, or keep it out of the job");
	return -EPERM;
}

static int refuse_rights(const struct proc_info *info, const struct credentials *c, uid_t uid,
			 struct brumate_error *err)
{
	char why[160];

	for (int i = 0; i < CREDENTIALS_ID__MAX; i++)
		if (c->uids[i] != uid) {
			snprintf(why, sizeof(why), "has the rights of uid %u",
				 (unsigned)c->uids[i]);
			return refuse(info, uid, why, err);
		}
	snprintf(why, sizeof(why), "has capabilities (%" PRIx64 ")",
		 c->capabilities[CREDENTIALS_PERMITTED] | c->capabilities[CREDENTIALS_INHERITABLE]);
	return refuse(info, uid, why, err);
}

static int check_process(const struct credentials_of_process *p, uid_t uid,
			 struct brumate_error *err)
{
	for (size_t i = 0; i < p->n; i++)
		if (!credentials_are_of_user(&p->items[i], uid))
			return refuse_rights(&p->info, &p->items[i], uid, err);
	int r = lets_itself_be_read(p->info.id.pid, uid);
	if (r == 1 || proc_is_gone(p->info.id))
		return 0;
	return r < 0 ? fail_to_read(&p->info, r, err)
		     : refuse(&p->info, uid, "does not let its memory be read", err);
}

int credentials_check(const struct credentials_of_tree *t, uid_t uid, struct brumate_error *err)
{
	for (size_t i = 0; uid != 0 && i < t->n; i++) {
		int r = check_process(&t->items[i], uid, err);

		if (r < 0)
			return r;
	}
	return 0;
}

int credentials_check_tree(const struct proc_tree *tree, uid_t uid, struct brumate_error *err)
{
	auto_(credentials_of_tree_fini) struct credentials_of_tree t = CREDENTIALS_OF_TREE_EMPTY;
	int r = uid == 0 ? 0 : credentials_of_tree(&t, tree, err);

	return r < 0 ? r : credentials_check(&t, uid, err);
}

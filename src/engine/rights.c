// SPDX-License-Identifier: MIT
/* Whose rights an operation needs; see rights.h. */
#include "engine/rights.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include "base/array.h"
#include "base/user.h"
#include "cpumem/image.h"
#include "criu/images.h"
#include "engine/job-files.h"
#include "process/credentials.h"
#include "process/memory-dir.h"

enum { IMAGES_EXTRA_BYTES = 1 << 20, COPY_BYTES_MAX = 1 << 30 };

int rights_check(struct op *op, struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;

	if (op->target->uid == 0)
		return 0;
	const struct proc_members members = target_members(op->target);
	int r = proc_members_read(&tree, &members, err);
	return r < 0 ? r : credentials_check_tree(&tree, op->target->uid, err);
}

/* Only root can become another user. */
static bool has_own_criu(const struct op *op)
{
	return op->target->uid != 0 && op->target->uid != geteuid();
}

/* ---- what is written down ---- */

static int add_rights(struct manifest *m, pid_t pid, const struct credentials *c)
{
	struct manifest_rights *more = array_room(m->rights, m->n_rights, sizeof(*more));

	if (!more)
		return -ENOMEM;
	m->rights = more;
	struct manifest_rights *r = &more[m->n_rights];
	*r = (struct manifest_rights){ .pid = pid,
				       .no_new_privs = c->no_new_privs,
				       .seccomp = c->seccomp,
				       .n_groups = c->n_groups };
	memcpy(r->uids, c->uids, sizeof(r->uids));
	memcpy(r->gids, c->gids, sizeof(r->gids));
	memcpy(r->capabilities, c->capabilities, sizeof(r->capabilities));
	memcpy(r->label, c->label, sizeof(r->label));
	r->groups = calloc(c->n_groups + 1, sizeof(*r->groups));
	if (!r->groups)
		return -ENOMEM;
	for (size_t i = 0; i < c->n_groups; i++)
		r->groups[i].gid = c->groups[i];
	m->n_rights++;
	return 0;
}

/* In place of what an earlier look found. */
static int describe_rights(struct manifest *m, const struct credentials_of_tree *t)
{
	int r = 0;

	for (size_t i = 0; i < m->n_rights; i++)
		free(m->rights[i].groups);
	cleanup_free(&m->rights);
	cleanup_free(&m->filters);
	m->n_rights = m->n_filters = 0;
	for (size_t i = 0; i < t->n; i++)
		for (size_t k = 0; r == 0 && k < t->items[i].n; k++)
			r = add_rights(m, t->items[i].info.inner_pid, &t->items[i].items[k]);
	return r;
}

/* ---- what CRIU's images ask for ---- */

static bool has_groups(const struct credentials *c, const struct manifest_rights *had)
{
	if (c->n_groups != had->n_groups)
		return false;
	for (size_t i = 0; i < c->n_groups; i++)
		if (c->groups[i] != had->groups[i].gid)
			return false;
	return true;
}

/* A bounding set of all that can be written is cut by the kernel to that of the CRIU which restores it. */
static bool has_capabilities(const struct credentials *c, const struct manifest_rights *had)
{
	for (int i = 0; i < CREDENTIALS_SET__MAX; i++)
		if (c->capabilities[i] & ~had->capabilities[i] &&
		    (i != CREDENTIALS_BOUNDING || ~c->capabilities[i]))
			return false;
	return true;
}

/* The label in an image has no mode ("PROFILE (enforce)"), and is not there where CRIU knows of none. */
static bool has_label(const struct credentials *c, const struct manifest_rights *had)
{
	return !*c->label || (!strncmp(c->label, had->label, strlen(c->label)) &&
			      strchr(" ", had->label[strlen(c->label)]));
}

#define OTHER_FILTER "another filter of system calls"

/* What it asks for beyond what it had; NULL if nothing. */
static const char *beyond(const struct criu_image_thread *t, const struct manifest_rights *had)
{
	const struct credentials *c = &t->credentials;
	const bool may_set = had->capabilities[CREDENTIALS_PERMITTED] & 1ull << CAP_SETPCAP;

	if (memcmp(c->uids, had->uids, sizeof(c->uids)))
		return "another user";
	if (memcmp(c->gids, had->gids, sizeof(c->gids)) || !has_groups(c, had))
		return "other groups";
	if (!has_capabilities(c, had))
		return "more capabilities";
	if (had->no_new_privs && !c->no_new_privs)
		return "new privileges (no_new_privs)";
	if (c->seccomp != had->seccomp)
		return OTHER_FILTER;
	if (!has_label(c, had))
		return "another security label";
	/* Each thread may set that it keeps its capabilities. */
	return t->securebits & ~(uint32_t)SECBIT_KEEP_CAPS && !may_set ? "securebits" : NULL;
}

/* Like beyond(), for every identity the process may have had. */
static const char *beyond_process(const struct criu_image_thread *t, const struct manifest *m,
				  pid_t pid)
{
	const char *why = "to be a process that did not exist";

	if (t->has_ended)
		return NULL;
	if (m->job.uid != 0 && !credentials_are_of_user(&t->credentials, m->job.uid))
		return "rights that the job's user has not";
	for (size_t i = 0; i < m->n_rights; i++) {
		if (m->rights[i].pid != pid)
			continue;
		why = beyond(t, &m->rights[i]);
		if (!why)
			return NULL;
	}
	return m->n_rights ? why : NULL;
}

static int fail_other_user(pid_t pid, uid_t uid, struct brumate_error *err)
{
	brumate_fail(err, EPERM,
		     "process %d of root's job is of uid %u, who could have changed the files that "
		     "root's CRIU opens for it",
		     pid, (unsigned)uid);
	brumate_hint(err, "`brumate inspect --restore` lists them; --force restores it all the "
			  "same");
	return -EPERM;
}

/* 0 for an ended one, which has none. */
static uid_t other_user(const uid_t *uids)
{
	for (int i = 0; i < CREDENTIALS_ID__MAX; i++)
		if (uids[i] != 0)
			return uids[i];
	return 0;
}

static bool is_of_root_here(const struct manifest *m)
{
	return m->job.uid == 0 && geteuid() == 0;
}

int rights_check_users(const struct op *op, struct brumate_error *err)
{
	const struct manifest *m = &op->restore.image.manifest;

	if (!is_of_root_here(m) || op->request->force)
		return 0;
	for (size_t i = 0; i < m->n_rights; i++)
		if (other_user(m->rights[i].uids))
			return fail_other_user(m->rights[i].pid, other_user(m->rights[i].uids),
					       err);
	return 0;
}

/* CRIU's images, as they are gone through. */
struct images {
	int dir_fd;
	const struct manifest *manifest;
	bool is_forced;
	struct criu_image_filters *filters; /* read for the first thread that has any */
	unsigned
		shared; /* mode of the filters that a process's first thread installs for all; 0: none */
};

static bool had_filters(const struct manifest *m, pid_t pid, const struct digest *d)
{
	for (size_t i = 0; i < m->n_filters; i++)
		if (m->filters[i].pid == pid && !memcmp(&m->filters[i].digest, d, sizeof(*d)))
			return true;
	return m->n_filters == 0; /* an older writer did not look */
}

/* Gives the thread the filters that the first one installs for all. 1: it has none or those that the process had; 0. */
static int check_filters(struct images *i, struct criu_image_thread *t, pid_t pid, bool is_first)
{
	unsigned *mode = &t->credentials.seccomp;
	struct digest digest;
	int r = 0;

	if (is_first)
		i->shared = 0;
	if (*mode == SECCOMP_MODE_FILTER) {
		if (!i->filters)
			r = criu_image_filters_read(&i->filters, i->dir_fd);
		if (r == 0)
			r = criu_image_filters_digest(&digest, i->filters, t->filter);
		if (r < 0)
			return r;
		if (is_first && r > 0)
			i->shared = SECCOMP_MODE_FILTER;
		return had_filters(i->manifest, pid, &digest);
	}
	if (!is_first && !*mode)
		*mode = i->shared;
	return 1;
}

/* Returns 1 for a process that has ended, of which CRIU names threads that are none. */
static int check_thread(struct images *i, pid_t pid, pid_t tid, struct brumate_error *err)
{
	auto_(criu_image_thread_fini) struct criu_image_thread t = CRIU_IMAGE_THREAD_EMPTY;
	const struct manifest *m = i->manifest;
	int r = criu_image_thread_read(&t, i->dir_fd, tid);

	if (r == 0)
		r = check_filters(i, &t, pid, tid == pid);
	if (r == -ENOMEM)
		return brumate_fail(err, ENOMEM, "%m");
	if (r < 0)
		return brumate_fail(err, EBADMSG, "CRIU's image of process %d is damaged: %s", pid,
				    strerror(-r));
	if (!i->is_forced && !m->n_rights && is_of_root_here(m) && other_user(t.credentials.uids))
		return fail_other_user(pid, other_user(t.credentials.uids), err);
	const char *why = beyond_process(&t, m, pid);
	if (!why && !r)
		why = OTHER_FILTER;
	if (!why)
		return t.has_ended;
	brumate_fail(err, EBADMSG,
		     "CRIU's image of process %d asks for %s: the kernel said otherwise of it", pid,
		     why);
	brumate_hint(err, "a program of the same user may have changed the memory of the process "
			  "while it was saved; brumate takes no such image");
	return -EBADMSG;
}

static int check_processes(struct images *i, struct brumate_error *err)
{
	auto_(criu_image_tree_fini) struct criu_image_tree tree = CRIU_IMAGE_TREE_EMPTY;
	int r = criu_image_tree_read(&tree, i->dir_fd);

	if (r < 0)
		return brumate_fail(err, r == -ENOMEM ? ENOMEM : EBADMSG,
				    "CRIU's image pstree.img: %s", strerror(-r));
	for (size_t n = 0; n < tree.n; n++) {
		const struct criu_image_process *p = &tree.items[n];

		r = check_thread(i, p->pid, p->pid, err);
		for (size_t k = 0; r == 0 && k < p->n_threads; k++)
			r = check_thread(i, p->pid, p->threads[k], err);
		if (r < 0)
			return r;
	}
	return 0;
}

int rights_check_images(int images_dir_fd, const struct manifest *m, bool is_forced,
			struct brumate_error *err)
{
	struct images i = { .dir_fd = images_dir_fd, .manifest = m, .is_forced = is_forced };
	int r = check_processes(&i, err);

	criu_image_filters_free(i.filters);
	return r;
}

/* ---- dump ---- */

static bool has_gids_of(const struct credentials *c, const struct criu_user *user)
{
	for (int i = 0; i < CREDENTIALS_ID__MAX; i++)
		if (c->gids[i] != user->gid)
			return false;
	return c->n_groups == user->n_groups &&
	       (!c->n_groups || !memcmp(c->groups, user->groups, c->n_groups * sizeof(gid_t)));
}

/* @user: whose CRIU it is, where that is not ours. */
static int check_member(const struct credentials_of_process *p, const struct criu_user *user,
			struct brumate_error *err)
{
	for (size_t i = 0; i < p->n; i++) {
		if (user && !has_gids_of(&p->items[i], user)) {
			brumate_fail(err, EOPNOTSUPP,
				     "process %d is in other groups than the job's first process",
				     p->info.id.pid);
			brumate_hint(err,
				     "CRIU works with the rights of the job's user, and a user "
				     "cannot change groups");
			return -EOPNOTSUPP;
		}
		if (p->items[i].seccomp) {
			brumate_fail(err, EOPNOTSUPP, "process %d has a filter of system calls",
				     p->info.id.pid);
			brumate_hint(err,
				     "CRIU works with the rights of the job's user, to whom the "
				     "kernel does not show the filter: start the job without it");
			return -EOPNOTSUPP;
		}
	}
	return 0;
}

static int check_sharers(const struct proc_tree *tree, struct brumate_error *err)
{
	struct proc_info other;
	int r = proc_find_sharer(&other, tree);

	if (r == 0)
		return 0;
	if (r < 0)
		return brumate_fail(err, -r, "who shares memory with the job cannot be told: %m");
	brumate_fail(err, EOPNOTSUPP,
		     "process %d (%s), which is not of the job, lives in the memory of one that is",
		     other.id.pid, other.comm);
	brumate_hint(err, "it can change that memory while it is saved, and would not come back: "
			  "end it first");
	return -EOPNOTSUPP;
}

/* One look for all of it: the job may stand still meanwhile. */
int rights_check_dump(struct op *op, struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	auto_(credentials_of_tree_fini) struct credentials_of_tree t = CREDENTIALS_OF_TREE_EMPTY;
	struct criu_user *user = NULL;
	int r = proc_tree_read(&tree, op->target->root, err);

	if (r == 0)
		r = check_sharers(&tree, err);
	if (r == 0)
		r = credentials_of_tree(&t, &tree, err);
	if (r == 0)
		r = credentials_check(&t, op->target->uid, err);
	if (r == 0)
		r = rights_for_dump(op, &user, err);
	for (size_t i = 0; r == 0 && (user || geteuid() != 0) && i < t.n; i++)
		r = check_member(&t.items[i], user, err);
	if (r < 0)
		return r;
	return describe_rights(&op->checkpoint.manifest, &t) < 0 ? brumate_fail(err, ENOMEM, "%m")
								 : 0;
}

/* Finds a process of which filters are not known. */
static const struct manifest_rights *without_filters(const struct manifest *m)
{
	for (size_t i = 0; i < m->n_rights; i++) {
		bool is_known = m->rights[i].seccomp != SECCOMP_MODE_FILTER;

		for (size_t k = 0; k < m->n_filters && !is_known; k++)
			is_known = m->filters[k].pid == m->rights[i].pid;
		if (!is_known)
			return &m->rights[i];
	}
	return NULL;
}

int rights_read_filters(struct op *op, struct brumate_error *err)
{
	struct manifest *m = &op->checkpoint.manifest;

	if (!without_filters(m)) /* nobody has any */
		return 0;
	int r = cpu_memory_image_filters(op->images.cpu_memory, &m->filters, &m->n_filters);
	if (r == -ENOENT)
		return brumate_fail(err, EOPNOTSUPP,
				    "the job has filters of system calls, and the plugin of CRIU "
				    "that reads them is not installed (brumate-criu.so)");
	if (r < 0)
		return brumate_fail(err, -r,
				    "the job's filters of system calls cannot be read: %m");
	const struct manifest_rights *unknown = without_filters(m);
	return unknown ? brumate_fail(err, EIO,
				      "process %d: its filters of system calls are not known",
				      unknown->pid)
		       : 0;
}

int rights_for_dump(struct op *op, struct criu_user **ret, struct brumate_error *err)
{
	struct criu_user *user = &op->images.user;
	auto_(credentials_fini) struct credentials c = CREDENTIALS_EMPTY;
	const pid_t root = op->target->root.pid;

	*ret = has_own_criu(op) ? user : NULL;
	if (!*ret || user->uid)
		return 0;
	int r = credentials_read(&c, root);
	if (r < 0)
		return brumate_fail(err, -r, "process %d: its rights cannot be read: %m", root);
	*user = (struct criu_user){ .uid = op->target->uid,
				    .gid = c.gids[CREDENTIALS_EFFECTIVE],
				    .groups = take_ptr(&c.groups),
				    .n_groups = c.n_groups };
	return 0;
}

/* ---- restore ---- */

/* Those that the job had: it may have given up some of its user's. */
static int take_groups(struct criu_user *user, const struct manifest_rights *had)
{
	user->groups = calloc(had->n_groups + 1, sizeof(*user->groups));
	if (!user->groups)
		return -ENOMEM;
	for (size_t i = 0; i < had->n_groups; i++)
		user->groups[i] = had->groups[i].gid;
	user->n_groups = had->n_groups;
	return 0;
}

int rights_for_restore(struct op *op, struct criu_user **ret, struct brumate_error *err)
{
	const struct manifest *m = &op->restore.image.manifest;
	struct criu_user *user = &op->images.user;

	*ret = has_own_criu(op) ? user : NULL;
	if (!*ret || user->uid)
		return 0;
	int r = m->n_rights ? take_groups(user, &m->rights[0])
			    : user_groups(&user->groups, &user->n_groups, op->target->uid,
					  op->target->gid, err);
	if (r < 0)
		return r == -ENOMEM ? brumate_fail(err, ENOMEM, "%m") : r;
	user->uid = op->target->uid;
	user->gid = m->n_rights ? m->rights[0].gids[CREDENTIALS_EFFECTIVE] : op->target->gid;
	return 0;
}

static int copy_image(int to_dir_fd, int from_dir_fd, const char *name)
{
	auto_close int from = openat(from_dir_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	auto_close int to =
		from < 0 ? -1
			 : openat(to_dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	ssize_t n = 1;

	if (to < 0)
		return -errno;
	while (n > 0)
		n = sendfile(to, from, NULL, COPY_BYTES_MAX);
	return n < 0 ? -errno : 0;
}

/* Copies of the job's files are read from where they are. */
static bool is_for_criu(const char *path)
{
	return !strncmp(path, "criu/", 5) &&
	       strncmp(path + 5, JOB_FILES_COPY, strlen(JOB_FILES_COPY));
}

static uint64_t images_bytes(const struct manifest *m)
{
	uint64_t sum = IMAGES_EXTRA_BYTES;

	for (size_t i = 0; i < m->n_files; i++)
		if (is_for_criu(m->files[i].path))
			sum += m->files[i].len_bytes + 4096;
	return sum;
}

/* The checkpoint itself stays ours, also where this program dies meanwhile. */
int rights_copy_images(struct op *op, struct brumate_error *err)
{
	const struct manifest *m = &op->restore.image.manifest;
	auto_close int copy = -1;
	int r = 0;

	if (*m->key_id) /* it was decrypted into a place of its own */
		return 0;
	if ((copy = memory_dir_open(images_bytes(m), err)) < 0)
		return copy;
	for (size_t i = 0; r == 0 && i < m->n_files; i++) {
		const char *name = m->files[i].path + strlen("criu/");

		if (!is_for_criu(m->files[i].path))
			continue;
		r = copy_image(copy, op->images.dir_fd, name);
		if (r < 0)
			brumate_fail(err, -r, "checkpoint %s: criu/%s: %m", m->id, name);
	}
	if (r < 0)
		return r;
	close(op->images.dir_fd);
	op->images.dir_fd = take_fd(&copy);
	return 0;
}

// SPDX-License-Identifier: MIT
/* Whose rights an operation needs; see rights.h. */
#include "engine/rights.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/user.h"
#include "process/credentials.h"
#include "store/sealed.h"

enum { IMAGES_EXTRA_BYTES = 1 << 20, COPY_BYTES_MAX = 1 << 30 };

int rights_check(struct op *op, struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;

	if (op->job->uid == 0)
		return 0;
	int r = proc_tree_read(&tree, op->job->root, err);
	return r < 0 ? r : credentials_check_tree(&tree, op->job->uid, err);
}

/* Only root can be somebody else. */
static bool has_own_criu(const struct op *op)
{
	return op->job->uid != 0 && op->job->uid != geteuid();
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

static int check_member(const struct op *op, const struct credentials_of_process *p,
			struct brumate_error *err)
{
	for (size_t i = 0; i < p->n; i++) {
		if (!has_gids_of(&p->items[i], &op->images.user)) {
			brumate_fail(err, EOPNOTSUPP,
				     "process %d is in other groups than the job's first process",
				     p->inner_pid);
			brumate_hint(err,
				     "CRIU works with the rights of the job's user, and a user "
				     "cannot change groups");
			return -EOPNOTSUPP;
		}
		if (p->items[i].seccomp) {
			brumate_fail(err, EOPNOTSUPP, "process %d has a filter of system calls",
				     p->inner_pid);
			brumate_hint(err,
				     "CRIU works with the rights of the job's user, to whom the "
				     "kernel does not show the filter: start the job without it");
			return -EOPNOTSUPP;
		}
	}
	return 0;
}

int rights_check_dump(struct op *op, struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	auto_(credentials_of_tree_fini) struct credentials_of_tree t = CREDENTIALS_OF_TREE_EMPTY;
	struct criu_user *user;
	int r = rights_check(op, err);

	if (r == 0)
		r = rights_for_dump(op, &user, err);
	if (r < 0 || !user)
		return r;
	if ((r = proc_tree_read(&tree, op->job->root, err)) < 0 ||
	    (r = credentials_of_tree(&t, &tree, err)) < 0)
		return r;
	for (size_t i = 0; r == 0 && i < t.n; i++)
		r = check_member(op, &t.items[i], err);
	return r;
}

int rights_for_dump(struct op *op, struct criu_user **ret, struct brumate_error *err)
{
	struct criu_user *user = &op->images.user;
	auto_(credentials_fini) struct credentials c = CREDENTIALS_EMPTY;
	const pid_t root = op->job->root.pid;

	*ret = has_own_criu(op) ? user : NULL;
	if (!*ret || user->uid)
		return 0;
	int r = credentials_read(&c, NULL, root, root);
	if (r < 0)
		return brumate_fail(err, -r, "process %d: its rights cannot be read: %m", root);
	*user = (struct criu_user){ .uid = op->job->uid,
				    .gid = c.gids[CREDENTIALS_EFFECTIVE],
				    .groups = take_ptr(&c.groups),
				    .n_groups = c.n_groups };
	return 0;
}

/* ---- restore ---- */

int rights_for_restore(struct op *op, struct criu_user **ret, struct brumate_error *err)
{
	struct criu_user *user = &op->images.user;

	*ret = has_own_criu(op) ? user : NULL;
	if (!*ret || user->uid)
		return 0;
	int r = user_groups(&user->groups, &user->n_groups, op->job->uid, op->job->gid, err);
	if (r < 0)
		return r;
	user->uid = op->job->uid;
	user->gid = op->job->gid;
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

static uint64_t images_bytes(const struct manifest *m)
{
	uint64_t sum = IMAGES_EXTRA_BYTES;

	for (size_t i = 0; i < m->n_files; i++)
		if (!strncmp(m->files[i].path, "criu/", 5))
			sum += m->files[i].len_bytes + 4096;
	return sum;
}

/* The checkpoint itself stays ours, whatever becomes of us meanwhile. */
int rights_copy_images(struct op *op, struct brumate_error *err)
{
	const struct manifest *m = &op->restore.image.manifest;
	auto_close int copy = -1;
	int r = 0;

	if (*m->key_id) /* it was decrypted into a place of its own */
		return 0;
	if ((copy = sealed_plain_dir(images_bytes(m), err)) < 0)
		return copy;
	for (size_t i = 0; r == 0 && i < m->n_files; i++) {
		const char *name = m->files[i].path + strlen("criu/");

		if (strncmp(m->files[i].path, "criu/", 5))
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

// SPDX-License-Identifier: MIT
/* Checks what a call may access; see access.h. */
#include "service/access.h"

#include <errno.h>
#include <libgen.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/paths.h"
#include "engine/secret.h"
#include "job/request.h"
#include "process/credentials.h"

int access_check_socket(const char *path, struct brumate_error *err)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return brumate_fail(err, errno, "%s: %m", path);
	if (!(st.st_mode & S_IRWXO))
		return 0;
	brumate_fail(err, EACCES, "%s: any user may connect (mode %o) and so become root", path,
		     st.st_mode & 07777);
	brumate_hint(err, "install this version's brumated.socket, then systemctl daemon-reload && "
			  "systemctl restart brumated.socket");
	return -EACCES;
}

static int check_member(const struct proc_info *p, struct brumate_error *err)
{
	if (getuid() == 0 || p->uid == getuid())
		return 0;
	return brumate_fail(err, EACCES, "process %d belongs to another user", (int)p->id.pid);
}

static int read_tree(struct proc_tree *ret, pid_t pid, struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	struct proc_id id;
	int r = proc_identify(&id, pid, err);

	if (r == 0)
		r = proc_tree_read(&tree, id, err);
	for (size_t i = 0; r == 0 && i < tree.n; i++)
		r = check_member(&tree.items[i], err);
	if (r < 0)
		return r;
	*ret = take_struct(tree, PROC_TREE_EMPTY);
	return 0;
}

/* Any method that takes a tree in gets access to its memory. */
static int check_tree(struct proc_tree *ret, pid_t pid, bool is_container,
		      struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	int r = read_tree(&tree, pid, err);

	if (r == 0)
		r = credentials_check_tree(&tree, is_container ? getuid() : tree.items[0].uid, err);
	if (r < 0)
		return r;
	*ret = take_struct(tree, PROC_TREE_EMPTY);
	return 0;
}

int access_tree(struct proc_tree *ret, pid_t pid, struct brumate_error *err)
{
	return check_tree(ret, pid, false, err);
}

int access_container(struct proc_tree *ret, pid_t pid, struct brumate_error *err)
{
	return check_tree(ret, pid, true, err);
}

int access_store(char **ret, json_t *parameters, struct brumate_error *err)
{
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	const char *dir;
	int r = wire_get_string(parameters, "dir", &dir, err);

	if (r < 0)
		return r;
	if (dir && dir[0] != '/')
		return brumate_fail(err, EINVAL, "dir: \"%s\" is not an absolute path", dir);
	if (!dir) {
		r = conf_load(&conf, err);
		if (r < 0)
			return r;
		dir = conf.store_dir;
	}

	char *path = dir ? strdup(dir) : path_checkpoints_dir();
	if (!path)
		return brumate_fail(err, ENOMEM, "%m");
	*ret = path;
	return 0;
}

/* If a directory high up in the path is misspelt, the store would be created far from where its user expects it. */
static int check_parent(const char *dir, struct brumate_error *err)
{
	auto_free char *copy = strdup(dir);
	struct stat st;

	if (!copy)
		return brumate_fail(err, ENOMEM, "%m");
	const char *parent = dirname(copy);
	if (stat(parent, &st) == 0 || errno != ENOENT)
		return 0;
	brumate_fail(err, ENOENT, "%s cannot be created: %s does not exist", dir, parent);
	brumate_hint(err, "check its spelling; only the last directory of the path is created");
	return -ENOENT;
}

int access_store_to_write(char **ret, json_t *parameters, struct brumate_error *err)
{
	auto_free char *dir = NULL, *usual = path_checkpoints_dir();
	int r = access_store(&dir, parameters, err);

	if (r == 0)
		r = store_refuse_dangling(dir, err);
	/* The usual place is made with all that is above it. */
	if (r == 0 && usual && strcmp(dir, usual) != 0)
		r = check_parent(dir, err);
	if (r < 0)
		return r;
	*ret = take_ptr(&dir);
	return 0;
}

int access_store_there(char **ret, json_t *parameters, struct brumate_error *err)
{
	auto_free char *dir = NULL, *usual = path_checkpoints_dir();
	struct stat st;
	int r = access_store(&dir, parameters, err);

	if (r == 0)
		r = store_refuse_dangling(dir, err);
	if (r < 0)
		return r;
	if (stat(dir, &st) == 0 && !S_ISDIR(st.st_mode))
		return brumate_fail(err, ENOTDIR, "%s is not a directory", dir);
	if (stat(dir, &st) < 0 && errno == ENOENT && usual && strcmp(dir, usual)) {
		brumate_fail(err, ENOENT, "%s does not exist", dir);
		brumate_hint(
			err,
			"checkpoints are in %s unless --dir or the configuration says otherwise",
			usual);
		return -ENOENT;
	}
	*ret = take_ptr(&dir);
	return 0;
}

int access_image(struct store_image *ret, const char *dir, const char *word,
		 struct brumate_error *err)
{
	if (strchr(word, '/') && word[0] != '/')
		return brumate_fail(err, EINVAL, "%s: not an absolute path", word);
	return store_open(ret, dir, word, err);
}

int access_authority(struct authority *ret, json_t *parameters, struct brumate_error *err)
{
	auto_(request_fini) struct request request = { 0 };
	int r = request_decode(&request, REQUEST_READ, parameters, err);

	return r < 0 ? r : secret_authority(ret, &request, err);
}

int access_believed_image(struct store_image *ret, const char *dir, const char *word,
			  json_t *parameters, struct brumate_error *err)
{
	auto_(authority_fini) struct authority authority = AUTHORITY_EMPTY;
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	int r = access_image(&image, dir, word, err);

	if (r == 0)
		r = access_authority(&authority, parameters, err);
	if (r == 0)
		r = authentic_check_image(&image, &authority, err);
	if (r < 0)
		return r;
	*ret = take_struct(image, STORE_IMAGE_EMPTY);
	return 0;
}

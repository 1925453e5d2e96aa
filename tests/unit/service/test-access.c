// SPDX-License-Identifier: MIT
/* Who may touch what: jobs, stores and checkpoints of others, and a socket that everybody may use. */
#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "job/scratch.h"
#include "service/access.h"

enum { OTHER = 65534 };

static int store_for(const char *dir, char **ret, struct brumate_error *err)
{
	auto_json json_t *p = dir ? json_pack("{s:s}", "dir", dir) : json_object();

	return access_store(ret, p, err);
}

static void test_stores(void)
{
	auto_free char *given = NULL, *usual = NULL;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	char *untouched = NULL;

	CHECK(store_for("/data", &given, &err) == 0);
	CHECK_STR(given, "/data");
	CHECK(store_for(NULL, &usual, &err) == 0 && usual[0] == '/');
	CHECK(store_for("data", &untouched, &err) == -EINVAL);
	CHECK_STR(err.text, "dir: \"data\" is not an absolute path");
	CHECK(!untouched);
}

static void test_images(void)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct store_image image;

	CHECK(access_image(&image, scratch, "data/a-1", &err) == -EINVAL);
	CHECK(access_image(&image, scratch, "a-1", &err) == -ENOENT);
}

/* In a child, as what it becomes it stays. */
static int look_as_other(pid_t pid)
{
	struct proc_tree untouched = PROC_TREE_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int status;
	pid_t child = fork();

	if (child == 0) {
		if (setresuid(OTHER, OTHER, OTHER) < 0)
			_exit(2);
		int r = access_tree(&untouched, pid, &err);
		_exit(r != -EACCES || untouched.n || !strstr(err.text, "belongs to another user"));
	}
	return waitpid(child, &status, 0) == child ? status : -1;
}

static void test_trees(void)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(access_tree(&tree, getpid(), &err) == 0);
	CHECK(tree.n >= 1 && tree.items[0].id.pid == getpid());
	if (getuid() == 0)
		CHECK(look_as_other(getpid()) == 0);
}

static void test_sockets(void)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	char path[PATH_MAX + 16];

	snprintf(path, sizeof(path), "%s/socket", scratch);
	CHECK(access_check_socket(path, &err) == -ENOENT);
	int fd = wire_listen(path, 0660, NULL);
	CHECK(fd >= 0 && access_check_socket(path, &err) == 0);
	CHECK(chmod(path, 0666) == 0);
	CHECK(access_check_socket(path, &err) == -EACCES);
	CHECK(strstr(err.text, "any user may connect") && err.hint[0]);
	close(fd);
}

int main(void)
{
	new_scratch();
	test_stores();
	test_images();
	test_trees();
	test_sockets();
	remove_scratch();
	return 0;
}

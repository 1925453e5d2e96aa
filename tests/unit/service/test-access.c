// SPDX-License-Identifier: MIT
/* Who may touch what: jobs, stores and checkpoints of others, and a socket that everybody may use. */
#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "job/scratch.h"
#include "service/access.h"

enum { OWNER = 1000, OTHER = 1001 };

static const struct service_call by_root = { .uid = 0 }, by_owner = { .uid = OWNER },
				 by_other = { .uid = OTHER };

static void test_check(void)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(access_check(&by_root, OWNER, "job a", &err) == 0);
	CHECK(access_check(&by_owner, OWNER, "job a", &err) == 0);
	CHECK(access_check(&by_other, OWNER, "job a", &err) == -EACCES);
	CHECK_STR(err.text, "job a belongs to uid 1000");
	CHECK(access_root(&by_root, "restore a checkpoint", &err) == 0);
	CHECK(access_root(&by_owner, "restore a checkpoint", &err) == -EACCES);
	CHECK_STR(err.text, "only root may restore a checkpoint");
}

static void test_jobs(void)
{
	static const char *const argv[] = { "true", NULL };
	const struct job_spec spec = {
		.name = "mine", .argv = (char *const *)argv, .cwd = "/", .uid = OWNER
	};
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct job made, found;

	CHECK(job_create(&made, &spec, NULL) == 0);
	CHECK(access_job(&found, &by_owner, "mine", &err) == 0);
	CHECK_STR(found.id, made.id);
	job_fini(&found);
	CHECK(access_job(&found, &by_root, made.id, &err) == 0);
	job_fini(&found);
	CHECK(access_job(&found, &by_other, "mine", &err) == -EACCES);
	CHECK(access_job(&found, &by_root, "nobody", &err) == -ENOENT);
	job_fini(&made);
}

static int store_for(const struct service_call *call, const char *dir, char **ret,
		     struct brumate_error *err)
{
	auto_json json_t *p = dir ? json_pack("{s:s}", "dir", dir) : json_object();

	return access_store(ret, call, p, err);
}

static void test_stores(void)
{
	auto_free char *given = NULL, *usual = NULL;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	char *untouched = NULL;

	CHECK(store_for(&by_root, "/data", &given, &err) == 0);
	CHECK_STR(given, "/data");
	CHECK(store_for(&by_owner, NULL, &usual, &err) == 0 && usual[0] == '/');
	CHECK(store_for(&by_owner, "/data", &untouched, &err) == -EACCES);
	CHECK_STR(err.text, "/data: only root may choose where checkpoints are kept");
	CHECK(store_for(&by_root, "data", &untouched, &err) == -EINVAL);
	CHECK_STR(err.text, "dir: \"data\" is not an absolute path");
	CHECK(!untouched);
}

static void test_images(void)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct store_image image;

	CHECK(access_image(&image, &by_owner, scratch, "/data/a-1", &err) == -EACCES);
	CHECK_STR(err.text, "/data/a-1: only root may name a checkpoint by its path");
	CHECK(access_image(&image, &by_root, scratch, "data/a-1", &err) == -EINVAL);
	CHECK(access_image(&image, &by_root, scratch, "a-1", &err) == -ENOENT);
}

static void test_trees(void)
{
	const struct service_call by_me = { .uid = getuid() }, by_nobody = { .uid = getuid() + 1 };
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(access_tree(&tree, &by_me, getpid(), &err) == 0);
	CHECK(tree.n >= 1 && tree.items[0].id.pid == getpid());
	struct proc_tree untouched = PROC_TREE_EMPTY;
	CHECK(access_tree(&untouched, &by_nobody, getpid(), &err) == -EACCES);
	CHECK(!untouched.n && strstr(err.text, "belongs to uid"));
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
	test_check();
	test_jobs();
	test_stores();
	test_images();
	test_trees();
	test_sockets();
	remove_scratch();
	return 0;
}

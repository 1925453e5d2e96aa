// SPDX-License-Identifier: MIT
/* Which job of the driver a process was started in, and the tool that makes its file. */
#include "process/driver-job.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/paths.h"
#include "check.h"
#include "gpu/vendor.h"

static int input; /* of the program that was started last */
static char dir[] = "/tmp/brumate-driver-job-XXXXXX";

/* A program that has @first to @third in its environment, once it runs; it waits until it is ended. */
static pid_t start(const char *first, const char *second, const char *third)
{
	char *argv[] = { "sh", "-c", "echo; read line", NULL };
	char *env[] = { "A=b", (char *)first, (char *)second, (char *)third, NULL };
	posix_spawn_file_actions_t actions;
	int in[2], out[2];
	pid_t pid;
	char c;

	CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
	CHECK(posix_spawn_file_actions_init(&actions) == 0);
	CHECK(posix_spawn_file_actions_adddup2(&actions, in[0], 0) == 0);
	CHECK(posix_spawn_file_actions_adddup2(&actions, out[1], 1) == 0);
	CHECK(posix_spawn(&pid, "/bin/sh", &actions, NULL, argv, env) == 0);
	posix_spawn_file_actions_destroy(&actions);
	CHECK(read(out[0], &c, 1) == 1);
	close(in[0]);
	close(out[0]);
	close(out[1]);
	input = in[1];
	return pid;
}

static int find(struct driver_job *ret, const char *first, const char *second, const char *third)
{
	pid_t pid = start(first, second, third);
	int r = driver_job_find(ret, gpu_vendors[0], pid);

	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	close(input);
	return r;
}

static void test_find(void)
{
	static const char cumem[] = "NCCL_CUMEM_ENABLE=0", nvls[] = "NCCL_NVLS_ENABLE=0";
	int fd = memfd_create("job", 0), other = memfd_create("job", 0);
	auto_free char *ours = path_format("CUDA_CHECKPOINT_JOB_FILE=/proc/%d/fd/%d", getpid(), fd);
	auto_free char *own = path_format("CUDA_CHECKPOINT_JOB_FILE=/proc/self/fd/%d", fd);
	auto_free char *others = path_format("CUDA_CHECKPOINT_JOB_FILE=/proc/self/fd/%d", other);
	struct driver_job job = { 0 }, again = { 0 };

	CHECK(ours && own && others);
	CHECK(find(&job, NULL, NULL, NULL) == 0);
	CHECK(find(&job, "XCUDA_CHECKPOINT_JOB_FILE=/dev/null", NULL, NULL) == 0);
	CHECK(find(&job, ours, cumem, nvls) == 1 && !job.missing);
	/* The descriptor that a program was given is the same file as that which another holds. */
	CHECK(find(&again, own, cumem, "NCCL_NVLS_ENABLE=1") == 1);
	CHECK(driver_job_is_same(&job, &again));
	CHECK_STR(again.missing, nvls);
	CHECK(find(&again, others, NULL, NULL) == 1 && !driver_job_is_same(&job, &again));
	CHECK_STR(again.missing, cumem);
	/* A file that has a name. */
	auto_free char *path = path_format("%s/job", dir);
	auto_free char *named = path_format("CUDA_CHECKPOINT_JOB_FILE=%s", path);
	auto_close int held = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(held >= 0 && find(&job, named, cumem, nvls) == 1 && !job.missing);
	CHECK(find(&again, named, cumem, nvls) == 1 && driver_job_is_same(&job, &again));
	close(fd);
	close(other);
}

/* It is to be in a job: that the file is not to be found does not make it one that is in none. */
static void test_no_file(void)
{
	struct driver_job job;

	CHECK(find(&job, "CUDA_CHECKPOINT_JOB_FILE=/proc/self/fd/99", NULL, NULL) == -ENOENT);
	CHECK(find(&job, "CUDA_CHECKPOINT_JOB_FILE=/nowhere", NULL, NULL) == -ENOENT);
	CHECK(find(&job, "CUDA_CHECKPOINT_JOB_FILE=/tmp", NULL, NULL) == -ENOENT);
	CHECK(driver_job_find(&job, gpu_vendors[0], 0x7ffffff0) < 0);
}

static void put_program(const char *folder, const char *name, const char *text, mode_t mode)
{
	auto_free char *parent = path_format("%s/%s", dir, folder);
	auto_free char *path = path_format("%s/%s/%s", dir, folder, name);

	mkdir(parent, 0700);
	FILE *file = fopen(path, "w");
	CHECK(file && fputs(text, file) >= 0 && fclose(file) == 0 && chmod(path, mode) == 0);
}

static char *find_in(const char *path)
{
	auto_free char *entry = path_format("PATH=%s", path);

	return driver_job_find_tool(gpu_vendors[0], (char *[]){ "HOME=/", entry, NULL });
}

static void test_tool(void)
{
	put_program("old", "cuda-checkpoint", "knows --toggle", 0700);
	put_program("data", "cuda-checkpoint", "knows --launch-job", 0600);
	put_program("ours", "brumate", "knows --launch-job", 0700);
	put_program("new", "cuda-checkpoint", "knows --launch-job", 0700);
	auto_free char *link = path_format("%s/ours/cuda-checkpoint", dir);
	CHECK(symlink("brumate", link) == 0);

	auto_free char *all =
		path_format("relative::/nowhere:%s/old:%s/ours:%s/new", dir, dir, dir);
	auto_free char *none = path_format("%s/old:%s/ours", dir, dir);
	auto_free char *want = path_format("%s/new/cuda-checkpoint", dir);
	auto_free char *found = find_in(all);
	CHECK_STR(found, want);
	CHECK(!find_in(none) && !find_in("") &&
	      !driver_job_find_tool(gpu_vendors[0], (char *[]){ NULL }));
	auto_free char *data = path_format("%s/data", dir);
	CHECK(!find_in(data));
}

int main(void)
{
	CHECK(mkdtemp(dir));
	test_find();
	test_no_file();
	test_tool();
	auto_free char *command = path_format("rm -r %s", dir);
	CHECK(system(command) == 0);
	return 0;
}

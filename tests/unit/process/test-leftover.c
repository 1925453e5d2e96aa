// SPDX-License-Identifier: MIT
/* Mapped devices are a fork's leftovers only where nothing says that they may be more. */
#include "check.h"
#include "process/leftover.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define NVIDIA \
	"200600000-200800000 rw-s 00000000 00:06 143                              /dev/nvidia0\n"
#define UVM	"200800000-200a00000 rw-s 00000000 00:06 140 /dev/nvidia-uvm\n"
#define HEAP	"09cd5000-1395c000 rw-p 00000000 00:00 0                                  [heap]\n"
#define NOTHING "200000000-200600000 ---p 00000000 00:00 0 \n"
#define CUDA	"7f00-7f10 r-xp 00000000 fe:00 7 /usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04\n"
#define GL	"7f20-7f30 r-xp 00000000 fe:00 8 /usr/lib/libnvidia-glcore.so.580.159.04\n"
#define EGL	"7f20-7f30 r-xp 00000000 fe:00 8 /usr/lib/libnvidia-eglcore.so.580.159.04\n"
#define FAKE	"7f40-7f50 r--p 00000000 fe:00 9 /home/u/dev/nvidia0 libcuda.so.txt\n"

/* As leftover_judge(), with @devices instead of the vendor's own. */
static enum leftover judge_for(const char *devices, const char *maps, bool is_fork, char *ret_path,
			       size_t room)
{
	struct gpu_vendor vendor = *gpu_vendors[0];

	vendor.devices = devices;
	return leftover_judge(maps, &vendor, is_fork, ret_path, room);
}

static enum leftover judge(const char *maps, bool is_fork)
{
	return judge_for("/dev/kfd:/dev/nvidia", maps, is_fork, NULL, 0);
}

static void judges(void)
{
	char path[16] = "";

	CHECK(judge("", true) == LEFTOVER_NONE);
	CHECK(judge(HEAP NOTHING CUDA GL FAKE, true) == LEFTOVER_NONE);
	CHECK(judge(HEAP NOTHING NVIDIA CUDA, true) == LEFTOVER_OF_FORK);
	CHECK(judge(CUDA UVM, true) == LEFTOVER_OF_FORK);
	CHECK(judge(CUDA "1-2 rw-s 0 0:6 1 /dev/kfd", true) == LEFTOVER_OF_FORK);
	CHECK(judge(HEAP NVIDIA CUDA, false) == LEFTOVER_STATE);
	CHECK(judge(HEAP NVIDIA FAKE, true) == LEFTOVER_STATE);
	CHECK(judge(NVIDIA CUDA GL, true) == LEFTOVER_STATE);
	CHECK(judge(EGL NVIDIA CUDA, true) == LEFTOVER_STATE);
	CHECK(judge_for("/dev/nvidia", HEAP NVIDIA UVM, true, path, sizeof(path)) ==
	      LEFTOVER_STATE);
	CHECK_STR(path, "/dev/nvidia0");
	CHECK(judge_for("", NVIDIA CUDA, true, NULL, 0) == LEFTOVER_NONE);
	CHECK(judge_for("::", NVIDIA CUDA, true, NULL, 0) == LEFTOVER_NONE);
}

/* A child that maps @device and @library (NULL: not), until it is killed. */
static struct proc_id start_child(const char *device, const char *library)
{
	int ready[2];
	char byte = 0;
	struct proc_id id;

	CHECK(pipe(ready) == 0);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		int fd = open(device, O_RDONLY), other = library ? open(library, O_RDONLY) : fd;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		CHECK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) != MAP_FAILED);
		CHECK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, other, 0) != MAP_FAILED);
		CHECK(write(ready[1], &byte, 1) == 1);
		for (;;)
			pause();
	}
	CHECK(read(ready[0], &byte, 1) == 1);
	close(ready[0]);
	close(ready[1]);
	CHECK(proc_identify(&id, pid, NULL) == 0);
	return id;
}

static int check(struct proc_id id, const char *prefix, bool known, struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;

	CHECK(proc_tree_read(&tree, id, NULL) == 0 && tree.n == 1 && tree.items[0].is_fork);
	struct gpu_vendor vendor = *gpu_vendors[0];
	int r;

	vendor.devices = prefix;
	if (known && (r = leftover_check(&tree, &vendor, &id, 1, err)) < 0) {
		/* Where CRIU saves it, it is there until CRIU has. */
		vendor.saved_by_criu = true;
		CHECK(leftover_check(&tree, &vendor, &id, 1, NULL) == 0);
		return r;
	}
	return leftover_check(&tree, &vendor, &id, known, err);
}

static void checks(void)
{
	char dir[] = "/tmp/brumate-leftover-XXXXXX", device[64], library[64];
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct proc_info self;

	/* This program was started, not forked. */
	CHECK(proc_read(&self, getpid(), NULL) == 0 && !self.is_fork);
	CHECK(mkdtemp(dir));
	snprintf(device, sizeof(device), "%s/device", dir);
	snprintf(library, sizeof(library), "%s/libcuda.so.1", dir);
	close(open(device, O_CREAT | O_RDWR, 0600));
	close(open(library, O_CREAT | O_RDWR, 0600));

	struct proc_id copy = start_child(device, library), other = start_child(device, NULL);
	CHECK(check(copy, "/dev/nvidia", true, &err) == 0);
	CHECK(check(copy, device, false, &err) == 1);
	CHECK(check(copy, device, true, &err) == -EOPNOTSUPP && strstr(err.text, "has not saved"));
	CHECK(strstr(err.text, device));
	CHECK(check(other, device, false, &err) == -EOPNOTSUPP &&
	      strstr(err.text, "no CUDA state"));
	CHECK(kill(copy.pid, SIGKILL) == 0 && kill(other.pid, SIGKILL) == 0);
	CHECK(waitpid(copy.pid, NULL, 0) == copy.pid && waitpid(other.pid, NULL, 0) == other.pid);
	CHECK(unlink(device) == 0 && unlink(library) == 0 && rmdir(dir) == 0);
}

int main(void)
{
	judges();
	checks();
	return 0;
}

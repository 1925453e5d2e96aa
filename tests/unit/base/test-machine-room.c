// SPDX-License-Identifier: MIT
/* How much memory the limits of cgroups leave, and whether one is frozen: told by files that stand in the place of the kernel's, in a
 * mount namespace of this test's own. */
#include "base/machine.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "check.h"

#define ROOT "/sys/fs/cgroup"
#define MIB  (1ull << 20)

static char place[64], inner[96]; /* the outer cgroup, and the one in it that this process is in */

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	CHECK(fd >= 0);
	CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	close(fd);
}

static void say(const char *cgroup, const char *name, const char *text)
{
	char path[256];

	snprintf(path, sizeof(path), ROOT "%s/%s", cgroup, name);
	put(path, text);
}

/* A cgroup of the kernel's, so that it says where this process is; with no limit that is known there. */
static void enter(const char *root)
{
	char path[256], pid[16];

	snprintf(place, sizeof(place), "/brumate-test-room-%d", getpid());
	snprintf(inner, sizeof(inner), "%s/inner", place);
	if (mount("none", root, "cgroup2", 0, NULL) < 0) {
		rmdir(root);
		SKIP("needs to mount cgroups of version 2");
	}
	snprintf(path, sizeof(path), "%s%s", root, inner);
	if (mkdir_parents(path, 0700) < 0) {
		umount(root);
		rmdir(root);
		SKIP("no cgroup can be made here");
	}
	snprintf(path, sizeof(path), "%s%s/cgroup.procs", root, inner);
	snprintf(pid, sizeof(pid), "%d", getpid());
	put(path, pid);
}

static void leave(const char *root)
{
	char path[256], pid[16];

	snprintf(path, sizeof(path), "%s/cgroup.procs", root);
	snprintf(pid, sizeof(pid), "%d", getpid());
	put(path, pid);
	snprintf(path, sizeof(path), "%s%s", root, inner);
	CHECK(rmdir(path) == 0);
	snprintf(path, sizeof(path), "%s%s", root, place);
	CHECK(rmdir(path) == 0);
}

static void test_limits(void)
{
	uint64_t all = machine_room_bytes();

	CHECK(all > 64 * MIB && all < UINT64_MAX); /* the machine's */

	say(inner, "memory.max", "max\n");
	say(inner, "memory.high", "max\n");
	say(inner, "memory.current", "16777216\n");
	CHECK(machine_room_bytes() > 64 * MIB);

	say(inner, "memory.max", "67108864\n");
	CHECK(machine_room_bytes() == 48 * MIB);
	say(inner, "memory.stat",
	    "anon 12582912\ninactive_file 1048576\nactive_file 2097152\nunevictable "
	    "4096\nslab_reclaimable 1048576\n");
	CHECK(machine_room_bytes() == 52 * MIB);
	say(inner, "memory.high", "33554432\n");
	CHECK(machine_room_bytes() == 20 * MIB);
	say(inner, "memory.current", "50331648\n");
	CHECK(machine_room_bytes() == 0);

	/* One further out counts as well, where it is the least. */
	say(inner, "memory.current", "8388608\n");
	CHECK(machine_room_bytes() == 28 * MIB);
	say(place, "memory.max", "41943040\n");
	say(place, "memory.current", "20971520\n");
	CHECK(machine_room_bytes() == 20 * MIB);
	say("", "memory.max", "10485760\n");
	say("", "memory.current", "0\n");
	CHECK(machine_room_bytes() == 10 * MIB);
}

static void test_frozen(void)
{
	CHECK(!machine_is_frozen(0));
	say(inner, "cgroup.events", "populated 1\nfrozen 0\n");
	CHECK(!machine_is_frozen(0));
	say(inner, "cgroup.events", "populated 1\nfrozen 1\n");
	CHECK(machine_is_frozen(0) && machine_is_frozen(getpid()));
}

int main(void)
{
	char root[] = "/tmp/brumate-test-room-XXXXXX", path[256];

	CHECK(mkdtemp(root));
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) {
		rmdir(root);
		SKIP("needs a mount namespace of its own");
	}
	enter(root);
	CHECK(mount("tmpfs", ROOT, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m") == 0);
	snprintf(path, sizeof(path), ROOT "%s", inner);
	CHECK(mkdir_parents(path, 0700) == 0);
	test_limits();
	test_frozen();
	leave(root);
	CHECK(umount(root) == 0 && rmdir(root) == 0);
	return 0;
}

// SPDX-License-Identifier: MIT
/* Checks of the kernel: system calls, capabilities, sysctls, cgroups. */
#include "service/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

enum { CGROUP2_MAGIC = 0x63677270, PID_MAX_LOW = 32768 };

static void check_version(struct doctor *d)
{
	struct utsname name;
	int major = 0, minor = 0;

	uname(&name);
	fact(d, "kernel", json_string(name.release));
	if (sscanf(name.release, "%d.%d", &major, &minor) != 2 || major < 5 ||
	    (major == 5 && minor < 9))
		finding(d, FINDING_FAIL, "kernel", "boot Linux 5.9 or newer",
			"kernel %s is too old: pidfds, openat2 and CAP_CHECKPOINT_RESTORE need 5.9",
			name.release);
	else
		finding(d, FINDING_OK, "kernel", "", "kernel %s", name.release);
}

static void check_calls(struct doctor *d)
{
	struct open_how how = { .flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_BENEATH };
	int pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	int dir = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	int fd = (int)syscall(SYS_openat2, dir, "proc", &how, sizeof(how));

	if (pidfd < 0 || fd < 0)
		finding(d, FINDING_FAIL, "syscalls",
			"allow these calls in the container's seccomp profile",
			"%s%s%s not usable here", pidfd < 0 ? "pidfd_open" : "",
			pidfd < 0 && fd < 0 ? " and " : "", fd < 0 ? "openat2" : "");
	else
		finding(d, FINDING_OK, "syscalls", "", "pidfd_open and openat2 work");
	cleanup_close(&pidfd);
	cleanup_close(&dir);
	cleanup_close(&fd);
}

/* Without those that are not needed, most jobs can be checkpointed: not ones with sockets (NET_ADMIN)
 * or of other users or with limits above ours (SYS_RESOURCE). */
static const struct {
	int bit;
	const char *name;
	bool needed;
} capabilities[] = {
	{ 1, "DAC_OVERRIDE", true },   { 5, "KILL", true },
	{ 6, "SETGID", true },	       { 7, "SETUID", true },
	{ 12, "NET_ADMIN", false },    { 18, "SYS_CHROOT", true },
	{ 19, "SYS_PTRACE", true },    { 21, "SYS_ADMIN", true },
	{ 24, "SYS_RESOURCE", false }, { 40, "CHECKPOINT_RESTORE", true },
};

static bool read_effective(unsigned long long *ret)
{
	auto_fclose FILE *f = fopen("/proc/self/status", "re");
	char line[256];

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "CapEff: %llx", ret) == 1)
			return true;
	return false;
}

static void check_capabilities(struct doctor *d)
{
	unsigned long long effective = 0;
	char missing[256] = "";
	bool needed = false;
	size_t len = 0;

	if (!read_effective(&effective)) {
		finding(d, FINDING_WARN, "capabilities", "mount /proc",
			"/proc/self/status does not tell the capabilities");
		return;
	}
	for (size_t i = 0; i < sizeof(capabilities) / sizeof(capabilities[0]); i++) {
		if (effective >> capabilities[i].bit & 1)
			continue;
		needed = needed || capabilities[i].needed;
		len += (size_t)snprintf(missing + len, sizeof(missing) - len, " %s",
					capabilities[i].name);
	}
	if (missing[0])
		finding(d, needed ? FINDING_FAIL : FINDING_WARN, "capabilities",
			"run as root, in a container with these capabilities added", "missing:%s",
			missing);
	else
		finding(d, FINDING_OK, "capabilities", "", "all that are needed");
}

static void check_ptrace(struct doctor *d)
{
	char value[16];

	if (read_line("/proc/sys/kernel/yama/ptrace_scope", value, sizeof(value)) &&
	    !strcmp(value, "3"))
		finding(d, FINDING_FAIL, "ptrace",
			"3 cannot be undone: set kernel.yama.ptrace_scope to 2 or less and reboot",
			"kernel.yama.ptrace_scope is 3: nobody may trace, CRIU cannot work");
	else
		finding(d, FINDING_OK, "ptrace", "", "tracing is allowed to root");
}

static void check_io_uring(struct doctor *d)
{
	char value[16];

	if (read_line("/proc/sys/kernel/io_uring_disabled", value, sizeof(value)) &&
	    strcmp(value, "0"))
		finding(d, FINDING_OK, "io_uring", "", "off for jobs (kernel.io_uring_disabled=%s)",
			value);
	else
		finding(d, FINDING_NOTE, "io_uring",
			"start such jobs with UV_USE_IO_URING=0, or set kernel.io_uring_disabled=2",
			"a job that uses io_uring cannot be checkpointed to disk");
}

static void check_pids(struct doctor *d)
{
	char value[32];

	if (!read_line("/proc/sys/kernel/pid_max", value, sizeof(value)))
		return;
	if (atol(value) <= PID_MAX_LOW)
		finding(d, FINDING_WARN, "pid_max", "sysctl kernel.pid_max=4194304",
			"kernel.pid_max is %s: the pids of a saved job are soon taken by others",
			value);
	else
		finding(d, FINDING_OK, "pid_max", "", "kernel.pid_max is %s", value);
	if (access("/proc/sys/kernel/ns_last_pid", F_OK) < 0)
		finding(d, FINDING_FAIL, "ns_last_pid",
			"build the kernel with CONFIG_CHECKPOINT_RESTORE",
			"the kernel was built without CONFIG_CHECKPOINT_RESTORE");
}

static void check_cgroup(struct doctor *d)
{
	struct statfs fs;

	if (statfs("/sys/fs/cgroup", &fs) == 0 && (unsigned)fs.f_type == CGROUP2_MAGIC)
		finding(d, FINDING_OK, "cgroup", "", "cgroup v2");
	else
		finding(d, FINDING_NOTE, "cgroup", "boot with systemd.unified_cgroup_hierarchy=1",
			"no cgroup v2 at /sys/fs/cgroup");
}

void doctor_kernel(struct doctor *d)
{
	check_version(d);
	check_calls(d);
	check_capabilities(d);
	check_ptrace(d);
	check_pids(d);
	check_cgroup(d);
	check_io_uring(d);
}

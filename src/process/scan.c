// SPDX-License-Identifier: MIT
/* What will not checkpoint; see scan.h. A check is one row of the table at the end. */
#include "process/scan.h"
#include "base/array.h"
#include "base/fd.h"
#include "process/net-lock.h"
#include "process/pidns.h"
#include "process/scan-private.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAPS_BYTES_MAX = 64 * 1024 * 1024 };

void scan_report_fini(struct scan_report *r)
{
	free(r->items);
	*r = SCAN_REPORT_EMPTY;
}

int scan_add(struct scan_report *r, const struct scan_finding *f)
{
	struct scan_finding *items = array_room(r->items, r->n, sizeof(*items));

	if (!items)
		return -ENOMEM;
	r->items = items;
	r->items[r->n++] = *f;
	return 0;
}

void scan_find(struct scan *s, enum scan_level level, unsigned scope, const struct proc_info *p,
	       const char *what, const char *hint, const char *fmt, ...)
{
	struct scan_finding f = { .level = level, .scope = scope, .pid = p->id.pid };
	va_list ap;

	int n = snprintf(f.text, sizeof(f.text), "process %d (%s) ", p->id.pid, p->comm);
	va_start(ap, fmt);
	vsnprintf(f.text + n, sizeof(f.text) - (size_t)n, fmt, ap);
	va_end(ap);
	snprintf(f.what, sizeof(f.what), "%s", what);
	snprintf(f.hint, sizeof(f.hint), "%s", hint);
	int r = scan_add(&s->report, &f);
	if (r < 0 && !s->r)
		s->r = r;
}

bool scan_tree_has(const struct scan *s, pid_t pid)
{
	for (size_t i = 0; i < s->tree->n; i++)
		if (s->tree->items[i].id.pid == pid)
			return true;
	return false;
}

static int read_proc(pid_t pid, const char *name, char **ret)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	return file_read(AT_FDCWD, path, MAPS_BYTES_MAX, ret, NULL);
}

/* True if a file whose name begins with @name ("libcuda.so") is mapped. */
static bool maps_file(const char *maps, const char *name)
{
	size_t len = strlen(name);

	for (const char *p = maps; (p = strstr(p, name)); p += len)
		if (p > maps && p[-1] == '/')
			return true;
	return false;
}

static bool is_gpu_device(const char *target)
{
	return !strncmp(target, "/dev/nvidia", strlen("/dev/nvidia"));
}

static bool has_gpu_device_open(pid_t pid)
{
	char path[64], target[64];

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	auto_closedir DIR *dir = opendir(path);
	if (!dir)
		return false;
	for (struct dirent *e; (e = readdir(dir));) {
		ssize_t n = readlinkat(dirfd(dir), e->d_name, target, sizeof(target) - 1);

		target[n > 0 ? n : 0] = '\0';
		if (is_gpu_device(target))
			return true;
	}
	return false;
}

bool scan_uses_gpu(pid_t pid)
{
	auto_free char *maps = NULL;

	if (read_proc(pid, "maps", &maps) >= 0 && maps_file(maps, "libcuda.so"))
		return true;
	return has_gpu_device_open(pid);
}

static bool same_ns(pid_t a, pid_t b, const char *name)
{
	char path[64], of_a[64], of_b[64];

	snprintf(path, sizeof(path), "/proc/%d/ns/%s", a, name);
	ssize_t n = readlink(path, of_a, sizeof(of_a) - 1);
	snprintf(path, sizeof(path), "/proc/%d/ns/%s", b, name);
	ssize_t m = readlink(path, of_b, sizeof(of_b) - 1);

	/* What cannot be told is found by the check of rights. */
	return n <= 0 || m <= 0 || (n == m && !memcmp(of_a, of_b, (size_t)n));
}

/* The process whose namespaces count as ours: our own init of a job's pid namespace, or ourselves. */
static pid_t home_of(const struct proc_info *root)
{
	struct proc_info init;
	pid_t pid = same_ns(root->id.pid, getpid(), "pid") ? 0 : pidns_translate(root->id.pid, 1);

	if (pid > 0 && proc_read(&init, pid, NULL) == 0 && !strcmp(init.comm, "brumate-init"))
		return pid;
	return getpid();
}

static void check_namespaces(struct scan *s)
{
	static const char *const names[] = { "user", "mnt", "pid", "net", "ipc", "uts" };
	pid_t home = s->tree->n ? home_of(&s->tree->items[0]) : 0;

	for (size_t i = 0; i < s->tree->n; i++) {
		const struct proc_info *p = &s->tree->items[i];

		for (size_t k = 0; p->state != 'Z' && k < sizeof(names) / sizeof(names[0]); k++) {
			if (same_ns(p->id.pid, home, names[k]))
				continue;
			scan_find(s, SCAN_REFUSE, SCAN_CRIU, p, "namespace",
				  "containers are not supported yet: run brumate inside the "
				  "container",
				  "lives in another %s namespace", names[k]);
			break;
		}
	}
}

static void check_states(struct scan *s)
{
	for (size_t i = 0; i < s->tree->n; i++) {
		const struct proc_info *p = &s->tree->items[i];

		if (p->tracer_pid)
			scan_find(s, SCAN_REFUSE, SCAN_GPU | SCAN_CRIU, p, "traced",
				  "detach the debugger", "is traced by process %d", p->tracer_pid);
		if (p->state == 'T')
			scan_find(s, SCAN_NOTE, SCAN_CRIU, p, "stopped",
				  "send it SIGCONT to make it run",
				  "is stopped, and will be after a restore");
		if (p->state == 'T' && scan_uses_gpu(p->id.pid))
			scan_find(s, SCAN_REFUSE, SCAN_GPU, p, "stopped", "send it SIGCONT first",
				  "is stopped, so the driver cannot work in it");
		if (p->state == 'D')
			scan_find(s, SCAN_SUSPECT, SCAN_CRIU, p, "uninterruptible",
				  "wait until its input or output is done",
				  "is in an uninterruptible wait, and may not stop in time");
		if (p->tty_nr && !scan_tree_has(s, p->sid))
			scan_find(s, SCAN_NOTE, SCAN_CRIU, p, "terminal",
				  "start it with brumate run, which gives it no terminal",
				  "has a terminal from outside the job");
	}
}

static void check_rights(struct scan *s)
{
	for (size_t i = 0; i < s->tree->n; i++) {
		const struct proc_info *p = &s->tree->items[i];
		auto_free char *maps = NULL;
		int r = p->state == 'Z' ? 0 : read_proc(p->id.pid, "maps", &maps);

		if (r == -EACCES || r == -EPERM)
			scan_find(s, SCAN_REFUSE, SCAN_GPU | SCAN_CRIU, p, "permission",
				  "run brumate as root", "may not be looked into");
	}
}

static void check_mappings_of(struct scan *s, const struct proc_info *p, const char *maps)
{
	if (strstr(maps, "/SYSV"))
		scan_find(s, SCAN_REFUSE, SCAN_CRIU, p, "sysv-shm",
			  "use POSIX shared memory or a file", "has System V shared memory mapped");
	if (strstr(maps, "anon_inode:[io_uring]"))
		scan_find(
			s, SCAN_REFUSE, SCAN_CRIU, p, "io_uring",
			"start it with UV_USE_IO_URING=0, or set sysctl kernel.io_uring_disabled=2",
			"has an io_uring mapped");
	if (strstr(maps, "/secretmem"))
		scan_find(s, SCAN_REFUSE, SCAN_CRIU, p, "memfd_secret",
			  "close it before the checkpoint", "has memfd_secret memory mapped");
}

static void check_mappings(struct scan *s)
{
	for (size_t i = 0; i < s->tree->n; i++) {
		auto_free char *maps = NULL;

		if (read_proc(s->tree->items[i].id.pid, "maps", &maps) >= 0)
			check_mappings_of(s, &s->tree->items[i], maps);
	}
}

/* A process without the mappings of the device has no state that the driver would save, nor would it close
 * the descriptors. A child that was forked has no use for them either; who opened them itself does (NVML). */
static void check_gpu_leftovers(struct scan *s)
{
	const struct proc_info *last = NULL;

	for (size_t i = 0; i < s->n_fds; i++) {
		const struct scan_fd *f = &s->fds[i];
		auto_free char *maps = NULL;

		if (f->process == last || !is_gpu_device(f->target))
			continue;
		last = f->process;
		if (read_proc(f->process->id.pid, "maps", &maps) < 0 || strstr(maps, "/dev/nvidia"))
			continue;
		if (f->process->is_fork)
			scan_find(
				s, SCAN_NOTE, SCAN_CRIU, f->process, "gpu-device", "",
				"has %s open (fd %d) from before it was forked: it is opened anew "
				"at a restore",
				f->target, f->fd);
		else
			scan_find(s, SCAN_SUSPECT, SCAN_CRIU, f->process, "gpu-device",
				  "close it before the checkpoint",
				  "has %s open (fd %d) but uses no GPU: what it does with it fails "
				  "after a restore",
				  f->target, f->fd);
	}
}

/* Every context maps 2 MiB of the device low, around 2^33; managed memory is mapped where the driver
 * reserved it, above 2^40 (docs/driver-behaviour.md). The simulated driver names its own mapping. */
static bool has_managed_memory(const char *maps)
{
	static const char real[] = "/dev/nvidia-uvm", simulated[] = "/memfd:nvidia-uvm";
	const uint64_t first = 1ull << 40;

	if (strstr(maps, simulated))
		return true;
	for (const char *p = maps; (p = strstr(p, real)); p += sizeof(real) - 1) {
		const char *line = p;

		if (p[sizeof(real) - 1] != '\n')
			continue; /* nvidia-uvm-tools */
		while (line > maps && line[-1] != '\n')
			line--;
		if (strtoull(line, NULL, 16) >= first)
			return true;
	}
	return false;
}

static void check_managed_memory(struct scan *s)
{
	for (size_t i = 0; i < s->tree->n; i++) {
		const struct proc_info *p = &s->tree->items[i];
		auto_free char *maps = NULL;

		if (read_proc(p->id.pid, "maps", &maps) >= 0 && has_managed_memory(maps))
			scan_find(s, SCAN_REFUSE, SCAN_GPU | SCAN_CRIU, p, "managed-memory",
				  "allocate with cudaMalloc instead of cudaMallocManaged",
				  "has managed memory, which the driver cannot save");
	}
}

static const struct {
	const char *name;
	unsigned scopes; /* of what it may find */
	void (*run)(struct scan *s);
} checks[] = {
	{ "rights", SCAN_GPU | SCAN_CRIU, check_rights },
	{ "states", SCAN_GPU | SCAN_CRIU, check_states },
	{ "namespaces", SCAN_CRIU, check_namespaces },
	{ "mappings", SCAN_CRIU, check_mappings },
	{ "files", SCAN_GPU | SCAN_CRIU, scan_check_fds },
	{ "pipes", SCAN_CRIU, scan_check_pipes },
	{ "unix sockets", SCAN_GPU | SCAN_CRIU, scan_check_unix },
	{ "tcp", SCAN_CRIU, scan_check_tcp },
	{ "gpu leftovers", SCAN_CRIU, check_gpu_leftovers },
	{ "managed memory", SCAN_GPU | SCAN_CRIU, check_managed_memory },
};

int scan_tree(struct scan_report *ret, const struct proc_tree *tree, unsigned scopes,
	      struct brumate_error *err)
{
	struct scan s = { .report = SCAN_REPORT_EMPTY, .tree = tree };

	scan_gather_fds(&s);
	for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]) && !s.r; i++) {
		if (!(checks[i].scopes & scopes))
			continue;
		checks[i].run(&s);
		if (s.r < 0)
			brumate_fail(err, -s.r, "looking for %s: %m", checks[i].name);
	}
	free(s.fds);
	if (s.r < 0) {
		scan_report_fini(&s.report);
		return brumate_wrap(err, s.r, "scan");
	}
	*ret = s.report;
	return 0;
}

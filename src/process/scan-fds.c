// SPDX-License-Identifier: MIT
/* Open files of a tree that CRIU cannot save, or that lead out of it. */
#include "base/array.h"
#include "base/fd.h"
#include "process/scan-private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { FDINFO_BYTES_MAX = 1024 * 1024, TCP_BYTES_MAX = 64 * 1024 * 1024, TCP_ESTABLISHED = 1 };

static void read_fdinfo(struct scan_fd *f)
{
	char path[64];
	auto_free char *text = NULL;

	snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", f->process->id.pid, f->fd);
	f->flags = -1;
	if (file_read(AT_FDCWD, path, FDINFO_BYTES_MAX, &text, NULL) < 0)
		return;

	const char *flags = strstr(text, "flags:"), *pid = strstr(text, "\nPid:");
	if (flags)
		f->flags = (int)strtol(flags + strlen("flags:"), NULL, 8);
	if (pid)
		f->pidfd_pid = (pid_t)strtol(pid + strlen("\nPid:"), NULL, 10);
}

static void gather_one(struct scan *s, const struct proc_info *p, int dir_fd, const char *name)
{
	struct scan_fd f = { .process = p, .fd = atoi(name) };
	ssize_t n = readlinkat(dir_fd, name, f.target, sizeof(f.target) - 1);

	if (n < 0 || fstatat(dir_fd, name, &f.st, 0) < 0)
		return; /* closed meanwhile */
	f.target[n] = '\0';
	read_fdinfo(&f);

	struct scan_fd *fds = array_room(s->fds, s->n_fds, sizeof(*fds));
	if (!fds) {
		s->r = -ENOMEM;
		return;
	}
	s->fds = fds;
	s->fds[s->n_fds++] = f;
}

void scan_gather_fds(struct scan *s)
{
	for (size_t i = 0; i < s->tree->n; i++) {
		const struct proc_info *p = &s->tree->items[i];
		char path[64];

		snprintf(path, sizeof(path), "/proc/%d/fd", p->id.pid);
		auto_closedir DIR *dir = opendir(path);
		if (!dir)
			continue; /* ended, or found by the check of rights */
		for (struct dirent *e; (e = readdir(dir));)
			if (e->d_name[0] != '.')
				gather_one(s, p, dirfd(dir), e->d_name);
	}
}

const struct scan_fd *scan_find_inode(const struct scan *s, const char *prefix, unsigned long inode)
{
	size_t len = strlen(prefix);

	for (size_t i = 0; i < s->n_fds; i++)
		if (s->fds[i].st.st_ino == inode && !strncmp(s->fds[i].target, prefix, len))
			return &s->fds[i];
	return NULL;
}

/* Kernel objects behind a descriptor, by the name /proc gives them. */
static const struct {
	const char *target, *what, *name, *hint;
} objects[] = {
	{ "[io_uring]", "io_uring", "an io_uring",
	  "start it with UV_USE_IO_URING=0, or set sysctl kernel.io_uring_disabled=2" },
	{ "[perf_event]", "perf_event", "a perf event", "stop profiling it" },
	{ "[userfaultfd]", "userfaultfd", "a userfaultfd", "close it before the checkpoint" },
	{ "bpf-", "bpf", "a BPF object", "close it before the checkpoint" },
	{ "[landlock-ruleset]", "landlock", "a landlock ruleset", "close it once it is enforced" },
};

/* Those that CRIU saves. */
static const char *const known_objects[] = {
	"[eventfd]", "[eventpoll]", "[timerfd]", "[signalfd]", "inotify", "[fanotify]", "[pidfd]",
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static void check_object(struct scan *s, const struct scan_fd *f, const char *name)
{
	/* As with /dev/nvidia*: what the simulated driver holds in its place goes with the GPU state. */
	if ((!strcmp(name, "[landlock-ruleset]") || !strcmp(name, "[userfaultfd]")) &&
	    scan_uses_gpu(f->process->id.pid))
		return;
	for (size_t i = 0; i < COUNT(objects); i++) {
		if (strncmp(name, objects[i].target, strlen(objects[i].target)))
			continue;
		scan_find(s, SCAN_REFUSE, SCAN_CRIU, f->process, objects[i].what, objects[i].hint,
			  "has %s (fd %d)", objects[i].name, f->fd);
		return;
	}
	for (size_t i = 0; i < COUNT(known_objects); i++)
		if (!strcmp(name, known_objects[i]))
			return;
	scan_find(s, SCAN_REFUSE, SCAN_CRIU, f->process, "kernel-object",
		  "close it before the checkpoint", "has %s (fd %d), which CRIU does not know",
		  name, f->fd);
}

static void check_pidfd(struct scan *s, const struct scan_fd *f)
{
	if (f->pidfd_pid > 0 && !scan_tree_has(s, f->pidfd_pid))
		scan_find(s, SCAN_REFUSE, SCAN_CRIU, f->process, "pidfd",
			  "close it before the checkpoint",
			  "has a pidfd (fd %d) of process %d, which is not of the job", f->fd,
			  f->pidfd_pid);
}

static bool device_is_known(dev_t dev)
{
	enum { MEMORY = 1, NUL = 3, ZERO = 5, FULL = 7, URANDOM = 9 }; /* between them: random */
	enum { CONSOLE = 4, TTY = 5, MISC = 10, PTS_FIRST = 136, PTS_LAST = 143, TUN = 200 };

	if (major(dev) == MEMORY)
		return minor(dev) == NUL || minor(dev) == ZERO ||
		       (minor(dev) >= FULL && minor(dev) <= URANDOM);
	return major(dev) == CONSOLE || major(dev) == TTY ||
	       (major(dev) == MISC && minor(dev) == TUN) ||
	       (major(dev) >= PTS_FIRST && major(dev) <= PTS_LAST);
}

/* Capabilities 1 and 2 are for setting MIG up and for watching it, and NVML opens the latter in every
 * process (PyTorch on an H200, driver 580); the ones above are of instances. */
static bool is_mig_instance(const struct scan_fd *f)
{
	static const char prefix[] = "/dev/nvidia-caps/nvidia-cap";

	return !strncmp(f->target, prefix, sizeof(prefix) - 1) &&
	       atoi(f->target + sizeof(prefix) - 1) > 2;
}

static void check_device(struct scan *s, const struct scan_fd *f)
{
	if (is_mig_instance(f))
		scan_find(s, SCAN_REFUSE, SCAN_GPU, f->process, "mig", "use a whole GPU",
			  "uses a MIG instance (fd %d), which the driver cannot save", f->fd);
	else if (strncmp(f->target, "/dev/nvidia", strlen("/dev/nvidia")) &&
		 !device_is_known(f->st.st_rdev))
		scan_find(s, SCAN_REFUSE, SCAN_CRIU, f->process, "device",
			  "close it before the checkpoint", "has device %.150s open (fd %d)",
			  f->target, f->fd);
}

static void check_regular(struct scan *s, const struct scan_fd *f)
{
	if (!strncmp(f->target, "/secretmem", strlen("/secretmem")))
		scan_find(s, SCAN_REFUSE, SCAN_CRIU, f->process, "memfd_secret",
			  "close it before the checkpoint",
			  "has a memfd_secret (fd %d), which nobody else may read", f->fd);
	else if (f->st.st_nlink == 0 && f->st.st_size > (off_t)UINT32_MAX &&
		 strncmp(f->target, "/memfd:", strlen("/memfd:")))
		scan_find(s, SCAN_REFUSE, SCAN_CRIU, f->process, "deleted-file",
			  "give the file a name, or make it smaller than 4 GiB",
			  "has a deleted file of %llu bytes open (fd %d): %.100s",
			  (unsigned long long)f->st.st_size, f->fd, f->target);
}

static bool leads_to_mps(const struct scan_fd *f)
{
	return strstr(f->target, "nvidia-mps") || strstr(f->target, "nvidia-cuda-mps");
}

void scan_check_fds(struct scan *s)
{
	static const char anon[] = "anon_inode:";

	for (size_t i = 0; i < s->n_fds; i++) {
		const struct scan_fd *f = &s->fds[i];

		if (leads_to_mps(f))
			scan_find(s, SCAN_REFUSE, SCAN_GPU, f->process, "mps", "run it without MPS",
				  "uses the GPU through MPS, which the driver cannot save");
		if (f->pidfd_pid)
			check_pidfd(s, f);
		else if (!strncmp(f->target, anon, strlen(anon)))
			check_object(s, f, f->target + strlen(anon));
		else if (S_ISCHR(f->st.st_mode))
			check_device(s, f);
		else if (S_ISREG(f->st.st_mode))
			check_regular(s, f);
	}
}

static bool tree_has_end(const struct scan *s, ino_t inode, int wanted)
{
	for (size_t i = 0; i < s->n_fds; i++) {
		int mode = s->fds[i].flags & O_ACCMODE;

		if (s->fds[i].st.st_ino == inode && S_ISFIFO(s->fds[i].st.st_mode) &&
		    (mode == wanted || mode == O_RDWR))
			return true;
	}
	return false;
}

void scan_check_pipes(struct scan *s)
{
	for (size_t i = 0; i < s->n_fds; i++) {
		const struct scan_fd *f = &s->fds[i];
		int other = (f->flags & O_ACCMODE) == O_RDONLY ? O_WRONLY : O_RDONLY;

		if (S_ISFIFO(f->st.st_mode) && f->flags >= 0 && !strncmp(f->target, "pipe:", 5) &&
		    !tree_has_end(s, f->st.st_ino, other))
			scan_find(s, SCAN_NOTE, SCAN_CRIU, f->process, "pipe",
				  "send output to a file, as brumate run does",
				  "has a pipe to outside the job (fd %d)", f->fd);
	}
}

struct connection {
	char local[64], remote[64];
	unsigned state;
	unsigned long inode;
};

static bool parse_tcp(const char *line, struct connection *ret)
{
	return sscanf(line, " %*d: %63s %63s %x %*s %*s %*s %*s %*s %lu", ret->local, ret->remote,
		      &ret->state, &ret->inode) == 4;
}

/* The other end may be in the tree too: then it is the line with the addresses exchanged. */
static bool other_end_is_ours(const struct scan *s, const char *table, const struct connection *c)
{
	for (const char *line = table; line; line = strchr(line + 1, '\n')) {
		struct connection o;

		if (parse_tcp(line, &o) && !strcmp(o.local, c->remote) &&
		    !strcmp(o.remote, c->local))
			return scan_find_inode(s, "socket:", o.inode);
	}
	return false;
}

static void check_table(struct scan *s, const char *path)
{
	auto_free char *table = NULL;

	if (file_read(AT_FDCWD, path, TCP_BYTES_MAX, &table, NULL) < 0)
		return;
	for (const char *line = strchr(table, '\n'); line; line = strchr(line + 1, '\n')) {
		struct connection c;
		const struct scan_fd *f;

		if (!parse_tcp(line, &c) || c.state != TCP_ESTABLISHED ||
		    !(f = scan_find_inode(s, "socket:", c.inode)) ||
		    other_end_is_ours(s, table, &c))
			continue;
		scan_find(s, SCAN_NOTE, SCAN_CRIU, f->process, "tcp",
			  "it survives a restore on this machine soon after; use --tcp-close "
			  "otherwise",
			  "has a TCP connection to outside the job (fd %d)", f->fd);
	}
}

void scan_check_tcp(struct scan *s)
{
	check_table(s, "/proc/net/tcp");
	check_table(s, "/proc/net/tcp6");
}

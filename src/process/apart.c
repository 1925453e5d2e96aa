// SPDX-License-Identifier: MIT
/*
 * The place apart; see apart.h. Its init is forked from a program with threads, so what runs in it is async-signal-safe:
 * all that it mounts and makes is planned before, in lists of calls. The new root is put together next to the old one, on a
 * file system in memory that also takes what is written; then the old one is detached, so that nothing leads back to it.
 */
#include "process/apart.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/if.h>
#include <linux/mount.h>
#include <linux/rtnetlink.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/param.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/array.h"
#include "base/fault.h"
#include "base/escape.h"
#include "base/fd.h"
#include "base/paths.h"
#include "base/start.h"
#include "process/reap.h"

/* The C library's header of these and the kernel's do not go together. */
int mount(const char *source, const char *target, const char *type, unsigned long flags,
	  const void *data);
int umount2(const char *target, int flags);
enum { MOVED_AWAY = 2 /* MNT_DETACH */ };

enum {
	MOUNTINFO_BYTES_MAX = 16 << 20,
	ENTRIES_MAX = 4096,
	FIRST_SPARE_FD = 5,
	LIFE_FD = 3,
	REPORT_FD = 4,
	SAFE_FD_MIN = 16,
};

/* A file system in memory is put over it: what lies beneath is not needed while the place is made. */
#define SCRATCH	 "/proc"
#define NEW_ROOT SCRATCH "/root"

/* ---- the plan: calls that the init makes ---- */

enum call_kind {
	CALL_MKDIR,
	CALL_FILE,
	CALL_OVERLAY,
	CALL_NEW,
	CALL_READ_ONLY,
	CALL_BIND,
	CALL_LINK
};

struct call {
	enum call_kind kind;
	bool may_fail;
	char *path;    /* owned */
	char *source;  /* owned: what is mounted there, or the type of what is made; may be NULL */
	char *options; /* owned; may be NULL */
	mode_t mode;
	uid_t uid;
	gid_t gid;
	uint64_t len_bytes;
};

struct plan {
	struct call *calls;
	size_t n;
	bool has_user_ns;
	bool is_bound; /* all is read-only but for some folders; else beneath overlays */
	char uids[48], gids[48];
	char last_pid[24];	  /* "": as it comes */
	char first_free_port[16]; /* "": as it comes */
};

static void plan_fini(struct plan *p)
{
	for (size_t i = 0; i < p->n; i++) {
		free(p->calls[i].path);
		free(p->calls[i].source);
		free(p->calls[i].options);
	}
	free(p->calls);
}
DEFINE_AUTO_FINI(struct plan, plan_fini)

/* Takes what @call owns. */
static int add_call(struct plan *p, struct call call)
{
	if (call.path && array_add(p->calls, p->n, call) == 0)
		return 0;
	free(call.path);
	free(call.source);
	free(call.options);
	return -ENOMEM;
}

/* ---- what is mounted ---- */

struct mounted {
	char *path; /* owned */
	char type[64];
	unsigned id;
	bool is_out_of_reach; /* we may not look into a folder above it */
};

struct mounts {
	struct mounted *items; /* those above come first */
	size_t n;
};
#define MOUNTS_EMPTY ((struct mounts){ 0 })

static void mounts_fini(struct mounts *m)
{
	for (size_t i = 0; i < m->n; i++)
		free(m->items[i].path);
	free(m->items);
}
DEFINE_AUTO_FINI(struct mounts, mounts_fini)

static bool is_one_of(const char *word, const char *const *words)
{
	while (*words && strcmp(word, *words))
		words++;
	return *words;
}

/* Whether @path is @above, or lies in it. */
static bool is_in(const char *path, const char *above)
{
	size_t n = strlen(above);

	if (n == 1)
		return true;
	return !strncmp(path, above, n) && (!path[n] || path[n] == '/');
}

enum apart_kind apart_kind_of(const char *type, const char *path)
{
	static const char *const of_kernel[] = {
		"sysfs",      "cgroup",	   "cgroup2",	"devtmpfs",   "debugfs", "tracefs",
		"bpf",	      "pstore",	   "efivarfs",	"configfs",   "nsfs",	 "resctrl",
		"securityfs", "selinuxfs", "hugetlbfs", "rpc_pipefs", "fusectl", NULL,
	};
	static const char *const like_it[] = { "devpts", "mqueue", NULL };
	static const char *const left_out[] = { "proc", "autofs", "binfmt_misc", "nfsd", NULL };
	static const char *const far[] = { "nfs", "nfs4",   "cifs", "smb3",   "9p",	   "ceph",
					   "afs", "lustre", "gpfs", "beegfs", "glusterfs", NULL };

	if (is_one_of(type, left_out))
		return APART_LEFT_OUT;
	if (is_one_of(type, like_it))
		return APART_LIKE_IT;
	if (is_one_of(type, of_kernel) || !strcmp(path, "/dev") || is_in(path, "/sys"))
		return APART_READ_ONLY;
	return is_one_of(type, far) || !strncmp(type, "fuse", 4) ? APART_FAR : APART_OVERLAY;
}

static int add_mounted(struct mounts *m, char *line)
{
	char path[PATH_MAX];
	struct mounted one = { .path = NULL };
	const char *rest = strstr(line, " - ");

	if (!rest || sscanf(line, "%u %*u %*s %*s %4095s", &one.id, path) != 2 ||
	    sscanf(rest, " - %63s", one.type) != 1)
		return -EBADMSG;
	text_unescape_octal(path);
	one.path = strdup(path);
	if (one.path && array_add(m->items, m->n, one) == 0)
		return 0;
	free(one.path);
	return -ENOMEM;
}

static int by_path(const void *a, const void *b)
{
	return strcmp(((const struct mounted *)a)->path, ((const struct mounted *)b)->path);
}

static int read_mounts(struct mounts *ret)
{
	auto_free char *text = NULL;
	int r = file_read(AT_FDCWD, "/proc/self/mountinfo", MOUNTINFO_BYTES_MAX, &text, NULL);
	char *rest = text;

	for (char *line; r == 0 && (line = strsep(&rest, "\n"));)
		r = *line ? add_mounted(ret, line) : 0;
	if (r == 0 && ret->n)
		qsort(ret->items, ret->n, sizeof(*ret->items), by_path);
	return r;
}

/* One that another is mounted over cannot be seen. One that is out of reach is there nevertheless: the kernel makes no overlay
 * of a folder that has it in it. */
static bool is_there(struct mounted *m)
{
	struct statx st;

	if (statx(AT_FDCWD, m->path, AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT | AT_SYMLINK_NOFOLLOW,
		  STATX_MNT_ID, &st) < 0)
		return m->is_out_of_reach = errno == EACCES;
	return st.stx_mask & STATX_MNT_ID && st.stx_mnt_id == m->id;
}

/* ---- how each mount is shown ---- */

struct planning {
	struct plan *plan;
	const struct apart_view *view;
	const struct mounts *mounts;
	enum apart_kind *kinds; /* of @mounts */
};

static bool is_wanted(const struct apart_view *view, const char *path)
{
	for (size_t i = 0; i < view->n_paths; i++)
		if (is_in(view->paths[i], path))
			return true;
	return false;
}

/* Takes out those that are covered. Who may not answer is not asked. */
static void keep_uncovered(struct mounts *m, const struct apart_view *view)
{
	size_t n = 0;

	for (size_t i = 0; i < m->n; i++) {
		struct mounted *one = &m->items[i];
		bool is_silent = apart_kind_of(one->type, one->path) == APART_FAR &&
				 !is_wanted(view, one->path);

		if (is_silent || is_there(one))
			m->items[n++] = *one;
		else
			free(one->path);
	}
	m->n = n;
}

static enum apart_kind choose_kind(const struct planning *p, const struct mounted *m)
{
	enum apart_kind kind = apart_kind_of(m->type, m->path);

	if (m->is_out_of_reach)
		return APART_LEFT_OUT;
	if (kind == APART_FAR)
		return is_wanted(p->view, m->path) ? APART_OVERLAY : APART_LEFT_OUT;
	return kind;
}

/* The last mount before @i that lies above it and is there; SIZE_MAX: none. */
static size_t above(const struct planning *p, size_t i)
{
	for (size_t k = i; k-- > 0;)
		if (p->kinds[k] != APART_LEFT_OUT &&
		    is_in(p->mounts->items[i].path, p->mounts->items[k].path))
			return k;
	return SIZE_MAX;
}

/* The mount that @path is on; SIZE_MAX: one that is left out. */
static size_t mount_of(const struct planning *p, const char *path)
{
	size_t i = p->mounts->n;

	while (i-- > 0 && !is_in(path, p->mounts->items[i].path))
		;
	return i < p->mounts->n && p->kinds[i] == APART_OVERLAY ? i : SIZE_MAX;
}

/* Characters that part options and layers. */
static char *escape_layer(const char *path)
{
	char *text = malloc(2 * strlen(path) + 1), *to = text;

	for (; text && *path; *to++ = *path++)
		if (strchr(",:\\", *path))
			*to++ = '\\';
	if (text)
		*to = '\0';
	return text;
}

static bool is_directory(const char *path)
{
	struct stat st;

	return lstat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int plan_mkdir(struct plan *plan, char *path, const struct stat *like)
{
	return add_call(plan, (struct call){ .kind = CALL_MKDIR,
					     .path = path,
					     .mode = like ? like->st_mode & 07777 : 0755,
					     .uid = like ? like->st_uid : (uid_t)-1,
					     .gid = like ? like->st_gid : (gid_t)-1 });
}

/* The folders above the file, in the layer that is written to. One that is there already is left as it is. */
static int plan_parents(struct plan *plan, const char *upper, const char *path, size_t from)
{
	int r = 0;

	for (size_t n = from; r == 0 && path[n]; n++) {
		struct stat st;

		if (path[n] != '/' || n == from)
			continue;
		auto_free char *up_to = strndup(path, n);
		if (!up_to)
			return -ENOMEM;
		if (lstat(up_to, &st) < 0 || !S_ISDIR(st.st_mode))
			return -ENOENT;
		r = plan_mkdir(plan, path_format("%s%s", upper, up_to + from), &st);
	}
	return r;
}

/* What it is like. A file that is not there, or is no plain one, gets none: CRIU is to find out. */
static bool find_likeness(struct stat *ret, const struct apart_stand_in *s)
{
	if (lstat(s->path, ret) == 0)
		return S_ISREG(ret->st_mode);
	*ret = (struct stat){ .st_mode = s->mode, .st_uid = s->uid, .st_gid = s->gid };
	return errno == ENOENT && s->is_made;
}

static int plan_stand_in(struct plan *plan, const char *upper, size_t from,
			 const struct apart_stand_in *s)
{
	struct stat st;

	if (!find_likeness(&st, s))
		return 0;
	int r = plan_parents(plan, upper, s->path, from);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	return add_call(plan, (struct call){ .kind = CALL_FILE,
					     .path = path_format("%s%s", upper, s->path + from),
					     .mode = st.st_mode & 07777,
					     .uid = st.st_uid,
					     .gid = st.st_gid,
					     .len_bytes = s->len_bytes });
}

static int plan_stand_ins(const struct planning *p, size_t i, const char *upper)
{
	const char *path = p->mounts->items[i].path;
	size_t from = strlen(path) == 1 ? 0 : strlen(path);
	int r = 0;

	for (size_t k = 0; r == 0 && k < p->view->n_stand_ins; k++)
		if (mount_of(p, p->view->stand_ins[k].path) == i)
			r = plan_stand_in(p->plan, upper, from, &p->view->stand_ins[k]);
	return r;
}

static char *overlay_options(const struct plan *plan, const char *path, size_t i)
{
	auto_free char *lower = escape_layer(path);
	/* Those that a module may have by itself would have to be had by the layers, too. */
	return lower ? path_format("lowerdir=%s,upperdir=" SCRATCH "/%zu/u,workdir=" SCRATCH
				   "/%zu/w,index=off,metacopy=off,redirect_dir=nofollow,volatile%s",
				   lower, i, i, plan->has_user_ns ? ",userxattr" : "")
		     : NULL;
}

static int plan_overlay(const struct planning *p, size_t i, char *at)
{
	const char *path = p->mounts->items[i].path;
	auto_free char *upper = path_format(SCRATCH "/%zu/u", i);
	struct stat st;
	int r = upper && lstat(path, &st) == 0 ? 0 : -ENOMEM;

	if (r == 0)
		r = plan_mkdir(p->plan, path_format(SCRATCH "/%zu", i), NULL);
	if (r == 0)
		r = plan_mkdir(p->plan, strdup(upper), &st);
	if (r == 0)
		r = plan_mkdir(p->plan, path_format(SCRATCH "/%zu/w", i), NULL);
	if (r == 0)
		r = plan_stand_ins(p, i, upper);
	if (r < 0) {
		free(at);
		return r;
	}
	return add_call(p->plan, (struct call){ .kind = CALL_OVERLAY,
						.path = at,
						.source = strdup(path),
						.options = overlay_options(p->plan, path, i),
						.may_fail = strlen(path) > 1 });
}

static int plan_new(const struct planning *p, const struct mounted *m, char *at)
{
	bool is_pts = !strcmp(m->type, "devpts");
	int r = add_call(
		p->plan,
		(struct call){
			.kind = CALL_NEW,
			.path = at,
			.source = strdup(m->type),
			.options = strdup(is_pts ? "newinstance,ptmxmode=0666,mode=0620" : ""),
		});

	/* CRIU gives the master the owner that it had, which is not for the machine's own. */
	if (r < 0 || strcmp(m->path, "/dev/pts"))
		return r;
	return add_call(p->plan, (struct call){ .kind = CALL_BIND,
						.path = strdup(NEW_ROOT "/dev/ptmx"),
						.source = strdup(NEW_ROOT "/dev/pts/ptmx"),
						.may_fail = true });
}

static int plan_mount(const struct planning *p, size_t i)
{
	const struct mounted *m = &p->mounts->items[i];
	size_t parent = above(p, i);
	enum apart_kind kind = p->kinds[i];

	/* What is below a mount that is shown as it is comes along with it. */
	if (kind == APART_READ_ONLY && parent != SIZE_MAX && p->kinds[parent] == APART_READ_ONLY)
		return 0;
	/* A file over a file. */
	if (kind == APART_OVERLAY && !is_directory(m->path))
		kind = APART_READ_ONLY;

	char *at = path_format(NEW_ROOT "%s", strlen(m->path) == 1 ? "" : m->path);
	if (!at)
		return -ENOMEM;
	if (kind == APART_OVERLAY)
		return plan_overlay(p, i, at);
	if (kind == APART_LIKE_IT)
		return plan_new(p, m, at);
	return add_call(p->plan, (struct call){ .kind = CALL_READ_ONLY,
						.path = at,
						.source = strdup(m->path),
						.may_fail = true });
}

/* Below one that is left out nothing can be mounted: there is nothing to mount it on. */
static bool is_below_left_out(const struct planning *p, size_t i)
{
	for (size_t k = i; k-- > 0;)
		if (is_in(p->mounts->items[i].path, p->mounts->items[k].path))
			return p->kinds[k] == APART_LEFT_OUT;
	return false;
}

/* ---- devices that nobody is to open ---- */

/* Those in @folder, and in the folders in it that are named so themselves. */
static int plan_devices(const struct planning *p, const char *folder)
{
	auto_closedir DIR *dir = dir_open(AT_FDCWD, folder);
	struct dirent *e;
	int r = 0;

	while (r == 0 && dir && dir_next(dir, &e) > 0) {
		auto_free char *path = path_format("%s/%s", folder, e->d_name);
		struct stat st;

		if (!path)
			return -ENOMEM;
		if (!path_begins_with_one(path, strlen(path), p->view->devices) ||
		    lstat(path, &st) < 0)
			continue;
		if (S_ISDIR(st.st_mode))
			r = plan_devices(p, path);
		else if (S_ISCHR(st.st_mode))
			r = add_call(p->plan,
				     (struct call){ .kind = CALL_BIND,
						    .path = path_format(NEW_ROOT "%s", path),
						    .source = strdup(NEW_ROOT "/dev/null") });
	}
	return r;
}

/* ---- where no overlay may lie over other mounts ---- */

static bool has_mounts_in_it(const struct planning *p, const char *path)
{
	for (size_t i = 0; i < p->mounts->n; i++)
		if (is_in(p->mounts->items[i].path, path) && strcmp(p->mounts->items[i].path, path))
			return true;
	return false;
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int plan_folder(const struct planning *p, const char *path, size_t i)
{
	struct stat st;
	int r = lstat(path, &st) < 0 ? -errno
				     : plan_mkdir(p->plan, path_format(SCRATCH "/%zu", i), NULL);

	if (r == 0)
		r = plan_mkdir(p->plan, path_format(SCRATCH "/%zu/u", i), &st);
	if (r == 0)
		r = plan_mkdir(p->plan, path_format(SCRATCH "/%zu/w", i), NULL);
	return r < 0 ? r
		     : add_call(p->plan,
				(struct call){ .kind = CALL_OVERLAY,
					       .path = path_format(NEW_ROOT "%s", path),
					       .source = strdup(path),
					       .options = overlay_options(p->plan, path, i),
					       .may_fail = true });
}

/* What lies in @folder, in a folder of ours. Sockets are left out: the job's own are to be made there. */
static int plan_entry(const struct planning *p, const char *folder, const char *name,
		      const char *at)
{
	auto_free char *path = path_format("%s/%s", folder, name),
		       *to = path_format("%s/%s", at, name);
	char link[PATH_MAX];
	struct stat st;

	if (!path || !to)
		return -ENOMEM;
	if (lstat(path, &st) < 0 || S_ISSOCK(st.st_mode))
		return 0;
	if (S_ISLNK(st.st_mode)) {
		ssize_t n = readlink(path, link, sizeof(link) - 1);

		link[n < 0 ? 0 : n] = '\0';
		return add_call(p->plan, (struct call){ .kind = CALL_LINK,
							.path = take_ptr(&to),
							.source = strdup(link) });
	}
	int r = S_ISDIR(st.st_mode)
			? plan_mkdir(p->plan, strdup(to), &st)
			: add_call(p->plan, (struct call){ .kind = CALL_FILE,
							   .path = strdup(to),
							   .uid = st.st_uid,
							   .gid = st.st_gid,
							   .mode = st.st_mode & 07777 });
	return r < 0 ? r
		     : add_call(p->plan, (struct call){ .kind = CALL_BIND,
							.path = take_ptr(&to),
							.source = path_format(NEW_ROOT "%s", path),
							.may_fail = true });
}

/* One that has mounts in it becomes a folder of ours, in which each entry is what it was. */
static int plan_rebuilt(const struct planning *p, const char *path, size_t i)
{
	auto_closedir DIR *dir = dir_open(AT_FDCWD, path);
	auto_free char *at = path_format(SCRATCH "/%zu", i);
	struct dirent *e;
	struct stat st;
	size_t n = 0;

	if (!dir || !at || fstat(dirfd(dir), &st) < 0)
		return at ? 0 : -ENOMEM;
	int r = plan_mkdir(p->plan, strdup(at), &st);
	while (r == 0 && n++ < ENTRIES_MAX && dir_next(dir, &e) > 0)
		r = plan_entry(p, path, e->d_name, at);
	if (r < 0 || n > ENTRIES_MAX) /* it stays read-only */
		return r;
	return add_call(p->plan, (struct call){ .kind = CALL_BIND,
						.path = path_format(NEW_ROOT "%s", path),
						.source = take_ptr(&at) });
}

/* Each once, without those that lie in others. */
static int plan_folders(const struct planning *p)
{
	const struct apart_view *v = p->view;
	auto_free char **paths = calloc(v->n_folders + 1, sizeof(*paths));
	const char *last = NULL;
	size_t n = 0;
	int r = paths ? 0 : -ENOMEM;

	for (size_t i = 0; paths && i < v->n_folders; i++)
		if ((paths[n] = realpath(v->folders[i], NULL)))
			n++;
	if (n)
		qsort(paths, n, sizeof(*paths), by_text);
	for (size_t i = 0; r == 0 && i < n; i++) {
		if ((last && is_in(paths[i], last)) || mount_of(p, paths[i]) == SIZE_MAX ||
		    strlen(paths[i]) == 1 || !is_directory(paths[i]) ||
		    (i && !strcmp(paths[i], paths[i - 1])))
			continue;
		if (has_mounts_in_it(p, paths[i])) {
			r = plan_rebuilt(p, paths[i], i);
			continue;
		}
		last = paths[i];
		r = plan_folder(p, last, i);
	}
	for (size_t i = 0; i < n; i++)
		free(paths[i]);
	return r;
}

static int plan_file_over(const struct planning *p, const struct apart_stand_in *s, size_t i)
{
	struct stat st;

	if (lstat(s->path, &st) < 0 || !S_ISREG(st.st_mode))
		return 0;
	int r = add_call(p->plan, (struct call){ .kind = CALL_FILE,
						 .path = path_format(SCRATCH "/f%zu", i),
						 .mode = st.st_mode & 07777,
						 .uid = st.st_uid,
						 .gid = st.st_gid,
						 .len_bytes = s->len_bytes });
	return r < 0 ? r
		     : add_call(p->plan,
				(struct call){ .kind = CALL_BIND,
					       .path = path_format(NEW_ROOT "%s", s->path),
					       .source = path_format(SCRATCH "/f%zu", i) });
}

static int plan_bound(const struct planning *p)
{
	int r = plan_mkdir(p->plan, strdup(NEW_ROOT), NULL);

	if (r == 0)
		r = add_call(p->plan, (struct call){ .kind = CALL_READ_ONLY,
						     .path = strdup(NEW_ROOT),
						     .source = strdup("/") });
	for (size_t i = 0; r == 0 && i < p->mounts->n; i++)
		if (p->kinds[i] == APART_LIKE_IT)
			r = plan_new(p, &p->mounts->items[i],
				     path_format(NEW_ROOT "%s", p->mounts->items[i].path));
	if (r == 0)
		r = plan_folders(p);
	for (size_t i = 0; r == 0 && i < p->view->n_stand_ins; i++)
		r = plan_file_over(p, &p->view->stand_ins[i], i);
	return r;
}

static int plan_overlays(const struct planning *p)
{
	int r = plan_mkdir(p->plan, strdup(NEW_ROOT), NULL);

	for (size_t i = 0; r == 0 && i < p->mounts->n; i++)
		if (p->kinds[i] != APART_LEFT_OUT)
			r = plan_mount(p, i);
	return r;
}

static int plan_mounts(struct plan *plan, const struct apart_view *view)
{
	auto_(mounts_fini) struct mounts mounts = MOUNTS_EMPTY;
	int r = read_mounts(&mounts);
	keep_uncovered(&mounts, view);
	auto_free enum apart_kind *kinds = calloc(mounts.n + 1, sizeof(*kinds));
	const struct planning p = { plan, view, &mounts, kinds };

	if (r < 0 || !kinds)
		return r < 0 ? r : -ENOMEM;
	for (size_t i = 0; i < mounts.n; i++) {
		kinds[i] = choose_kind(&p, &mounts.items[i]);
		if (kinds[i] != APART_LEFT_OUT && is_below_left_out(&p, i))
			kinds[i] = APART_LEFT_OUT;
	}
	r = plan->is_bound ? plan_bound(&p) : plan_overlays(&p);
	if (r == 0)
		r = plan_devices(&p, "/dev");
	if (r == 0)
		r = add_call(plan, (struct call){ .kind = CALL_NEW,
						  .path = strdup(NEW_ROOT "/proc"),
						  .source = strdup("proc") });
	return r;
}

/* Ports below it take a capability, as they do outside. */
static void read_first_free_port(struct plan *plan)
{
	auto_free char *text = NULL;

	if (file_read(AT_FDCWD, "/proc/sys/net/ipv4/ip_unprivileged_port_start", 15, &text, NULL) ==
	    0)
		snprintf(plan->first_free_port, sizeof(plan->first_free_port), "%s", text);
}

static int make_plan(struct plan *plan, const struct apart_view *view)
{
	plan->has_user_ns = geteuid() != 0;
	plan->is_bound = plan->is_bound || plan->has_user_ns;
	snprintf(plan->uids, sizeof(plan->uids), "%u %u 1", geteuid(), geteuid());
	snprintf(plan->gids, sizeof(plan->gids), "%u %u 1", getegid(), getegid());
	if (view->highest_pid > 0)
		snprintf(plan->last_pid, sizeof(plan->last_pid), "%d", view->highest_pid);
	read_first_free_port(plan);
	return plan_mounts(plan, view);
}

/* ---- in the init: system calls only ---- */

/* What comes back: 0, or what failed. */
struct report {
	int code;
	char what[256];
};

static _Noreturn void init_fail(const char *what)
{
	struct report report = { .code = errno };

	for (size_t i = 0; what[i] && i < sizeof(report.what) - 1; i++)
		report.what[i] = what[i];
	if (write(REPORT_FD, &report, sizeof(report)) < 0)
		_exit(2);
	_exit(1);
}

static int write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));

	if (fd >= 0)
		close(fd);
	return n < 0 ? -1 : 0;
}

/* In the namespace we are who we are outside. */
static void init_map_ids(const struct plan *p)
{
	if (write_text("/proc/self/setgroups", "deny") < 0 ||
	    write_text("/proc/self/uid_map", p->uids) < 0 ||
	    write_text("/proc/self/gid_map", p->gids) < 0)
		init_fail("its ids cannot be mapped");
}

/* Where the owner is nobody's here it stays ours: who may do more there than outside does it to a copy. */
static int own(const struct call *c)
{
	if (c->uid != (uid_t)-1 && chown(c->path, c->uid, c->gid) < 0 && errno != EINVAL &&
	    errno != EPERM)
		return -1;
	return chmod(c->path, c->mode);
}

static int call_mkdir(const struct call *c)
{
	if (mkdir(c->path, 0700) < 0)
		return errno == EEXIST ? 0 : -1;
	return own(c);
}

static int call_file(const struct call *c)
{
	int fd = open(c->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

	if (fd < 0)
		return errno == EEXIST ? 0 : -1;
	int r = ftruncate(fd, (off_t)c->len_bytes);
	close(fd);
	return r < 0 ? r : own(c);
}

/* Files there are not what they are outside: what a program with rights of its own would read may be of holes, where
 * the images of a user say so. So none gets them. */
static int call_read_only(const struct call *c)
{
	struct mount_attr attr = { .attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID };

	if (mount(c->source, c->path, NULL, MS_BIND | MS_REC, NULL) < 0)
		return -1;
	return (int)syscall(SYS_mount_setattr, AT_FDCWD, c->path, AT_RECURSIVE, &attr,
			    sizeof(attr));
}

/* What no overlay can be made of is shown as it is, and nobody can write there. */
static int call_overlay(const struct plan *p, const struct call *c)
{
	if (mount("brumate", c->path, "overlay", MS_NOATIME | MS_NOSUID, c->options) == 0)
		return 0;
	if (p->is_bound) /* it is read-only already */
		return 0;
	return c->may_fail ? call_read_only(c) : -1;
}

static int init_call(const struct plan *p, const struct call *c)
{
	switch (c->kind) {
	case CALL_MKDIR:
		return call_mkdir(c);
	case CALL_FILE:
		return call_file(c);
	case CALL_OVERLAY:
		return call_overlay(p, c);
	case CALL_NEW:
		return mount("brumate", c->path, c->source, MS_NOSUID | MS_NOEXEC, c->options);
	case CALL_READ_ONLY:
		return call_read_only(c);
	case CALL_BIND:
		return mount(c->source, c->path, NULL, MS_BIND | MS_REC, NULL);
	case CALL_LINK:
		return symlink(c->source, c->path);
	}
	return -1;
}

static void init_change_root(void)
{
	if (chdir(NEW_ROOT) < 0 || syscall(SYS_pivot_root, ".", ".") < 0 ||
	    umount2(".", MOVED_AWAY) < 0 || chdir("/") < 0)
		init_fail("its root cannot be entered");
}

static void init_mount(const struct plan *p)
{
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		init_fail("its mounts cannot be parted from ours");
	if (mount("brumate", SCRATCH, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755") < 0)
		init_fail("no file system in memory");
	for (size_t i = 0; i < p->n; i++)
		if (init_call(p, &p->calls[i]) < 0 &&
		    (!p->calls[i].may_fail || p->calls[i].kind == CALL_OVERLAY))
			init_fail(p->calls[i].source ? p->calls[i].source : p->calls[i].path);
	init_change_root();
}

/* Every address is one of ours: what was bound can be bound, and whom a connection led to need not be there. */
static void add_route(int fd, unsigned char family, int lo)
{
	struct {
		struct nlmsghdr head;
		struct rtmsg route;
		struct rtattr attr;
		int index;
	} m = {
		.head = { .nlmsg_len = sizeof(m),
			  .nlmsg_type = RTM_NEWROUTE,
			  .nlmsg_flags = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_REPLACE },
		.route = { .rtm_family = family,
			   .rtm_table = RT_TABLE_LOCAL,
			   .rtm_protocol = RTPROT_STATIC,
			   .rtm_scope = family == AF_INET ? RT_SCOPE_HOST : RT_SCOPE_UNIVERSE,
			   .rtm_type = RTN_LOCAL },
		.attr = { .rta_len = RTA_LENGTH(sizeof(int)), .rta_type = RTA_OIF },
		.index = lo,
	};

	/* Without IPv6 there is nobody who needs it. */
	if (send(fd, &m, sizeof(m), 0) < 0)
		return;
}

static void init_network(const struct plan *p)
{
	struct ifreq lo = { .ifr_name = "lo" };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int routes = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);

	if (fd < 0 || routes < 0 || ioctl(fd, SIOCGIFFLAGS, &lo) < 0)
		init_fail("its network cannot be made");
	lo.ifr_flags |= IFF_UP;
	if (ioctl(fd, SIOCSIFFLAGS, &lo) < 0 || ioctl(fd, SIOCGIFINDEX, &lo) < 0)
		init_fail("its network cannot be made");
	add_route(routes, AF_INET, lo.ifr_ifindex);
	add_route(routes, AF_INET6, lo.ifr_ifindex);
	close(fd);
	close(routes);
	write_text("/proc/sys/net/ipv6/ip_nonlocal_bind", "1");
	if (*p->first_free_port)
		write_text("/proc/sys/net/ipv4/ip_unprivileged_port_start", p->first_free_port);
}

static _Noreturn void init_main(const struct plan *p, int life_fd, int report_fd)
{
	struct report fine = { 0 };
	char byte;

	signals_reset();
	signal(SIGCHLD, SIG_IGN); /* the kernel reaps its children */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || dup2(life_fd, LIFE_FD) < 0 ||
	    dup2(report_fd, REPORT_FD) < 0 ||
	    syscall(SYS_close_range, FIRST_SPARE_FD, ~0u, 0) < 0 || setsid() < 0)
		_exit(3);
	if (p->has_user_ns)
		init_map_ids(p);
	init_mount(p);
	init_network(p);
	if (*p->last_pid)
		write_text("/proc/sys/kernel/ns_last_pid", p->last_pid);
	if (write(REPORT_FD, &fine, sizeof(fine)) < 0)
		_exit(4);
	close(REPORT_FD);
	/* Nobody writes there: it ends with the thread that made it. */
	while (read(LIFE_FD, &byte, 1) < 0 && errno == EINTR)
		;
	_exit(0);
}

/* ---- from outside ---- */

static int explain(int code, bool has_user_ns, struct brumate_error *err)
{
	brumate_fail(err, code,
		     "a job can only be rehearsed apart from the machine, and that cannot be had "
		     "here: %s",
		     strerror(code));
	brumate_error_exit(err, EXIT_UNSUPPORTED);
	if (has_user_ns)
		brumate_hint(
			err,
			"allow users to make user namespaces (user.max_user_namespaces, and "
			"kernel.apparmor_restrict_unprivileged_userns), or let root rehearse it");
	else
		brumate_hint(err, "rehearse it outside of this container, where root may make "
				  "namespaces and mount");
	return -code;
}

static int wait_for_report(int fd, struct brumate_error *err)
{
	struct report report;
	ssize_t n = fd_read_full(fd, &report, sizeof(report));

	if (n < 0)
		return brumate_fail(err, (int)-n, "the place for the rehearsal: %m");
	if (n != (ssize_t)sizeof(report))
		return brumate_fail(err, EPIPE, "the place for the rehearsal: its init ended");
	if (!report.code)
		return 0;
	report.what[sizeof(report.what) - 1] = '\0';
	brumate_fail(err, report.code, "the place for the rehearsal: %s: %m", report.what);
	brumate_error_exit(err, EXIT_UNSUPPORTED);
	return -report.code;
}

/* Under the lock of reaping. */
static int fork_init(struct apart *a, const struct plan *plan, int life_fd, int report_fd)
{
	const unsigned long flags = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC |
				    SIGCHLD | (plan->has_user_ns ? CLONE_NEWUSER : 0);
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pid_t pid = (pid_t)syscall(SYS_clone, flags, 0, 0, 0, 0);
	int code = pid < 0 ? -errno : 0;
	if (pid == 0)
		init_main(plan, life_fd, report_fd);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (pid < 0)
		return code;
	reap_protect(pid);
	a->init.pid = pid;
	return 0;
}

static int start_init(struct apart *a, const struct plan *plan, struct brumate_error *err)
{
	int life[2] = { -1, -1 }, report[2] = { -1, -1 };

	if (pipe2(life, O_CLOEXEC) < 0 || pipe2(report, O_CLOEXEC) < 0) {
		int code = errno;

		cleanup_close(&life[0]);
		cleanup_close(&life[1]);
		return brumate_fail(err, code, "a pipe: %m");
	}
	auto_close int their_life = life[0];
	auto_close int ours = report[0];
	auto_close int theirs = report[1];
	a->life_fd = life[1];
	int r = fd_move_up(&their_life, SAFE_FD_MIN);
	if (r == 0)
		r = fd_move_up(&theirs, SAFE_FD_MIN);
	if (r < 0)
		return brumate_fail(err, -r, "a pipe: %m");

	reap_lock();
	r = fault_point("apart.clone");
	if (r == 0)
		r = fork_init(a, plan, their_life, theirs);
	reap_unlock();
	if (r < 0)
		return explain(-r, plan->has_user_ns, err);
	close(take_fd(&theirs));
	r = wait_for_report(ours, err);
	return r < 0 ? r : proc_identify(&a->init, a->init.pid, err);
}

static int start_once(struct apart *ret, const struct apart_view *view, bool is_bound,
		      struct brumate_error *err)
{
	auto_(plan_fini) struct plan plan = { .is_bound = is_bound };
	auto_(apart_end) struct apart a = APART_NONE;
	int r = make_plan(&plan, view);

	if (r < 0)
		return brumate_fail(err, -r, "the place for the rehearsal: %m");
	r = start_init(&a, &plan, err);
	if (r < 0)
		return r;
	*ret = take_struct(a, APART_NONE);
	return 0;
}

/* Since it was opened: proc_pid_mountinfo(5). */
static bool have_mounts_changed(int mountinfo_fd)
{
	struct pollfd p = { .fd = mountinfo_fd, .events = POLLPRI };

	return mountinfo_fd >= 0 && poll(&p, 1, 0) > 0;
}

/* Where something is mounted or unmounted meanwhile, what was planned fits no more: a folder would be shown as it is, in which nothing
 * can be made. Containers that start and end are a few such changes a second. */
static int start(struct apart *ret, const struct apart_view *view, bool is_bound,
		 struct brumate_error *err)
{
	enum { TRIES_MAX = 20 };
	bool changed = true;
	int r = -EAGAIN;

	for (int i = 0; i < TRIES_MAX && changed; i++) {
		auto_close int mountinfo = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);

		apart_end(ret);
		*err = BRUMATE_ERROR_NONE;
		r = start_once(ret, view, is_bound, err);
		changed = have_mounts_changed(mountinfo);
	}
	return r;
}

/* Root of a user namespace may not have an overlay over all of it either. */
int apart_start(struct apart *ret, const struct apart_view *view, struct brumate_error *err)
{
	*ret = APART_NONE;
	int r = start(ret, view, false, err);

	return r != -EINVAL || geteuid() != 0 ? r : start(ret, view, true, err);
}

void apart_end(struct apart *a)
{
	int status;

	cleanup_close(&a->life_fd);
	if (a->init.pid) {
		/* It is not reaped yet: the number is its own. The kernel ends all that lives there before it. */
		kill(a->init.pid, SIGKILL);
		reap_wait(a->init.pid, &status);
	}
	*a = APART_NONE;
}

// SPDX-License-Identifier: MIT
/* Trees of processes: read while they fork and end, and killed so that no child slips away. */
#include "process/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/kcmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/fd.h"
#include "process/reap.h"
#include "process/reaper.h"

enum {
	CHILDREN_BYTES_MAX = 8 * 1024 * 1024,
	TREE_PASSES_MAX = 32, /* of a tree that never stops forking */
	STOP_WAIT_MS = 1000,  /* while nothing changes: vfork(2) delays a stop */
	REAPER_WAIT_MS = 2000,
};

struct pids {
	pid_t *items;
	size_t n;
};

static void pids_fini(struct pids *p)
{
	free(p->items);
}
DEFINE_AUTO_FINI(struct pids, pids_fini)

static int add_children_of_thread(struct pids *pids, pid_t pid, const char *tid)
{
	char path[64];
	auto_free char *text = NULL;

	snprintf(path, sizeof(path), "/proc/%d/task/%.16s/children", pid, tid);
	int r = file_read(AT_FDCWD, path, CHILDREN_BYTES_MAX, &text, NULL);
	if (r < 0)
		return r == -ESRCH ? -ENOENT : r;

	char *rest = text;
	for (const char *word; (word = strsep(&rest, " "));) {
		pid_t child = atoi(word);

		if (child > 0 && (r = array_add(pids->items, pids->n, child)) < 0)
			return r;
	}
	return 0;
}

/* Reads process @pid: 1; 0 where it has gone for certain. */
static int read_if_there(struct proc_info *ret, pid_t pid)
{
	int r = proc_read(ret, pid, NULL);

	if (r == -ESRCH || r == -EINVAL) /* the number may be a thread's by now */
		return 0;
	return r < 0 ? r : 1;
}

/* Finds everybody whose parent is @pid, for kernels without CONFIG_PROC_CHILDREN. */
static int add_children_by_parent(struct pids *pids, pid_t pid)
{
	auto_closedir DIR *dir = dir_open(AT_FDCWD, "/proc");
	pid_t each;
	int r;

	if (!dir)
		return -errno;
	while ((r = proc_next(dir, &each)) > 0) {
		struct proc_info info;

		r = read_if_there(&info, each);
		if (r > 0 && info.ppid == pid)
			r = array_add(pids->items, pids->n, each);
		if (r < 0)
			return r;
	}
	return r;
}

/* 1, 0, or -errno. Asked until it is seen once. */
static int kernel_lists_children(void)
{
	static atomic_bool lists;
	auto_free char *text = NULL;

	if (lists)
		return 1;
	int r = file_read(AT_FDCWD, "/proc/thread-self/children", CHILDREN_BYTES_MAX, &text, NULL);
	lists = r >= 0;
	return r < 0 ? (r == -ENOENT ? 0 : r) : 1;
}

/* Of a process that had one thread a moment ago, which has its number. */
static int add_children_of_only_thread(struct pids *pids, pid_t pid)
{
	char tid[16];

	snprintf(tid, sizeof(tid), "%d", pid);
	int r = add_children_of_thread(pids, pid, tid);
	return r == -ENOENT ? -ESRCH : r;
}

static int add_children(struct pids *pids, pid_t pid)
{
	auto_closedir DIR *dir = proc_dir_open(pid, "task");
	struct dirent *e;

	if (!dir)
		return errno == ENOENT ? -ESRCH : -errno;
	int r, listed = 1;

	while ((r = dir_next(dir, &e)) > 0) {
		r = add_children_of_thread(pids, pid, e->d_name);
		if (r < 0 && r != -ENOENT) /* the thread has ended: its children moved to another */
			return r;
		if (r == -ENOENT && (listed = kernel_lists_children()) <= 0)
			return listed < 0 ? listed : add_children_by_parent(pids, pid);
	}
	return r == -ENOENT ? -ESRCH : r;
}

int proc_children(pid_t pid, pid_t **ret_pids, size_t *ret_n)
{
	auto_(pids_fini) struct pids pids = { 0 };
	int r = add_children(&pids, pid);

	if (r < 0)
		return r;
	*ret_n = pids.n;
	*ret_pids = take_ptr(&pids.items);
	return 0;
}

void proc_tree_fini(struct proc_tree *t)
{
	free(t->items);
	*t = PROC_TREE_EMPTY;
}

static const struct proc_info *tree_find(const struct proc_tree *t, pid_t pid)
{
	for (size_t i = 0; i < t->n; i++)
		if (t->items[i].id.pid == pid)
			return &t->items[i];
	return NULL;
}

/* Like read_if_there(), of one that @last may have: then /proc/PID/stat is enough. */
static int read_once_more(struct proc_info *ret, const struct proc_tree *last, pid_t pid)
{
	const struct proc_info *known = last ? tree_find(last, pid) : NULL;

	if (known && proc_reread(ret, known) == 0)
		return 1;
	return read_if_there(ret, pid);
}

/* Adds process @pid if it is a child of @parent (0: of anybody). A process that has ended and was reaped meanwhile
 * is not a child any more, and its number may be another's by now. @last (may be NULL): the tree as it was read a moment ago. */
static int tree_add(struct proc_tree *t, const struct proc_tree *last, pid_t pid, pid_t parent)
{
	struct proc_info info;
	int r = tree_find(t, pid) ? 0 : read_once_more(&info, last, pid);

	if (r <= 0 || (parent && info.ppid != parent))
		return r;

	return array_add(t->items, t->n, info);
}

static int add_all(struct proc_tree *t, const struct proc_tree *last, const struct pids *children,
		   pid_t parent)
{
	int r = 0;

	for (size_t i = 0; r >= 0 && i < children->n; i++)
		r = tree_add(t, last, children->items[i], parent);
	return r == -ESRCH ? 0 : r;
}

static int add_children_of(struct proc_tree *t, pid_t pid)
{
	auto_(pids_fini) struct pids children = { 0 };
	int r = add_children(&children, pid);

	return r < 0 ? (r == -ESRCH ? 0 : r) : add_all(t, NULL, &children, pid);
}

/* Of the one at @i, which was read just now: most processes have one thread. */
static int add_children_of_item(struct proc_tree *t, const struct proc_tree *last, size_t i)
{
	auto_(pids_fini) struct pids children = { 0 };
	const pid_t pid = t->items[i].id.pid;
	int r = kernel_lists_children();

	if (r >= 0)
		r = r && t->items[i].n_threads == 1 ? add_children_of_only_thread(&children, pid)
						    : add_children(&children, pid);
	return r < 0 ? (r == -ESRCH ? 0 : r) : add_all(t, last, &children, pid);
}

/* ---- orphans ---- */

/* The folder of the program that @pid runs; empty if unknown. */
static void folder_of(pid_t pid, char ret[static PATH_MAX])
{
	proc_link_read(pid, "exe", ret, PATH_MAX);
	char *slash = strrchr(ret, '/');
	*(slash ? slash : ret) = '\0';
}

/* Programs of ours are in the reaper's folder. */
static bool is_ours(const char *folder, pid_t pid)
{
	char own[PATH_MAX];

	folder_of(pid, own);
	return *folder && !strcmp(folder, own);
}

/* What a reaper does not start as a member: its CRIU, programs of ours, and each child that a thread of this process started
 * and waits for. */
static bool is_no_orphan(const struct proc_members *m, const char *folder, pid_t pid)
{
	return pid == m->apart.pid || is_ours(folder, pid) ||
	       (m->reaper.pid == getpid() && reap_is_protected(pid));
}

static int add_orphans(struct proc_tree *t, const struct proc_tree *last,
		       const struct proc_members *m)
{
	auto_(pids_fini) struct pids children = { 0 };
	char folder[PATH_MAX];
	int r;

	if (!m->reaper.pid || proc_has_ended(m->reaper))
		return 0;
	r = add_children(&children, m->reaper.pid);
	folder_of(m->reaper.pid, folder);
	for (size_t i = 0; r >= 0 && i < children.n; i++)
		if (!is_no_orphan(m, folder, children.items[i]))
			r = tree_add(t, last, children.items[i], m->reaper.pid);
	return r == -ESRCH ? 0 : r;
}

/* ---- reading ---- */

static int add_root(struct proc_tree *t, const struct proc_tree *last, struct proc_id root)
{
	int r = root.pid ? tree_add(t, last, root.pid, 0) : 0;

	if (r == 0 && t->n && !proc_is_same(t->items[0].id, root))
		t->n = 0; /* its number is another's by now */
	return r;
}

static int read_once(struct proc_tree *ret, const struct proc_tree *last,
		     const struct proc_members *m)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	int r = add_root(&tree, last, m->root);

	if (r == 0)
		r = add_orphans(&tree, last, m);
	if (r < 0)
		return r;
	if (!tree.n)
		return -ESRCH;
	for (size_t i = 0; i < tree.n; i++)
		if ((r = add_children_of_item(&tree, last, i)) < 0)
			return r;

	*ret = tree;
	tree = PROC_TREE_EMPTY;
	return 0;
}

static bool same_processes(const struct proc_tree *a, const struct proc_tree *b)
{
	if (a->n != b->n)
		return false;
	for (size_t i = 0; i < a->n; i++)
		if (a->items[i].id.pid != b->items[i].id.pid ||
		    a->items[i].id.start_ticks != b->items[i].id.start_ticks)
			return false;
	return true;
}

int proc_members_read(struct proc_tree *ret, const struct proc_members *m,
		      struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree last = PROC_TREE_EMPTY;

	/* A list of children is only right while none ends: read on until nothing changes. */
	for (int pass = 0; pass < TREE_PASSES_MAX; pass++) {
		struct proc_tree tree;
		int r = read_once(&tree, &last, m);

		if (r == -ESRCH)
			return brumate_fail(err, ESRCH, "no process %d any more", m->root.pid);
		if (r < 0)
			return brumate_fail(err, -r, "process %d: cannot read its children: %m",
					    m->root.pid);

		bool stable = pass && same_processes(&tree, &last);
		proc_tree_fini(&last);
		last = tree;
		if (stable)
			break;
	}
	*ret = last;
	last = PROC_TREE_EMPTY;
	return 0;
}

int proc_tree_read(struct proc_tree *ret, struct proc_id root, struct brumate_error *err)
{
	return proc_members_read(ret, &(struct proc_members){ .root = root }, err);
}

/* ---- killing ---- */

/* Stops process @id. Returns 0; 1 if it is another user's, which is left alone. */
static int stop_process(struct proc_id id, uid_t uid)
{
	return proc_signal_as(id, SIGSTOP, uid) == -EPERM && uid;
}

/*
 * Sends all but the first @spared, who do not fork, SIGSTOP. 1: none ran, none was new, none has ended since the last look: the lists of children,
 * which leave out some while others end (proc(5)), were complete.
 */
static int stop_all(struct proc_tree *t, size_t spared, uid_t uid, size_t *ret_n_stopped)
{
	const size_t n_before = t->n;
	size_t n_stopped = 0;
	bool ended = false;

	for (size_t i = 0; i < t->n; i++) {
		const struct proc_id id = t->items[i].id;
		int stopped = i < spared && !proc_is_gone(id) ? 1 : proc_has_stopped(id);

		if (stopped == -ESRCH) {
			ended |= t->items[i].state != 'X';
			t->items[i].state = 'X';
			n_stopped++;
			continue;
		}
		if (stopped == 0)
			stopped = stop_process(id, uid);
		int r = stopped < 0 ? stopped : add_children_of(t, id.pid);
		if (r < 0)
			return r;
		n_stopped += stopped;
	}
	*ret_n_stopped = n_stopped;
	return n_stopped == t->n && t->n == n_before && !ended;
}

/*
 * Adds children of theirs that the lists left out. A list says nothing of that: where a child that no caller has read ends
 * during the read, the kernel skips another one. /proc itself lists each process that lives through the read.
 */
static int add_left_out(struct proc_tree *t)
{
	auto_closedir DIR *dir = dir_open(AT_FDCWD, "/proc");
	pid_t pid;
	int r;

	if (!dir)
		return -errno;
	while ((r = proc_next(dir, &pid)) > 0) {
		const struct proc_info *parent;
		struct proc_info info;

		r = read_if_there(&info, pid);
		parent = r > 0 ? tree_find(t, info.ppid) : NULL;
		if (parent && !proc_is_gone(parent->id)) /* or the number is another's by now */
			r = tree_add(t, NULL, pid, info.ppid);
		if (r < 0)
			return r;
	}
	return r;
}

/* Stops all of them until nobody forks any more: a child that is being made when its parent is killed would be
 * nobody's. */
static int stop_tree(struct proc_tree *t, const struct proc_members *m, size_t spared,
		     uint64_t deadline_ns)
{
	uint64_t until_ns = deadline_in_ms(STOP_WAIT_MS);
	size_t n_stopped, seen = 0;
	int r;

	do {
		if ((r = add_orphans(t, NULL, m)) < 0 ||
		    (r = stop_all(t, spared, m->uid, &n_stopped)) < 0)
			return r;
		const size_t n_listed = t->n;
		if (r > 0 && ((r = add_left_out(t)) < 0 || (r = add_orphans(t, NULL, m)) < 0 ||
			      t->n == n_listed))
			return r;
		if (t->n + n_stopped > seen) {
			seen = t->n + n_stopped;
			until_ns = deadline_in_ms(STOP_WAIT_MS);
		}
		/* A stop has no event for anybody but the parent, so it is looked for. */
		nanosleep(&(struct timespec){ .tv_nsec = NS_PER_MS / 2 }, NULL);
	} while (clock_now_ns() < (until_ns < deadline_ns ? until_ns : deadline_ns));
	return 0;
}

/* Kills all of @t but the first @spared, and waits for their end. Another user's are struck out. */
static int kill_all(struct proc_tree *t, size_t spared, uid_t uid, uint64_t deadline_ns)
{
	int r = 0;

	for (size_t i = spared; i < t->n; i++) {
		int killed = proc_signal_as(t->items[i].id, SIGKILL, uid);

		if (killed == -EPERM && uid)
			t->items[i].id = PROC_ID_NONE;
		else if (killed != -ESRCH && r == 0)
			r = killed;
	}
	for (size_t i = spared; i < t->n && r >= 0; i++)
		r = proc_wait_gone(t->items[i].id, deadline_ns);
	return r;
}

int proc_members_kill(const struct proc_members *m, uint64_t deadline_ns)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	/* A reaper that has no child left tells how the command ended. */
	const size_t spared = reaper_is(m->root);
	int r = read_once(&tree, NULL, m);

	if (r < 0)
		return r == -ESRCH ? 0 : r;
	int stopped = stop_tree(&tree, m, spared, deadline_ns);
	r = kill_all(&tree, spared, m->uid, deadline_ns);
	if (r == 0 && spared && proc_wait_gone(m->root, deadline_in_ms(REAPER_WAIT_MS)) < 0)
		r = kill_all(&tree, 0, m->uid, deadline_ns);
	return r < 0 ? r : stopped < 0 ? stopped : 0;
}

int proc_tree_kill(struct proc_id root, uint64_t deadline_ns)
{
	return proc_members_kill(&(struct proc_members){ .root = root }, deadline_ns);
}

/*
 * ---- processes in the memory of others ----
 *
 * clone(2) with CLONE_VM makes them. Whether two share memory, kcmp(2) tells, which also puts address spaces in an order:
 * the tree's are sorted, so that everybody else on the machine costs a few calls.
 */

/* Where it is unknown, as of a process that has ended, they are taken for different. */
static int by_memory(const void *a, const void *b)
{
	const pid_t *one = a, *other = b;
	long order = syscall(SYS_kcmp, *one, *other, KCMP_VM, 0, 0);

	return order == 0 ? 0 : order == 1 ? -1 : 1;
}

/* A thread of the kernel, and a process that ends, have no memory, and that is equal, too. */
static bool has_memory(pid_t pid)
{
	auto_free char *text = NULL;

	return proc_file_read(pid, "statm", 256, &text, NULL) == 0 && strncmp(text, "0 ", 2);
}

/* Whether a member has started it since the tree was read, itself or through others. */
static bool is_descendant(const struct proc_tree *tree, const struct proc_info *p)
{
	struct proc_info above = *p;

	while (above.ppid > 1 && !tree_find(tree, above.ppid))
		if (proc_read(&above, above.ppid, NULL) < 0)
			return false;
	return above.ppid > 1;
}

static bool is_sharer(struct proc_info *ret, const struct proc_tree *tree, const pid_t *sorted,
		      size_t n, pid_t pid)
{
	return !tree_find(tree, pid) && bsearch(&pid, sorted, n, sizeof(*sorted), by_memory) &&
	       has_memory(pid) && proc_read(ret, pid, NULL) == 0 && !is_descendant(tree, ret);
}

int proc_find_sharer(struct proc_info *ret, const struct proc_tree *tree)
{
	auto_free pid_t *sorted = calloc(tree->n + 1, sizeof(*sorted));
	auto_closedir DIR *dir = opendir("/proc");
	size_t n = 0;

	if (!sorted || !dir)
		return sorted ? -errno : -ENOMEM;
	for (size_t i = 0; i < tree->n; i++)
		if (has_memory(tree->items[i].id.pid))
			sorted[n++] = tree->items[i].id.pid;
	qsort(sorted, n, sizeof(*sorted), by_memory);
	for (pid_t pid; proc_next(dir, &pid) > 0;)
		if (is_sharer(ret, tree, sorted, n, pid))
			return 1;
	return 0;
}

// SPDX-License-Identifier: MIT
/*
 * Space in a store: how much is free, how much checkpoints take; and removal: of one by its id, by a rule, and of
 * what dead writers and removers left. A remover holds the lock (flock) of the directory, so that two never work on
 * the same one.
 */
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/paths.h"
#include "base/size.h"
#include "store/image.h"
#include "store/set.h"

enum { HIDDEN_BYTES = MANIFEST_ID_BYTES + 64 };

/* A name that no one else uses. */
static void hidden_name(char ret[static HIDDEN_BYTES], const char *id, size_t id_len)
{
	static atomic_uint counter;

	snprintf(ret, HIDDEN_BYTES, ".%.*s.removed-%d-%u", (int)id_len, id, getpid(),
		 atomic_fetch_add(&counter, 1));
}

/* Opens and locks a directory of the store. Returns its fd; -EBUSY if it is locked. */
static int open_locked(int store_fd, const char *name)
{
	auto_close int fd = openat(store_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return errno == EWOULDBLOCK ? -EBUSY : -errno;
	return take_fd(&fd);
}

static int hide_and_remove(int store_fd, const char *dir, const char *name,
			   struct brumate_error *err)
{
	char hidden[HIDDEN_BYTES];
	auto_close int fd = open_locked(store_fd, name);

	if (fd == -EBUSY) {
		brumate_fail(err, EBUSY, "checkpoint %s: in use", name);
		brumate_hint(err, "wait until it is restored or verified");
		return -EBUSY;
	}
	if (fd == -ENOENT)
		return names_fail_unknown(err, dir, name);
	/* Pinning takes the lock, too. */
	int r = pin_refuse(store_fd, name, err);
	if (r < 0)
		return r;
	/* Locks may be missing (network file systems); other failures show up in the rename. */
	hidden_name(hidden, name, strlen(name));
	r = call_rename(store_fd, name, hidden);
	if (r == -ENOENT)
		return names_fail_unknown(err, dir, name);
	if (r == 0)
		r = call_sync_store(store_fd);
	if (r < 0) {
		files_fail(err, -r, dir, "remove");
		return brumate_wrap(err, r, "checkpoint %s", name);
	}
	r = call_remove_tree(store_fd, hidden);
	if (r == 0 || r == -ENOENT) /* swept by another process */
		return 0;
	brumate_fail(err, -r, "%s/%s: %m", dir, hidden);
	return 1;
}

int store_remove(const char *dir, const char *id, struct brumate_error *err)
{
	auto_close int store_fd = names_open_store(dir, NULL, err);

	if (store_fd == -ENOENT || !manifest_id_is_valid(id))
		return names_fail_unknown(err, dir, id);
	return store_fd < 0 ? store_fd : hide_and_remove(store_fd, dir, id, err);
}

/* Hides a leftover whose owner is dead. Returns the fd that keeps it locked. */
static int claim_leftover(int store_fd, const char *name, char ret_hidden[static HIDDEN_BYTES])
{
	struct stat st;
	auto_close int fd = open_locked(store_fd, name);

	if (fd < 0)
		return fd;
	if (fstat(fd, &st) < 0 || (st.st_uid != geteuid() && geteuid() != 0))
		return -EACCES;
	hidden_name(ret_hidden, name + 1, names_leftover_id_len(name));
	int r = rename_new(store_fd, name, store_fd, ret_hidden);
	return r < 0 ? r : take_fd(&fd);
}

static int sweep_leftover(int store_fd, const char *name, uint64_t deadline_ns)
{
	char hidden[HIDDEN_BYTES];

	/* The lock of the store excludes writers that have created one and not locked it yet. */
	if (fd_lock(store_fd, deadline_ns) == -EWOULDBLOCK)
		return -EBUSY;
	auto_close int fd = claim_leftover(store_fd, name, hidden);
	flock(store_fd, LOCK_UN);
	if (fd < 0)
		return fd;
	return call_remove_tree(store_fd, hidden);
}

static bool is_mark(const char *name)
{
	return pin_mark_id_len(name) > 0;
}

static bool is_to_sweep(const char *name)
{
	return names_is_leftover(name) || is_mark(name);
}

int store_sweep(const char *dir)
{
	auto_(dir_names_fini) struct dir_names all = DIR_NAMES_EMPTY;
	auto_close int store_fd = names_open_store(dir, NULL, NULL);
	const uint64_t deadline_ns = deadline_in_ms(STORE_LOCK_MS);
	int swept = 0;

	if (store_fd < 0)
		return store_fd == -ENOENT ? 0 : store_fd;
	int r = dir_names_list(&all, store_fd, is_to_sweep);
	if (r < 0)
		return r;
	for (size_t i = 0; i < all.n; i++) {
		const char *name = all.ids[i];

		if ((is_mark(name) ? pin_sweep : sweep_leftover)(store_fd, name, deadline_ns) == 0)
			swept++;
	}
	return swept;
}

int store_free_bytes(const char *dir, uint64_t *ret, struct brumate_error *err)
{
	auto_free char *path = *dir == '/' ? strdup(dir) : path_format("./%s", dir);
	struct statvfs fs;

	if (!path)
		return brumate_fail(err, ENOMEM, "%m");
	while (statvfs(path, &fs) < 0) {
		char *slash = strrchr(path, '/');

		if (errno != ENOENT || !slash)
			return brumate_fail(err, errno, "%s: free space: %m", dir);
		/* The root keeps its slash. */
		slash[slash == path ? 1 : 0] = '\0';
	}
	/* File systems that count no blocks, such as ramfs and some of FUSE, say that they have none. */
	*ret = fs.f_blocks ? (uint64_t)fs.f_bavail * fs.f_frsize : UINT64_MAX;
	return 0;
}

int store_check_space(const char *dir, const struct manifest *m, bool files_only,
		      uint64_t *ret_total, struct brumate_error *err)
{
	uint64_t free_bytes, need = 0;
	bool overflows = false;

	for (size_t i = 0; i < m->n_files; i++)
		overflows |= __builtin_add_overflow(need, m->files[i].len_bytes, &need);
	for (size_t i = 0; i < m->memory.n_packs && !files_only; i++)
		overflows |= __builtin_add_overflow(need, m->memory.packs[i].len_bytes, &need);
	if (overflows)
		return brumate_fail(err, EBADMSG, "its files are larger than any disk");
	*ret_total = need;
	int r = store_free_bytes(dir, &free_bytes, err);
	if (r < 0 || need <= free_bytes)
		return r;
	brumate_fail(err, ENOSPC, "%s has %s free, %s %s", dir, SIZE_TEXT(free_bytes),
		     files_only ? "files other than the job's memory need" : "the checkpoint needs",
		     SIZE_TEXT(need));
	brumate_hint(err, "make room (`brumate prune`)%s",
		     files_only ? "" : ", or choose another place with --dir");
	return -ENOSPC;
}

/* ---- by a rule ---- */

static int by_job_newest_first(const void *a, const void *b)
{
	const struct retention_item *left = a, *right = b;
	int order = strcmp(left->job, right->job);

	if (order == 0 && left->sequence != right->sequence)
		order = left->sequence < right->sequence ? 1 : -1;
	if (order == 0)
		order = strcmp(right->created, left->created);
	return order ? order : strcmp(right->id, left->id);
}

static bool is_young(const struct retention_item *item, uint64_t within_ms, uint64_t now_ms)
{
	uint64_t created_ms;

	if (clock_parse_stamp(&created_ms, item->created) < 0 || created_ms >= now_ms)
		return true;
	return now_ms - created_ms <= within_ms;
}

void retention_choose(struct retention_item *items, size_t n, const struct retention_rule *rule,
		      uint64_t now_ms)
{
	unsigned rank = 0;

	if (n)
		qsort(items, n, sizeof(*items), by_job_newest_first);
	for (size_t i = 0; i < n; i++) {
		bool same = i && !strcmp(items[i].job, items[i - 1].job);

		rank = same ? rank + 1 : 0;
		items[i].doomed = rank >= rule->keep_last &&
				  !(rule->keep_within_ms &&
				    is_young(&items[i], rule->keep_within_ms, now_ms));
	}
}

/* Damaged checkpoints are reported and stay: their content may still be useful, and they must not count as the good
 * ones that a rule keeps. */
struct candidate {
	char id[MANIFEST_ID_BYTES], job[MANIFEST_ID_BYTES];
	char created[sizeof(((struct manifest *)0)->created)];
	uint64_t sequence;
	bool is_rest; /* of a set that is none */
};

struct prune_search {
	const struct store_prune *prune;
	const char *dir;
	struct candidate *found;
	size_t n;
	bool no_memory;
};

static bool is_of_job(const struct manifest *m, const char *job)
{
	return !job || !strcmp(m->job.id, job) || !strcmp(m->job.name, job);
}

static void add_candidate(struct prune_search *s, const struct manifest *m)
{
	struct candidate *found = array_room(s->found, s->n, sizeof(*found));

	if (!found) {
		s->no_memory = true;
		return;
	}
	s->found = found;
	struct candidate *c = &s->found[s->n++];
	snprintf(c->id, sizeof(c->id), "%s", m->id);
	snprintf(c->job, sizeof(c->job), "%s", m->job.id[0] ? m->job.id : m->job.name);
	snprintf(c->created, sizeof(c->created), "%s", m->created);
	c->sequence = manifest_sequence(m);
	c->is_rest = m->set[0] && set_counts(s->dir, m->set, m->id) == 0;
}

static void consider_candidate(void *arg, const char *id, const struct store_image *i,
			       const struct brumate_error *why)
{
	struct prune_search *s = arg;
	const struct store_prune *p = s->prune;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (!i) { /* its job is unknown */
		if (!p->job && p->tell)
			p->tell(p->arg, STORE_PRUNE_DAMAGED, id, why->text);
		return;
	}
	if (!is_of_job(&i->manifest, p->job))
		return;
	int pinned = store_pinned(s->dir, id, &err);
	if (pinned < 0 && pinned != -ENOENT && p->tell) /* else it was removed in the meantime */
		p->tell(p->arg, STORE_PRUNE_KEPT, id, err.text);
	if (pinned)
		return;
	if (store_check(i, &err) < 0) {
		if (p->tell)
			p->tell(p->arg, STORE_PRUNE_DAMAGED, id, err.text);
		return;
	}
	add_candidate(s, &i->manifest);
}

/* Returns 1 if it was removed, 0 if it stays. */
static int remove_candidate(const char *dir, const struct store_prune *p, const char *id)
{
	const char *needed = p->needed ? p->needed(p->arg, id) : NULL;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (!needed && !p->dry_run && store_remove(dir, id, &err) < 0)
		needed = err.text;
	if (p->tell)
		p->tell(p->arg, needed ? STORE_PRUNE_KEPT : STORE_PRUNE_REMOVED, id,
			needed ? needed : "");
	return !needed;
}

static int prune_found(const char *dir, const struct store_prune *p, const struct prune_search *s,
		       struct brumate_error *err)
{
	auto_free struct retention_item *items = calloc(s->n ? s->n : 1, sizeof(*items));
	size_t n = 0;
	int removed = 0;

	if (!items)
		return brumate_fail(err, ENOMEM, "%m");
	/* They do not count among those that the rule keeps. */
	for (size_t i = 0; i < s->n; i++)
		if (s->found[i].is_rest)
			removed += remove_candidate(dir, p, s->found[i].id);
	for (size_t i = 0; i < s->n; i++)
		if (!s->found[i].is_rest)
			items[n++] = (struct retention_item){ .id = s->found[i].id,
							      .job = s->found[i].job,
							      .sequence = s->found[i].sequence,
							      .created = s->found[i].created };
	retention_choose(items, n, &p->rule, clock_wall_ns() / NS_PER_MS);
	for (size_t i = 0; i < n; i++)
		if (items[i].doomed)
			removed += remove_candidate(dir, p, items[i].id);
	return removed;
}

int store_prune(const char *dir, const struct store_prune *p, struct brumate_error *err)
{
	struct prune_search s = { .prune = p, .dir = dir };

	if (!p->rule.keep_last && !p->rule.keep_within_ms)
		return brumate_fail(err, EINVAL, "say what to keep");
	int r = store_list(dir, consider_candidate, &s, err);
	if (r == 0)
		r = s.no_memory ? brumate_fail(err, ENOMEM, "%m") : prune_found(dir, p, &s, err);
	free(s.found);
	return r;
}

/* ---- what checkpoints take: blocks, each counted once ---- */

enum { BLOCK_BYTES = 512 }; /* of st_blocks, on any file system */

void usage_seen_fini(struct usage_seen *s)
{
	free(s->slots);
	*s = USAGE_SEEN_EMPTY;
}

static ino_t *slot_of(ino_t *slots, size_t n_slots, ino_t inode)
{
	size_t i = (size_t)(inode * 0x9e3779b97f4a7c15ull);

	while (slots[i & (n_slots - 1)] && slots[i & (n_slots - 1)] != inode)
		i++;
	return &slots[i & (n_slots - 1)];
}

static int grow_seen(struct usage_seen *s)
{
	size_t n = s->n_slots ? 2 * s->n_slots : 64;
	ino_t *slots = calloc(n, sizeof(*slots));

	if (!slots)
		return -ENOMEM;
	for (size_t i = 0; i < s->n_slots; i++)
		if (s->slots[i])
			*slot_of(slots, n, s->slots[i]) = s->slots[i];
	free(s->slots);
	s->slots = slots;
	s->n_slots = n;
	return 0;
}

/* 1: it is seen for the first time; 0; -ENOMEM. */
static int note_inode(struct usage_seen *s, ino_t inode)
{
	if (2 * (s->n + 1) > s->n_slots && grow_seen(s) < 0)
		return -ENOMEM;
	ino_t *slot = slot_of(s->slots, s->n_slots, inode);
	if (*slot)
		return 0;
	*slot = inode;
	s->n++;
	return 1;
}

static int add_blocks(struct usage *u, struct usage_seen *seen, int dir_fd, const char *path)
{
	struct stat st;

	if (fstatat(dir_fd, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return 0;
	uint64_t bytes = (uint64_t)st.st_blocks * BLOCK_BYTES;
	if (st.st_nlink < 2) {
		u->disk_bytes += bytes;
		return 0;
	}
	int r = note_inode(seen, st.st_ino);
	u->shared_bytes += bytes;
	if (r == 1)
		u->disk_bytes += bytes;
	return r < 0 ? r : 0;
}

int usage_of(struct usage *ret, const struct store_image *i, struct usage_seen *seen)
{
	const struct manifest *m = &i->manifest;
	struct usage u = { 0 };
	int r = add_blocks(&u, seen, i->dir_fd, STORE_MANIFEST_NAME);

	for (size_t k = 0; r == 0 && k < m->n_files; k++)
		r = add_blocks(&u, seen, i->dir_fd, m->files[k].path);
	for (size_t k = 0; r == 0 && k < m->memory.n_packs; k++)
		r = add_blocks(&u, seen, i->dir_fd, m->memory.packs[k].path);
	if (r == 0)
		*ret = u;
	return r;
}

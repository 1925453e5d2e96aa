// SPDX-License-Identifier: MIT
/*
 * Writes a checkpoint: begin, commit, abort. It is complete or absent: a directory that is not renamed to its id does
 * not count, and is removed by the next writer once the lock of this one is gone.
 */
#include "store/store.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/paths.h"
#include "base/thread.h"
#include "store/authentic.h"
#include "store/closed-files.h"
#include "store/image.h"
#include "store/file-tree.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { DEPTH_MAX = 64 }; /* of directories */

/* ---- file calls, each with a fault point of its name ---- */

int call_mkdir(int dir_fd, const char *name)
{
	int r = fault_point("store.mkdir");

	if (r < 0)
		return r;
	if (mkdirat(dir_fd, name, 0700) < 0)
		return -errno;
	int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int store_enter_parents(int dir_fd, char *path, const char **ret_base)
{
	auto_close int at = fcntl(dir_fd, F_DUPFD_CLOEXEC, 0);
	char *rest = path;

	if (at < 0)
		return -errno;
	for (int depth = 0; depth <= DEPTH_MAX; depth++) {
		const char *name = strsep(&rest, "/");

		if (!rest) {
			*ret_base = name;
			return take_fd(&at);
		}
		int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (fd < 0)
			fd = errno == ENOENT ? call_mkdir(at, name) : -errno;
		if (fd < 0)
			return fd;
		cleanup_close(&at);
		at = fd;
	}
	return -ELOOP;
}

int call_sync_store(int fd)
{
	return files_sync(fd, "store.sync-store");
}

int call_rename(int dir_fd, const char *from, const char *to)
{
	int r = fault_point("store.rename");

	return r < 0 ? r : rename_new(dir_fd, from, dir_fd, to);
}

int call_remove_tree(int dir_fd, const char *name)
{
	int r = fault_point("store.remove");

	return r < 0 ? r : remove_tree(dir_fd, name);
}

/* Writes and syncs the new file @name, 0600. */
static int write_manifest_file(int dir_fd, const char *name, const void *text, size_t len_bytes)
{
	int r = fault_point("store.write-manifest");
	if (r < 0)
		return r;

	auto_close int fd =
		openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	r = fd_write_full(fd, text, len_bytes);
	if (r < 0)
		return r;
	return fsync(fd) < 0 ? -errno : 0;
}

/* ---- begin ---- */

static int check_store(int fd, const char *dir, struct brumate_error *err)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return files_fail(err, errno, dir, "status");
	if ((st.st_mode & S_IWOTH) && !(st.st_mode & S_ISVTX)) {
		brumate_fail(err, EACCES, "%s: everyone may write to this directory", dir);
		brumate_hint(err, "chmod o-w %s, or choose a directory of your own with --dir",
			     dir);
		return -EACCES;
	}
	return 0;
}

static int open_store(char **ret_path, const char *dir, struct brumate_error *err)
{
	auto_free char *path = NULL;
	int r = mkdir_parents_synced(dir, 0700);
	if (r < 0)
		return files_fail(err, -r, dir, "create the store");

	auto_close int fd = names_open_store(dir, &path, err);
	if (fd < 0)
		return fd;
	r = check_store(fd, path, err);
	if (r < 0)
		return r;
	*ret_path = take_ptr(&path);
	return take_fd(&fd);
}

static int fail_taken(struct brumate_error *err, const char *store, const char *id, const char *how)
{
	brumate_fail(err, EEXIST, "checkpoint %s: %s %s", id, how, store);
	brumate_hint(err, "choose another name, or remove it with `brumate rm %s`", id);
	return -EEXIST;
}

/* Creates the partial directory and locks it, under the lock of the store: a sweeper takes that lock first, so it
 * never sees the directory unlocked. Returns its fd (owned). */
static int create_partial(const struct store_writer *w, const char *store, const char *name,
			  struct brumate_error *err)
{
	struct stat st;
	auto_close int fd = call_mkdir(w->store_fd, name);
	if (fd == -EEXIST)
		return fail_taken(err, store, w->id, "is being written in");
	if (fd < 0)
		return files_fail(err, -fd, store, "create the directory of the checkpoint");

	/* On a file system without locks a sweeper gets no lock either, so it does not remove this directory. */
	if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
		return fail_taken(err, store, w->id, "is being written in");
	/* Checked only now: an earlier writer that used this directory's name, on this machine or another, has renamed
	 * its directory by now, and a file system shared by machines shows the rename to a machine that has changed the
	 * store since. */
	if (fstatat(w->store_fd, w->id, &st, AT_SYMLINK_NOFOLLOW) == 0) {
		remove_tree(w->store_fd, name);
		return fail_taken(err, store, w->id, "exists in");
	}
	return take_fd(&fd);
}

int store_begin(struct store_writer *ret, const char *dir, const char *id,
		struct brumate_error *err)
{
	auto_(store_abort) struct store_writer w = STORE_WRITER_EMPTY;
	auto_free char *store = NULL;
	char name[MANIFEST_ID_BYTES + sizeof("..partial")];

	if (!manifest_id_is_valid(id))
		return brumate_fail(err, EINVAL,
				    "checkpoint \"%s\": expected 1 to %d of A-Z a-z 0-9 . _ -, not "
				    "starting with a dot",
				    id, MANIFEST_ID_BYTES - 1);
	w.store_fd = open_store(&store, dir, err);
	if (w.store_fd < 0)
		return w.store_fd;
	store_sweep(store);

	snprintf(w.id, sizeof(w.id), "%s", id);
	snprintf(name, sizeof(name), ".%s.partial", id);
	auto_free char *path = path_format("%s/%s", store, name);
	if (!path)
		return brumate_fail(err, ENOMEM, "%m");

	/* Where another process holds it on, no sweeper can have it. */
	fd_lock(w.store_fd, deadline_in_ms(STORE_LOCK_MS));
	w.dir_fd = create_partial(&w, store, name, err);
	flock(w.store_fd, LOCK_UN);
	if (w.dir_fd < 0)
		return w.dir_fd;
	w.path = take_ptr(&path);
	*ret = take_struct(w, STORE_WRITER_EMPTY);
	return 0;
}

int store_mkdir(struct store_writer *w, const char *name, struct brumate_error *err)
{
	if (!manifest_path_is_valid(name) || strchr(name, '/'))
		return brumate_fail(err, EINVAL, "\"%s\": not the name of a directory", name);

	int fd = call_mkdir(w->dir_fd, name);
	if (fd < 0) {
		files_fail(err, -fd, w->path, "create a directory");
		return brumate_wrap(err, fd, "checkpoint %s", w->id);
	}
	return fd;
}

static int seal_dir(int fd)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return -errno;
	if ((st.st_mode & 07777) != 0700 && fchmod(fd, 0700) < 0)
		return -errno;
	return files_sync(fd, "store.sync-dir");
}

static int seal_file(int fd, const struct disk_file *f, void *arg, struct brumate_error *err)
{
	const struct store_writer *w = arg;
	struct stat st;
	int r = 0;

	if (fstat(fd, &st) < 0 || ((st.st_mode & 07777) != 0600 && fchmod(fd, 0600) < 0))
		r = -errno;
	if (r == 0)
		r = files_sync(fd, "store.sync-file");
	if (r == 0)
		return 0;
	files_fail(err, -r, w->path, "write to disk");
	return brumate_wrap(err, r, "%s", f->path);
}

/* ---- files that are hashed while the memory is still written ---- */

struct hashed_file {
	ino_t inode;
	struct timespec changed;
};

struct store_hashing {
	struct store_writer *writer;
	struct file_tree tree;
	struct hashed_file *files; /* of the tree */
	pthread_t thread;
	atomic_bool stop;
	int r;
	struct brumate_error err;
};

static void hashing_free(struct store_hashing *h)
{
	file_tree_fini(&h->tree);
	free(h->files);
	free(h);
}

static void drop_memory(struct file_tree *t)
{
	size_t kept = 0;

	for (size_t i = 0; i < t->n_files; i++) {
		if (strncmp(t->files[i].path, MANIFEST_MEMORY_DIR "/",
			    sizeof(MANIFEST_MEMORY_DIR)) != 0) {
			t->files[kept++] = t->files[i];
			continue;
		}
		t->total_bytes -= t->files[i].len_bytes;
		free(t->files[i].path);
	}
	t->n_files = kept;
}

/* Before they are hashed, so that writes during the hashing count as changes. */
static int note_files(struct store_hashing *h)
{
	const struct file_tree *t = &h->tree;
	struct stat st;

	h->files = calloc(t->n_files + 1, sizeof(*h->files));
	if (!h->files)
		return brumate_fail(&h->err, ENOMEM, "%m");
	for (size_t i = 0; i < t->n_files; i++) {
		if (fstatat(h->writer->dir_fd, t->files[i].path, &st, AT_SYMLINK_NOFOLLOW) < 0)
			return brumate_fail(&h->err, errno, "%s: %m", t->files[i].path);
		h->files[i] = (struct hashed_file){ st.st_ino, st.st_mtim };
	}
	return 0;
}

static int ask_going_on(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
	const struct store_hashing *h = arg;

	return h->stop ? -ECANCELED : 0;
}

void store_hash_closed(struct store_writer *w, const char *name)
{
	if (!w->key && !w->closed)
		closed_files_begin(&w->closed, w->dir_fd, name, seal_file, w);
}

/* Takes over what was hashed while others were written, and is still the same. */
static int take_closed(struct store_hashing *h)
{
	auto_(closed_files_free) struct closed_files *closed = take_ptr(&h->writer->closed);
	int r = closed ? closed_files_end(closed, &h->err) : 0;

	for (size_t i = 0; closed && r == 0 && i < h->tree.n_files; i++) {
		struct disk_file *f = &h->tree.files[i];
		const struct hashed_file *is = &h->files[i];
		const struct closed_file *was = closed_files_find(closed, f->path);

		if (!was || was->len_bytes != f->len_bytes || was->inode != is->inode ||
		    was->changed.tv_sec != is->changed.tv_sec ||
		    was->changed.tv_nsec != is->changed.tv_nsec)
			continue;
		f->digest = was->digest;
		f->is_hashed = true;
	}
	return r;
}

static void *hash_in_thread(void *arg)
{
	struct store_hashing *h = arg;
	int dir_fd = h->writer->dir_fd;

	h->r = file_tree_scan(&h->tree, dir_fd, NULL, &h->err);
	if (h->r < 0)
		return NULL;
	drop_memory(&h->tree);
	h->tree.will_sync = true;
	h->r = note_files(h);
	if (h->r == 0)
		h->r = take_closed(h);
	if (h->r == 0)
		h->r = file_tree_hash(&h->tree, dir_fd, seal_file, h->writer, ask_going_on, h,
				      &h->err);
	return NULL;
}

void store_hash_ahead(struct store_writer *w)
{
	struct store_hashing *h = w->key || w->hashing ? NULL : calloc(1, sizeof(*h));

	if (!h)
		return;
	h->writer = w;
	if (thread_start(&h->thread, hash_in_thread, h) < 0)
		free(h);
	else
		w->hashing = h;
}

static bool is_as_hashed(const struct store_writer *w, const struct disk_file *f,
			 const struct disk_file *was, const struct hashed_file *id)
{
	struct stat st;

	return f->len_bytes == was->len_bytes &&
	       fstatat(w->dir_fd, f->path, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
	       st.st_ino == id->inode && st.st_mtim.tv_sec == id->changed.tv_sec &&
	       st.st_mtim.tv_nsec == id->changed.tv_nsec;
}

/* Takes over the digests of files of @t that are known by now. */
static int take_hashed(struct store_writer *w, struct file_tree *t, struct brumate_error *err)
{
	struct store_hashing *h = take_ptr(&w->hashing);

	if (!h)
		return w->closed ? closed_files_end(w->closed, err) : 0;
	pthread_join(h->thread, NULL);
	int r = h->r;
	if (r < 0 && err)
		*err = h->err;
	for (size_t i = 0, k = 0; r == 0 && i < t->n_files && k < h->tree.n_files;) {
		struct disk_file *f = &t->files[i], *was = &h->tree.files[k];
		int order = strcmp(f->path, was->path);

		if (order == 0 && is_as_hashed(w, f, was, &h->files[k])) {
			f->digest = was->digest;
			f->is_hashed = true;
		}
		i += order <= 0;
		k += order >= 0;
	}
	hashing_free(h);
	return r;
}

static void stop_hashing(struct store_writer *w)
{
	struct store_hashing *h = take_ptr(&w->hashing);

	if (!h)
		return;
	h->stop = true;
	pthread_join(h->thread, NULL);
	hashing_free(h);
}

/* ---- commit ---- */

static void free_files(struct manifest *m)
{
	for (size_t i = 0; i < m->n_files; i++)
		free(m->files[i].path);
	free(m->files);
	m->files = NULL;
	m->n_files = 0;
}

/* Moves the files of @t into @m. */
static int fill_files(struct manifest *m, struct file_tree *t)
{
	struct manifest_file *files = calloc(t->n_files ? t->n_files : 1, sizeof(*files));

	if (!files)
		return -ENOMEM;
	free_files(m);
	for (size_t i = 0; i < t->n_files; i++) {
		files[i] = (struct manifest_file){ .path = take_ptr(&t->files[i].path),
						   .len_bytes = t->files[i].len_bytes,
						   .digest = t->files[i].digest };
	}
	m->files = files;
	m->n_files = t->n_files;
	return 0;
}

static void fill_header(struct manifest *m, const struct store_writer *w)
{
	m->version = m->job.started_as[0] || m->set[0] ? MANIFEST_VERSION : MANIFEST_VERSION_USUAL;
	snprintf(m->id, sizeof(m->id), "%s", w->id);
	if (w->key)
		snprintf(m->key_id, sizeof(m->key_id), "%s", w->key->id);
	if (!m->created[0])
		clock_stamp(m->created);
	if (!m->brumate_version[0])
		snprintf(m->brumate_version, sizeof(m->brumate_version), "%s", BRUMATE_VERSION);
}

static int write_data(struct store_writer *w, struct manifest *m, store_progress_fn progress,
		      void *arg, struct brumate_error *err)
{
	auto_(file_tree_fini) struct file_tree t = FILE_TREE_EMPTY, packs = FILE_TREE_EMPTY;
	int r = file_tree_scan(&t, w->dir_fd, seal_dir, err);

	/* Packs have a digest for each chunk instead, and are synced. */
	if (r == 0 && file_tree_split(&packs, &t, m) < 0)
		r = brumate_fail(err, ENOMEM, "%m");
	t.will_sync = true;
	if (r == 0)
		r = take_hashed(w, &t, err);
	if (r == 0)
		r = file_tree_hash(&t, w->dir_fd, seal_file, w, progress, arg, err);
	if (r < 0)
		return r;
	fill_header(m, w);
	r = fill_files(m, &t);
	return r < 0 ? brumate_fail(err, -r, "%m") : 0;
}

static int write_manifest(struct store_writer *w, const char *text, size_t len,
			  struct brumate_error *err)
{
	/* From an earlier attempt that failed. */
	unlinkat(w->dir_fd, STORE_MANIFEST_NAME, 0);
	int r = write_manifest_file(w->dir_fd, STORE_MANIFEST_NAME, text, len);
	if (r == 0)
		r = files_sync(w->dir_fd, "store.sync-dir");
	return r < 0 ? files_fail(err, -r, w->path, "write the manifest") : 0;
}

static int encode_and_write(struct store_writer *w, struct manifest *m, struct brumate_error *err)
{
	auto_free char *text = NULL;
	size_t len = 0;

	if (authentic_make(m, w->key, w->signing) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	int r = manifest_encode(m, &text, &len, err);

	return r < 0 ? r : write_manifest(w, text, len, err);
}

/* The owner of the store's directory may have put something else in the place of what was written. The manifests are compared, as
 * not each file system has a directory keep its inode number when it is renamed. */
static int check_place(const struct store_writer *w, const char *path, struct brumate_error *err)
{
	char name[MANIFEST_ID_BYTES + sizeof(STORE_MANIFEST_NAME) + 1];
	struct stat own, there;

	snprintf(name, sizeof(name), "%s/" STORE_MANIFEST_NAME, w->id);
	auto_close int fd = files_open(w->store_fd, name, &there);
	if (files_cannot_tell(-fd))
		return files_fail(err, -fd, path, "look for it");
	if (fstatat(w->dir_fd, STORE_MANIFEST_NAME, &own, AT_SYMLINK_NOFOLLOW) < 0)
		return files_fail(err, errno, path, "look at the manifest");
	if (fd >= 0 && own.st_uid == there.st_uid && own.st_size == there.st_size &&
	    own.st_mtim.tv_sec == there.st_mtim.tv_sec &&
	    own.st_mtim.tv_nsec == there.st_mtim.tv_nsec)
		return 0;
	brumate_fail(err, ESTALE, "%s: somebody has put something else in its place", path);
	brumate_hint(err, "choose a directory of your own with --dir");
	return -ESTALE;
}

/* Gives the checkpoint its final name. Undone if it cannot be made durable: after a failure the caller resumes the
 * job, and must not find a checkpoint that it does not know of. */
static int publish(struct store_writer *w, struct brumate_error *err)
{
	const char *partial = strrchr(w->path, '/') + 1;
	auto_free char *path = path_format("%.*s%s", (int)(partial - w->path), w->path, w->id);
	if (!path)
		return brumate_fail(err, ENOMEM, "%m");

	int r = call_rename(w->store_fd, partial, w->id);
	if (r == -EEXIST)
		return brumate_fail(err, EEXIST, "another program has written it in the meantime");
	if (r < 0)
		return files_fail(err, -r, w->path, "rename");
	r = call_sync_store(w->store_fd);
	if (r < 0) {
		renameat(w->store_fd, w->id, w->store_fd, partial);
		return files_fail(err, -r, path, "write the store to disk");
	}
	r = check_place(w, path, err);
	if (r < 0) {
		if (r != -ESTALE)
			renameat(w->store_fd, w->id, w->store_fd, partial);
		return r;
	}
	free(w->path);
	w->path = take_ptr(&path);
	w->committed = true;
	flock(w->dir_fd, LOCK_UN);
	return 0;
}

int store_commit(struct store_writer *w, struct manifest *m, store_progress_fn progress, void *arg,
		 struct brumate_error *err)
{
	int r = write_data(w, m, progress, arg, err);

	if (r == 0)
		r = encode_and_write(w, m, err);
	if (r == 0)
		r = publish(w, err);
	return r < 0 ? brumate_wrap(err, r, "checkpoint %s", w->id) : 0;
}

int store_commit_as(struct store_writer *w, const struct manifest *m, const char *text,
		    size_t len_bytes, struct brumate_error *err)
{
	auto_(file_tree_fini) struct file_tree t = FILE_TREE_EMPTY, packs = FILE_TREE_EMPTY;
	int r = file_tree_scan(&t, w->dir_fd, seal_dir, err);

	if (r == 0 && file_tree_split(&packs, &t, m) < 0)
		r = brumate_fail(err, ENOMEM, "%m");
	if (r == 0)
		r = file_tree_compare(m, &t, &packs, err);
	if (r == 0)
		r = write_manifest(w, text, len_bytes, err);
	if (r == 0)
		r = publish(w, err);
	return r < 0 ? brumate_wrap(err, r, "checkpoint %s", w->id) : 0;
}

void store_new_id(char ret[static MANIFEST_ID_BYTES], const char *dir, const char *name)
{
	time_t now = time(NULL);
	char stamp[32], path[PATH_MAX];
	struct tm tm;

	gmtime_r(&now, &tm);
	strftime(stamp, sizeof(stamp), "%Y%m%d-%H%M%S", &tm);
	snprintf(ret, MANIFEST_ID_BYTES, "%s-%s", name, stamp);
	for (;;) {
		snprintf(path, sizeof(path), "%s/%s", dir, ret);
		if (access(path, F_OK) < 0)
			return;
		store_next_id(ret);
	}
}

void store_next_id(char id[static MANIFEST_ID_BYTES])
{
	char *dash = strrchr(id, '-'), *dot = dash ? strchr(dash, '.') : NULL;
	const int n = dot ? atoi(dot + 1) + 1 : 2;
	const size_t len = dot ? (size_t)(dot - id) : strlen(id);

	snprintf(id + len, MANIFEST_ID_BYTES - len, ".%d", n);
}

void store_abort(struct store_writer *w)
{
	stop_hashing(w);
	closed_files_free(take_ptr(&w->closed));
	/* The lock is held until the directory is removed: otherwise a sweeper would remove it at the same time. */
	if (w->path && !w->committed)
		remove_tree(w->store_fd, strrchr(w->path, '/') + 1);
	cleanup_close(&w->dir_fd);
	cleanup_close(&w->store_fd);
	free(w->path);
	*w = STORE_WRITER_EMPTY;
}

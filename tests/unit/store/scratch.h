// SPDX-License-Identifier: MIT
/* A scratch store with checkpoints in it, for the tests of the store. */
#pragma once

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/paths.h"
#include "check.h"
#include "store/authentic.h"
#include "store/store.h"

static char scratch[PATH_MAX], dir[PATH_MAX];
static bool hashes_ahead; /* before it commits */

static inline void remove_scratch(void)
{
	CHECK(remove_tree(AT_FDCWD, scratch) == 0);
}

/* A new store, not yet created, in a scratch directory of its own. */
static inline void new_scratch(void)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(scratch, sizeof(scratch), "%s/brumate-store-XXXXXX", tmp ? tmp : "/tmp");
	CHECK(mkdtemp(scratch));
	CHECK(snprintf(dir, sizeof(dir), "%.*s/state/checkpoints", PATH_MAX - 32, scratch) > 0);
}

__attribute__((format(printf, 1, 2))) static inline char *at(const char *fmt, ...)
{
	static char path[4][2 * PATH_MAX];
	static int next;
	char *out = path[next++ % 4];
	va_list ap;
	int n = snprintf(out, 2 * PATH_MAX, "%s/", dir);

	va_start(ap, fmt);
	vsnprintf(out + n, PATH_MAX, fmt, ap);
	va_end(ap);
	return out;
}

static inline void put_file(int dir_fd, const char *name, const void *data, size_t len)
{
	auto_close int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	CHECK(fd >= 0);
	CHECK(fd_write_full(fd, data, len) == 0);
}

static inline bool is_there(const char *path)
{
	struct stat st;

	return lstat(path, &st) == 0;
}

/* The data of every checkpoint here: two files in "criu", one of them large, and one beside it. */
static inline void put_data(struct store_writer *w)
{
	static char pages[3 << 20];
	auto_close int criu = store_mkdir(w, "criu", NULL);

	CHECK(criu >= 0);
	if (hashes_ahead)
		store_hash_closed(w, "criu");
	memset(pages, 0x5a, sizeof(pages));
	put_file(criu, "pages-1.img", pages, sizeof(pages));
	put_file(criu, "inventory.img", "inventory", 9);
	put_file(w->dir_fd, "empty", "", 0);
}

static inline struct manifest job_manifest(const char *job, const char *created)
{
	struct manifest m = MANIFEST_EMPTY;

	snprintf(m.job.id, sizeof(m.job.id), "id-%s", job);
	snprintf(m.job.name, sizeof(m.job.name), "%s", job);
	snprintf(m.created, sizeof(m.created), "%s", created);
	return m;
}

static inline int try_write(const char *id, const char *job, const char *created,
			    struct brumate_error *err)
{
	auto_(store_abort) struct store_writer w = STORE_WRITER_EMPTY;
	auto_(manifest_fini) struct manifest m = job_manifest(job, created);
	int r = store_begin(&w, dir, id, err);

	if (r < 0)
		return r;
	put_data(&w);
	if (hashes_ahead)
		store_hash_ahead(&w);
	return store_commit(&w, &m, NULL, NULL, err);
}

static inline void write_checkpoint(const char *id, const char *job, const char *created)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (try_write(id, job, created, &err) < 0)
		fprintf(stderr, "%s\n", err.text);
	CHECK(!err.code);
}

static inline int verify(const char *id, struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;

	*err = BRUMATE_ERROR_NONE;
	int r = store_open(&i, dir, id, err);
	return r < 0 ? r : store_verify(&i, NULL, NULL, err);
}

/* A stream in memory, which store_export() and store_import() are given. The test frees data. */
struct bytes {
	uint8_t *data;
	size_t len, room, at;
	size_t step;	/* most that a read gives */
	size_t fail_at; /* a write beyond this fails */
};

static inline int write_bytes(void *arg, const void *buf, size_t len)
{
	struct bytes *b = arg;

	if (b->fail_at && b->len + len > b->fail_at)
		return -EPIPE;
	if (b->len + len > b->room) {
		b->room = 2 * (b->len + len);
		b->data = realloc(b->data, b->room);
		CHECK(b->data);
	}
	memcpy(b->data + b->len, buf, len);
	b->len += len;
	return 0;
}

static inline ssize_t read_bytes(void *arg, void *buf, size_t room)
{
	struct bytes *b = arg;
	size_t n = b->len - b->at;

	n = n < room ? n : room;
	n = b->step && n > b->step ? b->step : n;
	memcpy(buf, b->data + b->at, n);
	b->at += n;
	return (ssize_t)n;
}

/* ---- faults ---- */

static char fault_file[PATH_MAX];

/* Comes after new_scratch(). */
static inline void begin_faults(void)
{
	CHECK(snprintf(fault_file, sizeof(fault_file), "%.*s/fault", PATH_MAX - 16, scratch) > 0);
	setenv("BRUMATE_FAULT_FILE", fault_file, 1);
}

static inline void arm(const char *point, const char *action)
{
	auto_free char *line = path_format("%s %s\n", point, action);

	CHECK(line);
	put_file(AT_FDCWD, fault_file, line, strlen(line));
}

static inline bool was_hit(void)
{
	return access(fault_file, F_OK) < 0 && errno == ENOENT;
}

/* How many hidden names are in the store. */
static inline unsigned count_hidden(void)
{
	auto_closedir DIR *d = opendir(dir);
	struct dirent *entry;
	unsigned n = 0;

	CHECK(d);
	while ((entry = readdir(d)))
		n += entry->d_name[0] == '.' && strcmp(entry->d_name, ".") &&
		     strcmp(entry->d_name, "..");
	return n;
}

// SPDX-License-Identifier: MIT
/* A store: what is committed is found, verified, listed and removed; what is wrong with it is said. */
#include "scratch.h"

#include "base/clock.h"
#include "base/digest.h"

#define NEW_YEAR "2026-01-01T00:00:00.000Z"

static mode_t mode_of(const char *path)
{
	struct stat st;

	CHECK(lstat(path, &st) == 0);
	return st.st_mode & 07777;
}

static int count_progress(void *arg, uint64_t done, uint64_t total)
{
	uint64_t *last = arg;

	CHECK(done <= total && done >= *last);
	*last = done;
	return 0;
}

static void test_commit(void)
{
	auto_(store_abort) struct store_writer w = STORE_WRITER_EMPTY;
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;
	auto_(manifest_fini) struct manifest m = MANIFEST_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	uint64_t last = 0;
	struct digest d;

	CHECK(store_begin(&w, dir, "first", &err) == 0);
	CHECK_STR(w.path, at(".first.partial"));
	CHECK(mode_of(dir) == 0700 && mode_of(w.path) == 0700);
	put_data(&w);
	CHECK(!is_there(at("first")));
	CHECK(store_commit(&w, &m, count_progress, &last, &err) == 0);
	CHECK(last == (3 << 20) + 9);
	CHECK_STR(w.path, at("first"));
	CHECK(!is_there(at(".first.partial")));
	CHECK(mode_of(at("first/criu/pages-1.img")) == 0600 &&
	      mode_of(at("first/manifest.json")) == 0600);

	CHECK(store_open(&i, dir, "first", &err) == 0);
	CHECK_STR(i.path, at("first"));
	CHECK_STR(i.manifest.id, "first");
	CHECK_STR(i.manifest.brumate_version, BRUMATE_VERSION);
	CHECK(strlen(i.manifest.created) == CLOCK_STAMP_BYTES - 1);
	CHECK(i.manifest.n_files == 3);
	CHECK_STR(i.manifest.files[0].path, "criu/inventory.img");
	CHECK_STR(i.manifest.files[1].path, "criu/pages-1.img");
	CHECK_STR(i.manifest.files[2].path, "empty");
	CHECK(i.manifest.files[1].len_bytes == 3 << 20);
	CHECK(digest_buffer(&d, "inventory", 9) == 0);
	CHECK(!memcmp(&d, &i.manifest.files[0].digest, sizeof(d)));
	last = 0;
	CHECK(store_verify(&i, count_progress, &last, &err) == 0);
	CHECK(last == (3 << 20) + 9);
}

static uint64_t len_of(const struct manifest *m, const char *path)
{
	for (size_t i = 0; i < m->n_files; i++)
		if (!strcmp(m->files[i].path, path))
			return m->files[i].len_bytes;
	return UINT64_MAX;
}

static void check_ahead(void)
{
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;

	CHECK(store_open(&i, dir, "ahead", NULL) == 0 && store_verify(&i, NULL, NULL, NULL) == 0);
	CHECK(i.manifest.n_files == 4 && len_of(&i.manifest, "criu/inventory.img") == 11);
	CHECK(len_of(&i.manifest, "criu/pages-1.img") == 3 << 20);
}

/* Files that are hashed before the commit begins: what is changed or added after that counts. */
static void test_hashed_ahead(void)
{
	auto_(store_abort) struct store_writer w = STORE_WRITER_EMPTY;
	auto_(manifest_fini) struct manifest m = MANIFEST_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(store_begin(&w, dir, "ahead", &err) == 0);
	put_data(&w);
	store_hash_ahead(&w);
	store_hash_ahead(&w); /* which is under way */
	while (mode_of(at(".ahead.partial/criu/inventory.img")) != 0600)
		usleep(1000);
	put_file(w.dir_fd, "criu/inventory.img", "another one", 11);
	put_file(w.dir_fd, "later", "later", 5);
	CHECK(store_commit(&w, &m, NULL, NULL, &err) == 0);
	CHECK(mode_of(at("ahead/criu/pages-1.img")) == 0600 && mode_of(at("ahead/later")) == 0600);
	check_ahead();
	CHECK(store_remove(dir, "ahead", NULL) == 0);

	/* One that is given up meanwhile. */
	auto_(store_abort) struct store_writer other = STORE_WRITER_EMPTY;
	CHECK(store_begin(&other, dir, "ahead", &err) == 0);
	put_data(&other);
	store_hash_ahead(&other);
	store_abort(&other);
	CHECK(!is_there(at(".ahead.partial")));
}

static void await_seal(const char *path)
{
	while (mode_of(path) != 0600)
		usleep(1000);
}

/* Other bytes, and neither another length nor another time. */
static void change_unseen(int dir_fd, const char *name, const char *text)
{
	struct stat st;
	auto_close int fd = openat(dir_fd, name, O_WRONLY | O_CLOEXEC);

	CHECK(fd >= 0 && fstat(fd, &st) == 0 && st.st_size == (off_t)strlen(text));
	CHECK(fd_write_full(fd, text, strlen(text)) == 0);
	CHECK(futimens(fd, (struct timespec[]){ st.st_atim, st.st_mtim }) == 0);
}

static bool has_digest_of(const struct manifest *m, const char *path, const char *text)
{
	struct digest d;

	CHECK(digest_buffer(&d, text, strlen(text)) == 0);
	for (size_t i = 0; i < m->n_files; i++)
		if (!strcmp(m->files[i].path, path))
			return !memcmp(&m->files[i].digest, &d, sizeof(d));
	return false;
}

/* Whether the thread that hashes has been asked to end, which an eventfd of its tells. */
static bool is_asked_to_end(void)
{
	for (int fd = 3; fd < 64; fd++) {
		auto_free char *path = path_format("/proc/self/fdinfo/%d", fd);
		auto_free char *text = NULL;
		const char *count = path && file_read(AT_FDCWD, path, 4096, &text, NULL) == 0
					    ? strstr(text, "eventfd-count:")
					    : NULL;

		if (count && strtol(count + strlen("eventfd-count:"), NULL, 16))
			return true;
	}
	return false;
}

/* Files that are hashed when they are closed. The thread is held while it syncs one: of what comes after that nothing is hashed by it,
 * and that another file was written to once more is known all the same. */
static void test_hashed_when_closed(void)
{
	auto_(store_abort) struct store_writer w = STORE_WRITER_EMPTY;
	auto_(manifest_fini) struct manifest m = MANIFEST_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	auto_free char *held = path_format("%s.held", fault_file);

	CHECK(held && store_begin(&w, dir, "closed", &err) == 0);
	auto_close int criu = store_mkdir(&w, "criu", &err);
	store_hash_closed(&w, "criu");
	put_file(criu, "kept.img", "kept", 4);
	put_file(criu, "changed.img", "before", 6);
	put_file(criu, "gone.img", "gone", 4);
	await_seal(at(".closed.partial/criu/kept.img"));
	await_seal(at(".closed.partial/criu/gone.img"));
	arm("store.sync-file", "hold");
	put_file(criu, "pages-1.img", "pages", 5);
	while (!is_there(held))
		usleep(1000);
	change_unseen(criu, "changed.img", "after!");
	CHECK(unlinkat(criu, "gone.img", 0) == 0);
	put_file(criu, "last.img", "last", 4);
	store_hash_ahead(&w);
	while (!is_asked_to_end())
		usleep(1000);
	int fifo = open(held, O_WRONLY | O_CLOEXEC);
	CHECK(fifo >= 0 && close(fifo) == 0);
	CHECK(store_commit(&w, &m, NULL, NULL, &err) == 0);
	CHECK(m.n_files == 4 && verify("closed", &err) == 0);
	CHECK(has_digest_of(&m, "criu/kept.img", "kept"));
	CHECK(has_digest_of(&m, "criu/changed.img", "after!"));
	CHECK(has_digest_of(&m, "criu/last.img", "last"));
	CHECK(store_remove(dir, "closed", NULL) == 0);

	/* A disk that fails is not asked again: it may not say so twice. */
	auto_(store_abort) struct store_writer failing = STORE_WRITER_EMPTY;
	CHECK(store_begin(&failing, dir, "closed", &err) == 0);
	arm("store.sync-file", "error:5");
	hashes_ahead = true;
	put_data(&failing);
	hashes_ahead = false;
	while (is_there(fault_file))
		usleep(1000);
	store_hash_ahead(&failing);
	CHECK(store_commit(&failing, &m, NULL, NULL, &err) == -EIO);
	store_abort(&failing);

	/* A checkpoint that nobody hashes the rest of, and one that is given up. */
	for (int i = 0; i < 2; i++) {
		auto_(store_abort) struct store_writer other = STORE_WRITER_EMPTY;
		auto_(manifest_fini) struct manifest its = MANIFEST_EMPTY;

		CHECK(store_begin(&other, dir, "closed", &err) == 0);
		hashes_ahead = true;
		put_data(&other);
		hashes_ahead = false;
		CHECK(i || (store_commit(&other, &its, NULL, NULL, &err) == 0 &&
			    verify("closed", &err) == 0 && store_remove(dir, "closed", NULL) == 0));
	}
	CHECK(!is_there(at(".closed.partial")));
}

static void test_abort(void)
{
	auto_(store_abort) struct store_writer w = STORE_WRITER_EMPTY;

	CHECK(store_begin(&w, dir, "gone", NULL) == 0);
	put_data(&w);
	store_abort(&w);
	CHECK(!is_there(at(".gone.partial")) && !is_there(at("gone")));
	CHECK(w.dir_fd == -1 && w.store_fd == -1 && !w.path);
}

static int cancel(void *arg, uint64_t done, uint64_t total)
{
	return -ECANCELED;
}

static void test_cancel(void)
{
	auto_(store_abort) struct store_writer w = STORE_WRITER_EMPTY;
	auto_(manifest_fini) struct manifest m = MANIFEST_EMPTY;
	static char pages[40 << 20];

	CHECK(store_begin(&w, dir, "cancelled", NULL) == 0);
	put_file(w.dir_fd, "pages", pages, sizeof(pages));
	CHECK(store_commit(&w, &m, cancel, NULL, NULL) == -ECANCELED);
	CHECK(!is_there(at("cancelled")) && is_there(w.path));

	/* And once more, to the end. */
	CHECK(store_commit(&w, &m, NULL, NULL, NULL) == 0);
	CHECK(is_there(at("cancelled/manifest.json")));
	CHECK(store_remove(dir, "cancelled", NULL) == 0);
	CHECK(!is_there(at("cancelled")));
}

static void test_taken(void)
{
	auto_(store_abort) struct store_writer w = STORE_WRITER_EMPTY, other = STORE_WRITER_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(store_begin(&w, dir, "first", &err) == -EEXIST);
	CHECK(strstr(err.text, "exists in") && err.hint[0]);
	CHECK(store_begin(&w, dir, "twice", &err) == 0);
	CHECK(store_begin(&other, dir, "twice", &err) == -EEXIST);
	CHECK(strstr(err.text, "is being written"));
	CHECK(is_there(w.path));

	/* Someone else takes the name behind our back. */
	auto_(manifest_fini) struct manifest m = MANIFEST_EMPTY;
	CHECK(mkdir(at("twice"), 0700) == 0);
	CHECK(store_commit(&w, &m, NULL, NULL, &err) == -EEXIST);
	CHECK(rmdir(at("twice")) == 0);
	store_abort(&w);

	static const char *const bad[] = { "", ".a", "a/b", "../a", "a b", "a\n", "\xc3\xa4" };
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		CHECK(store_begin(&w, dir, bad[i], &err) == -EINVAL);
}

static int break_path(struct store_writer *w, int kind)
{
	const char *name = "bad";

	switch (kind) {
	case 0:
		return symlinkat("/etc/passwd", w->dir_fd, name);
	case 1:
		return mkfifoat(w->dir_fd, name, 0600);
	default:
		return symlinkat("criu", w->dir_fd, name);
	}
}

/* What is not a file is not saved: it could not be restored. */
static void test_special_files(void)
{
	static const char *const said[] = { "a symbolic link", "a pipe", "a symbolic link" };

	for (int kind = 0; kind < 3; kind++) {
		auto_(store_abort) struct store_writer w = STORE_WRITER_EMPTY;
		auto_(manifest_fini) struct manifest m = MANIFEST_EMPTY;
		struct brumate_error err = BRUMATE_ERROR_NONE;

		CHECK(store_begin(&w, dir, "special", NULL) == 0);
		put_data(&w);
		CHECK(break_path(&w, kind) == 0);
		CHECK(store_commit(&w, &m, NULL, NULL, &err) == -EBADMSG);
		CHECK(strstr(err.text, "checkpoint special: bad: ") &&
		      strstr(err.text, said[kind]));
	}
	CHECK(!is_there(at("special")) && !is_there(at(".special.partial")));

	auto_(store_abort) struct store_writer w = STORE_WRITER_EMPTY;
	CHECK(store_begin(&w, dir, "special", NULL) == 0);
	CHECK(store_mkdir(&w, "../x", NULL) == -EINVAL);
	CHECK(store_mkdir(&w, "a/b", NULL) == -EINVAL);
	CHECK(store_mkdir(&w, "a", NULL) >= 0);
	CHECK(store_mkdir(&w, "a", NULL) == -EEXIST);
}

static void flip(const char *path, off_t where)
{
	auto_close int fd = open(path, O_RDWR | O_CLOEXEC);
	char c;

	CHECK(pread(fd, &c, 1, where) == 1);
	c ^= 1;
	CHECK(pwrite(fd, &c, 1, where) == 1);
}

static void expect(const char *id, int code, const char *said)
{
	struct brumate_error err;
	int r = verify(id, &err);

	if (r != -code || (said && !strstr(err.text, said)))
		fprintf(stderr, "%s: %d %s, expected %d %s\n", id, r, err.text, -code, said);
	CHECK(r == -code);
	CHECK(!said || strstr(err.text, said));
}

static void test_damage(void)
{
	char bytes[] = "inventory";

	write_checkpoint("bad", "bad", NEW_YEAR);
	expect("bad", 0, NULL);

	flip(at("bad/criu/pages-1.img"), 2 << 20);
	expect("bad", EBADMSG, "checkpoint bad: criu/pages-1.img: damaged: its digest");
	flip(at("bad/criu/pages-1.img"), 2 << 20);

	CHECK(truncate(at("bad/criu/pages-1.img"), 4096) == 0);
	expect("bad", EBADMSG, "criu/pages-1.img: truncated: 4096 of 3145728 bytes");
	CHECK(truncate(at("bad/criu/pages-1.img"), 3145729) == 0);
	expect("bad", EBADMSG, "criu/pages-1.img: too long: 3145729 of 3145728 bytes");

	CHECK(rename(at("bad/criu/inventory.img"), at("saved")) == 0);
	expect("bad", EBADMSG, "criu/inventory.img: missing, expected 9 bytes");
	CHECK(symlink(at("saved"), at("bad/criu/inventory.img")) == 0);
	expect("bad", EBADMSG, "criu/inventory.img: a symbolic link");
	CHECK(unlink(at("bad/criu/inventory.img")) == 0);
	CHECK(mkfifo(at("bad/criu/inventory.img"), 0600) == 0);
	expect("bad", EBADMSG, "criu/inventory.img: a pipe");
	CHECK(unlink(at("bad/criu/inventory.img")) == 0);

	put_file(AT_FDCWD, at("bad/criu/inventory.img"), bytes, 9);
	put_file(AT_FDCWD, at("bad/criu/more.img"), "", 0);
	expect("bad", EBADMSG, "criu/more.img: not in the manifest");
	CHECK(unlink(at("bad/criu/more.img")) == 0 && unlink(at("saved")) == 0);
}

static void test_damaged_manifest(void)
{
	struct brumate_error err;

	write_checkpoint("torn", "torn", NEW_YEAR);
	flip(at("torn/manifest.json"), 40);
	expect("torn", EBADMSG, "checkpoint torn: manifest: ");
	CHECK(truncate(at("torn/manifest.json"), 100) == 0);
	expect("torn", EBADMSG, "damaged or truncated");
	CHECK(truncate(at("torn/manifest.json"), 0) == 0);
	expect("torn", EBADMSG, "empty");
	CHECK(unlink(at("torn/manifest.json")) == 0);
	expect("torn", EBADMSG, "no manifest");
	CHECK(symlink("/etc/passwd", at("torn/manifest.json")) == 0);
	expect("torn", EBADMSG, "manifest: not a readable file");
	CHECK(unlink(at("torn/manifest.json")) == 0);
	CHECK(mkfifo(at("torn/manifest.json"), 0600) == 0);
	expect("torn", EBADMSG, "manifest: not a readable file");
	CHECK(verify("torn", &err) < 0 && brumate_exit_code(&err) == EXIT_BAD_IMAGE);
	CHECK(store_remove(dir, "torn", &err) == 0);
	CHECK(!is_there(at("torn")));
}

static void test_modes(void)
{
	struct brumate_error err;

	write_checkpoint("open", "open", NEW_YEAR);
	CHECK(chmod(at("open"), 0720) == 0);
	expect("open", EACCES, "other than its owner may write to it (mode 0720)");
	CHECK(chmod(at("open"), 0755) == 0);
	expect("open", 0, NULL);
	CHECK(chmod(at("open/criu/pages-1.img"), 0602) == 0);
	expect("open", EACCES, "criu/pages-1.img: users other than its owner");
	CHECK(chmod(at("open/manifest.json"), 0666) == 0);
	expect("open", EACCES, "manifest: users other than its owner");
	CHECK(store_remove(dir, "open", NULL) == 0);

	auto_(store_abort) struct store_writer w = STORE_WRITER_EMPTY;
	CHECK(chmod(dir, 0777) == 0);
	CHECK(store_begin(&w, dir, "any", &err) == -EACCES);
	CHECK(strstr(err.text, "everyone may write"));
	CHECK(chmod(dir, 01777) == 0);
	CHECK(store_begin(&w, dir, "any", &err) == 0);
	CHECK(chmod(dir, 0700) == 0);
}

static void test_foreign_owner(void)
{
	if (geteuid() != 0)
		return;
	write_checkpoint("theirs", "theirs", NEW_YEAR);
	CHECK(chown(at("theirs"), 12345, 12345) == 0);
	expect("theirs", EACCES, "belongs to uid 12345");
	CHECK(store_remove(dir, "theirs", NULL) == 0);
}

static int open_id(const char *id, char ret[static MANIFEST_ID_BYTES], struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;

	*err = BRUMATE_ERROR_NONE;
	ret[0] = '\0';
	int r = store_open(&i, dir, id, err);
	if (r == 0)
		strcpy(ret, i.manifest.id);
	return r;
}

static void test_lookup(void)
{
	char got[MANIFEST_ID_BYTES];
	struct brumate_error err;

	write_checkpoint("train-2", "train", "2026-02-02T00:00:00.000Z");
	write_checkpoint("train-1", "train", "2026-02-01T00:00:00.000Z");
	write_checkpoint("train-10", "other", "2026-02-03T00:00:00.000Z");

	CHECK(open_id("train-1", got, &err) == 0); /* an id, although a prefix too */
	CHECK_STR(got, "train-1");
	CHECK(open_id("train", got, &err) == 0); /* a job: its latest */
	CHECK_STR(got, "train-2");
	CHECK(open_id("id-train", got, &err) == 0);
	CHECK_STR(got, "train-2");
	CHECK(open_id("train-10", got, &err) == 0);
	CHECK(open_id("fir", got, &err) == 0);
	CHECK_STR(got, "first");
	CHECK(open_id("trai", got, &err) == -ENOTUNIQ);
	CHECK(strstr(err.text, "train-1, train-10, train-2") &&
	      brumate_exit_code(&err) == EXIT_USAGE);
	CHECK(open_id("nothing", got, &err) == -ENOENT);
	CHECK(strstr(err.text, "no checkpoint nothing in"));
	CHECK(open_id("", got, &err) == -EINVAL);
	CHECK(open_id("..", got, &err) == -ENOENT);
	CHECK(open_id(".", got, &err) == -ENOENT);

	CHECK(open_id(at("train-1"), got, &err) == 0);
	CHECK_STR(got, "train-1");
	CHECK(open_id(at("absent"), got, &err) == -ENOENT);
	CHECK(rename(at("train-1"), at("renamed")) == 0);
	CHECK(open_id("renamed", got, &err) == -EBADMSG);
	CHECK(strstr(err.text, "its manifest is that of train-1"));
	CHECK(open_id(at("renamed"), got, &err) == 0);
	CHECK(rename(at("renamed"), at("train-1")) == 0);

	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;
	CHECK(store_open(&i, at("no-store"), "first", &err) == -ENOENT);
}

/* A damaged checkpoint that is newer than the one found is not passed over. */
static void test_lookup_damaged(void)
{
	struct timespec later[2] = { { .tv_sec = 4000000000 }, { .tv_sec = 4000000000 } };
	char got[MANIFEST_ID_BYTES];
	struct brumate_error err;

	write_checkpoint("train-3", "train", "2026-02-09T00:00:00.000Z");
	flip(at("train-3/manifest.json"), 60);
	CHECK(utimensat(AT_FDCWD, at("train-3"), later, 0) == 0);
	CHECK(open_id("train", got, &err) == -EBADMSG);
	CHECK(strstr(err.text, "checkpoint train-3") && strstr(err.hint, "is train-2"));
	CHECK(open_id("train-3", got, &err) == -EBADMSG);
	CHECK(open_id("train-2", got, &err) == 0);
}

struct listing {
	char text[1024];
};

static void note(void *arg, const char *id, const struct store_image *i,
		 const struct brumate_error *why)
{
	struct listing *l = arg;
	size_t used = strlen(l->text);

	CHECK(!i != !why);
	CHECK(!i || (i->dir_fd >= 0 && !strcmp(i->manifest.id, id)));
	CHECK(!why || (why->code && why->text[0]));
	snprintf(l->text + used, sizeof(l->text) - used, "%s%s ", id, i ? "" : "!");
}

static void test_list(void)
{
	struct listing l = { "" }, none = { "" };
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(mkdir(at("aaa"), 0700) == 0);
	put_file(AT_FDCWD, at("note.txt"), "x", 1);
	CHECK(store_list(dir, note, &l, &err) == 0);
	CHECK_STR(l.text, "bad train-1 train-2 train-10 first aaa! train-3! ");
	CHECK(store_list(at("no-store"), note, &none, &err) == 0);
	CHECK(!none.text[0] && !err.code);
	CHECK(store_list(at("note.txt"), note, &none, &err) == -ENOTDIR);
	CHECK(rmdir(at("aaa")) == 0 && unlink(at("note.txt")) == 0);
}

static void test_remove(void)
{
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(store_remove(dir, "nothing", &err) == -ENOENT);
	CHECK(store_remove(dir, "", &err) == -ENOENT);
	CHECK(store_remove(dir, "..", &err) == -ENOENT);
	CHECK(store_remove(dir, "train", &err) ==
	      -ENOENT); /* neither the latest of a job nor a beginning */

	CHECK(store_open(&i, dir, "first", &err) == 0);
	CHECK(store_verify(&i, NULL, NULL, &err) == 0);
	CHECK(store_remove(dir, "first", &err) == -EBUSY);
	CHECK(is_there(at("first/manifest.json")));
	store_image_fini(&i);

	/* To look at one does not hold it. */
	write_checkpoint("seen", "seen", NEW_YEAR);
	CHECK(store_open(&i, dir, "seen", &err) == 0);
	CHECK(store_remove(dir, i.manifest.id, &err) == 0);
	CHECK(store_verify(&i, NULL, NULL, &err) == -EBADMSG && strstr(err.text, "missing"));
	store_image_fini(&i);
	CHECK(store_remove(dir, "fir", &err) == -ENOENT && store_remove(dir, "first", &err) == 0);
	CHECK(!is_there(at("first")));
	CHECK(store_sweep(dir) == 0); /* nothing is left of it */
}

static void test_sweep(void)
{
	auto_(store_abort) struct store_writer w = STORE_WRITER_EMPTY;

	CHECK(store_begin(&w, dir, "alive", NULL) == 0);
	CHECK(mkdir(at(".dead.partial"), 0700) == 0 && mkdir(at(".dead.partial/criu"), 0700) == 0);
	CHECK(mkdir(at(".old.removed-77-1"), 0700) == 0);
	CHECK(mkdir(at(".foreign"), 0700) == 0 && mkdir(at(".partial"), 0700) == 0);
	CHECK(symlink(at("train-1"), at(".link.partial")) == 0);
	CHECK(store_sweep(dir) == 2);
	CHECK(is_there(w.path) && is_there(at(".foreign")) && is_there(at(".partial")));
	CHECK(!is_there(at(".dead.partial")) && !is_there(at(".old.removed-77-1")));
	CHECK(is_there(at("train-1/manifest.json")));
	CHECK(store_sweep(at("no-store")) == 0);
	CHECK(unlink(at(".link.partial")) == 0);
}

static void test_free_bytes(void)
{
	uint64_t here = 0, there = 0;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(store_free_bytes(dir, &here, &err) == 0 && here > 0);
	CHECK(store_free_bytes(at("a/b/c/d"), &there, &err) == 0 && there > 0);
	CHECK(store_free_bytes("not-here/at/all", &there, &err) == 0 && there > 0);
}

int main(void)
{
	new_scratch();
	begin_faults();
	umask(0);
	test_commit();
	test_hashed_ahead();
	test_hashed_when_closed();
	test_abort();
	test_cancel();
	test_taken();
	test_special_files();
	test_damage();
	CHECK(store_remove(dir, "bad", NULL) == 0);
	write_checkpoint("bad", "bad", NEW_YEAR);
	test_damaged_manifest();
	test_modes();
	test_foreign_owner();
	test_lookup();
	test_lookup_damaged();
	test_list();
	test_remove();
	test_sweep();
	test_free_bytes();
	remove_scratch();
	return 0;
}

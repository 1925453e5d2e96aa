// SPDX-License-Identifier: MIT
/*
 * The machine crashes: after every single call that a writer, a remover and an import make on files,
 * with what was not synced lost or there (tests/recorder). Whatever is left, a checkpoint that was
 * committed is whole, one that was removed is gone, one in between is one of both; and the next
 * writer gets on with it.
 */
#include "memory-job.h"
#include "recorder/recorder.h"

enum { IDS = 4, LEN = 5000, JOBS = 2 };

/* What must be true of a checkpoint. */
enum expect { ABSENT, EITHER, WHOLE };

static const char *const ids[IDS] = { "old", "moved", "victim", "new" };
static const char *const words[] = { "absent", "either", "whole" };
static enum expect expect[IDS];
static struct memory_job jobs[JOBS];
static const struct memory_job *const job_of[IDS] = { &jobs[0], &jobs[1], &jobs[1], &jobs[0] };
static char after[256]; /* the last mark */
static unsigned n_crashes, n_wholes[IDS], n_absents[IDS];

static void mark(enum expect e, const char *id)
{
	record_mark("%s %s", words[e], id);
}

static void obey_mark(const char *text)
{
	for (int i = 0; i < IDS; i++) {
		for (int e = 0; e < 3; e++) {
			char want[64];

			snprintf(want, sizeof(want), "%s %s", words[e], ids[i]);
			if (!strcmp(want, text))
				expect[i] = (enum expect)e;
		}
	}
	snprintf(after, sizeof(after), "%s", text);
}

/* Files as CRIU has them, and memory: random bytes, zeros, text. */
static void make_jobs(void)
{
	for (unsigned i = 0; i < JOBS; i++) {
		add_region(&jobs[i], 9000, FILL_RANDOM, i + 1);
		add_region(&jobs[i], 50000, FILL_ZERO, 0);
		add_region(&jobs[i], 20000, FILL_TEXT, i + 1);
	}
}

static int write_memory(struct store_writer *w, struct manifest *m, const struct memory_job *j,
			uint64_t *ret_shared)
{
	auto_(chunks_writer_free) struct chunks_writer *writer = NULL;
	struct chunks_options options = { .job = "id-job", .threads = 2 };
	struct chunks_sums sums;
	int r = store_chunks_begin(&writer, w, &options, NULL);

	for (size_t i = 0; r == 0 && i < j->n; i++)
		r = chunks_add(writer, &j->regions[i], j->fds[i], 0, NULL);
	if (r == 0)
		r = chunks_end(writer, m, &sums, NULL, NULL, NULL);
	if (r == 0)
		*ret_shared = sums.shared;
	return r;
}

static int write_one(const char *id, const struct memory_job *j, uint64_t *ret_shared)
{
	auto_(store_abort) struct store_writer w = STORE_WRITER_EMPTY;
	auto_(manifest_fini) struct manifest m = job_manifest("job", "2026-01-01T00:00:00.000Z");
	int r = store_begin(&w, dir, id, NULL);

	if (r < 0)
		return r;
	auto_close int criu = store_mkdir(&w, "criu", NULL);
	CHECK(criu >= 0);
	put_file(criu, "pages-1.img", jobs[0].bytes[0], LEN);
	put_file(criu, "core-1.img", jobs[1].bytes[2], 100);
	put_file(w.dir_fd, "empty", "", 0);
	r = write_memory(&w, &m, j, ret_shared);
	return r < 0 ? r : store_commit(&w, &m, NULL, NULL, NULL);
}

static uint64_t record_write(const char *id, const struct memory_job *j)
{
	uint64_t shared = 0;

	mark(EITHER, id);
	CHECK(write_one(id, j, &shared) == 0);
	mark(WHOLE, id);
	return shared;
}

static void record_remove(const char *id)
{
	mark(EITHER, id);
	CHECK(store_remove(dir, id, NULL) == 0);
	mark(ABSENT, id);
}

static void export_one(const char *id, struct bytes *s)
{
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;

	CHECK(store_open(&i, dir, id, NULL) == 0);
	CHECK(store_export(&i, write_bytes, s, NULL, NULL, NULL) == 0);
}

static void record_import(const char *id, struct bytes *s)
{
	char got[MANIFEST_ID_BYTES];

	mark(EITHER, id);
	CHECK(store_import(got, dir, &AUTHORITY_EMPTY, read_bytes, s, NULL, NULL, NULL) == 0);
	CHECK_STR(got, id);
	mark(WHOLE, id);
}

static void fail(const char *how, const char *id, const char *what)
{
	fprintf(stderr, "a crash after \"%s\", %s: %s: %s\n", after, how, id, what);
	exit(1);
}

static void check_id(int i, const char *how)
{
	struct brumate_error err;
	int r = verify(ids[i], &err);

	if (r == 0)
		r = load_all(job_of[i], ids[i], &err);
	if (r != 0 && r != -ENOENT)
		fail(how, ids[i], err.text);
	if (r == 0 && expect[i] == ABSENT)
		fail(how, ids[i], "is there again");
	if (r == -ENOENT && expect[i] == WHOLE)
		fail(how, ids[i], "is lost");
	if (r == 0)
		n_wholes[i]++;
	else
		n_absents[i]++;
}

static void on_listed(void *arg, const char *id, const struct store_image *i,
		      const struct brumate_error *why)
{
	if (!i)
		fail(arg, id, why->text);
}

static void on_crash(void *arg, const char *how)
{
	char text[128];

	n_crashes++;
	snprintf(text, sizeof(text), "%s", how);
	CHECK(store_list(dir, on_listed, text, NULL) == 0);
	for (int i = 0; i < IDS; i++)
		check_id(i, how);

	/* The next writer sweeps, and what it leaves is as before. */
	uint64_t shared;
	int r = write_one("next", &jobs[0], &shared);
	if (r < 0)
		fail(how, "next", strerror(-r));
	for (int i = 0; i < IDS; i++)
		check_id(i, how);
	if (verify("next", &(struct brumate_error){ 0 }) != 0)
		fail(how, "next", "is not whole");
}

/* What the recorder did not see is not replayed: with nothing lost, the replay must be the original. */
static void check_replay(struct replay *p, const char *root, const char *original)
{
	auto_free char *command = path_format("diff -r '%s' '%s' >&2", original, root);

	replay_write(p, root);
	CHECK(command && system(command) == 0);
}

static void replay_all(const struct record *records, size_t n, const char *original)
{
	char root[PATH_MAX + 8];
	struct replay *p = replay_new();

	snprintf(root, sizeof(root), "%s.crash", original);
	CHECK(mkdir(root, 0700) == 0);
	CHECK(snprintf(dir, sizeof(dir), "%.*s/state/checkpoints", PATH_MAX - 32, root) > 0);
	for (size_t i = 0; i < n; i++) {
		replay_apply(p, &records[i]);
		if (records[i].kind == RECORD_MARK)
			obey_mark(records[i].name);
		replay_crashes(p, root, on_crash, NULL);
	}
	check_replay(p, root, original);
	replay_free(p);
	CHECK(remove_tree(AT_FDCWD, root) == 0);
}

int main(void)
{
	struct bytes stream = { 0 };
	size_t n;

	setenv("BRUMATE_IO", "posix", 1); /* calls that can be recorded */
	if (access("/dev/shm", W_OK) == 0)
		setenv("TMPDIR", "/dev/shm", 1); /* thousands of small files */
	new_scratch();
	make_jobs();
	record_start(scratch);
	record_write("old", &jobs[0]);
	record_write("moved", &jobs[1]);
	export_one("moved", &stream);
	record_write("victim", &jobs[1]);
	CHECK(record_write("new", &jobs[0]) > 0); /* packs of "old" */
	record_remove("victim");
	record_remove("moved");
	record_import("moved", &stream);

	const struct record *records = record_stop(&n);
	replay_all(records, n, scratch);
	printf("%zu calls, %u different crashes\n", n, n_crashes);
	for (int i = 0; i < IDS; i++)
		CHECK(n_wholes[i] > 0 && n_absents[i] > 0);
	record_free();
	free(stream.data);
	for (int i = 0; i < JOBS; i++)
		memory_job_fini(&jobs[i]);
	remove_scratch();
	return 0;
}

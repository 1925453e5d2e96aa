// SPDX-License-Identifier: MIT
/*
 * A writer of memory that fails or is killed at any of its calls, on a full disk, beside removals: the
 * old checkpoint stays whole, the new one is complete or absent, nothing is left.
 */
#include "memory-job.h"

#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>

static const char *const points[] = { "store.pack-create", "store.pack-write", "store.pack-sync",
				      "store.write-table" };
enum { N_POINTS = sizeof(points) / sizeof(points[0]) };

static struct memory_job old_job, new_job;
static const struct chunks_options options = { .threads = 2 };

static int write_new(struct brumate_error *err)
{
	struct chunks_sums sums;

	return try_save(&new_job, "new", "2026-01-02T00:00:00.000Z", &options, &sums, err);
}

static void test_killed(void)
{
	for (int i = 0; i < N_POINTS; i++) {
		int status;

		arm(points[i], "kill");
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0)
			_exit(write_new(NULL) < 0);
		CHECK(waitpid(pid, &status, 0) == pid);
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		CHECK(!is_there(at("new")) && count_hidden() == 1);
		check_saved(&old_job, "old");
		CHECK(write_new(NULL) == 0 && count_hidden() == 0);
		check_saved(&new_job, "new");
		CHECK(store_remove(dir, "new", NULL) == 0);
	}
}

static void test_failing(void)
{
	static const int codes[] = { ENOSPC, EIO, EDQUOT, EROFS };

	for (int i = 0; i < N_POINTS; i++) {
		for (size_t k = 0; k < sizeof(codes) / sizeof(codes[0]); k++) {
			struct brumate_error err = BRUMATE_ERROR_NONE;
			char action[32];

			snprintf(action, sizeof(action), "error:%d", codes[k]);
			arm(points[i], action);
			int r = write_new(&err);
			if (r != -codes[k])
				fprintf(stderr, "%s %s: %d %s\n", points[i], action, r, err.text);
			CHECK(r == -codes[k] && err.code == codes[k]);
			CHECK(strstr(err.text, strerror(codes[k])) && strstr(err.text, dir));
			CHECK(strstr(err.text, "checkpoint new: ") && err.hint[0]);
			CHECK(!is_there(at("new")) && count_hidden() == 0);
		}
	}
	check_saved(&old_job, "old");
}

static bool stop_now(void *arg)
{
	return true;
}

/* A writer that is told to stop, and one that nobody ends, leave nothing. */
static void test_stopped(void)
{
	auto_(store_abort) struct store_writer w = STORE_WRITER_EMPTY;
	auto_(manifest_fini) struct manifest m = MANIFEST_EMPTY;
	auto_(chunks_writer_free) struct chunks_writer *writer = NULL;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct chunks_sums sums;

	CHECK(store_begin(&w, dir, "stopped", &err) == 0);
	CHECK(store_chunks_begin(&writer, &w, &options, &err) == 0);
	for (size_t i = 0; i < new_job.n; i++)
		CHECK(chunks_add(writer, &new_job.regions[i], new_job.fds[i], 0, &err) == 0);
	arm("store.pack-create", "delay:300");
	int r = chunks_end(writer, &m, &sums, stop_now, NULL, &err);
	CHECK(r == -ECANCELED || r == 0);
	chunks_writer_free(take_ptr(&writer));
	store_abort(&w);

	CHECK(store_begin(&w, dir, "forgotten", &err) == 0);
	CHECK(store_chunks_begin(&writer, &w, &options, &err) == 0);
	CHECK(chunks_add(writer, &new_job.regions[0], new_job.fds[0], 0, &err) == 0);
	chunks_writer_free(take_ptr(&writer));
	store_abort(&w);
	unlink(fault_file);
	CHECK(count_hidden() == 0);
}

/* A region that is not all there. */
static void test_short_file(void)
{
	auto_(store_abort) struct store_writer w = STORE_WRITER_EMPTY;
	auto_(chunks_writer_free) struct chunks_writer *writer = NULL;
	struct manifest_region region = new_job.regions[0];
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(store_begin(&w, dir, "short", &err) == 0);
	CHECK(store_chunks_begin(&writer, &w, &options, &err) == 0);
	region.len_bytes += 2;
	CHECK(chunks_add(writer, &region, new_job.fds[0], 0, &err) == -EINVAL);
	CHECK(chunks_add(writer, &region, new_job.fds[0], UINT64_MAX, &err) == -EINVAL);
}

/* Checkpoints that share are removed while others are written and verified. */
static void test_removals(void)
{
	enum { ROUNDS = 6 };
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (pid == 0) {
		for (;;) {
			store_remove(dir, "even", NULL);
			store_remove(dir, "odd", NULL);
			store_sweep(dir);
		}
	}
	for (int i = 0; i < ROUNDS; i++) {
		const char *id = i % 2 ? "odd" : "even";
		struct brumate_error err = BRUMATE_ERROR_NONE;
		struct chunks_sums sums;
		int r = try_save(&new_job, id, "2026-01-02T00:00:00.000Z", &options, &sums, &err);

		if (r < 0)
			fprintf(stderr, "%s\n", err.text);
		CHECK(r == 0);
		r = verify(id, &err);
		CHECK(r == 0 || r == -ENOENT || !is_there(at("%s", id)));
	}
	CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, &status, 0) == pid);
	store_sweep(dir);
	store_remove(dir, "even", NULL);
	store_remove(dir, "odd", NULL);
	CHECK(count_hidden() == 0);
	check_saved(&old_job, "old");
}

/* A disk with room for the old one and not for the new one. */
static void test_full(void)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct chunks_sums sums;

	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("tmpfs", scratch, "tmpfs", MS_NOSUID | MS_NODEV, "size=20m") < 0)
		SKIP("the full disk: needs to mount a small tmpfs: %s", strerror(errno));
	save(&old_job, "old", "2026-01-01T00:00:00.000Z", &options);
	int r = try_save(&new_job, "new", "2026-01-02T00:00:00.000Z",
			 &(struct chunks_options){ .no_sharing = true }, &sums, &err);
	CHECK(r == -ENOSPC && strstr(err.hint, "are free there"));
	CHECK(!is_there(at("new")) && count_hidden() == 0);
	check_saved(&old_job, "old");
	CHECK(umount(scratch) == 0);
}

int main(void)
{
	new_scratch();
	begin_faults();
	add_region(&old_job, 5 * CHUNK_BYTES, FILL_RANDOM, 1);
	add_region(&new_job, 5 * CHUNK_BYTES, FILL_RANDOM, 1);
	add_region(&new_job, 3 * CHUNK_BYTES + 5, FILL_RANDOM, 2);
	save(&old_job, "old", "2026-01-01T00:00:00.000Z", &options);

	test_killed();
	test_failing();
	test_stopped();
	test_short_file();
	test_removals();
	remove_scratch();
	new_scratch();
	test_full();
	remove_scratch();
	memory_job_fini(&old_job);
	memory_job_fini(&new_job);
	return 0;
}

// SPDX-License-Identifier: MIT
/*
 * `brumate bench`: what the machine can do, and what share of it suspend, resume, checkpoint and restore of a
 * synthetic job reach, through the broker's copies and through the driver alone, in one run. The job's log is
 * how it answers.
 */
#include "cli/arguments.h"
#include "edges/bench/bench.h"
#include "cli/client.h"
#include "cli/output.h"
#include "edges/bench/options.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/conf.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/machine.h"
#include "base/paths.h"
#include "base/workers.h"
#include "job/job.h"
#include "service/access.h"
#include "wire/wire.h"

/* ---- what the machine can do ---- */

enum { THREADS_MAX = 8, DEPTH = 16, ROUNDS = 3, PAGE_BYTES = 4096 };

#define MEMORY_BYTES   (64ull << 20) /* of each thread */
#define FILE_BYTES_MAX (16ull << 30)
#define BLOCK_BYTES    (2ull << 20)
#define DISK_TIME_NS   (3 * NS_PER_S) /* each way */

/* Blocks of a file, one after the other, each by the thread that is free. */
struct blocks {
	int fd;
	char *memory; /* a block for each thread */
	bool writes;
	uint64_t n, deadline_ns;
	atomic_uint_fast64_t next, done;
};

/* Threads that memory is copied with. */
static unsigned bench_threads(void)
{
	unsigned n = machine_cores();

	return n > THREADS_MAX ? THREADS_MAX : n;
}

/* No two blocks are the same: nothing that a disk could store once. */
static void stamp_block(char *block, uint64_t number)
{
	for (size_t at = 0; at < BLOCK_BYTES; at += PAGE_BYTES)
		*(uint64_t *)(block + at) += number * (BLOCK_BYTES / PAGE_BYTES) + 1;
}

/* A worker's part of @arg, a struct blocks, with the memory that is its own. */
static int move_blocks(void *arg, size_t item, const struct worker *me, struct brumate_error *err)
{
	struct blocks *b = arg;
	char *block = b->memory + item * BLOCK_BYTES;
	uint64_t i;

	while (!interrupt_seen() && clock_now_ns() < b->deadline_ns &&
	       (i = atomic_fetch_add(&b->next, 1)) < b->n) {
		off_t at = (off_t)(i * BLOCK_BYTES);

		if (b->writes)
			stamp_block(block, i);
		ssize_t n = b->writes ? pwrite(b->fd, block, BLOCK_BYTES, at)
				      : pread(b->fd, block, BLOCK_BYTES, at);
		if (n != (ssize_t)BLOCK_BYTES)
			return n < 0 ? -errno : -EIO;
		atomic_fetch_add(&b->done, 1);
	}
	return 0;
}

static void *map_touched(size_t bytes)
{
	char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
		uint64_t z = i * 0x9e3779b97f4a7c15u; /* nothing that a disk could shrink */

		*(uint64_t *)(p + i) = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	}
	return p;
}

/* @arg: memory, of which each thread has two pieces. */
static int copy_memory(void *arg, size_t item, const struct worker *me, struct brumate_error *err)
{
	char *from = (char *)arg + 2 * item * MEMORY_BYTES;

	memcpy(from + MEMORY_BYTES, from, MEMORY_BYTES);
	return 0;
}

/* Copies host memory with bench_threads() threads. */
static int bench_measure_memcpy(struct bench_limits *limits, struct brumate_error *err)
{
	unsigned n = bench_threads();
	char *memory = map_touched(2 * n * MEMORY_BYTES);
	const struct workers_items copies = {
		.n = n, .threads = n, .fn = copy_memory, .arg = memory
	};
	double best = 0;

	if (!memory)
		return brumate_fail(err, ENOMEM, "memory to measure copies with: %m");
	for (int i = 0; i < ROUNDS && !interrupt_seen(); i++) {
		uint64_t start_ns = clock_now_ns();
		int r = workers_run(&copies, NULL);
		double seconds = clock_since_s(start_ns);

		if (r == 0 && (!best || seconds < best))
			best = seconds;
	}
	munmap(memory, 2 * n * MEMORY_BYTES);
	limits->threads = n;
	if (best > 0)
		limits->memcpy_all = (double)(n * MEMORY_BYTES) / best;
	return 0;
}

static int open_file(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_DIRECT, 0600);

	if (fd < 0 && errno == EINVAL)
		fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	return fd < 0 ? -errno : fd;
}

/* Moves all blocks, or as many as there is time for: bytes per second in *ret, and the blocks that were moved.
 * Writes count when they are on the disk. */
static int measure_way(double *ret, uint64_t *ret_blocks, struct blocks *b)
{
	const struct workers_items moves = {
		.n = DEPTH, .threads = DEPTH, .fn = move_blocks, .arg = b
	};
	uint64_t start_ns = clock_now_ns();

	b->deadline_ns = start_ns + DISK_TIME_NS;
	int r = workers_run(&moves, NULL);
	if (r < 0)
		return r;
	if (b->writes && fdatasync(b->fd) < 0)
		return -errno;
	*ret_blocks = atomic_load(&b->done);
	*ret = (double)(*ret_blocks * BLOCK_BYTES) / clock_since_s(start_ns);
	return 0;
}

static int measure_file(struct bench_limits *limits, int fd, uint64_t n)
{
	char *memory = map_touched(DEPTH * BLOCK_BYTES);
	struct blocks out = { .fd = fd, .memory = memory, .writes = true, .n = n };
	struct blocks in = { .fd = fd, .memory = memory };
	uint64_t read;

	if (!memory)
		return -ENOMEM;
	/* As a store does it; where it cannot be done, the file grows as it is written. */
	(void)!fallocate(fd, 0, 0, (off_t)(n * BLOCK_BYTES));
	int r = measure_way(&limits->disk_write, &in.n, &out);
	if (r == 0 && !interrupt_seen()) {
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* of use without O_DIRECT only */
		r = measure_way(&limits->disk_read, &read, &in);
	}
	munmap(memory, DEPTH * BLOCK_BYTES);
	return r;
}

/* Writes and reads a large file of @dir past the page cache, 16 blocks of 2 MiB at a time, until it is on the
 * disk; of a file system without O_DIRECT, through the cache. A few seconds each way. */
static int bench_measure_disk(struct bench_limits *limits, const char *dir,
			      struct brumate_error *err)
{
	auto_free char *path = path_format("%s/.bench.%d", dir, (int)getpid());
	struct statvfs fs;

	if (!path)
		return brumate_fail(err, ENOMEM, "%m");
	auto_close int fd = open_file(path);
	if (fd < 0)
		return brumate_fail(err, -fd, "%s: %m", path);
	unlink(path);
	if (fstatvfs(fd, &fs) < 0)
		return brumate_fail(err, errno, "%s: %m", dir);
	uint64_t room = fs.f_blocks ? fs.f_bavail * fs.f_frsize / 2 : FILE_BYTES_MAX;
	uint64_t n = (room < FILE_BYTES_MAX ? room : FILE_BYTES_MAX) / BLOCK_BYTES;
	int r = n ? measure_file(limits, fd, n) : -ENOSPC;
	return r < 0 ? brumate_fail(err, -r, "%s: could not be written and read: %m", dir) : 0;
}

/* ---- the synthetic job ---- */

enum { ANSWER_TIMEOUT_MS = 300000, TAIL_BYTES = 4096 };

/* The checkpoint that its record names, once no operation is under way. Owned; NULL: there is none. */
static char *bench_job_checkpoint(const struct bench_job *j)
{
	auto_json json_t *p = json_pack("{s:s,s:b}", "job", j->id, "settled", 1), *reply = NULL;
	const char *id;

	if (!p || client_ask("Status", p, &reply, NULL) < 0)
		return NULL;
	id = json_string_value(json_object_get(json_object_get(reply, "job"), "checkpoint"));
	return id ? strdup(id) : NULL;
}

static int remove_bench_checkpoint(const char *id, const char *dir, struct brumate_error *err)
{
	auto_json json_t *p = json_pack("{s:s,s:s*}", "checkpoint", id, "dir", dir);

	return p ? client_ask("Remove", p, NULL, err) : brumate_fail(err, ENOMEM, "%m");
}

static void end_bench_job(const struct bench_job *j)
{
	auto_free char *checkpoint = bench_job_checkpoint(j);
	auto_json json_t *kill = json_pack("{s:s,s:i}", "job", j->id, "signal", SIGKILL);
	auto_json json_t *job = json_pack("{s:s}", "job", j->id);

	if (client_ask("Kill", kill, NULL, NULL) == 0)
		client_ask("Wait", job, NULL, NULL);
	client_ask("Remove", job, NULL, NULL);
	if (checkpoint)
		remove_bench_checkpoint(checkpoint, j->dir, NULL);
}

/* What cannot be done here the job's shim does when
 * this process is gone. */
void bench_job_fini(struct bench_job *j)
{
	if (j->id[0])
		end_bench_job(j);
	cleanup_close(&j->log_fd);
	cleanup_close(&j->inotify_fd);
	cleanup_close(&j->pid_fd);
	*j = BENCH_JOB_EMPTY;
}

/* Each job has another seed, so that the data which one path has stored does not help the other. */
static uint64_t fresh_seed(void)
{
	uint64_t seed;

	return getrandom(&seed, sizeof(seed), GRND_NONBLOCK) == sizeof(seed) ? seed
									     : clock_now_ns();
}

static json_t *pack_bench_job(const struct bench_options *o, const char *program, const char *path,
			      bool link)
{
	char mib[32], zero[16], change[16], seed[32];

	snprintf(mib, sizeof(mib), "%llu", (unsigned long long)(o->size_bytes >> 20));
	snprintf(zero, sizeof(zero), "%u", o->zero);
	snprintf(change, sizeof(change), "%u", o->change);
	snprintf(seed, sizeof(seed), "%llu", (unsigned long long)fresh_seed());
	json_t *argv = json_pack("[s,s,s,s,s,s,s,s,s,s,s]", program, "--mib", mib, "--piece-kib",
				 o->pieces_kib, "--zero", zero, "--change", change, "--seed", seed);
	if (argv && link)
		json_array_append_new(argv, json_string("--link"));
	if (argv && o->port) {
		json_array_append_new(argv, json_string("--port"));
		json_array_append_new(argv, json_sprintf("%u", o->port));
	}
	return json_pack("{s:o,s:o,s:s,s:s,s:s*,s:b,s:o*}", "argv", argv, "env", pack_environment(),
			 "cwd", "/", "data_path", path, "gpu", o->gpu, "with_caller", 1, "labels",
			 o->port ? json_pack("{s:s}", JOB_WAKE_LABEL, JOB_WAKE_LABEL_YES) : NULL);
}

static int watch_log(struct bench_job *j, json_t *job, struct brumate_error *err)
{
	const char *log = json_string_value(json_object_get(job, "log"));

	j->log_fd = log ? open(log, O_RDONLY | O_CLOEXEC) : -1;
	j->inotify_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	if (j->log_fd < 0 || j->inotify_fd < 0 ||
	    inotify_add_watch(j->inotify_fd, log, IN_MODIFY) < 0)
		return brumate_fail(err, errno, "log %s: %m", log ? log : "of the job");
	return 0;
}

/* Its processes as they are now, so that nobody waits for what a dead one says. */
static void watch_end(struct bench_job *j)
{
	auto_json json_t *p = json_pack("{s:s}", "job", j->id), *reply = NULL;

	cleanup_close(&j->pid_fd);
	if (!p || client_ask("Status", p, &reply, NULL) < 0)
		return;
	json_int_t pid = json_integer_value(json_object_get(json_object_get(reply, "job"), "pid"));
	if (pid > 0)
		j->pid_fd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
}

/* Its device memory does not fit. */
static int fail_room(uint64_t want, uint64_t free_bytes, uint64_t total, struct brumate_error *err)
{
	char wanted[WORD_BYTES], left[WORD_BYTES], all[WORD_BYTES];

	format_bytes(wanted, want);
	format_bytes(left, free_bytes);
	format_bytes(all, total);
	brumate_fail(err, ENOSPC, "not enough room on the GPU: %s needed, %s of %s free", wanted,
		     left, all);
	brumate_hint(err, "give a smaller --size, or end what else uses the GPU");
	return -ENOSPC;
}

static int fail_driver(const char *why, struct brumate_error *err)
{
	brumate_fail(err, ENODEV, "no GPU driver: %s", why);
	brumate_error_exit(err, EXIT_UNSUPPORTED);
	brumate_hint(err, "`brumate doctor` says what is missing; `--simulated` measures the "
			  "simulated GPU");
	return -ENODEV;
}

int bench_job_error(const char *text, struct brumate_error *err)
{
	static const char driver[] = "load the driver: ";
	unsigned long long want, left, total;

	if (sscanf(text, "room %llu %llu %llu", &want, &left, &total) == 3)
		return fail_room(want, left, total, err);
	if (!strncmp(text, driver, strlen(driver)))
		return fail_driver(text + strlen(driver), err);

	/* A call of the driver that failed: its place in the source, the call, the error. */
	const char *line = strstr(text, ".c:"), *call = line ? strstr(line + 1, ": ") : NULL;
	const char *open = call ? strchr(call, '(') : NULL,
		   *end = open ? strstr(open, "): ") : NULL;
	if (!end)
		return brumate_fail(err, EIO, "the synthetic job failed: %s", text);
	return brumate_fail(err, EIO, "the synthetic job failed: %.*s: %s", (int)(open - call - 2),
			    call + 2, end + 3);
}

/* Takes lines up to one that starts with @word. 1: it came; 0: not yet. */
static int take_line(struct bench_job *j, const char *word, char *ret, size_t ret_bytes,
		     struct brumate_error *err)
{
	char buf[TAIL_BYTES + 1];

	for (;;) {
		ssize_t n = pread(j->log_fd, buf, TAIL_BYTES, j->offset);
		if (n < 0)
			return brumate_fail(err, errno, "log of job %s: %m", j->id);
		buf[n] = '\0';
		char *end = strchr(buf, '\n');
		if (!end)
			return 0;
		*end = '\0';
		j->offset += end - buf + 1;
		if (!strncmp(buf, "ERR ", 4))
			return bench_job_error(buf + 4, err);
		if (strncmp(buf, word, strlen(word)) != 0)
			continue;
		snprintf(ret, ret_bytes, "%s", buf + strlen(word));
		return 1;
	}
}

/* Waits until something is written, a signal comes (-ECANCELED), or the job has ended: -ESRCH. */
static int wait_line(const struct bench_job *j, uint64_t deadline_ns)
{
	struct pollfd fds[] = { { .fd = j->inotify_fd, .events = POLLIN },
				{ .fd = interrupt_watch(true), .events = POLLIN },
				{ .fd = j->pid_fd, .events = POLLIN } };
	int n = poll(fds, 3, deadline_left_ms(deadline_ns));

	if (n < 0)
		return errno == EINTR ? 0 : -errno;
	if (fds[1].revents)
		return -ECANCELED;
	if (fds[2].revents)
		return -ESRCH;
	return n ? 0 : -ETIMEDOUT;
}

int bench_call(const char *method, json_t *parameters, json_t **ret, struct brumate_error *err)
{
	return client_call(method, parameters, NULL, NULL, interrupt_watch(true), ret, err);
}

/* What it wrote before it ended counts. */
static int take_last_line(struct bench_job *j, const char *word, char *ret, size_t ret_bytes,
			  struct brumate_error *err)
{
	int r = take_line(j, word, ret, ret_bytes, err);

	return r ? r
		 : brumate_fail(err, EIO, "the synthetic job ended before it said \"%s\"", word);
}

/* Waits for its next line that starts with @word: the rest of it, NUL-terminated. -ETIMEDOUT, or -EIO where it
 * said that something is wrong. */
static int bench_job_line(struct bench_job *j, const char *word, char *ret, size_t ret_bytes,
			  struct brumate_error *err)
{
	uint64_t deadline_ns = deadline_in_ms(ANSWER_TIMEOUT_MS);
	char events[4096];
	int r;

	while ((r = take_line(j, word, ret, ret_bytes, err)) == 0) {
		r = wait_line(j, deadline_ns);
		if (r == -ECANCELED)
			return brumate_fail(err, ECANCELED, "cancelled");
		if (r == -ESRCH)
			return take_last_line(j, word, ret, ret_bytes, err);
		if (r < 0)
			return brumate_fail(err, -r, "job %s did not say \"%s\": %m", j->id, word);
		if (read(j->inotify_fd, events, sizeof(events)) < 0 && errno != EAGAIN)
			return brumate_fail(err, errno, "inotify: %m");
	}
	return r < 0 ? r : 0;
}

/* Sends it a signal and waits for the line that answers it. */
static int bench_job_ask(struct bench_job *j, int signal, const char *word, char *ret,
			 size_t ret_bytes, struct brumate_error *err)
{
	auto_json json_t *p = json_pack("{s:s,s:i}", "job", j->id, "signal", signal);
	auto_json json_t *reply = NULL;
	int r = p ? client_ask("Kill", p, &reply, err) : brumate_fail(err, ENOMEM, "%m");

	return r < 0 ? r : bench_job_line(j, word, ret, ret_bytes, err);
}

int bench_job_start(struct bench_job *ret, const struct bench_options *o, const char *path,
		    struct bench_limits *limits, struct brumate_error *err)
{
	auto_(bench_job_fini) struct bench_job j = BENCH_JOB_EMPTY;
	auto_free char *program = path_find_helper("bench-job");
	auto_json json_t *reply = NULL;
	char line[128];

	if (!program)
		return brumate_fail(err, ENOENT, "bench-job is not installed");
	auto_json json_t *run = pack_bench_job(o, program, path, limits);
	int r = run ? client_ask("Run", run, &reply, err) : brumate_fail(err, ENOMEM, "%m");
	if (r < 0)
		return r;
	json_t *job = json_object_get(reply, "job");
	const char *id = json_string_value(json_object_get(job, "id"));
	snprintf(j.id, sizeof(j.id), "%s", id ? id : "");
	j.dir = o->dir;
	r = watch_log(&j, job, err);
	watch_end(&j);
	if (r == 0 && limits)
		r = bench_job_line(&j, "link ", line, sizeof(line), err);
	if (r == 0 && limits && sscanf(line, "d2h %lf h2d %lf", &limits->d2h, &limits->h2d) != 2)
		r = brumate_fail(err, EPROTO, "bench-job: %s", line);
	if (r == 0)
		r = bench_job_line(&j, "ready ", line, sizeof(line), err);
	if (r < 0)
		return r;
	*ret = take_struct(j, BENCH_JOB_EMPTY);
	return 0;
}

/* ---- one job, taken through the operations by one data path ---- */

static void bench_fini(struct bench *b)
{
	for (size_t i = 0; i < b->n_results; i++)
		json_decref(b->results[i].summary);
	free(b->results);
	json_decref(b->advice);
	*b = (struct bench){ 0 };
}
DEFINE_AUTO_FINI(struct bench, bench_fini)

static struct bench_result *add_result(struct bench *b)
{
	struct bench_result *grown = array_room(b->results, b->n_results, sizeof(*grown));

	if (!grown)
		return NULL;
	b->results = grown;
	grown[b->n_results] = (struct bench_result){ 0 };
	return &grown[b->n_results++];
}

static unsigned bench_steps(const struct bench_options *o)
{
	unsigned paths = 0, operations = o->dir ? 5 : 2;

	for (const char *const *path = o->paths; *path; path++)
		paths++;
	return 1 + (o->dir != NULL) + paths * (1 + operations * o->rounds);
}

/* The line on the terminal. @path, @round: NULL and 0 where it is about neither. */
static void show_step(struct bench *b, const char *what, const char *path, unsigned round)
{
	char phase[64], in_round[24] = "";

	if (round)
		snprintf(in_round, sizeof(in_round), ", round %u", round);
	snprintf(phase, sizeof(phase), "%s%s%s%s", what, path ? " by " : "", path ? path : "",
		 in_round);
	auto_json json_t *shown =
		json_pack("{s:{s:i,s:i,s:s,s:f}}", "progress", "step", (int)++b->step, "steps",
			  (int)bench_steps(&b->options), "phase", phase, "seconds",
			  b->start_ns ? clock_since_s(b->start_ns) : 0.0);

	b->start_ns = b->start_ns ? b->start_ns : clock_now_ns();
	b->line.verb = "bench";
	if (shown)
		progress_show(&b->line, shown);
}

static json_t *pack_operation(const struct bench *b, const char *operation, const char *what,
			      bool goes_on)
{
	if (!strcmp(operation, "Restore"))
		return json_pack("{s:s,s:s*}", "checkpoint", what, "dir", b->options.dir);
	if (!strcmp(operation, "Checkpoint"))
		return json_pack("{s:s,s:s*,s:b}", "job", what, "dir", b->options.dir,
				 "leave_running", goes_on);
	if (!strcmp(operation, "Suspend"))
		return json_pack("{s:s}", "job", what);
	return json_pack("{s:s,s:b}", "job", what, "keep_copy", b->options.keep_copy);
}

/* @ret is valid until the next result is added. */
static int run_operation(struct bench *b, const char *method, const char *name, const char *path,
			 unsigned round, const char *what, struct bench_result **ret,
			 struct brumate_error *err)
{
	const bool goes_on = !strcmp(name, BENCH_LEAVE_RUNNING);
	auto_json json_t *p = pack_operation(b, method, what, goes_on), *reply = NULL;

	show_step(b, name, path, round);
	uint64_t start_ns = clock_now_ns(), start_wall_ns = clock_wall_ns();
	int r = p ? bench_call(method, p, &reply, err) : brumate_fail(err, ENOMEM, "%m");
	double seconds = clock_since_s(start_ns);

	if (r < 0)
		return brumate_wrap(err, r, "%s by %s", name, path);
	struct bench_result *result = add_result(b);
	if (!result)
		return brumate_fail(err, ENOMEM, "%m");
	*result =
		(struct bench_result){ .operation = name,
				       .path = path,
				       .round = round,
				       .bytes = b->options.size_bytes,
				       .start_ns = start_ns,
				       .wall_ns = start_wall_ns,
				       .seconds = seconds,
				       .summary = json_incref(json_object_get(reply, "summary")) };
	*ret = result;
	return 0;
}

/* For a job that was brought back, takes the gap around the moment when that began; for one that was saved and left
 * running, the longest gap during the checkpoint. A busy machine causes other gaps. */
static int note_gap(struct bench_result *result, const char *gap, struct brumate_error *err)
{
	unsigned long long from, to;

	if (sscanf(gap, "%llu %llu", &from, &to) != 2)
		return brumate_fail(err, EPROTO, "bench-job: gap %s", gap);
	const double at = ((double)from - (double)result->wall_ns) / 1e9,
		     end = ((double)to - (double)result->wall_ns) / 1e9;
	const bool left_running = bench_left_running(result);
	if (left_running ? at < 0 || at > result->seconds || end - at < result->standing
			 : at > 0 || end < 0)
		return 0;
	result->stands_at = at;
	result->standing = end - at;
	result->until_beat = left_running ? 0 : end;
	return 0;
}

/* Has the job check its data. It tells of a gap before it answers; of one that is too short, not at all. */
static int see_check(struct bench_job *j, struct bench_result *result, char *ret, size_t ret_bytes,
		     struct brumate_error *err)
{
	static const char gap[] = "gap ", check[] = "check ";
	int r = bench_job_ask(j, SIGUSR1, "", ret, ret_bytes, err);

	while (r == 0 && strncmp(ret, check, strlen(check)) != 0) {
		if (!strncmp(ret, gap, strlen(gap)))
			r = note_gap(result, ret + strlen(gap), err);
		if (r == 0)
			r = bench_job_line(j, "", ret, ret_bytes, err);
	}
	return r;
}

/* Waits until the job runs, and has it check its data. */
static int see_it_run(struct bench *b, struct bench_job *j, struct bench_result *result,
		      struct brumate_error *err)
{
	char line[128];

	watch_end(j);
	int r = see_check(j, result, line, sizeof(line), err);
	if (r < 0)
		return r;
	if (strcmp(line, "check OK") != 0)
		return brumate_fail(err, EBADMSG, "the data is wrong after %s by %s",
				    result->operation, result->path);
	if (b->options.change)
		r = bench_job_ask(j, SIGUSR2, "changed ", line, sizeof(line), err);
	return r;
}

static int suspend_and_resume(struct bench *b, struct bench_job *j, const char *path,
			      unsigned round, struct brumate_error *err)
{
	struct bench_result *result;
	int r = run_operation(b, "Suspend", "suspend", path, round, j->id, &result, err);

	if (r == 0)
		r = run_operation(b, "Resume", "resume", path, round, j->id, &result, err);
	return r < 0 ? r : see_it_run(b, j, result, err);
}

static void get_saved(char *ret, size_t room, const struct bench_result *result)
{
	const char *saved = json_string_value(json_object_get(result->summary, "checkpoint"));

	snprintf(ret, room, "%s", saved ? saved : "");
}

static int checkpoint_and_restore(struct bench *b, struct bench_job *j, const char *path,
				  unsigned round, struct brumate_error *err)
{
	struct bench_result *result;
	char id[128];
	int r = run_operation(b, "Checkpoint", "checkpoint", path, round, j->id, &result, err);

	if (r < 0)
		return r;
	get_saved(id, sizeof(id), result);
	r = run_operation(b, "Restore", "restore", path, round, id, &result, err);
	if (r == 0)
		r = see_it_run(b, j, result, err);
	if (r < 0)
		return r; /* the checkpoint goes with the job */
	return remove_bench_checkpoint(id, b->options.dir, err);
}

static int checkpoint_and_go_on(struct bench *b, struct bench_job *j, const char *path,
				unsigned round, struct brumate_error *err)
{
	struct bench_result *result;
	char id[128];
	int r = run_operation(b, "Checkpoint", BENCH_LEAVE_RUNNING, path, round, j->id, &result,
			      err);

	if (r < 0)
		return r;
	get_saved(id, sizeof(id), result);
	r = see_it_run(b, j, result, err);
	return r < 0 ? r : remove_bench_checkpoint(id, b->options.dir, err);
}

/* Takes one job through all rounds by @path, adding results; its data is checked after each. */
static int bench_run_path(struct bench *b, const char *path, struct brumate_error *err)
{
	auto_(bench_job_fini) struct bench_job j = BENCH_JOB_EMPTY;
	bool first = !b->limits.d2h;

	show_step(b, "start of the job", path, 0);
	int r = bench_job_start(&j, &b->options, path, first ? &b->limits : NULL, err);

	for (unsigned round = 1; r == 0 && round <= b->options.rounds; round++)
		r = suspend_and_resume(b, &j, path, round, err);
	const unsigned saves = b->options.dir ? b->options.rounds : 0;
	for (unsigned round = 1; r == 0 && round <= saves; round++)
		r = checkpoint_and_restore(b, &j, path, round, err);
	for (unsigned round = 1; r == 0 && round <= saves; round++)
		r = checkpoint_and_go_on(b, &j, path, round, err);
	return r;
}

/* ---- the command ---- */

enum { ROUNDS_DEFAULT = 2, ROUNDS_MAX = 100, PIECE_KIB_MIN = 1, PIECE_KIB_DEFAULT = 64 << 10 };

#define SIZE_DEFAULT   "1G"
#define SIZE_MAX_BYTES (1ull << 42)

static const char *const both_paths[] = { "broker", "driver", NULL };
static const char *const broker_only[] = { "broker", NULL };
static const char *const driver_only[] = { "driver", NULL };

static int get_percent(unsigned *ret, const char *what, const char *text, unsigned max,
		       struct brumate_error *err)
{
	char *end;

	if (!text)
		return 0;
	unsigned long n = strtoul(text, &end, 10);
	if (end == text || *end || n > max)
		return brumate_fail(err, EINVAL, "--%s %s: expected 0 to %u (percent)", what, text,
				    max);
	*ret = (unsigned)n;
	return 0;
}

/* "64M-1G" as bench-job takes it, in KiB. */
static int get_pieces(char *ret, size_t ret_bytes, const char *text, struct brumate_error *err)
{
	auto_free char *copy = strdup(text);
	char *dash = copy ? strchr(copy, '-') : NULL;
	uint64_t from, to;

	if (!copy)
		return brumate_fail(err, ENOMEM, "%m");
	if (dash)
		*dash++ = '\0';
	if (conf_size_bytes(&from, copy) < 0 || conf_size_bytes(&to, dash ? dash : copy) < 0 ||
	    from >> 10 < PIECE_KIB_MIN || to < from)
		return brumate_fail(err, EINVAL,
				    "--pieces %s: expected a size or MIN-MAX, as in 64M-1G", text);
	snprintf(ret, ret_bytes, "%llu-%llu", (unsigned long long)(from >> 10),
		 (unsigned long long)(to >> 10));
	return 0;
}

/* What of the job's memory is in pieces; bench-job takes whole MiB. */
static uint64_t random_kib(const struct bench_options *o)
{
	return (o->size_bytes >> 20 << 10) * (100 - o->zero) / 100;
}

/* Each size of piece, doubling from the smallest to the largest, has an even share of what is not zero. */
static int check_pieces(const struct bench_options *o, struct brumate_error *err)
{
	char *dash;
	uint64_t from = strtoull(o->pieces_kib, &dash, 10), to = strtoull(dash + 1, NULL, 10);
	uint64_t kib = random_kib(o), n = 1;
	char size[WORD_BYTES], least[WORD_BYTES];

	for (uint64_t k = from; k < to; k *= 2)
		n++;
	if (kib / n >= from)
		return 0;
	format_bytes(size, kib << 10);
	format_bytes(least, (n * from) << 10);
	brumate_fail(err, EINVAL, "%s of data have no room for a piece of each size: %s are needed",
		     size, least);
	brumate_hint(err, "give a larger --size or smaller --pieces");
	return -EINVAL;
}

/* "--pieces", or 64 MiB, or less of a job that has less. */
static int choose_pieces(struct bench_options *o, const char *given, char *ret, size_t ret_bytes,
			 struct brumate_error *err)
{
	uint64_t kib = random_kib(o);

	o->pieces_kib = ret;
	if (!given) {
		kib = kib < PIECE_KIB_DEFAULT ? kib : PIECE_KIB_DEFAULT;
		snprintf(ret, ret_bytes, "%llu-%llu", (unsigned long long)kib,
			 (unsigned long long)kib);
		return 0;
	}
	int r = get_pieces(ret, ret_bytes, given, err);
	return r < 0 ? r : check_pieces(o, err);
}

static int get_bench_options(struct bench_options *o, const struct invocation *in, char *pieces,
			     size_t pieces_bytes, struct brumate_error *err)
{
	const char *size = in->values[OPT_SIZE] ? in->values[OPT_SIZE] : SIZE_DEFAULT;
	const char *path = in->values[OPT_DATA_PATH];
	int64_t rounds = ROUNDS_DEFAULT;
	int r = 0;

	if (conf_size_bytes(&o->size_bytes, size) < 0 || o->size_bytes < 1 << 20 ||
	    o->size_bytes > SIZE_MAX_BYTES)
		return brumate_fail(err, EINVAL,
				    "--size: \"%s\" is not a size of 1M to 4T, such as 512M or 32G",
				    size);
	if (in->values[OPT_ROUNDS])
		r = parse_count(&rounds, "--rounds", in->values[OPT_ROUNDS], err);
	if (r == 0)
		r = get_percent(&o->zero, "zero", in->values[OPT_ZERO], 99, err);
	if (r == 0)
		r = get_percent(&o->change, "change", in->values[OPT_CHANGE], 100, err);
	if (r == 0)
		r = choose_pieces(o, in->values[OPT_PIECES], pieces, pieces_bytes, err);
	if (r < 0)
		return r;
	o->keep_copy = in->values[OPT_KEEP_COPY];
	o->rounds = rounds > ROUNDS_MAX ? ROUNDS_MAX : (unsigned)rounds;
	o->gpu = in->values[OPT_SIMULATED] ? "simulated" : getenv("BRUMATE_GPU");
	if (o->gpu && strcmp(o->gpu, "simulated") != 0)
		o->gpu = NULL;
	o->paths = both_paths;
	if (path && strcmp(path, "both") != 0)
		o->paths = strcmp(path, "driver") ? broker_only : driver_only;
	return 0;
}

/* Where checkpoints go; NULL: none are to be made. */
static int get_bench_dir(char **ret, const struct invocation *in, struct brumate_error *err)
{
	const char *given = in->values[OPT_DIR];

	if (in->values[OPT_NO_CHECKPOINT])
		return given ? brumate_fail(err, EINVAL,
					    "bench: --no-checkpoint cannot be combined with --dir")
			     : 0;
	auto_json json_t *p = json_object();
	int r = add_path(p, "dir", given, err);

	if (r == 0)
		r = access_store_to_write(ret, p, err);
	if (r < 0)
		return r;
	r = mkdir_parents(*ret, 0700);
	return r < 0 ? brumate_fail(err, -r, "%s: %m", *ret) : 0;
}

/* In the default place nobody made sure of room for a checkpoint: then none is made, and that is said. */
static void leave_out_checkpoints(struct bench_options *o)
{
	char left[WORD_BYTES];
	struct statvfs fs;

	if (statvfs(o->dir, &fs) < 0 || !fs.f_blocks ||
	    fs.f_bavail * fs.f_frsize / 2 >= o->size_bytes)
		return;
	format_bytes(left, fs.f_bavail * fs.f_frsize);
	print_styled(stderr, STYLE_YELLOW, "note: ");
	fprintf(stderr, "no checkpoints are measured: %s has %s free (--dir names another place)\n",
		o->dir, left);
	o->dir = NULL;
}

/* A file that is to be written at the end is tried first: nobody wants to hear then that it cannot be. */
static int try_file(const char *path, struct brumate_error *err)
{
	auto_close int fd = path ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666) : -1;

	return path && fd < 0 ? brumate_fail(err, errno, "%s: %m", path) : 0;
}

/* What an earlier one left that was killed together with the shim of its job. */
static void sweep_earlier(const struct bench *b)
{
	auto_json json_t *p = json_pack("{s:s*}", "dir", b->options.dir);

	if (p)
		client_ask("Sweep", p, NULL, NULL);
}

static int bench_measure(struct bench *b, struct brumate_error *err)
{
	show_step(b, "memory of this machine", NULL, 0);
	int r = bench_measure_memcpy(&b->limits, err);

	if (r == 0 && b->options.dir) {
		show_step(b, "disk", NULL, 0);
		r = bench_measure_disk(&b->limits, b->options.dir, err);
	}
	return r == 0 && interrupt_seen() ? brumate_fail(err, ECANCELED, "cancelled") : r;
}

/* NULL: nobody can tell. */
static json_t *ask_advice(const struct bench *b)
{
	auto_json json_t *p = json_pack("{s:s*}", "gpu", b->options.gpu), *reply = NULL;

	if (p && client_ask("Doctor", p, &reply, NULL) < 0)
		reply = NULL;
	return bench_advise(b, reply);
}

static int run_bench(struct bench *b, struct brumate_error *err)
{
	if (interrupt_watch(true) < 0)
		return brumate_fail(err, errno, "pipe: %m");
	sweep_earlier(b);
	int r = bench_measure(b, err);
	for (const char *const *path = b->options.paths; r == 0 && *path; path++)
		r = bench_run_path(b, *path, err);
	if (r == 0)
		b->advice = ask_advice(b);
	return r;
}

/* What was measured, in every form asked for; of an interrupted benchmark the rounds that it did. */
static int tell_results(const struct bench *b, const struct invocation *in,
			struct brumate_error *err)
{
	int r = 0;

	if (in->values[OPT_TRACE])
		r = bench_write_trace(b, in->values[OPT_TRACE], err);
	if (r < 0)
		return r;
	if (!wants_json(in))
		return bench_print(b, stdout, err);
	auto_json json_t *o = bench_to_json(b);
	return o ? print_json(o, err) : brumate_fail(err, ENOMEM, "%m");
}

static int end_interrupted(const struct bench *b, const struct invocation *in,
			   struct brumate_error *err)
{
	if (b->n_results && !wants_json(in))
		tell_results(b, in, NULL);
	return brumate_fail(err, ECANCELED, "bench: interrupted; nothing of it is left");
}

static int run_serve(struct bench *b, const struct invocation *in, struct brumate_error *err)
{
	static const int others[] = { OPT_DATA_PATH, OPT_TRACE, OPT_KEEP_COPY, OPT_CHANGE };

	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		if (in->values[others[i]])
			return brumate_fail(err, EINVAL,
					    "bench: --serve cannot be combined with --data-path, "
					    "--trace, --keep-copy and --change");
	if (interrupt_watch(true) < 0)
		return brumate_fail(err, errno, "pipe: %m");
	sweep_earlier(b);
	int r = bench_serve(b, wants_json(in), err);
	return r < 0 && interrupt_seen()
		       ? brumate_fail(err, ECANCELED, "bench: interrupted; nothing of it is left")
		       : r;
}

int verb_bench(const struct invocation *in, struct brumate_error *err)
{
	auto_(bench_fini) struct bench b = { 0 };
	auto_free char *dir = NULL;
	char pieces[64];
	int r = get_bench_options(&b.options, in, pieces, sizeof(pieces), err);

	if (r == 0)
		r = try_file(in->values[OPT_TRACE], err);
	if (r == 0)
		r = get_bench_dir(&dir, in, err);
	if (r < 0)
		return r;
	b.options.dir = dir;
	if (dir && !in->values[OPT_DIR])
		leave_out_checkpoints(&b.options);
	if (in->values[OPT_SERVE])
		return run_serve(&b, in, err);
	r = run_bench(&b, err);
	progress_clear(&b.line);
	if (r < 0 && interrupt_seen())
		return end_interrupted(&b, in, err);
	return r < 0 ? r : tell_results(&b, in, err);
}

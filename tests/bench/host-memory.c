// SPDX-License-Identifier: MIT
/*
 * How fast the memory of a process goes to disk and comes back, in one run on the same process: by CRIU
 * alone; beside CRIU through a copy, as of a job that goes on; and beside CRIU in place, as of a job that
 * ends. Digests, sync and commit are part of the last, and of the second's commit.
 *
 *	host-memory DIR [MIB [ROUNDS [small]]]
 *
 * DIR is on the file system that is measured. 1024 MiB, 3 rounds; small: no huge pages anywhere. Prints
 * lines for people, and one of JSON a round. The memory is looked at after each restore.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "check.h"
#include "cpumem/cpu-memory.h"
#include "cpumem/image.h"
#include "criu-plugin/hidden.h"
#include "criu/criu.h"
#include "dump.h"
#include "store/store.h"
#include "chunks/chunks.h"

struct bench {
	struct criu_program program;
	char *plugin_dir;
	const char *dir;
	uint64_t bytes;
	int status_fd; /* the process answers a byte with a byte, once its memory was looked at */
	int ask_fd;
	int work_fd;
	struct proc_id root;
};

/* One way to do it, and its times in seconds. */
struct way {
	const char *name;
	bool beside;
	bool in_place; /* committed while frozen, without a copy */
	double freeze, choose, copy, dump, commit, fill, restore;
	double huge;		      /* of the restored memory, 1: all */
	double dump_cpu, restore_cpu; /* of all that took part */
};

static struct brumate_error error;

static void must(int r)
{
	if (r >= 0)
		return;
	fprintf(stderr, "%s (%s)\n", error.text, error.hint);
	exit(1);
}

/* Seconds of processors that this program and its ended children have used, and a living one. */
static double cpu_seconds(pid_t living)
{
	double sum = 0;
	char path[64];
	auto_free char *text = NULL;
	unsigned long user, system;

	for (int who = RUSAGE_CHILDREN; who <= RUSAGE_SELF; who++) {
		struct rusage u;

		getrusage(who, &u);
		sum += (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
		       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
	}
	snprintf(path, sizeof(path), "/proc/%d/stat", living);
	if (living && file_read(AT_FDCWD, path, 4096, &text, NULL) == 0 &&
	    sscanf(strrchr(text, ')'), ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
		   &user, &system) == 2)
		sum += (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
	return sum;
}

/* The part of @bytes that the process has in huge pages. */
static double huge_part(pid_t pid, uint64_t bytes)
{
	static const char key[] = "AnonHugePages:";
	char path[64];
	auto_free char *text = NULL;

	snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", pid);
	if (file_read(AT_FDCWD, path, 4096, &text, NULL) < 0 || !strstr(text, key))
		return 0;
	return (double)(strtoull(strstr(text, key) + strlen(key), NULL, 10) << 10) / (double)bytes;
}

/* Bytes that no compressor makes smaller. */
static uint64_t word_at(uint64_t i)
{
	i = (i ^ i >> 31) * 0xbf58476d1ce4e5b9ull;
	return i ^ i >> 29;
}

static _Noreturn void child(uint64_t bytes, int in, int out)
{
	uint64_t *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char c = 'r';

	if (p == MAP_FAILED)
		_exit(2);
	for (uint64_t i = 0; i < bytes / 8; i++)
		p[i] = word_at(i);
	while (write(out, &c, 1) == 1 && read(in, &c, 1) == 1)
		for (uint64_t i = 0; i < bytes / 8; i++)
			if (p[i] != word_at(i))
				_exit(3);
	_exit(0);
}

static void wait_answer(const struct bench *b)
{
	char c;

	CHECK(read(b->status_fd, &c, 1) == 1);
}

static void start(struct bench *b, char fifos[2][128])
{
	for (int i = 0; i < 2; i++) {
		snprintf(fifos[i], 128, "%s/host-memory.%d", b->dir, i);
		unlink(fifos[i]);
		CHECK(mkfifo(fifos[i], 0600) == 0);
	}
	fflush(NULL);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		setsid();
		int null = open("/dev/null", O_RDWR);
		for (int fd = 0; fd < 3; fd++)
			dup2(null, fd);
		for (int fd = 3; fd < 64; fd++)
			close(fd);
		int in = open(fifos[0], O_RDWR), out = open(fifos[1], O_RDWR);
		child(b->bytes, in, out);
	}
	b->ask_fd = open(fifos[0], O_RDWR | O_CLOEXEC);
	b->status_fd = open(fifos[1], O_RDWR | O_CLOEXEC);
	CHECK(b->ask_fd >= 0 && b->status_fd >= 0);
	wait_answer(b);
	must(proc_identify(&b->root, pid, &error));
}

/* ---- one dump and one restore ---- */

struct run {
	struct bench *b;
	struct way *way;
	struct criu_plugin plugin;
	struct store_writer writer;
	struct chunks_writer *memory;
	struct store_image image;
	struct cpu_memory taken;
	struct cpu_memory_copy copy;
	uint64_t start_ns; /* of the dump */
};

static void add_all(struct run *run)
{
	const char *data = run->copy.bytes;

	for (size_t i = 0; i < run->taken.n; i++) {
		struct cpu_memory_region *r = &run->taken.items[i];
		struct manifest_region region = { .pid = r->inner_pid,
						  .va = r->va,
						  .len_bytes = r->len_bytes };

		if (run->way->in_place)
			must(chunks_add_from(run->memory, &region, cpu_memory_read, r, &error));
		else
			must(chunks_add_bytes(run->memory, &region, data, &error));
		data += run->way->in_place ? 0 : r->len_bytes;
	}
}

static void copy(struct run *run)
{
	CHECK(cpu_memory_copy_reserve(&run->copy, &run->taken) == 0);
	must(cpu_memory_copy_out(&run->taken, &run->copy, 0, NULL, NULL, &error));
}

static void take(struct run *run)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	uint64_t start_ns = clock_now_ns();

	CHECK(cpu_memory_table_is_heeded(run->plugin.table_fd));
	must(proc_tree_read(&tree, run->b->root, &error));
	must(cpu_memory_choose(&run->taken, &tree, NULL, 0, &error));
	run->way->choose = clock_since_s(start_ns);
	start_ns = clock_now_ns();
	must(cpu_memory_hide(run->plugin.table_fd, &run->taken, CPU_MEMORY_INNER_PIDS));
	if (run->way->in_place)
		add_all(run);
	else
		copy(run);
	run->way->copy = clock_since_s(start_ns);
}

/* What it had, by which huge pages are given. */
static void describe(struct run *run, struct manifest *m)
{
	CHECK((m->processes = calloc(1, sizeof(*m->processes))));
	m->n_processes = 1;
	m->processes[0] = (struct manifest_process){ .pid = run->b->root.pid,
						     .comm = "bench",
						     .rss_bytes = run->b->bytes };
}

static void commit(struct run *run)
{
	auto_(manifest_fini) struct manifest m = MANIFEST_EMPTY;
	uint64_t start_ns = clock_now_ns();
	struct chunks_sums sums;

	describe(run, &m);
	must(chunks_end(run->memory, &m, &sums, NULL, NULL, &error));
	chunks_writer_free(run->memory);
	must(store_commit(&run->writer, &m, NULL, NULL, &error));
	run->way->commit = clock_since_s(start_ns);
}

static void fill(struct run *run)
{
	const struct progress_caller nobody = { 0 };
	struct progress progress;

	progress_init(&progress, &nobody, 0);
	must(cpu_memory_image_fill(&run->image, run->b->root, NULL, &progress, &error));
	run->way->fill = clock_since_s(progress.start_ns);
	progress_fini(&progress);
}

static int on_event(void *arg, enum criu_event event, struct proc_id root,
		    struct brumate_error *err)
{
	struct run *run = arg;

	(void)err;
	if (event == CRIU_EVENT_RESTORED)
		run->b->root = root;
	if (event == CRIU_EVENT_FROZEN)
		run->way->freeze = clock_since_s(run->start_ns);
	if (run->way->beside && event == CRIU_EVENT_FROZEN)
		take(run);
	if (run->way->in_place && event == CRIU_EVENT_DUMPED)
		commit(run);
	if (run->way->beside && event == CRIU_EVENT_RESTORED)
		fill(run);
	return 0;
}

static struct criu_options options_for(struct run *run, int dir_fd, const char *log)
{
	return (struct criu_options){
		.images_dir_fd = dir_fd,
		.work_dir_fd = run->b->work_fd,
		.log_name = log,
		.libdir = run->way->beside ? run->b->plugin_dir : NULL,
		.plugin = run->way->beside ? &run->plugin : NULL,
		.on_event = on_event,
		.arg = run,
	};
}

static void new_table(struct run *run)
{
	run->plugin.table_fd = hidden_table_new();
	CHECK(run->plugin.table_fd >= 0);
}

static void dump(struct run *run, int criu_fd)
{
	struct criu_result result = { 0 };
	uint64_t start_ns = run->start_ns = clock_now_ns();
	double cpu = cpu_seconds(run->b->root.pid);

	new_table(run);
	struct criu_options o = options_for(run, criu_fd, "host-memory.log");
	o.root = run->b->root;
	must(dump_tree(&run->b->program, &o, &result, &error));
	run->way->dump = clock_since_s(start_ns);
	CHECK(waitpid(run->b->root.pid, NULL, 0) == run->b->root.pid);
	run->way->dump_cpu = cpu_seconds(0) - cpu;
	close(run->plugin.table_fd);
	if (run->way->beside && !run->way->in_place) {
		add_all(run);
		commit(run);
	}
}

static void restore(struct run *run, int criu_fd)
{
	struct criu_result result = { 0 };
	uint64_t start_ns = clock_now_ns();
	double cpu = cpu_seconds(0);

	new_table(run);
	struct criu_options o = options_for(run, criu_fd, "host-memory.log");
	must(criu_restore(&run->b->program, &o, &result, &error));
	run->way->restore = clock_since_s(start_ns);
	run->way->restore_cpu = cpu_seconds(result.root_pid) - cpu;
	close(run->plugin.table_fd);
	must(proc_identify(&run->b->root, result.root_pid, &error));
	run->way->huge = huge_part(result.root_pid, run->b->bytes);
	CHECK(write(run->b->ask_fd, "?", 1) == 1);
	wait_answer(run->b);
}

/* CRIU alone: its images, and nothing else. */
static void measure_alone(struct run *run, const char *dir)
{
	CHECK(mkdir(dir, 0700) == 0);
	auto_close int criu_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(criu_fd >= 0);
	dump(run, criu_fd);
	restore(run, criu_fd);
}

static void measure_beside(struct run *run, const char *store)
{
	const struct chunks_options options = { .no_sharing = true };

	must(store_begin(&run->writer, store, "beside", &error));
	must(store_chunks_begin(&run->memory, &run->writer, &options, &error));
	int criu_fd = store_mkdir(&run->writer, "criu", &error);
	must(criu_fd);
	dump(run, criu_fd);
	close(criu_fd);
	cpu_memory_copy_fini(&run->copy);
	store_abort(&run->writer);
	must(store_open(&run->image, store, "beside", &error));
	criu_fd = openat(run->image.dir_fd, "criu", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(criu_fd >= 0);
	restore(run, criu_fd);
	close(criu_fd);
	store_image_fini(&run->image);
}

static void measure(struct bench *b, struct way *way)
{
	char dir[256];
	struct run run = { .b = b, .way = way, .writer = STORE_WRITER_EMPTY };

	snprintf(dir, sizeof(dir), "%s/host-memory.store", b->dir);
	if (way->beside)
		measure_beside(&run, dir);
	else
		measure_alone(&run, dir);
	cpu_memory_fini(&run.taken);
	must(remove_tree(AT_FDCWD, dir));
}

static void print(const struct way *w, uint64_t bytes)
{
	double gb = (double)bytes / 1e9;

	printf("%-8s dump %6.3f s (%5.2f GB/s, cpu %5.2f s; to freeze %.3f, to choose %.3f, copy "
	       "%.3f)  "
	       "commit %6.3f s\n",
	       w->name, w->dump, gb / w->dump, w->dump_cpu, w->freeze, w->choose, w->copy,
	       w->commit);
	printf("%-8s restore %6.3f s (%5.2f GB/s, cpu %5.2f s; fill %.3f, %.0f %% huge pages)\n",
	       w->name, w->restore, gb / w->restore, w->restore_cpu, w->fill, 100 * w->huge);
}

static void print_json(const struct way *ways, size_t n)
{
	for (size_t i = 0; i < n; i++)
		printf("%s\"%s\": {\"dump\": %.3f, \"commit\": %.3f, \"restore\": %.3f, "
		       "\"fill\": %.3f, \"copy\": %.3f, \"dump_cpu\": %.2f, "
		       "\"restore_cpu\": %.2f, \"huge\": %.2f}",
		       i ? ", " : "{", ways[i].name, ways[i].dump, ways[i].commit, ways[i].restore,
		       ways[i].fill, ways[i].copy, ways[i].dump_cpu, ways[i].restore_cpu,
		       ways[i].huge);
	puts("}");
}

static void measure_all(struct bench *b, int rounds)
{
	struct way ways[] = { { .name = "criu" },
			      { .name = "copy", .beside = true },
			      { .name = "in place", .beside = true, .in_place = true } };
	enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

	for (int round = 0; round < rounds; round++) {
		for (size_t i = 0; i < WAYS; i++) {
			measure(b, &ways[i]);
			print(&ways[i], b->bytes);
		}
		for (size_t i = 1; i < WAYS; i++)
			printf("%-8s times CRIU's speed: dump %.2f  restore %.2f\n", ways[i].name,
			       ways[0].dump / ways[i].dump, ways[0].restore / ways[i].restore);
		print_json(ways, WAYS);
	}
}

int main(int argc, char **argv)
{
	struct bench b = { .dir = argc > 1 ? argv[1] : "/dev/shm",
			   .bytes = (argc > 2 ? strtoull(argv[2], NULL, 10) : 1024) << 20 };
	char fifos[2][128];

	setvbuf(stdout, NULL, _IOLBF, 0);
	must(criu_find(&b.program, &error));
	CHECK((b.plugin_dir = criu_plugin_dir()));
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	/* Inherited, and part of what CRIU saves. */
	if (argc > 4 && !strcmp(argv[4], "small"))
		CHECK(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0);
	b.work_fd = open(b.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(b.work_fd >= 0);
	start(&b, fifos);
	measure_all(&b, argc > 3 ? atoi(argv[3]) : 3);
	kill(b.root.pid, SIGKILL);
	unlink(fifos[0]);
	unlink(fifos[1]);
	unlinkat(b.work_fd, "host-memory.log", 0);
	free(b.plugin_dir);
	return 0;
}

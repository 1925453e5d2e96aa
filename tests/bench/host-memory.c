// SPDX-License-Identifier: MIT
/*
 * How fast the memory of a process goes to disk and comes back: by CRIU alone, and beside CRIU through
 * the store, digests included, in one run on the same process.
 *
 *	host-memory DIR [MIB]     DIR on the file system that is measured; 1024 MiB
 *
 * Prints a line a measurement and the ratios. The memory is looked at after each restore.
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
#include "process/cpumem.h"
#include "process/criu.h"
#include "store/memory.h"

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
	double copy, dump, commit, restore;
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
	struct memory_writer *memory;
	struct memory_reader *reader;
	struct store_image image;
	struct cpumem taken;
	int copy_fd;
};

static void add_all(struct run *run)
{
	uint64_t offset = 0;

	for (size_t i = 0; i < run->taken.n; i++) {
		const struct cpumem_region *r = &run->taken.items[i];
		struct manifest_region region = { .pid = r->inner_pid,
						  .va = r->va,
						  .len_bytes = r->len_bytes };

		must(memory_add(run->memory, &region, run->copy_fd, offset, &error));
		offset += r->len_bytes;
	}
}

static void take(struct run *run)
{
	struct proc_tree tree = PROC_TREE_EMPTY;
	uint64_t start_ns = clock_now_ns();

	CHECK(cpumem_table_is_heeded(run->plugin.table_fd));
	must(proc_tree_read(&tree, run->b->root, &error));
	must(cpumem_choose(&run->taken, &tree, 0, &error));
	proc_tree_fini(&tree);
	must(cpumem_hide(run->plugin.table_fd, &run->taken));
	must(cpumem_copy_out(&run->taken, run->copy_fd, 0, NULL, NULL, &error));
	run->way->copy = clock_since_s(start_ns);
}

static void fill(struct run *run)
{
	for (size_t i = 0; i < run->image.manifest.memory.n_regions; i++) {
		const struct manifest_region *r = &run->image.manifest.memory.regions[i];
		struct cpumem_target t = { r->pid, r->va, r->len_bytes };

		must(memory_load(run->reader, i, 0, cpumem_write, NULL, &t, &error));
	}
}

static int on_event(void *arg, enum criu_event event, pid_t pid, struct brumate_error *err)
{
	struct run *run = arg;

	(void)pid;
	(void)err;
	if (run->way->beside && event == CRIU_EVENT_FROZEN)
		take(run);
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
	run->plugin.table_fd = cpumem_table_new();
	CHECK(run->plugin.table_fd >= 0);
}

static void dump(struct run *run, int criu_fd)
{
	struct criu_result result = { 0 };
	uint64_t start_ns = clock_now_ns();
	double cpu = cpu_seconds(run->b->root.pid);
	struct memory_sums sums;
	struct manifest m = MANIFEST_EMPTY;

	new_table(run);
	struct criu_options o = options_for(run, criu_fd, "host-memory.log");
	o.root = run->b->root;
	must(criu_dump(&run->b->program, &o, &result, &error));
	run->way->dump = clock_since_s(start_ns);
	run->way->dump_cpu = cpu_seconds(run->b->root.pid) - cpu;
	close(run->plugin.table_fd);
	CHECK(waitpid(run->b->root.pid, NULL, 0) == run->b->root.pid);
	start_ns = clock_now_ns();
	add_all(run);
	must(memory_end(run->memory, &m, &sums, NULL, NULL, &error));
	memory_writer_free(run->memory);
	/* CRIU's own files are hashed like the rest by the commit. */
	must(store_commit(&run->writer, &m, NULL, NULL, &error));
	manifest_fini(&m);
	run->way->commit = clock_since_s(start_ns);
}

static void restore(struct run *run, const char *store, const char *id)
{
	struct criu_result result = { 0 };
	uint64_t start_ns = clock_now_ns();
	double cpu = cpu_seconds(0);

	must(store_open(&run->image, store, id, &error));
	int criu_fd = openat(run->image.dir_fd, "criu", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(criu_fd >= 0);
	if (run->way->beside)
		must(memory_open(&run->reader, &run->image, &error));
	new_table(run);
	struct criu_options o = options_for(run, criu_fd, "host-memory.log");
	must(criu_restore(&run->b->program, &o, &result, &error));
	run->way->restore = clock_since_s(start_ns);
	run->way->restore_cpu = cpu_seconds(result.root_pid) - cpu;
	close(run->plugin.table_fd);
	close(criu_fd);
	must(proc_identify(&run->b->root, result.root_pid, &error));
	memory_reader_free(run->reader);
	store_image_fini(&run->image);
	CHECK(write(run->b->ask_fd, "?", 1) == 1);
	wait_answer(run->b);
}

static void measure(struct bench *b, struct way *way)
{
	char store[256], id[64];
	struct run run = { .b = b, .way = way, .writer = STORE_WRITER_EMPTY };

	snprintf(store, sizeof(store), "%s/host-memory.store", b->dir);
	snprintf(id, sizeof(id), "%s", way->beside ? "beside" : "alone");
	run.copy_fd = memfd_create("copy", MFD_CLOEXEC);
	CHECK(run.copy_fd >= 0);
	must(store_begin(&run.writer, store, id, &error));
	must(memory_begin(&run.memory, &run.writer, &(struct memory_options){ .no_sharing = true },
			  &error));
	int criu_fd = store_mkdir(&run.writer, "criu", &error);
	must(criu_fd);
	dump(&run, criu_fd);
	close(criu_fd);
	close(run.copy_fd);
	store_abort(&run.writer);
	restore(&run, store, id);
	cpumem_fini(&run.taken);
	must(remove_tree(AT_FDCWD, store));
}

static void print(const struct way *w, uint64_t bytes)
{
	double gb = (double)bytes / 1e9;

	printf("%-7s frozen copy %6.3f s  dump %6.3f s (%5.2f GB/s, cpu %5.2f s)  commit %6.3f s  "
	       "restore %6.3f s (%5.2f GB/s, cpu %5.2f s)\n",
	       w->name, w->copy, w->dump, gb / w->dump, w->dump_cpu, w->commit, w->restore,
	       gb / w->restore, w->restore_cpu);
}

int main(int argc, char **argv)
{
	struct bench b = { .dir = argc > 1 ? argv[1] : "/dev/shm",
			   .bytes = (argc > 2 ? strtoull(argv[2], NULL, 10) : 1024) << 20 };
	struct way ways[] = { { .name = "criu" }, { .name = "beside", .beside = true } };
	char fifos[2][128];

	setvbuf(stdout, NULL, _IOLBF, 0);
	must(criu_find(&b.program, &error));
	CHECK((b.plugin_dir = criu_plugin_dir()));
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	b.work_fd = open(b.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(b.work_fd >= 0);
	start(&b, fifos);
	for (int round = 0; round < 3; round++) {
		for (size_t i = 0; i < 2; i++) {
			measure(&b, &ways[i]);
			print(&ways[i], b.bytes);
		}
		printf("ratio   dump %.2f  dump and commit %.2f  restore %.2f\n",
		       ways[0].dump / ways[1].dump,
		       (ways[0].dump + ways[0].commit) / (ways[1].dump + ways[1].commit),
		       ways[0].restore / ways[1].restore);
	}
	kill(b.root.pid, SIGKILL);
	unlink(fifos[0]);
	unlink(fifos[1]);
	unlinkat(b.work_fd, "host-memory.log", 0);
	free(b.plugin_dir);
	return 0;
}

// SPDX-License-Identifier: MIT
/* Memory saved beside the real CRIU: every byte of every shape is there after a dump, a restore, a
 * failure and a death at each point. */
#include "process/job.h"
#include "dump.h"
#include "sanitized.h"
#include "cpumem/cpu-memory.h"
#include "criu-plugin/hidden.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ull << 20)

static struct criu_program program;
static char *plugin_dir;
static const char *device_path; /* the job has it open; NULL: none */

/* ---- a job that checks all of its memory in each round ---- */

enum { SHAPES = 8 };

struct shape {
	uint64_t len_bytes, step_bytes; /* touched every so often */
	int advice;
	bool zeros; /* touched, but left zero */
	uint64_t *p;
};

static uint64_t word_of(size_t shape, uint64_t i, uint64_t round)
{
	return (i * 0x9e3779b97f4a7c15ull) ^ (shape << 56) ^ round;
}

static void shapes_make(struct shape *s)
{
	const struct shape wanted[SHAPES] = {
		{ .len_bytes = 48 * MIB, .step_bytes = 4096 },
		{ .len_bytes = 64 * MIB, .step_bytes = 3 * 4096 },
		{ .len_bytes = 32 * MIB, .step_bytes = 4096, .zeros = true },
		{ .len_bytes = 32 * MIB, .step_bytes = 4096, .advice = MADV_HUGEPAGE },
		{ .len_bytes = 11 * MIB + 4096, .step_bytes = 4096 },
		{ .len_bytes = 16 * MIB, .step_bytes = 4096, .advice = MADV_DONTFORK },
		{ .len_bytes = 2 * MIB, .step_bytes = 4096 },
		{ .len_bytes = 256 * MIB, .step_bytes = 16 * MIB },
	};

	for (size_t k = 0; k < SHAPES; k++) {
		s[k] = wanted[k];
		s[k].p = mmap(NULL, s[k].len_bytes + 4096, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(s[k].p != MAP_FAILED);
		/* No shape is merged with its neighbour. */
		CHECK(mprotect((char *)s[k].p + s[k].len_bytes, 4096, PROT_NONE) == 0);
		if (s[k].advice)
			CHECK(madvise(s[k].p, s[k].len_bytes, s[k].advice) == 0);
	}
}

/* Words of a touched page: all of it in the first shape, else the first one. */
static void shape_visit(struct shape *s, size_t k, uint64_t round, bool write)
{
	for (uint64_t at = 0; at < s->len_bytes; at += s->step_bytes) {
		size_t words = k == 0 ? 512 : 1;

		for (size_t w = 0; w < words; w++) {
			uint64_t i = at / 8 + w, want = s->zeros ? 0 : word_of(k, i, round);

			if (write)
				((volatile uint64_t *)s->p)[i] = want;
			else if (s->p[i] != want)
				job_say_bad("memory", (int)round);
		}
		if (!write && (s->p[at / 8 + 511] != 0) != (k == 0 && !s->zeros))
			job_say_bad("end of a page", (int)round);
	}
	if (!write && s->step_bytes > 4096 && s->p[512] != 0)
		job_say_bad("page never touched", (int)round);
}

static void *idle_thread(void *arg)
{
	(void)arg;
	for (;;)
		pause();
	return NULL;
}

/* The child of a fork: what it shared with its parent, and what it wrote itself. */
static void child_run(struct shape *s, int in, int out)
{
	int round;

	shape_visit(&s[1], 1, 77, true);
	while (read(in, &round, sizeof(round)) == sizeof(round)) {
		shape_visit(&s[0], 0, 0, false);
		shape_visit(&s[1], 1, 77, false);
		if (write(out, &round, sizeof(round)) < 0)
			break;
	}
	_exit(0);
}

static void device_look(int fd, int round)
{
	struct stat have, want;

	if (fstat(fd, &have) < 0 || stat(device_path, &want) < 0 || !S_ISCHR(have.st_mode) ||
	    have.st_rdev != want.st_rdev ||
	    (fcntl(fd, F_GETFL) & (O_ACCMODE | O_NONBLOCK)) != (O_RDWR | O_NONBLOCK))
		job_say_bad("device", round);
}

static void memory_job(void *arg)
{
	const struct job_setup *setup = arg;
	struct shape s[SHAPES];
	pthread_t thread;
	int to[2], from[2], log = open(setup->log, O_WRONLY | O_APPEND | O_CREAT, 0600),
			    null = open("/dev/null", O_RDWR);

	prctl(PR_SET_PDEATHSIG, 0);
	CHECK(dup2(null, 0) == 0 && dup2(log, 1) == 1 && dup2(log, 2) == 2);
	for (int fd = 3; fd < 64; fd++)
		if (fd != little_out)
			close(fd);
	shapes_make(s);
	for (size_t k = 0; k < SHAPES; k++)
		shape_visit(&s[k], k, 0, true);
	CHECK(pipe(to) == 0 && pipe(from) == 0);
	if (!setup->plain && !fork()) {
		close(to[1]);
		close(from[0]);
		child_run(s, to[0], from[1]);
	}
	int device = device_path ? open(device_path, O_RDWR | O_NONBLOCK) : -1;
	CHECK(!device_path || device >= 0);
	CHECK(pthread_create(&thread, NULL, idle_thread, NULL) == 0);
	little_ready();
	close(little_out);
	for (int round = 0;; round++) {
		if (!setup->plain)
			job_exchange(to[1], from[0], round, "child");
		if (device_path)
			device_look(device, round);
		for (size_t k = 0; k < SHAPES; k++)
			shape_visit(&s[k], k, (uint64_t)round, false);
		dprintf(1, "round %d\n", round);
		for (size_t k = 0; k < SHAPES; k++)
			shape_visit(&s[k], k, (uint64_t)round + 1, true);
	}
}

static struct proc_id memory_job_start(struct job_setup *s)
{
	struct little l = little_start(memory_job, s);

	little_wait_ready(&l);
	close(l.ready_fd);
	return little_id(&l);
}

/* ---- dump and restore, as a shim does them ---- */

struct script {
	struct criu_options options;
	struct criu_plugin plugin;
	int fail_at, kill_at; /* an event, or -1 */
	struct proc_id criu;
	struct cpu_memory memory; /* what was taken, and still to be filled */
	struct cpu_memory_copy copy;
	int dir_fd;
};

static void on_spawned(void *arg, struct proc_id criu)
{
	((struct script *)arg)->criu = criu;
}

static int take(struct script *s, pid_t root, struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	struct proc_id id;

	CHECK(proc_identify(&id, root, err) == 0 && proc_tree_read(&tree, id, err) == 0);
	CHECK(cpu_memory_table_is_heeded(s->plugin.table_fd));
	int r = cpu_memory_choose(&s->memory, &tree, NULL, 0, err);
	if (r == 0)
		r = cpu_memory_hide(s->plugin.table_fd, &s->memory, CPU_MEMORY_INNER_PIDS);
	if (r == 0)
		r = cpu_memory_copy_reserve(&s->copy, &s->memory);
	return r < 0 ? r : cpu_memory_copy_out(&s->memory, &s->copy, 0, NULL, NULL, err);
}

static int fill(struct script *s)
{
	const char *copy = s->copy.bytes;

	for (size_t i = 0; i < s->memory.n; i++) {
		const struct cpu_memory_region *r = &s->memory.items[i];
		auto_close int pidfd = (int)syscall(SYS_pidfd_open, r->inner_pid, 0);
		struct cpu_memory_target t = { r->inner_pid, r->va, r->len_bytes, pidfd, -1 };

		for (uint64_t at = 0; at < r->len_bytes; at += CPU_MEMORY_ALIGN_BYTES) {
			int e = cpu_memory_write(&t, at, copy + at, CPU_MEMORY_ALIGN_BYTES);
			if (e < 0)
				return e;
		}
		copy += r->len_bytes;
	}
	return 0;
}

static int on_event(void *arg, enum criu_event event, struct proc_id root,
		    struct brumate_error *err)
{
	struct script *s = arg;
	int r = 0;

	if (event == CRIU_EVENT_FROZEN)
		r = take(s, root.pid, err);
	if (event == CRIU_EVENT_RESTORED)
		r = fill(s);
	if ((int)event == s->kill_at)
		CHECK(proc_signal(s->criu, SIGKILL) == 0);
	if ((int)event == s->fail_at)
		return brumate_fail(err, ENODATA, "the test says no");
	return r;
}

static void script_open(struct script *s, const struct job_setup *setup, struct proc_id root,
			const char *name)
{
	char dir[128];

	snprintf(dir, sizeof(dir), "%s/%s", setup->dir, name);
	CHECK(mkdir(dir, 0700) == 0 || errno == EEXIST);
	int fd = open(dir, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	*s = (struct script){
		.fail_at = -1,
		.kill_at = -1,
		.dir_fd = fd,
		.plugin = { .table_fd = hidden_table_new() },
		.options = {
			.images_dir_fd = fd,
			.work_dir_fd = fd,
			.log_name = "criu.log",
			.libdir = plugin_dir,
			.root = root,
			.on_spawned = on_spawned,
			.on_event = on_event,
		},
	};
	CHECK(s->plugin.table_fd >= 0);
	s->options.plugin = &s->plugin;
	s->options.arg = s;
}

static void script_close(struct script *s)
{
	close(s->dir_fd);
	cpu_memory_copy_fini(&s->copy);
	close(s->plugin.table_fd);
	cpu_memory_fini(&s->memory);
}

static void must(int r, const struct brumate_error *err)
{
	if (r == 0)
		return;
	fprintf(stderr, "%s (%s)\n", err->text, err->hint);
	exit(1);
}

static struct criu_result dump(struct script *s)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct criu_result result = { 0 };

	must(dump_tree(&program, &s->options, &result, &err), &err);
	return result;
}

static struct proc_id restore(struct script *s, struct job_setup *setup)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct criu_result result = { 0 };
	struct proc_id root;

	must(criu_restore(&program, &s->options, &result, &err), &err);
	CHECK(proc_identify(&root, result.root_pid, &err) == 0);
	job_must_run(setup, 3);
	return root;
}

/* Makes of the script of a dump the one that restores it. */
static void turn_to_restore(struct script *s)
{
	close(s->plugin.table_fd);
	s->plugin.table_fd = hidden_table_new();
	s->options.root = PROC_ID_NONE;
	s->fail_at = s->kill_at = -1;
}

static void round_trips(bool plain)
{
	struct job_setup setup = { .plain = plain };
	struct script s;
	job_prepare(&setup);
	struct proc_id root = memory_job_start(&setup);

	for (int i = 0; i < 3; i++) { /* it writes to all of its memory in between */
		char name[16];

		snprintf(name, sizeof(name), "running-%d", i);
		script_open(&s, &setup, root, name);
		s.options.leave_running = true;
		dump(&s);
		job_must_run(&setup, 2);
		script_close(&s);
	}
	for (int i = 0; i < 2; i++) {
		char name[16];

		snprintf(name, sizeof(name), "image-%d", i);
		script_open(&s, &setup, root, name);
		struct criu_result result = dump(&s);
		reap_everybody();
		CHECK(s.memory.n >= 5 && s.memory.present_bytes > 90 * MIB);
		CHECK(result.pages_bytes < 60 * MIB);
		turn_to_restore(&s);
		root = restore(&s, &setup);
		script_close(&s);
	}
	job_end(&setup, root);
}

static void failures(void)
{
	struct job_setup setup = { .plain = true };
	struct brumate_error err;
	struct criu_result result;
	struct script s;
	job_prepare(&setup);
	struct proc_id root = memory_job_start(&setup);

	for (int event = CRIU_EVENT_FROZEN; event <= CRIU_EVENT_DUMPED; event++) {
		script_open(&s, &setup, root, "failed");
		s.fail_at = event;
		CHECK(dump_tree(&program, &s.options, &result, &err) == -ENODATA);
		job_must_run(&setup, 2);
		script_close(&s);
		script_open(&s, &setup, root, "killed");
		s.kill_at = event;
		CHECK(dump_tree(&program, &s.options, &result, &err) == -EPIPE);
		if (event == CRIU_EVENT_DUMPED)
			break; /* all was saved, so it has ended */
		job_must_run(&setup, 2);
		script_close(&s);
	}
	reap_everybody();
	CHECK(proc_is_gone(root));
	turn_to_restore(&s);
	s.fail_at = CRIU_EVENT_RESTORED;
	CHECK(criu_restore(&program, &s.options, &result, &err) == -ENODATA);
	reap_everybody();
	s.fail_at = -1;
	job_end(&setup, restore(&s, &setup));
	script_close(&s);
}

/* An image without its memory is not to come back as zeros. */
static void nobody_else_restores(void)
{
	struct job_setup setup = { .plain = true };
	struct brumate_error err;
	struct criu_result result;
	struct script s;
	job_prepare(&setup);
	struct proc_id root = memory_job_start(&setup);

	script_open(&s, &setup, root, "image");
	dump(&s);
	reap_everybody();
	turn_to_restore(&s);
	const char *dirs[] = { NULL, plugin_dir };
	for (size_t i = 0; i < 2; i++) {
		s.options.libdir = dirs[i];
		s.options.plugin = NULL;
		CHECK(criu_restore(&program, &s.options, &result, &err) == -EIO);
		reap_everybody();
	}
	s.options.plugin = &s.plugin;
	job_end(&setup, restore(&s, &setup));
	script_close(&s);
}

/* A device that CRIU refuses is opened anew where it was named, and refused where it was not. */
static void devices(void)
{
	struct job_setup setup = { .plain = true };
	struct brumate_error err;
	struct criu_result result;
	struct script s;

	device_path = "/dev/fuse";
	int fd = open(device_path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		SKIP("%s: %s", device_path, strerror(errno));
	close(fd);
	job_prepare(&setup);
	struct proc_id root = memory_job_start(&setup);

	script_open(&s, &setup, root, "refused");
	s.plugin.devices = "/dev/nvidia";
	CHECK(dump_tree(&program, &s.options, &result, &err) == -EIO);
	job_must_run(&setup, 2);
	script_close(&s);
	script_open(&s, &setup, root, "image");
	s.plugin.devices = "/dev/nvidia:/dev/fuse";
	dump(&s);
	reap_everybody();
	turn_to_restore(&s);
	job_end(&setup, restore(&s, &setup));
	script_close(&s);
}

/* ---- a forked child with mappings of a device, which its parent has no more ---- */

/* What can be mapped and CRIU refuses, on a machine without a GPU: a disk. */
static const char mapped_device[] = "/dev/loop0";
static const char *const maps_base = (const char *)0x200600000ull;

enum { MAPS = 4, PAGE = 4096 };

static const struct mapping {
	size_t at, len_bytes;
	int protection, flags;
	off_t offset;
} mappings[MAPS] = {
	{ 0, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, 0 },
	{ 2 * MIB, PAGE, PROT_READ, MAP_SHARED, 16 * PAGE },
	{ 4 * MIB, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, 32 * PAGE },
	{ 6 * MIB, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0 },
};

static void map_device(void)
{
	int fd = open(mapped_device, O_RDWR | O_CLOEXEC);

	for (size_t i = 0; i < MAPS; i++) {
		const struct mapping *m = &mappings[i];
		void *want = (void *)(maps_base + m->at);

		CHECK(mmap(want, m->len_bytes, m->protection, m->flags | MAP_FIXED_NOREPLACE, fd,
			   m->offset) == want);
	}
	close(fd);
}

/* The mapping as /proc has it: exactly where it was, with the same rights. */
static bool is_mapped(const char *maps, const struct mapping *m)
{
	char line[64];
	const char *start = maps_base + m->at;

	snprintf(line, sizeof(line), "%lx-%lx r%c-%c ", (unsigned long)start,
		 (unsigned long)(start + m->len_bytes), m->protection & PROT_WRITE ? 'w' : '-',
		 m->flags & MAP_SHARED ? 's' : 'p');
	return strstr(maps, line);
}

static int count_fds(void)
{
	auto_closedir DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	while (dir && readdir(dir))
		n++;
	return n;
}

/* Zeroes once, then what was written; a child of it sees them too, and may take them apart. */
static void use_mappings(int round)
{
	static int last = 0;
	int status;

	for (size_t i = 0; i < MAPS; i++) {
		volatile int *p = (volatile int *)(maps_base + mappings[i].at);

		if (p[0] != (mappings[i].protection & PROT_WRITE ? last : 0) || p[1] != 0)
			job_say_bad("zeroes", round);
		if (mappings[i].protection & PROT_WRITE)
			p[0] = round;
	}
	last = round;
	pid_t child = fork();
	if (!child) {
		volatile int *p = (volatile int *)maps_base;

		_exit(*p != round || munmap((void *)p, PAGE) < 0 ||
		      mprotect((void *)(p + PAGE), PAGE, PROT_NONE) < 0);
	}
	if (waitpid(child, &status, 0) != child || status)
		job_say_bad("fork", round);
}

static void maps_child(int in, int out)
{
	int round, fds = count_fds();
	bool was_restored = false;

	while (read(in, &round, sizeof(round)) == sizeof(round)) {
		auto_free char *maps = NULL;

		if (file_read(AT_FDCWD, "/proc/self/maps", 1 << 20, &maps, NULL) < 0)
			job_say_bad("/proc/self/maps", round);
		for (size_t i = 0; i < MAPS; i++)
			if (!is_mapped(maps, &mappings[i]))
				job_say_bad("mapping", round);
		if (count_fds() != fds)
			job_say_bad("number of descriptors", round);
		if (was_restored && strstr(maps, mapped_device))
			job_say_bad("device", round);
		was_restored = !strstr(maps, mapped_device);
		if (was_restored)
			use_mappings(round);
		dprintf(1, "%s\n", was_restored ? "zeroes" : "device");
		if (write(out, &round, sizeof(round)) < 0)
			break;
	}
	_exit(0);
}

static void maps_job(void *arg)
{
	const struct job_setup *setup = arg;
	int to[2], from[2], log = open(setup->log, O_WRONLY | O_APPEND | O_CREAT, 0600),
			    null = open("/dev/null", O_RDWR);

	prctl(PR_SET_PDEATHSIG, 0);
	CHECK(dup2(null, 0) == 0 && dup2(log, 1) == 1 && dup2(log, 2) == 2);
	for (int fd = 3; fd < 64; fd++)
		if (fd != little_out)
			close(fd);
	map_device();
	CHECK(pipe(to) == 0 && pipe(from) == 0);
	if (!fork()) {
		close(to[1]);
		close(from[0]);
		close(little_out);
		maps_child(to[0], from[1]);
	}
	for (size_t i = 0; i < MAPS; i++)
		CHECK(munmap((void *)(maps_base + mappings[i].at), mappings[i].len_bytes) == 0);
	little_ready();
	close(little_out);
	for (int round = 1;; round++) {
		job_exchange(to[1], from[0], round, "child");
		dprintf(1, "round %d\n", round);
		poll(NULL, 0, 1);
	}
}

/* Nobody else knows what to make of the mappings in an image; once restored they are plain memory. */
static void restore_needs_plugin(struct script *s)
{
	struct brumate_error err;
	struct criu_result result;

	s->options.plugin = NULL;
	s->options.libdir = NULL;
	CHECK(criu_restore(&program, &s->options, &result, &err) == -EIO);
	CHECK(strstr(err.text, "plugin"));
	reap_everybody();
	s->options.plugin = &s->plugin;
	s->options.libdir = plugin_dir;
}

static void device_maps(void)
{
	struct job_setup setup = { .plain = true };
	struct brumate_error err;
	struct criu_result result;
	struct script s;
	int fd = open(mapped_device, O_RDWR | O_CLOEXEC);
	void *p = fd < 0 ? MAP_FAILED : mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		SKIP("%s: %s", mapped_device, strerror(errno));
	munmap(p, PAGE);
	close(fd);
	job_prepare(&setup);
	struct little l = little_start(maps_job, &setup);
	little_wait_ready(&l);
	close(l.ready_fd);
	struct proc_id root = little_id(&l);

	/* Refused where it was not named, and where nobody has made sure that it is a leftover. */
	for (int i = 0; i < 2; i++) {
		script_open(&s, &setup, root, "refused");
		s.plugin.devices = i ? "/dev/nvidia:/dev/loop" : "/dev/nvidia";
		CHECK(i || cpu_memory_allow_device_maps(s.plugin.table_fd) == 0);
		CHECK(dump_tree(&program, &s.options, &result, &err) == -EIO);
		CHECK(strstr(err.text, "mapping"));
		job_must_run(&setup, 2);
		script_close(&s);
	}
	for (int i = 0; i < 3; i++) {
		char name[16];

		snprintf(name, sizeof(name), "image-%d", i);
		script_open(&s, &setup, root, name);
		s.plugin.devices = "/dev/nvidia:/dev/loop";
		CHECK(cpu_memory_allow_device_maps(s.plugin.table_fd) == 0);
		s.options.leave_running = i == 0;
		dump(&s);
		if (i == 0) {
			job_must_run(&setup, 2);
		} else {
			reap_everybody();
			turn_to_restore(&s);
			if (i == 1)
				restore_needs_plugin(&s);
			root = restore(&s, &setup);
		}
		script_close(&s);
	}
	auto_free char *log = NULL;
	CHECK(file_read(AT_FDCWD, setup.log, 1 << 26, &log, NULL) >= 0);
	CHECK(strstr(log, "device\n") && strstr(log, "zeroes\n") && !strstr(log, "bad "));
	job_end(&setup, root);
}

int main(int argc, char **argv)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	const char *name = argc > 1 ? argv[1] : "alone";

	if (SANITIZED)
		SKIP("CRIU cannot save processes of a sanitizer's build");
	if (geteuid() != 0)
		SKIP("CRIU needs root");
	if (criu_find(&program, &err) < 0)
		SKIP("%s", err.text);
	plugin_dir = criu_plugin_dir();
	CHECK(plugin_dir);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	if (!strcmp(name, "alone"))
		round_trips(true);
	else if (!strcmp(name, "forked"))
		round_trips(false);
	else if (!strcmp(name, "failures"))
		failures();
	else if (!strcmp(name, "devices"))
		devices();
	else if (!strcmp(name, "device-maps"))
		device_maps();
	else
		nobody_else_restores();
	free(plugin_dir);
	return 0;
}

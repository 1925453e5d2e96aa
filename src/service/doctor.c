// SPDX-License-Identifier: MIT
/* The method Doctor: all checks of the machine, or the scan of one job or process. Changes nothing. */
#include "service/access.h"
#include "service/jobs.h"
#include "service/service.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/machine.h"
#include "base/paths.h"
#include "base/size.h"
#include "client/broker.h"
#include "criu/criu.h"
#include "gpu/vendor.h"
#include "engine/op.h"
#include "job/job.h"
#include "process/driver-job.h"
#include "process/scan.h"
#include "store/store.h"

enum finding_level { FINDING_OK, FINDING_NOTE, FINDING_WARN, FINDING_FAIL };

struct doctor {
	const struct service_call *call;
	struct gpu_kind kind;		 /* whose GPUs are here, or the simulated ones */
	const struct gpu_vendor *vendor; /* of them */
	json_t *findings;
	json_t *facts;
	uint64_t vram_bytes;	 /* of all GPUs; 0: unknown */
	struct broker_room room; /* for host copies; no directory: unknown */
	bool out_of_memory;
};

static const char *const level_names[] = {
	[FINDING_OK] = "ok",
	[FINDING_NOTE] = "note",
	[FINDING_WARN] = "warn",
	[FINDING_FAIL] = "fail",
};

static void add_finding(struct doctor *d, enum finding_level level, const char *key,
			const char *text, const char *hint)
{
	json_t *o = json_pack("{s:s,s:s,s:s,s:s}", "level", level_names[level], "key", key, "text",
			      text, "hint", hint);

	if (json_array_append_new(d->findings, o) < 0)
		d->out_of_memory = true;
}

/* Adds a finding. @key: stable name of the check; @hint: what to do, "" for ok. */
static void __attribute__((format(printf, 5, 6)))
finding(struct doctor *d, enum finding_level level, const char *key, const char *hint,
	const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	add_finding(d, level, key, text, hint);
}

/* Like finding(), with text and hint of @err. */
static void finding_error(struct doctor *d, enum finding_level level, const char *key,
			  const struct brumate_error *err)
{
	add_finding(d, level, key, err->text, err->hint);
}

/* Adds a fact (takes @value). */
static void fact(struct doctor *d, const char *key, json_t *value)
{
	if (json_object_set_new(d->facts, key, value) < 0)
		d->out_of_memory = true;
}

/* Reads the first line of a small file such as a sysctl; false if it cannot be read. */
static bool read_line(const char *path, char *ret, size_t room)
{
	auto_fclose FILE *f = fopen(path, "re");

	if (!f || !fgets(ret, (int)room, f))
		return false;
	ret[strcspn(ret, "\n")] = '\0';
	return true;
}

/* Whether @path (NULL: not found) can be run as @name. */
static int check_program(const char *path, const char *name, struct brumate_error *err)
{
	struct stat st;
	int r = 0;

	if (!path || stat(path, &st) < 0)
		r = brumate_fail(err, ENOENT, "%s is not installed", name);
	else if (S_ISDIR(st.st_mode))
		r = brumate_fail(err, EISDIR, "%s is a directory, not a program", path);
	else if (!S_ISREG(st.st_mode) || access(path, X_OK) < 0)
		r = brumate_fail(err, EACCES, "%s cannot be executed", path);
	if (r < 0)
		brumate_hint(err, "install brumate again, or set BRUMATE_LIBEXEC_DIR");
	return r;
}

/* ---- the kernel: system calls, capabilities, sysctls, cgroups ---- */

enum { CGROUP2_MAGIC = 0x63677270, PID_MAX_LOW = 32768 };

static void check_version(struct doctor *d)
{
	struct utsname name;
	int major = 0, minor = 0;

	uname(&name);
	fact(d, "kernel", json_string(name.release));
	if (sscanf(name.release, "%d.%d", &major, &minor) != 2 || major < 5 ||
	    (major == 5 && minor < 9))
		finding(d, FINDING_FAIL, "kernel", "boot Linux 5.9 or newer",
			"kernel %s is too old: pidfds, openat2 and CAP_CHECKPOINT_RESTORE need 5.9",
			name.release);
	else
		finding(d, FINDING_OK, "kernel", "", "kernel %s", name.release);
}

static void check_calls(struct doctor *d)
{
	struct open_how how = { .flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_BENEATH };
	int pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	int dir = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	int fd = (int)syscall(SYS_openat2, dir, "proc", &how, sizeof(how));

	if (pidfd < 0 || fd < 0)
		finding(d, FINDING_FAIL, "syscalls",
			"allow these calls in the container's seccomp profile",
			"%s%s%s not usable here", pidfd < 0 ? "pidfd_open" : "",
			pidfd < 0 && fd < 0 ? " and " : "", fd < 0 ? "openat2" : "");
	else
		finding(d, FINDING_OK, "syscalls", "", "pidfd_open and openat2 work");
	cleanup_close(&pidfd);
	cleanup_close(&dir);
	cleanup_close(&fd);
}

/* Without the optional ones, most jobs can be checkpointed, but not those with sockets (NET_ADMIN), of other users,
 * or with limits above ours (SYS_RESOURCE). */
static const struct {
	int bit;
	const char *name;
	bool needed;
} capabilities[] = {
	{ 1, "DAC_OVERRIDE", true },   { 5, "KILL", true },
	{ 6, "SETGID", true },	       { 7, "SETUID", true },
	{ 12, "NET_ADMIN", false },    { 18, "SYS_CHROOT", true },
	{ 19, "SYS_PTRACE", true },    { 21, "SYS_ADMIN", true },
	{ 24, "SYS_RESOURCE", false }, { 40, "CHECKPOINT_RESTORE", true },
};

static bool read_effective(unsigned long long *ret)
{
	auto_fclose FILE *f = fopen("/proc/self/status", "re");
	char line[256];

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "CapEff: %llx", ret) == 1)
			return true;
	return false;
}

static void check_capabilities(struct doctor *d)
{
	unsigned long long effective = 0;
	char missing[256] = "";
	bool needed = false;
	size_t len = 0;

	if (getuid() != 0) {
		finding(d, FINDING_OK, "capabilities", "",
			"a user needs none but what the launcher of CRIU gives");
		return;
	}
	if (!read_effective(&effective)) {
		finding(d, FINDING_WARN, "capabilities", "mount /proc",
			"/proc/self/status does not tell the capabilities");
		return;
	}
	for (size_t i = 0; i < sizeof(capabilities) / sizeof(capabilities[0]); i++) {
		if (effective >> capabilities[i].bit & 1)
			continue;
		needed = needed || capabilities[i].needed;
		len += (size_t)snprintf(missing + len, sizeof(missing) - len, " %s",
					capabilities[i].name);
	}
	if (missing[0])
		finding(d, needed ? FINDING_FAIL : FINDING_WARN, "capabilities",
			"run as root, in a container with these capabilities added", "missing:%s",
			missing);
	else
		finding(d, FINDING_OK, "capabilities", "", "all that are needed");
}

static void check_ptrace(struct doctor *d)
{
	char value[16] = "";

	if (read_line("/proc/sys/kernel/yama/ptrace_scope", value, sizeof(value)) &&
	    !strcmp(value, "3"))
		finding(d, FINDING_FAIL, "ptrace",
			"3 cannot be undone: set kernel.yama.ptrace_scope to 2 or less and reboot",
			"kernel.yama.ptrace_scope is 3: nobody may trace, CRIU cannot work");
	else if (getuid() != 0 && value[0] > '0')
		finding(d, FINDING_FAIL, "ptrace", "as root: sysctl kernel.yama.ptrace_scope=0",
			"kernel.yama.ptrace_scope is %s: CRIU of a user who is not root may not "
			"trace the user's jobs",
			value);
	else if (getuid() != 0)
		finding(d, FINDING_OK, "ptrace", "", "processes may trace their own children");
	else
		finding(d, FINDING_OK, "ptrace", "", "tracing is allowed to root");
}

static void check_io_uring(struct doctor *d)
{
	char value[16];

	if (read_line("/proc/sys/kernel/io_uring_disabled", value, sizeof(value)) &&
	    strcmp(value, "0"))
		finding(d, FINDING_OK, "io_uring", "", "off for jobs (kernel.io_uring_disabled=%s)",
			value);
	else
		finding(d, FINDING_NOTE, "io_uring", "set kernel.io_uring_disabled=2 for such jobs",
			"a job that uses io_uring cannot be checkpointed to disk; with brumate's "
			"library, libuv does not use it");
}

static void check_pids(struct doctor *d)
{
	char value[32];

	if (!read_line("/proc/sys/kernel/pid_max", value, sizeof(value)))
		return;
	if (atol(value) <= PID_MAX_LOW)
		finding(d, FINDING_WARN, "pid_max", "sysctl kernel.pid_max=4194304",
			"kernel.pid_max is %s: the pids of a saved job are soon taken by others",
			value);
	else
		finding(d, FINDING_OK, "pid_max", "", "kernel.pid_max is %s", value);
	if (access("/proc/sys/kernel/ns_last_pid", F_OK) < 0)
		finding(d, FINDING_FAIL, "ns_last_pid",
			"build the kernel with CONFIG_CHECKPOINT_RESTORE",
			"the kernel was built without CONFIG_CHECKPOINT_RESTORE");
}

static void check_cgroup(struct doctor *d)
{
	struct statfs fs;

	if (statfs("/sys/fs/cgroup", &fs) == 0 && (unsigned)fs.f_type == CGROUP2_MAGIC)
		finding(d, FINDING_OK, "cgroup", "", "cgroup v2");
	else
		finding(d, FINDING_NOTE, "cgroup", "boot with systemd.unified_cgroup_hierarchy=1",
			"no cgroup v2 at /sys/fs/cgroup");
}

static void check_kernel(struct doctor *d)
{
	check_version(d);
	check_calls(d);
	check_capabilities(d);
	check_ptrace(d);
	check_pids(d);
	check_cgroup(d);
	check_io_uring(d);
}

/* ---- CRIU, the GPU driver and the GPUs, as the broker tells of them ---- */

static void check_criu(struct doctor *d)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct criu_program program;

	if (criu_find(&program, &err) < 0) {
		finding_error(d, FINDING_FAIL, "criu", &err);
		return;
	}
	fact(d, "criu",
	     json_pack("{s:s,s:i,s:s}", "path", program.path, "version", program.version, "why",
		       program.why));
	finding(d, FINDING_OK, "criu", "", "CRIU %d.%d.%d, %s (%s)", program.version / 10000,
		program.version / 100 % 100, program.version % 100, program.path, program.why);

	if (d->vendor->saved_by_criu && criu_check_vendor(&program, d->vendor->id, &err) < 0)
		finding_error(d, FINDING_FAIL, "gpu-plugin", &err);

	int r = criu_check(&program, &err);
	/* CRIU's own check also fails for lack of what only root may do. */
	if (r == -EOPNOTSUPP && program.unprivileged)
		finding(d, FINDING_NOTE, "criu-check", "run `brumate doctor` as root once",
			"whether the kernel offers what CRIU needs: not checked (needs root)");
	else if (r < 0)
		finding_error(d, FINDING_FAIL, "criu-check", &err);
	else
		finding(d, FINDING_OK, "criu-check", "", "the kernel offers what CRIU needs");
}

/* The table of the documentation: what each driver version adds, and what is lost without it. Jobs of the driver have
 * a separate check. */
static const struct {
	enum dev_feature bit;
	const char *key, *name;
	enum finding_level level_without;
	const char *without;
} ladder[] = {
	{ DEV_CHECKPOINT, "driver-checkpoint", "the driver saves GPU state", FINDING_FAIL,
	  "nothing can be suspended or checkpointed" },
	{ DEV_REMAP, "driver-remap", "restore onto other GPUs", FINDING_WARN,
	  "jobs can be restored on the same GPUs only" },
	{ DEV_LEGACY_IPC, "driver-ipc", "legacy IPC within a job of the driver", FINDING_NOTE,
	  "processes that share device memory need brumate's library, or --force" },
};

/* The vendor's tool makes the file of such a job; without the tool there are none, even if the driver supports them. */
static void check_driver_jobs(struct doctor *d, uint32_t features, json_t *names)
{
	static const char key[] = "driver-job-file";
	const struct gpu_driver_job *v = &d->vendor->driver_job;
	auto_free char *tool = d->kind.simulated ? path_find_helper(v->simulated_tool)
						 : driver_job_find_tool(d->vendor, environ);
	char hint[160];

	if (features & DEV_JOB_FILE)
		json_array_append_new(names, json_string(key));
	if (features & DEV_JOB_FILE && tool) {
		finding(d, FINDING_OK, key, "",
			"run --data-path driver starts jobs of the driver, by %s", tool);
		return;
	}
	if (features & DEV_JOB_FILE)
		snprintf(hint, sizeof(hint), "put one that has %s into PATH", v->option);
	else
		snprintf(hint, sizeof(hint), "install driver %s or newer",
			 d->vendor->feature_since(DEV_JOB_FILE));
	finding(d, FINDING_NOTE, key, hint,
		"no job files%s%s: with run --data-path driver, the driver saves each process by "
		"itself",
		features & DEV_JOB_FILE ? ", as there is no " : "",
		features & DEV_JOB_FILE ? v->tool : "");
}

static void check_custom_storage(struct doctor *d, uint32_t features, json_t *names)
{
	if (!(features & DEV_CUSTOM_STORAGE))
		return;
	json_array_append_new(names, json_string("driver-storage"));
	finding(d, FINDING_NOTE, "driver-storage", "",
		"the driver has custom storage, which is not used: a job whose copy fails could "
		"not continue");
}

static void check_ladder(struct doctor *d, uint32_t features)
{
	json_t *names = json_array();

	for (size_t i = 0; i < sizeof(ladder) / sizeof(ladder[0]); i++) {
		char hint[64];

		snprintf(hint, sizeof(hint), "install driver %s or newer",
			 d->vendor->feature_since(ladder[i].bit));
		if (features & ladder[i].bit) {
			finding(d, FINDING_OK, ladder[i].key, "", "%s", ladder[i].name);
			json_array_append_new(names, json_string(ladder[i].key));
		} else {
			finding(d, ladder[i].level_without, ladder[i].key, hint, "without %s: %s",
				ladder[i].name, ladder[i].without);
		}
	}
	check_driver_jobs(d, features, names);
	check_custom_storage(d, features, names);
	fact(d, "driver_features", names);
}

static void check_gpu(struct doctor *d, size_t i, const struct dev_gpu *gpu, json_t *gpus)
{
	json_array_append_new(gpus,
			      json_pack("{s:I,s:s,s:s,s:I,s:I,s:b}", "index", (json_int_t)i, "uuid",
					gpu->uuid, "name", gpu->name, "total_bytes",
					(json_int_t)gpu->total_bytes, "used_bytes",
					(json_int_t)gpu->used_bytes, "mig", gpu->partitioned));
	d->vram_bytes += gpu->total_bytes;
	if (gpu->partitioned)
		finding(d, FINDING_WARN, "gpu", d->vendor->partition_hint,
			"GPU %zu: %s, %s: %s is on, which the driver cannot checkpoint", i,
			gpu->name, gpu->uuid, d->vendor->partition.name);
	else
		finding(d, FINDING_OK, "gpu", "", "GPU %zu: %s, %s, %s, %s in use", i, gpu->name,
			gpu->uuid, SIZE_TEXT(gpu->total_bytes), SIZE_TEXT(gpu->used_bytes));
	const char *unproven =
		d->vendor->unproven_model ? d->vendor->unproven_model(gpu->name) : NULL;
	if (unproven)
		finding(d, FINDING_WARN, "unproven", "try a restore before you rely on it",
			"GPU %zu: %s %s", i, gpu->name, unproven);
}

/* The daemon that keeps the driver loaded listens on a socket. Older methods cannot be detected without asking the
 * driver. */
static void check_persistence(struct doctor *d)
{
	const struct gpu_vendor *v = d->vendor;

	if (d->kind.simulated || !v->persistence_socket)
		return;
	if (access(v->persistence_socket, F_OK) == 0)
		finding(d, FINDING_OK, "persistence", "", "%s runs", v->persistence_daemon);
	else
		finding(d, FINDING_NOTE, "persistence", v->persistence_hint,
			"%s does not run: the first operation on an idle machine waits for the "
			"driver",
			v->persistence_daemon);
}

/* GPUs that are here, and not used for want of something; and what was not tried of those that are. */
static void check_vendors(struct doctor *d)
{
	for (const struct gpu_vendor *const *v = gpu_vendors; *v; v++) {
		const char *lacks = (*v)->lacks ? (*v)->lacks() : NULL;

		if (lacks)
			finding(d, FINDING_WARN, "gpu-plugin", lacks,
				"GPUs of %s are here, and CRIU cannot save them", (*v)->name);
	}
	if (d->vendor->unproven)
		finding(d, FINDING_WARN, "unproven", "try a restore before you rely on it", "%s",
			d->vendor->unproven);
}

static void check_driver(struct doctor *d)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	auto_(broker_client_close) struct broker_client broker = BROKER_CLIENT_EMPTY;
	auto_free char *program = path_find_helper("brumate-broker");
	struct broker_info info;

	if (check_program(program, "brumate-broker", NULL) < 0) {
		finding(d, FINDING_WARN, "driver", "see brumate-broker, which alone talks to it",
			"nothing is known of the driver and the GPUs: there is no broker to ask");
		return;
	}
	int r = broker_client_open(&broker, &d->kind, &err);

	if (r == 0)
		r = broker_client_info(&broker, &info, &err);
	if (r < 0) {
		if (!err.hint[0])
			brumate_hint(&err,
				     "install a driver, %s or newer; without a GPU try "
				     "BRUMATE_GPU=simulated",
				     d->vendor->feature_since(DEV_CHECKPOINT));
		finding_error(d, FINDING_FAIL, "driver", &err);
		return;
	}
	finding(d, FINDING_OK, "driver", "", "%sdriver %s, API %d.%d, initialised in %.2f s",
		info.device.simulated ? "simulated " : "", info.device.driver_version,
		info.device.api_version / 1000, info.device.api_version % 1000 / 10,
		info.device.init_seconds);
	fact(d, "driver",
	     json_pack("{s:s,s:i,s:b,s:f,s:s}", "version", info.device.driver_version,
		       "api_version", info.device.api_version, "simulated", info.device.simulated,
		       "init_seconds", info.device.init_seconds, "backend", info.backend));
	if (d->vendor->saved_by_criu)
		finding(d, FINDING_OK, "driver-checkpoint", "",
			"CRIU's plugin saves GPU state: checkpoint and restore, no suspend");
	else
		check_ladder(d, info.device.features);

	json_t *gpus = json_array();
	for (size_t i = 0; i < info.n_gpus; i++)
		check_gpu(d, i, &info.gpus[i].gpu, gpus);
	fact(d, "gpus", gpus);
	d->room = info.room;
	if (!info.n_gpus)
		finding(d, FINDING_FAIL, "gpu", "is a GPU assigned to this machine or container?",
			"the driver shows no GPU");
	check_persistence(d);
}

/* ---- memory, limits and space, against the device memory that may have to be saved ---- */

enum { NOFILE_WANTED = 65536 };

static void check_memory(struct doctor *d)
{
	uint64_t available;

	if (!machine_meminfo("MemAvailable", &available))
		return;
	fact(d, "memory_available_bytes", json_integer((json_int_t)available));
	if (available < d->vram_bytes && available + d->room.disk_bytes >= d->vram_bytes)
		finding(d, FINDING_NOTE, "memory",
			"add memory: host copies on a disk are as fast as the disk",
			"%s of memory available, %s on all GPUs: the rest would go to "
			"%s",
			SIZE_TEXT(available), SIZE_TEXT(d->vram_bytes), d->room.disk);
	else if (available < d->vram_bytes)
		finding(d, FINDING_WARN, "memory",
			"add memory, or suspend fewer jobs at a time: saved device memory is kept "
			"in it",
			"%s of memory available, %s on all GPUs", SIZE_TEXT(available),
			SIZE_TEXT(d->vram_bytes));
	else
		finding(d, FINDING_OK, "memory", "", "%s available", SIZE_TEXT(available));
}

/* @arg: a list of the running jobs, with what each has on GPUs as far as a broker tells. */
static void add_running(void *arg, const struct job *j, const char *id,
			const struct brumate_error *why)
{
	(void)id;
	(void)why;
	if (j && j->state == JOB_RUNNING)
		json_array_append_new(arg, describe_job(j));
}

struct copies {
	uint64_t bytes;
	size_t n;
};

static void add_copy(void *arg, const struct job *j, const char *id,
		     const struct brumate_error *why)
{
	struct copies *all = arg;
	json_t *o = j && !job_has_ended(j) ? describe_job(j) : NULL;

	(void)id;
	(void)why;
	const json_int_t bytes = json_integer_value(json_object_get(o, "copy_bytes"));
	all->bytes += (uint64_t)bytes;
	all->n += bytes > 0;
	json_decref(o);
}

/* What jobs that are off their GPUs take of it, and what the broker has for the next one. */
static void check_host_memory(struct doctor *d)
{
	struct copies all = { 0 };

	if (job_list(add_copy, &all, NULL) < 0)
		return;
	fact(d, "copies_bytes", json_integer((json_int_t)all.bytes));
	fact(d, "copies_jobs", json_integer((json_int_t)all.n));
	fact(d, "prepared_bytes", json_integer((json_int_t)d->room.free_bytes));
	finding(d, FINDING_OK, "host-memory", "",
		"host memory: %s in copies of %zu job%s, %s ready in the pool",
		SIZE_TEXT(all.bytes), all.n, all.n == 1 ? "" : "s", SIZE_TEXT(d->room.free_bytes));
}

static int by_size(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Smallest first. Those of which nothing is known, or that have none, do not count. Returns how many there are. */
static size_t sort_sizes(uint64_t *ret, json_t *jobs)
{
	json_t *job, *gpu;
	size_t i, k, n = 0;

	json_array_foreach (jobs, i, job) {
		uint64_t sum = 0;

		json_array_foreach (json_object_get(job, "gpus"), k, gpu)
			sum += (uint64_t)json_integer_value(json_object_get(gpu, "bytes"));
		if (sum)
			ret[n++] = sum;
	}
	qsort(ret, n, sizeof(*ret), by_size);
	return n;
}

/* Whether there is room for copies of all jobs, as before maintenance. */
static void check_fit(struct doctor *d)
{
	auto_json json_t *jobs = json_array();
	uint64_t room = 0, sum = 0;
	size_t n = 0, fit = 0;

	if (jobs && machine_meminfo("MemAvailable", &room))
		job_list(add_running, jobs, NULL);
	auto_free uint64_t *sizes = calloc(json_array_size(jobs) + 1, sizeof(*sizes));
	n = sizes ? sort_sizes(sizes, jobs) : 0;
	room += d->room.disk_bytes;
	for (size_t i = 0; i < n; i++) {
		sum += sizes[i];
		fit += sum <= room;
	}
	fact(d, "jobs_on_gpus", json_integer((json_int_t)n));
	fact(d, "jobs_that_fit", json_integer((json_int_t)fit));
	if (fit < n)
		finding(d, FINDING_NOTE, "suspend-all",
			"checkpoint the others, or give copies a disk: SpillDirectory= in [Broker]",
			"%zu of the %zu jobs on GPUs fit into memory and spill directory at once: "
			"they have "
			"%s, of %s",
			fit, n, SIZE_TEXT(sum), SIZE_TEXT(room));
	else if (n)
		finding(d, FINDING_OK, "suspend-all", "",
			"all %zu jobs on GPUs (%s) fit into memory and spill directory at once "
			"(%s)",
			n, SIZE_TEXT(sum), SIZE_TEXT(room));
}

static void check_pool(struct doctor *d)
{
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	const uint64_t usual = machine_pool_bytes();

	if (conf_load(&conf, NULL) < 0 || !usual)
		return; /* the check of the configuration reports it */
	const uint64_t pool = conf.pool_bytes ? conf.pool_bytes : usual;
	fact(d, "pool_bytes", json_integer((json_int_t)pool));
	if (pool > usual)
		finding(d, FINDING_WARN, "pool", "lower Pool= in [Broker] of brumate.conf",
			"up to %s may be pinned for copies of device memory, more than half "
			"of this machine's memory",
			SIZE_TEXT(pool));
	else
		finding(d, FINDING_OK, "pool", "",
			"up to %s may be pinned for copies of device memory", SIZE_TEXT(pool));
}

/* Reports the directory for spilled host copies. */
static void check_spill(struct doctor *d)
{
	if (!d->room.disk[0])
		return; /* the check of the driver reports it */
	fact(d, "copies",
	     json_pack("{s:I,s:I,s:s}", "memory_bytes", (json_int_t)d->room.memory_bytes,
		       "disk_bytes", (json_int_t)d->room.disk_bytes, "disk", d->room.disk));
	if (!d->room.disk_bytes)
		finding(d, FINDING_NOTE, "spill",
			"set SpillDirectory= in [Broker] of brumate.conf to a directory on a disk",
			"copies of device memory must fit into the %s of memory that they "
			"may "
			"have: %s is in memory, or full",
			SIZE_TEXT(d->room.memory_bytes), d->room.disk);
	else
		finding(d, FINDING_OK, "spill", "",
			"copies of device memory may have %s of memory, then %s in %s, "
			"encrypted",
			SIZE_TEXT(d->room.memory_bytes), SIZE_TEXT(d->room.disk_bytes),
			d->room.disk);
}

static void check_pages(struct doctor *d)
{
	char thp[64] = "";
	uint64_t huge = 0;

	read_line("/sys/kernel/mm/transparent_hugepage/enabled", thp, sizeof(thp));
	if (strstr(thp, "[always]"))
		finding(d, FINDING_OK, "huge-pages", "", "transparent huge pages for everybody");
	else
		finding(d, FINDING_NOTE, "huge-pages",
			"echo always > /sys/kernel/mm/transparent_hugepage/enabled",
			"transparent huge pages are not \"always\" (%s): the driver saves device "
			"memory a quarter slower",
			thp[0] ? thp : "not built in");
	if (machine_meminfo("Hugetlb", &huge) && huge)
		fact(d, "hugetlb_bytes", json_integer((json_int_t)huge));
}

static void check_limits(struct doctor *d)
{
	struct rlimit files, locked;

	getrlimit(RLIMIT_NOFILE, &files);
	getrlimit(RLIMIT_MEMLOCK, &locked);
	if (files.rlim_max < NOFILE_WANTED)
		finding(d, FINDING_WARN, "nofile",
			"raise the hard limit: ulimit -Hn 1048576 (LimitNOFILE=)",
			"only %llu open files allowed; large jobs need more",
			(unsigned long long)files.rlim_max);
	else
		finding(d, FINDING_OK, "nofile", "", "%llu open files allowed",
			(unsigned long long)files.rlim_max);
	if (locked.rlim_max != RLIM_INFINITY)
		finding(d, FINDING_NOTE, "memlock", "ulimit -Hl unlimited (LimitMEMLOCK=infinity)",
			"locked memory is limited to %.1f MiB: programs that pin memory inherit "
			"that",
			(double)locked.rlim_max / 0x1p20);
	else
		finding(d, FINDING_OK, "memlock", "", "locked memory is not limited");
}

static void check_shm(struct doctor *d)
{
	struct statvfs fs;

	if (statvfs("/dev/shm", &fs) < 0 || !fs.f_blocks)
		finding(d, FINDING_WARN, "shm", "mount -t tmpfs tmpfs /dev/shm",
			"no /dev/shm: jobs of several processes need it");
	else
		finding(d, FINDING_OK, "shm", "", "/dev/shm holds %s",
			SIZE_TEXT((uint64_t)fs.f_blocks * fs.f_frsize));
}

static void check_config(struct doctor *d)
{
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (conf_load(&conf, &err) < 0) {
		finding_error(d, FINDING_FAIL, "config", &err);
		return;
	}
	for (size_t i = 0; i < conf.n_warnings; i++)
		finding(d, FINDING_WARN, "config", "see brumate.conf(5)", "%s", conf.warnings[i]);
	if (!conf.n_warnings)
		finding(d, FINDING_OK, "config", "", "%s%s", path_config(),
			access(path_config(), F_OK) < 0 ? " (not there: defaults)" : "");
}

static void check_store(struct doctor *d)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	auto_free char *dir = NULL;
	uint64_t free_bytes;

	if (access_store(&dir, NULL, &err) < 0) {
		return; /* the check of the configuration reports it */
	}
	fact(d, "store", json_string(dir));
	if (store_free_bytes(dir, &free_bytes, &err) < 0)
		finding_error(d, FINDING_FAIL, "space", &err);
	else if (free_bytes == UINT64_MAX)
		finding(d, FINDING_OK, "space", "", "the file system of %s does not tell", dir);
	else if (free_bytes < d->vram_bytes)
		finding(d, FINDING_WARN, "space",
			"free some, or set Directory= in [Store] of brumate.conf to a larger file "
			"system",
			"%s free in %s, %s on all GPUs", SIZE_TEXT(free_bytes), dir,
			SIZE_TEXT(d->vram_bytes));
	else
		finding(d, FINDING_OK, "space", "", "%s free in %s", SIZE_TEXT(free_bytes), dir);
}

static void check_room(struct doctor *d)
{
	check_memory(d);
	check_pool(d);
	check_spill(d);
	check_fit(d);
	check_host_memory(d);
	check_pages(d);
	check_limits(d);
	check_shm(d);
	check_config(d);
	check_store(d);
}

/* ---- our own installation: directories, programs, brumated, and what was left behind ---- */

/* A missing directory can be created if its nearest existing ancestor is writable. */
static bool is_writable(const char *path)
{
	auto_free char *copy = strdup(path);
	struct stat st;

	while (copy && access(copy, F_OK) < 0) {
		char *slash = strrchr(copy, '/');

		if (errno != ENOENT || !slash)
			return false;
		slash[slash == copy ? 1 : 0] = '\0';
	}
	return copy && stat(copy, &st) == 0 && S_ISDIR(st.st_mode) &&
	       access(copy, W_OK | X_OK) == 0;
}

static void check_dirs(struct doctor *d)
{
	const struct {
		const char *key, *path, *variable;
	} dirs[] = {
		{ "runtime-dir", path_runtime_dir(), "BRUMATE_RUNTIME_DIR" },
		{ "state-dir", path_state_dir(), "BRUMATE_STATE_DIR" },
		{ "log-dir", path_log_dir(), "BRUMATE_LOG_DIR" },
	};

	for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
		char hint[128];

		snprintf(hint, sizeof(hint), "make it a directory that you can write to, or set %s",
			 dirs[i].variable);
		fact(d, dirs[i].key, json_string(dirs[i].path));
		if (is_writable(dirs[i].path))
			finding(d, FINDING_OK, dirs[i].key, "", "%s", dirs[i].path);
		else
			finding(d, FINDING_FAIL, dirs[i].key, hint, "%s cannot be written",
				dirs[i].path);
	}
}

static void check_programs(struct doctor *d)
{
	static const char *const programs[] = { "brumate-shim", "brumate-broker" };

	for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++) {
		auto_free char *path = path_find_helper(programs[i]);
		struct brumate_error why = BRUMATE_ERROR_NONE;

		if (check_program(path, programs[i], &why) < 0)
			finding_error(d, FINDING_FAIL, programs[i], &why);
		else
			finding(d, FINDING_OK, programs[i], "", "%s", path);
	}
	const char *name = d->vendor->interposer;
	if (!name)
		return;
	auto_free char *library = path_find_helper(name);
	if (library && access(library, R_OK) == 0)
		finding(d, FINDING_OK, "library", "", "%s", library);
	else
		finding(d, FINDING_NOTE, "library",
			"install brumate again, with its library, to copy by brumate",
			"%s is not here: the driver copies the device memory of jobs", name);
}

static void check_daemon(struct doctor *d)
{
	auto_free char *path = path_format("%s/brumated.sock", path_runtime_dir());
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int r = path ? access_check_socket(path, &err) : -ENOMEM;

	if (r == 0)
		finding(d, FINDING_OK, "brumated", "",
			"anyone who may connect to %s can become root", path);
	else if (r == -ENOENT)
		finding(d, FINDING_OK, "brumated", "", "no socket: brumated is not enabled");
	else
		finding_error(d, FINDING_FAIL, "brumated", &err);
}

static void check_job(void *arg, const struct job *j, const char *id,
		      const struct brumate_error *why)
{
	struct doctor *d = arg;

	if (!j)
		finding(d, FINDING_WARN, "job", "restore its directory, or remove it",
			"the record of job %s is damaged: %s", id, why->text);
	else if (job_has_lost_memory(j))
		finding(d, FINDING_WARN, "job",
			"`brumate wait` ends what is left of it; `brumate restore` brings back its "
			"last checkpoint",
			"job %s is lost: shim and keeper, which held the only copy of its device "
			"memory, "
			"have both ended",
			j->id);
	else if (!job_has_ended(j) && shim_has_ended(j))
		finding(d, FINDING_WARN, "job", "the next command on it starts another one",
			"job %s runs without its shim", id);
}

static bool is_partial(const char *name)
{
	size_t len = strlen(name), suffix = strlen(".partial");

	return name[0] == '.' && len > suffix && !strcmp(name + len - suffix, ".partial");
}

/* A living writer holds a lock on its directory. */
static bool is_abandoned(int dir_fd, const char *name)
{
	auto_close int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	return fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) == 0;
}

static void check_partials(struct doctor *d)
{
	auto_free char *path = NULL;
	unsigned n = 0;

	if (access_store(&path, NULL, NULL) < 0)
		return; /* reported by the check of the store */
	auto_closedir DIR *dir = opendir(path);
	for (struct dirent *entry; dir && (entry = readdir(dir));)
		n += is_partial(entry->d_name) && is_abandoned(dirfd(dir), entry->d_name);
	if (n)
		finding(d, FINDING_WARN, "partial", "the next checkpoint removes them",
			"%u unfinished checkpoints in %s", n, path);
}

static void check_brumate(struct doctor *d)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	check_dirs(d);
	check_programs(d);
	check_daemon(d);
	if (job_list(check_job, d, &err) < 0)
		finding_error(d, FINDING_WARN, "job", &err);
	check_partials(d);
}

static void examine_machine(struct doctor *d)
{
	static void (*const checks[])(struct doctor * d) = {
		check_kernel, check_criu, check_vendors, check_driver, check_room, check_brumate,
	};

	for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++)
		checks[i](d);
}

/* ---- one job ---- */

static void add_scanned(struct doctor *d, const struct scan_report *report)
{
	static const enum finding_level levels[] = {
		[SCAN_NOTE] = FINDING_NOTE,
		[SCAN_SUSPECT] = FINDING_WARN,
		[SCAN_REFUSE] = FINDING_FAIL,
	};

	for (size_t i = 0; i < report->n; i++) {
		const struct scan_finding *f = &report->items[i];

		add_finding(d, levels[f->level], f->what, f->text, f->hint);
	}
}

/* Scans with the information of the driver or, if there is none, of /proc. */
static int scan_process(struct doctor *d, struct proc_id root, struct brumate_error *err)
{
	struct job j = {
		.owned_by = &job_target_owner, .root = root, .gpu_kind = d->kind, .by_pid = true
	};
	auto_(op_fini) struct op op;
	auto_(scan_report_fini) struct scan_report report = SCAN_REPORT_EMPTY;

	op_init(&op, "scan", &j.target, NULL, NULL);
	int r = op_find_gpus(&op, err);
	if (r < 0 && r != -ESRCH) {
		finding_error(d, FINDING_WARN, "driver", err);
		r = proc_tree_read(&op.tree, root, err);
	}
	if (r == 0)
		r = preflight_scan(&op, SCAN_GPU | SCAN_CRIU | SCAN_SLOW, &report, err);
	if (r == 0)
		add_scanned(d, &report);
	return r;
}

static int scan_job(struct doctor *d, const struct job *j, struct brumate_error *err)
{
	auto_json json_t *reply = NULL;
	json_t *findings, *item;
	size_t i;

	if (job_has_ended(j))
		return brumate_fail(err, ESRCH, "job %s is not running (%s)", j->id,
				    job_state_name(j->state));
	int r = shim_relay(d->call, j, "Scan", NULL, &reply, err);
	if (r == 0)
		r = wire_get_array(reply, "findings", &findings, err);
	if (r < 0)
		return r;
	json_array_foreach (findings, i, item)
		if (json_array_append(d->findings, item) < 0)
			d->out_of_memory = true;
	return 0;
}

static void add_verdict(struct doctor *d, const char *what)
{
	json_t *item;
	size_t i;

	json_array_foreach (d->findings, i, item) {
		const char *level = json_string_value(json_object_get(item, "level"));

		if (level && strcmp(level, "ok") && strcmp(level, "note"))
			return;
	}
	finding(d, FINDING_OK, "scan", "", "nothing found in %s that would not checkpoint", what);
}

static int examine_job(struct doctor *d, const char *word, pid_t pid, struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	auto_(job_fini) struct job j = JOB_EMPTY;
	char what[64];
	int r = word ? job_find(&j, word, err) : access_tree(&tree, pid, err);
	if (r < 0)
		return r;

	if (word || job_find_by_pid(&j, pid, NULL) == 0) {
		snprintf(what, sizeof(what), "job %s", j.id);
		r = scan_job(d, &j, err);
	} else {
		snprintf(what, sizeof(what), "process %d", (int)pid);
		r = scan_process(d, tree.items[0].id, err);
	}
	if (r == 0)
		add_verdict(d, what);
	return r;
}

int service_doctor(const struct service_call *call, json_t *parameters, json_t **ret,
		   struct brumate_error *err)
{
	auto_json json_t *findings = json_array();
	auto_json json_t *facts = json_object();
	struct doctor d = { .call = call, .findings = findings, .facts = facts };
	bool simulated = false;
	const char *word;
	int64_t pid = 0;
	int r = wire_get_string(parameters, "job", &word, err);

	if (r == 0)
		r = wire_get_int(parameters, "pid", 1, INT_MAX, &pid, err);
	if (r == 0)
		r = get_simulated(parameters, &simulated, err);
	if (r < 0)
		return r;
	d.kind = gpu_kind_here(simulated);
	d.vendor = gpu_kind_vendor(&d.kind);
	if (word && pid)
		return wire_fail_parameter(err, "job", "expected job or pid, not both");

	if (word || pid)
		r = examine_job(&d, word, (pid_t)pid, err);
	else
		examine_machine(&d);
	if (r < 0)
		return r;
	return service_answer(ret, err, "{s:O,s:O}", "findings", d.out_of_memory ? NULL : findings,
			      "facts", facts);
}

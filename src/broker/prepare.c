// SPDX-License-Identifier: MIT
/* Which clients want memory to be ready, how much may be ready, and when it is freed. See prepare.h. */
#include "broker/prepare.h"
#include "gpu/copy.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/machine.h"
#include "base/paths.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define GIB (1ull << 30)

/* Less device memory is copied just as fast into memory that is not ready. */
#define WORTH_BYTES (256 * MIB)
/* How fast all cores of a large machine use up free memory: 49 GB/s on the one of docs/design/measurements.md. */
#define TAKEN_BYTES_PER_MS (50ull << 20)

enum {
	CLIENTS_MAX = 64,
	KINDS_MAX = 64,
	PRESSURES = 2,
	NICE = 19,
	LOOK_MS = 5000,	 /* between looks at the processes' device memory */
	KEEP_MS = 60000, /* surplus memory stays for that long after a copy */
	PAUSE_LEAST_MS = 20,
	PAUSE_MOST_MS = 1000,
	PRESSED_LEAST_MS = 30000, /* pause after memory pressure */
	PRESSED_MOST_MS = 600000,
	LOOK_AT_GPUS_MS = 1000,
	YIELD_MS =
		1000, /* clients that were informed of open GPUs get that time to close their end */
	CLOSED_MS = 8000,  /* wait that long for a copy under way */
	LINGER_MS = 10000, /* time for a client whose connection was closed to ask again */
	/* for open GPUs: */
	PLENTY_PART = 16,	/* that part of a GPU's memory must be free to open it */
	LITTLE_PART = 32,	/* that part must stay free to keep it open */
	YIELD_LEAST_MS = 60000, /* pause after a program was short of device memory */
	YIELD_MOST_MS = 3600000,
};

/* A task that waits for memory for 0.15 s within 2 s. Unprivileged users may only use this window. */
static const char trigger[] = "some 150000 2000000";

struct client {
	int fd;		   /* -1: closed, so that the client asks again */
	uint64_t until_ns; /* with fd -1: when the entry expires */
	pid_t *pids;
	size_t n;
	uint8_t gpus[DEV_GPUS_MAX][DEV_UUID_BYTES];
	size_t n_gpus;
	bool may_open, told_open; /* open GPUs for it; it was informed that they are open */
	uint64_t kept_bytes;	  /* of a host copy that it holds */
	bool spare;		  /* which it releases when it is hung up on */
	struct pool_kind wants[DEV_GPUS_MAX]; /* one for each node */
	size_t n_wants;
};

/* A pause before something is tried again. It grows if the next one follows soon. */
struct pause {
	uint64_t until_ns;
	unsigned ms;
};

/* GPUs that are kept open for future copies. */
struct keeping {
	const struct prepare_options *o;
	pthread_mutex_t
		lock; /* of all below; held while a GPU is opened, and while it is used for pinning */
	bool keeps;
	uint8_t uuids[DEV_GPUS_MAX][DEV_UUID_BYTES];
	size_t n;
	struct pause pause; /* between attempts to open GPUs */
};

struct preparer {
	struct prepare_options o;
	struct keeping keeping;
	int changed_fd; /* eventfd: wakes the thread */
	int pressure_fds[PRESSURES];
	struct pause pressed;
	uint64_t looked_ns, looked_at_gpus_ns;

	pthread_mutex_t lock; /* of all below */
	pthread_t thread;
	bool started, stopping;
	uint64_t short_ns; /* since when a kept GPU is short of memory; 0: none is */
	struct client clients[CLIENTS_MAX];
	size_t n;
	uint64_t last_end_ns;
};

static void extend_pause(struct pause *p, unsigned least_ms, unsigned most_ms)
{
	const bool again = clock_now_ns() < p->until_ns + p->ms * NS_PER_MS;

	p->ms = !again || !p->ms ? least_ms : p->ms < most_ms / 2 ? p->ms * 2 : most_ms;
	p->until_ns = deadline_in_ms(p->ms);
}

/* ---- pure ---- */

uint64_t prepare_budget(uint64_t room_bytes, uint64_t held_bytes)
{
	return (room_bytes + held_bytes) / 2;
}

int prepare_pause_ms(uint64_t room_bytes)
{
	uint64_t ms = room_bytes / 2 / TAKEN_BYTES_PER_MS;

	if (ms < PAUSE_LEAST_MS)
		return PAUSE_LEAST_MS;
	return ms < PAUSE_MOST_MS ? (int)ms : PAUSE_MOST_MS;
}

/*
 * ---- GPUs that are kept open ----
 *
 * They stay open while jobs run on them, so that the host memory for their copies is not only populated but pinned,
 * and a copy starts without opening, compiling or pinning anything. An open GPU takes device memory. So it is opened
 * only if plenty is left, and closed when that becomes less or a program runs short of it; then it is not opened
 * again for a while.
 */

/* Under the lock. */
static bool has(const struct keeping *k, const uint8_t *uuid)
{
	for (size_t i = 0; k->keeps && i < k->n; i++)
		if (!memcmp(k->uuids[i], uuid, DEV_UUID_BYTES))
			return true;
	return false;
}

static bool has_all(const struct keeping *k, const uint8_t (*uuids)[DEV_UUID_BYTES], size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!has(k, uuids[i]))
			return false;
	return n > 0;
}

static const struct dev_gpu *find_gpu(const struct dev_gpu *gpus, size_t n, const uint8_t *uuid)
{
	char text[DEV_UUID_TEXT_BYTES];

	dev_uuid_format(text, uuid);
	for (size_t i = 0; i < n; i++)
		if (!strcmp(gpus[i].uuid, text))
			return &gpus[i];
	return NULL;
}

/* Whether each has that part of its memory free. False if that cannot be determined. */
static bool have_free(struct keeping *k, const uint8_t (*uuids)[DEV_UUID_BYTES], size_t n,
		      unsigned part)
{
	const struct dev_backend *b;
	struct dev_gpu gpus[DEV_GPUS_MAX];
	size_t n_gpus;

	if (driver_wait(k->o->driver, &b, NULL, NULL) < 0 || !b->memory ||
	    dev_gpus(b, gpus, DEV_GPUS_MAX, &n_gpus, NULL) < 0)
		return false;
	for (size_t i = 0; i < n; i++) {
		const struct dev_gpu *gpu = find_gpu(gpus, n_gpus, uuids[i]);

		if (!gpu || gpu->partitioned || gpu->used_bytes > gpu->total_bytes ||
		    gpu->total_bytes - gpu->used_bytes < gpu->total_bytes / part)
			return false;
	}
	return true;
}

/* Each pause before they are opened again is longer than the last. */
static void pause_opening(struct keeping *k)
{
	extend_pause(&k->pause, YIELD_LEAST_MS, YIELD_MOST_MS);
}

static void stop_keeping(struct keeping *k)
{
	k->keeps = false;
	k->n = 0;
	gpus_keep(k->o->gpus, false);
	loop_wake(k->o->loop);
}

/* Whether all of these are open and kept. */
static bool keeping_has(struct keeping *k, const uint8_t (*uuids)[DEV_UUID_BYTES], size_t n)
{
	pthread_mutex_lock(&k->lock);
	bool found = has_all(k, uuids, n);
	pthread_mutex_unlock(&k->lock);
	return found;
}

/* Under the lock. */
static bool would_open(struct keeping *k, const uint8_t (*uuids)[DEV_UUID_BYTES], size_t n)
{
	return n > 0 && !has_all(k, uuids, n) && deadline_left_ms(k->pause.until_ns) == 0 &&
	       have_free(k, uuids, n, PLENTY_PART);
}

/* Whether keeping_open() would open some of them: not all are open, each has plenty of memory, and no program was
 * short of it lately. */
static bool keeping_would_open(struct keeping *k, const uint8_t (*uuids)[DEV_UUID_BYTES], size_t n)
{
	pthread_mutex_lock(&k->lock);
	bool would = would_open(k, uuids, n);
	pthread_mutex_unlock(&k->lock);
	return would;
}

/* Under the lock. May compile the kernels for digests; works without them, too. */
static int open_one(struct keeping *k, const uint8_t uuid[static DEV_UUID_BYTES])
{
	const struct dev_memory_ops *ops = gpus_ops(k->o->gpus);
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct dev_digester *digester;
	struct dev_memory *memory;

	if (k->n == DEV_GPUS_MAX)
		return -EOVERFLOW;
	int r = gpus_get(k->o->gpus, &memory, uuid, &err);
	if (r < 0) {
		log_debug("a GPU is not opened ahead: %s", err.text);
		return r;
	}
	memcpy(k->uuids[k->n++], uuid, DEV_UUID_BYTES);
	if (k->o->digests && ops->digester_open(memory, CHUNK_BYTES_MAX, &digester, &err) == 0)
		ops->digester_close(digester);
	return 0;
}

/* Opens these if keeping_would_open(). Returns whether all are kept. May take a second. */
static bool keeping_open(struct keeping *k, const uint8_t (*uuids)[DEV_UUID_BYTES], size_t n)
{
	const struct dev_backend *b;
	int r = 0;

	pthread_mutex_lock(&k->lock);
	if (would_open(k, uuids, n) && driver_wait(k->o->driver, &b, NULL, NULL) == 0) {
		gpus_use(k->o->gpus, b->memory);
		gpus_keep(k->o->gpus, true);
		k->keeps = true;
		for (size_t i = 0; i < n && r == 0; i++)
			r = has(k, uuids[i]) ? 0 : open_one(k, uuids[i]);
		if (r < 0)
			pause_opening(k);
		if (!k->n)
			stop_keeping(k);
	}
	bool kept = has_all(k, uuids, n);
	pthread_mutex_unlock(&k->lock);
	return kept;
}

/* Pins a populated segment of the pool. Returns whether there may be another. */
static bool keeping_pin(struct keeping *k)
{
	bool more = false;

	pthread_mutex_lock(&k->lock);
	struct dev_memory *memory = k->keeps ? gpus_any(k->o->gpus) : NULL;
	if (memory) {
		int r = pool_pin_ready(gpus_pool(k->o->gpus), gpus_ops(k->o->gpus), memory);

		if (r < 0) /* the driver refuses, and should not be asked all the time */
			pause_opening(k);
		if (r < 0)
			stop_keeping(k);
		more = r > 0;
	}
	pthread_mutex_unlock(&k->lock);
	return more;
}

/* Whether a kept GPU has little memory left. */
static bool keeping_is_short(struct keeping *k)
{
	pthread_mutex_lock(&k->lock);
	bool is_short = k->keeps && !have_free(k, (const uint8_t(*)[DEV_UUID_BYTES])k->uuids, k->n,
					       LITTLE_PART);
	pthread_mutex_unlock(&k->lock);
	return is_short;
}

/* No client wants them any more: they are closed once no copy has needed them for a while. */
static void keeping_let_go(struct keeping *k)
{
	pthread_mutex_lock(&k->lock);
	if (k->keeps)
		stop_keeping(k);
	pthread_mutex_unlock(&k->lock);
}

/* A program is short of device memory: closes them as soon as no copy uses them, if that is within @timeout_ms, and
 * does not open them again for a while. Returns whether none is open. */
static bool keeping_yield(struct keeping *k, uint32_t timeout_ms)
{
	pthread_mutex_lock(&k->lock);
	if (k->keeps) {
		log_info("device memory is short: GPUs that were open ahead of copies are closed");
		pause_opening(k);
		stop_keeping(k);
	}
	pthread_mutex_unlock(&k->lock);
	return k->o->close(k->o->arg, timeout_ms);
}

/* ---- who wants how much ---- */

/* Adds host memory for a process's device memory on a GPU, on the memory node near that GPU. */
static void add_want(struct client *c, const struct dev_backend *b, const char *gpu, uint64_t bytes)
{
	uint8_t uuid[DEV_UUID_BYTES];
	const int node = b->memory && dev_uuid_parse(uuid, gpu) == 0 ? b->memory->node(uuid) : -1;

	for (size_t i = 0; i < c->n_wants; i++) {
		if (c->wants[i].node != node)
			continue;
		c->wants[i].bytes += bytes;
		return;
	}
	if (c->n_wants < DEV_GPUS_MAX)
		c->wants[c->n_wants++] = (struct pool_kind){ .node = node, .bytes = bytes };
}

static void add_gpu(struct client *c, const char *gpu)
{
	uint8_t *uuid = c->gpus[c->n_gpus];

	if (c->n_gpus == DEV_GPUS_MAX || dev_uuid_parse(uuid, gpu) < 0)
		return;
	for (size_t i = 0; i < c->n_gpus; i++)
		if (!memcmp(c->gpus[i], uuid, DEV_UUID_BYTES))
			return;
	c->n_gpus++;
}

/* Measures the device memory of the client's processes. Returns the bytes. */
static uint64_t measure_client(struct client *c, const struct dev_backend *b)
{
	uint64_t total = 0;

	c->n_wants = c->n_gpus = 0;
	for (size_t i = 0; i < c->n; i++) {
		struct dev_process process = { 0 };

		b->usage(c->pids[i], &process);
		for (size_t k = 0; k < process.n_gpus; k++) {
			add_want(c, b, process.gpus[k], process.gpu_bytes[k]);
			add_gpu(c, process.gpus[k]);
		}
		total += process.used_bytes;
	}
	if (total < WORTH_BYTES || c->kept_bytes)
		c->n_wants = 0;
	for (size_t i = 0; i < c->n_wants; i++)
		c->wants[i].segment_bytes = pool_segment_bytes(total);
	return total < WORTH_BYTES ? 0 : total;
}

static void end_client(struct preparer *p, size_t i)
{
	struct client *c = &p->clients[i];

	cleanup_close(&c->fd);
	free(c->pids);
	*c = p->clients[--p->n];
	p->last_end_ns = clock_now_ns();
	if (!p->n)
		loop_wake(p->o.loop);
}

static bool has_ended(const struct client *c)
{
	struct pollfd fd = { .fd = c->fd, .events = POLLIN };

	return c->fd < 0 ? deadline_left_ms(c->until_ns) == 0 : poll(&fd, 1, 0) > 0;
}

static void drop_ended_clients(struct preparer *p)
{
	for (size_t i = p->n; i-- > 0;)
		if (has_ended(&p->clients[i]))
			end_client(p, i);
}

/* Closes the connection. The client will ask again, and then gets the state of that time. */
static void hang_up(struct client *c)
{
	cleanup_close(&c->fd);
	c->until_ns = deadline_in_ms(LINGER_MS);
	c->told_open = c->spare = false;
}

/* ---- host copies that clients keep while nobody needs the memory ---- */

/* Under the lock. */
static uint64_t count_spare(const struct preparer *p)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < p->n; i++)
		bytes +=
			p->clients[i].spare && p->clients[i].fd >= 0 ? p->clients[i].kept_bytes : 0;
	return bytes;
}

uint64_t preparer_spare_bytes(struct preparer *p)
{
	pthread_mutex_lock(&p->lock);
	uint64_t bytes = count_spare(p);
	pthread_mutex_unlock(&p->lock);
	return bytes;
}

uint64_t preparer_recall_spare(struct preparer *p)
{
	pthread_mutex_lock(&p->lock);
	uint64_t bytes = count_spare(p);
	for (size_t i = 0; i < p->n; i++)
		if (p->clients[i].spare && p->clients[i].fd >= 0)
			hang_up(&p->clients[i]);
	pthread_mutex_unlock(&p->lock);
	if (bytes)
		log_info("memory is short: host copies of running jobs are given back bytes=%llu",
			 (unsigned long long)bytes);
	return bytes;
}

/* Under the lock: ends earlier requests for the same processes. */
static void end_same(struct preparer *p, const pid_t *pids, size_t n)
{
	for (size_t i = p->n; i-- > 0;)
		if (p->clients[i].n == n && !memcmp(p->clients[i].pids, pids, n * sizeof(*pids)))
			end_client(p, i);
}

/* Under the lock: sums what all clients want. Returns the number of kinds; @ret has room for KINDS_MAX. */
static size_t collect_kinds(const struct preparer *p, struct pool_kind *ret)
{
	size_t n = 0;

	for (size_t i = 0; i < p->n; i++)
		for (size_t k = 0; k < p->clients[i].n_wants; k++) {
			const struct pool_kind *want = &p->clients[i].wants[k];
			size_t at = 0;

			while (at < n && (ret[at].segment_bytes != want->segment_bytes ||
					  ret[at].node != want->node))
				at++;
			if (at < n)
				ret[at].bytes += want->bytes;
			else if (n < KINDS_MAX)
				ret[n++] = *want;
		}
	return n;
}

/* The first kind of segment of which there are too few; NULL: none. */
static const struct pool_kind *find_missing(const struct preparer *p, const struct pool_kind *kinds,
					    size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (pool_ready_bytes(p->o.pool, &kinds[i]) < kinds[i].bytes)
			return &kinds[i];
	return NULL;
}

/* ---- pressure ---- */

static int open_pressure(const char *path)
{
	auto_close int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);

	if (fd < 0 || write(fd, trigger, sizeof(trigger)) < 0)
		return -1;
	return take_fd(&fd);
}

/* Watches the machine and our cgroup, whose limit may be reached first. */
static void watch_pressure(struct preparer *p)
{
	auto_free char *cgroup = machine_cgroup(0);
	auto_free char *path =
		cgroup && *cgroup ? path_format("/sys/fs/cgroup%s/memory.pressure", cgroup) : NULL;

	if (p->o.pressure_fd) {
		p->pressure_fds[0] = fcntl(p->o.pressure_fd, F_DUPFD_CLOEXEC, 0);
		return;
	}
	p->pressure_fds[0] = open_pressure("/proc/pressure/memory");
	p->pressure_fds[1] = path ? open_pressure(path) : -1;
}

/* The sooner pressure returns, the longer the pause. */
static void note_pressure(struct preparer *p, uint64_t free_bytes)
{
	const bool is_news = free_bytes || deadline_left_ms(p->pressed.until_ns) == 0;

	extend_pause(&p->pressed, PRESSED_LEAST_MS, PRESSED_MOST_MS);
	if (is_news)
		log_info("memory is short: what was ready for copies is given back, and none is "
			 "made ready: "
			 "bytes=%llu ms=%u",
			 (unsigned long long)free_bytes, p->pressed.ms);
}

/* ---- GPUs that are open ---- */

/* Under the lock: closes the connections of clients that were informed of open GPUs, so that they know before the
 * GPUs are closed. */
static void hang_up_on_told(struct preparer *p)
{
	for (size_t i = 0; i < p->n; i++)
		if (p->clients[i].told_open && p->clients[i].fd >= 0)
			hang_up(&p->clients[i]);
}

/* Under the lock: closes the connections of clients for which GPUs are open by now, or can be opened. */
static void hang_up_on_waiting(struct preparer *p)
{
	for (size_t i = 0; i < p->n; i++) {
		struct client *c = &p->clients[i];

		if (c->may_open && c->fd >= 0 &&
		    (keeping_has(&p->keeping, c->gpus, c->n_gpus)
			     ? !c->told_open
			     : keeping_would_open(&p->keeping, c->gpus, c->n_gpus)))
			hang_up(c);
	}
}

/* Under the lock. Returns whether the GPUs have to be closed: they have been short of memory for longer than the
 * informed clients need to react. */
static bool look_at_gpus(struct preparer *p)
{
	if (p->o.gpus && !p->n)
		keeping_let_go(&p->keeping);
	if (!p->o.gpus || !p->n ||
	    (p->looked_at_gpus_ns &&
	     clock_now_ns() < p->looked_at_gpus_ns + LOOK_AT_GPUS_MS * NS_PER_MS))
		return false;
	p->looked_at_gpus_ns = clock_now_ns();
	if (!keeping_is_short(&p->keeping)) {
		p->short_ns = 0;
		hang_up_on_waiting(p);
		return false;
	}
	hang_up_on_told(p);
	p->short_ns = p->short_ns ? p->short_ns : clock_now_ns();
	return clock_now_ns() >= p->short_ns + YIELD_MS * NS_PER_MS;
}

bool preparer_yield(struct preparer *p)
{
	if (!p->o.gpus)
		return true;
	pthread_mutex_lock(&p->lock);
	hang_up_on_told(p);
	pthread_mutex_unlock(&p->lock);
	return keeping_yield(&p->keeping, CLOSED_MS);
}

/* ---- the thread ---- */

static uint64_t room_bytes(const struct preparer *p)
{
	return p->o.room_bytes ? p->o.room_bytes() : machine_room_bytes();
}

static void look_at_clients(struct preparer *p)
{
	const struct dev_backend *b;

	if (p->looked_ns && clock_now_ns() < p->looked_ns + LOOK_MS * NS_PER_MS)
		return;
	p->looked_ns = clock_now_ns();
	if (driver_wait(p->o.driver, &b, NULL, NULL) < 0)
		return;
	for (size_t i = 0; i < p->n; i++)
		measure_client(&p->clients[i], b);
}

/* Frees surplus memory, or makes one segment ready if one is missing. Returns the milliseconds until the next call. */
static int work_once(struct preparer *p, bool pressed)
{
	struct pool_kind kinds[KINDS_MAX];
	uint64_t idle_since_ns;
	bool idle = p->o.is_idle(p->o.arg, &idle_since_ns);

	pthread_mutex_lock(&p->lock);
	drop_ended_clients(p);
	look_at_clients(p);
	size_t n = collect_kinds(p, kinds);
	bool wanted = p->n > 0, late = look_at_gpus(p);
	pthread_mutex_unlock(&p->lock);

	if (late)
		keeping_yield(&p->keeping, 0);
	uint64_t held = pool_free_bytes(p->o.pool), room = room_bytes(p);
	uint64_t spare = preparer_spare_bytes(p), budget = prepare_budget(room, held + spare);
	if (pressed)
		note_pressure(p, held);
	if (pressed || spare > budget)
		preparer_recall_spare(p);
	budget -= spare < budget ? spare : budget;
	pool_trim(p->o.pool, pressed ? 0 : budget);
	/* After a copy, surplus memory is kept for a while: another copy may follow. */
	if (idle && deadline_left_ms(idle_since_ns + KEEP_MS * NS_PER_MS) == 0)
		pool_keep(p->o.pool, kinds, n);
	const struct pool_kind *missing = idle && deadline_left_ms(p->pressed.until_ns) == 0
						  ? find_missing(p, kinds, n)
						  : NULL;
	if (missing && held + missing->segment_bytes <= budget &&
	    pool_prepare(p->o.pool, missing->segment_bytes, missing->node) == 0)
		return 0;
	if (idle && wanted && p->o.gpus && keeping_pin(&p->keeping))
		return 0;
	return held || spare ? prepare_pause_ms(room) : wanted ? PAUSE_MOST_MS : -1;
}

static bool wait_once(struct preparer *p, int pause_ms)
{
	struct pollfd fds[3 + CLIENTS_MAX] = {
		{ .fd = p->changed_fd, .events = POLLIN },
		{ .fd = p->pressure_fds[0], .events = POLLPRI },
		{ .fd = p->pressure_fds[1], .events = POLLPRI },
	};
	eventfd_t count;
	nfds_t n = 3;

	pthread_mutex_lock(&p->lock);
	for (size_t i = 0; i < p->n; i++)
		fds[n++] = (struct pollfd){ .fd = p->clients[i].fd, .events = POLLIN };
	pthread_mutex_unlock(&p->lock);
	if (poll(fds, n, pause_ms) <= 0)
		return false;
	if (fds[0].revents)
		eventfd_read(p->changed_fd, &count);
	return (fds[1].revents | fds[2].revents) & POLLPRI;
}

static void *prepare_thread(void *arg)
{
	struct preparer *p = arg;
	bool pressed = false;

	if (setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE) < 0)
		log_debug("memory is made ready at the broker's own priority");
	for (;;) {
		int pause_ms = work_once(p, pressed);

		pthread_mutex_lock(&p->lock);
		bool stopping = p->stopping;
		pthread_mutex_unlock(&p->lock);
		if (stopping)
			return NULL;
		pressed = wait_once(p, pause_ms);
	}
}

/* Under the lock. */
static int start(struct preparer *p)
{
	if (p->stopping)
		return -ESHUTDOWN;
	if (p->started)
		return 0;
	watch_pressure(p);
	int r = thread_start(&p->thread, prepare_thread, p);
	p->started = r == 0;
	return r;
}

/* ---- for the broker ---- */

/* Device memory of the broker itself on the GPU. */
static uint64_t bytes_of_own(const struct dev_backend *b, const char *gpu)
{
	struct dev_process own = { 0 };

	b->usage(getpid(), &own);
	for (size_t i = 0; i < own.n_gpus; i++)
		if (!strcmp(own.gpus[i], gpu))
			return own.gpu_bytes[i];
	return 0;
}

static void open_gpus(struct preparer *p, struct client *c, const struct dev_backend *b,
		      struct prepared *ret)
{
	c->told_open = c->may_open && p->o.gpus &&
		       (keeping_has(&p->keeping, c->gpus, c->n_gpus) ||
			keeping_open(&p->keeping, c->gpus, c->n_gpus));
	for (; c->told_open && ret->n_open < c->n_gpus; ret->n_open++) {
		struct prepared_gpu *gpu = &ret->open[ret->n_open];

		dev_uuid_format(gpu->uuid, c->gpus[ret->n_open]);
		gpu->bytes = bytes_of_own(b, gpu->uuid);
	}
}

/* Determines what @c will get; its processes are known. */
static int prepare_client(struct preparer *p, struct client *c, struct prepared *ret,
			  struct brumate_error *err)
{
	const struct dev_backend *b;
	int r = driver_wait(p->o.driver, &b, NULL, err);

	if (r < 0)
		return r;
	ret->bytes = b->usage ? measure_client(c, b) : 0;
	if (ret->bytes)
		open_gpus(p, c, b, ret);
	return 0;
}

int preparer_add(struct preparer *p, int fd, const struct prepare_request *request,
		 struct prepared *ret, struct brumate_error *err)
{
	const pid_t *pids = request->pids;
	const size_t n = request->n;
	struct client c = { .fd = fd,
			    .pids = calloc(n + 1, sizeof(*pids)),
			    .n = n,
			    .may_open = request->may_open,
			    .kept_bytes = request->kept_bytes,
			    .spare = request->spare };
	int r = c.pids ? 0 : brumate_fail(err, ENOMEM, "prepare: %m");

	*ret = (struct prepared){ 0 };
	if (r == 0) {
		memcpy(c.pids, pids, n * sizeof(*pids));
		r = prepare_client(p, &c, ret, err);
	}
	pthread_mutex_lock(&p->lock);
	end_same(p, pids, n);
	if (r == 0 && ret->bytes && p->n == CLIENTS_MAX)
		r = brumate_fail(err, EBUSY, "prepare: for %d jobs already", CLIENTS_MAX);
	if (r == 0 && ret->bytes && (r = start(p)) < 0)
		brumate_fail(err, -r, "prepare: no thread: %m");
	bool keep = r == 0 && ret->bytes;
	if (keep)
		p->clients[p->n++] = c;
	pthread_mutex_unlock(&p->lock);
	if (keep) {
		eventfd_write(p->changed_fd, 1);
	} else {
		close(fd);
		free(c.pids);
	}
	return r;
}

size_t preparer_busy(struct preparer *p, uint64_t *ret_last_end_ns)
{
	pthread_mutex_lock(&p->lock);
	size_t n = p->n;
	*ret_last_end_ns = p->last_end_ns;
	pthread_mutex_unlock(&p->lock);
	return n;
}

int preparer_new(struct preparer **ret, const struct prepare_options *o, struct brumate_error *err)
{
	struct preparer *p = calloc(1, sizeof(*p));

	if (!p)
		return brumate_fail(err, ENOMEM, "%m");
	*p = (struct preparer){ .o = *o, .keeping.o = &p->o, .pressure_fds = { -1, -1 } };
	pthread_mutex_init(&p->lock, NULL);
	pthread_mutex_init(&p->keeping.lock, NULL);
	p->changed_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (p->changed_fd < 0) {
		free(p);
		return brumate_fail(err, errno, "eventfd: %m");
	}
	*ret = p;
	return 0;
}

void preparer_stop(struct preparer *p)
{
	pthread_mutex_lock(&p->lock);
	const bool joins = p->started && !p->stopping;
	p->stopping = true;
	pthread_mutex_unlock(&p->lock);
	eventfd_write(p->changed_fd, 1);
	if (joins)
		pthread_join(p->thread, NULL);
	if (p->o.gpus)
		keeping_let_go(&p->keeping);
}

void preparer_free(struct preparer *p)
{
	if (!p)
		return;
	preparer_stop(p);
	while (p->n)
		end_client(p, 0);
	for (size_t i = 0; i < PRESSURES; i++)
		cleanup_close(&p->pressure_fds[i]);
	cleanup_close(&p->changed_fd);
	pthread_mutex_destroy(&p->lock);
	pthread_mutex_destroy(&p->keeping.lock);
	free(p);
}

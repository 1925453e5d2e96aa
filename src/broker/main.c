// SPDX-License-Identifier: MIT
/*
 * brumate-broker: the only program that loads the vendor driver, one for each user. It serves io.brumate.broker on a
 * socket for that user, and ends when it has not been needed for a while, so that an idle node has no driver state at
 * all. It decides no policy.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/conf.h"
#include "base/digest.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/paths.h"
#include "base/start.h"
#include "broker/broker.h"
#include "gpu/vendor.h"
#include "wire/wire.h"

#define IDLE_VARIABLE "BRUMATE_BROKER_IDLE_S"

enum {
	IDLE_MAX_S = 7 * 24 * 3600,
	IDLE_FAILED_MS = 1000,	   /* if the driver could not be loaded */
	DRAIN_TIMEOUT_MS = 300000, /* for calls that outlast their callers */
	OOM_SCORE_ADJ = -900,	   /* the broker may hold what jobs need for their resume */
	LARGE_BYTES = 256 << 10, /* larger allocations go back to the kernel when they are freed */
};

/* ---- one broker for each runtime directory: its lock and its socket ---- */

/* The lock is held as long as the process lives; the socket exists as long as it accepts clients. */
struct instance {
	int lock_fd;
	int listen_fd;
	char *path; /* of the socket */
	dev_t dev;  /* identify the socket: the directory may be created again while we run */
	ino_t ino;
};

#define INSTANCE_EMPTY ((struct instance){ .lock_fd = -1, .listen_fd = -1 })

enum { CLAIM_TIMEOUT_MS = 15000, CLAIM_RECHECK_MS = 50 };

static void instance_fini(struct instance *i)
{
	cleanup_close(&i->listen_fd);
	free(take_ptr(&i->path));
	cleanup_close(&i->lock_fd);
}
DEFINE_AUTO_FINI(struct instance, instance_fini)

static bool is_served(const char *path)
{
	struct wire w;

	if (wire_connect(&w, path, NULL) < 0)
		return false;
	wire_fini(&w);
	return true;
}

/* Returns 0 with the lock; 1 if its holder serves clients; -EAGAIN if the holder does not (yet or any more). */
static int try_claim(int lock_fd, const char *path)
{
	if (flock(lock_fd, LOCK_EX | LOCK_NB) == 0)
		return 0;
	if (errno != EWOULDBLOCK)
		return -errno;
	return is_served(path) ? 1 : -EAGAIN;
}

/* Sleeps until something happens in the directory: the socket appears, or the lock file is closed. The kernel reports
 * a close just before it drops the lock, so the caller checks once more a little later. */
static int wait_event(int inotify_fd)
{
	struct pollfd p = { .fd = inotify_fd, .events = POLLIN };
	char events[4096];
	int n = poll(&p, 1, CLAIM_RECHECK_MS);

	if (n < 0)
		return errno == EINTR ? 0 : -errno;
	return n > 0 && read(inotify_fd, events, sizeof(events)) < 0 ? -errno : 0;
}

static int claim_lock(int lock_fd, const char *dir, const char *path)
{
	auto_close int watch = inotify_init1(IN_CLOEXEC);
	uint64_t deadline_ns = deadline_in_ms(CLAIM_TIMEOUT_MS);

	if (watch < 0 ||
	    inotify_add_watch(watch, dir, IN_CREATE | IN_MOVED_TO | IN_CLOSE_WRITE) < 0)
		return -errno;
	for (;;) {
		int r = try_claim(lock_fd, path);

		if (r != -EAGAIN)
			return r;
		if (deadline_left_ms(deadline_ns) == 0)
			return -ETIMEDOUT;
		r = wait_event(watch);
		if (r < 0)
			return r;
	}
}

/* Becomes the broker of this runtime directory. Returns 0; 1 if another broker serves; <0. Waits for a broker that is
 * ending. */
static int instance_claim(struct instance *ret, const struct gpu_kind *kind,
			  struct brumate_error *err)
{
	auto_(instance_fini) struct instance i = INSTANCE_EMPTY;
	const char *dir = path_runtime_dir();
	auto_free char *name = gpu_kind_broker(kind);
	if (!name)
		return brumate_fail(err, ENOMEM, "%m");
	auto_free char *lock = path_format("%s/%s.lock", dir, name);
	i.path = path_format("%s/%s.sock", dir, name);
	if (!lock || !i.path)
		return brumate_fail(err, ENOMEM, "%s: %m", dir);

	int r = path_make_runtime_dir(err);
	if (r < 0)
		return r;
	i.lock_fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (i.lock_fd < 0)
		return brumate_fail(err, errno, "%s: %m", lock);
	r = claim_lock(i.lock_fd, dir, i.path);
	if (r < 0)
		return brumate_fail(err, -r, "%s: held by a broker that does not answer: %m", lock);
	if (r > 0)
		return 1;

	i.listen_fd = wire_listen(i.path, 0600, err);
	if (i.listen_fd < 0)
		return i.listen_fd;
	struct stat st;
	if (lstat(i.path, &st) < 0)
		return brumate_fail(err, errno, "%s: %m", i.path);
	i.dev = st.st_dev;
	i.ino = st.st_ino;
	*ret = i;
	i = INSTANCE_EMPTY;
	return 0;
}

/* The socket may be another broker's, in a directory that was removed and created again. */
static bool is_ours(const struct instance *i)
{
	struct stat st;

	return lstat(i->path, &st) == 0 && st.st_dev == i->dev && st.st_ino == i->ino;
}

/* Removes the socket at once, even if clients are connecting. */
static void instance_withdraw(struct instance *i)
{
	if (is_ours(i))
		unlink(i->path);
}

/* Removes the socket when no client is connecting. Returns 0 when it is removed; 1 if a client connected in between:
 * then the socket is back in its place, and the client waits to be served. The socket is renamed first, so that such
 * a client is found in its queue, and the same socket can be put back. A client that looks for the socket in between
 * starts another broker, which waits. */
static int instance_retire(struct instance *i)
{
	auto_free char *aside = path_format("%s.closing", i->path);
	struct pollfd p = { .fd = i->listen_fd, .events = POLLIN };

	if (!aside || !is_ours(i) || rename(i->path, aside) < 0)
		return 0;
	if (poll(&p, 1, 0) > 0 && rename(aside, i->path) == 0)
		return 1;
	unlink(aside);
	return 0;
}

/* ---- options ---- */

struct options {
	struct gpu_kind kind;
	int ready_fd; /* -1: none */
};

static int parse_options(struct options *ret, int argc, char **argv)
{
	static const struct option known[] = {
		{ "simulated", no_argument, NULL, 's' },
		{ "vendor", required_argument, NULL, 'v' },
		{ "ready-fd", required_argument, NULL, 'r' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	struct options o = { .ready_fd = -1 };
	int c;

	while ((c = getopt_long(argc, argv, "h", known, NULL)) != -1) {
		switch (c) {
		case 's':
			o.kind.simulated = true;
			break;
		case 'v':
			if (gpu_vendor_find(optarg)) {
				snprintf(o.kind.vendor, sizeof(o.kind.vendor), "%s", optarg);
				break;
			}
			fprintf(stderr, "brumate-broker: --vendor: %s is not known\n", optarg);
			return -EXIT_USAGE;
		case 'r':
			o.ready_fd = atoi(optarg);
			if (o.ready_fd > STDERR_FILENO &&
			    fcntl(o.ready_fd, F_SETFD, FD_CLOEXEC) == 0)
				break;
			fprintf(stderr,
				"brumate-broker: --ready-fd: %s is not an open descriptor\n",
				optarg);
			return -EXIT_USAGE;
		case 'h':
			puts("usage: brumate-broker [--simulated] [--vendor ID] [--ready-fd N]\n"
			     "Started by brumate when needed; see brumate-broker(8).");
			return 1;
		default:
			return -EXIT_USAGE;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "brumate-broker: takes no argument '%s'\n", argv[optind]);
		return -EXIT_USAGE;
	}
	*ret = o;
	return 0;
}

static int get_idle_ms(uint64_t *ret, const struct brumate_conf *conf, struct brumate_error *err)
{
	const char *text = getenv(IDLE_VARIABLE);
	char *end;

	if (!text || !*text) {
		*ret = conf->idle_timeout_ms ? conf->idle_timeout_ms : IDLE_MAX_S * 1000ull;
		return 0;
	}
	double seconds = strtod(text, &end);
	if (end != text && !*end && seconds == 0)
		seconds = IDLE_MAX_S;
	if (*end || !(seconds > 0) || seconds > IDLE_MAX_S)
		return brumate_fail(err, EINVAL,
				    IDLE_VARIABLE ": '%s' is not a number of seconds up to %d",
				    text, IDLE_MAX_S);
	*ret = (uint64_t)(seconds * 1000) + 1;
	return 0;
}

/* Each piece of device memory needs a descriptor, and a job may have ten thousand of them. */
static void raise_limits(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return;
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
		log_debug("the limit of open files stays as it is");
}

/* Sheds what was inherited from the process that started it: the broker serves all jobs of its user alike. */
static int detach(void)
{
	setsid();
	raise_limits();
	umask(066);
	signal(SIGINT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	children_wait_for_us(); /* children of the driver, too */

	auto_close int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
	char text[16];
	snprintf(text, sizeof(text), "%d", OOM_SCORE_ADJ);
	if (fd < 0 || fd_write_full(fd, text, strlen(text)) < 0)
		log_debug("the OOM score stays as it is");
	return chdir("/") < 0 ? -errno : 0;
}

static int open_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
		return -errno;
	int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return fd < 0 ? -errno : fd;
}

/* ---- serving ---- */

/* State of the serving loop. */
struct program {
	struct broker *broker;
	struct instance instance;
	pthread_mutex_t socket_lock; /* of the path of the instance's socket */
	struct wire_server *server;
	int signal_fd;
	struct loop loop;
	struct loop_source calls, signals;
	bool is_told_to_end;
	uint64_t idle_ms;
	char *driver, *management; /* paths of the libraries; NULL: the vendor's */
};

/* Removes the socket at once, even if clients are connecting. */
static void withdraw(void *arg)
{
	struct program *p = arg;

	pthread_mutex_lock(&p->socket_lock);
	instance_withdraw(&p->instance);
	pthread_mutex_unlock(&p->socket_lock);
}

static bool retire(struct program *p)
{
	pthread_mutex_lock(&p->socket_lock);
	int r = instance_retire(&p->instance);
	pthread_mutex_unlock(&p->socket_lock);
	return r == 0;
}

/* Milliseconds until the broker has been idle for long enough; 0: it has been. Connections do not count if the driver
 * could not be loaded: the next broker may succeed. */
static int idle_left_ms(const struct program *p)
{
	uint64_t last_connection_ns, last_ns, idle_ms = p->idle_ms;
	size_t connections = wire_server_connections(p->server, &last_connection_ns);
	bool busy = broker_is_busy(p->broker, &last_ns);
	bool failed = broker_has_failed(p->broker);

	if (failed && idle_ms > IDLE_FAILED_MS)
		idle_ms = IDLE_FAILED_MS;
	if (last_connection_ns > last_ns)
		last_ns = last_connection_ns;
	if (!failed && (connections || busy))
		return idle_ms < INT_MAX ? (int)idle_ms : INT_MAX;
	return deadline_left_ms(last_ns + idle_ms * NS_PER_MS);
}

static void take_call(void *arg)
{
	struct program *p = arg;

	wire_server_accept(p->server);
}

static void take_signal(void *arg)
{
	struct program *p = arg;

	p->is_told_to_end = true;
}

/* Returns when the broker has to end, after removing its socket. */
static int serve(struct program *p)
{
	int r = 0;

	loop_add(&p->loop, &p->calls, take_call, p);
	loop_add(&p->loop, &p->signals, take_signal, p);
	loop_watch(&p->calls, wire_server_fd(p->server), POLLIN);
	loop_watch(&p->signals, p->signal_fd, POLLIN);
	while (r == 0) {
		int left_ms = idle_left_ms(p);

		if (broker_is_unwanted(p->broker) || p->is_told_to_end) {
			withdraw(p);
			log_info("ending when the calls under way have ended");
			return 0;
		}
		if (left_ms == 0 && retire(p)) {
			log_info("ending, nobody needs it");
			return 0;
		}
		int rest_ms = broker_rest(p->broker);
		r = loop_turn(&p->loop, rest_ms >= 0 && rest_ms < left_ms ? rest_ms : left_ms);
	}
	return r;
}

static void tell_ready(int *fd)
{
	if (*fd >= 0 && write(*fd, "R", 1) < 0)
		log_debug("nobody waits for readiness");
	cleanup_close(fd);
}

static void tell_failure(int *fd, const struct brumate_error *err)
{
	log_error("%s%s%s", err->text, err->hint[0] ? "; " : "", err->hint);
	if (*fd >= 0)
		dprintf(*fd, "E%s", err->text);
	cleanup_close(fd);
}

/* With a cache directory the driver compiles our kernels once. Without, the compilation takes half a second before
 * the first copy, each time that a GPU is opened. */
static void place_kernel_cache(const struct gpu_vendor *vendor)
{
	const char *home = getenv("HOME");
	auto_free char *path = path_format("%s/kernels", path_state_dir());

	if (path && vendor->backend->keep_kernels_in && (!home || !*home))
		vendor->backend->keep_kernels_in(path);
}

static int find_simulated(struct program *p, const struct gpu_vendor *vendor,
			  struct brumate_error *err)
{
	if (!vendor->simulated_driver)
		return brumate_fail(err, EOPNOTSUPP, "there is no simulated driver of %s",
				    vendor->name);
	p->driver = path_find_helper(vendor->simulated_driver);
	p->management = path_find_helper(vendor->simulated_management_library);
	if (p->driver && p->management)
		return 0;
	return brumate_fail(err, ENOENT, "the simulated driver (%s) is not installed",
			    p->driver ? vendor->simulated_management_library
				      : vendor->simulated_driver);
}

static int start_broker(struct program *p, const struct brumate_conf *conf,
			const struct gpu_kind *kind, struct brumate_error *err)
{
	struct broker_options o = { .vendor = gpu_kind_vendor(kind),
				    .pool_bytes = conf->pool_bytes,
				    .memory_bytes = conf->memory_bytes,
				    .spill_dir = conf->spill_dir,
				    .digests = conf->digests,
				    .open_gpus = conf->prepare_gpu,
				    .withdraw = withdraw,
				    .withdraw_arg = p,
				    .loop = &p->loop };
	int r = kind->simulated ? find_simulated(p, o.vendor, err) : 0;

	if (r == 0 && digest_set_up() < 0)
		r = brumate_fail(err, ENOMEM, "libcrypto: %m");
	o.libraries = (struct dev_libraries){ p->driver, p->management, kind->simulated };
	if (r == 0)
		r = broker_new(&p->broker, &o, err);
	if (r < 0)
		return r;
	struct wire_service service = broker_service(p->broker);
	int listen_fd = fcntl(p->instance.listen_fd, F_DUPFD_CLOEXEC, 0);
	if (listen_fd < 0)
		return brumate_fail(err, errno, "socket: %m");
	return wire_server_new(&p->server, &service, listen_fd, err);
}

static void end_broker(struct program *p)
{
	if (p->server && broker_has_failed(p->broker)) /* connected clients get the error */
		wire_server_drain(p->server, deadline_in_ms(IDLE_FAILED_MS));
	wire_server_free(p->server);
	if (p->broker && broker_drain(p->broker, DRAIN_TIMEOUT_MS) < 0) {
		log_warn("ending with calls under way: the driver will end them by itself");
		_exit(EXIT_FAILED); /* threads are in the driver, so its exit handlers must not run */
	}
	instance_fini(&p->instance); /* the next broker need not wait for memory to be freed */
	broker_free(p->broker);
	free(p->driver);
	free(p->management);
}

static int run_program(struct program *p, struct options *o, struct brumate_error *err)
{
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	int r = conf_load(&conf, err);

	if (r == 0)
		r = get_idle_ms(&p->idle_ms, &conf, err);
	if (r < 0)
		return r;
	if (p->signal_fd < 0)
		return brumate_fail(err, errno, "signalfd: %m");
	r = instance_claim(&p->instance, &o->kind, err);
	if (r > 0)
		tell_ready(&o->ready_fd);
	if (r != 0)
		return r;
	const struct gpu_vendor *vendor = gpu_kind_vendor(&o->kind);
	if (vendor->backend->see_all_gpus)
		vendor->backend->see_all_gpus();
	place_kernel_cache(vendor);
	r = start_broker(p, &conf, &o->kind, err);
	if (r < 0)
		return r;
	tell_ready(&o->ready_fd);
	r = serve(p);
	return r < 0 ? brumate_fail(err, -r, "poll: %m") : 0;
}

static int run_broker(struct options *o, struct brumate_error *err)
{
	struct program p = { .instance = INSTANCE_EMPTY,
			     .socket_lock = PTHREAD_MUTEX_INITIALIZER,
			     .signal_fd = open_signals() };
	int r = loop_init(&p.loop);

	r = r < 0 ? brumate_fail(err, -r, "eventfd, timerfd: %m") : run_program(&p, o, err);

	end_broker(&p);
	loop_fini(&p.loop);
	cleanup_close(&p.signal_fd);
	return r;
}

int main(int argc, char **argv)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct options o;
	int r = parse_options(&o, argc, argv);

	if (r != 0)
		return r < 0 ? -r : EXIT_OK;
	log_init("brumate-broker");
	mallopt(M_MMAP_THRESHOLD, LARGE_BYTES); /* or each thread's arena keeps a chunk */
	r = detach();
	if (r < 0)
		brumate_fail(&err, -r, "/: %m");
	else
		r = run_broker(&o, &err);
	if (r >= 0)
		return EXIT_OK;
	tell_failure(&o.ready_fd, &err);
	return (int)brumate_exit_code(&err);
}

// SPDX-License-Identifier: MIT
/*
 * brumated: the methods of io.brumate on a socket, for clients that are allowed to act as root: every client may do
 * what root may. The socket's mode and group decide which users can connect, and the program refuses a socket that is
 * open to everybody. What a client starts runs as the user that the kernel reports. The program owns nothing but the
 * socket: jobs belong to their shims, and continue when it ends. In addition it keeps memory ready for containers,
 * which have no shim.
 */
#include "service/access.h"
#include "service/service.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/notify.h"
#include "base/paths.h"
#include "base/start.h"
#include "wire/wire.h"

/* ---- serving ---- */

static int stop_fd = -1; /* readable when calls under way should be cancelled */

static void pass_on(void *arg, json_t *parameters)
{
	wire_reply_more(arg, parameters);
}

static int serve_call(struct wire_call_context *context, service_method_fn run_daemon,
		      json_t *parameters, struct brumate_error *err)
{
	auto_json json_t *reply = NULL;
	struct service_call call = {
		.on_reply = pass_on,
		.arg = context,
		.cancel = { { { .fd = wire_call_fd(context) },
			      { .fd = stop_fd, .events = POLLIN } } },
	};

	auto_close int fd = wire_call_take_fd(context, 0);
	if (fd >= 0)
		call.fd = &fd;
	wire_call_peer(context, &call.uid, &call.gid, &call.pid);
	int r = run_daemon(&call, parameters, &reply, err);
	if (r == -ECANCELED) /* a caller that closed its connection does not get it; others do */
		r = brumate_fail(err, ESHUTDOWN, "brumated was stopped in the meantime");
	return r < 0 ? r : wire_reply(context, reply);
}

#define X(name, fn)                                                                            \
	static int serve_##name(void *arg, struct wire_call_context *call, json_t *parameters, \
				struct brumate_error *err)                                     \
	{                                                                                      \
		return serve_call(call, fn, parameters, err);                                  \
	}
SERVICE_METHODS(X)
#undef X

static const struct wire_method methods[] = {
#define X(name, fn) { "io.brumate." #name, serve_##name },
	SERVICE_METHODS(X)
#undef X
};

static const struct wire_service service = {
	.interface_name = "io.brumate",
	.description = wire_interface_brumate,
	.methods = methods,
	.n_methods = sizeof(methods) / sizeof(methods[0]),
};

static int check_socket(int fd, struct brumate_error *err)
{
	struct sockaddr_un address = { 0 };
	socklen_t len = sizeof(address) - 1;

	if (getsockname(fd, (struct sockaddr *)&address, &len) < 0)
		return brumate_fail(err, errno, "the service manager's socket: %m");
	if (address.sun_family != AF_UNIX || !address.sun_path[0])
		return brumate_fail(
			err, EACCES,
			"the service manager's socket has no path: any user may connect");
	return access_check_socket(address.sun_path, err);
}

/* Takes the socket of the service manager, or makes one if there is none. Returns the fd (owned) or <0. */
static int open_socket(struct brumate_error *err)
{
	auto_close int given = start_take_sockets() > 0 ? START_SOCKETS : -1;

	if (given >= 0) {
		int r = check_socket(given, err);

		return r < 0 ? r : take_fd(&given);
	}

	auto_free char *path = path_format("%s/brumated.sock", path_runtime_dir());
	if (!path)
		return brumate_fail(err, ENOMEM, "%m");
	int r = mkdir_parents(path_runtime_dir(), 0755);
	if (r < 0)
		return brumate_fail(err, -r, "%s: %m", path_runtime_dir());
	auto_close int fd = wire_listen(path, 0660, err);
	const struct group *group = getgrnam("brumate");
	if (fd >= 0 && group && chown(path, (uid_t)-1, group->gr_gid) < 0)
		return brumate_fail(err, errno, "%s: %m", path);
	return take_fd(&fd);
}

static int open_signals(struct brumate_error *err)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	int fd = signalfd(-1, &set, SFD_CLOEXEC);
	return fd < 0 ? brumate_fail(err, errno, "signalfd: %m") : fd;
}

static int serve_until_stopped(struct wire_server *server, int signal_fd, struct brumate_error *err)
{
	struct pollfd fds[] = {
		{ .fd = wire_server_fd(server), .events = POLLIN },
		{ .fd = signal_fd, .events = POLLIN },
	};

	while (!fds[1].revents) {
		if (poll(fds, 2, -1) < 0) {
			if (errno == EINTR)
				continue;
			return brumate_fail(err, errno, "poll: %m");
		}
		if (fds[0].revents)
			wire_server_accept(server);
	}
	return 0;
}

static void start_edges(void)
{
	const struct service_edge *const *volatile edges = service_edges;

	for (const struct service_edge *const *edge = edges; edge && *edge; edge++)
		if ((*edge)->start)
			(*edge)->start();
}

static int run_daemon(struct brumate_error *err)
{
	auto_close int signal_fd = open_signals(err);
	struct wire_server *server;

	if (signal_fd < 0)
		return signal_fd;
	stop_fd = eventfd(0, EFD_CLOEXEC);
	if (stop_fd < 0)
		return brumate_fail(err, errno, "eventfd: %m");
	int fd = open_socket(err);
	if (fd < 0)
		return fd;
	int r = wire_server_new(&server, &service, fd, err);
	if (r < 0)
		return r;

	notify_manager("READY=1", NULL, 0);
	log_info("serving io.brumate runtime_dir=%s state_dir=%s", path_runtime_dir(),
		 path_state_dir());
	start_edges();
	r = serve_until_stopped(server, signal_fd, err);
	notify_manager("STOPPING=1", NULL, 0);
	eventfd_write(stop_fd, 1);
	wire_server_free(server);
	return r;
}

int main(int argc, char **argv)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (argc == 2 && !strcmp(argv[1], "--version")) {
		puts("brumated " BRUMATE_VERSION);
		return EXIT_OK;
	}
	if (argc > 1) {
		bool help = !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h");

		fputs("usage: brumated [--version]\n"
		      "Serves brumate to programs of those who may be root; see brumated(8).\n",
		      help ? stdout : stderr);
		return help ? EXIT_OK : EXIT_USAGE;
	}
	log_init("brumated");
	children_wait_for_us();
	limits_raise_files();
	umask(022);
	if (geteuid() != 0) {
		log_error("must be started as root");
		return EXIT_PERMISSION;
	}
	if (path_check_given(&err) < 0 || run_daemon(&err) < 0) {
		log_error("%s%s%s", err.text, *err.hint ? ": " : "", err.hint);
		return (int)brumate_exit_code(&err);
	}
	return EXIT_OK;
}

// SPDX-License-Identifier: MIT
/*
 * Whether an address is in use: of the internet, the kernel tells who asks for it as CRIU will; of unix sockets, as its
 * list of them tells. To connect would disturb whoever listens. The answers are 1 (it is), 0, and -errno: it cannot be told.
 */
#include "engine/addresses.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/paths.h"
#include "criu/contents.h"
#include "image/escape.h"
#include "wire/wire.h"

enum { SOCKETS_BYTES_MAX = 64 << 20, UNIX_LISTENS = 1 << 16 };

static int read_image(void *arg, const char *name, char **ret, size_t *ret_len_bytes,
		      struct brumate_error *err)
{
	const struct op *op = arg;
	int r = file_read(op->images.dir_fd, name, CRIU_IMAGE_BYTES_MAX, ret, ret_len_bytes);

	return r < 0 ? brumate_fail(err, -r, "CRIU's image %s: %m", name) : 0;
}

/* ---- of the internet ---- */

union address {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

/* Reads "1.2.3.4:80" or "[::1]:80"; its length, 0 where it is neither. */
static socklen_t parse(union address *ret, const char *text)
{
	char host[INET6_ADDRSTRLEN + 1];
	const char *colon = strrchr(text, ':');
	bool is_v6 = *text == '[';
	size_t len = colon ? (size_t)(colon - text) - (is_v6 ? 2 : 0) : 0;

	if (!len || len >= sizeof(host))
		return 0;
	snprintf(host, sizeof(host), "%.*s", (int)len, text + is_v6);
	in_port_t port = htons((uint16_t)atoi(colon + 1));
	*ret = (union address){ 0 };
	ret->any.sa_family = is_v6 ? AF_INET6 : AF_INET;
	if (is_v6)
		ret->v6.sin6_port = port;
	else
		ret->v4.sin_port = port;
	void *to = is_v6 ? (void *)&ret->v6.sin6_addr : (void *)&ret->v4.sin_addr;
	if (!port || inet_pton(ret->any.sa_family, host, to) != 1)
		return 0;
	return is_v6 ? sizeof(ret->v6) : sizeof(ret->v4);
}

/* Sockets that share a port on purpose do so with a copy, too. */
static int inet_is_taken(const char *text, bool is_tcp)
{
	const int on = 1, type = is_tcp ? SOCK_STREAM : SOCK_DGRAM;
	union address address;
	socklen_t len = parse(&address, text);

	if (!len)
		return 0;
	auto_close int fd = socket(address.any.sa_family, type | SOCK_CLOEXEC, 0);
	if (fd < 0) /* nobody has an address of a family that is not here */
		return errno == EAFNOSUPPORT ? 0 : -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
	if (address.any.sa_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
	return bind(fd, &address.any, len) < 0 && errno == EADDRINUSE;
}

/* ---- unix sockets ---- */

/* A line of /proc/net/unix: "Num: RefCount Protocol Flags Type St Inode Path". */
static bool line_is_of(const char *line, const char *address)
{
	unsigned flags, type;
	int path = 0;

	if (sscanf(line, "%*x: %*x %*x %x %x %*x %*u %n", &flags, &type, &path) != 2 || !path)
		return false;
	return (flags & UNIX_LISTENS || type == SOCK_DGRAM) && !strcmp(line + path, address);
}

/* @sockets: the kernel's list. One that was left behind has its file, but is not in the list. */
static int unix_is_taken(const char *sockets, const char *address, const char *dir)
{
	auto_free char *text = strdup(sockets);
	auto_free char *path =
		*address == '/' || !dir ? strdup(address) : path_format("%s/%s", dir, address);
	struct stat st;

	if (!text || !path)
		return -ENOMEM;
	if (*address != '@' && (stat(path, &st) < 0 || !S_ISSOCK(st.st_mode)))
		return 0;
	char *rest = text;
	for (char *line; (line = strsep(&rest, "\n"));)
		if (line_is_of(line, address))
			return 1;
	return 0;
}

/* Where it has a place of its own, an agent's socket takes nobody's. */
static bool is_of_agent(const struct op *op, const char *address)
{
	auto_free char *place = job_agent_place(op->job);
	size_t len = place ? strlen(place) : 0;

	return len && !strncmp(address, place, len) && address[len] == '/';
}

/* ---- both ---- */

static int is_taken(const struct op *op, const char *sockets, json_t *socket)
{
	const char *state = text_of(socket, "state"), *protocol = text_of(socket, "protocol");
	const char *dir = json_string_value(json_object_get(socket, "directory"));
	auto_free char *address = NULL;

	if (!strcmp(state, "connected"))
		return 0;
	int r = text_unescape(&address, text_of(socket, "address"));
	if (r < 0 || !*address)
		return r;
	const bool listens = !strcmp(state, "listening");
	const bool is_udp = !strcmp(protocol, "udp"), is_tcp = listens && !strcmp(protocol, "tcp");
	if (!strcmp(text_of(socket, "kind"), "inet"))
		return is_udp || is_tcp ? inet_is_taken(address, is_tcp) : 0;
	if (strcmp(text_of(socket, "kind"), "unix") != 0 || is_of_agent(op, address) ||
	    !(listens || !strcmp(protocol, "datagram")))
		return 0;
	return unix_is_taken(sockets, address, dir);
}

int addresses_check(const struct op *op, struct brumate_error *err)
{
	auto_free char *list = NULL;
	auto_json json_t *sockets = NULL;
	json_t *socket;
	size_t i;
	int r = criu_sockets_read(&sockets, read_image, (void *)op, err);

	if (r == 0 && json_array_size(sockets))
		r = file_read(AT_FDCWD, "/proc/net/unix", SOCKETS_BYTES_MAX, &list, NULL);
	if (r < 0)
		return brumate_wrap(err, r, "addresses of the job");
	json_array_foreach (sockets, i, socket) {
		const char *address = text_of(socket, "address");

		r = is_taken(op, list, socket);
		if (r < 0)
			return brumate_fail(err, -r, "address %s of the job: %m", address);
		if (r) {
			brumate_fail(err, EADDRINUSE, "address %s of the job is in use", address);
			brumate_error_exit(err, EXIT_BUSY);
			brumate_hint(err,
				     "end who listens there: the job of which this is a copy?");
			return -EADDRINUSE;
		}
	}
	return 0;
}

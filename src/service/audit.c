// SPDX-License-Identifier: MIT
/* The audit line; see audit.h. */
#include "service/audit.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"

enum { LINE_BYTES = 2048, VALUE_BYTES_MAX = 400, AUTHPRIV_INFO = 10 << 3 | 6 };

struct line {
	char text[LINE_BYTES];
	size_t len;
};

__attribute__((format(printf, 2, 3))) static void add(struct line *l, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	int n = vsnprintf(l->text + l->len, sizeof(l->text) - l->len, format, args);
	va_end(args);
	if (n > 0)
		l->len += (size_t)n;
	if (l->len >= sizeof(l->text))
		l->len = sizeof(l->text) - 1;
}

/* A name may contain anything: it must not end the line or its value. */
static void add_value(struct line *l, const char *name, const char *value)
{
	if (!value)
		return;
	add(l, " %s=\"", name);
	for (size_t i = 0; value[i] && i < VALUE_BYTES_MAX; i++) {
		unsigned char c = (unsigned char)value[i];

		add(l, c < 0x20 || c >= 0x7f || c == '"' || c == '\\' ? "\\x%02x" : "%c", c);
	}
	add(l, "\"");
}

/* The user that logged in, which sudo does not change; empty: none, or unknown. */
static void add_login(struct line *l, pid_t pid)
{
	auto_free char *text = NULL;
	char path[64];
	size_t len;

	snprintf(path, sizeof(path), "/proc/%d/loginuid", (int)pid);
	if (pid <= 0 || file_read(AT_FDCWD, path, 32, &text, &len) < 0)
		return;
	unsigned long uid = strtoul(text, NULL, 10);
	if (uid != UINT32_MAX)
		add(l, " loginuid=%lu", uid);
}

static const char *find_string(json_t *object, const char *key)
{
	return json_string_value(json_object_get(object, key));
}

static const char *either(const char *a, const char *b)
{
	return a ? a : b;
}

static void add_what(struct line *l, json_t *parameters, json_t *reply)
{
	json_t *summary = json_object_get(reply, "summary");

	add_value(l, "job", either(find_string(summary, "job"), find_string(parameters, "job")));
	add_value(l, "checkpoint",
		  either(find_string(reply, "checkpoint"),
			 either(find_string(summary, "checkpoint"),
				find_string(parameters, "checkpoint"))));
	add_value(l, "container", find_string(parameters, "container"));
	add_value(l, "path", either(find_string(summary, "path"), find_string(parameters, "path")));
	add_value(l, "url", find_string(parameters, "url"));
	add_value(l, "dir", either(find_string(reply, "dir"), find_string(parameters, "dir")));
}

/* The destination or source of a stream. */
static void add_stream(struct line *l, const int *fd)
{
	char link[64], path[VALUE_BYTES_MAX + 1];

	if (!fd)
		return;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", *fd);
	ssize_t n = readlink(link, path, sizeof(path) - 1);
	if (n < 0)
		return;
	path[n] = '\0';
	add_value(l, "stream", path);
}

static void send_line(const struct line *l)
{
	const char *path = secure_getenv("BRUMATE_SYSLOG");
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	auto_close int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	snprintf(to.sun_path, sizeof(to.sun_path), "%s", path && *path ? path : "/dev/log");
	if (fd >= 0 && sendto(fd, l->text, l->len, MSG_DONTWAIT | MSG_NOSIGNAL,
			      (const struct sockaddr *)&to, sizeof(to)) < 0)
		return; /* there is no receiver, or its queue is full */
}

static bool is_audited(const char *method)
{
	static const char *const audited[] = { "Checkpoint", "Restore", "Export",
					       "Import",     "Push",	"Pull" };

	for (size_t i = 0; i < sizeof(audited) / sizeof(audited[0]); i++)
		if (!strcmp(audited[i], method))
			return true;
	return false;
}

void audit_write(const char *method, const struct audit_caller *caller, json_t *parameters,
		 json_t *reply, int r)
{
	struct line l = { .len = 0 };

	if (!is_audited(method))
		return;
	add(&l, "<%d>brumate[%d]: audit: method=%s uid=%u pid=%d", AUTHPRIV_INFO, (int)getpid(),
	    method, (unsigned)caller->uid, (int)caller->pid);
	add_login(&l, caller->pid);
	add(&l, " result=%s", r < 0 ? "failed" : "done");
	if (r < 0)
		add_value(&l, "error", strerror(-r));
	add_what(&l, parameters, reply);
	add_stream(&l, caller->fd);
	send_line(&l);
}

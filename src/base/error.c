// SPDX-License-Identifier: MIT
/* Starts, prefixes and classifies struct brumate_error; see error.h for the contract. */
#include "base/error.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/plain.h"

/* Errors are one line each, even where they quote text of several lines (logs, manifests). */
static void make_one_line(char *text)
{
	for (char *c = text; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = ' ';
	plain_make(text, '?');
}

int brumate_fail(struct brumate_error *err, int code, const char *fmt, ...)
{
	if (!err)
		return -code;

	*err = (struct brumate_error){ .code = code };
	va_list ap;
	va_start(ap, fmt);
	errno = code; /* for %m */
	vsnprintf(err->text, sizeof(err->text), fmt, ap);
	va_end(ap);
	make_one_line(err->text);
	return -code;
}

int brumate_wrap(struct brumate_error *err, int r, const char *fmt, ...)
{
	if (!err)
		return r;

	char prefix[512];
	va_list ap;
	va_start(ap, fmt);
	errno = r < 0 ? -r : 0;
	vsnprintf(prefix, sizeof(prefix), fmt, ap);
	va_end(ap);
	make_one_line(prefix);

	err->parameter[0] = '\0';
	if (!err->code && !err->text[0]) {
		err->code = r < 0 ? -r : 0;
		snprintf(err->text, sizeof(err->text), "%s", strerror(err->code));
	}
	size_t prefix_len = strlen(prefix);
	size_t text_len = strlen(err->text);
	size_t room = sizeof(err->text) - 1;

	if (prefix_len + 2 > room)
		return r;
	if (text_len > room - prefix_len - 2)
		text_len = room - prefix_len - 2;
	memmove(err->text + prefix_len + 2, err->text, text_len);
	memcpy(err->text, prefix, prefix_len);
	memcpy(err->text + prefix_len, ": ", 2);
	err->text[prefix_len + 2 + text_len] = '\0';
	return r;
}

void brumate_hint(struct brumate_error *err, const char *fmt, ...)
{
	if (!err)
		return;

	va_list ap;
	va_start(ap, fmt);
	vsnprintf(err->hint, sizeof(err->hint), fmt, ap);
	va_end(ap);
	make_one_line(err->hint);
}

void brumate_error_exit(struct brumate_error *err, enum exit_code exit_code)
{
	if (err)
		err->exit_code = exit_code;
}

enum exit_code brumate_exit_code(const struct brumate_error *err)
{
	if (err->exit_code)
		return (enum exit_code)err->exit_code;

	switch (err->code) {
	case 0:
		return EXIT_OK;
	case EINVAL:
		return EXIT_USAGE;
	case ENOENT:
	case ESRCH:
		return EXIT_NOT_FOUND;
	case EOPNOTSUPP:
	case ENOSYS:
		return EXIT_UNSUPPORTED;
	case EPERM:
	case ENOKEY:
	case EKEYREJECTED:
	case EACCES:
		return EXIT_PERMISSION;
	case EBUSY:
	case EEXIST:
		return EXIT_BUSY;
	case EBADMSG:
	case EPROTONOSUPPORT:
		return EXIT_BAD_IMAGE;
	case ETIMEDOUT:
		return EXIT_TIMEOUT;
	default:
		return EXIT_FAILED;
	}
}

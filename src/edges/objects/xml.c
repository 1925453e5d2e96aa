// SPDX-License-Identifier: MIT
/* Reads the XML of object stores with expat, and refuses everything that they do not send; see xml.h. */
#include "edges/objects/xml.h"

#include <errno.h>
#include <expat.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/cleanup.h"

/* For a libexpat that is linked into our programs (tools/package node): this function alone would require glibc 2.36,
 * and nodes have older ones. */
void arc4random_buf(void *ret, size_t len_bytes);
void arc4random_buf(void *ret, size_t len_bytes)
{
	for (size_t have = 0; have < len_bytes;) {
		ssize_t n = getrandom((char *)ret + have, len_bytes - have, 0);

		if (n < 0 && errno != EINTR)
			abort(); /* cannot happen with the kernels that we need, and weak random bytes are not acceptable */
		have += n > 0 ? (size_t)n : 0;
	}
}

struct reader {
	XML_Parser parser;
	xml_fn fn;
	void *arg;
	int r; /* why the reading ended early */
	int depth;
	size_t path_len, text_len;
	char path[XML_PATH_BYTES];
	char text[XML_TEXT_BYTES_MAX + 1]; /* of the innermost element */
};

/* Handlers may be called a few more times after that, and must do nothing. */
static void stop_reading(struct reader *x, int r)
{
	x->r = r;
	XML_StopParser(x->parser, XML_FALSE);
}

static void begin_element(void *arg, const char *name, const char **attributes)
{
	struct reader *x = arg;
	size_t len = strlen(name), slash = x->path_len ? 1 : 0;

	if (x->r)
		return;
	if (x->depth == XML_DEPTH_MAX || x->path_len + slash + len >= sizeof(x->path)) {
		stop_reading(x, -EBADMSG);
		return;
	}
	if (slash)
		x->path[x->path_len++] = '/';
	memcpy(x->path + x->path_len, name, len + 1);
	x->path_len += len;
	x->depth++;
	x->text_len = 0;
}

static void end_element(void *arg, const char *name)
{
	struct reader *x = arg;

	if (x->r)
		return;
	x->text[x->text_len] = '\0';
	int r = x->fn(x->arg, x->path, x->text);
	const char *slash = memrchr(x->path, '/', x->path_len);
	x->path_len = slash ? (size_t)(slash - x->path) : 0;
	x->path[x->path_len] = '\0';
	x->depth--;
	x->text_len = 0; /* text between elements has no meaning */
	if (r != 0)
		stop_reading(x, r);
}

static void add_text(void *arg, const char *text, int len)
{
	struct reader *x = arg;

	if (x->r)
		return;
	if (x->text_len + (size_t)len > XML_TEXT_BYTES_MAX) {
		stop_reading(x, -EBADMSG);
		return;
	}
	memcpy(x->text + x->text_len, text, (size_t)len);
	x->text_len += (size_t)len;
}

/* Ends the reading at anything that object stores never send: comments, CDATA, processing instructions and, above
 * all, a DOCTYPE, which could declare entities. */
static void refuse(void *arg)
{
	stop_reading(arg, -EBADMSG);
}

static void refuse_comment(void *arg, const char *text)
{
	refuse(arg);
}

static void refuse_instruction(void *arg, const char *target, const char *text)
{
	refuse(arg);
}

static void refuse_doctype(void *arg, const char *name, const char *system_id,
			   const char *public_id, int has_internal_subset)
{
	refuse(arg);
}

static void set_handlers(struct reader *x)
{
	XML_SetUserData(x->parser, x);
	XML_SetElementHandler(x->parser, begin_element, end_element);
	XML_SetCharacterDataHandler(x->parser, add_text);
	XML_SetCommentHandler(x->parser, refuse_comment);
	XML_SetStartCdataSectionHandler(x->parser, refuse);
	XML_SetProcessingInstructionHandler(x->parser, refuse_instruction);
	XML_SetStartDoctypeDeclHandler(x->parser, refuse_doctype);
}

/* Skips the byte order mark, and white space, which servers send while they are still working. */
static void skip_lead(const char **text, size_t *len)
{
	if (*len >= 3 && !memcmp(*text, "\xef\xbb\xbf", 3)) {
		*text += 3;
		*len -= 3;
	}
	while (*len && strchr(" \t\r\n", **text) && **text) {
		(*text)++;
		(*len)--;
	}
}

int xml_read(const char *text, size_t len_bytes, xml_fn fn, void *arg)
{
	auto_free struct reader *x = calloc(1, sizeof(*x));

	skip_lead(&text, &len_bytes);
	if (len_bytes > INT_MAX)
		return -EBADMSG;
	if (!x || !(x->parser = XML_ParserCreate("UTF-8")))
		return -ENOMEM;
	x->fn = fn;
	x->arg = arg;
	set_handlers(x);
	if (XML_Parse(x->parser, text, (int)len_bytes, XML_TRUE) != XML_STATUS_OK && x->r == 0)
		x->r = XML_GetErrorCode(x->parser) == XML_ERROR_NO_MEMORY ? -ENOMEM : -EBADMSG;
	XML_ParserFree(x->parser);
	return x->r;
}

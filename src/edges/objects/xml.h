// SPDX-License-Identifier: MIT
/*
 * The subset of XML in answers of object stores: elements, text and the five entities. Parsed by expat and strictly:
 * a comment, CDATA, an instruction or a DOCTYPE is refused, so nothing expands; attributes are skipped. Pure.
 */
#pragma once

#include <stddef.h>

enum { XML_DEPTH_MAX = 8, XML_PATH_BYTES = 256, XML_TEXT_BYTES_MAX = 8192 };

/**
 * Called at the end of each element: @path is "Root/Child/Leaf", @text the text directly in it (all of a leaf's),
 * NUL-terminated. <0 ends the reading with that code.
 */
typedef int (*xml_fn)(void *arg, const char *path, const char *text);

/** Reads a whole document. 0; -EBADMSG if it is malformed or truncated; -ENOMEM; what @fn returned. */
int xml_read(const char *text, size_t len_bytes, xml_fn fn, void *arg);

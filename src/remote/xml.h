// SPDX-License-Identifier: MIT
/*
 * The little XML that object stores answer with: elements, text and the five entities. It is read by expat and
 * strictly: a comment, CDATA, an instruction or a DOCTYPE is refused, so nothing expands; attributes are passed
 * over. Pure.
 */
#pragma once

#include <stddef.h>

enum { XML_DEPTH_MAX = 8, XML_PATH_BYTES = 256, XML_TEXT_BYTES_MAX = 8192 };

/**
 * Called at the end of each element: @path is "Root/Child/Leaf", @text what stands directly in it (all
 * of a leaf's), NUL-terminated. <0 ends the reading with it.
 */
typedef int (*xml_fn)(void *arg, const char *path, const char *text);

/** Reads a whole document. 0; -EBADMSG if it is none, or is cut off; -ENOMEM; what @fn returned. */
int xml_read(const char *text, size_t len_bytes, xml_fn fn, void *arg);

// SPDX-License-Identifier: MIT
/*
 * What users call their jobs by, in addition to the name: KEY=VALUE, as many as they want. In memory they are the
 * strings "KEY=VALUE", NULL-terminated, ordered by their keys, each of which is there once; in records and on the wire
 * an object.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/cleanup.h"
#include "base/error.h"

enum { LABELS_MAX = 64, LABEL_KEY_BYTES_MAX = 63, LABEL_VALUE_BYTES_MAX = 255 };

/** Frees them; accepts NULL. */
void labels_free(char **labels);

DEFINE_AUTO(char **, labels_free)

/** The value of the label @key (borrowed), or NULL. */
const char *labels_find(char *const *labels, const char *key);

/** Copies them (owned): NULL where there are none. -EINVAL names the label that is none; -ENOMEM. */
int labels_copy(char ***ret, char *const *labels, struct brumate_error *err);

/** Reads them from the object @o, which is foreign; NULL and null are none. -EINVAL, -ENOMEM. Pure. */
int labels_from_json(char ***ret, json_t *o, struct brumate_error *err);

/** The object (owned), NULL without memory. */
json_t *labels_to_json(char *const *labels);

// SPDX-License-Identifier: MIT
/* Finding and reading the manifests of a place in an object store. Private to this layer. */
#pragma once

#include "remote/http.h"

/** A checkpoint that was found, with its manifest. It owns its parts. */
struct found {
	char *id;
	char *text; /* NULL: there is none, or it cannot be used */
	size_t len;
	struct manifest manifest;
	struct brumate_error why; /* where @text is NULL */
	bool incomplete;	  /* there is no manifest: being pushed, or interrupted */
};
void found_fini(struct found *f);
DEFINE_AUTO_FINI(struct found, found_fini)

/** Finds the checkpoint that @word means: an id, a job's name or id (its latest), or the beginning of an id. */
int find_one(struct client *c, const char *word, struct found *ret,
	     const struct client_watch *watch, struct brumate_error *err);

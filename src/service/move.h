// SPDX-License-Identifier: MIT
/* The parameters of every call about an object store: address and credentials. */
#pragma once

#include "service/service.h"

#include "edges/objects/remote.h"

struct remote_given {
	struct remote_config config;
	struct remote_place place;
	const char *url; /* borrowed */
};
#define REMOTE_GIVEN_EMPTY ((struct remote_given){ .config = REMOTE_CONFIG_DEFAULT })
void remote_given_fini(struct remote_given *g);
DEFINE_AUTO_FINI(struct remote_given, remote_given_fini)

/** "url" and "remote" of @parameters (borrowed by @g). -EINVAL. */
int remote_given_get(struct remote_given *g, json_t *parameters, struct brumate_error *err);

/** The URL of the checkpoint @id of @p. Owned; NULL if out of memory. */
char *remote_url_of(const struct remote_place *p, const char *id);

// SPDX-License-Identifier: MIT
/*
 * Address of an object store and credentials for it: from the environment and the files that AWS's own tools read
 * (docs/environment.md). The user's process reads them and passes them on: a daemon never uses credentials of its own
 * for a client.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"

enum {
	REMOTE_PART_MIB_MIN = 5, /* the minimum of S3 */
	REMOTE_PART_MIB_MAX = 1024,
	REMOTE_CONNECTIONS_MAX = 64,
	REMOTE_ATTEMPTS_MAX = 100,
};

/** Owns its strings. */
struct remote_config {
	char *endpoint; /* "https://host[:port]", nothing after it */
	char *region;
	char *key_id, *secret;
	char *token;	 /* NULL: none */
	char *ca;	 /* certificates (PEM) to trust instead of the system's; NULL: none */
	bool path_style; /* endpoint/bucket/key rather than bucket.endpoint/key */
	int64_t part_mib;
	int64_t connections;
	int64_t attempts; /* for each request */
	int64_t stall_s;  /* a connection without progress for that long is given up */
};
#define REMOTE_CONFIG_DEFAULT \
	((struct remote_config){ .part_mib = 16, .connections = 16, .attempts = 8, .stall_s = 30 })
void remote_config_fini(struct remote_config *c); /* wipes the secrets */
DEFINE_AUTO_FINI(struct remote_config, remote_config_fini)

/**
 * Reads it from the environment of this process and its user's files; asks the metadata service of a container or a
 * machine if neither has credentials. Errors to act on: -EACCES (no credentials: the text says where they were
 * searched for), -EINVAL (an invalid variable or file).
 */
int remote_config_load(struct remote_config *ret, const char *bucket, struct brumate_error *err);

/** Converts it to an object (owned, NULL if out of memory), and back with checks: -EINVAL. */
json_t *remote_config_to_json(const struct remote_config *c);
int remote_config_from_json(struct remote_config *ret, json_t *o, struct brumate_error *err);

/** Value of @key in the section @section ("" for none) of an AWS file. Owned; NULL: missing. Pure. */
char *config_find(const char *text, const char *section, const char *key);

/** Parses the credentials in the answer of a metadata service. 0 or -EBADMSG. Pure. */
int metadata_parse(struct remote_config *c, const char *text);

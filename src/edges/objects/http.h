// SPDX-License-Identifier: MIT
/*
 * Signed requests to an object store through libcurl, each retried as long as that makes sense. A connection is for
 * one thread; connections share a client. Private to this layer.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/error.h"
#include "edges/objects/config.h"
#include "edges/objects/place.h"
#include "store/store.h"

/** What all connections of one operation share. Borrows @config and @place. */
struct http_client {
	const struct remote_config *config;
	const struct remote_place *place;
	char *host;			 /* for the Host header; owned */
	atomic_bool stop;		 /* give up requests under way */
	int stop_fd;			 /* readable if @stop is set */
	atomic_uint_fast64_t done_bytes; /* sent and received so far, without failed attempts */
};

int http_client_init(struct http_client *c, const struct remote_config *config,
		     const struct remote_place *place, struct brumate_error *err);
void http_client_fini(struct http_client *c);
DEFINE_AUTO_FINI(struct http_client, http_client_fini)

/** Makes requests of all connections end with -ECANCELED. */
void http_client_stop(struct http_client *c);

struct http_connection {
	struct http_client *client;
	void *curl;
	uint64_t counted; /* bytes of the request under way that are already in done_bytes */
};

int http_connection_init(struct http_connection *s, struct http_client *c,
			 struct brumate_error *err);
void http_connection_fini(struct http_connection *s);
DEFINE_AUTO_FINI(struct http_connection, http_connection_fini)

enum { HTTP_HEADERS_MAX = 4, HTTP_BODY_BYTES_MAX = 64 << 20, HTTP_ANY_LENGTH = -1 };

struct http_header {
	const char *name; /* lower case; all are signed */
	const char *value;
};

/** A request. Borrows everything that it refers to. */
struct http_request {
	const char *method;
	const char *key;   /* of the object; NULL: the bucket itself */
	const char *query; /* encoded, sorted; NULL: none */
	struct http_header headers[HTTP_HEADERS_MAX];

	/* The request's body: from memory, or from a file. */
	const char *text;
	int fd;
	uint64_t offset, len_bytes;
	struct digest payload; /* of the body; need not be set if there is none */

	/* The answer's body: with @range, its @range_len bytes from @range_offset, to @sink_fd or @sink. */
	bool range;
	uint64_t range_offset, range_len;
	int sink_fd; /* used unless @sink, with room for that many bytes, is set */
	uint64_t sink_offset;
	char *sink;
};
#define HTTP_REQUEST(...) ((struct http_request){ .fd = -1, .sink_fd = -1, __VA_ARGS__ })

struct http_answer {
	long status;
	char *body; /* NUL-terminated; owned; NULL: none */
	size_t body_len;
	int64_t len_bytes; /* from the server; HTTP_ANY_LENGTH: unknown */
	char etag[128];
	char digest[DIGEST_TEXT_BYTES]; /* x-amz-meta-brumate-sha256 */
	char region[64];		/* x-amz-bucket-region */
	int64_t date;			/* from the server, seconds since 1970; 0: unknown */
	char code[64];			/* <Error><Code> */
	char message[256];
};
void http_answer_fini(struct http_answer *a);
DEFINE_AUTO_FINI(struct http_answer, http_answer_fini)

/**
 * http_send() - send a request, with retries, until the answer is final
 * @ret: owned; may be NULL
 *
 * Failures of the network, 5xx, 429 and throttling are retried, after random pauses that grow.
 * Errors to act on: -ENOENT (no such object or bucket), -EACCES, -ECANCELED, -EBADMSG (the answer is malformed),
 * -EREMOTEIO, -ETIMEDOUT, -ECONNREFUSED, -EHOSTUNREACH; -errno of the fds.
 */
int http_send(struct http_connection *s, const struct http_request *q, struct http_answer *ret,
	      struct brumate_error *err);

/** The meaning of an answer for the request. */
enum http_verdict { HTTP_DONE, HTTP_AGAIN, HTTP_REFUSED };
enum http_verdict http_judge(long status, const char *code);

#define HTTP_META_DIGEST "x-amz-meta-brumate-sha256"

/** Whether a later attempt may continue after the failure @r, keeping what was transferred so far. */
bool http_may_go_on(int r);

/* ---- several connections ---- */

/** Does unit @i over a connection. Called from several threads; <0 ends the others. */
typedef int (*http_connection_fn)(void *arg, struct http_connection *s, size_t i,
				  struct brumate_error *err);

/** Receives the progress. */
struct http_watch {
	store_progress_fn progress; /* may be NULL */
	void *arg;
	uint64_t total_bytes;
};

/**
 * Does units 0 to @n - 1 over as many connections as the configuration allows; they are started in that order. The
 * caller's thread only reports progress and receives cancellation. Returns the first failure; -errno of @watch's
 * function if that ended it.
 */
int http_client_run(struct http_client *c, size_t n, http_connection_fn fn, void *arg,
		    const struct http_watch *watch, struct brumate_error *err);

/* ---- signatures: AWS Signature Version 4, by libcrypto's HMAC. Pure. ---- */

enum {
	SIGN_HEADERS_MAX = 12,
	SIGN_DATE_BYTES = sizeof("20260102T030405Z"),
	SIGN_ANSWER_BYTES = 1024,
};

struct sign_header {
	const char *name; /* lower case */
	const char *value;
};

/** The input of a signature. All borrowed. */
struct sign_request {
	const char *method;
	const char *path;  /* percent-encoded */
	const char *query; /* percent-encoded, sorted, "name=value&name=value"; "" for none */
	const struct sign_header
		*headers;    /* including "host", "x-amz-date" and "x-amz-content-sha256" */
	size_t n_headers;    /* at most SIGN_HEADERS_MAX */
	const char *payload; /* SHA-256 of the body in hexadecimal */
	const char *date;    /* in the format of "x-amz-date" */
	const char *region, *key_id, *secret;
};

/** Writes the value of the header "Authorization". 0, -ENOMEM, -E2BIG. */
int sign_request(char ret[static SIGN_ANSWER_BYTES], const struct sign_request *q);

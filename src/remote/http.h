// SPDX-License-Identifier: MIT
/*
 * Signed requests to an object store through libcurl, each tried again as long as that makes sense. A connection
 * is for one thread; what connections share is the client. Private to this layer.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/error.h"
#include "remote/config.h"
#include "remote/place.h"
#include "store/store.h"

/** What all connections of one operation share. It borrows @config and @place. */
struct http_client {
	const struct remote_config *config;
	const struct remote_place *place;
	char *host;			 /* as requests name it; owned */
	atomic_bool stop;		 /* give up what is under way */
	int stop_fd;			 /* readable then */
	atomic_uint_fast64_t done_bytes; /* sent and received so far, without what failed */
};

int http_client_init(struct http_client *c, const struct remote_config *config,
		     const struct remote_place *place, struct brumate_error *err);
void http_client_fini(struct http_client *c);
DEFINE_AUTO_FINI(struct http_client, http_client_fini)

/** Makes all connections end what they do with -ECANCELED. */
void http_client_stop(struct http_client *c);

struct http_connection {
	struct http_client *client;
	void *curl;
	uint64_t counted; /* bytes of the request under way, already in done_bytes */
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

/** A request. It borrows all it names. */
struct http_request {
	const char *method;
	const char *key;   /* of the object; NULL: the bucket */
	const char *query; /* encoded, sorted; NULL: none */
	struct http_header headers[HTTP_HEADERS_MAX];

	/* The body that is sent: from memory, or from a file. */
	const char *text;
	int fd;
	uint64_t offset, len_bytes;
	struct digest payload; /* of those bytes; need not be set without any */

	/* The body that comes: with @range, its @range_len bytes from @range_offset, to @sink_fd or @sink. */
	bool range;
	uint64_t range_offset, range_len;
	int sink_fd; /* unless @sink, of that many bytes, takes them */
	uint64_t sink_offset;
	char *sink;
};
#define HTTP_REQUEST(...) ((struct http_request){ .fd = -1, .sink_fd = -1, __VA_ARGS__ })

struct http_answer {
	long status;
	char *body; /* NUL-terminated; owned; NULL: none */
	size_t body_len;
	int64_t len_bytes; /* that the server said; HTTP_ANY_LENGTH: it did not */
	char etag[128];
	char digest[DIGEST_TEXT_BYTES]; /* x-amz-meta-brumate-sha256 */
	char region[64];		/* x-amz-bucket-region */
	int64_t date;			/* of the server, seconds since 1970; 0: not told */
	char code[64];			/* <Error><Code> */
	char message[256];
};
void http_answer_fini(struct http_answer *a);
DEFINE_AUTO_FINI(struct http_answer, http_answer_fini)

/**
 * http_send() - send a request until it is answered for good
 * @ret: owned; may be NULL
 *
 * Failures of the network, 5xx, 429 and throttling are tried again, with a growing random pause between.
 * Errors to act on: -ENOENT (no such object or bucket), -EACCES, -ECANCELED, -EBADMSG (the answer is
 * none), -EREMOTEIO, -ETIMEDOUT, -ECONNREFUSED, -EHOSTUNREACH; -errno of the fds.
 */
int http_send(struct http_connection *s, const struct http_request *q, struct http_answer *ret,
	      struct brumate_error *err);

/** What an answer means for the request. */
enum http_verdict { HTTP_DONE, HTTP_AGAIN, HTTP_REFUSED };
enum http_verdict http_judge(long status, const char *code);

#define HTTP_META_DIGEST "x-amz-meta-brumate-sha256"

/** Whether what was moved so far is of use after the failure @r: a later attempt may go on from there. */
bool http_may_go_on(int r);

/* ---- several connections ---- */

/** Does unit @i over a connection. It is called from several threads; <0 ends the others. */
typedef int (*http_connection_fn)(void *arg, struct http_connection *s, size_t i,
				  struct brumate_error *err);

/** Whom to tell of progress. */
struct http_watch {
	store_progress_fn progress; /* may be NULL */
	void *arg;
	uint64_t total_bytes;
};

/**
 * Does units 0 to @n - 1 over as many connections as the configuration allows; they are begun in that order. The
 * caller's thread does no work but report progress and take the order to stop. Returns the failure that came
 * first; -errno of @watch's function if that ended it.
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

/** What is signed. All borrowed. */
struct sign_request {
	const char *method;
	const char *path;  /* percent-encoded */
	const char *query; /* percent-encoded, sorted, "name=value&name=value"; "" for none */
	const struct sign_header
		*headers;    /* with "host", "x-amz-date" and "x-amz-content-sha256" */
	size_t n_headers;    /* at most SIGN_HEADERS_MAX */
	const char *payload; /* SHA-256 of the body in hexadecimal */
	const char *date;    /* as "x-amz-date" */
	const char *region, *key_id, *secret;
};

/** Writes the value of the header "Authorization". 0, -ENOMEM, -E2BIG. */
int sign_request(char ret[static SIGN_ANSWER_BYTES], const struct sign_request *q);

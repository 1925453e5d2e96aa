// SPDX-License-Identifier: MIT
/*
 * Varlink messages over a unix stream socket: one JSON object, then a NUL byte. File descriptors
 * ride along by SCM_RIGHTS on the first byte of their message. Knows nothing of what messages mean.
 * Protocol: https://varlink.org/Method-Call. Our interfaces are the .varlink files beside this.
 *
 * All strings and objects are jansson's; "borrowed" and "takes" are said for each.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"

enum {
	WIRE_MESSAGE_BYTES_MAX = 16 << 20, /* a longer message is refused with -EMSGSIZE */
	WIRE_FDS_MAX = 64,		   /* fds in one message */
};

DEFINE_AUTO(json_t *, json_decref)
#define auto_json auto_(json_decref)

/** One message and the fds that came with it. Owns both. */
struct wire_message {
	json_t *json;
	int fds[WIRE_FDS_MAX];
	size_t n_fds;
};

#define WIRE_MESSAGE_EMPTY ((struct wire_message){ 0 })
void wire_message_fini(struct wire_message *m);
DEFINE_AUTO_FINI(struct wire_message, wire_message_fini)

/**
 * wire_decode() - the message in one NUL-terminated frame
 * @text: borrowed, @len_bytes without the NUL, untrusted
 *
 * Pure. Refuses what is not one JSON object, duplicate keys, nesting deeper than jansson allows.
 * Return: 0 and @ret_json owned; -EBADMSG; -ENOMEM, which says nothing of the message.
 */
int wire_decode(json_t **ret_json, const char *text, size_t len_bytes, struct brumate_error *err);

/** One end of a connection. Not for two threads at once. */
struct wire {
	int fd;
	char *buf; /* bytes received beyond the last message */
	size_t len, room;
	size_t searched;       /* the first bytes of buf, known to hold no end of a message */
	uint64_t taken_bytes;  /* of the stream, handed out so far */
	int fds[WIRE_FDS_MAX]; /* received, not yet handed out */
	uint64_t fd_ends
		[WIRE_FDS_MAX]; /* position in the stream up to which each fd was read with */
	size_t n_fds;
	bool unheard; /* the peer has gone and did not read all that was sent: it has not begun the last call */
};

/** Takes @fd (blocking or not, both work). */
void wire_init(struct wire *w, int fd);
void wire_fini(struct wire *w);

/** Sends one message. @fds borrowed, @n_fds <= WIRE_FDS_MAX. Errors to act on: -EPIPE (peer is
 * gone), -ETIMEDOUT. Never raises SIGPIPE. */
int wire_send(struct wire *w, json_t *json, const int *fds, size_t n_fds, uint64_t deadline_ns,
	      struct brumate_error *err);

/** Receives one message into @ret (owned by the caller). Errors to act on: -EPIPE (peer closed),
 * -ETIMEDOUT, -EBADMSG, -EMSGSIZE. */
int wire_receive(struct wire *w, struct wire_message *ret, uint64_t deadline_ns,
		 struct brumate_error *err);

/** True once the peer has closed its end (a cancelled call). Does not block, reads nothing. */
bool wire_is_hung_up(const struct wire *w);

/* ---- client ---- */

/** Connects to the socket at @path. Errors to act on: -ECONNREFUSED, -ENOENT (nobody there). */
int wire_connect(struct wire *ret, const char *path, struct brumate_error *err);

/** Called for each streamed reply ("continues": true); @parameters borrowed. */
typedef void (*wire_reply_fn)(void *arg, json_t *parameters);

/**
 * wire_call() - call a method and wait for its final reply
 * @method: "io.brumate.Suspend"
 * @parameters: borrowed; NULL for {}
 * @on_reply: for streaming replies (the call then asks for "more"); may be NULL
 * @ret_parameters: owned; may be NULL
 *
 * A varlink error reply becomes @err: our own io.brumate.Failed carries code, exit code, text and
 * hint through unchanged; others become "METHOD: ERROR" with -EPROTO (-EINVAL for
 * org.varlink.service.InvalidParameter, -EOPNOTSUPP for MethodNotFound).
 *
 * A connection on which an answer is still due (the deadline passed, the peer broke the protocol) is
 * shut down, so that the late answer is not taken for that of the next call; -EPIPE from then on.
 * "Our own" are the Failed errors of all interfaces below io.brumate.
 */
int wire_call(struct wire *w, const char *method, json_t *parameters, const int *fds, size_t n_fds,
	      wire_reply_fn on_reply, void *arg, json_t **ret_parameters, uint64_t deadline_ns,
	      struct brumate_error *err);

/* ---- server ---- */

struct wire_call_context; /* one call being served */

/**
 * Serves one method. @parameters borrowed, never NULL, already known to be an object.
 * Return 0 after wire_reply(); or a negative value with @err filled, which the server sends as
 * io.brumate.Failed (or InvalidParameter is for the method to choose by wire_fail_parameter()).
 */
typedef int (*wire_method_fn)(void *arg, struct wire_call_context *call, json_t *parameters,
			      struct brumate_error *err);

struct wire_method {
	const char *name; /* "io.brumate.broker.State" */
	wire_method_fn run;
};

/** What a server offers. Also answers org.varlink.service.GetInfo and GetInterfaceDescription. */
struct wire_service {
	const char *interface_name; /* "io.brumate.broker" */
	const char *description;    /* the text of the .varlink file */
	const struct wire_method *methods;
	size_t n_methods;
	void *arg;
	/* A call whose caller has hung up is not begun: it may have waited here for long, and its caller have done it otherwise. */
	bool drops_abandoned;
};

/** Final reply. @parameters borrowed; NULL for {}. */
int wire_reply(struct wire_call_context *call, json_t *parameters);
/** As wire_reply(), with fds (borrowed). */
int wire_reply_fds(struct wire_call_context *call, json_t *parameters, const int *fds,
		   size_t n_fds);
/** The error as the final reply, for a method that has more to do before it returns. */
void wire_reply_failed(struct wire_call_context *call, const struct brumate_error *err);
/** Streamed reply ("continues": true); dropped silently if the caller did not ask for more, or
 * does not read what it was sent: an operation never waits for whoever watches it. */
void wire_reply_more(struct wire_call_context *call, json_t *parameters);
/** The caller closed its end, or the server is being freed. */
bool wire_call_is_cancelled(const struct wire_call_context *call);
/** The caller's connection, for poll(2): POLLHUP says what wire_call_is_cancelled() does. Borrowed. */
int wire_call_fd(const struct wire_call_context *call);
/** Credentials of the caller (SO_PEERCRED). */
void wire_call_peer(const struct wire_call_context *call, uid_t *ret_uid, gid_t *ret_gid,
		    pid_t *ret_pid);
/** Takes fd number @i that came with the call (the caller owns it then); -1 if there is none. */
int wire_call_take_fd(struct wire_call_context *call, size_t i);
/** Fills @err so that the server answers org.varlink.service.InvalidParameter. Returns -EINVAL. */
int wire_fail_parameter(struct brumate_error *err, const char *parameter, const char *why);

/** Makes a listening unix socket at @path (an existing socket there is replaced), mode @mode.
 * Returns the fd (owned) or -errno. */
int wire_listen(const char *path, mode_t mode, struct brumate_error *err);

/**
 * A server: one thread a connection, blocking I/O. Methods of one connection run one after the
 * other; of several connections in parallel.
 */
struct wire_server;
int wire_server_new(struct wire_server **ret, const struct wire_service *service, int listen_fd,
		    struct brumate_error *err); /* takes listen_fd */
/** Readable when a connection waits; for the caller's poll loop. */
int wire_server_fd(const struct wire_server *s);
/** Accepts one waiting connection and serves it in a thread of its own. */
void wire_server_accept(struct wire_server *s);
/** Connections open now, and when the last one ended (clock_now_ns), for idle exits. */
size_t wire_server_connections(struct wire_server *s, uint64_t *ret_last_end_ns);
/** Stops accepting, and waits for as long as this that peers close their connections. */
void wire_server_drain(struct wire_server *s, uint64_t deadline_ns);
/** Stops accepting, lets calls under way end and reply, joins all threads. Accepts NULL. */
void wire_server_free(struct wire_server *s);

/* ---- reading parameters: each checks the type and names what is wrong ---- */

/** @ret: borrowed from @o. Missing or null: *ret = NULL (fine). Wrong type: -EINVAL. */
int wire_get_string(json_t *o, const char *key, const char **ret, struct brumate_error *err);
/** As above; missing is -EINVAL too. */
int wire_need_string(json_t *o, const char *key, const char **ret, struct brumate_error *err);
/** Missing or null leaves *ret as it is. Out of [min, max] is -EINVAL. */
int wire_get_int(json_t *o, const char *key, int64_t min, int64_t max, int64_t *ret,
		 struct brumate_error *err);
/** Missing or null leaves *ret as it is. */
int wire_get_bool(json_t *o, const char *key, bool *ret, struct brumate_error *err);
/** Missing or null: *ret = NULL. @ret borrowed. */
int wire_get_array(json_t *o, const char *key, json_t **ret, struct brumate_error *err);
int wire_get_object(json_t *o, const char *key, json_t **ret, struct brumate_error *err);

/** A JSON string of @text (owned), whose bytes may be anything: what is not UTF-8 becomes '?'. */
json_t *wire_string(const char *text);

/** The string @key of @o; "" if there is none. Borrowed. */
const char *text_of(const json_t *o, const char *key);

/** {code, exit, text, hint} of @err, owned; and back (pure, tolerant: always fills @ret). */
json_t *wire_error_to_json(const struct brumate_error *err);
void wire_error_from_json(struct brumate_error *ret, json_t *o);

/* ---- the texts of the .varlink files, for struct wire_service.description ---- */

extern const char wire_interface_brumate[];
extern const char wire_interface_broker[];
extern const char wire_interface_job[];

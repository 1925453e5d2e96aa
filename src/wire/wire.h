// SPDX-License-Identifier: MIT
/*
 * Varlink messages over a unix stream socket: one JSON object, then a NUL byte. File descriptors are sent by
 * SCM_RIGHTS with the first byte of their message. Does not know the meaning of messages. Protocol:
 * https://varlink.org/Method-Call. Our interfaces are the .varlink files in this folder. All strings and objects are
 * jansson's; "borrowed" and "takes" are stated for each.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/schema.h"

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
 * Pure. Refuses everything but one JSON object, duplicate keys, and nesting deeper than jansson allows.
 * Return: 0 and @ret_json owned; -EBADMSG; -ENOMEM, which does not mean that the message is invalid.
 */
int wire_decode(json_t **ret_json, const char *text, size_t len_bytes, struct brumate_error *err);

/** One end of a connection. Not for two threads at once. */
struct wire {
	int fd;
	char *buf; /* bytes received beyond the last message */
	size_t len, room;
	size_t searched;       /* the first bytes of buf, which contain no end of a message */
	uint64_t taken_bytes;  /* of the stream, returned so far */
	int fds[WIRE_FDS_MAX]; /* received, not yet returned */
	uint64_t fd_ends
		[WIRE_FDS_MAX]; /* for each fd, the position in the stream up to which the read that brought it went */
	size_t n_fds;
	/* Called, where it is set, every look_ms of a wait: a negative result ends the wait. */
	int (*look)(void *arg);
	void *look_arg;
	int look_ms;
	bool unheard; /* the peer has gone without reading all that was sent, so it has not begun the last call */
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

/** Connects to the socket at @path. Errors to act on: -ECONNREFUSED, -ENOENT (no server). */
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
 * A varlink error reply becomes @err: the Failed errors of all interfaces below io.brumate keep their code, exit
 * code, text and hint; others become "METHOD: ERROR" with -EPROTO (-EINVAL for org.varlink.service.InvalidParameter,
 * -EOPNOTSUPP for MethodNotFound). If an answer is still due at the end of the call (the deadline passed, or the peer
 * broke the protocol), the connection is shut down, so that the late answer is not taken for that of the next call;
 * further calls return -EPIPE.
 */
int wire_call(struct wire *w, const char *method, json_t *parameters, const int *fds, size_t n_fds,
	      wire_reply_fn on_reply, void *arg, json_t **ret_parameters, uint64_t deadline_ns,
	      struct brumate_error *err);

/* ---- server ---- */

struct wire_call_context; /* one call being served */

/**
 * Serves one method. @parameters: borrowed, an object. Returns 0 after wire_reply(), or a negative value with @err
 * filled, which the server sends as io.brumate.Failed, or as InvalidParameter after wire_fail_parameter().
 */
typedef int (*wire_method_fn)(void *arg, struct wire_call_context *call, json_t *parameters,
			      struct brumate_error *err);

struct wire_method {
	const char *name; /* "io.brumate.broker.State" */
	wire_method_fn run;
};

/** The interface of a server, which also answers org.varlink.service.GetInfo and GetInterfaceDescription. */
struct wire_service {
	const char *interface_name; /* "io.brumate.broker" */
	const char *description;    /* the text of the .varlink file */
	const struct wire_method *methods;
	size_t n_methods;
	void *arg;
	/* Skip a call if its caller has closed the connection: the call may have waited for long, and its caller may
	 * have got the result in another way. */
	bool drops_abandoned;
};

/** Final reply. @parameters borrowed; NULL for {}. */
int wire_reply(struct wire_call_context *call, json_t *parameters);
/** Like wire_reply(), with fds (borrowed). */
int wire_reply_fds(struct wire_call_context *call, json_t *parameters, const int *fds,
		   size_t n_fds);
/** Sends the error as the final reply, for a method that has more to do before it returns. */
void wire_reply_failed(struct wire_call_context *call, const struct brumate_error *err);
/** Streamed reply ("continues": true). Dropped silently if the caller did not ask for more, or does not read its
 * replies: an operation never waits for a client that watches it. */
void wire_reply_more(struct wire_call_context *call, json_t *parameters);
/** Whether the caller has closed its end, or the server is being freed. */
bool wire_call_is_cancelled(const struct wire_call_context *call);
/** From here on, or no longer, the method only waits, until the caller hangs up at the latest. Where there is no place for
 * another connection, one that waits is hung up on. */
void wire_call_wait(const struct wire_call_context *call, bool waits);
/** The caller's connection, for poll(2): POLLHUP means the same as wire_call_is_cancelled(). Borrowed. */
int wire_call_fd(const struct wire_call_context *call);
/** Credentials of the caller (SO_PEERCRED). */
void wire_call_peer(const struct wire_call_context *call, uid_t *ret_uid, gid_t *ret_gid,
		    pid_t *ret_pid);
/** Takes fd number @i of the call (the method then owns it); -1 if there is none. */
int wire_call_take_fd(struct wire_call_context *call, size_t i);
/** Fills @err so that the server answers org.varlink.service.InvalidParameter. Returns -EINVAL. */
int wire_fail_parameter(struct brumate_error *err, const char *parameter, const char *why);

/** Makes a listening unix socket at @path (an existing socket there is replaced), mode @mode.
 * Returns the fd (owned) or -errno. */
int wire_listen(const char *path, mode_t mode, struct brumate_error *err);

/**
 * A server: one thread for each connection, blocking I/O. Calls of one connection are served one after the other,
 * those of different connections in parallel.
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
/** Stops accepting, and waits until @deadline_ns for peers to close their connections. */
void wire_server_drain(struct wire_server *s, uint64_t deadline_ns);
/** Stops accepting, waits until calls under way have replied, joins all threads. Accepts NULL. */
void wire_server_free(struct wire_server *s);

/* ---- reading parameters: each checks the type and names what is wrong ---- */

/** @ret: borrowed from @o. Missing or null: *ret = NULL and success. Wrong type: -EINVAL. */
int wire_get_string(json_t *o, const char *key, const char **ret, struct brumate_error *err);
/** Like wire_get_string(), but missing is -EINVAL, too. */
int wire_need_string(json_t *o, const char *key, const char **ret, struct brumate_error *err);
/** Missing or null leaves *ret as it is. Out of [min, max] is -EINVAL. */
int wire_get_int(json_t *o, const char *key, int64_t min, int64_t max, int64_t *ret,
		 struct brumate_error *err);
/** Missing or null leaves *ret as it is. */
int wire_get_bool(json_t *o, const char *key, bool *ret, struct brumate_error *err);
/** Missing or null: *ret = NULL. @ret borrowed. */
int wire_get_array(json_t *o, const char *key, json_t **ret, struct brumate_error *err);
int wire_get_object(json_t *o, const char *key, json_t **ret, struct brumate_error *err);
/** By a row of a table (base/schema.h) into the structure @base. Missing or null leaves it as it is. */
int wire_get_field(json_t *o, const struct schema_field *field, void *base,
		   struct brumate_error *err);

/** Converts @text, any bytes, to a JSON string (owned): bytes that are not UTF-8 become '?'. */
json_t *wire_string(const char *text);

/** The string @key of @o; "" if there is none. Borrowed. */
const char *text_of(const json_t *o, const char *key);

/** Converts @err to {code, exit, text, hint} (owned), and back (pure; tolerates anything: always fills @ret). */
json_t *wire_error_to_json(const struct brumate_error *err);
void wire_error_from_json(struct brumate_error *ret, json_t *o);

/* ---- the texts of the .varlink files, for struct wire_service.description ---- */

extern const char wire_interface_brumate[];
extern const char wire_interface_broker[];
extern const char wire_interface_job[];

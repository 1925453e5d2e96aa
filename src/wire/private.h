// SPDX-License-Identifier: MIT
/* What the files of src/wire share among themselves. */
#pragma once

#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "wire/wire.h"

enum {
	WIRE_CONNECT_TIMEOUT_MS = 5000,
	WIRE_REPLY_TIMEOUT_MS = 10000,	 /* for a peer to read its reply */
	WIRE_MESSAGE_TIMEOUT_MS = 10000, /* for a peer to finish a message it began */
};

/** A unix address of any length: a long path is reached through its directory's fd. */
struct wire_address {
	struct sockaddr_un sun;
	int dir_fd; /* -1 if the path fits */
};

/** Returns 0 or -errno. */
int wire_address_init(struct wire_address *ret, const char *path);
void wire_address_fini(struct wire_address *a);
DEFINE_AUTO_FINI(struct wire_address, wire_address_fini)

struct wire_call_context {
	struct wire *wire;
	const struct wire_service *service;
	const atomic_bool *stopping; /* the server is being freed; NULL: never */
	struct wire_message *message;
	bool more, oneway, replied;
	int broken; /* -errno of a reply that could not be sent */
};

/** Serves the call in @m. Returns 0, or <0 where the connection is to be closed. */
int wire_serve(struct wire *w, const struct wire_service *service, const atomic_bool *stopping,
	       struct wire_message *m);

// SPDX-License-Identifier: MIT
/*
 * One broker for each runtime directory: its lock and its socket. The lock is held for as long as
 * the process lives; the socket is there for as long as it takes callers.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"

struct instance {
	int lock_fd;
	int listen_fd;
	char *path; /* of the socket */
	dev_t dev;  /* and which file it is: the directory may be made anew while we run */
	ino_t ino;
};

#define INSTANCE_EMPTY ((struct instance){ .lock_fd = -1, .listen_fd = -1 })

/**
 * Becomes the broker of this runtime directory. Returns 0; 1 if another one serves (nothing to do);
 * <0. Waits for one that is just ending.
 */
int instance_claim(struct instance *ret, bool simulated, struct brumate_error *err);
/**
 * Takes the socket out of the way of new clients. Returns 0 when it is gone for good; 1 if a client
 * came in between: then it is where it was, and the client waits to be served.
 */
int instance_retire(struct instance *i);
/** Removes the socket at once, whoever may be on the way in. */
void instance_withdraw(struct instance *i);
void instance_fini(struct instance *i);
DEFINE_AUTO_FINI(struct instance, instance_fini)

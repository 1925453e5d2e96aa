// SPDX-License-Identifier: MIT
/*
 * Sessions that move device memory, independent of driver calls. Each is a thread that reads a client's packets
 * (wire/transfer-packets.h), starts transfers, and reports their progress.
 */
#pragma once

#include "broker/driver.h"
#include "broker/gpus.h"

struct loop;
struct sessions;

/** All are borrowed. @digests: compute digests when a client asks for them. @loop ends its turn when a
 * session has ended. Returns 0 or -ENOMEM. */
int sessions_new(struct sessions **ret, struct driver *driver, struct gpus *gpus, bool digests,
		 struct loop *loop, struct brumate_error *err);
/** There must be no sessions. Accepts NULL. */
void sessions_free(struct sessions *all);
/** Serves a session of process @pid on @socket_fd (taken) in a thread of its own. Where there is no place for another one, waits for
 * one, and ends one whose client is silent. */
int sessions_add(struct sessions *all, int socket_fd, pid_t pid, struct brumate_error *err);
/** The number of sessions, and when the last one ended (clock_now_ns). */
size_t sessions_busy(struct sessions *all, uint64_t *ret_last_end_ns);
/** Closes GPUs that no session has needed for a while. Returns the milliseconds until the next call is due; -1: not
 * before something changes. */
int sessions_rest(struct sessions *all);
/** Closes GPUs as soon as there is no session, if that is before the deadline. Returns whether none is open. */
bool sessions_close_gpus(struct sessions *all, uint64_t deadline_ns);
/** Ends idle sessions and waits for the others. Returns 0 or -ETIMEDOUT. */
int sessions_drain(struct sessions *all, uint64_t deadline_ns);

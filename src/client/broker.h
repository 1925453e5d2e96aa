// SPDX-License-Identifier: MIT
/*
 * The client of brumate-broker: finds the broker of this node or starts it, and makes its calls.
 * It owns one connection; it never loads a driver. Not for two threads at once.
 */
#pragma once

#include "base/error.h"
#include "client/peer.h"
#include "gpu/vendor.h"
#include "wire/agent.h"
#include "wire/broker-answers.h"
#include "wire/wire.h"

struct broker_client {
	struct wire wire;
	struct gpu_kind kind;
	pid_t pid; /* 0: not known yet */
	struct peer peer;
	uint32_t patience_ms; /* of a call that changes nothing; 0: as the driver needs */
};

#define BROKER_CLIENT_EMPTY ((struct broker_client){ .wire = { .fd = -1 } })

/**
 * Connects to the broker of @kind, starting it where there is none, and learns its pid.
 * Errors to act on: -ETIMEDOUT, -ENOENT (the program is not installed).
 */
int broker_client_open(struct broker_client *ret, const struct gpu_kind *kind,
		       struct brumate_error *err);
/** Like broker_client_open(), but starts no broker, for a caller that does not need one: each of its calls is given up
 * after @patience_ms. -EHOSTDOWN: it stands still, which is seen at once. -ENOENT, -ECONNREFUSED: there is none. */
int broker_client_find(struct broker_client *ret, const struct gpu_kind *kind, uint32_t patience_ms,
		       struct brumate_error *err);
/** Accepts the empty value. */
void broker_client_close(struct broker_client *b);
DEFINE_AUTO_FINI(struct broker_client, broker_client_close)
/** Drops the connection and makes a fresh one, to a fresh broker if the old one is gone. */
int broker_client_reopen(struct broker_client *b, struct brumate_error *err);
/** Process id of the broker, for fault points and messages. */
pid_t broker_client_pid(const struct broker_client *b);
/** Like wire_call(), but kills a broker that stands still. @fd is sent along (borrowed); -1: none. */
int broker_client_call(struct broker_client *b, const char *method, json_t *parameters, int fd,
		       json_t **ret, uint64_t deadline_ns, struct brumate_error *err);

/*
 * The calls. Each fails with -EPIPE when the broker is gone, which one that stands still is soon (peer.h), and with
 * -ETIMEDOUT when it does not answer (the connection cannot be used then: broker_client_reopen()); driver absent:
 * -ENODEV.
 */
int broker_client_info(struct broker_client *b, struct broker_info *ret, struct brumate_error *err);
/** @ret has room for DEV_GPUS_MAX. */
int broker_client_gpus(struct broker_client *b, struct dev_gpu *ret, size_t *ret_n,
		       struct brumate_error *err);
/** @ret has room for @n. */
int broker_client_state(struct broker_client *b, const pid_t *pids, size_t n,
			struct dev_process *ret, struct brumate_error *err);
/** For whom memory is to be ready. */
struct broker_prepare {
	const pid_t *pids; /* borrowed */
	size_t n;
	bool yields;	     /* as below */
	uint64_t kept_bytes; /* of a host copy that is held already */
	bool spare;	     /* which is released when the broker hangs up */
};

/** What the broker has ready. */
struct broker_prepared {
	uint64_t bytes; /* that the processes have; 0: too little to be worth it */
	struct agent_room
		open[DEV_GPUS_MAX]; /* GPUs that are open for it, and what that takes of them */
	size_t n_open;
};

/**
 * Has memory made ready for copies of what these processes have on GPUs, for as long as @ret_fd (owned) is open; -1: they have
 * too little for that. The broker hangs up when it is to be asked again. With yields the caller calls
 * broker_client_yield() when a program lacks the memory that open GPUs take.
 */
int broker_client_prepare(struct broker_client *b, const struct broker_prepare *request,
			  struct broker_prepared *ret, int *ret_fd, struct brumate_error *err);
/** Whether it is to be asked again, as it has hung up @fd of broker_client_prepare(), or has ended. -1: as well. */
bool broker_has_hung_up(int fd);
/** Has the GPUs closed that broker_client_prepare() opened, and waits for that; for a copy under way only some seconds. */
int broker_client_yield(struct broker_client *b, struct brumate_error *err);
/**
 * Runs @action on all @pids at once. 0: each was tried, and @ret (room for @n) says how each went;
 * the caller looks at result.number. @pairs: for DEV_RESTORE, may be NULL; completed by the broker.
 */
int broker_client_act(struct broker_client *b, enum dev_action action, const pid_t *pids, size_t n,
		      uint32_t timeout_ms, const struct dev_gpu_pair *pairs, size_t n_pairs,
		      struct broker_outcome *ret, struct brumate_error *err);

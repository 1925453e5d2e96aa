// SPDX-License-Identifier: MIT
/*
 * The command line of cuda-checkpoint on top of our broker: one driver call on one process, or the
 * two of --toggle. It knows no jobs and no images, and decides nothing beyond what that tool does.
 */
#include "programs/cuda-checkpoint.h"
#include "base/cleanup.h"
#include "client/broker.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	LOCK_TIMEOUT_MS = 10000,
	CALL_TIMEOUT_MS = 3600 * 1000, /* of calls that have no timeout of their own */
};

enum cuda_request { NOTHING, GET_STATE, GET_RESTORE_TID, ACTION, TOGGLE };

struct arguments {
	enum cuda_request request;
	enum dev_action action;
	pid_t pid;
	uint32_t lock_timeout_ms;
	struct dev_gpu_pair pairs[DEV_GPUS_MAX];
	size_t n_pairs;
	bool help;
};

static const char usage[] =
	"usage: cuda-checkpoint --pid PID REQUEST\n"
	"\n"
	"Looks at or changes the CUDA state of one process, through brumate's broker.\n"
	"\n"
	"  -p, --pid PID          the process\n"
	"      --get-state        print running, locked, checkpointed or failed\n"
	"      --get-restore-tid  print the thread that does the driver's work in the process\n"
	"      --action ACTION    lock, checkpoint, restore or unlock\n"
	"      --toggle           running: lock and checkpoint; checkpointed: restore and unlock\n"
	"      --timeout MS       how long a lock may take (default 10000)\n"
	"      --device-map MAP   for restore: OLD=NEW,... as UUIDs; other GPUs stay or swap\n"
	"  -h, --help             this text\n";

static int parse_number(const char *option, const char *text, long max, long *ret,
			struct brumate_error *err)
{
	char *end;

	errno = 0;
	long v = strtol(text, &end, 10);
	if (errno || end == text || *end || v < 1 || v > max)
		return brumate_fail(err, EINVAL, "%s: '%s' is not a number from 1 to %ld", option,
				    text, max);
	*ret = v;
	return 0;
}

static int parse_pair(const char *text, struct dev_gpu_pair *ret, struct brumate_error *err)
{
	const char *equals = strchr(text, '=');
	uint8_t uuid[DEV_UUID_BYTES];
	size_t len = equals ? (size_t)(equals - text) : 0;

	if (!equals || len >= sizeof(ret->from) || strlen(equals + 1) >= sizeof(ret->to))
		return brumate_fail(err, EINVAL, "--device-map: '%s' is not OLD=NEW", text);
	memcpy(ret->from, text, len);
	ret->from[len] = '\0';
	strcpy(ret->to, equals + 1);
	if (dev_uuid_parse(uuid, ret->from) < 0 || dev_uuid_parse(uuid, ret->to) < 0)
		return brumate_fail(err, EINVAL,
				    "--device-map: '%s' does not name two UUIDs of GPUs", text);
	return 0;
}

static int parse_map(struct arguments *a, const char *text, struct brumate_error *err)
{
	auto_free char *copy = strdup(text);
	char *rest = copy, *one;

	if (!copy)
		return brumate_fail(err, ENOMEM, "--device-map: %m");
	while ((one = strsep(&rest, ","))) {
		if (a->n_pairs == DEV_GPUS_MAX)
			return brumate_fail(err, EINVAL, "--device-map: more than %d GPUs",
					    DEV_GPUS_MAX);
		int r = parse_pair(one, &a->pairs[a->n_pairs++], err);
		if (r < 0)
			return r;
	}
	return 0;
}

static int set_request(struct arguments *a, enum cuda_request request, struct brumate_error *err)
{
	if (a->request != NOTHING && a->request != request)
		return brumate_fail(err, EINVAL,
				    "only one of --get-state, --get-restore-tid, --action "
				    "and --toggle can be asked for");
	a->request = request;
	return 0;
}

static int parse_option(struct arguments *a, int option, const char *value,
			struct brumate_error *err)
{
	long n = 0;
	int r;

	switch (option) {
	case 'p':
		r = parse_number("--pid", value, INT_MAX, &n, err);
		a->pid = (pid_t)n;
		return r;
	case 't':
		r = parse_number("--timeout", value, INT_MAX, &n, err);
		a->lock_timeout_ms = (uint32_t)n;
		return r;
	case 'd':
		return parse_map(a, value, err);
	case 'a':
		if (dev_action_parse(value, &a->action) < 0)
			return brumate_fail(err, EINVAL,
					    "--action: '%s' is none of lock, checkpoint, "
					    "restore, unlock",
					    value);
		return set_request(a, ACTION, err);
	case 's':
		return set_request(a, GET_STATE, err);
	case 'r':
		return set_request(a, GET_RESTORE_TID, err);
	case 'T':
		return set_request(a, TOGGLE, err);
	case 'h':
		a->help = true;
		return 0;
	default:
		return brumate_fail(err, EINVAL, "see cuda-checkpoint --help");
	}
}

static int check_arguments(const struct arguments *a, struct brumate_error *err)
{
	bool restores = a->request == TOGGLE || (a->request == ACTION && a->action == DEV_RESTORE);

	if (!a->pid)
		return brumate_fail(err, EINVAL, "--pid is missing");
	if (a->request == NOTHING)
		return brumate_fail(err, EINVAL, "nothing to do: see cuda-checkpoint --help");
	if (a->n_pairs && !restores)
		return brumate_fail(err, EINVAL, "--device-map is for restore alone");
	return 0;
}

static int parse(struct arguments *a, int argc, char **argv, struct brumate_error *err)
{
	static const struct option options[] = {
		{ "pid", required_argument, NULL, 'p' },
		{ "get-state", no_argument, NULL, 's' },
		{ "get-restore-tid", no_argument, NULL, 'r' },
		{ "action", required_argument, NULL, 'a' },
		{ "toggle", no_argument, NULL, 'T' },
		{ "timeout", required_argument, NULL, 't' },
		{ "device-map", required_argument, NULL, 'd' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int option;

	while ((option = getopt_long(argc, argv, "p:h", options, NULL)) != -1) {
		int r = parse_option(a, option, optarg, err);

		if (r < 0 || a->help)
			return r;
	}
	if (optind < argc)
		return brumate_fail(err, EINVAL, "'%s' is not an option", argv[optind]);
	return check_arguments(a, err);
}

static int act(struct broker_client *b, const struct arguments *a, enum dev_action action,
	       struct brumate_error *err)
{
	bool restores = action == DEV_RESTORE;
	struct broker_outcome o;
	int r = broker_client_act(b, action, &a->pid, 1,
				  action == DEV_LOCK ? a->lock_timeout_ms : CALL_TIMEOUT_MS,
				  restores ? a->pairs : NULL, restores ? a->n_pairs : 0, &o, err);

	if (r < 0)
		return r;
	if (o.result.number != 0)
		return brumate_fail(err, EIO, "process %d: %s: %s (%d)", (int)a->pid,
				    dev_action_name(action), o.result.name, o.result.number);
	return 0;
}

static int toggle(struct broker_client *b, const struct arguments *a, enum dev_state state,
		  struct brumate_error *err)
{
	int r;

	if (state == DEV_STATE_CHECKPOINTED) {
		r = act(b, a, DEV_RESTORE, err);
		return r < 0 ? r : act(b, a, DEV_UNLOCK, err);
	}
	if (state != DEV_STATE_RUNNING)
		return brumate_fail(err, EIO,
				    "process %d is %s: only a running or a checkpointed one "
				    "can be toggled",
				    (int)a->pid, dev_state_name(state));
	r = act(b, a, DEV_LOCK, err);
	if (r < 0)
		return r;
	r = act(b, a, DEV_DO_CHECKPOINT, err);
	if (r < 0)
		act(b, a, DEV_UNLOCK, NULL); /* it goes on running */
	return r;
}

static int carry_out(struct broker_client *b, const struct arguments *a, struct brumate_error *err)
{
	struct dev_process process;
	int r = broker_client_state(b, &a->pid, 1, &process, err);

	if (r < 0)
		return r;
	if (process.state == DEV_STATE_NONE)
		return brumate_fail(err, ESRCH, "process %d has no CUDA state, or does not exist",
				    (int)a->pid);
	switch (a->request) {
	case GET_STATE:
		puts(dev_state_name(process.state));
		return 0;
	case GET_RESTORE_TID:
		if (!process.restore_tid)
			return brumate_fail(err, ESRCH,
					    "process %d: the driver names no restore thread",
					    (int)a->pid);
		printf("%d\n", (int)process.restore_tid);
		return 0;
	case TOGGLE:
		return toggle(b, a, process.state, err);
	default:
		return act(b, a, a->action, err);
	}
}

static bool wants_simulated(void)
{
	const char *gpu = secure_getenv("BRUMATE_GPU");

	return gpu && !strcmp(gpu, "simulated");
}

int cuda_checkpoint_main(int argc, char **argv)
{
	auto_(broker_client_close) struct broker_client broker = BROKER_CLIENT_EMPTY;
	struct arguments a = { .lock_timeout_ms = LOCK_TIMEOUT_MS };
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int r = parse(&a, argc, argv, &err);

	if (r == 0 && a.help) {
		fputs(usage, stdout);
		return 0;
	}
	const struct gpu_kind kind = { .simulated = wants_simulated() };
	if (r == 0)
		r = broker_client_open(&broker, &kind, &err);
	if (r == 0)
		r = carry_out(&broker, &a, &err);
	if (r < 0)
		fprintf(stderr, "cuda-checkpoint: %s%s%s\n", err.text, err.hint[0] ? "; " : "",
			err.hint);
	return r < 0 ? 1 : 0;
}

// SPDX-License-Identifier: MIT
/* The operations of a backend with their fault points and debug lines, and the names of things. */
#include "gpu/gpu.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char *const state_names[DEV_STATE__MAX] = {
	[DEV_STATE_NONE] = "none",     [DEV_STATE_RUNNING] = "running",
	[DEV_STATE_LOCKED] = "locked", [DEV_STATE_CHECKPOINTED] = "checkpointed",
	[DEV_STATE_FAILED] = "failed", [DEV_STATE_UNKNOWN] = "unknown",
};

static const char *const action_names[DEV_ACTION__MAX] = {
	[DEV_LOCK] = "lock",
	[DEV_DO_CHECKPOINT] = "checkpoint",
	[DEV_RESTORE] = "restore",
	[DEV_UNLOCK] = "unlock",
};

const char *dev_state_name(enum dev_state state)
{
	return state < DEV_STATE__MAX ? state_names[state] : "unknown";
}

enum dev_state dev_state_parse(const char *name)
{
	for (int i = 0; i < DEV_STATE__MAX; i++)
		if (!strcmp(name, state_names[i]))
			return (enum dev_state)i;
	return DEV_STATE_UNKNOWN;
}

const char *dev_action_name(enum dev_action action)
{
	return action < DEV_ACTION__MAX ? action_names[action] : "unknown";
}

int dev_action_parse(const char *name, enum dev_action *ret)
{
	for (int i = 0; i < DEV_ACTION__MAX; i++) {
		if (strcmp(name, action_names[i]))
			continue;
		*ret = (enum dev_action)i;
		return 0;
	}
	return -EINVAL;
}

const char *dev_feature_name(uint32_t feature)
{
	switch (feature) {
	case DEV_CHECKPOINT:
		return "checkpoint";
	case DEV_REMAP:
		return "remap";
	case DEV_JOB_FILE:
		return "job-file";
	case DEV_LEGACY_IPC:
		return "legacy-ipc";
	case DEV_CUSTOM_STORAGE:
		return "custom-storage";
	default:
		return NULL;
	}
}

/* A fault point stands for the driver's call failing before it did anything. */
static int pass_fault_point(const char *operation, struct brumate_error *err)
{
	char name[64];

	snprintf(name, sizeof(name), "device.%s", operation);
	int r = fault_point(name);
	return r < 0 ? brumate_fail(err, -r, "%s: %m (injected)", name) : 0;
}

int dev_open(const struct dev_backend *b, const struct dev_libraries *libraries,
	     struct dev_info *ret, struct brumate_error *err)
{
	int r = pass_fault_point("open", err);
	if (r < 0)
		return r;

	r = b->open(libraries, ret, err);
	if (r == 0)
		log_debug("%s: driver %s, api %d, initialised in %.3f s", b->name,
			  ret->driver_version, ret->api_version, ret->init_seconds);
	return r;
}

int dev_gpus(const struct dev_backend *b, struct dev_gpu *ret, size_t max, size_t *ret_n,
	     struct brumate_error *err)
{
	int r = pass_fault_point("gpus", err);

	return r < 0 ? r : b->gpus(ret, max, ret_n, err);
}

int dev_process(const struct dev_backend *b, pid_t pid, struct dev_process *ret,
		struct brumate_error *err)
{
	int r = pass_fault_point("process", err);

	return r < 0 ? r : b->process(pid, ret, err);
}

int dev_process_state(const struct dev_backend *b, pid_t pid, enum dev_state *ret,
		      struct brumate_error *err)
{
	int r = pass_fault_point("state", err);

	return r < 0 ? r : b->state(pid, ret, err);
}

int dev_act(const struct dev_backend *b, pid_t pid, enum dev_action action, uint32_t timeout_ms,
	    const struct dev_gpu_pair *pairs, size_t n_pairs, struct dev_result *ret,
	    struct brumate_error *err)
{
	int r = pass_fault_point(dev_action_name(action), err);
	if (r < 0)
		return r;
	if (!b->act)
		return brumate_fail(err, EOPNOTSUPP,
				    "%s: the driver has no call for %s of a process", b->name,
				    dev_action_name(action));

	uint64_t start_ns = clock_now_ns();
	r = b->act(pid, action, timeout_ms, pairs, n_pairs, ret, err);
	log_debug("%s: %s pid=%d result=%d seconds=%.3f", b->name, dev_action_name(action),
		  (int)pid, r < 0 ? r : ret->number, clock_since_s(start_ns));
	return r;
}

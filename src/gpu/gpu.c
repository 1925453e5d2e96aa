// SPDX-License-Identifier: MIT
/* A backend's operations with their fault points and debug lines, names of its constants, and maps between GPUs. */
#include "gpu/gpu.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/hex.h"
#include "base/log.h"

const char *const dev_state_names[DEV_STATE__MAX] = {
	[DEV_STATE_NONE] = "none",     [DEV_STATE_RUNNING] = "running",
	[DEV_STATE_LOCKED] = "locked", [DEV_STATE_CHECKPOINTED] = "checkpointed",
	[DEV_STATE_FAILED] = "failed", [DEV_STATE_UNKNOWN] = "unknown",
};

const char *const dev_feature_names[DEV_N_FEATURES] = { "checkpoint", "remap", "job-file",
							"legacy-ipc", "custom-storage" };

static const char *const action_names[DEV_ACTION__MAX] = {
	[DEV_LOCK] = "lock",
	[DEV_DO_CHECKPOINT] = "checkpoint",
	[DEV_RESTORE] = "restore",
	[DEV_UNLOCK] = "unlock",
};

const char *dev_state_name(enum dev_state state)
{
	return state < DEV_STATE__MAX ? dev_state_names[state] : "unknown";
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

/* A fault point simulates that the driver's call fails before it has any effect. */
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

/* ---- UUIDs as text, and maps between GPUs: pure ---- */

char *dev_gpu_pairs_format(const struct dev_gpu_pair *pairs, size_t n)
{
	const size_t room = n * (2 * DEV_UUID_TEXT_BYTES) + 1;
	char *text = calloc(1, room);

	for (size_t i = 0, at = 0; text && i < n; i++)
		at += (size_t)snprintf(text + at, room - at, "%s%s=%s", i ? "," : "", pairs[i].from,
				       pairs[i].to);
	return text;
}

void dev_uuid_format(char ret[static DEV_UUID_TEXT_BYTES],
		     const uint8_t uuid[static DEV_UUID_BYTES])
{
	char *p = ret + sprintf(ret, "GPU");

	for (int i = 0; i < DEV_UUID_BYTES; i++)
		p += sprintf(p, "%s%02x",
			     i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

int dev_uuid_parse(uint8_t ret[static DEV_UUID_BYTES], const char *text)
{
	static const char form[] = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
	uint8_t uuid[DEV_UUID_BYTES] = { 0 };
	int n = 0;

	if (!strncasecmp(text, "GPU-", 4) || !strncasecmp(text, "MIG-", 4))
		text += 4;
	if (strlen(text) != sizeof(form) - 1)
		return -EINVAL;
	for (size_t i = 0; form[i]; i++) {
		int v = hex_value(tolower((unsigned char)text[i]));

		if (form[i] == '-' ? text[i] != '-' : v < 0)
			return -EINVAL;
		if (form[i] == '-')
			continue;
		uuid[n / 2] = (uint8_t)(uuid[n / 2] << 4 | v);
		n++;
	}
	memcpy(ret, uuid, sizeof(uuid));
	return 0;
}

/* The index of the GPU with this uuid, or -EINVAL. */
static int find_gpu(const struct dev_gpu *gpus, size_t n_gpus, const char *text,
		    struct brumate_error *err)
{
	uint8_t wanted[DEV_UUID_BYTES], uuid[DEV_UUID_BYTES];

	if (dev_uuid_parse(wanted, text) < 0)
		return brumate_fail(err, EINVAL, "GPU map: '%s' is not the UUID of a GPU", text);
	for (size_t i = 0; i < n_gpus; i++)
		if (dev_uuid_parse(uuid, gpus[i].uuid) == 0 && !memcmp(uuid, wanted, sizeof(uuid)))
			return (int)i;
	int r = brumate_fail(err, EINVAL, "GPU map: there is no GPU %s here", text);
	brumate_hint(err, "`brumate doctor` lists the GPUs of this machine");
	return r;
}

/* The place of GPU @i, which the map does not mention: follows the chain of GPUs that displace each other to its free
 * end. */
static int free_place(const int *source_of, int i)
{
	while (source_of[i] >= 0)
		i = source_of[i];
	return i;
}

static bool is_here(const struct dev_gpu *gpus, size_t n_gpus, const char *uuid)
{
	return find_gpu(gpus, n_gpus, uuid, NULL) >= 0;
}

/* A map with as many new places as there are GPUs here is used unchanged if its old GPUs are those of another
 * machine: only the caller knows what the job saw there. */
static bool is_from_elsewhere(const struct dev_gpu *gpus, size_t n_gpus,
			      const struct dev_gpu_pair *pairs, size_t n_pairs)
{
	bool foreign = false;

	if (n_pairs != n_gpus)
		return false;
	for (size_t i = 0; i < n_pairs; i++) {
		uint8_t uuid[DEV_UUID_BYTES];

		if (dev_uuid_parse(uuid, pairs[i].from) < 0 || !is_here(gpus, n_gpus, pairs[i].to))
			return false;
		foreign = foreign || !is_here(gpus, n_gpus, pairs[i].from);
		for (size_t k = 0; k < i; k++)
			if (!strcasecmp(pairs[i].to, pairs[k].to) ||
			    !strcasecmp(pairs[i].from, pairs[k].from))
				return false;
	}
	return foreign;
}

int dev_map_complete(struct dev_gpu_pair *ret, const struct dev_gpu *gpus, size_t n_gpus,
		     const struct dev_gpu_pair *pairs, size_t n_pairs, struct brumate_error *err)
{
	int target_of[DEV_GPUS_MAX], source_of[DEV_GPUS_MAX]; /* from the map; -1: not mentioned */

	if (n_gpus > DEV_GPUS_MAX)
		return brumate_fail(err, EINVAL, "GPU map: more than %d GPUs", DEV_GPUS_MAX);
	if (is_from_elsewhere(gpus, n_gpus, pairs, n_pairs)) {
		memcpy(ret, pairs, n_pairs * sizeof(*pairs));
		return 0;
	}
	memset(target_of, -1, sizeof(target_of));
	memset(source_of, -1, sizeof(source_of));
	for (size_t i = 0; i < n_pairs; i++) {
		int from = find_gpu(gpus, n_gpus, pairs[i].from, err);
		int to = from < 0 ? from : find_gpu(gpus, n_gpus, pairs[i].to, err);

		if (to < 0)
			return to;
		if (target_of[from] >= 0)
			return brumate_fail(err, EINVAL,
					    "GPU map: %s is given twice as the old GPU",
					    pairs[i].from);
		if (source_of[to] >= 0)
			return brumate_fail(err, EINVAL,
					    "GPU map: %s is given twice as the new GPU",
					    pairs[i].to);
		target_of[from] = to;
		source_of[to] = from;
	}
	for (size_t i = 0; i < n_gpus; i++) {
		int to = target_of[i] >= 0 ? target_of[i] : free_place(source_of, (int)i);

		memcpy(ret[i].from, gpus[i].uuid, sizeof(ret[i].from));
		memcpy(ret[i].to, gpus[to].uuid, sizeof(ret[i].to));
	}
	return 0;
}

// SPDX-License-Identifier: MIT
/* The methods of io.brumate.broker: parameters in, the driver's answers out. Decides nothing. */
#include "broker/broker.h"
#include "broker/pool.h"
#include "broker/spill.h"
#include "wire/wire.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	TIMEOUT_MAX_MS = 24 * 3600 * 1000,
	STATE_TIMEOUT_MS = 5000, /* for a process that is stopped, or has a call under way */
};

static void (*on_quit)(void);

/* Takes @reply. */
static int reply_with(struct wire_call_context *call, json_t *reply, struct brumate_error *err)
{
	auto_json json_t *owned = reply;

	return owned ? wire_reply(call, owned) : brumate_fail(err, ENOMEM, "reply: %m");
}

static json_t *gpus_to_json(const struct dev_gpu *gpus, size_t n)
{
	json_t *list = json_array();

	for (size_t i = 0; i < n; i++)
		json_array_append_new(list, json_pack("{s:i, s:s, s:o, s:I, s:I, s:b}", "index",
						      (int)i, "uuid", gpus[i].uuid, "name",
						      wire_string(gpus[i].name), "total_bytes",
						      (json_int_t)gpus[i].total_bytes, "used_bytes",
						      (json_int_t)gpus[i].used_bytes, "mig",
						      gpus[i].mig));
	return list;
}

static json_t *features_to_json(uint32_t features)
{
	json_t *list = json_array();

	for (uint32_t bit = 1; dev_feature_name(bit); bit <<= 1)
		if (features & bit)
			json_array_append_new(list, json_string(dev_feature_name(bit)));
	return list;
}

static json_t *pool_to_json(void)
{
	struct pool_info p;

	pool_info(&p);
	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:s}", "limit_bytes",
			 (json_int_t)p.limit_bytes, "pinned_bytes", (json_int_t)p.kept_bytes,
			 "leased_bytes", (json_int_t)p.leased_bytes, "free_bytes",
			 (json_int_t)p.free_bytes, "memory_bytes", (json_int_t)p.memory_bytes,
			 "disk_bytes", (json_int_t)p.disk_bytes, "disk", spill_dir());
}

static int info(void *arg, struct wire_call_context *call, json_t *parameters,
		struct brumate_error *err)
{
	const struct dev_backend *backend;
	struct dev_info device;
	struct dev_gpu gpus[DEV_GPUS_MAX];
	size_t n_gpus;
	int r = driver_wait(&backend, &device, err);

	if (r == 0)
		r = dev_gpus(backend, gpus, DEV_GPUS_MAX, &n_gpus, err);
	if (r < 0)
		return r;
	return reply_with(call,
			  json_pack("{s:s, s:b, s:o, s:i, s:f, s:o, s:o, s:i, s:o}", "backend",
				    backend->name, "simulated", device.simulated, "driver_version",
				    wire_string(device.driver_version), "api_version",
				    device.api_version, "init_seconds", device.init_seconds,
				    "features", features_to_json(device.features), "gpus",
				    gpus_to_json(gpus, n_gpus), "pid", (int)getpid(), "pool",
				    pool_to_json()),
			  err);
}

static int list_gpus(void *arg, struct wire_call_context *call, json_t *parameters,
		     struct brumate_error *err)
{
	const struct dev_backend *backend;
	struct dev_gpu gpus[DEV_GPUS_MAX];
	size_t n;
	int r = driver_wait(&backend, NULL, err);

	if (r == 0)
		r = dev_gpus(backend, gpus, DEV_GPUS_MAX, &n, err);
	return r < 0 ? r : reply_with(call, json_pack("{s:o}", "gpus", gpus_to_json(gpus, n)), err);
}

static int compare_pids(const void *a, const void *b)
{
	pid_t x = *(const pid_t *)a, y = *(const pid_t *)b;

	return x < y ? -1 : x > y;
}

static bool has_duplicates(const pid_t *pids, size_t n)
{
	auto_free pid_t *sorted = calloc(n + 1, sizeof(*sorted));

	if (!sorted)
		return true;
	memcpy(sorted, pids, n * sizeof(*pids));
	qsort(sorted, n, sizeof(*sorted), compare_pids);
	for (size_t i = 1; i < n; i++)
		if (sorted[i] == sorted[i - 1])
			return true;
	return false;
}

/* The parameter "pids", as an array on the heap (returns owned). */
static int get_pids(json_t *parameters, pid_t **ret, size_t *ret_n, struct brumate_error *err)
{
	json_t *list;
	int r = wire_get_array(parameters, "pids", &list, err);
	if (r < 0)
		return r;
	if (!list)
		return wire_fail_parameter(err, "pids", "is missing");

	size_t n = json_array_size(list);
	if (n > ACT_PIDS_MAX)
		return wire_fail_parameter(err, "pids", "are too many");
	auto_free pid_t *pids = calloc(n + 1, sizeof(*pids));
	if (!pids)
		return brumate_fail(err, ENOMEM, "pids: %m");
	for (size_t i = 0; i < n; i++) {
		json_t *v = json_array_get(list, i);
		json_int_t pid = json_integer_value(v);

		if (!json_is_integer(v) || pid <= 0 || pid > INT_MAX)
			return wire_fail_parameter(err, "pids", "must be process ids");
		pids[i] = (pid_t)pid;
	}
	if (has_duplicates(pids, n))
		return wire_fail_parameter(err, "pids", "must be distinct");
	*ret = take_ptr(&pids);
	*ret_n = n;
	return 0;
}

static json_t *process_to_json(pid_t pid, const struct dev_process *p)
{
	json_t *gpus = json_array(), *bytes = json_array();

	for (size_t i = 0; i < p->n_gpus; i++) {
		json_array_append_new(gpus, json_string(p->gpus[i]));
		json_array_append_new(bytes, json_integer((json_int_t)p->gpu_bytes[i]));
	}
	return json_pack("{s:i, s:s, s:o, s:o, s:o, s:I}", "pid", (int)pid, "state",
			 dev_state_name(p->state), "restore_tid",
			 p->restore_tid ? json_integer(p->restore_tid) : json_null(), "gpus", gpus,
			 "gpu_bytes", bytes, "used_bytes", (json_int_t)p->used_bytes);
}

static int state(void *arg, struct wire_call_context *call, json_t *parameters,
		 struct brumate_error *err)
{
	const struct dev_backend *backend;
	auto_free pid_t *pids = NULL;
	size_t n = 0;
	int r = get_pids(parameters, &pids, &n, err);

	if (r == 0)
		r = driver_wait(&backend, NULL, err);
	if (r < 0)
		return r;

	auto_free struct dev_process *processes = calloc(n + 1, sizeof(*processes));
	if (!processes)
		return brumate_fail(err, ENOMEM, "state: %m");
	r = acts_look(backend, pids, n, STATE_TIMEOUT_MS, processes, err);
	if (r < 0)
		return r;

	auto_json json_t *list = json_array();
	for (size_t i = 0; i < n; i++)
		json_array_append_new(list, process_to_json(pids[i], &processes[i]));
	return reply_with(call, json_pack("{s:O}", "processes", list), err);
}

static int get_map(json_t *parameters, struct dev_gpu_pair *ret, size_t *ret_n,
		   struct brumate_error *err)
{
	json_t *list;
	int r = wire_get_array(parameters, "gpu_map", &list, err);
	if (r < 0)
		return r;

	size_t n = json_array_size(list);
	if (n > DEV_GPUS_MAX)
		return wire_fail_parameter(err, "gpu_map", "has too many entries");
	for (size_t i = 0; i < n; i++) {
		const char *from, *to;

		if (!json_is_object(json_array_get(list, i)))
			return wire_fail_parameter(err, "gpu_map", "must hold objects");
		r = wire_need_string(json_array_get(list, i), "from", &from, err);
		if (r == 0)
			r = wire_need_string(json_array_get(list, i), "to", &to, err);
		if (r < 0)
			return r;
		if (strlen(from) >= DEV_UUID_TEXT_BYTES || strlen(to) >= DEV_UUID_TEXT_BYTES)
			return wire_fail_parameter(err, "gpu_map", "must hold UUIDs of GPUs");
		strcpy(ret[i].from, from);
		strcpy(ret[i].to, to);
	}
	*ret_n = n;
	return 0;
}

/* Makes the caller's map, if there is one, one of all visible GPUs. */
static int complete_map(const struct dev_backend *backend, const struct dev_info *device,
			enum dev_action action, struct dev_gpu_pair *pairs, size_t *n,
			struct brumate_error *err)
{
	struct dev_gpu_pair full[DEV_GPUS_MAX];
	struct dev_gpu gpus[DEV_GPUS_MAX];
	size_t n_gpus;

	if (!*n)
		return 0;
	if (action != DEV_RESTORE)
		return wire_fail_parameter(err, "gpu_map", "is for restore alone");
	if (!(device->features & DEV_REMAP))
		return brumate_fail(err, EOPNOTSUPP,
				    "NVIDIA driver %s cannot restore onto other GPUs (580 can)",
				    device->driver_version);
	int r = dev_gpus(backend, gpus, DEV_GPUS_MAX, &n_gpus, err);
	if (r == 0)
		r = dev_map_complete(full, gpus, n_gpus, pairs, *n, err);
	if (r < 0)
		return r;
	memcpy(pairs, full, n_gpus * sizeof(full[0]));
	*n = n_gpus;
	return 0;
}

static json_t *outcomes_to_json(const pid_t *pids, const struct act_outcome *o, size_t n)
{
	json_t *list = json_array();

	for (size_t i = 0; i < n; i++)
		json_array_append_new(list, json_pack("{s:i, s:f, s:i, s:o, s:s}", "pid",
						      (int)pids[i], "seconds", o[i].seconds,
						      "result", o[i].result.number, "result_name",
						      wire_string(o[i].result.name), "state",
						      dev_state_name(o[i].state)));
	return list;
}

static int get_action(json_t *parameters, enum dev_action *ret, uint32_t *ret_timeout_ms,
		      struct brumate_error *err)
{
	const char *name;
	int64_t timeout_ms = 0;
	int r = wire_need_string(parameters, "action", &name, err);

	if (r < 0)
		return r;
	if (dev_action_parse(name, ret) < 0)
		return wire_fail_parameter(err, "action",
					   "is none of lock, checkpoint, restore, unlock");
	r = wire_get_int(parameters, "timeout_ms", 1, TIMEOUT_MAX_MS, &timeout_ms, err);
	if (r == 0 && !timeout_ms)
		return wire_fail_parameter(err, "timeout_ms", "is missing");
	*ret_timeout_ms = (uint32_t)timeout_ms;
	return r;
}

static int act(void *arg, struct wire_call_context *call, json_t *parameters,
	       struct brumate_error *err)
{
	const struct dev_backend *backend;
	struct dev_info device;
	struct dev_gpu_pair pairs[DEV_GPUS_MAX];
	auto_free pid_t *pids = NULL;
	size_t n = 0, n_pairs = 0;
	enum dev_action action = DEV_LOCK;
	uint32_t timeout_ms = 0;
	int r = get_action(parameters, &action, &timeout_ms, err);

	if (r == 0)
		r = get_pids(parameters, &pids, &n, err);
	if (r == 0)
		r = get_map(parameters, pairs, &n_pairs, err);
	if (r == 0)
		r = driver_wait(&backend, &device, err);
	if (r == 0)
		r = complete_map(backend, &device, action, pairs, &n_pairs, err);
	if (r < 0)
		return r;

	auto_free struct act_outcome *outcomes = calloc(n + 1, sizeof(*outcomes));
	if (!outcomes)
		return brumate_fail(err, ENOMEM, "%s: %m", dev_action_name(action));
	r = acts_run(backend, action, pids, n, timeout_ms, pairs, n_pairs, outcomes, err);
	if (r < 0)
		return r;
	return reply_with(call, json_pack("{s:o}", "outcomes", outcomes_to_json(pids, outcomes, n)),
			  err);
}

static int transfer(void *arg, struct wire_call_context *call, json_t *parameters,
		    struct brumate_error *err)
{
	const struct dev_backend *backend;
	auto_close int fd = wire_call_take_fd(call, 0);

	if (fd < 0)
		return brumate_fail(err, EINVAL, "transfer: no socket came with the call");
	int r = driver_wait(&backend, NULL, err);
	if (r == 0)
		r = data_serve(take_fd(&fd), err);
	return r < 0 ? r : wire_reply(call, NULL);
}

static int quit(void *arg, struct wire_call_context *call, json_t *parameters,
		struct brumate_error *err)
{
	int r = wire_reply(call, NULL);

	on_quit();
	return r;
}

static const struct wire_method methods[] = {
	{ "io.brumate.broker.Info", info },   { "io.brumate.broker.Gpus", list_gpus },
	{ "io.brumate.broker.State", state }, { "io.brumate.broker.Act", act },
	{ "io.brumate.broker.Quit", quit },   { "io.brumate.broker.Transfer", transfer },
};

struct wire_service methods_service(void (*when_asked_to_quit)(void))
{
	on_quit = when_asked_to_quit;
	return (struct wire_service){
		.interface_name = "io.brumate.broker",
		.description = wire_interface_broker,
		.methods = methods,
		.n_methods = sizeof(methods) / sizeof(methods[0]),
	};
}

// SPDX-License-Identifier: MIT
/*
 * The broker, and the methods of io.brumate.broker: decodes the parameters, calls the driver, encodes the replies.
 * See broker.h.
 */
#include "broker/broker.h"
#include "broker/prepare.h"
#include "broker/session.h"
#include "base/clock.h"
#include "base/loop.h"
#include "gpu/vendor.h"
#include "wire/broker-answers.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	TIMEOUT_MAX_MS = 24 * 3600 * 1000,
	STATE_TIMEOUT_MS = 5000, /* for a process that is stopped or has a call under way */
};

struct broker {
	struct loop *loop; /* of the owner, which is to check the broker; borrowed */
	atomic_bool unwanted;
	struct driver *driver;
	struct pool *pool;
	struct gpus *gpus;
	struct sessions *sessions;
	struct preparer *preparer;
	void (*withdraw)(void *arg); /* NULL: there is nothing to withdraw */
	void *withdraw_arg;
};

/* ---- methods ---- */

/* Takes @reply. */
static int reply_with(struct wire_call_context *call, json_t *reply, struct brumate_error *err)
{
	auto_json json_t *owned = reply;

	return owned ? wire_reply(call, owned) : brumate_fail(err, ENOMEM, "reply: %m");
}

/* A driver whose initialisation failed is not tried again in this process, as it may have kept some state of the
 * failure. A client that gets the error and connects again does not find this broker any more; a new broker tries. */
static int use_driver(struct broker *b, const struct dev_backend **ret, struct dev_info *ret_info,
		      struct brumate_error *err)
{
	int r = driver_wait(b->driver, ret, ret_info, err);

	if (r == 0)
		return 0;
	if (b->withdraw)
		b->withdraw(b->withdraw_arg);
	atomic_store(&b->unwanted, true);
	loop_wake(b->loop);
	return r;
}

static int look_at_gpus(struct broker *b, const struct dev_backend *backend,
			struct broker_info *ret, struct brumate_error *err)
{
	struct dev_gpu gpus[DEV_GPUS_MAX];
	uint8_t uuid[DEV_UUID_BYTES];
	int r = dev_gpus(backend, gpus, DEV_GPUS_MAX, &ret->n_gpus, err);

	for (size_t i = 0; r == 0 && i < ret->n_gpus; i++) {
		struct broker_gpu *gpu = &ret->gpus[i];

		gpu->index = (int)i;
		gpu->gpu = gpus[i];
		if (dev_uuid_parse(uuid, gpu->gpu.uuid) == 0)
			gpu->moved = gpus_moved(b->gpus, uuid);
	}
	return r;
}

static int serve_info(void *arg, struct wire_call_context *call, json_t *parameters,
		      struct brumate_error *err)
{
	struct broker *b = arg;
	const struct dev_backend *backend;
	struct broker_info info = { .pid = getpid() };
	int r = use_driver(b, &backend, &info.device, err);

	if (r == 0)
		r = look_at_gpus(b, backend, &info, err);
	if (r < 0)
		return r;
	snprintf(info.backend, sizeof(info.backend), "%s", backend->name);
	pool_info(b->pool, &info.room);
	return reply_with(call, broker_answer_encode(BROKER_INFO, &info), err);
}

static int serve_gpus(void *arg, struct wire_call_context *call, json_t *parameters,
		      struct brumate_error *err)
{
	struct broker *b = arg;
	const struct dev_backend *backend;
	struct broker_info info = { 0 };
	int r = use_driver(b, &backend, NULL, err);

	if (r == 0)
		r = look_at_gpus(b, backend, &info, err);
	return r < 0 ? r : reply_with(call, broker_answer_encode(BROKER_GPUS, &info), err);
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
	if (n > DRIVER_PIDS_MAX)
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

static int serve_state(void *arg, struct wire_call_context *call, json_t *parameters,
		       struct brumate_error *err)
{
	struct broker *b = arg;
	const struct dev_backend *backend;
	auto_free pid_t *pids = NULL;
	size_t n = 0;
	int r = get_pids(parameters, &pids, &n, err);

	if (r == 0)
		r = use_driver(b, &backend, NULL, err);
	if (r < 0)
		return r;

	auto_free struct dev_process *processes = calloc(n + 1, sizeof(*processes));
	if (!processes)
		return brumate_fail(err, ENOMEM, "state: %m");
	r = driver_look(b->driver, pids, n, STATE_TIMEOUT_MS, processes, err);
	if (r < 0)
		return r;
	const struct broker_processes all = { processes, n };
	return reply_with(call, broker_answer_encode(BROKER_PROCESSES, &all), err);
}

static const struct schema_field map_field =
	ROWS(struct driver_call, "gpu_map", pairs, n_pairs, broker_pair_fields);

/* Extends the caller's map, if there is one, to all visible GPUs. */
static int complete_map(const struct gpu_vendor *vendor, const struct dev_info *device,
			struct driver_call *call, struct brumate_error *err)
{
	struct dev_gpu_pair full[DEV_GPUS_MAX];
	struct dev_gpu gpus[DEV_GPUS_MAX];
	size_t n_gpus;

	if (!call->n_pairs)
		return 0;
	if (call->action != DEV_RESTORE)
		return wire_fail_parameter(err, "gpu_map", "is for restore alone");
	if (!(device->features & DEV_REMAP))
		return brumate_fail(
			err, EOPNOTSUPP, "%s driver %s cannot restore onto other GPUs (%s can)",
			vendor->name, device->driver_version, vendor->feature_since(DEV_REMAP));
	int r = dev_gpus(vendor->backend, gpus, DEV_GPUS_MAX, &n_gpus, err);
	if (r == 0)
		r = dev_map_complete(full, gpus, n_gpus, call->pairs, call->n_pairs, err);
	if (r < 0)
		return r;
	memcpy(call->pairs, full, n_gpus * sizeof(full[0]));
	call->n_pairs = n_gpus;
	return 0;
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

static int serve_act(void *arg, struct wire_call_context *call, json_t *parameters,
		     struct brumate_error *err)
{
	struct broker *b = arg;
	const struct dev_backend *backend;
	struct dev_info device;
	struct driver_call act = { .action = DEV_LOCK };
	auto_free pid_t *pids = NULL;
	size_t n = 0;
	int r = get_action(parameters, &act.action, &act.timeout_ms, err);

	if (r == 0)
		r = get_pids(parameters, &pids, &n, err);
	if (r == 0)
		r = wire_get_field(parameters, &map_field, &act, err);
	if (r == 0)
		r = use_driver(b, &backend, &device, err);
	if (r == 0)
		r = complete_map(driver_vendor(b->driver), &device, &act, err);
	if (r < 0)
		return r;

	auto_free struct broker_outcome *outcomes = calloc(n + 1, sizeof(*outcomes));
	if (!outcomes)
		return brumate_fail(err, ENOMEM, "%s: %m", dev_action_name(act.action));
	r = driver_run(b->driver, &act, pids, n, outcomes, err);
	if (r < 0)
		return r;
	const struct broker_outcomes all = { outcomes, n };
	return reply_with(call, broker_answer_encode(BROKER_OUTCOMES, &all), err);
}

static int serve_transfer(void *arg, struct wire_call_context *call, json_t *parameters,
			  struct brumate_error *err)
{
	struct broker *b = arg;
	const struct dev_backend *backend;
	auto_close int fd = wire_call_take_fd(call, 0);

	if (fd < 0)
		return brumate_fail(err, EINVAL, "transfer: no socket came with the call");
	int r = use_driver(b, &backend, NULL, err);
	uid_t uid;
	gid_t gid;
	pid_t pid;

	wire_call_peer(call, &uid, &gid, &pid);
	if (r == 0)
		r = sessions_add(b->sessions, take_fd(&fd), pid, err);
	return r < 0 ? r : wire_reply(call, NULL);
}

static json_t *prepared_to_json(const struct prepared *p)
{
	json_t *open = json_array();

	for (size_t i = 0; i < p->n_open; i++)
		json_array_append_new(open, json_pack("{s:s, s:I}", "uuid", p->open[i].uuid,
						      "bytes", (json_int_t)p->open[i].bytes));
	return json_pack("{s:I, s:o}", "bytes", (json_int_t)p->bytes, "open", open);
}

static int serve_prepare(void *arg, struct wire_call_context *call, json_t *parameters,
			 struct brumate_error *err)
{
	struct broker *b = arg;
	const struct dev_backend *backend;
	auto_close int fd = wire_call_take_fd(call, 0);
	auto_free pid_t *pids = NULL;
	struct prepare_request request = { 0 };
	struct prepared prepared;
	int64_t kept = 0;

	if (fd < 0)
		return brumate_fail(err, EINVAL, "prepare: no pipe came with the call");
	int r = get_pids(parameters, &pids, &request.n, err);
	if (r == 0)
		r = wire_get_bool(parameters, "yields", &request.may_open, err);
	if (r == 0)
		r = wire_get_int(parameters, "kept", 0, INT64_MAX, &kept, err);
	if (r == 0)
		r = wire_get_bool(parameters, "spare", &request.spare, err);
	request.pids = pids;
	request.kept_bytes = (uint64_t)kept;
	if (r == 0)
		r = use_driver(b, &backend, NULL, err);
	if (r == 0)
		r = preparer_add(b->preparer, take_fd(&fd), &request, &prepared, err);
	return r < 0 ? r : reply_with(call, prepared_to_json(&prepared), err);
}

static int serve_yield(void *arg, struct wire_call_context *call, json_t *parameters,
		       struct brumate_error *err)
{
	struct broker *b = arg;

	return reply_with(call, json_pack("{s:b}", "closed", preparer_yield(b->preparer)), err);
}

static int serve_quit(void *arg, struct wire_call_context *call, json_t *parameters,
		      struct brumate_error *err)
{
	struct broker *b = arg;
	int r = wire_reply(call, NULL);

	atomic_store(&b->unwanted, true);
	loop_wake(b->loop);
	return r;
}

static const struct wire_method methods[] = {
	{ "io.brumate.broker.Info", serve_info },
	{ "io.brumate.broker.Gpus", serve_gpus },
	{ "io.brumate.broker.State", serve_state },
	{ "io.brumate.broker.Act", serve_act },
	{ "io.brumate.broker.Quit", serve_quit },
	{ "io.brumate.broker.Transfer", serve_transfer },
	{ "io.brumate.broker.Prepare", serve_prepare },
	{ "io.brumate.broker.Yield", serve_yield },
};

struct wire_service broker_service(struct broker *b)
{
	return (struct wire_service){
		.interface_name = "io.brumate.broker",
		.description = wire_interface_broker,
		.methods = methods,
		.n_methods = sizeof(methods) / sizeof(methods[0]),
		.arg = b,
	};
}

/* ---- the broker ---- */

bool broker_is_unwanted(const struct broker *b)
{
	return atomic_load(&b->unwanted);
}

bool broker_has_failed(struct broker *b)
{
	return driver_has_failed(b->driver);
}

bool broker_is_busy(struct broker *b, uint64_t *ret_last_end_ns)
{
	uint64_t last_call_ns, last_session_ns, last_prepared_ns;
	size_t calls = driver_busy(b->driver, &last_call_ns);
	size_t sessions = sessions_busy(b->sessions, &last_session_ns);
	size_t prepares = preparer_busy(b->preparer, &last_prepared_ns);
	uint64_t last_ns = last_call_ns > last_session_ns ? last_call_ns : last_session_ns;

	*ret_last_end_ns = last_ns > last_prepared_ns ? last_ns : last_prepared_ns;
	return calls || sessions || prepares;
}

int broker_rest(struct broker *b)
{
	return sessions_rest(b->sessions);
}

int broker_drain(struct broker *b, uint64_t timeout_ms)
{
	const struct dev_backend *backend;
	int r = driver_drain(b->driver, deadline_in_ms(timeout_ms));

	preparer_stop(b->preparer);
	if (r == 0)
		r = sessions_drain(b->sessions, deadline_in_ms(timeout_ms));
	if (r == 0)
		driver_wait(b->driver, &backend, NULL, NULL);
	return r;
}

static bool is_idle(void *arg, uint64_t *ret_since_ns)
{
	struct broker *b = arg;

	return sessions_busy(b->sessions, ret_since_ns) == 0;
}

static uint64_t spare_bytes(void *arg)
{
	const struct broker *b = arg;

	return preparer_spare_bytes(b->preparer);
}

static uint64_t recall_spare(void *arg)
{
	const struct broker *b = arg;

	return preparer_recall_spare(b->preparer);
}

static bool close_gpus(void *arg, uint32_t timeout_ms)
{
	struct broker *b = arg;

	return sessions_close_gpus(b->sessions, deadline_in_ms(timeout_ms));
}

int broker_new(struct broker **ret, const struct broker_options *o, struct brumate_error *err)
{
	const struct pool_options pool = { o->pool_bytes, o->memory_bytes, o->spill_dir };
	struct broker *b = calloc(1, sizeof(*b));

	if (!b)
		return brumate_fail(err, ENOMEM, "%m");
	b->withdraw = o->withdraw;
	b->withdraw_arg = o->withdraw_arg;
	b->loop = o->loop;
	int r = driver_new(&b->driver, o->vendor ? o->vendor : gpu_vendors[0], &o->libraries,
			   b->loop, err);
	if (r == 0)
		r = pool_new(&b->pool, &pool, err);
	if (r == 0)
		r = gpus_new(&b->gpus, b->pool, err);
	if (r == 0)
		r = sessions_new(&b->sessions, b->driver, b->gpus, o->digests, b->loop, err);
	const struct prepare_options prepare = { .driver = b->driver,
						 .pool = b->pool,
						 .gpus = o->open_gpus ? b->gpus : NULL,
						 .digests = o->digests,
						 .close = close_gpus,
						 .is_idle = is_idle,
						 .arg = b,
						 .loop = b->loop };
	if (r == 0)
		r = preparer_new(&b->preparer, &prepare, err);
	if (r == 0)
		pool_set_spare(b->pool, &(struct pool_spare){ spare_bytes, recall_spare, b });
	if (r < 0)
		broker_free(b);
	else
		*ret = b;
	return r;
}

void broker_free(struct broker *b)
{
	if (!b)
		return;
	preparer_free(b->preparer);
	sessions_free(b->sessions);
	driver_free(b->driver);
	gpus_free(b->gpus);
	pool_free(b->pool);
	free(b);
}

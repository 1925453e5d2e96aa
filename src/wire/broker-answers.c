// SPDX-License-Identifier: MIT
/* The tables of what the broker answers. See broker-answers.h. */
#include "wire/broker-answers.h"

#include <limits.h>

#define LENIENT(type, key, member) \
	NUMBER(type, key, member, FIELD_U64, 0, INT64_MAX, .lenient = true)
#define STATE(type)                                                                              \
	FIELD(type, "state", state, FIELD_WORD, .min = DEV_STATE_UNKNOWN, .max = DEV_STATE__MAX, \
	      .words = dev_state_names)

static const struct schema_field gpu_fields[] = {
	NUMBER(struct broker_gpu, "index", index, FIELD_INT, 0, INT32_MAX, .lenient = true),
	LINE(struct broker_gpu, "uuid", gpu.uuid),
	LINE(struct broker_gpu, "name", gpu.name),
	LENIENT(struct broker_gpu, "total_bytes", gpu.total_bytes),
	LENIENT(struct broker_gpu, "used_bytes", gpu.used_bytes),
	FIELD(struct broker_gpu, "mig", gpu.partitioned, FIELD_BOOL, .lenient = true),
	LENIENT(struct broker_gpu, "out_bytes", moved.out_bytes),
	LENIENT(struct broker_gpu, "in_bytes", moved.in_bytes),
	LENIENT(struct broker_gpu, "written_bytes", moved.written_bytes),
	LENIENT(struct broker_gpu, "read_bytes", moved.read_bytes),
};

static const struct schema_field room_fields[] = {
	LENIENT(struct broker_room, "limit_bytes", limit_bytes),
	LENIENT(struct broker_room, "pinned_bytes", pinned_bytes),
	LENIENT(struct broker_room, "leased_bytes", leased_bytes),
	LENIENT(struct broker_room, "free_bytes", free_bytes),
	LENIENT(struct broker_room, "free_pinned_bytes", free_pinned_bytes),
	LENIENT(struct broker_room, "memory_bytes", memory_bytes),
	LENIENT(struct broker_room, "disk_bytes", disk_bytes),
	LINE(struct broker_room, "disk", disk),
};

static const struct schema_field gpus_fields[] = {
	ROWS(struct broker_info, "gpus", gpus, n_gpus, gpu_fields),
};

static const struct schema_field info_fields[] = {
	LINE(struct broker_info, "backend", backend),
	FIELD(struct broker_info, "simulated", device.simulated, FIELD_BOOL, .lenient = true),
	LINE(struct broker_info, "driver_version", device.driver_version),
	NUMBER(struct broker_info, "api_version", device.api_version, FIELD_INT, 0, INT32_MAX),
	FIELD(struct broker_info, "init_seconds", device.init_seconds, FIELD_REAL, .lenient = true),
	FIELD(struct broker_info, "features", device.features, FIELD_BITS, .lenient = true,
	      .max = DEV_N_FEATURES, .words = dev_feature_names),
	NUMBER(struct broker_info, "pid", pid, FIELD_INT, 0, INT32_MAX),
	ROWS(struct broker_info, "gpus", gpus, n_gpus, gpu_fields),
	PART(struct broker_info, "pool", room, room_fields),
};

static const struct schema_field uuid_value = { .kind = FIELD_LINE, .size = DEV_UUID_TEXT_BYTES };
static const struct schema_field bytes_value = { .kind = FIELD_U64, .max = INT64_MAX };

/* The number of GPUs is that of their names, which come last. */
static const struct schema_field process_fields[] = {
	NUMBER(struct dev_process, "pid", pid, FIELD_INT, 1, INT32_MAX),
	STATE(struct dev_process),
	NUMBER(struct dev_process, "restore_tid", restore_tid, FIELD_INT, 1, INT32_MAX,
	       .nullable = true),
	FIELD(struct dev_process, "gpu_bytes", gpu_bytes, FIELD_ROWS, .size = sizeof(uint64_t),
	      .max = DEV_GPUS_MAX, .members = &bytes_value, .n_members = 1,
	      .count_offset = offsetof(struct dev_process, n_gpus), .lenient = true),
	FIELD(struct dev_process, "gpus", gpus, FIELD_ROWS, .size = DEV_UUID_TEXT_BYTES,
	      .max = DEV_GPUS_MAX, .members = &uuid_value, .n_members = 1,
	      .count_offset = offsetof(struct dev_process, n_gpus), .lenient = true),
	LENIENT(struct dev_process, "used_bytes", used_bytes),
};

static const struct schema_field outcome_fields[] = {
	NUMBER(struct broker_outcome, "pid", pid, FIELD_INT, 1, INT32_MAX),
	FIELD(struct broker_outcome, "seconds", seconds, FIELD_REAL, .lenient = true),
	NUMBER(struct broker_outcome, "result", result.number, FIELD_INT, INT32_MIN, INT32_MAX),
	LINE(struct broker_outcome, "result_name", result.name),
	STATE(struct broker_outcome),
};

const struct schema_field broker_pair_fields[2] = {
	LINE(struct dev_gpu_pair, "from", from),
	LINE(struct dev_gpu_pair, "to", to),
};

static const struct schema_field processes_fields[] = {
	LIST(struct broker_processes, "processes", items, n, process_fields, INT_MAX),
};
static const struct schema_field outcomes_fields[] = {
	LIST(struct broker_outcomes, "outcomes", items, n, outcome_fields, INT_MAX),
};

static const struct answer {
	const struct schema_field *fields;
	size_t n;
} answers[BROKER_ANSWER__MAX] = {
	[BROKER_INFO] = { info_fields, N_OF(info_fields) },
	[BROKER_GPUS] = { gpus_fields, N_OF(gpus_fields) },
	[BROKER_PROCESSES] = { processes_fields, N_OF(processes_fields) },
	[BROKER_OUTCOMES] = { outcomes_fields, N_OF(outcomes_fields) },
};

json_t *broker_answer_encode(enum broker_answer what, const void *from)
{
	json_t *reply = json_object();

	if (reply && schema_encode(reply, answers[what].fields, answers[what].n, from, 0) < 0) {
		json_decref(reply);
		return NULL;
	}
	return reply;
}

int broker_answer_decode(enum broker_answer what, void *ret, json_t *reply,
			 struct brumate_error *err)
{
	return schema_decode(answers[what].fields, answers[what].n, ret, reply, 0, err);
}

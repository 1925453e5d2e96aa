// SPDX-License-Identifier: MIT
/* Reading and writing the record of a container's GPU state. See container-private.h. */
#include "edges/containers/container-private.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/gpu.h"
#include "image/manifest.h"
#include "wire/wire.h"

enum { VERSION_USUAL = 1, VERSION_WITH_AGENTS = 2, VERSION_WITH_CPU_MEMORY = 3 };

void container_record_fini(struct container_record *r)
{
	free(r->processes);
	free(r->gpus);
	*r = CONTAINER_RECORD_EMPTY;
}

/* ---- writing ---- */

static json_t *encode_gpu(const struct job_gpu *gpu)
{
	return json_pack("{s:s,s:s,s:I}", "uuid", gpu->uuid, "name", gpu->name, "bytes",
			 (json_int_t)gpu->bytes);
}

static json_t *encode_process(const struct container_process *p)
{
	return json_pack("{s:i,s:i}", "pid", (int)p->pid, "restore_thread", (int)p->restore_thread);
}

static int version_of(const struct container_record *r)
{
	if (r->has_cpu_memory)
		return VERSION_WITH_CPU_MEMORY;
	return *r->image ? VERSION_WITH_AGENTS : VERSION_USUAL;
}

char *container_record_encode(const struct container_record *r)
{
	auto_json json_t *gpus = json_array();
	auto_json json_t *processes = json_array();

	/* Without memory there is no record, never one that leaves something out. */
	for (size_t i = 0; i < r->n_gpus; i++)
		if (json_array_append_new(gpus, encode_gpu(&r->gpus[i])) < 0)
			return NULL;
	for (size_t i = 0; i < r->n_processes; i++)
		if (json_array_append_new(processes, encode_process(&r->processes[i])) < 0)
			return NULL;
	auto_json json_t *o = json_pack("{s:i,s:O,s:O}", "version", version_of(r), "processes",
					processes, "gpus", gpus);
	if (!o || (*r->image && json_object_set_new(o, "image", json_string(r->image)) < 0))
		return NULL;
	if (r->has_cpu_memory && json_object_set_new(o, "agents", json_boolean(r->has_agents)) < 0)
		return NULL;
	return json_dumps(o, JSON_INDENT(1));
}

/* ---- reading ---- */

static int decode_gpu(struct job_gpu *ret, json_t *o, struct brumate_error *err)
{
	uint8_t parsed[DEV_UUID_BYTES];
	const char *uuid, *name;
	int64_t bytes = -1;
	int r;

	if ((r = wire_need_string(o, "uuid", &uuid, err)) < 0 ||
	    (r = wire_need_string(o, "name", &name, err)) < 0 ||
	    (r = wire_get_int(o, "bytes", 0, INT64_MAX, &bytes, err)) < 0)
		return r;
	if (bytes < 0 || strlen(uuid) >= sizeof(ret->uuid) || strlen(name) >= sizeof(ret->name) ||
	    dev_uuid_parse(parsed, uuid) < 0)
		return brumate_fail(err, EBADMSG, "no GPU");
	*ret = (struct job_gpu){ .bytes = (uint64_t)bytes };
	strcpy(ret->uuid, uuid);
	strcpy(ret->name, name);
	return 0;
}

static int decode_process(struct container_process *ret, json_t *o, struct brumate_error *err)
{
	int64_t pid = 0, thread = 0;
	int r = wire_get_int(o, "pid", 1, INT_MAX, &pid, err);

	if (r == 0)
		r = wire_get_int(o, "restore_thread", 1, INT_MAX, &thread, err);
	if (r == 0 && (!pid || !thread))
		r = brumate_fail(err, EBADMSG, "incomplete");
	*ret = (struct container_process){ (pid_t)pid, (pid_t)thread };
	return r;
}

static int get_list(json_t *o, const char *key, size_t most, json_t **ret,
		    struct brumate_error *err)
{
	int r = wire_get_array(o, key, ret, err);

	if (r == 0 && (!*ret || json_array_size(*ret) > most))
		r = brumate_fail(err, EBADMSG, "%s: expected at most %zu", key, most);
	return r;
}

static int decode_gpus(struct container_record *record, json_t *list, struct brumate_error *err)
{
	int r = 0;

	record->gpus = calloc(json_array_size(list) + 1, sizeof(*record->gpus));
	if (!record->gpus)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; r == 0 && i < json_array_size(list); i++) {
		r = decode_gpu(&record->gpus[i], json_array_get(list, i), err);
		record->n_gpus += r == 0;
	}
	return r;
}

static int decode_processes(struct container_record *record, json_t *list,
			    struct brumate_error *err)
{
	int r = 0;

	record->processes = calloc(json_array_size(list) + 1, sizeof(*record->processes));
	if (!record->processes)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; r == 0 && i < json_array_size(list); i++) {
		r = decode_process(&record->processes[i], json_array_get(list, i), err);
		record->n_processes += r == 0;
	}
	return r;
}

static int decode_image(struct container_record *record, json_t *o, int64_t version,
			struct brumate_error *err)
{
	struct digest parsed;
	const char *text;
	int r = wire_need_string(o, "image", &text, err);

	record->has_agents = true;
	record->has_cpu_memory = version == VERSION_WITH_CPU_MEMORY;
	if (r == 0 && record->has_cpu_memory)
		r = wire_get_bool(o, "agents", &record->has_agents, err);
	if (r < 0)
		return r;
	if (strlen(text) >= sizeof(record->image) || digest_parse(&parsed, text) < 0)
		return brumate_fail(err, EBADMSG, "image: expected a digest");
	strcpy(record->image, text);
	return 0;
}

static int decode_version(int64_t *ret, json_t *o, struct brumate_error *err)
{
	int64_t version = 0;
	int r = wire_get_int(o, "version", 1, INT_MAX, &version, err);

	if (r == 0 && version > VERSION_WITH_CPU_MEMORY)
		r = brumate_fail(err, EOPNOTSUPP,
				 "it is of version %lld, this brumate reads up to %d",
				 (long long)version, VERSION_WITH_CPU_MEMORY);
	if (r == 0 && !version)
		r = brumate_fail(err, EBADMSG, "version: expected a number");
	*ret = version;
	return r;
}

static int decode_all(struct container_record *ret, json_t *o, struct brumate_error *err)
{
	json_t *gpus, *processes;
	int64_t version;
	int r;

	if ((r = decode_version(&version, o, err)) < 0 ||
	    (r = get_list(o, "gpus", MANIFEST_GPUS_MAX, &gpus, err)) < 0 ||
	    (r = get_list(o, "processes", CONTAINER_PROCESSES_MAX, &processes, err)) < 0 ||
	    (r = decode_gpus(ret, gpus, err)) < 0 ||
	    (r = decode_processes(ret, processes, err)) < 0)
		return r;
	return version > VERSION_USUAL ? decode_image(ret, o, version, err) : 0;
}

int container_record_decode(struct container_record *ret, const char *text, size_t len_bytes,
			    struct brumate_error *err)
{
	auto_(container_record_fini) struct container_record record = CONTAINER_RECORD_EMPTY;
	auto_json json_t *o = NULL;
	int r = wire_decode(&o, text, len_bytes, err);

	if (r == 0)
		r = decode_all(&record, o, err);
	if (r < 0 && r != -ENOMEM && r != -EOPNOTSUPP) {
		brumate_wrap(err, r, "it is damaged");
		if (err)
			err->code = EBADMSG;
		return -EBADMSG;
	}
	if (r < 0)
		return r;
	*ret = record;
	record = CONTAINER_RECORD_EMPTY;
	return 0;
}

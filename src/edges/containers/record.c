// SPDX-License-Identifier: MIT
/* Reading and writing the record of a container's GPU state. See container-private.h. */
#include "edges/containers/container-private.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "base/schema.h"
#include "gpu/gpu.h"
#include "image/manifest.h"
#include "wire/wire.h"

enum {
	VERSION_USUAL = 1,
	VERSION_WITH_AGENTS = 2,
	VERSION_WITH_CPU_MEMORY = 3,
	VERSION_BY_PLUGIN = 4
};

void container_record_fini(struct container_record *r)
{
	free(r->processes);
	free(r->gpus);
	*r = CONTAINER_RECORD_EMPTY;
}

static const struct schema_field process_fields[] = {
	NUMBER(struct container_process, "pid", pid, FIELD_INT, 1, INT_MAX),
	NUMBER(struct container_process, "restore_thread", restore_thread, FIELD_INT, 1, INT_MAX),
};

static const struct schema_field gpu_fields[] = {
	LINE(struct job_gpu, "uuid", uuid),
	LINE(struct job_gpu, "name", name),
	NUMBER(struct job_gpu, "bytes", bytes, FIELD_U64, 0, INT64_MAX),
};

static const struct schema_field record_fields[] = {
	LIST(struct container_record, "processes", processes, n_processes, process_fields,
	     CONTAINER_PROCESSES_MAX),
	LIST(struct container_record, "gpus", gpus, n_gpus, gpu_fields, MANIFEST_GPUS_MAX),
	LINE(struct container_record, "image", image, .since = VERSION_WITH_AGENTS,
	     .optional = true),
	FIELD(struct container_record, "agents", has_agents, FIELD_BOOL,
	      .since = VERSION_WITH_CPU_MEMORY, .lenient = true),
	LINE(struct container_record, "vendor", vendor, .since = VERSION_BY_PLUGIN),
};

static int version_of(const struct container_record *r)
{
	if (*r->vendor)
		return VERSION_BY_PLUGIN;
	if (r->has_cpu_memory)
		return VERSION_WITH_CPU_MEMORY;
	return *r->image ? VERSION_WITH_AGENTS : VERSION_USUAL;
}

char *container_record_encode(const struct container_record *r)
{
	const int version = version_of(r);
	auto_json json_t *o = json_pack("{s:i}", "version", version);

	return o && schema_encode(o, record_fields, N_OF(record_fields), r, version) == 0
		       ? json_dumps(o, JSON_INDENT(1))
		       : NULL;
}

static int decode_version(int *ret, json_t *o, struct brumate_error *err)
{
	int64_t version = 0;
	int r = wire_get_int(o, "version", 1, INT_MAX, &version, err);

	if (r == 0 && version > VERSION_BY_PLUGIN)
		r = brumate_fail(err, EOPNOTSUPP,
				 "it is of version %lld, this brumate reads up to %d",
				 (long long)version, VERSION_BY_PLUGIN);
	if (r == 0 && !version)
		r = brumate_fail(err, EBADMSG, "version: expected a number");
	*ret = (int)version;
	return r;
}

static int decode_all(struct container_record *ret, json_t *o, struct brumate_error *err)
{
	uint8_t uuid[DEV_UUID_BYTES];
	struct digest digest;
	int version = 0, r = decode_version(&version, o, err);

	ret->has_agents = version > VERSION_USUAL;
	if (r == 0)
		r = schema_decode(record_fields, N_OF(record_fields), ret, o, version, err);
	for (size_t i = 0; r == 0 && i < ret->n_gpus; i++)
		if (dev_uuid_parse(uuid, ret->gpus[i].uuid) < 0)
			r = brumate_fail(err, EBADMSG, "gpus: item %zu: no GPU", i);
	const bool has_image =
		version > VERSION_USUAL && (*ret->image || version != VERSION_BY_PLUGIN);
	if (r == 0 && has_image && digest_parse(&digest, ret->image) < 0)
		r = brumate_fail(err, EBADMSG, "image: expected a digest");
	if (r == 0 && version == VERSION_BY_PLUGIN && !*ret->vendor)
		r = brumate_fail(err, EBADMSG, "vendor: expected a name");
	ret->has_cpu_memory = has_image && version >= VERSION_WITH_CPU_MEMORY;
	return r;
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

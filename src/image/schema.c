// SPDX-License-Identifier: MIT
/* The tables of a manifest's members, and what walks them without reading or writing JSON. */
#include "image/schema.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { ARGV_MAX = 1 << 16, STRING_BYTES_MAX = 1 << 20 };

#define AT(type, member)   .offset = offsetof(type, member)
#define SIZE(type, member) .size = sizeof(((type *)0)->member)
#define TEXT(type, key, member)                                                       \
	{                                                                             \
		.name = key, .kind = FIELD_TEXT, AT(type, member), SIZE(type, member) \
	}
#define NUMBER(type, key, member, type_kind, low, high)                                   \
	{                                                                                 \
		.name = key, .kind = type_kind, AT(type, member), .min = low, .max = high \
	}
#define BYTES(type, member) NUMBER(type, #member, member, FIELD_U64, 0, INT64_MAX)
#define PLAIN(type, key, member, type_kind)                                               \
	{                                                                                 \
		.name = key, .kind = type_kind, AT(type, member), .max = STRING_BYTES_MAX \
	}
#define WORD(type, member, list)                                       \
	{                                                              \
		.name = #member, .kind = FIELD_WORD, AT(type, member), \
		.max = sizeof(list) / sizeof(list[0]), .words = list   \
	}
#define GROUP(key, table)                                           \
	{                                                           \
		.name = key, .kind = FIELD_GROUP, .members = table, \
		.n_members = sizeof(table) / sizeof(table[0])       \
	}
#define LIST(key, member, count, table, most)                                                   \
	{                                                                                       \
		.name = key, .kind = FIELD_LIST, AT(struct manifest, member),                   \
		.size = sizeof(*((struct manifest *)0)->member), .max = most, .members = table, \
		.n_members = sizeof(table) / sizeof(table[0]),                                  \
		.count_offset = offsetof(struct manifest, count)                                \
	}

static const struct field job_fields[] = {
	TEXT(struct manifest, "id", job.id),
	TEXT(struct manifest, "name", job.name),
	NUMBER(struct manifest, "uid", job.uid, FIELD_U32, 0, UINT32_MAX),
	NUMBER(struct manifest, "gid", job.gid, FIELD_U32, 0, UINT32_MAX),
	{ .name = "argv", .kind = FIELD_ARGV, AT(struct manifest, job.argv), .max = ARGV_MAX },
	PLAIN(struct manifest, "cwd", job.cwd, FIELD_OPTIONAL),
	PLAIN(struct manifest, "log", job.log, FIELD_OPTIONAL),
	PLAIN(struct manifest, "rootfs", job.rootfs, FIELD_OPTIONAL),
	PLAIN(struct manifest, "simulated", job.simulated, FIELD_BOOL),
	PLAIN(struct manifest, "by_pid", job.by_pid, FIELD_BOOL),
};

static const struct field host_fields[] = {
	TEXT(struct manifest, "kernel", host.kernel),
	TEXT(struct manifest, "machine", host.machine),
	TEXT(struct manifest, "hostname", host.hostname),
	TEXT(struct manifest, "cpu_model", host.cpu_model),
	TEXT(struct manifest, "boot_id", host.boot_id),
};

static const struct field gpu_fields[] = {
	TEXT(struct manifest_gpu, "uuid", uuid),
	TEXT(struct manifest_gpu, "name", name),
	BYTES(struct manifest_gpu, total_bytes),
	BYTES(struct manifest_gpu, used_bytes),
};

static const struct field process_fields[] = {
	NUMBER(struct manifest_process, "pid", pid, FIELD_INT, 1, INT_MAX),
	NUMBER(struct manifest_process, "ppid", ppid, FIELD_INT, 0, INT_MAX),
	TEXT(struct manifest_process, "comm", comm),
	PLAIN(struct manifest_process, "gpu", gpu, FIELD_BOOL),
	BYTES(struct manifest_process, gpu_bytes),
	BYTES(struct manifest_process, rss_bytes),
};

static const struct field external_fields[] = {
	TEXT(struct manifest_external, "key", key),
	TEXT(struct manifest_external, "become", become),
};

static const struct field file_fields[] = {
	PLAIN(struct manifest_file, "path", path, FIELD_STRING),
	BYTES(struct manifest_file, len_bytes),
	PLAIN(struct manifest_file, "digest", digest, FIELD_DIGEST),
};

static const struct field huge_pages_fields[] = {
	NUMBER(struct manifest_huge_pages, "page_bytes", page_bytes, FIELD_U64, 1, INT64_MAX),
	BYTES(struct manifest_huge_pages, bytes),
};

static const struct field phase_fields[] = {
	TEXT(struct manifest_phase, "name", name),
	PLAIN(struct manifest_phase, "duration_us", seconds, FIELD_SECONDS),
};

static const char *const region_words[MANIFEST_REGION__MAX] = { "host", "device" };

static const struct field region_fields[] = {
	WORD(struct manifest_region, kind, region_words),
	NUMBER(struct manifest_region, "pid", pid, FIELD_INT, 1, INT_MAX),
	BYTES(struct manifest_region, id),
	BYTES(struct manifest_region, va),
	BYTES(struct manifest_region, len_bytes),
	TEXT(struct manifest_region, "gpu", gpu),
};

static const struct field pack_fields[] = {
	PLAIN(struct manifest_pack, "path", path, FIELD_STRING),
	BYTES(struct manifest_pack, len_bytes),
};

static const struct field memory_fields[] = {
	LIST("regions", memory.regions, memory.n_regions, region_fields, MANIFEST_REGIONS_MAX),
	LIST("packs", memory.packs, memory.n_packs, pack_fields, MANIFEST_PACKS_MAX),
	NUMBER(struct manifest, "zero_bytes", memory.zero_bytes, FIELD_U64, 0, INT64_MAX),
	NUMBER(struct manifest, "shared_bytes", memory.shared_bytes, FIELD_U64, 0, INT64_MAX),
	NUMBER(struct manifest, "written_bytes", memory.written_bytes, FIELD_U64, 0, INT64_MAX),
};

enum { EXTERNALS_MAX = 1 << 16, PHASES_MAX = 256 };

const struct field manifest_fields[] = {
	TEXT(struct manifest, "id", id),
	TEXT(struct manifest, "created", created),
	TEXT(struct manifest, "brumate_version", brumate_version),
	GROUP("job", job_fields),
	GROUP("host", host_fields),
	TEXT(struct manifest, "driver_version", driver_version),
	NUMBER(struct manifest, "cuda_version", cuda_version, FIELD_INT, 0, INT_MAX),
	NUMBER(struct manifest, "criu_version", criu_version, FIELD_INT, 0, INT_MAX),
	LIST("gpus", gpus, n_gpus, gpu_fields, MANIFEST_GPUS_MAX),
	LIST("processes", processes, n_processes, process_fields, MANIFEST_PROCESSES_MAX),
	LIST("externals", externals, n_externals, external_fields, EXTERNALS_MAX),
	PLAIN(struct manifest, "shell_job", shell_job, FIELD_BOOL),
	{ .name = "key_id",
	  .kind = FIELD_TEXT,
	  .offset = offsetof(struct manifest, key_id),
	  .size = sizeof(((struct manifest *)0)->key_id),
	  .since = 2 },
	LIST("files", files, n_files, file_fields, MANIFEST_FILES_MAX),
	{ .name = "memory",
	  .kind = FIELD_GROUP,
	  .members = memory_fields,
	  .n_members = sizeof(memory_fields) / sizeof(memory_fields[0]),
	  .since = 2 },
	PLAIN(struct manifest, "leave_running", leave_running, FIELD_BOOL),
	PLAIN(struct manifest, "downtime_us", downtime_seconds, FIELD_SECONDS),
	LIST("phases", phases, n_phases, phase_fields, PHASES_MAX),
	{ .name = "huge_pages",
	  .kind = FIELD_LIST,
	  .offset = offsetof(struct manifest, huge_pages),
	  .size = sizeof(struct manifest_huge_pages),
	  .max = MANIFEST_HUGE_PAGES_MAX,
	  .members = huge_pages_fields,
	  .n_members = sizeof(huge_pages_fields) / sizeof(huge_pages_fields[0]),
	  .count_offset = offsetof(struct manifest, n_huge_pages),
	  .optional = true },
};
const size_t manifest_n_fields = sizeof(manifest_fields) / sizeof(manifest_fields[0]);

static void free_argv(char **argv)
{
	for (size_t i = 0; argv && argv[i]; i++)
		free(argv[i]);
	free(argv);
}

static void free_fields(const struct field *fields, size_t n, char *base)
{
	for (const struct field *f = fields; f < fields + n; f++) {
		void **pointer = (void **)(base + f->offset);

		switch (f->kind) {
		case FIELD_STRING:
		case FIELD_OPTIONAL:
			free(*pointer);
			break;
		case FIELD_ARGV:
			free_argv(*pointer);
			break;
		case FIELD_GROUP:
			free_fields(f->members, f->n_members, base);
			break;
		case FIELD_LIST:
			for (size_t i = 0; i < *(size_t *)(base + f->count_offset); i++)
				free_fields(f->members, f->n_members,
					    (char *)*pointer + i * f->size);
			free(*pointer);
			break;
		default:
			break;
		}
	}
}

void manifest_fini(struct manifest *m)
{
	free_fields(manifest_fields, manifest_n_fields, (char *)m);
	*m = MANIFEST_EMPTY;
}

uint64_t manifest_bytes(const struct manifest *m)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < m->n_files; i++)
		sum += m->files[i].len_bytes;
	for (size_t i = 0; i < m->memory.n_packs; i++)
		sum += m->memory.packs[i].len_bytes;
	return sum;
}

uint64_t manifest_whole_bytes(const struct manifest *m)
{
	uint64_t sum = manifest_memory_bytes(m);

	for (size_t i = 0; i < m->n_files; i++)
		if (strcmp(m->files[i].path, MANIFEST_TABLE_PATH))
			sum += m->files[i].len_bytes;
	return sum;
}

uint64_t manifest_memory_bytes(const struct manifest *m)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < m->memory.n_regions; i++)
		sum += m->memory.regions[i].len_bytes;
	return sum;
}

int manifest_canonical_digest(struct digest *ret, const json_t *object)
{
	auto_free char *text = json_dumps(object, JSON_COMPACT | JSON_SORT_KEYS);

	return text ? digest_buffer(ret, text, strlen(text)) : -ENOMEM;
}

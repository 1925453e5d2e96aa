// SPDX-License-Identifier: MIT
/*
 * Reads and writes a manifest, whose members are described once, in tables (base/schema.h).
 *
 * The decoder's input is untrusted. It checks JSON, format, version and digest, then each member of the tables.
 * Members that are not in the tables are covered by the digest and otherwise ignored. The encoder never writes what
 * the decoder could not read. All of it is pure.
 */
#include "image/manifest.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/schema.h"

#define MANIFEST_FORMAT "brumate-checkpoint"

/* ---- tables ---- */

enum { ARGV_MAX = 1 << 16, LABELS_MAX = 64 };

static const struct schema_field job_fields[] = {
	TEXT(struct manifest, "id", job.id),
	TEXT(struct manifest, "name", job.name),
	NUMBER(struct manifest, "uid", job.uid, FIELD_U32, 0, UINT32_MAX),
	NUMBER(struct manifest, "gid", job.gid, FIELD_U32, 0, UINT32_MAX),
	FIELD(struct manifest, "argv", job.argv, FIELD_ARGV, .max = ARGV_MAX),
	FIELD(struct manifest, "labels", job.labels, FIELD_ARGV, .max = LABELS_MAX,
	      .optional = true),
	PLAIN(struct manifest, "cwd", job.cwd, FIELD_OPTIONAL),
	PLAIN(struct manifest, "log", job.log, FIELD_OPTIONAL),
	PLAIN(struct manifest, "rootfs", job.rootfs, FIELD_OPTIONAL),
	PLAIN(struct manifest, "simulated", job.simulated, FIELD_BOOL),
	TEXT(struct manifest, "gpu_vendor", job.gpu_vendor, .optional = true),
	PLAIN(struct manifest, "by_pid", job.by_pid, FIELD_BOOL),
	TEXT(struct manifest, "started_as", job.started_as, .since = 3, .optional = true),
};

static const struct schema_field host_fields[] = {
	TEXT(struct manifest, "kernel", host.kernel),
	TEXT(struct manifest, "machine", host.machine),
	TEXT(struct manifest, "hostname", host.hostname),
	TEXT(struct manifest, "cpu_model", host.cpu_model),
	TEXT(struct manifest, "boot_id", host.boot_id),
	FIELD(struct manifest, "page_bytes", host.page_bytes, FIELD_U64, .min = 1,
	      .max = MANIFEST_PAGE_BYTES_MAX, .optional = true),
};

static const struct schema_field gpu_fields[] = {
	TEXT(struct manifest_gpu, "uuid", uuid),
	TEXT(struct manifest_gpu, "name", name),
	BYTES(struct manifest_gpu, total_bytes),
	BYTES(struct manifest_gpu, used_bytes),
};

static const struct schema_field process_fields[] = {
	NUMBER(struct manifest_process, "pid", pid, FIELD_INT, 1, INT_MAX),
	NUMBER(struct manifest_process, "ppid", ppid, FIELD_INT, 0, INT_MAX),
	TEXT(struct manifest_process, "comm", comm),
	PLAIN(struct manifest_process, "gpu", gpu, FIELD_BOOL),
	FIELD(struct manifest_process, "stopped", stopped, FIELD_BOOL, .optional = true),
	BYTES(struct manifest_process, gpu_bytes),
	BYTES(struct manifest_process, rss_bytes),
};

static const struct schema_field external_fields[] = {
	PLAIN(struct manifest_external, "key", key, FIELD_STRING),
	TEXT(struct manifest_external, "become", become),
};

static const struct schema_field file_fields[] = {
	PLAIN(struct manifest_file, "path", path, FIELD_STRING),
	BYTES(struct manifest_file, len_bytes),
	PLAIN(struct manifest_file, "digest", digest, FIELD_DIGEST),
};

static const struct schema_field huge_pages_fields[] = {
	NUMBER(struct manifest_huge_pages, "page_bytes", page_bytes, FIELD_U64, 1, INT64_MAX),
	BYTES(struct manifest_huge_pages, bytes),
};

static const struct schema_field group_fields[] = {
	NUMBER(struct manifest_group, "gid", gid, FIELD_U32, 0, UINT32_MAX),
};

#define ID(key, member) NUMBER(struct manifest_rights, key, member, FIELD_U32, 0, UINT32_MAX)
#define SET(key, number) \
	NUMBER(struct manifest_rights, key, capabilities[number], FIELD_U64, 0, INT64_MAX)

static const struct schema_field rights_fields[] = {
	NUMBER(struct manifest_rights, "pid", pid, FIELD_INT, 1, INT_MAX),
	ID("uid", uids[0]),
	ID("euid", uids[1]),
	ID("suid", uids[2]),
	ID("fsuid", uids[3]),
	ID("gid", gids[0]),
	ID("egid", gids[1]),
	ID("sgid", gids[2]),
	ID("fsgid", gids[3]),
	LIST(struct manifest_rights, "groups", groups, n_groups, group_fields, MANIFEST_GROUPS_MAX),
	SET("inheritable", 0),
	SET("permitted", 1),
	SET("effective", 2),
	SET("bounding", 3),
	SET("ambient", 4),
	PLAIN(struct manifest_rights, "no_new_privs", no_new_privs, FIELD_BOOL),
	NUMBER(struct manifest_rights, "seccomp", seccomp, FIELD_U32, 0, 2),
	TEXT(struct manifest_rights, "label", label),
};

static const struct schema_field filters_fields[] = {
	NUMBER(struct manifest_filters, "pid", pid, FIELD_INT, 1, INT_MAX),
	PLAIN(struct manifest_filters, "digest", digest, FIELD_DIGEST),
};

static const struct schema_field phase_fields[] = {
	TEXT(struct manifest_phase, "name", name),
	PLAIN(struct manifest_phase, "duration_us", seconds, FIELD_SECONDS),
};

static const char *const region_words[MANIFEST_REGION__MAX] = { "host", "device" };

static const struct schema_field region_fields[] = {
	WORD(struct manifest_region, kind, region_words),
	NUMBER(struct manifest_region, "pid", pid, FIELD_INT, 1, INT_MAX),
	BYTES(struct manifest_region, id),
	BYTES(struct manifest_region, va),
	BYTES(struct manifest_region, len_bytes),
	TEXT(struct manifest_region, "gpu", gpu),
};

static const struct schema_field pack_fields[] = {
	PLAIN(struct manifest_pack, "path", path, FIELD_STRING),
	BYTES(struct manifest_pack, len_bytes),
};

static const struct schema_field memory_fields[] = {
	LIST(struct manifest, "regions", memory.regions, memory.n_regions, region_fields,
	     MANIFEST_REGIONS_MAX),
	LIST(struct manifest, "packs", memory.packs, memory.n_packs, pack_fields,
	     MANIFEST_PACKS_MAX),
	NUMBER(struct manifest, "zero_bytes", memory.zero_bytes, FIELD_U64, 0, INT64_MAX),
	NUMBER(struct manifest, "shared_bytes", memory.shared_bytes, FIELD_U64, 0, INT64_MAX),
	NUMBER(struct manifest, "written_bytes", memory.written_bytes, FIELD_U64, 0, INT64_MAX),
};

enum { EXTERNALS_MAX = 1 << 16, PHASES_MAX = 256 };

static const struct schema_field manifest_fields[] = {
	TEXT(struct manifest, "id", id),
	TEXT(struct manifest, "created", created),
	TEXT(struct manifest, "brumate_version", brumate_version),
	NUMBER(struct manifest, "sequence", sequence, FIELD_U64, 1, MANIFEST_SEQUENCE_MAX,
	       .optional = true),
	GROUP("job", job_fields),
	GROUP("host", host_fields),
	TEXT(struct manifest, "driver_version", driver_version),
	NUMBER(struct manifest, "cuda_version", api_version, FIELD_INT, 0, INT_MAX),
	NUMBER(struct manifest, "criu_version", criu_version, FIELD_INT, 0, INT_MAX),
	LIST(struct manifest, "gpus", gpus, n_gpus, gpu_fields, MANIFEST_GPUS_MAX),
	LIST(struct manifest, "processes", processes, n_processes, process_fields,
	     MANIFEST_PROCESSES_MAX),
	LIST(struct manifest, "externals", externals, n_externals, external_fields, EXTERNALS_MAX),
	PLAIN(struct manifest, "shell_job", shell_job, FIELD_BOOL),
	TEXT(struct manifest, "key_id", key_id, .since = 2),
	LIST(struct manifest, "files", files, n_files, file_fields, MANIFEST_FILES_MAX),
	GROUP("memory", memory_fields, .since = 2),
	PLAIN(struct manifest, "leave_running", leave_running, FIELD_BOOL),
	FIELD(struct manifest, "tcp_close", tcp_close, FIELD_BOOL, .optional = true),
	PLAIN(struct manifest, "downtime_us", downtime_seconds, FIELD_SECONDS),
	LIST(struct manifest, "phases", phases, n_phases, phase_fields, PHASES_MAX),
	LIST(struct manifest, "huge_pages", huge_pages, n_huge_pages, huge_pages_fields,
	     MANIFEST_HUGE_PAGES_MAX, .optional = true),
	LIST(struct manifest, "rights", rights, n_rights, rights_fields, MANIFEST_RIGHTS_MAX,
	     .optional = true),
	LIST(struct manifest, "filters", filters, n_filters, filters_fields, MANIFEST_RIGHTS_MAX,
	     .optional = true),
	/* MAC and signature do not cover themselves: body_digest(). */
	TEXT(struct manifest, "set", set, .since = 3, .optional = true),
	TEXT(struct manifest, "mac", mac, .since = 2, .optional = true),
	TEXT(struct manifest, "signer", signer, .since = 2, .optional = true),
	TEXT(struct manifest, "signature", signature, .since = 2, .optional = true),
};

void manifest_fini(struct manifest *m)
{
	schema_free(manifest_fields, N_OF(manifest_fields), m);
	*m = MANIFEST_EMPTY;
}

uint64_t manifest_sequence(const struct manifest *m)
{
	uint64_t ms;

	if (m->sequence)
		return m->sequence;
	return clock_parse_stamp(&ms, m->created) == 0 ? ms : 0;
}

uint64_t manifest_files_bytes(const struct manifest *m, const char *prefix)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < m->n_files; i++)
		if (!strncmp(m->files[i].path, prefix, strlen(prefix)))
			sum += m->files[i].len_bytes;
	return sum;
}

uint64_t manifest_region_bytes(const struct manifest *m, enum manifest_region_kind kind)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < m->memory.n_regions; i++)
		if (m->memory.regions[i].kind == kind)
			sum += m->memory.regions[i].len_bytes;
	return sum;
}

uint64_t manifest_bytes(const struct manifest *m)
{
	uint64_t sum = manifest_files_bytes(m, "");

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

/* ---- rules that go beyond the type and range of a member ---- */

bool manifest_id_is_valid(const char *id)
{
	size_t len =
		strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");

	return len > 0 && len < MANIFEST_ID_BYTES && !id[len] && id[0] != '.';
}

bool manifest_path_is_valid(const char *path)
{
	if (strlen(path) >= PATH_MAX)
		return false;

	for (;;) {
		size_t len = strcspn(path, "/");
		bool dots = (len == 1 && path[0] == '.') ||
			    (len == 2 && path[0] == '.' && path[1] == '.');

		if (len == 0 || len > NAME_MAX || dots)
			return false;
		if (!path[len])
			return true;
		path += len + 1;
	}
}

static bool is_stamp(const char *text)
{
	static const char form[] = "0000-00-00T00:00:00.000Z";

	if (strlen(text) != strlen(form))
		return false;
	for (size_t i = 0; form[i]; i++)
		if (form[i] == '0' ? !isdigit((unsigned char)text[i]) : text[i] != form[i])
			return false;
	return true;
}

static int check_absolute(const char *path, const char *what, struct brumate_error *err)
{
	if (path && path[0] != '/')
		return brumate_fail(err, EBADMSG, "%s: expected an absolute path", what);
	return 0;
}

static int check_job(const struct manifest *m, struct brumate_error *err)
{
	int r = check_absolute(m->job.cwd, "job: cwd", err);

	if (r == 0)
		r = check_absolute(m->job.log, "job: log", err);
	if (r == 0)
		r = check_absolute(m->job.rootfs, "job: rootfs", err);
	if (r == 0 && m->job.id[0] && !manifest_id_is_valid(m->job.id))
		r = brumate_fail(err, EBADMSG, "job: id: \"%s\" is not a valid id", m->job.id);
	return r;
}

static int check_files(const struct manifest *m, struct brumate_error *err)
{
	for (size_t i = 0; i < m->n_files; i++) {
		const char *path = m->files[i].path;

		if (!manifest_path_is_valid(path) || !strcmp(path, MANIFEST_FILE_NAME))
			return brumate_fail(err, EBADMSG,
					    "files: item %zu: \"%s\" is not a path below the "
					    "checkpoint",
					    i, path);
		if (i == 0)
			continue;

		int order = strcmp(m->files[i - 1].path, path);
		if (order >= 0)
			return brumate_fail(err, EBADMSG, "files: item %zu: \"%s\" is %s", i, path,
					    order ? "out of order" : "there twice");
	}
	return 0;
}

static int by_path(const void *path, const void *file)
{
	return strcmp(path, ((const struct manifest_file *)file)->path);
}

/* Files are sorted by path. */
static bool is_file(const struct manifest *m, const char *path)
{
	return m->n_files && bsearch(path, m->files, m->n_files, sizeof(*m->files), by_path);
}

static int check_packs(const struct manifest *m, struct brumate_error *err)
{
	const struct manifest_pack *packs = m->memory.packs;

	for (size_t i = 0; i < m->memory.n_packs; i++) {
		const char *path = packs[i].path;

		if (!manifest_path_is_valid(path) || !strcmp(path, MANIFEST_FILE_NAME))
			return brumate_fail(
				err, EBADMSG,
				"memory: packs: item %zu: \"%s\" is not a path below the "
				"checkpoint",
				i, path);
		if (is_file(m, path) || (i && strcmp(packs[i - 1].path, path) >= 0))
			return brumate_fail(
				err, EBADMSG,
				"memory: packs: item %zu: \"%s\" is out of order or there "
				"twice",
				i, path);
	}
	return 0;
}

static int check_regions(const struct manifest *m, struct brumate_error *err)
{
	uint64_t end, total = 0;

	for (size_t i = 0; i < m->memory.n_regions; i++) {
		const struct manifest_region *region = &m->memory.regions[i];

		if (__builtin_add_overflow(region->va, region->len_bytes, &end) ||
		    __builtin_add_overflow(total, region->len_bytes, &total) || total > INT64_MAX)
			return brumate_fail(err, EBADMSG,
					    "memory: regions: item %zu: longer than any memory", i);
	}
	if (!is_file(m, MANIFEST_TABLE_PATH) && (m->memory.n_regions || m->memory.n_packs))
		return brumate_fail(err, EBADMSG, "memory: no file " MANIFEST_TABLE_PATH);
	return 0;
}

static int check_memory(const struct manifest *m, struct brumate_error *err)
{
	int r = check_packs(m, err);

	return r < 0 ? r : check_regions(m, err);
}

static bool is_hexadecimal(const char *text, size_t room)
{
	return strspn(text, "0123456789abcdef") == room - 1;
}

/* An empty text means that the member is missing. */
static int check_proofs(const struct manifest *m, struct brumate_error *err)
{
	if (*m->mac && !is_hexadecimal(m->mac, sizeof(m->mac)))
		return brumate_fail(err, EBADMSG, "mac: expected 64 hexadecimal digits");
	if (*m->signer && !is_hexadecimal(m->signer, sizeof(m->signer)))
		return brumate_fail(err, EBADMSG, "signer: expected 64 hexadecimal digits");
	if (*m->signature && !is_hexadecimal(m->signature, sizeof(m->signature)))
		return brumate_fail(err, EBADMSG, "signature: expected 128 hexadecimal digits");
	if (!*m->signer != !*m->signature)
		return brumate_fail(err, EBADMSG,
				    "signature: expected it with its signer, or neither");
	return 0;
}

static int check_externals(const struct manifest *m, struct brumate_error *err)
{
	for (size_t i = 0; i < m->n_externals; i++) {
		static const char *const words[] = {
			"log",
			"null",
			"tty",
			"append",
			"closed",
			"closed-nonblock",
			"closed-packets",
			"closed-packets-nonblock",
		};
		size_t k = 0;

		while (k < sizeof(words) / sizeof(*words) &&
		       strcmp(m->externals[i].become, words[k]))
			k++;
		if (k == sizeof(words) / sizeof(*words))
			return brumate_fail(err, EBADMSG,
					    "externals: item %zu: become: expected log, null, tty, "
					    "append or closed",
					    i);
	}
	return 0;
}

/* Checks what the tables cannot express: names, paths, order, words. Returns 0 or -EBADMSG. */
static int manifest_check(const struct manifest *m, struct brumate_error *err)
{
	if (!manifest_id_is_valid(m->id))
		return brumate_fail(err, EBADMSG, "id: \"%s\" is not a valid id", m->id);
	if (!is_stamp(m->created))
		return brumate_fail(err, EBADMSG,
				    "created: expected a time as 2026-01-01T00:00:00.000Z");

	if (*m->key_id && !is_hexadecimal(m->key_id, sizeof(m->key_id)))
		return brumate_fail(err, EBADMSG, "key_id: not the id of a key");

	int r = check_job(m, err);
	if (r == 0)
		r = check_files(m, err);
	if (r == 0)
		r = check_memory(m, err);
	if (r == 0)
		r = check_proofs(m, err);
	return r < 0 ? r : check_externals(m, err);
}

/* ---- encoding ---- */

/* Encodes all but "digest" (owned); NULL if out of memory. */
static json_t *encode_root(const struct manifest *m)
{
	int version = m->version ? m->version : MANIFEST_VERSION;
	json_auto_t *object =
		json_pack("{s:s, s:i}", "format", MANIFEST_FORMAT, "version", version);

	if (!object ||
	    schema_encode(object, manifest_fields, N_OF(manifest_fields), m, version) < 0)
		return NULL;
	return json_incref(object);
}

/* The digest of @object, which has no "digest", without MAC and signature. */
static int body_digest(struct digest *ret, json_t *object)
{
	json_auto_t *body = json_copy(object); /* a shallow copy: members are shared */

	if (!body)
		return -ENOMEM;
	json_object_del(body, "mac");
	json_object_del(body, "signer");
	json_object_del(body, "signature");
	return manifest_canonical_digest(ret, body);
}

int manifest_body(struct digest *ret, const struct manifest *m)
{
	json_auto_t *object = encode_root(m);

	return object ? body_digest(ret, object) : -ENOMEM;
}

json_t *manifest_to_json(const struct manifest *m)
{
	json_auto_t *object = encode_root(m);
	struct digest digest;

	if (!object)
		return NULL;
	if (manifest_canonical_digest(&digest, object) < 0)
		return NULL;
	if (json_object_set_new(object, "digest", schema_encode_digest(&digest)) < 0)
		return NULL;
	return json_incref(object);
}

int manifest_encode(const struct manifest *m, char **ret_text, size_t *ret_len_bytes,
		    struct brumate_error *err)
{
	json_auto_t *object = manifest_to_json(m);
	if (!object)
		return brumate_fail(err, ENOMEM, "manifest: %m");

	auto_free char *text = json_dumps(object, JSON_INDENT(1));
	size_t len = text ? strlen(text) : 0;
	char *line = text ? realloc(text, len + 2) : NULL;
	if (!line)
		return brumate_fail(err, ENOMEM, "manifest: %m");
	text = line;
	memcpy(text + len++, "\n", 2);

	auto_(manifest_fini) struct manifest again = MANIFEST_EMPTY;
	struct brumate_error why = BRUMATE_ERROR_NONE;
	int r = manifest_decode(&again, text, len, &why);
	if (r < 0)
		return brumate_fail(err, r == -ENOMEM ? ENOMEM : EINVAL, "%s", why.text);

	*ret_text = take_ptr(&text);
	*ret_len_bytes = len;
	return 0;
}

/* ---- decoding ---- */

static int check_version(int *ret, const json_t *object, struct brumate_error *err)
{
	const char *format = json_string_value(json_object_get(object, "format"));
	const json_t *version = json_object_get(object, "version");

	if (!format || strcmp(format, MANIFEST_FORMAT))
		return brumate_fail(err, EBADMSG, "not a brumate manifest");
	if (!json_is_integer(version) || json_integer_value(version) < 1)
		return brumate_fail(err, EBADMSG, "version: expected an integer from 1");
	if (json_integer_value(version) > MANIFEST_VERSION) {
		brumate_fail(err, EPROTONOSUPPORT,
			     "version %" JSON_INTEGER_FORMAT
			     " is newer than version %d, the newest this "
			     "brumate reads",
			     json_integer_value(version), MANIFEST_VERSION);
		brumate_hint(err, "use the brumate that wrote it, or a newer one");
		return -EPROTONOSUPPORT;
	}
	*ret = (int)json_integer_value(version);
	return 0;
}

/* Removes "digest" from @object and compares it with the digest of the rest. @ret_body: see manifest_body(). */
static int check_digest(struct digest *ret_body, json_t *object, struct brumate_error *err)
{
	struct digest wanted, found;
	json_t *member = json_object_get(object, "digest");

	if (!member)
		return brumate_fail(err, EBADMSG, "digest is missing");
	int r = schema_decode_digest(&wanted, member, err);
	if (r < 0)
		return brumate_wrap(err, r, "digest");

	json_object_del(object, "digest");
	r = manifest_canonical_digest(&found, object);
	if (r < 0)
		return brumate_fail(err, -r, "%m");
	if (memcmp(&wanted, &found, sizeof(wanted)))
		return brumate_fail(err, EBADMSG, "damaged: its digest does not match");
	r = body_digest(ret_body, object);
	return r < 0 ? brumate_fail(err, -r, "%m") : 0;
}

static int decode_root(struct manifest *m, json_t *root, struct brumate_error *err)
{
	int r = check_version(&m->version, root, err);

	if (r == 0)
		r = check_digest(&m->body, root, err);
	if (r == 0)
		r = schema_decode(manifest_fields, N_OF(manifest_fields), m, root, m->version, err);
	if (r == 0)
		r = manifest_check(m, err);
	return r;
}

int manifest_decode(struct manifest *ret, const char *text, size_t len_bytes,
		    struct brumate_error *err)
{
	json_error_t why;

	if (len_bytes == 0)
		return brumate_fail(err, EBADMSG, "manifest: empty");
	if (len_bytes > MANIFEST_BYTES_MAX)
		return brumate_fail(err, EBADMSG, "manifest: %zu bytes, expected at most %d",
				    len_bytes, MANIFEST_BYTES_MAX);

	errno = 0; /* when jansson runs out of memory it reports an invalid string; errno tells the two apart */
	json_auto_t *root = json_loadb(text, len_bytes, JSON_REJECT_DUPLICATES, &why);
	if (!root && errno == ENOMEM)
		return brumate_fail(err, ENOMEM, "manifest: %m");
	if (!root)
		return brumate_fail(err, EBADMSG, "manifest: damaged or truncated: line %d: %s",
				    why.line, why.text);

	auto_(manifest_fini) struct manifest m = MANIFEST_EMPTY;
	int r = decode_root(&m, root, err);
	if (r < 0)
		return brumate_wrap(err, r, "manifest");
	*ret = take_struct(m, MANIFEST_EMPTY);
	return 0;
}

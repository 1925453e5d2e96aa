// SPDX-License-Identifier: MIT
/* Manifests: what is written is read back, and nothing else is accepted. */
#include "sample.h"

#include "base/fd.h"
#include "base/escape.h"

#include <errno.h>
#include <fcntl.h>

static char *encode(const struct manifest *m, size_t *ret_len)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	char *text = NULL;

	if (manifest_encode(m, &text, ret_len, &err) < 0)
		fprintf(stderr, "encode: %s\n", err.text);
	CHECK(text);
	return text;
}

static int decode(const char *text, size_t len, struct brumate_error *err)
{
	auto_(manifest_fini) struct manifest m = MANIFEST_EMPTY;

	*err = BRUMATE_ERROR_NONE;
	int r = manifest_decode(&m, text, len, err);
	CHECK(r == 0 || (r == -err->code && err->text[0]));
	return r;
}

static void check_job(const struct manifest *a, const struct manifest *b)
{
	CHECK_STR(b->job.id, a->job.id);
	CHECK_STR(b->job.name, a->job.name);
	CHECK(b->job.uid == a->job.uid && b->job.gid == a->job.gid);
	for (size_t i = 0; a->job.argv[i]; i++)
		CHECK_STR(b->job.argv[i], a->job.argv[i]);
	CHECK(!b->job.argv[4]);
	CHECK(!a->job.labels == !b->job.labels);
	for (size_t i = 0; a->job.labels && a->job.labels[i]; i++)
		CHECK_STR(b->job.labels[i], a->job.labels[i]);
	CHECK_STR(b->job.cwd, a->job.cwd);
	CHECK_STR(b->job.log, a->job.log);
	CHECK_STR(b->job.rootfs, a->job.rootfs);
	CHECK_STR(b->job.gpu_vendor, a->job.gpu_vendor);
	CHECK(b->job.simulated == a->job.simulated && b->job.by_pid == a->job.by_pid);
	CHECK_STR(b->job.started_as, a->job.started_as);
}

static void check_lists(const struct manifest *a, const struct manifest *b)
{
	CHECK(b->n_gpus == a->n_gpus && b->n_processes == a->n_processes);
	CHECK(b->n_externals == a->n_externals && b->n_files == a->n_files &&
	      b->n_phases == a->n_phases);
	CHECK(!memcmp(b->gpus, a->gpus, a->n_gpus * sizeof(*a->gpus)));
	for (size_t i = 0; i < a->n_processes; i++) {
		const struct manifest_process *p = &a->processes[i], *q = &b->processes[i];

		CHECK(p->pid == q->pid && p->ppid == q->ppid && p->gpu == q->gpu);
		CHECK(p->gpu_bytes == q->gpu_bytes && p->rss_bytes == q->rss_bytes);
		CHECK_STR(q->comm, p->comm);
	}
	for (size_t i = 0; i < a->n_externals; i++) {
		CHECK_STR(b->externals[i].key, a->externals[i].key);
		CHECK_STR(b->externals[i].become, a->externals[i].become);
	}
	for (size_t i = 0; i < a->n_files; i++) {
		CHECK_STR(b->files[i].path, a->files[i].path);
		CHECK(b->files[i].len_bytes == a->files[i].len_bytes);
		CHECK(!memcmp(&b->files[i].digest, &a->files[i].digest, sizeof(struct digest)));
	}
	for (size_t i = 0; i < a->n_phases; i++) {
		CHECK_STR(b->phases[i].name, a->phases[i].name);
		CHECK(b->phases[i].seconds == a->phases[i].seconds);
	}
}

static void check_memory(const struct manifest *a, const struct manifest *b)
{
	CHECK(b->memory.n_regions == a->memory.n_regions);
	CHECK(!memcmp(b->memory.regions, a->memory.regions,
		      a->memory.n_regions * sizeof(*a->memory.regions)));
	CHECK(b->memory.n_packs == a->memory.n_packs);
	for (size_t i = 0; i < a->memory.n_packs; i++) {
		CHECK_STR(b->memory.packs[i].path, a->memory.packs[i].path);
		CHECK(b->memory.packs[i].len_bytes == a->memory.packs[i].len_bytes);
	}
	CHECK(b->memory.zero_bytes == a->memory.zero_bytes);
	CHECK(b->memory.shared_bytes == a->memory.shared_bytes);
	CHECK(b->memory.written_bytes == a->memory.written_bytes);
}

static void test_round_trip(void)
{
	auto_(manifest_fini) struct manifest a = sample_manifest(), b = MANIFEST_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	size_t len, again_len;
	auto_free char *text = encode(&a, &len);

	CHECK(text[len - 1] == '\n' && strlen(text) == len);
	CHECK(manifest_decode(&b, text, len, &err) == 0);
	CHECK(b.version == MANIFEST_VERSION);
	CHECK_STR(b.id, a.id);
	CHECK_STR(b.created, a.created);
	CHECK_STR(b.brumate_version, a.brumate_version);
	check_job(&a, &b);
	CHECK(!memcmp(&b.host, &a.host, sizeof(a.host)));
	CHECK_STR(b.driver_version, a.driver_version);
	CHECK(b.api_version == a.api_version && b.criu_version == a.criu_version);
	CHECK(b.shell_job == a.shell_job && b.leave_running == a.leave_running);
	CHECK(b.downtime_seconds == a.downtime_seconds);
	CHECK(b.sequence == a.sequence && manifest_sequence(&b) == a.sequence);
	b.sequence = 0; /* an older writer: the time stands for it */
	CHECK(manifest_sequence(&b) > 1ull << 40);
	b.sequence = a.sequence;
	check_lists(&a, &b);
	check_memory(&a, &b);
	CHECK(b.n_huge_pages == 1 && !memcmp(b.huge_pages, a.huge_pages, sizeof(*a.huge_pages)));
	CHECK_STR(b.mac, a.mac);
	CHECK_STR(b.signer, a.signer);
	CHECK_STR(b.signature, a.signature);
	CHECK(manifest_bytes(&b) == 5 + 8192 + (1 << 20));
	CHECK(manifest_whole_bytes(&b) == 5 + 4096 + (1 << 30));
	CHECK(manifest_memory_bytes(&b) == 4096 + (1 << 30));

	auto_free char *again = encode(&b, &again_len);
	CHECK_STR(again, text);
}

static void test_smallest(void)
{
	struct manifest m = { .id = "a", .created = "2026-01-01T00:00:00.000Z" };
	auto_(manifest_fini) struct manifest b = MANIFEST_EMPTY;
	size_t len;
	auto_free char *text = encode(&m, &len);

	CHECK(manifest_decode(&b, text, len, NULL) == 0);
	CHECK(!b.job.log && !b.job.cwd && !b.job.rootfs && !b.n_files && !b.files &&
	      !b.job.argv[0]);
}

/* No flipped bit and no cut goes unnoticed. */
static void test_damage(void)
{
	auto_(manifest_fini) struct manifest m = sample_manifest();
	struct brumate_error err;
	size_t len;
	auto_free char *text = encode(&m, &len);

	for (size_t i = 0; i < len; i++) {
		for (int bit = 0; bit < 8; bit++) {
			text[i] ^= (char)(1 << bit);
			int r = decode(text, len, &err);
			if (r != -EBADMSG && r != -EPROTONOSUPPORT)
				fprintf(stderr, "bit %d of byte %zu: %d\n", bit, i, r);
			CHECK(r == -EBADMSG || r == -EPROTONOSUPPORT);
			text[i] ^= (char)(1 << bit);
		}
	}
	for (size_t cut = 0; cut < len - 1; cut++)
		CHECK(decode(text, cut, &err) == -EBADMSG);
	CHECK(decode(text, len, &err) == 0);
}

/* The text of the sample, changed through JSON and sealed with a right digest. */
static char *resealed(json_t *object)
{
	struct digest d;
	char hex[DIGEST_TEXT_BYTES];

	json_object_del(object, "digest");
	auto_free char *canonical = json_dumps(object, JSON_COMPACT | JSON_SORT_KEYS);
	CHECK(canonical && digest_buffer(&d, canonical, strlen(canonical)) == 0);
	digest_format(hex, &d);
	json_object_set_new(object, "digest", json_string(hex));
	return json_dumps(object, 0);
}

static json_t *sample_object(void)
{
	auto_(manifest_fini) struct manifest m = sample_manifest();
	json_t *object = manifest_to_json(&m);

	CHECK(object);
	return object;
}

/* What MAC and signature are made of changes with every member but these, also with those of later writers. */
static void test_body(void)
{
	auto_(manifest_fini) struct manifest a = sample_manifest(), b = MANIFEST_EMPTY;
	auto_(manifest_fini) struct manifest c = MANIFEST_EMPTY;
	json_auto_t *object = sample_object();
	struct digest body;
	size_t len;
	auto_free char *text = encode(&a, &len);

	CHECK(manifest_body(&body, &a) == 0 && manifest_decode(&b, text, len, NULL) == 0);
	CHECK(!memcmp(&body, &b.body, sizeof(body)));
	memset(a.mac, 0, sizeof(a.mac));
	memset(a.signer, 0, sizeof(a.signer));
	memset(a.signature, 0, sizeof(a.signature));
	CHECK(manifest_body(&body, &a) == 0 && !memcmp(&body, &b.body, sizeof(body)));
	a.job.uid++;
	CHECK(manifest_body(&body, &a) == 0 && memcmp(&body, &b.body, sizeof(body)));

	json_object_set_new(object, "later", json_true());
	auto_free char *later = resealed(object);
	CHECK(manifest_decode(&c, later, strlen(later), NULL) == 0);
	CHECK(memcmp(&c.body, &b.body, sizeof(body)));
}

static void test_unknown_members_and_space(void)
{
	json_auto_t *object = sample_object();
	struct brumate_error err;

	json_object_set_new(object, "later", json_pack("{s:[i,f,n]}", "x", 1, 0.1));
	json_object_set_new(json_object_get(object, "host"), "rack", json_string("B4"));
	auto_free char *text = resealed(object);
	CHECK(decode(text, strlen(text), &err) == 0);

	auto_free char *spaced = json_dumps(object, JSON_INDENT(7));
	CHECK(decode(spaced, strlen(spaced), &err) == 0);
}

/* Follows "a/0/b" through objects and arrays; sets the last to @value (taken), or drops it if NULL. */
static void set_at(json_t *object, const char *path, json_t *value)
{
	auto_free char *copy = copy_string(path);
	char *rest = copy, *key = strsep(&rest, "/");

	for (; rest; key = strsep(&rest, "/"))
		object = json_is_array(object) ? json_array_get(object, (size_t)atoi(key))
					       : json_object_get(object, key);
	CHECK(object);
	if (json_is_array(object))
		CHECK(json_array_set_new(object, (size_t)atoi(key), value) == 0);
	else if (value)
		CHECK(json_object_set_new(object, key, value) == 0);
	else
		CHECK(json_object_del(object, key) == 0);
}

static const struct {
	const char *path;
	const char *value; /* JSON; NULL: absent */
	int code;
	const char *said;
} wrong[] = {
	{ "format", "\"tar\"", EBADMSG, "not a brumate manifest" },
	{ "format", NULL, EBADMSG, "not a brumate manifest" },
	{ "version", "4", EPROTONOSUPPORT, "version 4 is newer than version 3" },
	{ "version", "0", EBADMSG, "version" },
	{ "version", "\"1\"", EBADMSG, "version" },
	{ "id", "\"../x\"", EBADMSG, "id" },
	{ "id", "\"\"", EBADMSG, "id" },
	{ "id", "\".hidden\"", EBADMSG, "id" },
	{ "id", "7", EBADMSG, "id: expected a string" },
	{ "id", NULL, EBADMSG, "id is missing" },
	{ "created", "\"yesterday\"", EBADMSG, "created" },
	{ "job", "[]", EBADMSG, "job: expected an object" },
	{ "job/uid", "-1", EBADMSG, "job: uid" },
	{ "job/uid", "4294967296", EBADMSG, "job: uid" },
	{ "job/uid", "1.0", EBADMSG, "job: uid" },
	{ "job/argv", "\"ls\"", EBADMSG, "job: argv" },
	{ "job/argv/0", "3", EBADMSG, "job: argv: item 0" },
	{ "job/argv/0", "\"\\\\x41\"", EBADMSG, "escapes" },
	{ "job/argv/0", "\"\\\\x00\"", EBADMSG, "escapes" },
	{ "job/argv/0", "\"\\\\xfg\"", EBADMSG, "escapes" },
	{ "job/argv/0", "\"\\\\q\"", EBADMSG, "escapes" },
	{ "job/argv/0", "\"\\\\\"", EBADMSG, "escapes" },
	{ "job/argv/0", "\"\\u0001\"", EBADMSG, "escapes" },
	{ "job/cwd", "\"here\"", EBADMSG, "job: cwd" },
	{ "job/log", "\"\"", EBADMSG, "job: log" },
	{ "job/simulated", "1", EBADMSG, "job: simulated: expected true or false" },
	{ "cuda_version", "2147483648", EBADMSG, "cuda_version" },
	{ "processes/0/pid", "0", EBADMSG, "processes: item 0: pid" },
	{ "gpus/1/total_bytes", "-1", EBADMSG, "gpus: item 1: total_bytes" },
	{ "gpus/1", "null", EBADMSG, "gpus: item 1: expected an object" },
	{ "externals/0/become", "\"file\"", EBADMSG, "externals: item 0: become" },
	{ "files", "{}", EBADMSG, "files: expected an array" },
	{ "files/0/path", "\"../x\"", EBADMSG, "files: item 0" },
	{ "files/0/path", "\"/etc\"", EBADMSG, "files: item 0" },
	{ "files/0/path", "\"a//b\"", EBADMSG, "files: item 0" },
	{ "files/0/path", "\"\"", EBADMSG, "files: item 0" },
	{ "files/0/path", "\"a/./b\"", EBADMSG, "files: item 0" },
	{ "files/0/path", "\"a/..\"", EBADMSG, "files: item 0" },
	{ "files/0/path", "\"a/\"", EBADMSG, "files: item 0" },
	{ "files/0/path", "\"manifest.json\"", EBADMSG, "files: item 0" },
	{ "files/0/path", "null", EBADMSG, "files: item 0: path: expected a string" },
	{ "files/0/path", "\"criu/pages-1.img\"", EBADMSG, "there twice" },
	{ "files/0/path", "\"z\"", EBADMSG, "out of order" },
	{ "files/0/digest", "\"00\"", EBADMSG, "files: item 0: digest" },
	{ "files/0/len_bytes", "0.5", EBADMSG, "files: item 0: len_bytes" },
	{ "memory", "null", EBADMSG, "memory: expected an object" },
	{ "memory/regions/0/kind", "\"tape\"", EBADMSG, "memory: regions: item 0: kind" },
	{ "memory/regions/0/pid", "0", EBADMSG, "memory: regions: item 0: pid" },
	{ "memory/regions/1/len_bytes", "9223372036854775807", EBADMSG, "longer than any memory" },
	{ "memory/packs/0/path", "\"../x\"", EBADMSG, "memory: packs: item 0" },
	{ "memory/packs/1/path", "\"memory/0.pack\"", EBADMSG, "there twice" },
	{ "memory/packs/1/path", "\"memory/chunks\"", EBADMSG, "there twice" },
	{ "memory/written_bytes", "-1", EBADMSG, "memory: written_bytes" },
	{ "files/2/path", "\"memory/lump\"", EBADMSG, "no file memory/chunks" },
	{ "downtime_us", "-1", EBADMSG, "downtime_us" },
	{ "sequence", "0", EBADMSG, "sequence: expected an integer from 1" },
	{ "sequence", "9007199254740993", EBADMSG, "sequence: expected an integer from 1" },
	{ "huge_pages", "null", EBADMSG, "huge_pages: expected an array" },
	{ "huge_pages/0/page_bytes", "0", EBADMSG, "huge_pages: item 0: page_bytes" },
	{ "huge_pages/0/bytes", NULL, EBADMSG, "huge_pages: item 0: bytes is missing" },
	{ "mac", "\"\"", EBADMSG, "mac: expected a value" },
	{ "mac", "\"00\"", EBADMSG, "mac: expected 64" },
	{ "mac", "7", EBADMSG, "mac: expected a string" },
	{ "signer", NULL, EBADMSG, "signature: expected it with its signer" },
	{ "signature", NULL, EBADMSG, "signature: expected it with its signer" },
	{ "signature", "\"ab\"", EBADMSG, "signature: expected 128" },
	{ "phases/0/duration_us", "1000000000000001", EBADMSG, "phases: item 0: duration_us" },
};

static void test_wrong_members(void)
{
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		json_auto_t *object = sample_object();
		struct brumate_error err;

		set_at(object, wrong[i].path,
		       wrong[i].value ? json_loads(wrong[i].value, JSON_DECODE_ANY, NULL) : NULL);
		auto_free char *text = resealed(object);
		int r = decode(text, strlen(text), &err);
		if (r != -wrong[i].code || !strstr(err.text, wrong[i].said))
			fprintf(stderr, "%s = %s: %d %s\n", wrong[i].path,
				wrong[i].value ? wrong[i].value : "(absent)", r, err.text);
		CHECK(r == -wrong[i].code);
		CHECK(strstr(err.text, wrong[i].said));
	}
}

/* Every member is asked for, but what older writers of the same version did not know. */
static void test_missing_members(void)
{
	json_auto_t *whole = sample_object();
	const char *key;
	json_t *value;

	json_object_foreach (whole, key, value) {
		json_auto_t *object = sample_object();
		struct brumate_error err;

		if (!strcmp(key, "digest"))
			continue;
		json_object_del(object, key);
		auto_free char *text = resealed(object);
		bool known =
			strcmp(key, "huge_pages") && strcmp(key, "sequence") && strcmp(key, "mac");
		int want = known ? -EBADMSG : 0;
		CHECK(decode(text, strlen(text), &err) == want);
	}
}

static void test_too_long(void)
{
	json_auto_t *object = sample_object();
	struct brumate_error err;
	char name[MANIFEST_NAME_BYTES + 1];

	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	set_at(object, "job/name", json_string(name));
	auto_free char *text = resealed(object);
	CHECK(decode(text, strlen(text), &err) == -EBADMSG);
	CHECK(strstr(err.text, "job: name: expected at most 127 bytes"));

	name[sizeof(name) - 2] = '\0';
	set_at(object, "job/name", json_string(name));
	auto_free char *fits = resealed(object);
	CHECK(decode(fits, strlen(fits), &err) == 0);

	json_t *gpus = json_object_get(object, "gpus");
	while (json_array_size(gpus) <= MANIFEST_GPUS_MAX)
		json_array_append_new(gpus, json_deep_copy(json_array_get(gpus, 0)));
	auto_free char *many = resealed(object);
	CHECK(decode(many, strlen(many), &err) == -EBADMSG);
	CHECK(strstr(err.text, "gpus: expected an array of at most 64"));
}

static void test_foreign(void)
{
	static const char *const texts[] = {
		"{}",
		"[]",
		"null",
		"7",
		"\"text\"",
		"\xff\xfe",
		"{\"format\":1}",
		"<html>",
		" ",
		"{\"format\":\"brumate-checkpoint\",\"format\":\"brumate-checkpoint\"}",
		"{\"format\":\"brumate-checkpoint\",\"version\":1}",
		"{\"format\":\"brumate-checkpoint\",\"version\":1,\"digest\":7}",
	};
	struct brumate_error err;

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		CHECK(decode(texts[i], strlen(texts[i]), &err) == -EBADMSG);
	CHECK(decode("", 0, &err) == -EBADMSG);
	CHECK(strstr(err.text, "empty"));
	CHECK(decode("{}\0{}", 5, &err) == -EBADMSG);
	CHECK(decode("x", (size_t)MANIFEST_BYTES_MAX + 1, &err) == -EBADMSG);

	/* The output is left alone by a failure. */
	struct manifest m;
	memset(&m, 0x55, sizeof(m));
	CHECK(manifest_decode(&m, "{}", 2, NULL) == -EBADMSG);
	CHECK(((unsigned char *)&m)[0] == 0x55 && m.version == 0x55555555);
}

/* What could not be read is not written. */
static void test_encode_refuses(void)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct manifest m = sample_manifest();
	auto_free char *text = NULL;
	size_t len;

	m.files[0].len_bytes = UINT64_MAX;
	CHECK(manifest_encode(&m, &text, &len, &err) == -EINVAL);
	CHECK(strstr(err.text, "files: item 0: len_bytes"));
	m.files[0].len_bytes = 0;
	m.downtime_seconds = -1;
	CHECK(manifest_encode(&m, &text, &len, &err) == -EINVAL);
	m.downtime_seconds = 0.0 / 1.0;
	strcpy(m.id, "a/b");
	CHECK(manifest_encode(&m, &text, &len, &err) == -EINVAL);
	CHECK(!text);
	manifest_fini(&m);
	manifest_fini(&m);
}

static void test_names(void)
{
	static const char *const bad_paths[] = { "",  "/",  "/a",   "a/",     "a//b",
						 ".", "..", "../a", "a/../b", "./a" };
	static const char *const good_paths[] = { "a", "a/b", "..a", "a..", ".a/b", "..." };
	char id[MANIFEST_ID_BYTES + 1];

	for (size_t i = 0; i < sizeof(bad_paths) / sizeof(bad_paths[0]); i++)
		CHECK(!manifest_path_is_valid(bad_paths[i]));
	for (size_t i = 0; i < sizeof(good_paths) / sizeof(good_paths[0]); i++)
		CHECK(manifest_path_is_valid(good_paths[i]));
	CHECK(manifest_id_is_valid("A-z_0.9"));
	CHECK(!manifest_id_is_valid(""));
	CHECK(!manifest_id_is_valid(".a"));
	CHECK(!manifest_id_is_valid("a b"));
	CHECK(!manifest_id_is_valid("a\n"));
	memset(id, 'a', sizeof(id));
	id[MANIFEST_ID_BYTES] = '\0';
	CHECK(!manifest_id_is_valid(id));
	id[MANIFEST_ID_BYTES - 1] = '\0';
	CHECK(manifest_id_is_valid(id));
}

/* Each byte, alone and beside others, survives the escape. */
static void test_escape(void)
{
	for (int a = 1; a < 256; a++) {
		for (int b = 1; b < 256; b++) {
			char raw[] = { (char)a, (char)b, (char)0xa9, 'x', '\0' };
			auto_free char *escaped = text_escape(raw, sizeof(raw)), *back = NULL;

			CHECK(escaped && text_unescape(&back, escaped) == 0);
			CHECK_STR(back, raw);
		}
	}
	auto_free char *escaped = text_escape("a\\\n\xc3\xa9\xff", 16);
	CHECK_STR(escaped, "a\\\\\\x0a\xc3\xa9\\xff");
}

/* Version 1 as it was first written must be read for ever. */
static void test_golden(const char *dir)
{
	auto_(manifest_fini) struct manifest m = MANIFEST_EMPTY;
	auto_free char *path = NULL, *text = NULL;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	size_t len;

	CHECK(asprintf(&path, "%s/golden/v1.json", dir) > 0);
	CHECK(file_read(AT_FDCWD, path, MANIFEST_BYTES_MAX, &text, &len) == 0);
	int r = manifest_decode(&m, text, len, &err);
	if (r < 0)
		fprintf(stderr, "%s\n", err.text);
	CHECK(r == 0);
	CHECK_STR(m.id, "counter-20260102-030405");
	CHECK_STR(m.job.argv[2], "caf\xe9");
	CHECK_STR(m.job.cwd, "/srv/a\\b");
	CHECK(m.n_files == 2 && m.files[1].len_bytes == 1073741824);
	CHECK(m.phases[0].seconds == 0.001234);

	/* The digest that docs/image-format.md gives. */
	CHECK(strstr(text, "\"digest\": "
			   "\"809f67ef8c182dbdfdb89d59aa0ac6f862115ba895a30f99ee755c9699355329\""));
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	test_round_trip();
	test_body();
	test_smallest();
	test_damage();
	test_unknown_members_and_space();
	test_wrong_members();
	test_missing_members();
	test_too_long();
	test_foreign();
	test_encode_refuses();
	test_names();
	test_escape();
	test_golden(argv[1]);
	return 0;
}

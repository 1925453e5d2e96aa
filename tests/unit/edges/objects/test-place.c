// SPDX-License-Identifier: MIT
/* Names of places and keys. */
#include <errno.h>
#include <string.h>

#include "check.h"
#include "edges/objects/place.h"

static void check_good(void)
{
	static const struct {
		const char *url, *bucket, *prefix, *key;
	} cases[] = {
		{ "s3://bucket", "bucket", "", "x" },
		{ "s3://bucket/", "bucket", "", "x" },
		{ "s3://b.u-c_K3t/a/b c", "b.u-c_K3t", "a/b c", "a/b c/x" },
		{ "s3://bucket/a/", "bucket", "a", "a/x" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		auto_(remote_place_fini) struct remote_place p = REMOTE_PLACE_EMPTY;

		CHECK(remote_place_parse(&p, cases[i].url, NULL) == 0);
		CHECK_STR(p.bucket, cases[i].bucket);
		CHECK_STR(p.prefix, cases[i].prefix);
		auto_free char *key = place_key(&p, "x");
		CHECK_STR(key, cases[i].key);
	}
}

static void check_bad(void)
{
	static const char *const bad[] = {
		"bucket/x",   "s3://",	     "s3:///x",	    "s3://.b",	  "s3://-b",	 "s3://b!",
		"s3://b//x",  "s3://b/a//x", "s3://b/../x", "s3://b/./x", "s3://b/a\nb", "S3://b",
		"s3://b@c/x", "s3://b:80/x", "s3://b?x=y",  "s3://b/x//"
	};
	char name[700] = "s3://";

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		auto_(remote_place_fini) struct remote_place p = REMOTE_PLACE_EMPTY;
		struct brumate_error err = BRUMATE_ERROR_NONE;

		CHECK(remote_place_parse(&p, bad[i], &err) == -EINVAL);
		CHECK(err.text[0] && !p.prefix);
	}
	memset(name + 5, 'b', REMOTE_BUCKET_BYTES);
	struct remote_place p;
	CHECK(remote_place_parse(&p, name, NULL) == -EINVAL);
	name[5 + 8] = '/';
	memset(name + 14, 'p', REMOTE_PREFIX_BYTES_MAX + 1);
	CHECK(remote_place_parse(&p, name, NULL) == -EINVAL);
}

static void check_split(void)
{
	auto_(remote_place_fini) struct remote_place p = REMOTE_PLACE_EMPTY;
	auto_free char *word = NULL, *last = NULL;

	CHECK(remote_place_parse(&p, "s3://b/a/c/id", NULL) == 0);
	CHECK(remote_place_split(&p, &word, NULL) == 0);
	CHECK_STR(word, "id");
	CHECK_STR(p.prefix, "a/c");
	remote_place_fini(&p);
	CHECK(remote_place_parse(&p, "s3://b/id", NULL) == 0);
	CHECK(remote_place_split(&p, &last, NULL) == 0);
	CHECK_STR(last, "id");
	CHECK_STR(p.prefix, "");
	CHECK(remote_place_split(&p, &last, NULL) == -EINVAL);
}

static void check_keys(void)
{
	struct digest digest = { { 0 } };
	struct place_file file = { "criu/pages-1.img", 1, &digest };
	struct place_file pack = { MANIFEST_MEMORY_DIR "/0123.pack", 1, NULL };
	auto_(remote_place_fini) struct remote_place p = REMOTE_PLACE_EMPTY;

	CHECK(remote_place_parse(&p, "s3://b/a", NULL) == 0);
	auto_free char *of_file = place_file_key(&p, "id", &file);
	auto_free char *of_pack = place_file_key(&p, "id", &pack);
	CHECK_STR(of_file, "a/id/criu/pages-1.img");
	CHECK_STR(of_pack, "a/packs/0123.pack");
	auto_free char *path = place_encode("a b/\xc3\xa4+~&=%", true);
	auto_free char *value = place_encode("a/b", false);
	CHECK_STR(path, "a%20b/%C3%A4%2B~%26%3D%25");
	CHECK_STR(value, "a%2Fb");
}

int main(void)
{
	check_good();
	check_bad();
	check_split();
	check_keys();
	return 0;
}

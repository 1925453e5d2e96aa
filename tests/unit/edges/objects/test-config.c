// SPDX-License-Identifier: MIT
/* Settings and credentials: files, variables, and what travels with a call. */
#include <errno.h>
#include <string.h>

#include "check.h"
#include "edges/objects/config.h"

static void check_find(void)
{
	static const char text[] = "key = before\n"
				   "# key = comment\n"
				   "[default]\n"
				   "key=first\r\n"
				   "not an assignment\n"
				   "  key =  last one  \n"
				   "s3 =\n"
				   "  addressing_style = path\n"
				   "[profile a b]\n"
				   "; key = comment\n"
				   "key = of = a b\n"
				   "[broken\n"
				   "key = lost\n";
	auto_free char *plain = config_find(text, "default", "key");
	auto_free char *profile = config_find(text, "profile a b", "key");
	auto_free char *nested = config_find(text, "default", "addressing_style");
	auto_free char *group = config_find(text, "default", "s3");
	auto_free char *none = config_find(text, "nobody", "key");

	CHECK_STR(plain, "last one");
	CHECK_STR(profile, "of = a b");
	CHECK_STR(nested, "path");
	CHECK(!group && !none);
}

static void unset_all(void)
{
	static const char *const names[] = {
		"AWS_ACCESS_KEY_ID",
		"AWS_SECRET_ACCESS_KEY",
		"AWS_SESSION_TOKEN",
		"AWS_REGION",
		"AWS_DEFAULT_REGION",
		"AWS_ENDPOINT_URL",
		"AWS_ENDPOINT_URL_S3",
		"AWS_PROFILE",
		"AWS_DEFAULT_PROFILE",
		"AWS_CA_BUNDLE",
		"AWS_MAX_ATTEMPTS",
		"BRUMATE_S3_PART_MIB",
		"BRUMATE_S3_CONNECTIONS",
		"BRUMATE_S3_ADDRESSING",
		"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
		"AWS_CONTAINER_CREDENTIALS_FULL_URI",
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		unsetenv(names[i]);
	setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent/credentials", 1);
	setenv("AWS_CONFIG_FILE", "/nonexistent/config", 1);
	setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
}

static void set_keys(void)
{
	unset_all();
	setenv("AWS_ACCESS_KEY_ID", "AKID", 1);
	setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
}

static void check_variables(void)
{
	struct remote_config c;

	set_keys();
	CHECK(remote_config_load(&c, "bucket", NULL) == 0);
	CHECK_STR(c.endpoint, "https://s3.us-east-1.amazonaws.com");
	CHECK_STR(c.key_id, "AKID");
	CHECK(!c.path_style && !c.token && c.part_mib == 16 && c.attempts == 8);
	remote_config_fini(&c);

	setenv("AWS_DEFAULT_REGION", "cn-north-1", 1);
	setenv("AWS_SESSION_TOKEN", "token", 1);
	CHECK(remote_config_load(&c, "dots.need.paths", NULL) == 0);
	CHECK_STR(c.endpoint, "https://s3.cn-north-1.amazonaws.com.cn");
	CHECK_STR(c.token, "token");
	CHECK(c.path_style);
	remote_config_fini(&c);

	setenv("AWS_REGION", "r", 1);
	setenv("AWS_ENDPOINT_URL", "https://all:1", 1);
	setenv("AWS_ENDPOINT_URL_S3", "http://s3:9000/", 1);
	CHECK(remote_config_load(&c, "bucket", NULL) == 0);
	CHECK_STR(c.endpoint, "http://s3:9000");
	CHECK_STR(c.region, "r");
	CHECK(c.path_style);
	remote_config_fini(&c);
	setenv("BRUMATE_S3_ADDRESSING", "virtual", 1);
	CHECK(remote_config_load(&c, "bucket", NULL) == 0);
	CHECK(!c.path_style);
	remote_config_fini(&c);
}

static void check_refused(const char *name, const char *value, int code)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct remote_config c;

	set_keys();
	setenv(name, value, 1);
	CHECK(remote_config_load(&c, "bucket", &err) == -code);
	CHECK(err.text[0] && !strstr(err.text, "secret"));
}

static void check_wrong(void)
{
	check_refused("AWS_ENDPOINT_URL", "s3.example.com", EINVAL);
	check_refused("AWS_ENDPOINT_URL", "https://user@host", EINVAL);
	check_refused("AWS_ENDPOINT_URL", "https://host/path", EINVAL);
	check_refused("AWS_ENDPOINT_URL", "file:///etc", EINVAL);
	check_refused("BRUMATE_S3_PART_MIB", "4", EINVAL);
	check_refused("BRUMATE_S3_PART_MIB", "16M", EINVAL);
	check_refused("BRUMATE_S3_CONNECTIONS", "0", EINVAL);
	check_refused("BRUMATE_S3_ADDRESSING", "odd", EINVAL);
	check_refused("AWS_CA_BUNDLE", "/nonexistent/ca", ENOENT);
	check_refused("AWS_ACCESS_KEY_ID", "", EACCES);
}

static void check_wire(void)
{
	struct remote_config c, back;
	json_t *o;

	set_keys();
	setenv("AWS_SESSION_TOKEN", "token", 1);
	CHECK(remote_config_load(&c, "bucket", NULL) == 0);
	o = remote_config_to_json(&c);
	CHECK(o && remote_config_from_json(&back, o, NULL) == 0);
	CHECK_STR(back.secret, "secret");
	CHECK_STR(back.token, "token");
	CHECK(back.part_mib == c.part_mib && !back.path_style && !back.ca);
	remote_config_fini(&back);
	remote_config_fini(&c);

	static const struct {
		const char *key, *value;
	} wrong[] = { { "region", "\"a\\r\\nx-amz-acl: public-read\"" },
		      { "token", "\"a\\nb\"" },
		      { "endpoint", "\"gopher://x\"" },
		      { "part_mib", "0" },
		      { "connections", "100000" },
		      { "stall_s", "-1" },
		      { "key_id", "\"\"" },
		      { "secret", "1" } };
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		json_t *bad = json_copy(o);

		json_object_set_new(bad, wrong[i].key,
				    json_loads(wrong[i].value, JSON_DECODE_ANY, NULL));
		CHECK(remote_config_from_json(&back, bad, NULL) == -EINVAL);
		json_decref(bad);
	}
	json_decref(o);
}

static void check_metadata(void)
{
	struct remote_config c = REMOTE_CONFIG_DEFAULT;

	CHECK(metadata_parse(&c, "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\",\"Token\":\"T\","
				 "\"Expiration\":\"x\"}") == 0);
	CHECK_STR(c.key_id, "A");
	CHECK_STR(c.token, "T");
	remote_config_fini(&c);
	CHECK(metadata_parse(&c, "{\"AccessKeyId\":\"A\"}") == -EBADMSG);
	CHECK(metadata_parse(&c, "<html>") == -EBADMSG);
	CHECK(metadata_parse(&c, "") == -EBADMSG && !c.key_id);
}

int main(void)
{
	check_find();
	check_variables();
	check_wrong();
	check_wire();
	check_metadata();
	return 0;
}

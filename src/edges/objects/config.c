// SPDX-License-Identifier: MIT
/* Settings and credentials for object stores; see config.h. */
#include "edges/objects/config.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <pwd.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "edges/http/libcurl.h"
#include "base/paths.h"

enum { FILE_BYTES_MAX = 4 << 20 };

/* Returns the variable's value; NULL if it is unset or empty. */
static const char *variable(const char *name)
{
	const char *value = getenv(name);

	return value && *value ? value : NULL;
}

/* ---- the metadata service ---- */

/* Credentials of the container or the machine that this runs on, from the metadata service of the container
 * (AWS_CONTAINER_CREDENTIALS_...), else from that of an EC2 machine (IMDSv2). It is never reached through a proxy,
 * and has a short timeout. */

enum { WAIT_MS = 1000, ANSWER_BYTES_MAX = 64 << 10 };

#define CONTAINER_HOST "http://169.254.170.2"
#define MACHINE_HOST   "http://169.254.169.254"
#define ROLE_PATH      "/latest/meta-data/iam/security-credentials/"

struct page {
	char text[ANSWER_BYTES_MAX + 1];
	size_t len;
};

static size_t keep_answer(char *data, size_t size, size_t n, void *arg)
{
	struct page *p = arg;

	if (size * n > ANSWER_BYTES_MAX - p->len)
		return 0;
	memcpy(p->text + p->len, data, size * n);
	p->len += size * n;
	p->text[p->len] = '\0';
	return size * n;
}

/* GET, or PUT with an empty body. @header: "name: value" or NULL. 0 or -ENOENT. */
static int ask_metadata(struct page *ret, const char *method, const char *url, const char *header)
{
	CURL *curl = libcurl.easy_init();
	struct curl_slist *lines = header ? libcurl.slist_append(NULL, header) : NULL;
	long status = 0;

	ret->len = 0;
	ret->text[0] = '\0';
	if (!curl)
		return -ENOENT;
	libcurl.easy_setopt(curl, CURLOPT_URL, url);
	libcurl.easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method);
	libcurl.easy_setopt(curl, CURLOPT_HTTPHEADER, lines);
	libcurl.easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
	libcurl.easy_setopt(curl, CURLOPT_NOPROXY, "*");
	libcurl.easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
	libcurl.easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)WAIT_MS);
	libcurl.easy_setopt(curl, CURLOPT_WRITEFUNCTION, keep_answer);
	libcurl.easy_setopt(curl, CURLOPT_WRITEDATA, ret);
	CURLcode code = libcurl.easy_perform(curl);
	libcurl.easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
	libcurl.slist_free_all(lines);
	libcurl.easy_cleanup(curl);
	return code == CURLE_OK && status == 200 ? 0 : -ENOENT;
}

int metadata_parse(struct remote_config *c, const char *text)
{
	json_t *o = json_loads(text, 0, NULL);
	const char *key_id, *secret, *token = NULL;
	int r = -EBADMSG;

	if (json_unpack(o, "{s:s,s:s,s?s}", "AccessKeyId", &key_id, "SecretAccessKey", &secret,
			"Token", &token) == 0) {
		c->key_id = strdup(key_id);
		c->secret = strdup(secret);
		c->token = token ? strdup(token) : NULL;
		r = 0;
	}
	json_decref(o);
	return r;
}

/* "authorization: TOKEN" for the container's service; NULL: not needed. Owned. */
static char *container_header(void)
{
	const char *token = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN");
	const char *file = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
	auto_free char *text = NULL;

	if (file && file_read(AT_FDCWD, file, ANSWER_BYTES_MAX, &text, NULL) == 0) {
		text[strcspn(text, "\r\n")] = '\0';
		token = text;
	}
	return token && *token ? path_format("authorization: %s", token) : NULL;
}

static int ask_container(struct page *page, const char *relative, const char *full)
{
	auto_free char *url = relative ? path_format(CONTAINER_HOST "%s", relative) : strdup(full);
	auto_free char *header = container_header();

	return url ? ask_metadata(page, "GET", url, header) : -ENOENT;
}

static int ask_machine(struct page *page)
{
	const char *disabled = variable("AWS_EC2_METADATA_DISABLED");
	const char *given = variable("AWS_EC2_METADATA_SERVICE_ENDPOINT");
	const char *host = given ? given : MACHINE_HOST;

	if (disabled && !strcasecmp(disabled, "true"))
		return -ENOENT;
	auto_free char *token_url = path_format("%s/latest/api/token", host);
	int r = token_url ? ask_metadata(page, "PUT", token_url,
					 "x-aws-ec2-metadata-token-ttl-seconds: 300")
			  : -ENOENT;
	if (r < 0)
		return r;
	auto_free char *header = path_format("x-aws-ec2-metadata-token: %s", page->text);
	auto_free char *roles = path_format("%s" ROLE_PATH, host);
	r = header && roles ? ask_metadata(page, "GET", roles, header) : -ENOENT;
	if (r < 0)
		return r;
	page->text[strcspn(page->text, "\r\n")] = '\0';
	auto_free char *role = path_format("%s%s", roles, page->text);
	return role ? ask_metadata(page, "GET", role, header) : -ENOENT;
}

/* Fills in key, secret and token of @c. -ENOENT without setting @err: there is no such service. */
static int metadata_credentials(struct remote_config *c, struct brumate_error *err)
{
	const char *relative = variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
	const char *full = variable("AWS_CONTAINER_CREDENTIALS_FULL_URI");
	auto_free struct page *page = malloc(sizeof(*page));
	const bool container = relative || full;

	if (!page)
		return brumate_fail(err, ENOMEM, "%m");
	int r = libcurl_open("object stores", err);
	if (r < 0)
		return r;
	r = container ? ask_container(page, relative, full) : ask_machine(page);
	if (r < 0)
		return r;
	r = metadata_parse(c, page->text);
	return r < 0 ? brumate_fail(err, EBADMSG,
				    "the metadata service of this %s gave no "
				    "credentials that can be read",
				    container ? "container" : "machine")
		     : 0;
}

/* ---- settings ---- */

static void wipe(char *text)
{
	if (text)
		OPENSSL_cleanse(text, strlen(text));
	free(text);
}

/* The sources of settings. Owns its strings. */
struct sources {
	const char *profile;
	char *credentials_path, *config_path;
	char *credentials, *config; /* their text; NULL: no such file */
	char *credentials_section, *config_section;
};

static void sources_fini(struct sources *s)
{
	wipe(s->credentials);
	free(s->credentials_path);
	free(s->config_path);
	free(s->config);
	free(s->credentials_section);
	free(s->config_section);
}
DEFINE_AUTO_FINI(struct sources, sources_fini)

void remote_config_fini(struct remote_config *c)
{
	free(c->endpoint);
	free(c->region);
	free(c->key_id);
	wipe(c->secret);
	wipe(c->token);
	free(c->ca);
	*c = REMOTE_CONFIG_DEFAULT;
}

/* Strips white space from both ends of the line, in place. */
static char *trim(char *line)
{
	static const char space[] = " \t\r";

	line += strspn(line, space);
	size_t len = strlen(line);
	while (len && strchr(space, line[len - 1]))
		line[--len] = '\0';
	return line;
}

static bool is_section(char *line, const char *section)
{
	size_t len = strlen(line);

	if (len < 2 || line[len - 1] != ']')
		return false;
	line[len - 1] = '\0';
	return !strcmp(trim(line + 1), section);
}

/* Lines that are not assignments are skipped, as AWS's tools do. */
char *config_find(const char *text, const char *section, const char *key)
{
	auto_free char *copy = strdup(text);
	char *rest = copy, *found = NULL;
	bool inside = false;

	while (rest && copy) {
		char *line = trim(strsep(&rest, "\n")), *equals = strchr(line, '=');

		if (*line == '[')
			inside = is_section(line, section);
		if (!inside || !equals || strchr("#;[", *line))
			continue;
		*equals = '\0';
		if (strcmp(trim(line), key))
			continue;
		char *value = trim(equals + 1);
		if (!*value) /* "s3 =" starts a group, whose members are on the following lines */
			continue;
		wipe(found);
		found = strdup(value);
	}
	if (copy)
		OPENSSL_cleanse(copy, strlen(text));
	return found;
}

static char *home_file(const char *name)
{
	const char *home = variable("HOME");
	const struct passwd *user = home ? NULL : getpwuid(getuid());

	return path_format("%s/.aws/%s", home ? home : user ? user->pw_dir : "", name);
}

static int read_source(char **ret_path, char **ret_text, const char *name, const char *file,
		       struct brumate_error *err)
{
	const char *given = variable(name);
	char *path = given ? strdup(given) : home_file(file);

	*ret_path = path;
	if (!path)
		return brumate_fail(err, ENOMEM, "%m");
	int r = file_read(AT_FDCWD, path, FILE_BYTES_MAX, ret_text, NULL);
	/* An unreadable file counts as missing, unless the user named it. */
	if (r == -ENOENT || r == -ENOTDIR || (r == -EACCES && !given))
		return 0;
	return r < 0 ? brumate_fail(err, -r, "%s: %m", path) : 0;
}

static int open_sources(struct sources *s, struct brumate_error *err)
{
	const char *profile = variable("AWS_PROFILE");
	bool is_default;

	s->profile = profile ? profile : variable("AWS_DEFAULT_PROFILE");
	if (!s->profile)
		s->profile = "default";
	is_default = !strcmp(s->profile, "default");
	s->credentials_section = strdup(s->profile);
	s->config_section = path_format("%s%s", is_default ? "" : "profile ", s->profile);
	if (!s->credentials_section || !s->config_section)
		return brumate_fail(err, ENOMEM, "%m");
	int r = read_source(&s->credentials_path, &s->credentials, "AWS_SHARED_CREDENTIALS_FILE",
			    "credentials", err);
	return r < 0 ? r
		     : read_source(&s->config_path, &s->config, "AWS_CONFIG_FILE", "config", err);
}

static char *from_credentials(const struct sources *s, const char *key)
{
	return s->credentials ? config_find(s->credentials, s->credentials_section, key) : NULL;
}

static char *from_config(const struct sources *s, const char *key)
{
	return s->config ? config_find(s->config, s->config_section, key) : NULL;
}

/* The value of the first variable that is set, else of the configuration. */
static char *setting(const struct sources *s, const char *first, const char *second,
		     const char *key)
{
	const char *value = variable(first);

	if (!value && second)
		value = variable(second);
	return value ? strdup(value) : from_config(s, key);
}

static bool take_pair(struct remote_config *c, char *key_id, char *secret, char *token)
{
	if (key_id && secret) {
		c->key_id = key_id;
		c->secret = secret;
		c->token = token;
		return true;
	}
	free(key_id);
	wipe(secret);
	wipe(token);
	return false;
}

static char *copy_of(const char *name)
{
	const char *value = variable(name);

	return value ? strdup(value) : NULL;
}

static int fail_no_credentials(const struct sources *s, const char *bucket,
			       struct brumate_error *err)
{
	brumate_fail(
		err, EACCES,
		"s3://%s: no credentials: neither AWS_ACCESS_KEY_ID and "
		"AWS_SECRET_ACCESS_KEY, nor the profile %s of %s or %s, nor a metadata service",
		bucket, s->profile, s->credentials_path, s->config_path);
	brumate_hint(err, "set the two variables, or name a profile by AWS_PROFILE; "
			  "sudo keeps neither (sudo -E, or sudo AWS_PROFILE=...)");
	return -EACCES;
}

static int load_credentials(struct remote_config *c, const struct sources *s, const char *bucket,
			    struct brumate_error *err)
{
	/* Keys in the environment take precedence over a profile, even one named explicitly, as with AWS's tools. */
	if (take_pair(c, copy_of("AWS_ACCESS_KEY_ID"), copy_of("AWS_SECRET_ACCESS_KEY"),
		      copy_of("AWS_SESSION_TOKEN")) ||
	    take_pair(c, from_credentials(s, "aws_access_key_id"),
		      from_credentials(s, "aws_secret_access_key"),
		      from_credentials(s, "aws_session_token")) ||
	    take_pair(c, from_config(s, "aws_access_key_id"),
		      from_config(s, "aws_secret_access_key"), from_config(s, "aws_session_token")))
		return 0;
	int r = metadata_credentials(c, err);
	return r == -ENOENT ? fail_no_credentials(s, bucket, err) : r;
}

static int check_endpoint(const char *endpoint, struct brumate_error *err)
{
	const char *host = !strncmp(endpoint, "https://", 8)  ? endpoint + 8
			   : !strncmp(endpoint, "http://", 7) ? endpoint + 7
							      : "";

	if (*host && !strpbrk(host, "/@?# \t"))
		return 0;
	brumate_fail(err, EINVAL,
		     "endpoint \"%s\": expected https://HOST[:PORT] or http://HOST[:PORT]",
		     endpoint);
	brumate_hint(err, "see AWS_ENDPOINT_URL, or endpoint_url in the configuration of AWS");
	return -EINVAL;
}

static int load_endpoint(struct remote_config *c, const struct sources *s, const char *bucket,
			 struct brumate_error *err)
{
	auto_free char *style = setting(s, "BRUMATE_S3_ADDRESSING", NULL, "addressing_style");
	bool own;

	c->region = setting(s, "AWS_REGION", "AWS_DEFAULT_REGION", "region");
	if (!c->region)
		c->region = strdup("us-east-1");
	c->endpoint = setting(s, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "endpoint_url");
	own = c->endpoint != NULL;
	if (!own && c->region)
		c->endpoint = path_format("https://s3.%s.amazonaws.com%s", c->region,
					  !strncmp(c->region, "cn-", 3) ? ".cn" : "");
	if (!c->region || !c->endpoint)
		return brumate_fail(err, ENOMEM, "%m");
	size_t len = strlen(c->endpoint);
	if (len && c->endpoint[len - 1] == '/')
		c->endpoint[len - 1] = '\0';

	/* The bucket becomes a part of the host name only if the result is a valid name. */
	c->path_style = own || strpbrk(bucket, "._ABCDEFGHIJKLMNOPQRSTUVWXYZ");
	if (style && !strcmp(style, "path"))
		c->path_style = true;
	else if (style && !strcmp(style, "virtual"))
		c->path_style = false;
	else if (style && strcmp(style, "auto"))
		return brumate_fail(err, EINVAL,
				    "addressing \"%s\": expected auto, path or virtual", style);
	return check_endpoint(c->endpoint, err);
}

static int load_number(int64_t *ret, const char *name, int64_t min, int64_t max,
		       struct brumate_error *err)
{
	const char *value = variable(name);
	char *end;

	if (!value)
		return 0;
	long long number = strtoll(value, &end, 10);
	if (*end || number < min || number > max)
		return brumate_fail(err, EINVAL, "%s=%s: expected a number from %lld to %lld", name,
				    value, (long long)min, (long long)max);
	*ret = number;
	return 0;
}

static int load_limits(struct remote_config *c, struct brumate_error *err)
{
	const char *ca = variable("AWS_CA_BUNDLE");
	int r = load_number(&c->part_mib, "BRUMATE_S3_PART_MIB", REMOTE_PART_MIB_MIN,
			    REMOTE_PART_MIB_MAX, err);

	if (r == 0)
		r = load_number(&c->connections, "BRUMATE_S3_CONNECTIONS", 1,
				REMOTE_CONNECTIONS_MAX, err);
	if (r == 0)
		r = load_number(&c->attempts, "AWS_MAX_ATTEMPTS", 1, REMOTE_ATTEMPTS_MAX, err);
	if (r < 0 || !ca)
		return r;
	r = file_read(AT_FDCWD, ca, FILE_BYTES_MAX, &c->ca, NULL);
	return r < 0 ? brumate_fail(err, -r, "AWS_CA_BUNDLE: %s: %m", ca) : 0;
}

int remote_config_load(struct remote_config *ret, const char *bucket, struct brumate_error *err)
{
	auto_(remote_config_fini) struct remote_config c = REMOTE_CONFIG_DEFAULT;
	auto_(sources_fini) struct sources s = { 0 };
	int r = open_sources(&s, err);

	if (r == 0)
		r = load_endpoint(&c, &s, bucket, err);
	if (r == 0)
		r = load_limits(&c, err);
	if (r == 0)
		r = load_credentials(&c, &s, bucket, err);
	if (r < 0)
		return r;
	*ret = take_struct(c, REMOTE_CONFIG_DEFAULT);
	return 0;
}

json_t *remote_config_to_json(const struct remote_config *c)
{
	return json_pack("{s:s,s:s,s:s,s:s,s:s*,s:s*,s:b,s:I,s:I,s:I,s:I}", "endpoint", c->endpoint,
			 "region", c->region, "key_id", c->key_id, "secret", c->secret, "token",
			 c->token, "ca", c->ca, "path_style", c->path_style, "part_mib",
			 (json_int_t)c->part_mib, "connections", (json_int_t)c->connections,
			 "attempts", (json_int_t)c->attempts, "stall_s", (json_int_t)c->stall_s);
}

static bool in_range(int64_t value, int64_t min, int64_t max)
{
	return value >= min && value <= max;
}

/* Whether @text can be in a header without ending it. */
static bool is_plain(const char *text)
{
	for (; text && *text; text++)
		if ((unsigned char)*text <= ' ' || *text == 0x7f)
			return false;
	return true;
}

static bool is_right(const struct remote_config *c)
{
	return is_plain(c->endpoint) && is_plain(c->region) && is_plain(c->key_id) &&
	       is_plain(c->token) && *c->region && *c->key_id && *c->secret &&
	       in_range(c->part_mib, REMOTE_PART_MIB_MIN, REMOTE_PART_MIB_MAX) &&
	       in_range(c->connections, 1, REMOTE_CONNECTIONS_MAX) &&
	       in_range(c->attempts, 1, REMOTE_ATTEMPTS_MAX) && in_range(c->stall_s, 1, 3600);
}

int remote_config_from_json(struct remote_config *ret, json_t *o, struct brumate_error *err)
{
	auto_(remote_config_fini) struct remote_config c = REMOTE_CONFIG_DEFAULT;
	const char *endpoint, *region, *key_id, *secret, *token = NULL, *ca = NULL;
	json_int_t part_mib = c.part_mib, connections = c.connections, attempts = c.attempts,
		   stall_s = c.stall_s;
	int path_style = 0;

	if (json_unpack(o, "{s:s,s:s,s:s,s:s,s?s,s?s,s?b,s?I,s?I,s?I,s?I}", "endpoint", &endpoint,
			"region", &region, "key_id", &key_id, "secret", &secret, "token", &token,
			"ca", &ca, "path_style", &path_style, "part_mib", &part_mib, "connections",
			&connections, "attempts", &attempts, "stall_s", &stall_s) < 0)
		return brumate_fail(
			err, EINVAL,
			"remote: expected endpoint, region, key_id and secret at least");
	c.endpoint = strdup(endpoint);
	c.region = strdup(region);
	c.key_id = strdup(key_id);
	c.secret = strdup(secret);
	c.token = token ? strdup(token) : NULL;
	c.ca = ca ? strdup(ca) : NULL;
	if (!c.endpoint || !c.region || !c.key_id || !c.secret || (token && !c.token) ||
	    (ca && !c.ca))
		return brumate_fail(err, ENOMEM, "%m");
	c.path_style = path_style;
	c.part_mib = part_mib;
	c.connections = connections;
	c.attempts = attempts;
	c.stall_s = stall_s;
	if (!is_right(&c))
		return brumate_fail(err, EINVAL, "remote: a value is out of its range");
	int r = check_endpoint(c.endpoint, err);
	if (r < 0)
		return r;
	*ret = take_struct(c, REMOTE_CONFIG_DEFAULT);
	return 0;
}

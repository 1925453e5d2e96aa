// SPDX-License-Identifier: MIT
/* Asking metadata services for credentials; see metadata.h. Never through a proxy, and never for long. */
#include "remote/metadata.h"
#include "remote/libcurl.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/fd.h"
#include "base/paths.h"

enum { WAIT_MS = 1000, ANSWER_BYTES_MAX = 64 << 10 };

#define CONTAINER_HOST "http://169.254.170.2"
#define MACHINE_HOST   "http://169.254.169.254"
#define ROLE_PATH      "/latest/meta-data/iam/security-credentials/"

struct page {
	char text[ANSWER_BYTES_MAX + 1];
	size_t len;
};

static size_t keep(char *data, size_t size, size_t n, void *arg)
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
static int fetch(struct page *ret, const char *method, const char *url, const char *header)
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
	libcurl.easy_setopt(curl, CURLOPT_WRITEFUNCTION, keep);
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

/* "authorization: TOKEN" for the container's service; NULL: it wants none. Owned. */
static char *container_header(void)
{
	const char *token = getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN");
	const char *file = getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
	auto_free char *text = NULL;

	if (file && *file && file_read(AT_FDCWD, file, ANSWER_BYTES_MAX, &text, NULL) == 0) {
		text[strcspn(text, "\r\n")] = '\0';
		token = text;
	}
	return token && *token ? path_format("authorization: %s", token) : NULL;
}

static int ask_container(struct page *page, const char *relative, const char *full)
{
	auto_free char *url = relative ? path_format(CONTAINER_HOST "%s", relative) : strdup(full);
	auto_free char *header = container_header();

	return url ? fetch(page, "GET", url, header) : -ENOENT;
}

static int ask_machine(struct page *page)
{
	const char *disabled = getenv("AWS_EC2_METADATA_DISABLED");
	const char *given = getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT");
	const char *host = given && *given ? given : MACHINE_HOST;

	if (disabled && !strcasecmp(disabled, "true"))
		return -ENOENT;
	auto_free char *token_url = path_format("%s/latest/api/token", host);
	int r = token_url
			? fetch(page, "PUT", token_url, "x-aws-ec2-metadata-token-ttl-seconds: 300")
			: -ENOENT;
	if (r < 0)
		return r;
	auto_free char *header = path_format("x-aws-ec2-metadata-token: %s", page->text);
	auto_free char *roles = path_format("%s" ROLE_PATH, host);
	r = header && roles ? fetch(page, "GET", roles, header) : -ENOENT;
	if (r < 0)
		return r;
	page->text[strcspn(page->text, "\r\n")] = '\0';
	auto_free char *role = path_format("%s%s", roles, page->text);
	return role ? fetch(page, "GET", role, header) : -ENOENT;
}

int metadata_credentials(struct remote_config *c, struct brumate_error *err)
{
	const char *relative = getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
	const char *full = getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI");
	auto_free struct page *page = malloc(sizeof(*page));
	bool container = (relative && *relative) || (full && *full);

	if (!page)
		return brumate_fail(err, ENOMEM, "%m");
	int r = libcurl_open(err);
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

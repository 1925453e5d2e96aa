// SPDX-License-Identifier: MIT
/* Requests to a kubelet; see kubelet.h. Its answers are untrusted: bounded in size, and checked. */
#include "edges/k8s/kubelet.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "edges/http/libcurl.h"
#include "base/paths.h"
#include "wire/wire.h"

#define ACCOUNT_DIR  "/var/run/secrets/kubernetes.io/serviceaccount"
#define KUBELET_CERT "/var/lib/kubelet/pki/kubelet.crt"
#define ARCHIVES_DIR "/var/lib/kubelet/checkpoints"

enum { PODS_BYTES_MAX = 64 << 20, PODS_TIMEOUT_S = 20, KEY_BYTES = 512 };
enum { FILE_BYTES_MAX = 1 << 20, ANSWER_BYTES_MAX = 1 << 20, REASON_BYTES = 400, ITEMS_MAX = 64 };
/* The kubelet's report of a slow runtime comes a little after the timeout. */
enum { CONNECT_MS = 10000, GRACE_MS = 5000 };
/* OpenSSL's numbers for errors of certificates. What libcurl checks itself, the name, is reported as unspecified. */
enum {
	VERIFY_OK = 0,
	VERIFY_UNSPECIFIED = 1,
	VERIFY_NOT_YET_VALID = 9,
	VERIFY_EXPIRED = 10,
	VERIFY_OTHER_HOST = 62,
	VERIFY_OTHER_ADDRESS = 64
};

void kubelet_fini(struct kubelet *k)
{
	free(k->host);
	free(k->name);
	free(k->ca);
	if (k->token)
		explicit_bzero(k->token, strlen(k->token));
	free(k->token);
	free(k->cert);
	free(k->key);
	*k = KUBELET_EMPTY;
}

/* ---- where it is ---- */

static int fail_server(const char *server, struct brumate_error *err)
{
	brumate_fail(err, EINVAL, "kubelet: \"%.300s\" is not https://HOST[:PORT]", server);
	brumate_hint(err, "as in https://node-1:%d", KUBELET_PORT);
	return -EINVAL;
}

static bool is_host(const char *host, size_t len)
{
	const char *letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-";

	if (len > 2 && host[0] == '[' && host[len - 1] == ']')
		return strspn(host + 1, "0123456789abcdefABCDEF:.") == len - 2;
	return len && strspn(host, letters) >= len;
}

/* The part of @server between "https://" and the port. */
static int split_server(struct kubelet *k, const char *server, struct brumate_error *err)
{
	static const char scheme[] = "https://";
	const char *host = server + strlen(scheme);

	if (strncmp(server, scheme, strlen(scheme)))
		return fail_server(server, err);
	size_t len = *host == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":/");
	if (len > strlen(host) || !is_host(host, len))
		return fail_server(server, err);
	const char *rest = host + len;
	k->port = KUBELET_PORT;
	if (*rest == ':') {
		char *end;
		unsigned long port =
			isdigit((unsigned char)rest[1]) ? strtoul(rest + 1, &end, 10) : 0;

		if (!port || port > UINT16_MAX)
			return fail_server(server, err);
		k->port = (int)port;
		rest = end;
	}
	if (*rest && strcmp(rest, "/"))
		return fail_server(server, err);
	k->host = strndup(host, len);
	return k->host ? 0 : brumate_fail(err, ENOMEM, "%m");
}

static const char *variable(const char *name)
{
	const char *value = getenv(name);

	return value && *value ? value : NULL;
}

/* The name of this machine, as in the certificate that its kubelet makes itself. */
static char *own_name(void)
{
	char name[256] = "";

	gethostname(name, sizeof(name) - 1);
	for (char *p = name; *p; p++)
		*p = (char)tolower((unsigned char)*p);
	return strdup(*name ? name : "localhost");
}

static int find_place(struct kubelet *k, const struct kubelet_options *o, struct brumate_error *err)
{
	const char *ip = variable("NODE_IP"), *name = o->server_name;
	bool v6 = ip && strchr(ip, ':');
	auto_free char *server = o->server ? strdup(o->server)
					   : path_format("https://%s%s%s", v6 ? "[" : "",
							 ip ? ip : "127.0.0.1", v6 ? "]" : "");
	int r = server ? split_server(k, server, err) : brumate_fail(err, ENOMEM, "%m");

	if (r < 0)
		return r;
	if (!name && !o->server)
		name = variable("NODE_NAME");
	if (name && !is_host(name, strlen(name)))
		return brumate_fail(err, EINVAL, "kubelet: \"%.300s\" cannot be the name of a host",
				    name);
	if (!name)
		k->name = o->server || ip ? strdup(k->host) : own_name();
	else
		k->name = strdup(name);
	return k->name ? 0 : brumate_fail(err, ENOMEM, "%m");
}

/* ---- whom to trust, and who asks ---- */

/* The kubelet's certificate is signed by the kubelet itself or by the cluster; accounts and nodes may have the
 * certificate of the signer. */
static int read_default_ca(struct kubelet *k, struct brumate_error *err)
{
	static const char *const paths[] = { ACCOUNT_DIR "/ca.crt", KUBELET_CERT };
	auto_free char *texts[2] = { NULL };
	int r = 0;

	for (size_t i = 0; i < 2; i++)
		r = file_read(AT_FDCWD, paths[i], FILE_BYTES_MAX, &texts[i], NULL);
	if (!texts[0] && !texts[1]) {
		brumate_fail(err, -r, "kubelet: %s: %m", KUBELET_CERT);
		brumate_hint(err, "--ca-file names the certificates to trust");
		return r;
	}
	k->ca = path_format("%s\n%s", texts[0] ? texts[0] : "", texts[1] ? texts[1] : "");
	return k->ca ? 0 : brumate_fail(err, ENOMEM, "%m");
}

static int read_ca(struct kubelet *k, const char *path, struct brumate_error *err)
{
	int r = file_read(AT_FDCWD, path, FILE_BYTES_MAX, &k->ca, NULL);

	return r < 0 ? brumate_fail(err, -r, "--ca-file %s: %m", path) : 0;
}

/* @given: the file must exist. */
static int read_token(struct kubelet *k, const char *path, bool given, struct brumate_error *err)
{
	int r = file_read(AT_FDCWD, path, FILE_BYTES_MAX, &k->token, NULL);

	if (!given && (r == -ENOENT || r == -ENOTDIR))
		return 0;
	if (r < 0)
		return brumate_fail(err, -r, "token %s: %m", path);
	k->token[strcspn(k->token, "\r\n")] = '\0';
	for (const char *p = k->token; *p; p++)
		if (!isgraph((unsigned char)*p))
			r = -EINVAL;
	return r == 0 && *k->token ? 0 : brumate_fail(err, EINVAL, "%s holds no token", path);
}

/* A certificate and its key may be in one file. */
static int take_cert(struct kubelet *k, const struct kubelet_options *o, struct brumate_error *err)
{
	const char *files[] = { o->cert, o->key ? o->key : o->cert };

	if (!o->cert)
		return o->key ? brumate_fail(err, EINVAL, "--key needs --cert") : 0;
	for (size_t i = 0; i < 2; i++)
		if (access(files[i], R_OK) < 0)
			return brumate_fail(err, errno, "%s: %m", files[i]);
	k->cert = strdup(files[0]);
	k->key = strdup(files[1]);
	return k->cert && k->key ? 0 : brumate_fail(err, ENOMEM, "%m");
}

int kubelet_init(struct kubelet *ret, const struct kubelet_options *o, struct brumate_error *err)
{
	auto_(kubelet_fini) struct kubelet k = KUBELET_EMPTY;
	const char *token = o->token_file ? o->token_file : o->cert ? NULL : ACCOUNT_DIR "/token";
	int r = find_place(&k, o, err);

	if (r == 0)
		r = o->ca_file ? read_ca(&k, o->ca_file, err) : read_default_ca(&k, err);
	if (r == 0)
		r = take_cert(&k, o, err);
	if (r == 0 && token)
		r = read_token(&k, token, o->token_file, err);
	if (r < 0)
		return r;
	*ret = k;
	k = KUBELET_EMPTY;
	return 0;
}

/* ---- a request ---- */

struct answer {
	long status;
	char *text; /* borrowed; room for @max bytes and a NUL */
	size_t len, max;
	const char
		*right; /* the permission that the request needs: "VERB on the resource RESOURCE" */
	bool is_too_large;
};

static size_t receive_some(char *data, size_t size, size_t n, void *arg)
{
	struct answer *a = arg;
	size_t len = size * n;

	if (len > a->max - a->len) {
		a->is_too_large = true;
		return 0; /* ends the transfer */
	}
	memcpy(a->text + a->len, data, len);
	a->len += len;
	a->text[a->len] = '\0';
	return len;
}

static void set_tls(CURL *curl, const struct kubelet *k)
{
	struct curl_blob ca = { .data = k->ca, .len = strlen(k->ca), .flags = CURL_BLOB_NOCOPY };

	libcurl.easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "https");
	libcurl.easy_setopt(curl, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
	/* Only these: authorities of the system are not trusted for a node. */
	libcurl.easy_setopt(curl, CURLOPT_CAPATH, NULL);
	libcurl.easy_setopt(curl, CURLOPT_CAINFO_BLOB, &ca);
	if (k->cert) {
		libcurl.easy_setopt(curl, CURLOPT_SSLCERT, k->cert);
		libcurl.easy_setopt(curl, CURLOPT_SSLKEY, k->key);
	}
}

static void set_request(CURL *curl, struct answer *a, uint64_t timeout_s)
{
	libcurl.easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	/* The node asks itself: no proxy. */
	libcurl.easy_setopt(curl, CURLOPT_NOPROXY, "*");
	libcurl.easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
	libcurl.easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
	libcurl.easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)timeout_s * 1000 + GRACE_MS);
	libcurl.easy_setopt(curl, CURLOPT_USERAGENT, "brumate/" BRUMATE_VERSION);
	libcurl.easy_setopt(curl, CURLOPT_WRITEFUNCTION, receive_some);
	libcurl.easy_setopt(curl, CURLOPT_WRITEDATA, a);
}

/* Foreign text, as far as it can be printed. */
static void clean_reason(char ret[static REASON_BYTES], const char *text)
{
	snprintf(ret, REASON_BYTES, "%s", text);
	for (char *p = ret; *p; p++)
		if (!isprint((unsigned char)*p))
			*p = isspace((unsigned char)*p) ? ' ' : '?';
	for (size_t len = strlen(ret); len && ret[len - 1] == ' '; len--)
		ret[len - 1] = '\0';
}

/* ---- what goes wrong ---- */

static int fail_certificate(const struct kubelet *k, CURL *curl, const char *why,
			    struct brumate_error *err)
{
	long result = VERIFY_OK;

	libcurl.easy_getinfo(curl, CURLINFO_SSL_VERIFYRESULT, &result);
	if (result <= VERIFY_UNSPECIFIED || result == VERIFY_OTHER_HOST ||
	    result == VERIFY_OTHER_ADDRESS) {
		brumate_fail(err, EKEYREJECTED, "kubelet at %s:%d: its certificate is not for %s",
			     k->host, k->port, k->name);
		brumate_hint(err,
			     "--server-name says which name to expect, usually that of the node");
	} else if (result == VERIFY_EXPIRED || result == VERIFY_NOT_YET_VALID) {
		brumate_fail(err, EKEYREJECTED, "kubelet at %s:%d: its certificate %s", k->host,
			     k->port,
			     result == VERIFY_EXPIRED ? "has expired" : "is not valid yet");
		brumate_hint(err, "have the kubelet renew it, and compare the clocks");
	} else {
		brumate_fail(err, EKEYREJECTED,
			     "kubelet at %s:%d: its certificate is not trusted: %s", k->host,
			     k->port, why);
		brumate_hint(
			err,
			"--ca-file names who has signed it: the cluster's ca.crt, or " KUBELET_CERT
			" of the node");
	}
	return -EKEYREJECTED;
}

static int fail_late(const struct kubelet *k, uint64_t timeout_s, struct brumate_error *err)
{
	brumate_fail(err, ETIMEDOUT, "kubelet at %s:%d: no answer within %" PRIu64 " s", k->host,
		     k->port, timeout_s + GRACE_MS / 1000);
	brumate_hint(err,
		     "--timeout allows it more time; an archive may still appear in " ARCHIVES_DIR);
	return -ETIMEDOUT;
}

static int fail_connect(const struct kubelet *k, const char *why, struct brumate_error *err)
{
	brumate_fail(err, ECONNREFUSED, "kubelet at %s:%d: no connection: %s", k->host, k->port,
		     why);
	brumate_hint(err, "is a kubelet running there? --server names another address");
	return -ECONNREFUSED;
}

static int fail_transfer(const struct kubelet *k, CURL *curl, CURLcode code, const char *text,
			 uint64_t timeout_s, struct brumate_error *err)
{
	curl_off_t connected_us = 0;
	char why[REASON_BYTES];

	clean_reason(why, *text ? text : libcurl.easy_strerror(code));
	libcurl.easy_getinfo(curl, CURLINFO_APPCONNECT_TIME_T, &connected_us);
	switch (code) {
	case CURLE_PEER_FAILED_VERIFICATION:
		return fail_certificate(k, curl, why, err);
	case CURLE_SSL_CACERT_BADFILE:
		return brumate_fail(err, EINVAL, "kubelet: no usable CA certificate: %s", why);
	case CURLE_SSL_CERTPROBLEM:
		return brumate_fail(err, EKEYREJECTED, "--cert %s: %s", k->cert, why);
	case CURLE_OPERATION_TIMEDOUT:
		return connected_us ? fail_late(k, timeout_s, err) : fail_connect(k, why, err);
	case CURLE_COULDNT_RESOLVE_HOST:
	case CURLE_COULDNT_CONNECT:
		return fail_connect(k, why, err);
	default:
		brumate_fail(err, EREMOTEIO, "kubelet at %s:%d: the connection broke: %s", k->host,
			     k->port, why);
		brumate_hint(err, "an archive may be in " ARCHIVES_DIR);
		return -EREMOTEIO;
	}
}

static int fail_status(const struct kubelet *k, const struct answer *a, struct brumate_error *err)
{
	bool no_page = strstr(a->text, "page not found");
	char why[REASON_BYTES];

	clean_reason(why, a->text);
	switch (a->status) {
	case 401:
		brumate_fail(err, EACCES, "kubelet at %s:%d: it does not know who is asking (401)",
			     k->host, k->port);
		brumate_hint(
			err,
			"give it a token (--token-file) or a client certificate (--cert, --key)");
		return -EACCES;
	case 403:
		brumate_fail(err, EACCES, "kubelet at %s:%d: not allowed (403): %s", k->host,
			     k->port, why);
		brumate_hint(err, "allow this account, by a ClusterRole, the verb %s", a->right);
		return -EACCES;
	case 404:
		brumate_fail(err, ENOENT, "kubelet at %s:%d: %s (404): %s", k->host, k->port,
			     no_page ? "checkpoints are not enabled" : "it has no such container",
			     why);
		brumate_hint(err,
			     no_page ? "turn its feature gate ContainerCheckpoint on"
				     : "`kubectl get pods -A -o wide` tells the pods of a node");
		return -ENOENT;
	case 500:
		brumate_fail(err, EREMOTEIO, "kubelet at %s:%d: the runtime failed (500): %s",
			     k->host, k->port, why);
		brumate_hint(err,
			     "dump.log of the runtime says more; checkpoints take CRI-O 1.25 or "
			     "containerd 2.0, and CRIU");
		return -EREMOTEIO;
	default:
		return brumate_fail(err, EPROTO, "kubelet at %s:%d: it answered %ld: %s", k->host,
				    k->port, a->status, why);
	}
}

/* ---- the answer ---- */

/* Printed text must be a plain path, without control characters for a terminal. */
static bool is_path(const char *text)
{
	if (!text || *text != '/' || strlen(text) >= PATH_MAX)
		return false;
	for (const char *p = text; *p; p++)
		if (iscntrl((unsigned char)*p) ||
		    ((unsigned char)*p == 0xc2 &&
		     (unsigned char)p[1] < 0xa0)) /* U+0080 to U+009F */
			return false;
	return true;
}

int kubelet_answer_decode(json_t **ret, const char *text, size_t len, struct brumate_error *err)
{
	auto_json json_t *object = json_loadb(text, len, 0, NULL);
	json_t *items = json_object_get(object, "items"), *item;
	size_t i;

	if (!object)
		return brumate_fail(err, EPROTO, "the answer is not JSON");
	if (!json_array_size(items) || json_array_size(items) > ITEMS_MAX)
		return brumate_fail(err, EPROTO, "the answer names no archive");
	json_array_foreach (items, i, item)
		if (!is_path(json_string_value(item)))
			return brumate_fail(err, EPROTO,
					    "the answer names something that is not a path");
	*ret = json_incref(items);
	return 0;
}

/* ---- a checkpoint ---- */

static int perform(const struct kubelet *k, CURL *curl, struct answer *a, uint64_t timeout_s,
		   struct brumate_error *err)
{
	char why[CURL_ERROR_SIZE] = "";

	set_tls(curl, k);
	set_request(curl, a, timeout_s);
	libcurl.easy_setopt(curl, CURLOPT_ERRORBUFFER, why);
	CURLcode code = libcurl.easy_perform(curl);
	libcurl.easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &a->status);
	libcurl.easy_setopt(curl, CURLOPT_ERRORBUFFER, NULL);
	if (a->is_too_large)
		return brumate_fail(err, EPROTO, "kubelet at %s:%d: the answer is too large",
				    k->host, k->port);
	if (code != CURLE_OK)
		return fail_transfer(k, curl, code, why, timeout_s, err);
	return a->status == 200 ? 0 : fail_status(k, a, err);
}

/* Connects to the host, regardless of the name in its certificate. */
static int request(const struct kubelet *k, const char *path, bool posts, struct answer *a,
		   uint64_t timeout_s, struct brumate_error *err)
{
	auto_free char *url = path_format("https://%s:%d%s", k->name, k->port, path);
	auto_free char *place = path_format("::%s:%d", k->host, k->port);
	auto_free char *bearer = path_format("Authorization: Bearer %s", k->token ? k->token : "");
	CURL *curl = libcurl.easy_init();
	struct curl_slist *places = place ? libcurl.slist_append(NULL, place) : NULL;
	struct curl_slist *lines = bearer && k->token ? libcurl.slist_append(NULL, bearer) : NULL;
	int r = -ENOMEM;

	if (!curl || !url || !places || (k->token && !lines)) {
		brumate_fail(err, ENOMEM, "%m");
	} else {
		libcurl.easy_setopt(curl, CURLOPT_URL, url);
		libcurl.easy_setopt(curl, CURLOPT_CONNECT_TO, places);
		libcurl.easy_setopt(curl, CURLOPT_HTTPHEADER, lines);
		if (posts) {
			libcurl.easy_setopt(curl, CURLOPT_POST, 1L);
			libcurl.easy_setopt(curl, CURLOPT_POSTFIELDS, "");
			libcurl.easy_setopt(curl, CURLOPT_POSTFIELDSIZE, 0L);
		}
		r = perform(k, curl, a, timeout_s, err);
	}
	if (curl)
		libcurl.easy_cleanup(curl);
	libcurl.slist_free_all(lines);
	libcurl.slist_free_all(places);
	if (bearer)
		explicit_bzero(bearer, strlen(bearer));
	return r;
}

int kubelet_checkpoint(const struct kubelet *k, const struct service_pod_name *name,
		       uint64_t timeout_s, json_t **ret, struct brumate_error *err)
{
	int r = libcurl_open("requests to a kubelet", err);
	auto_free char *text = calloc(1, ANSWER_BYTES_MAX + 1);
	auto_free char *path = path_format("/checkpoint/%s/%s/%s?timeout=%" PRIu64, name->namespace,
					   name->pod, name->container, timeout_s);
	struct answer a = { .text = text,
			    .max = ANSWER_BYTES_MAX,
			    .right = "create on the resource nodes/checkpoint" };

	if (r == 0 && (!text || !path))
		r = brumate_fail(err, ENOMEM, "%m");
	if (r == 0)
		r = request(k, path, true, &a, timeout_s, err);
	if (r < 0)
		return r;
	r = kubelet_answer_decode(ret, a.text, a.len, err);
	return r < 0 ? brumate_wrap(err, r, "kubelet at %s:%d", k->host, k->port) : 0;
}

/* ---- pods ---- */

/* Identifies a state of a pod. */
static void fill_key(char ret[static KEY_BYTES], json_t *pod, const char *wish)
{
	json_t *list = json_object_get(json_object_get(pod, "status"), "containerStatuses"), *one;
	json_int_t restarts = 0;
	size_t i;

	json_array_foreach (list, i, one)
		restarts += json_integer_value(json_object_get(one, "restartCount"));
	snprintf(ret, KEY_BYTES, "%.300s %.100s %" JSON_INTEGER_FORMAT,
		 text_of(json_object_get(pod, "metadata"), "uid"), wish, restarts);
}

/* Adds a pod that has the annotation. */
static int add_pod(json_t *list, json_t *pod, struct brumate_error *err)
{
	json_t *metadata = json_object_get(pod, "metadata");
	const char *wish = json_string_value(
		json_object_get(json_object_get(metadata, "annotations"), KUBELET_ANNOTATION));
	const struct service_pod_name name = { .namespace = text_of(metadata, "namespace"),
					       .pod = text_of(metadata, "name") };
	char key[KEY_BYTES], shown[REASON_BYTES];

	if (!wish || service_check_pod_name(&name, NULL) < 0)
		return 0;
	bool suspended = !strcmp(wish, "suspended");
	bool is_known = suspended || !strcmp(wish, "running");
	fill_key(key, pod, wish);
	clean_reason(shown, wish);
	/* An invalid annotation of one pod must not keep others from being handled. */
	json_t *one =
		json_pack("{s:s,s:s,s:b,s:s,s:s?}", "namespace", name.namespace, "pod", name.pod,
			  "suspended", suspended, "key", key, "wrong", is_known ? NULL : shown);
	return json_array_append_new(list, one) < 0 ? brumate_fail(err, ENOMEM, "%m") : 0;
}

int kubelet_pods_decode(json_t **ret, const char *text, size_t len, struct brumate_error *err)
{
	auto_json json_t *object = json_loadb(text, len, 0, NULL), *list = json_array();
	json_t *items = json_object_get(object, "items"), *item;
	size_t i;

	if (!json_is_array(items) && !json_is_null(items))
		return brumate_fail(err, EPROTO, "the answer is no list of pods");
	if (!list)
		return brumate_fail(err, ENOMEM, "%m");
	json_array_foreach (items, i, item) {
		int r = add_pod(list, item, err);

		if (r < 0)
			return r;
	}
	*ret = json_incref(list);
	return 0;
}

int kubelet_pods(const struct kubelet *k, json_t **ret, struct brumate_error *err)
{
	int r = libcurl_open("requests to a kubelet", err);
	auto_free char *text = calloc(1, PODS_BYTES_MAX + 1);
	struct answer a = { .text = text,
			    .max = PODS_BYTES_MAX,
			    .right = "get on the resource nodes/pods" };

	if (r == 0 && !text)
		r = brumate_fail(err, ENOMEM, "%m");
	if (r == 0)
		r = request(k, "/pods", false, &a, PODS_TIMEOUT_S, err);
	if (r < 0)
		return r;
	r = kubelet_pods_decode(ret, a.text, a.len, err);
	return r < 0 ? brumate_wrap(err, r, "kubelet at %s:%d", k->host, k->port) : 0;
}

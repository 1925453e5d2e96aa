// SPDX-License-Identifier: MIT
/* Where a kubelet is, whom it has to be, who asks it, and what it may answer. */
#include "edges/k8s/kubelet.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/paths.h"
#include "check.h"
#include "wire/wire.h"

static char dir[] = "/tmp/brumate-test-kubelet-XXXXXX";

static char *file(const char *name, const char *text)
{
	char *path = path_format("%s/%s", dir, name);
	FILE *f = fopen(path, "w");

	CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0);
	return path;
}

static void check_place(const char *server, const char *name, const char *host, int port,
			const char *want_name)
{
	auto_(kubelet_fini) struct kubelet k = KUBELET_EMPTY;
	auto_free char *ca = file("ca", "certificate"), *token = file("token", "secret\n");
	struct kubelet_options o = {
		.server = server, .server_name = name, .ca_file = ca, .token_file = token
	};
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int r = kubelet_init(&k, &o, &err);

	if (!host) {
		CHECK(r == -EINVAL && err.text[0] && !k.host);
		return;
	}
	CHECK(r == 0 && k.port == port && !k.cert);
	CHECK_STR(k.host, host);
	CHECK_STR(k.name, want_name);
	CHECK_STR(k.token, "secret");
	CHECK_STR(k.ca, "certificate");
}

static void test_places(void)
{
	static const char *const wrong[] = {
		"",
		"node",
		"http://node",
		"https://",
		"https://user@node",
		"https://node:0",
		"https://node:65536",
		"https://node:1x",
		"https://node:+1",
		"https://node/x",
		"https://node?x",
		"https://[::1",
		"https://[]",
		"https://no de",
		"https://node:",
		"https://node\r\nX: y",
		"https://[::1]x:1",
		"https://[::1%25eth0]",
	};
	char own[256] = "";

	unsetenv("NODE_IP");
	unsetenv("NODE_NAME");
	check_place("https://node-1", NULL, "node-1", 10250, "node-1");
	check_place("https://10.0.0.1:1/", NULL, "10.0.0.1", 1, "10.0.0.1");
	check_place("https://[fd00::1]:65535", "node-1", "[fd00::1]", 65535, "node-1");
	gethostname(own, sizeof(own) - 1);
	for (char *p = own; *p; p++)
		*p |= *p >= 'A' && *p <= 'Z' ? 0x20 : 0;
	check_place(NULL, NULL, "127.0.0.1", 10250, own);
	setenv("NODE_IP", "10.0.0.2", 1);
	check_place(NULL, NULL, "10.0.0.2", 10250, "10.0.0.2");
	setenv("NODE_NAME", "node-2", 1);
	check_place(NULL, NULL, "10.0.0.2", 10250, "node-2");
	check_place(NULL, "node-3", "10.0.0.2", 10250, "node-3");
	setenv("NODE_IP", "fd00::2", 1);
	check_place(NULL, NULL, "[fd00::2]", 10250, "node-2");
	check_place("https://node-4", NULL, "node-4", 10250, "node-4");
	setenv("NODE_IP", "10.0.0.2/x", 1);
	check_place(NULL, NULL, NULL, 0, NULL);
	setenv("NODE_IP", "", 1);
	check_place(NULL, NULL, "127.0.0.1", 10250, "node-2");
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		check_place(wrong[i], NULL, NULL, 0, NULL);
	check_place("https://node", "a/b", NULL, 0, NULL);
}

static int init_with(const char *ca, const char *token, const char *cert, const char *key)
{
	auto_(kubelet_fini) struct kubelet k = KUBELET_EMPTY;
	struct kubelet_options o = { .ca_file = ca, .token_file = token, .cert = cert, .key = key };
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int r = kubelet_init(&k, &o, &err);

	CHECK(r == 0 || err.text[0]);
	CHECK(r != 0 || !cert || (!strcmp(k.cert, cert) && !strcmp(k.key, key ? key : cert)));
	return r;
}

static void test_files(void)
{
	auto_free char *ca = file("ca", "certificate"), *token = file("token", "secret");
	auto_free char *empty = file("empty", "\n"), *odd = file("odd", "a b");
	auto_free char *none = path_format("%s/none", dir);

	CHECK(init_with(ca, token, NULL, NULL) == 0);
	CHECK(init_with(ca, NULL, ca, NULL) == 0);
	CHECK(init_with(ca, NULL, ca, token) == 0);
	CHECK(init_with(none, token, NULL, NULL) == -ENOENT);
	CHECK(init_with(ca, none, NULL, NULL) == -ENOENT);
	CHECK(init_with(ca, empty, NULL, NULL) == -EINVAL);
	CHECK(init_with(ca, odd, NULL, NULL) == -EINVAL);
	CHECK(init_with(ca, token, none, NULL) == -ENOENT);
	CHECK(init_with(ca, token, ca, none) == -ENOENT);
	CHECK(init_with(ca, token, NULL, ca) == -EINVAL);
}

static size_t decoded(const char *text)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	auto_json json_t *items = NULL;
	int r = kubelet_answer_decode(&items, text, strlen(text), &err);

	CHECK(r == 0 ? json_array_size(items) > 0 : r == -EPROTO && err.text[0] && !items);
	return json_array_size(items);
}

static void test_answers(void)
{
	CHECK(decoded("{\"items\":[\"/a/b.tar\"]}") == 1);
	CHECK(decoded("{\"items\":[\"/a\",\"/\\u00e9\"],\"more\":1}") == 2);
	CHECK(!decoded("") && !decoded("{") && !decoded("[]") && !decoded("null") &&
	      !decoded("{}"));
	CHECK(!decoded("{\"items\":[]}") && !decoded("{\"items\":\"/a\"}"));
	CHECK(!decoded("{\"items\":[1]}") && !decoded("{\"items\":[\"/a\",null]}"));
	CHECK(!decoded("{\"items\":[\"a\"]}") && !decoded("{\"items\":[\"\"]}"));
	CHECK(!decoded("{\"items\":[\"/a\\u001b[2J\"]}") && !decoded("{\"items\":[\"/a\\n\"]}"));
	CHECK(!decoded("{\"items\":[\"/a\\u009b2J\"]}") && !decoded("{\"items\":[\"/a\\u0000\"]}"));
	CHECK(!decoded("{\"items\":[\"/a\\u007f\"]}"));
}

static int checked(const char *namespace, const char *pod, const char *container)
{
	return service_check_pod_name(&(struct service_pod_name){ namespace, pod, container },
				      NULL);
}

static void test_names(void)
{
	CHECK(checked("default", "a", NULL) == 0 && checked("x-1", "a.b-c.d", "main") == 0);
	CHECK(checked("a.b", "a", NULL) < 0 && checked("a", "a", "a.b") < 0);
	CHECK(checked("", "a", NULL) < 0 && checked("a", "", NULL) < 0 &&
	      checked("a", "a", "") < 0);
	CHECK(checked("a", "a/b", NULL) < 0 && checked("a", "..", NULL) < 0);
	CHECK(checked("a", "a.-b", NULL) < 0 && checked("a", "a?b", NULL) < 0);
	CHECK(checked("a", "a%2fb", NULL) < 0 && checked("A", "a", NULL) < 0);
}

int main(void)
{
	CHECK(mkdtemp(dir));
	test_places();
	test_files();
	test_answers();
	test_names();
	for (const char *const *name = (const char *const[]){ "ca", "token", "empty", "odd", NULL };
	     *name; name++) {
		auto_free char *path = path_format("%s/%s", dir, *name);

		unlink(path);
	}
	return rmdir(dir);
}

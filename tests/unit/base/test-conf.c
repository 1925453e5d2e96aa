// SPDX-License-Identifier: MIT
/* The configuration: every key, every kind of wrong line, drop-ins in order. */
#include "scratch.h"

#include "base/conf.h"

#include <errno.h>
#include <sys/stat.h>

static int apply(struct brumate_conf *c, const char *text, struct brumate_error *err)
{
	*err = BRUMATE_ERROR_NONE;
	return conf_apply(c, "test.conf", text, strlen(text), err);
}

static void test_all_keys(void)
{
	auto_(conf_fini) struct brumate_conf c = BRUMATE_CONF_DEFAULT;
	struct brumate_error err;

	CHECK(apply(&c, "", &err) == 0);
	CHECK(!c.store_dir && !c.criu_path && c.lock_timeout_ms == 10000 && c.timeout_ms == 0);
	CHECK(c.idle_timeout_ms == 60000 && c.gpu == CONF_GPU_AUTO && !c.tcp_close);
	CHECK(c.log_bytes == 1ull << 30);

	CHECK(apply(&c,
		    "# comment\n; another\n\n  [Store]  \r\n Directory = /data/check points "
		    "\r\nCompress=zstd\n"
		    "[Container]\nForce=yes\nMemory=criu\n"
		    "[Operation]\nLockTimeout=500ms\nTimeout=2h\nTcpClose=yes\n"
		    "[Broker]\nIdleTimeout=0\n[Run]\nGpu=simulated\n[Criu]\nPath=/opt/a=b/criu",
		    &err) == 0);
	CHECK_STR(c.store_dir, "/data/check points");
	CHECK(c.compress == CONF_COMPRESS_ZSTD && c.container_memory == CONF_MEMORY_CRIU);
	CHECK(c.lock_timeout_ms == 500 && c.timeout_ms == 7200000 && c.tcp_close &&
	      c.container_force);
	CHECK(c.idle_timeout_ms == 0 && c.gpu == CONF_GPU_SIMULATED);
	CHECK_STR(c.criu_path, "/opt/a=b/criu");
	CHECK(c.n_warnings == 0);

	/* What is later wins; an empty value is the default. */
	CHECK(apply(&c,
		    "[Store]\nDirectory=\nCompress=\n[Run]\nGpu=\n[Broker]\nIdleTimeout=\n"
		    "[Operation]\nTcpClose=\nTimeout=7\nTimeout=8\n[Container]\nMemory=",
		    &err) == 0);
	CHECK(c.compress == CONF_COMPRESS_AUTO && c.container_memory == CONF_MEMORY_AUTO);
	CHECK(!c.store_dir && c.gpu == CONF_GPU_AUTO && c.idle_timeout_ms == 60000 && !c.tcp_close);
	CHECK(c.timeout_ms == 8000 && c.lock_timeout_ms == 500);
}

static void test_members(void)
{
	auto_(conf_fini) struct brumate_conf c = BRUMATE_CONF_DEFAULT;
	struct brumate_error err;

	CHECK(apply(&c,
		    "[Serve]\nIdleAfter=1m\nMemory=8G\n[Serve a b]\nPriority=-3\nPin=yes\n"
		    "[Serve c]\nIdleAfter=9s\nMinResident=0\n[Serve a b]\nPin=no\nMemory=1\n",
		    &err) == 0);
	CHECK(c.serve_memory_bytes == 8ull << 30);
	CHECK(c.serve_idle_after_ms == 60000 && c.n_members == 2 && c.n_warnings == 1);
	struct conf_member m = conf_member_of(&c, "a b");
	CHECK(m.priority_given && m.priority == -3 && m.pin == CONF_PIN_NO);
	CHECK(m.idle_after_ms == CONF_UNSET && m.min_resident_ms == CONF_UNSET);
	m = conf_member_of(&c, "c");
	CHECK(!m.priority_given && m.idle_after_ms == 9000 && m.min_resident_ms == 0);
	CHECK(apply(&c, "[Serve a b]\nPriority=\nPin=\n[Serve c]\nIdleAfter=", &err) == 0);
	CHECK(!conf_member_of(&c, "a b").priority_given &&
	      conf_member_of(&c, "a b").pin == CONF_PIN_UNSET);
	CHECK(conf_member_of(&c, "c").idle_after_ms == CONF_UNSET);
	CHECK(conf_member_of(&c, "other").pin == CONF_PIN_UNSET);
	CHECK(apply(&c, "[Serve c]\nPriority=1001", &err) == -EINVAL);
	CHECK(apply(&c, "[Serve c]\nPin=maybe", &err) == -EINVAL);
}

static void test_unknown(void)
{
	auto_(conf_fini) struct brumate_conf c = BRUMATE_CONF_DEFAULT;
	struct brumate_error err;

	CHECK(apply(&c, "[Store]\nDirectroy=/x\n[Later]\nDirectory=/y\n[store]\nDirectory=\n",
		    &err) == 0);
	CHECK(c.n_warnings == 3 && !c.store_dir);
	CHECK_STR(c.warnings[0], "test.conf:2: [Store] Directroy= is not known and ignored");
	CHECK_STR(c.warnings[1], "test.conf:4: [Later] Directory= is not known and ignored");
	for (int i = 0; i < 200; i++)
		CHECK(apply(&c, "[A]\nb=c", &err) == 0);
	CHECK(c.n_warnings == 100);
}

static void test_wrong(void)
{
	static const struct {
		const char *text, *said;
	} rows[] = {
		{ "[Store]\nDirectory=here",
		  "test.conf:2: [Store] Directory=here: expected an absolute path" },
		{ "\n\n[Run]\n\nGpu=none",
		  "test.conf:5: [Run] Gpu=none: expected auto or simulated" },
		{ "[Store]\nCompress=gzip", "Compress=gzip: expected auto, none, lz4 or zstd" },
		{ "[Container]\nMemory=us", "Memory=us: expected auto, brumate or criu" },
		{ "[Operation]\nTcpClose=maybe",
		  "test.conf:2: [Operation] TcpClose=maybe: expected yes or no" },
		{ "[Operation]\nTimeout=-1", "expected a duration as 500ms, 10s, 5m or 1h" },
		{ "[Operation]\nTimeout=1d", "[Operation] Timeout=1d: expected a duration" },
		{ "Timeout=1", "test.conf:1: \"Timeout=1\": expected a [Section] before it" },
		{ "[Operation", "expected [Section]" },
		{ "[]", "expected [Section]" },
		{ "[a]b", "expected [Section]" },
		{ "[a[b]", "expected [Section]" },
		{ "[a]]", "expected [Section]" },
		{ "[a]\nTimeout", "test.conf:2: \"Timeout\": expected Key=Value" },
		{ "[a]\n=x", "expected Key=Value" },
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		auto_(conf_fini) struct brumate_conf c = BRUMATE_CONF_DEFAULT;
		struct brumate_error err;
		int r = apply(&c, rows[i].text, &err);

		if (r != -EINVAL || !strstr(err.text, rows[i].said))
			fprintf(stderr, "%s: %d %s\n", rows[i].text, r, err.text);
		CHECK(r == -EINVAL && strstr(err.text, rows[i].said));
		CHECK(brumate_exit_code(&err) == EXIT_USAGE);
	}
	struct brumate_conf c = BRUMATE_CONF_DEFAULT;
	CHECK(conf_apply(&c, "n", "[a]\0b", 5, NULL) == -EINVAL);
}

static void test_values(void)
{
	uint64_t n = 77;
	bool b = false;

	CHECK(conf_duration_ms(&n, "90") == 0 && n == 90000);
	CHECK(conf_duration_ms(&n, "5m") == 0 && n == 300000);
	CHECK(conf_duration_ms(&n, "007ms") == 0 && n == 7);
	static const char *const bad[] = { "",
					   "s",
					   "1 s",
					   "1S",
					   "1.5s",
					   "-1s",
					   "+1s",
					   "0x1s",
					   "1sm",
					   "18446744073709551616",
					   "18446744073709551615s",
					   "99999999999h" };
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		CHECK(conf_duration_ms(&n, bad[i]) == -EINVAL && n == 7);

	CHECK(conf_size_bytes(&n, "0") == 0 && n == 0);
	CHECK(conf_size_bytes(&n, "3K") == 0 && n == 3072);
	CHECK(conf_size_bytes(&n, "2M") == 0 && n == 2097152);
	CHECK(conf_size_bytes(&n, "4G") == 0 && n == 4294967296);
	CHECK(conf_size_bytes(&n, "16777215T") == 0 && n == 16777215ull << 40);
	CHECK(conf_size_bytes(&n, "16777216T") == -EINVAL && conf_size_bytes(&n, "1k") == -EINVAL);
	CHECK(conf_size_bytes(&n, "18446744073709551615") == 0 && n == UINT64_MAX);
	CHECK(conf_size_bytes(&n, "18446744073709551616") == -EINVAL && n == UINT64_MAX);

	static const char *const yes[] = { "yes", "true", "on", "1" }, *const no[] = { "no",
										       "false",
										       "off", "0" };
	for (int i = 0; i < 4; i++) {
		CHECK(conf_bool(&b, yes[i]) == 0 && b);
		CHECK(conf_bool(&b, no[i]) == 0 && !b);
	}
	CHECK(conf_bool(&b, "Yes") == -EINVAL && conf_bool(&b, "") == -EINVAL);
}

static void test_load(int top)
{
	auto_(conf_fini) struct brumate_conf c = BRUMATE_CONF_DEFAULT;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	char path[PATH_MAX + 16];

	snprintf(path, sizeof(path), "%s/b.conf", scratch);
	setenv("BRUMATE_CONFIG", path, 1);
	CHECK(conf_load(&c, &err) == 0 && c.lock_timeout_ms == 10000);

	put_text(top, "b.conf",
		 "[Operation]\nTimeout=1s\nLockTimeout=1s\n[Broker]\nIdleTimeout=1s\n");
	CHECK(mkdirat(top, "b.conf.d", 0755) == 0);
	put_text(top, "b.conf.d/20-b.conf", "[Operation]\nTimeout=3s\nWhat=1\n");
	put_text(top, "b.conf.d/10-a.conf", "[Operation]\nTimeout=2s\nLockTimeout=2s\n");
	put_text(top, "b.conf.d/30-c.conf.bak", "[Operation]\nTimeout=4s\n");
	put_text(top, "b.conf.d/.40-d.conf", "[Operation]\nTimeout=5s\n");
	CHECK(conf_load(&c, &err) == 0);
	CHECK(c.timeout_ms == 3000 && c.lock_timeout_ms == 2000 && c.idle_timeout_ms == 1000);
	CHECK(c.n_warnings == 1 && strstr(c.warnings[0], "b.conf.d/20-b.conf:3: "));

	put_text(top, "b.conf.d/20-b.conf", "[Operation]\nTimeout=x\n");
	conf_fini(&c);
	c.timeout_ms = 99;
	CHECK(conf_load(&c, &err) == -EINVAL && c.timeout_ms == 99);
	CHECK(strstr(err.text, "b.conf.d/20-b.conf:2: [Operation] Timeout=x"));
	CHECK(unlinkat(top, "b.conf.d/20-b.conf", 0) == 0);

	CHECK(fchmodat(top, "b.conf", 0666, 0) == 0);
	CHECK(conf_load(&c, &err) == -EACCES && strstr(err.text, "everyone may write"));
	CHECK(unlinkat(top, "b.conf", 0) == 0 && mkdirat(top, "b.conf", 0700) == 0);
	CHECK(conf_load(&c, &err) == -EINVAL && strstr(err.text, "expected a regular file"));
}

int main(void)
{
	int top = new_scratch();

	test_all_keys();
	test_members();
	test_unknown();
	test_wrong();
	test_values();
	test_load(top);
	close(top);
	remove_scratch();
	return 0;
}

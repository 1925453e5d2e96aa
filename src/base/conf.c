// SPDX-License-Identifier: MIT
/* The keys of the configuration file, as one table, and the files in which they are set. */
#include "base/array.h"
#include "base/clock.h"
#include "base/conf.h"
#include "base/fd.h"
#include "base/paths.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* One "Key=Value" line. All borrowed. */
struct conf_item {
	const char *name; /* of the file */
	unsigned line;	  /* from 1 */
	const char *section, *key, *value;
};

/* ---- lines and values; pure ---- */

static const char space[] = " \t\r";

static char *trim_space(char *text)
{
	text += strspn(text, space);

	char *end = text + strlen(text);
	while (end > text && strchr(space, end[-1]))
		end--;
	*end = '\0';
	return text;
}

static int parse_section(const struct conf_item *at, char *line, const char **ret_section,
			 struct brumate_error *err)
{
	size_t len = strlen(line);

	if (len < 3 || line[len - 1] != ']' || strcspn(line + 1, "[]") != len - 2)
		return brumate_fail(err, EINVAL, "%s:%u: \"%s\": expected [Section]", at->name,
				    at->line, line);
	line[len - 1] = '\0';
	*ret_section = line + 1;
	return 0;
}

static int parse_assignment(struct conf_item *item, char *line, struct brumate_error *err)
{
	char *equals = strchr(line, '=');

	if (!equals || equals == line)
		return brumate_fail(err, EINVAL, "%s:%u: \"%s\": expected Key=Value or [Section]",
				    item->name, item->line, line);
	if (!item->section)
		return brumate_fail(err, EINVAL, "%s:%u: \"%s\": expected a [Section] before it",
				    item->name, item->line, line);
	*equals = '\0';
	item->key = trim_space(line);
	item->value = trim_space(equals + 1);
	return 0;
}

int conf_word(int *ret, const char *value, const char *const *words)
{
	for (int i = 0; words[i]; i++) {
		if (!strcmp(value, words[i])) {
			*ret = i;
			return 0;
		}
	}
	return -EINVAL;
}

int conf_bool(bool *ret, const char *value)
{
	static const char *const words[] = { "no", "yes", "false", "true", "off",
					     "on", "0",	  "1",	   NULL };
	int i;
	int r = conf_word(&i, value, words);

	if (r == 0)
		*ret = i % 2;
	return r;
}

struct unit {
	const char *suffix;
	uint64_t factor;
};

/* Digits followed by one of @units, which end with a NULL suffix. */
static int parse_quantity(uint64_t *ret, const char *value, const struct unit *units)
{
	uint64_t n = 0;
	size_t digits = strspn(value, "0123456789");

	if (digits == 0)
		return -EINVAL;
	for (size_t i = 0; i < digits; i++)
		if (__builtin_mul_overflow(n, 10, &n) ||
		    __builtin_add_overflow(n, (uint64_t)(value[i] - '0'), &n))
			return -EINVAL;
	for (; units->suffix; units++) {
		if (strcmp(value + digits, units->suffix))
			continue;
		return __builtin_mul_overflow(n, units->factor, ret) ? -EINVAL : 0;
	}
	return -EINVAL;
}

int conf_duration_ms(uint64_t *ret, const char *value)
{
	static const struct unit units[] = {
		{ "", 1000 },	{ "ms", 1 },	  { "s", 1000 },
		{ "m", 60000 }, { "h", 3600000 }, { NULL, 0 },
	};
	uint64_t ms;

	/* Deadlines are nanoseconds since boot: a tenth of their range leaves room for that. */
	if (parse_quantity(&ms, value, units) < 0 || ms > UINT64_MAX / NS_PER_MS / 10)
		return -EINVAL;
	*ret = ms;
	return 0;
}

int conf_size_bytes(uint64_t *ret, const char *value)
{
	static const struct unit units[] = {
		{ "", 1 },	     { "K", 1ull << 10 }, { "M", 1ull << 20 },
		{ "G", 1ull << 30 }, { "T", 1ull << 40 }, { NULL, 0 },
	};
	uint64_t bytes;

	if (parse_quantity(&bytes, value, units) < 0)
		return -EINVAL;
	*ret = bytes;
	return 0;
}

/* ---- the configuration ---- */

enum { FILE_BYTES_MAX = 1 << 20, WARNINGS_MAX = 100 };

enum kind {
	KIND_PATH,
	KIND_DURATION,
	KIND_BYTES,
	KIND_BOOL,
	KIND_GPU,
	KIND_DATA_PATH,
	KIND_COMPRESS,
	KIND_MEMORY,
	KIND_PRIORITY,
	KIND_PIN,
	KIND__MAX
};

static const char *const allowed[KIND__MAX] = {
	[KIND_PATH] = "an absolute path",
	[KIND_DURATION] = "a duration as 500ms, 10s, 5m or 1h",
	[KIND_BYTES] = "a size as 512M, 32G or 1T",
	[KIND_BOOL] = "yes or no",
	[KIND_GPU] = "auto or simulated",
	[KIND_DATA_PATH] = "auto, broker or driver",
	[KIND_COMPRESS] = "auto, none, lz4 or zstd",
	[KIND_MEMORY] = "auto, brumate or criu",
	[KIND_PRIORITY] = "a whole number from -1000 to 1000",
	[KIND_PIN] = "yes or no",
};

static const char *const *const words[KIND__MAX] = {
	[KIND_GPU] = (const char *const[]){ [CONF_GPU_AUTO] = "auto",
					    [CONF_GPU_SIMULATED] = "simulated",
					    [CONF_GPU__MAX] = NULL },
	[KIND_DATA_PATH] = (const char *const[]){ [CONF_DATA_PATH_AUTO] = "auto",
						  [CONF_DATA_PATH_BROKER] = "broker",
						  [CONF_DATA_PATH_DRIVER] = "driver",
						  [CONF_DATA_PATH__MAX] = NULL },
	[KIND_COMPRESS] = (const char *const[]){ [CONF_COMPRESS_AUTO] = "auto",
						 [CONF_COMPRESS_NONE] = "none",
						 [CONF_COMPRESS_LZ4] = "lz4",
						 [CONF_COMPRESS_ZSTD] = "zstd",
						 [CONF_COMPRESS__MAX] = NULL },
	[KIND_MEMORY] = (const char *const[]){ [CONF_MEMORY_AUTO] = "auto",
					       [CONF_MEMORY_BRUMATE] = "brumate",
					       [CONF_MEMORY_CRIU] = "criu",
					       [CONF_MEMORY__MAX] = NULL },
};

static const struct key {
	const char *section, *name;
	enum kind kind;
	size_t offset;
} keys[] = {
	{ "Store", "Directory", KIND_PATH, offsetof(struct brumate_conf, store_dir) },
	{ "Store", "Compress", KIND_COMPRESS, offsetof(struct brumate_conf, compress) },
	{ "Store", "EncryptionKeyFile", KIND_PATH, offsetof(struct brumate_conf, key_file) },
	{ "Store", "EncryptionKeyCommand", KIND_PATH, offsetof(struct brumate_conf, key_program) },
	{ "Store", "SigningKey", KIND_PATH, offsetof(struct brumate_conf, signing_key) },
	{ "Store", "TrustedKeys", KIND_PATH, offsetof(struct brumate_conf, trusted_keys) },
	{ "Store", "AllowUnauthenticated", KIND_BOOL,
	  offsetof(struct brumate_conf, allow_unauthenticated) },
	{ "Store", "Files", KIND_BYTES, offsetof(struct brumate_conf, files_bytes) },
	{ "Operation", "LockTimeout", KIND_DURATION,
	  offsetof(struct brumate_conf, lock_timeout_ms) },
	{ "Operation", "Timeout", KIND_DURATION, offsetof(struct brumate_conf, timeout_ms) },
	{ "Operation", "KeepCopy", KIND_BOOL, offsetof(struct brumate_conf, keep_copy) },
	{ "Operation", "SpareCopy", KIND_BOOL, offsetof(struct brumate_conf, spare_copy) },
	{ "Operation", "TcpClose", KIND_BOOL, offsetof(struct brumate_conf, tcp_close) },
	{ "Broker", "IdleTimeout", KIND_DURATION, offsetof(struct brumate_conf, idle_timeout_ms) },
	{ "Broker", "Pool", KIND_BYTES, offsetof(struct brumate_conf, pool_bytes) },
	{ "Broker", "Memory", KIND_BYTES, offsetof(struct brumate_conf, memory_bytes) },
	{ "Broker", "SpillDirectory", KIND_PATH, offsetof(struct brumate_conf, spill_dir) },
	{ "Broker", "Prepare", KIND_BOOL, offsetof(struct brumate_conf, prepare) },
	{ "Broker", "PrepareGpu", KIND_BOOL, offsetof(struct brumate_conf, prepare_gpu) },
	{ "Broker", "Digests", KIND_BOOL, offsetof(struct brumate_conf, digests) },
	{ "Run", "Gpu", KIND_GPU, offsetof(struct brumate_conf, gpu) },
	{ "Run", "WakeWait", KIND_DURATION, offsetof(struct brumate_conf, wake_wait_ms) },
	{ "Run", "MinResident", KIND_DURATION, offsetof(struct brumate_conf, min_resident_ms) },
	{ "Run", "LogKeep", KIND_BYTES, offsetof(struct brumate_conf, log_bytes) },
	{ "Run", "DataPath", KIND_DATA_PATH, offsetof(struct brumate_conf, data_path) },
	{ "Serve", "IdleAfter", KIND_DURATION, offsetof(struct brumate_conf, serve_idle_after_ms) },
	{ "Serve", "Memory", KIND_BYTES, offsetof(struct brumate_conf, serve_memory_bytes) },
	{ "Serve", "Slice", KIND_DURATION, offsetof(struct brumate_conf, serve_slice_ms) },
	{ "Hooks", "BeforeSuspend", KIND_PATH, offsetof(struct brumate_conf, hook_before_suspend) },
	{ "Hooks", "AfterResume", KIND_PATH, offsetof(struct brumate_conf, hook_after_resume) },
	{ "Hooks", "AfterRestore", KIND_PATH, offsetof(struct brumate_conf, hook_after_restore) },
	{ "Hooks", "OnFailure", KIND_PATH, offsetof(struct brumate_conf, hook_on_failure) },
	{ "Hooks", "Timeout", KIND_DURATION, offsetof(struct brumate_conf, hook_timeout_ms) },
	{ "Criu", "Path", KIND_PATH, offsetof(struct brumate_conf, criu_path) },
	{ "Container", "Force", KIND_BOOL, offsetof(struct brumate_conf, container_force) },
	{ "Container", "Memory", KIND_MEMORY, offsetof(struct brumate_conf, container_memory) },
	{ "Container", "State", KIND_PATH, offsetof(struct brumate_conf, container_state) },
};
enum { N_KEYS = sizeof(keys) / sizeof(keys[0]) };

/* Of [Serve NAME]: what is set is that member's. */
static const struct key member_keys[] = {
	{ "Serve", "Priority", KIND_PRIORITY, offsetof(struct conf_member, priority) },
	{ "Serve", "IdleAfter", KIND_DURATION, offsetof(struct conf_member, idle_after_ms) },
	{ "Serve", "MinResident", KIND_DURATION, offsetof(struct conf_member, min_resident_ms) },
	{ "Serve", "Pin", KIND_PIN, offsetof(struct conf_member, pin) },
};
enum { N_MEMBER_KEYS = sizeof(member_keys) / sizeof(member_keys[0]), PRIORITY_MOST = 1000 };

#define MEMBER_UNSET                                          \
	((struct conf_member){ .idle_after_ms = CONF_UNSET,   \
			       .min_resident_ms = CONF_UNSET, \
			       .pin = CONF_PIN_UNSET })

void conf_fini(struct brumate_conf *c)
{
	for (int i = 0; i < N_KEYS; i++)
		if (keys[i].kind == KIND_PATH)
			cleanup_free((char *)c + keys[i].offset);
	for (size_t i = 0; i < c->n_members; i++)
		free(c->members[i].name);
	free(c->members);
	for (size_t i = 0; i < c->n_warnings; i++)
		free(c->warnings[i]);
	free(c->warnings);
	*c = BRUMATE_CONF_DEFAULT;
}

static int warn_unknown(struct brumate_conf *c, const struct conf_item *item)
{
	if (c->n_warnings == WARNINGS_MAX)
		return 0;

	auto_free char *warning = path_format("%s:%u: [%s] %s= is not known and ignored",
					      item->name, item->line, item->section, item->key);
	if (!warning || array_add(c->warnings, c->n_warnings, warning) < 0)
		return -ENOMEM;
	warning = NULL;
	return 0;
}

static const struct key *find_key(const struct conf_item *item)
{
	for (int i = 0; i < N_KEYS; i++)
		if (!strcmp(keys[i].section, item->section) && !strcmp(keys[i].name, item->key))
			return &keys[i];
	return NULL;
}

/* ---- members ---- */

/* The NAME of [Serve NAME]; NULL: another section. */
static const char *member_name(const struct conf_item *item)
{
	static const char prefix[] = "Serve ";

	return strncmp(item->section, prefix, sizeof(prefix) - 1)
		       ? NULL
		       : item->section + strspn(item->section + sizeof(prefix) - 1, space) +
				 sizeof(prefix) - 1;
}

static const struct key *find_member_key(const struct conf_item *item)
{
	for (int i = 0; i < N_MEMBER_KEYS; i++)
		if (!strcmp(member_keys[i].name, item->key))
			return &member_keys[i];
	return NULL;
}

static struct conf_member *find_member(const struct brumate_conf *c, const char *name)
{
	for (size_t i = 0; i < c->n_members; i++)
		if (!strcmp(c->members[i].name, name))
			return &c->members[i];
	return NULL;
}

/* NULL without memory. */
static struct conf_member *need_member(struct brumate_conf *c, const char *name)
{
	struct conf_member *found = find_member(c, name);
	struct conf_member one = MEMBER_UNSET;

	if (found)
		return found;
	one.name = strdup(name);
	if (!one.name || array_add(c->members, c->n_members, one) < 0) {
		free(one.name);
		return NULL;
	}
	return &c->members[c->n_members - 1];
}

struct conf_member conf_member_of(const struct brumate_conf *c, const char *name)
{
	const struct conf_member *found = find_member(c, name);
	struct conf_member one = found ? *found : MEMBER_UNSET;

	one.name = NULL;
	return one;
}

static int parse_priority(int *ret, const char *value)
{
	char *end;
	const long n = strtol(value, &end, 10);

	if (end == value || *end || n < -PRIORITY_MOST || n > PRIORITY_MOST)
		return -EINVAL;
	*ret = (int)n;
	return 0;
}

static int set_path(char **at, const char *value)
{
	if (*value != '/')
		return -EINVAL;

	char *copy = strdup(value);
	if (!copy)
		return -ENOMEM;
	free(*at);
	*at = copy;
	return 0;
}

static size_t size_of_kind(enum kind kind)
{
	return kind == KIND_DURATION || kind == KIND_BYTES ? sizeof(uint64_t)
	       : kind == KIND_BOOL			   ? sizeof(bool)
							   : sizeof(int);
}

static void set_default(struct brumate_conf *c, const struct key *k)
{
	const struct brumate_conf defaults = BRUMATE_CONF_DEFAULT;
	char *at = (char *)c + k->offset;

	if (k->kind == KIND_PATH)
		cleanup_free(at);
	else
		memcpy(at, (const char *)&defaults + k->offset, size_of_kind(k->kind));
}

static int set_value(void *base, const struct key *k, const char *value)
{
	char *at = (char *)base + k->offset;

	switch (k->kind) {
	case KIND_PATH:
		return set_path((char **)at, value);
	case KIND_DURATION:
		return conf_duration_ms((uint64_t *)at, value);
	case KIND_BYTES:
		return conf_size_bytes((uint64_t *)at, value);
	case KIND_BOOL:
		return conf_bool((bool *)at, value);
	case KIND_PRIORITY:
		return parse_priority((int *)at, value);
	case KIND_PIN: {
		bool yes = false;
		int r = conf_bool(&yes, value);

		if (r == 0)
			*(enum conf_pin *)at = yes ? CONF_PIN_YES : CONF_PIN_NO;
		return r;
	}
	default:
		return conf_word((int *)at, value, words[k->kind]);
	}
}

/* An empty value takes back what was said before. */
static int set_member(struct brumate_conf *c, const struct key *k, const char *name,
		      const char *value)
{
	const struct conf_member unset = MEMBER_UNSET;
	struct conf_member *m = need_member(c, name);
	int r = 0;

	if (!m)
		return -ENOMEM;
	if (*value)
		r = set_value(m, k, value);
	else
		memcpy((char *)m + k->offset, (const char *)&unset + k->offset,
		       size_of_kind(k->kind));
	if (r == 0 && k->kind == KIND_PRIORITY)
		m->priority_given = *value;
	return r;
}

static int apply_item(struct brumate_conf *c, const struct conf_item *item,
		      struct brumate_error *err)
{
	const char *member = member_name(item);
	const struct key *k = member ? find_member_key(item) : find_key(item);

	if (k && !member && !*item->value) {
		set_default(c, k);
		return 0;
	}
	int r = !k	 ? warn_unknown(c, item)
		: member ? set_member(c, k, member, item->value)
			 : set_value(c, k, item->value);
	if (r == -EINVAL)
		return brumate_fail(err, EINVAL, "%s:%u: [%s] %s=%s: expected %s", item->name,
				    item->line, item->section, item->key, item->value,
				    allowed[k->kind]);
	return r < 0 ? brumate_fail(err, -r, "%s:%u: %m", item->name, item->line) : 0;
}

int conf_apply(struct brumate_conf *c, const char *name, const char *text, size_t len_bytes,
	       struct brumate_error *err)
{
	struct conf_item item = { .name = name };
	auto_free char *copy = strndup(text, len_bytes);
	char *rest = copy;

	if (!copy)
		return brumate_fail(err, ENOMEM, "%s: %m", name);
	if (strlen(copy) != len_bytes)
		return brumate_fail(err, EINVAL, "%s: not a text file: it has a NUL byte", name);

	while (rest) {
		char *line = trim_space(strsep(&rest, "\n"));
		int r = 0;

		item.line++;
		if (!*line || *line == '#' || *line == ';')
			continue;
		if (*line == '[') {
			r = parse_section(&item, line, &item.section, err);
		} else {
			r = parse_assignment(&item, line, err);
			if (r == 0)
				r = apply_item(c, &item, err);
		}
		if (r < 0)
			return r;
	}
	return 0;
}

/* -ENOENT without setting @err. */
static int read_conf(const char *path, char **ret_text, size_t *ret_len, struct brumate_error *err)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return errno == ENOENT ? -ENOENT : brumate_fail(err, errno, "%s: %m", path);
	/* /dev/null, used as an empty configuration. */
	if (S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3))
		return -ENOENT;
	if (!S_ISREG(st.st_mode))
		return brumate_fail(err, EINVAL, "%s: expected a regular file", path);
	/* The file names a program that root runs. */
	if (st.st_mode & S_IWOTH) {
		brumate_fail(err, EACCES, "%s: everyone may write to it", path);
		brumate_hint(err, "chmod o-w %s", path);
		return -EACCES;
	}
	int r = file_read(AT_FDCWD, path, FILE_BYTES_MAX, ret_text, ret_len);
	return r < 0 ? brumate_fail(err, -r, "%s: %m", path) : 0;
}

static int load_file(struct brumate_conf *c, const char *path, struct brumate_error *err)
{
	auto_free char *text = NULL;
	size_t len = 0;
	int r = read_conf(path, &text, &len, err);

	if (r < 0)
		return r == -ENOENT ? 0 : r;
	return conf_apply(c, path, text, len, err);
}

static int is_drop_in(const struct dirent *entry)
{
	const char *dot = strrchr(entry->d_name, '.');

	return entry->d_name[0] != '.' && dot && !strcmp(dot, ".conf");
}

static int by_bytes(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name); /* alphasort(3) would depend on the locale */
}

static int load_drop_ins(struct brumate_conf *c, const char *dir, struct brumate_error *err)
{
	struct dirent **entries = NULL;
	int n = scandir(dir, &entries, is_drop_in, by_bytes), r = 0;

	if (n < 0)
		return errno == ENOENT ? 0 : brumate_fail(err, errno, "%s: %m", dir);
	for (int i = 0; i < n; i++) {
		auto_free char *path = path_format("%s/%s", dir, entries[i]->d_name);

		free(entries[i]);
		if (r == 0)
			r = path ? load_file(c, path, err)
				 : brumate_fail(err, ENOMEM, "%s: %m", dir);
	}
	free(entries);
	return r;
}

static int load_with_drop_ins(struct brumate_conf *c, const char *path, struct brumate_error *err)
{
	auto_free char *drop_ins = path_format("%s.d", path);

	if (!drop_ins)
		return brumate_fail(err, ENOMEM, "%s: %m", path);
	int r = load_file(c, path, err);
	return r < 0 ? r : load_drop_ins(c, drop_ins, err);
}

int conf_load(struct brumate_conf *ret, struct brumate_error *err)
{
	auto_(conf_fini) struct brumate_conf c = BRUMATE_CONF_DEFAULT;
	const char *of_user = path_config_of_user();
	int r = load_with_drop_ins(&c, path_config(), err);

	if (r == 0 && of_user)
		r = load_with_drop_ins(&c, of_user, err);
	if (r < 0)
		return brumate_wrap(err, r, "configuration");
	*ret = c;
	c = BRUMATE_CONF_DEFAULT;
	return 0;
}

bool conf_wants_simulated(const struct brumate_conf *c)
{
	const char *gpu = getenv("BRUMATE_GPU");

	return gpu ? !strcmp(gpu, "simulated") : c->gpu == CONF_GPU_SIMULATED;
}

// SPDX-License-Identifier: MIT
/* What becomes of checkpoints: which ones a rule lets go, and what goes into a stream and out of it. */
#include "scratch.h"

#include <time.h>

#include "base/clock.h"
#include "store/file-tree.h"
#include "store/stream.h"

/* ---- retention ---- */

enum { DAY_MS = 86400 * 1000 };
static const char NOW[] = "2026-03-10T00:00:00.000Z";

static void choose(struct retention_item *items, size_t n, unsigned last, uint64_t within_ms)
{
	const struct retention_rule rule = { last, within_ms };
	uint64_t now_ms;

	CHECK(clock_parse_stamp(&now_ms, NOW) == 0);
	retention_choose(items, n, &rule, now_ms);
}

static bool is_doomed(const struct retention_item *items, size_t n, const char *id)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(items[i].id, id))
			return items[i].doomed;
	CHECK(!"there");
	return false;
}

static size_t doomed(const struct retention_item *items, size_t n)
{
	size_t count = 0;

	for (size_t i = 0; i < n; i++)
		count += items[i].doomed;
	return count;
}

static void test_keep_last(void)
{
	struct retention_item items[] = {
		{ .id = "a1", .job = "a", .created = "2026-03-01T00:00:00.000Z" },
		{ .id = "b1", .job = "b", .created = "2026-03-02T00:00:00.000Z" },
		{ .id = "a3", .job = "a", .created = "2026-03-03T00:00:00.001Z" },
		{ .id = "a2", .job = "a", .created = "2026-03-03T00:00:00.000Z" },
		{ .id = "b2", .job = "b", .created = "2026-03-02T00:00:00.000Z" },
	};

	choose(items, 5, 1, 0);
	CHECK(doomed(items, 5) == 3);
	CHECK(!is_doomed(items, 5, "a3") && !is_doomed(items, 5, "b2"));
	choose(items, 5, 2, 0);
	CHECK(doomed(items, 5) == 1 && is_doomed(items, 5, "a1"));
	choose(items, 5, UINT32_MAX, 0);
	CHECK(doomed(items, 5) == 0);
	choose(items, 0, 1, 0);
}

/* The clock was set back two hours between the second and the third. */
static void test_keep_last_by_sequence(void)
{
	struct retention_item items[] = {
		{ .id = "a1", .job = "a", .created = "2026-03-03T10:00:00.000Z", .sequence = 100 },
		{ .id = "a2", .job = "a", .created = "2026-03-03T10:01:00.000Z", .sequence = 101 },
		{ .id = "a3", .job = "a", .created = "2026-03-03T08:02:00.000Z", .sequence = 102 },
		{ .id = "b1", .job = "b", .created = "2026-03-03T08:00:00.000Z", .sequence = 7 },
	};

	choose(items, 4, 1, 0);
	CHECK(doomed(items, 4) == 2);
	CHECK(!is_doomed(items, 4, "a3") && !is_doomed(items, 4, "b1"));
}

static void test_keep_within(void)
{
	struct retention_item items[] = {
		{ .id = "old", .job = "a", .created = "2026-03-02T23:59:59.999Z" },
		{ .id = "edge", .job = "a", .created = "2026-03-03T00:00:00.000Z" },
		{ .id = "new", .job = "a", .created = "2026-03-09T00:00:00.000Z" },
		{ .id = "future", .job = "a", .created = "2027-01-01T00:00:00.000Z" },
		{ .id = "odd", .job = "b", .created = "yesterday" },
	};

	choose(items, 5, 0, 7 * (uint64_t)DAY_MS);
	CHECK(doomed(items, 5) == 1 && is_doomed(items, 5, "old"));
	/* What either keeps is kept: here the two newest, and the one of the last two days. */
	choose(items, 5, 2, 2 * (uint64_t)DAY_MS);
	CHECK(doomed(items, 5) == 2);
	CHECK(is_doomed(items, 5, "old") && is_doomed(items, 5, "edge"));
	choose(items, 5, 4, 1);
	CHECK(doomed(items, 5) == 0);
}

/* ---- verifying to the end ---- */

struct told {
	struct store_problem problems[16];
	char paths[16][64];
	int n;
};

static void tell(void *arg, const struct store_problem *p)
{
	struct told *t = arg;

	CHECK(t->n < 16);
	snprintf(t->paths[t->n], 64, "%s", p->path);
	t->problems[t->n++] = *p;
}

static int verify_all(const char *id, struct told *t)
{
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	*t = (struct told){ 0 };
	CHECK(store_open(&i, dir, id, &err) == 0);
	int r = store_verify_all(&i, tell, t, NULL, NULL, &err);
	CHECK(r == t->n);
	return r;
}

static void test_verify_all(void)
{
	struct told t;

	write_checkpoint("v", "train", NOW);
	CHECK(verify_all("v", &t) == 0);
	CHECK(truncate(at("v/criu/pages-1.img"), 7) == 0);
	CHECK(unlink(at("v/criu/inventory.img")) == 0);
	CHECK(symlink("pages-1.img", at("v/criu/link")) == 0);
	CHECK(mkdir(at("v/below"), 0700) == 0 && mkfifo(at("v/below/pipe"), 0600) == 0);
	CHECK(verify_all("v", &t) == 4);
	CHECK_STR(t.paths[0], "below/pipe");
	CHECK(t.problems[0].kind == STORE_EXTRA && t.problems[0].failure == -EBADMSG);
	CHECK_STR(t.paths[1], "criu/inventory.img");
	CHECK(t.problems[1].kind == STORE_MISSING && t.problems[1].expected_bytes == 9);
	CHECK_STR(t.paths[2], "criu/link");
	CHECK_STR(t.paths[3], "criu/pages-1.img");
	CHECK(t.problems[3].kind == STORE_SIZE && t.problems[3].actual_bytes == 7);
	CHECK(t.problems[3].expected_bytes == 3 << 20);
	CHECK(store_remove(dir, "v", NULL) == 0);
}

/* ---- streams ---- */

static struct bytes exported(const char *id)
{
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;
	struct bytes b = { 0 };

	CHECK(store_open(&i, dir, id, NULL) == 0);
	CHECK(store_export(&i, write_bytes, &b, NULL, NULL, NULL) == 0);
	CHECK(b.len % STREAM_BLOCK_BYTES == 0);
	return b;
}

static int import(struct bytes *b, const char *store, struct brumate_error *err)
{
	char id[MANIFEST_ID_BYTES] = "untouched";

	*err = BRUMATE_ERROR_NONE;
	b->at = 0;
	int r = store_import(id, store, &AUTHORITY_EMPTY, read_bytes, b, NULL, NULL, err);
	CHECK(!strcmp(id, "untouched") == (r < 0));
	return r;
}

static void refuse_import(struct bytes *b, const char *store, int want)
{
	struct brumate_error err;
	int r = import(b, store, &err);

	if (r != want)
		fprintf(stderr, "%d: %s\n", r, err.text);
	CHECK(r == want && err.text[0]);
	/* Nothing is left: the store is empty, or never was. */
	CHECK(rmdir(store) == 0 || errno == ENOENT);
}

static void test_round_trip(void)
{
	static const size_t steps[] = { 0, 1, 511, 512, 100000 };
	char store[2 * PATH_MAX];
	struct brumate_error err;

	write_checkpoint("travels", "train", NOW);
	struct bytes b = exported("travels");
	snprintf(store, sizeof(store), "%s/other", scratch);
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;

		b.step = steps[i];
		CHECK(import(&b, store, &err) == 0);
		CHECK(store_open(&image, store, "travels", NULL) == 0);
		CHECK(store_verify(&image, NULL, NULL, NULL) == 0);
		store_image_fini(&image);
		CHECK(import(&b, store, &err) == -EEXIST);
		CHECK(store_remove(store, "travels", NULL) == 0 && rmdir(store) == 0);
	}
	free(b.data);
}

static void test_bad_streams(void)
{
	char store[2 * PATH_MAX];
	struct bytes b = exported("travels"), cut = b;

	snprintf(store, sizeof(store), "%s/other", scratch);
	for (size_t end = 0; end < b.len; end += end < 8192 ? 97 : 200003) {
		cut.len = end;
		refuse_import(&cut, store, -EBADMSG);
	}
	cut.len = b.len - 1;
	refuse_import(&cut, store, -EBADMSG);
	/* Many bytes of the headers, of the manifest and of the end, some of the data. */
	for (size_t i = 0; i < b.len; i += i < 8192 || i > b.len - 1100 ? 11 : 200003) {
		b.data[i] ^= 0x20;
		refuse_import(&b, store, -EBADMSG);
		b.data[i] ^= 0x20;
	}
	CHECK(write_bytes(&b, "\0", 1) == 0);
	refuse_import(&b, store, -EBADMSG);
	free(b.data);
}

static void test_bad_exports(void)
{
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct bytes b = { .fail_at = 1 << 20 };
	auto_close int fd = open(at("travels/criu/pages-1.img"), O_WRONLY | O_CLOEXEC);

	CHECK(store_open(&i, dir, "travels", NULL) == 0);
	CHECK(store_export(&i, write_bytes, &b, NULL, NULL, &err) == -EPIPE);
	CHECK(pwrite(fd, "!", 1, 1 << 20) == 1);
	b.fail_at = 0;
	CHECK(store_export(&i, write_bytes, &b, NULL, NULL, &err) == -EBADMSG);
	CHECK(strstr(err.text, "criu/pages-1.img"));
	free(b.data);
}

/* Headers of what does not fit into the old fields: long paths, and more than 8 GiB. */
static void test_headers(void)
{
	uint8_t header[STREAM_HEADER_BYTES_MAX];
	char path[4096];

	CHECK(stream_header(header, "id", "pages", 8589934591ull) == STREAM_BLOCK_BYTES);
	CHECK(!memcmp(header, "id/pages", 9) && !memcmp(header + 124, "77777777777", 12));
	CHECK(stream_header(header, "id", "pages", 8589934592ull) == 3 * STREAM_BLOCK_BYTES);
	CHECK(header[156] == 'x' && header[2 * 512 + 156] == '0');
	CHECK_STR((char *)header + 512, "19 size=8589934592\n");
	memset(path, 'p', sizeof(path));
	path[97] = '\0';
	CHECK(stream_header(header, "id", path, 1) == STREAM_BLOCK_BYTES);
	path[97] = 'p';
	path[98] = '\0';
	CHECK(stream_header(header, "id", path, 1) == 3 * STREAM_BLOCK_BYTES);
	CHECK(!memcmp(header + 512, "111 path=id/ppp", 15) && header[512 + 110] == '\n');
	path[98] = 'p';
	path[4095] = '\0';
	CHECK(stream_header(header, "id", path, UINT64_MAX) <= STREAM_HEADER_BYTES_MAX);
	CHECK(stream_padding(0) == 0 && stream_padding(1) == 511 && stream_padding(512) == 0);
}

/* ---- pruning ---- */

static int n_told[3];
static char last_told[64];

static void tell_pruned(void *arg, enum store_pruned what, const char *id, const char *why)
{
	CHECK((what == STORE_PRUNE_REMOVED) == !*why);
	n_told[what]++;
	snprintf(last_told, sizeof(last_told), "%s", id);
}

static void test_prune(void)
{
	struct store_prune p = { .tell = tell_pruned, .rule = { .keep_last = 1 } };
	char id[8];

	CHECK(store_remove(dir, "travels", NULL) == 0);
	for (int i = 1; i <= 4; i++) {
		char created[32];

		snprintf(id, sizeof(id), "p%d", i);
		snprintf(created, sizeof(created), "2026-01-0%dT00:00:00.000Z", i);
		write_checkpoint(id, "train", created);
	}
	CHECK(truncate(at("p4/criu/pages-1.img"), 7) == 0);
	CHECK(store_prune(dir, &(struct store_prune){ 0 }, NULL) == -EINVAL);
	p.dry_run = true;
	CHECK(store_prune(dir, &p, NULL) == 2 && n_told[STORE_PRUNE_REMOVED] == 2 &&
	      is_there(at("p1")));
	p.dry_run = false;

	/* One that is held stays, and the damaged one does not count as the newest. */
	auto_(store_image_fini) struct store_image held = STORE_IMAGE_EMPTY;
	CHECK(store_open(&held, dir, "p1", NULL) == 0);
	CHECK(store_verify(&held, NULL, NULL, NULL) == 0);
	memset(n_told, 0, sizeof(n_told));
	p.job = "nobody";
	CHECK(store_prune(dir, &p, NULL) == 0);
	p.job = "train";
	CHECK(store_prune(dir, &p, NULL) == 1);
	CHECK(n_told[STORE_PRUNE_REMOVED] == 1 && n_told[STORE_PRUNE_KEPT] == 1);
	CHECK(n_told[STORE_PRUNE_DAMAGED] == 1);
	CHECK(is_there(at("p1")) && !is_there(at("p2")) && is_there(at("p3")) &&
	      is_there(at("p4")));
	store_image_fini(&held);
	CHECK(store_prune(dir, &p, NULL) == 1 && !is_there(at("p1")));
	CHECK_STR(last_told, "p1");
}

/* The store has "p3", whole, and "p4", damaged, of the test before. */
static void test_pins(void)
{
	const struct store_prune p = { .tell = tell_pruned, .rule = { .keep_last = 1 } };

	CHECK(store_pin(dir, "nosuch", NULL) == -ENOENT &&
	      store_pin(dir, "../p3", NULL) == -ENOENT);
	CHECK(store_pin(dir, "p3", NULL) == 0 && store_pin(dir, "p4", NULL) == 0);
	CHECK(store_pinned(dir, "p3", NULL) == 1 && store_pinned(dir, "nosuch", NULL) == -ENOENT);
	CHECK(store_remove(dir, "p3", NULL) == -EBUSY && store_remove(dir, "p4", NULL) == -EBUSY);

	/* It does not count: the newest of the others stays, too. */
	write_checkpoint("p5", "train", "2026-01-05T00:00:00.000Z");
	write_checkpoint("p6", "train", "2026-01-06T00:00:00.000Z");
	CHECK(store_prune(dir, &p, NULL) == 1 && !is_there(at("p5")));
	CHECK(store_sweep(dir) == 0 && is_there(at("p3")) && is_there(at("p6")));

	CHECK(store_unpin(dir, "p3", NULL) == 0 && store_unpin(dir, "p3", NULL) == 0);
	CHECK(store_pinned(dir, "p3", NULL) == 0 && store_remove(dir, "p3", NULL) == 0);
	CHECK(remove_tree(AT_FDCWD, at("p4")) == 0);
	CHECK(is_there(at(".p4.pinned")) && store_sweep(dir) == 1 && !is_there(at(".p4.pinned")));
}

int main(void)
{
	new_scratch();
	test_keep_last();
	test_keep_last_by_sequence();
	test_keep_within();
	test_verify_all();
	test_round_trip();
	test_bad_streams();
	test_bad_exports();
	test_headers();
	test_prune();
	test_pins();
	remove_scratch();
	return 0;
}

// SPDX-License-Identifier: MIT
/* What is rewritten in files.img, and what is not: other kinds of files, deleted ones, and what our messages do not name. */
#include "criu/images.h"

#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "check.h"

enum { TYPE_REGULAR = 1, TYPE_PIPE = 2, VARINT = 0, BYTES = 2 };

struct text {
	uint8_t buf[1024];
	size_t len;
};

static void put_varint(struct text *t, uint64_t value)
{
	for (; value > 127; value >>= 7)
		t->buf[t->len++] = (uint8_t)(value | 128);
	t->buf[t->len++] = (uint8_t)value;
}

static void put_value(struct text *t, unsigned field, uint64_t value)
{
	put_varint(t, field << 3 | VARINT);
	put_varint(t, value);
}

static void put_bytes(struct text *t, unsigned field, const void *bytes, size_t len)
{
	put_varint(t, field << 3 | BYTES);
	put_varint(t, len);
	memcpy(t->buf + t->len, bytes, len);
	t->len += len;
}

static void put_u32(struct text *t, uint32_t value)
{
	for (int i = 0; i < 4; i++)
		t->buf[t->len++] = (uint8_t)(value >> 8 * i);
}

static void put_entry(struct text *t, const struct text *entry)
{
	put_u32(t, (uint32_t)entry->len);
	memcpy(t->buf + t->len, entry->buf, entry->len);
	t->len += entry->len;
}

static void put_file(struct text *t, uint32_t type, uint32_t id, const char *path)
{
	struct text file = { .len = 0 }, entry = { .len = 0 };

	put_value(&file, 1, id); /* not named by our messages */
	put_value(&file, 2, O_RDWR);
	put_value(&file, 3, 4711); /* nor this, the position */
	put_bytes(&file, 6, path, strlen(path));
	put_value(&file, 8, 99); /* its size */
	put_value(&entry, 1, type);
	put_value(&entry, 2, id);
	put_bytes(&entry, type == TYPE_REGULAR ? 3 : 18, file.buf, file.len);
	put_entry(t, &entry);
}

static void write_image(int dir_fd, const char *name, const struct text *t)
{
	auto_close int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	CHECK(fd >= 0 && fd_write_full(fd, t->buf, t->len) == 0);
}

static unsigned n_asked;

static unsigned choose(void *arg, const char *path)
{
	CHECK_STR(arg, "arg");
	n_asked++;
	if (!strcmp(path, "/given"))
		return CRIU_REGULAR_GIVEN;
	return !strcmp(path, "/grows") ? CRIU_REGULAR_ANY_SIZE : 0;
}

/* The values of one field of the regular file in the entry; how many there are. */
static size_t count(const struct criu_entries *entry, const uint8_t *wanted, size_t len)
{
	size_t n = 0;

	for (size_t i = 0; i + len <= entry->left; i++)
		n += !memcmp(entry->p + i, wanted, len);
	return n;
}

static const uint8_t position[] = { 3 << 3, 0xe7, 0x24 }, size[] = { 8 << 3, 99 },
		     external[] = { 9 << 3, 1 };

static void check_entry(struct criu_entries *image, bool is_external, bool has_size)
{
	struct criu_entries entry;

	CHECK(criu_entries_next(image, &entry) == 1);
	CHECK(count(&entry, position, sizeof(position)) == 1);
	CHECK(count(&entry, size, sizeof(size)) == has_size);
	CHECK(count(&entry, external, sizeof(external)) == is_external);
}

static void test_rewrite(int dir_fd)
{
	struct text files = { .len = 0 }, remap = { .len = 0 }, removed = { .len = 0 };
	auto_free char *text = NULL;
	struct criu_entries image, entry;
	size_t len;

	put_u32(&files, CRIU_MAGIC_IMAGE);
	put_u32(&files, CRIU_MAGIC_FILES);
	put_file(&files, TYPE_REGULAR, 1, "/given");
	put_file(&files, TYPE_REGULAR, 2, "/grows");
	put_file(&files, TYPE_REGULAR, 3, "/stays");
	put_file(&files, TYPE_REGULAR, 4, "/given"); /* deleted */
	put_file(&files, TYPE_PIPE, 5, "/given");
	put_u32(&remap, CRIU_MAGIC_IMAGE);
	put_u32(&remap, CRIU_MAGIC_REMAP_FPATH);
	put_value(&removed, 1, 4);
	put_value(&removed, 2, 17);
	put_entry(&remap, &removed);
	write_image(dir_fd, "files.img", &files);
	write_image(dir_fd, "remap-fpath.img", &remap);

	CHECK(criu_regular_rewrite(dir_fd, choose, "arg") == 0);
	CHECK(n_asked == 3);
	CHECK(file_read(dir_fd, "files.img", 4096, &text, &len) == 0);
	CHECK(criu_entries_open(&image, text, len, CRIU_MAGIC_IMAGE, CRIU_MAGIC_FILES) == 0);
	check_entry(&image, true, true);
	check_entry(&image, false, false);
	check_entry(&image, false, true);
	check_entry(&image, false, true);
	check_entry(&image, false, true);
	CHECK(criu_entries_next(&image, &entry) == 0);
}

static void test_damaged(int dir_fd)
{
	struct text files = { .len = 0 };

	put_u32(&files, CRIU_MAGIC_IMAGE);
	put_u32(&files, CRIU_MAGIC_FILES);
	put_u32(&files, 1000);
	write_image(dir_fd, "files.img", &files);
	CHECK(criu_regular_rewrite(dir_fd, choose, "arg") == -EBADMSG);
	CHECK(unlinkat(dir_fd, "files.img", 0) == 0);
	CHECK(criu_regular_rewrite(dir_fd, choose, "arg") == -ENOENT);
}

int main(void)
{
	char dir[] = "/tmp/brumate-regular-XXXXXX";

	CHECK(mkdtemp(dir));
	int dir_fd = open(dir, O_RDONLY | O_DIRECTORY);
	CHECK(dir_fd >= 0);
	test_rewrite(dir_fd);
	test_damaged(dir_fd);
	close(dir_fd);
	CHECK(remove_tree(AT_FDCWD, dir) == 0);
	return 0;
}

// SPDX-License-Identifier: MIT
/* SHA-256: the known answers of FIPS 180-4, files, and the text form. */
#include "scratch.h"

#include "base/digest.h"

#include <errno.h>

static const struct {
	const char *text, *hex;
} known[] = {
	{ "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
	{ "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
	{ "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
	  "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
};

static void test_known(int top)
{
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		struct digest d, f;
		char hex[DIGEST_TEXT_BYTES];
		uint64_t len = 77;

		CHECK(digest_buffer(&d, known[i].text, strlen(known[i].text)) == 0);
		digest_format(hex, &d);
		CHECK_STR(hex, known[i].hex);

		put_text(top, "file", known[i].text);
		int fd = openat(top, "file", O_RDONLY | O_CLOEXEC);
		CHECK(lseek(fd, 1, SEEK_SET) == 1);
		CHECK(digest_file(&f, fd, &len) == 0);
		CHECK(len == strlen(known[i].text) && !memcmp(&d, &f, sizeof(d)));
		CHECK(lseek(fd, 0, SEEK_CUR) == 1);
		close(fd);
	}
}

struct steps {
	uint64_t bytes;
	int calls, stop_at;
};

static int step(void *arg, size_t n_bytes)
{
	struct steps *s = arg;

	s->bytes += n_bytes;
	return ++s->calls == s->stop_at ? -ECANCELED : 0;
}

static void test_steps(int top)
{
	struct steps all = { .stop_at = 0 }, some = { .stop_at = 2 };
	struct digest d, a;
	uint64_t len = 0;
	static char data[5 << 20];

	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (char)(i * 31 >> 3);
	CHECK(file_replace(top, "large", data, sizeof(data), 0600) == 0);
	int fd = openat(top, "large", O_RDONLY | O_CLOEXEC);

	CHECK(digest_file_steps(&d, fd, &len, step, &all) == 0);
	CHECK(all.bytes == sizeof(data) && len == sizeof(data) && all.calls > 1);
	CHECK(digest_buffer(&a, data, sizeof(data)) == 0 && !memcmp(&a, &d, sizeof(d)));
	CHECK(digest_file_steps(&d, fd, &len, step, &some) == -ECANCELED);
	CHECK(some.calls == 2);
	close(fd);
	CHECK(digest_file(&d, -1, NULL) == -EBADF);
	CHECK(digest_file(&d, top, NULL) == -EISDIR);
}

static void test_parse(void)
{
	const char *hex = known[1].hex;
	char bad[DIGEST_TEXT_BYTES + 1];
	struct digest d, kept;

	memset(&d, 0x11, sizeof(d));
	kept = d;
	for (int i = 0; i < DIGEST_TEXT_BYTES - 1; i++) {
		memcpy(bad, hex, DIGEST_TEXT_BYTES);
		bad[i] = "gG/:`@\x80 "[i % 8];
		CHECK(digest_parse(&d, bad) == -EBADMSG);
		bad[i] = '\0';
		CHECK(digest_parse(&d, bad) == -EBADMSG);
	}
	snprintf(bad, sizeof(bad), "%s0", hex);
	CHECK(digest_parse(&d, bad) == -EBADMSG);
	memcpy(bad, hex, DIGEST_TEXT_BYTES);
	*strchr(bad, 'a') = 'A';
	CHECK(digest_parse(&d, bad) == -EBADMSG);
	CHECK(!memcmp(&d, &kept, sizeof(d)));

	CHECK(digest_parse(&d, hex) == 0);
	digest_format(bad, &d);
	CHECK_STR(bad, hex);
}

int main(void)
{
	int top = new_scratch();

	test_known(top);
	test_steps(top);
	test_parse();
	close(top);
	remove_scratch();
	return 0;
}

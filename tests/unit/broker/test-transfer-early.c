// SPDX-License-Identifier: MIT
/* Host memory that is of use while the rest is still copied out; what of a copy in was compared; and what goes on before
 * a copy is told of. */
#include "pieces.h"

/* More than a lane has under way at a time, which are begun before the first has ended. */
enum { PIECES = 60, COPIES_MIN = 26, SEGMENT = 8 << 20, DELAY_MS = 30 };

/* Segments and pieces do not begin at the same bytes. */
static uint64_t some(size_t i)
{
	return (i % 3 + 1) * CHUNK;
}

/* What has been told, and looked at. */
struct told {
	const struct set *set;
	size_t n_whole, calls;
	bool digests;
};

/* The bytes of chunk @i as they are on the device. */
static void read_device(const struct set *s, size_t chunk, char *ret)
{
	size_t i = 0;

	while (host_copy_offset(s->pieces, i + 1) <= chunk * CHUNK)
		i++;
	auto_free char *buf = malloc(s->pieces[i].len_bytes);
	piece_read(s, i, buf);
	memcpy(ret, buf + (chunk * CHUNK - host_copy_offset(s->pieces, i)), CHUNK);
}

static void look(void *arg, const struct host_copy *copy, size_t n_whole,
		 const struct digest *digests)
{
	struct told *t = arg;
	auto_free char *want = malloc(CHUNK), *have = malloc(CHUNK);

	CHECK(n_whole >= t->n_whole && n_whole <= copy->n_segments);
	CHECK(copy->total_bytes == host_copy_offset(t->set->pieces, PIECES));
	CHECK(copy->segment_bytes == SEGMENT && !digests == !t->digests);
	for (uint64_t at = t->n_whole * SEGMENT; at < n_whole * SEGMENT && at < copy->total_bytes;
	     at += CHUNK) {
		struct digest digest;

		read_device(t->set, at / CHUNK, want);
		copy_read(copy, at, have, CHUNK);
		CHECK(!memcmp(want, have, CHUNK));
		CHECK(chunk_digest(&digest, want, CHUNK) == 0);
		CHECK(!digests || !memcmp(&digest, &digests[at / CHUNK], sizeof(digest)));
	}
	t->calls += n_whole > t->n_whole;
	t->n_whole = n_whole;
}

/* One after the other, slowly enough to be told of before the end. */
static void slow_copies(const char *last)
{
	char text[COPIES_MIN * 32 + 64] = "";

	for (int i = 0; i < COPIES_MIN; i++)
		sprintf(text + strlen(text), "data.copy delay:%d\n", DELAY_MS);
	strcat(text, last);
	node_fault(text);
}

static void test_early(bool digests)
{
	auto_(transfer_client_close) struct transfer_client *s = session();
	struct set set = set_make(PIECES, some, 2);
	struct told told = { .set = &set, .digests = digests };

	/* A segment of zeros, of which nothing is written, and one of which half is. */
	for (size_t i = 4; i < 10; i++)
		piece_write(&set, i, 0, set.pieces[i].len_bytes, 0);
	slow_copies("");
	set.request.digests = digests;
	set.request.whole = look;
	set.request.arg = &told;
	out(s, &set);
	CHECK(told.calls > 1);
	CHECK(set.copy.n_segments == host_copy_n_segments(&set.copy));
	look(&told, &set.copy, set.copy.n_segments,
	     digests ? digest_table_digests(set.copy.digests) : NULL);
	if (digests)
		set_check_digests(&set);
	set_free(&set);
}

/* What was told of a broker that died is still there, and goes on with another. */
static void test_killed(void)
{
	struct set set = set_make(PIECES, some, 1);
	struct told told = { .set = &set, .digests = true };
	auto_(transfer_client_close) struct transfer_client *s = session();
	struct brumate_error err;

	slow_copies("data.copy kill\n");
	set.request.digests = true;
	set.request.whole = look;
	set.request.arg = &told;
	CHECK(transfer_client_out(s, &set.request, set.fds, &set.copy, NULL, &err) == -EPIPE);
	size_t before = told.n_whole;
	CHECK(before > 0 && before * SEGMENT < host_copy_offset(set.pieces, PIECES));
	broker_client_close(&b);
	broker_start();
	auto_(transfer_client_close) struct transfer_client *other = session();
	told.n_whole = 0;
	out(other, &set);
	set_check_digests(&set);
	set_free(&set);
}

/* Of what comes in all is compared, or it is said that it was not. */
static void test_compared(void)
{
	struct set set = set_make(PIECES, some, 2);

	full(&set);
	auto_(transfer_client_close) struct transfer_client *s = session();
	set_close_fds(&set);
	in(s, &set);
	CHECK(set.compared);
	set_check_device(&set);
	set.request.digests = false;
	set_close_fds(&set);
	in(s, &set);
	CHECK(!set.compared);
	set_check_device(&set);
	set_free(&set);
}

static uint64_t slot(size_t i)
{
	return SEGMENT;
}

/* Pieces that the broker has mapped. */
static size_t count_mapped(void)
{
	auto_free char *path = path_format("/proc/%d/maps", (int)broker_client_pid(&b));
	auto_free char *device = path_format("%s/sim/", node_dir);
	auto_fclose FILE *f = fopen(path, "re");
	unsigned long start, end;
	char line[512];
	size_t n = 0;

	CHECK(f);
	while (fgets(line, sizeof(line), f))
		n += strstr(line, device) && sscanf(line, "%lx-%lx", &start, &end) == 2 &&
		     end - start == SEGMENT;
	return n;
}

static bool is_filled(int fd, size_t i)
{
	struct set one = { .fds = &fd, .gpus = &(int){ 0 }, .n = 1 };
	struct device_piece piece = { .len_bytes = SEGMENT };
	auto_free uint64_t *have = malloc(SEGMENT), *want = malloc(SEGMENT);

	one.pieces = &piece;
	pattern(want, SEGMENT, i);
	piece_read(&one, 0, have);
	return !memcmp(have, want, SEGMENT);
}

static void wait_a_little(uint64_t deadline_ns)
{
	CHECK(deadline_left_ms(deadline_ns));
	poll(NULL, 0, 5);
}

/* Lets the broker's thread that copies go on. */
static void let_go(uint64_t deadline_ns)
{
	auto_free char *fifo = path_format("%s/fault.held", node_dir);
	int fd;

	while ((fd = open(fifo, O_WRONLY | O_CLOEXEC)) < 0)
		wait_a_little(deadline_ns);
	close(fd);
}

/* It is held where it has told of the first piece: the GPU fills the second. And where it has told of the last: all are unmapped,
 * though the transfer has not ended. */
static void look_behind(void *arg, const int *fds, size_t n_filled)
{
	uint64_t deadline_ns = deadline_in_ms(60000);
	size_t *n_seen = arg;

	if (n_filled == *n_seen || (n_filled != 1 && n_filled != 4))
		return;
	*n_seen = n_filled;
	while (n_filled == 1 ? !is_filled(fds[1], 1) : count_mapped())
		wait_a_little(deadline_ns);
	CHECK(n_filled == 4 || (count_mapped() == 4 && !is_filled(fds[2], 2)));
	let_go(deadline_ns);
}

static void test_turns(bool digests)
{
	struct set set = set_make(4, slot, 1);
	size_t n_seen = 0;

	full(&set);
	auto_(transfer_client_close) struct transfer_client *s = session();
	set_close_fds(&set);
	node_fault(
		"data.filled hold\ndata.filled delay:0\ndata.filled delay:0\ndata.filled hold\n");
	set.request.digests = digests;
	set.request.filled = look_behind;
	set.request.arg = &n_seen;
	in(s, &set);
	CHECK(n_seen == 4 && set.compared == digests);
	set_check_device(&set);
	set_free(&set);
}

int main(void)
{
	node_start();
	driver_open();
	broker_start();
	test_early(false);
	test_early(true);
	test_killed();
	test_compared();
	test_turns(true);
	test_turns(false);
	end_broker(&b);
	node_end();
	return 0;
}

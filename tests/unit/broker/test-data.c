// SPDX-License-Identifier: MIT
/* Device memory out to host memory and back, by a broker on the simulated driver. */
#include "pieces.h"

static struct broker b = BROKER_EMPTY;

static void must(int r, const struct brumate_error *err)
{
	if (r < 0)
		fprintf(stderr, "%s\n", err->text);
	CHECK(r >= 0);
}

static struct data_session *session(void)
{
	struct data_session *s;
	struct brumate_error err;

	must(data_open(&s, &b, &err), &err);
	return s;
}

static void out(struct data_session *s, struct set *set)
{
	struct brumate_error err;

	must(data_out(s, set->pieces, set->n, set->fds, &set->copy, NULL, NULL, &err), &err);
}

static void in(struct data_session *s, struct set *set)
{
	struct brumate_error err;

	must(data_in(s, set->pieces, set->n, &set->copy, set->fds, NULL, NULL, &err), &err);
}

/* Out, the device memory let go, in again: the same bytes in both places. */
static void cycle(struct set set)
{
	auto_(data_close) struct data_session *s = session();

	out(s, &set);
	set_check_device(&set);
	set_check_copy(&set);
	set_close_fds(&set);
	in(s, &set);
	set_check_device(&set);
	set_free(&set);
}

static uint64_t granule(size_t i)
{
	return 2 * MIB;
}

static uint64_t odd(size_t i)
{
	return (2 * (i % 5) + 1) * 2 * MIB;
}

static uint64_t large(size_t i)
{
	return 270 * MIB;
}

static void learn_gpus(void)
{
	struct dev_gpu gpus[DEV_GPUS_MAX];
	size_t n;

	CHECK(broker_gpus(&b, gpus, &n, NULL) == 0 && n == 2);
	for (int i = 0; i < 2; i++)
		strcpy(uuids[i], gpus[i].uuid);
}

int main(void)
{
	struct brumate_error err;

	node_start();
	driver_open();
	if (broker_open(&b, true, &err) < 0) {
		fprintf(stderr, "%s\n", err.text);
		return 1;
	}
	learn_gpus();
	cycle(set_make(1, granule, 1));
	cycle(set_make(9, odd, 1));
	cycle(set_make(14, odd, 2));
	cycle(set_make(1, large, 1));
	cycle(set_make(2000, granule, 2));
	end_broker(&b);
	node_end();
	return 0;
}

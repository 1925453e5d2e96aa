// SPDX-License-Identifier: MIT
/* What the broker answers: it comes back as it was sent, from an older broker too, and what does not fit is refused. */
#include "check.h"
#include "wire/broker-answers.h"
#include "wire/wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void test_both_ways(void)
{
	static struct dev_process p[2] = {
		{ .pid = 7,
		  .state = DEV_STATE_LOCKED,
		  .n_gpus = 2,
		  .gpus = { "GPU-a", "GPU-b" },
		  .gpu_bytes = { 1, 2 },
		  .used_bytes = 3 },
		{ .pid = 8, .restore_tid = 9 },
	};
	const struct broker_processes sent = { p, 2 };
	auto_json json_t *o = broker_answer_encode(BROKER_PROCESSES, &sent);
	struct broker_processes got = { 0 };

	CHECK(broker_answer_decode(BROKER_PROCESSES, &got, o, NULL) == 0 && got.n == 2);
	CHECK(!memcmp(got.items, p, sizeof(p)));
	free(got.items);
}

static void test_info(void)
{
	static struct broker_info sent = {
		.backend = "cuda",
		.device = { .features = DEV_REMAP | DEV_CUSTOM_STORAGE, .init_seconds = 0.25 },
		.n_gpus = 1,
		.gpus[0] = { .gpu.uuid = "GPU-a", .moved.read_bytes = 5 },
		.room = { .disk_bytes = 4, .disk = "/spill" }
	};
	static struct broker_info got;
	auto_json json_t *o = broker_answer_encode(BROKER_INFO, &sent);

	CHECK(broker_answer_decode(BROKER_INFO, &got, o, NULL) == 0);
	CHECK(!memcmp(&got, &sent, sizeof(sent)));
	/* Of an older one, and of a newer one. */
	json_object_del(json_array_get(json_object_get(o, "gpus"), 0), "read_bytes");
	json_array_append_new(json_object_get(o, "features"), json_string("telepathy"));
	got = (struct broker_info){ 0 };
	CHECK(broker_answer_decode(BROKER_INFO, &got, o, NULL) == 0);
	CHECK(got.gpus[0].moved.read_bytes == 0 && got.device.features == sent.device.features);
}

static int decode_process(struct dev_process *ret, const char *text)
{
	auto_json json_t *o = json_loads(text, 0, NULL);
	struct broker_processes got = { 0 };
	int r = broker_answer_decode(BROKER_PROCESSES, &got, o, NULL);

	if (r == 0)
		*ret = got.items[0];
	free(got.items);
	return r;
}

static void test_what_is_odd(void)
{
	auto_json json_t *many = json_pack("{s:[{s:i,s:s,s:n,s:[]}]}", "processes", "pid", 1,
					   "state", "asleep", "restore_tid", "gpus");
	json_t *gpus =
		json_object_get(json_array_get(json_object_get(many, "processes"), 0), "gpus");
	struct dev_process p;

	CHECK(decode_process(&p, "{\"processes\": [{\"pid\": 1, \"state\": \"asleep\"}]}") == 0);
	CHECK(p.state == DEV_STATE_UNKNOWN && p.n_gpus == 0);
	CHECK(decode_process(&p, "{\"processes\": [{\"pid\": 1, \"state\": 5}]}") == -EBADMSG);
	CHECK(decode_process(&p, "{\"processes\": [{\"state\": \"none\"}]}") == -EBADMSG);
	CHECK(decode_process(&p, "{\"processes\": {}}") == -EBADMSG);
	for (int i = 0; i <= DEV_GPUS_MAX; i++)
		json_array_append_new(gpus, json_string("GPU-a"));
	auto_free char *text = json_dumps(many, 0);
	CHECK(decode_process(&p, text) == -EBADMSG);
	json_array_remove(gpus, 0);
	auto_free char *fits = json_dumps(many, 0);
	CHECK(decode_process(&p, fits) == 0 && p.n_gpus == DEV_GPUS_MAX);
}

int main(void)
{
	test_both_ways();
	test_info();
	test_what_is_odd();
	return 0;
}

// SPDX-License-Identifier: MIT
/* Where a job's GPUs come back: placement.c alone, with a broker that is told which GPUs are here. */
#include "engine/steps.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "check.h"

#define H200 "NVIDIA H200"
#define A100 "NVIDIA A100"

enum { GIB = 1 << 30 };

static struct dev_gpu here[DEV_GPUS_MAX];
static size_t n_here;
static char notes[512];
static int broken; /* what the broker fails with */

int gpu_set_open(struct gpu_set *s, struct brumate_error *err)
{
	return 0;
}

int broker_client_gpus(struct broker_client *b, struct dev_gpu *ret, size_t *ret_n, struct brumate_error *err)
{
	if (broken)
		return brumate_fail(err, broken, "broker: %m");
	memcpy(ret, here, n_here * sizeof(*here));
	*ret_n = n_here;
	return 0;
}

static uint32_t features = DEV_CHECKPOINT | DEV_REMAP;

int broker_client_info(struct broker_client *b, struct broker_info *ret, struct brumate_error *err)
{
	*ret = (struct broker_info){ .device.features = features };
	return 0;
}

void progress_note(struct progress *p, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(notes + strlen(notes), sizeof(notes) - strlen(notes), fmt, ap);
	va_end(ap);
}

static void put_gpu(const char *uuid, const char *name, uint64_t used_gib)
{
	struct dev_gpu *gpu = &here[n_here++];

	*gpu = (struct dev_gpu){ .total_bytes = 140ull * GIB, .used_bytes = used_gib * GIB };
	snprintf(gpu->uuid, sizeof(gpu->uuid), "%s", uuid);
	snprintf(gpu->name, sizeof(gpu->name), "%s", name);
}

static void saw(struct job *job, const char *uuid, const char *name, uint64_t gib)
{
	struct job_gpu *gpu = &job->gpus[job->n_gpus++];

	snprintf(gpu->uuid, sizeof(gpu->uuid), "%s", uuid);
	snprintf(gpu->name, sizeof(gpu->name), "%s", name);
	gpu->bytes = gib * GIB;
}

static void tell(struct op *op, const char *from, const char *to)
{
	op->gpus.pairs = realloc(op->gpus.pairs, (op->gpus.n_pairs + 1) * sizeof(*op->gpus.pairs));
	CHECK(op->gpus.pairs);
	struct dev_gpu_pair *pair = &op->gpus.pairs[op->gpus.n_pairs++];
	snprintf(pair->from, sizeof(pair->from), "%s", from);
	snprintf(pair->to, sizeof(pair->to), "%s", to);
}

static struct job_gpu job_gpus[DEV_GPUS_MAX];
static struct job job;

/* An operation on a job that saw nothing yet, on a machine without GPUs. */
static struct op begin(void)
{
	job = (struct job){ .id = "0123abcd", .gpus = job_gpus };
	n_here = 0;
	notes[0] = '\0';
	broken = 0;
	return (struct op){ .kind = "restore", .job = &job };
}

/* An operation on a job that saw two GPUs and used the first, where both are. */
static struct op begin_two(void)
{
	struct op op = begin();

	saw(&job, "GPU-a", H200, 10);
	saw(&job, "GPU-b", H200, 0);
	put_gpu("GPU-a", H200, 0);
	put_gpu("GPU-b", H200, 0);
	return op;
}

static const char *target(const struct op *op, const char *from)
{
	for (size_t i = 0; i < op->gpus.n_pairs; i++)
		if (!strcmp(op->gpus.pairs[i].from, from))
			return op->gpus.pairs[i].to;
	return NULL;
}

static void check_map(struct op *op, const char *a, const char *b)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (restore_map_gpus(op, &err) < 0)
		fprintf(stderr, "%s\n", err.text);
	CHECK(!err.code);
	CHECK(op->gpus.n_pairs == job.n_gpus);
	CHECK_STR(target(op, "GPU-a"), a);
	if (b)
		CHECK_STR(target(op, "GPU-b"), b);
	free(op->gpus.pairs);
}

static void check_refused(struct op *op, int code, const char *text)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(restore_map_gpus(op, &err) == -code);
	CHECK_STR(err.text, text);
	free(op->gpus.pairs);
}

static void test_stays(void)
{
	struct op op = begin_two();

	CHECK(restore_map_gpus(&op, NULL) == 0);
	CHECK(op.gpus.n_pairs == 0 && !notes[0]);
	free(op.gpus.pairs);

	op = begin(); /* without GPUs nobody is asked */
	broken = EPIPE;
	CHECK(restore_map_gpus(&op, NULL) == 0 && restore_check_vram(&op, NULL) == 0);
}

/* More GPUs than the job saw, in another order: each stays what it was. */
static void test_stays_among_others(void)
{
	struct op op = begin();

	saw(&job, "GPU-a", H200, 10);
	put_gpu("GPU-c", H200, 0);
	put_gpu("GPU-b", H200, 0);
	put_gpu("GPU-a", H200, 100);
	CHECK(restore_map_gpus(&op, NULL) == 0);
	CHECK(op.gpus.n_pairs == 0 && !notes[0]);
	free(op.gpus.pairs);
}

static void test_elsewhere(void)
{
	struct op op = begin();

	saw(&job, "GPU-a", H200, 10);
	saw(&job, "GPU-b", H200, 0);
	put_gpu("GPU-x", A100, 0);
	put_gpu("GPU-b", H200, 0);
	put_gpu("GPU-y", H200, 100);
	put_gpu("GPU-z", H200, 50); /* the one with most room */
	check_map(&op, "GPU-z", "GPU-b");
	CHECK_STR(notes, "GPU GPU-a is not here: on GPU-z instead");
}

/* A GPU that was only seen moves without a word. */
static void test_unused_elsewhere(void)
{
	struct op op = begin();

	saw(&job, "GPU-a", H200, 10);
	saw(&job, "GPU-b", H200, 0);
	put_gpu("GPU-a", H200, 0);
	put_gpu("GPU-z", H200, 0);
	check_map(&op, "GPU-a", "GPU-z");
	CHECK_STR(notes, "");
}

static void test_told(void)
{
	struct op op = begin_two();

	put_gpu("GPU-c", H200, 0);
	tell(&op, "GPU-a", "GPU-c");
	check_map(&op, "GPU-c", "GPU-b");

	op = begin_two(); /* whose place was taken goes to the one that became free */
	tell(&op, "GPU-a", "GPU-b");
	check_map(&op, "GPU-b", "GPU-a");
	CHECK_STR(notes, "");

	op = begin_two();
	tell(&op, "GPU-a", "GPU-b");
	tell(&op, "GPU-b", "GPU-a");
	check_map(&op, "GPU-b", "GPU-a");

	op = begin_two(); /* told to stay */
	tell(&op, "GPU-a", "GPU-a");
	CHECK(restore_map_gpus(&op, NULL) == 0);
	CHECK(op.gpus.n_pairs == 0);
	free(op.gpus.pairs);
}

/* Driver 570 cannot move a process to another GPU: said before the job is touched. */
static void test_told_to_an_old_driver(void)
{
	struct op op = begin_two();
	struct brumate_error err = BRUMATE_ERROR_NONE;

	features = DEV_CHECKPOINT;
	tell(&op, "GPU-a", "GPU-b");
	CHECK(restore_map_gpus(&op, &err) == -EOPNOTSUPP);
	CHECK(strstr(err.text, "cannot restore onto other GPUs"));
	features |= DEV_REMAP;
	free(op.gpus.pairs);
}

static void test_told_wrong(void)
{
	struct op op = begin_two();

	tell(&op, "GPU-a", "GPU-b");
	tell(&op, "GPU-b", "GPU-b");
	check_refused(&op, EINVAL, "GPU map: GPU GPU-b is the target of two GPUs");

	op = begin_two();
	tell(&op, "GPU-c", "GPU-b");
	check_refused(&op, EINVAL, "GPU map: the job saw no GPU GPU-c");

	op = begin_two();
	tell(&op, "GPU-a", "GPU-c");
	check_refused(&op, EINVAL, "GPU map: no GPU GPU-c here");

	op = begin_two();
	put_gpu("GPU-c", A100, 0);
	tell(&op, "GPU-a", "GPU-c");
	check_refused(&op, EOPNOTSUPP,
		      "GPU map: GPU GPU-c is a " A100 ", the job was on a " H200 " (GPU-a)");
}

/* One old GPU given two places would leave one of them out. */
static void test_told_twice(void)
{
	struct op op = begin_two();

	put_gpu("GPU-c", H200, 0);
	tell(&op, "GPU-a", "GPU-b");
	tell(&op, "GPU-a", "GPU-c");
	check_refused(&op, EINVAL, "GPU map: GPU-a is given twice");
}

static void test_no_place(void)
{
	struct op op = begin();

	saw(&job, "GPU-a", H200, 10);
	put_gpu("GPU-x", A100, 0);
	put_gpu("GPU-y", A100, 0);
	check_refused(&op, EOPNOTSUPP, "no free place here for the job's GPU GPU-a (" H200 ")");

	op = begin_two();
	n_here = 1;
	check_refused(&op, EOPNOTSUPP, "the job saw 2 GPUs, 1 are here");

	op = begin_two();
	broken = EPIPE;
	check_refused(&op, EPIPE, "broker: Broken pipe");
}

/* ---- memory ---- */

static void test_room(void)
{
	struct op op = begin_two();
	struct brumate_error err = BRUMATE_ERROR_NONE;

	here[0].used_bytes = 129ull * GIB; /* 11 GiB free of 140, 10 wanted */
	CHECK(restore_check_vram(&op, &err) == 0);
	here[1].used_bytes = here[1].total_bytes; /* full, but the job did not use it */
	CHECK(restore_check_vram(&op, &err) == 0);

	here[0].used_bytes = 130ull * GIB; /* as much as wanted, and no room for a context */
	CHECK(restore_check_vram(&op, &err) == -ENOSPC);
	CHECK_STR(err.text, "GPU GPU-a has 10.7 GB free, the job needs 10.8 GB");
	CHECK(strstr(err.hint, "--gpu-map"));

	here[0].used_bytes = 141ull * GIB; /* as some drivers count */
	CHECK(restore_check_vram(&op, &err) == -ENOSPC);
	CHECK_STR(err.text, "GPU GPU-a has 0.0 GB free, the job needs 10.8 GB");

	broken = ETIMEDOUT;
	CHECK(restore_check_vram(&op, &err) == -ETIMEDOUT);
}

/* What counts is the GPU it goes to. */
static void test_room_elsewhere(void)
{
	struct op op = begin_two();
	struct brumate_error err = BRUMATE_ERROR_NONE;

	here[0].used_bytes = here[0].total_bytes;
	tell(&op, "GPU-a", "GPU-b");
	CHECK(restore_map_gpus(&op, NULL) == 0);
	CHECK(restore_check_vram(&op, &err) == 0);
	here[1].used_bytes = 135ull * GIB;
	CHECK(restore_check_vram(&op, &err) == -ENOSPC);
	CHECK_STR(err.text, "GPU GPU-b has 5.4 GB free, the job needs 10.8 GB");
	free(op.gpus.pairs);
}

/* A small GPU keeps less back: 1/64 of it. */
static void test_room_of_a_small_gpu(void)
{
	struct op op = begin();

	saw(&job, "GPU-a", "Small", 0);
	put_gpu("GPU-a", "Small", 0);
	here[0].total_bytes = 64 << 20;
	job.gpus[0].bytes = 63 << 20;
	CHECK(restore_check_vram(&op, NULL) == 0);
	job.gpus[0].bytes++;
	CHECK(restore_check_vram(&op, NULL) == -ENOSPC);
}

/* ---- recording ---- */

static void test_recorded(void)
{
	struct op op = begin_two();
	struct gpu_process *processes = calloc(2, sizeof(*processes));

	CHECK(processes);
	op.gpus.items = processes;
	op.gpus.n = 2;
	for (int i = 0; i < 2; i++) {
		processes[i].dev.n_gpus = 1;
		strcpy(processes[i].dev.gpus[0], "GPU-b");
		processes[i].dev.gpu_bytes[0] = 3ull * GIB;
	}
	job.gpus = NULL;
	job.n_gpus = 0;
	CHECK(record_gpus(&op, NULL) == 0);
	CHECK(job.n_gpus == 2);
	CHECK_STR(job.gpus[0].uuid, "GPU-a");
	CHECK_STR(job.gpus[1].name, H200);
	CHECK(job.gpus[0].bytes == 0 && job.gpus[1].bytes == 6ull * GIB);
	free(job.gpus);
	free(processes);
}

int main(void)
{
	test_stays();
	test_stays_among_others();
	test_elsewhere();
	test_unused_elsewhere();
	test_told();
	test_told_to_an_old_driver();
	test_told_wrong();
	test_told_twice();
	test_no_place();
	test_room();
	test_room_elsewhere();
	test_room_of_a_small_gpu();
	test_recorded();
	return 0;
}

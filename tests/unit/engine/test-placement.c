// SPDX-License-Identifier: MIT
/* Where a job's GPUs come back: placement.c alone, with a broker that is told which GPUs are here. */
#include "engine/gpu-set.h"

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

int broker_client_gpus(struct broker_client *b, struct dev_gpu *ret, size_t *ret_n,
		       struct brumate_error *err)
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

uint64_t vault_device_bytes(const struct vault *v, const char *gpu)
{
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

static void saw(struct target *job, const char *uuid, const char *name, uint64_t gib)
{
	struct job_gpu *gpu = &job->gpus[job->n_gpus++];

	snprintf(gpu->uuid, sizeof(gpu->uuid), "%s", uuid);
	snprintf(gpu->name, sizeof(gpu->name), "%s", name);
	gpu->bytes = gib * GIB;
}

static void tell(struct gpu_set *gpus, const char *from, const char *to)
{
	gpus->pairs = realloc(gpus->pairs, (gpus->n_pairs + 1) * sizeof(*gpus->pairs));
	CHECK(gpus->pairs);
	struct dev_gpu_pair *pair = &gpus->pairs[gpus->n_pairs++];
	snprintf(pair->from, sizeof(pair->from), "%s", from);
	snprintf(pair->to, sizeof(pair->to), "%s", to);
}

static struct job_gpu job_gpus[DEV_GPUS_MAX];
static struct target job;

/* A job that saw nothing yet, on a machine without GPUs. */
static struct gpu_set begin(void)
{
	job = (struct target){ .id = "0123abcd", .gpus = job_gpus };
	n_here = 0;
	notes[0] = '\0';
	broken = 0;
	return (struct gpu_set){ .target = &job, .vendor = gpu_vendors[0] };
}

/* A job that saw two GPUs and used the first, where both are. */
static struct gpu_set begin_two(void)
{
	struct gpu_set gpus = begin();

	saw(&job, "GPU-a", H200, 10);
	saw(&job, "GPU-b", H200, 0);
	put_gpu("GPU-a", H200, 0);
	put_gpu("GPU-b", H200, 0);
	return gpus;
}

static const char *target(const struct gpu_set *gpus, const char *from)
{
	for (size_t i = 0; i < gpus->n_pairs; i++)
		if (!strcmp(gpus->pairs[i].from, from))
			return gpus->pairs[i].to;
	return NULL;
}

static void check_map(struct gpu_set *gpus, const char *a, const char *b)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (placement_map(&job, gpus, NULL, &err) < 0)
		fprintf(stderr, "%s\n", err.text);
	CHECK(!err.code);
	CHECK(gpus->n_pairs == job.n_gpus);
	CHECK_STR(target(gpus, "GPU-a"), a);
	if (b)
		CHECK_STR(target(gpus, "GPU-b"), b);
	free(gpus->pairs);
}

static void check_refused(struct gpu_set *gpus, int code, const char *text)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(placement_map(&job, gpus, NULL, &err) == -code);
	CHECK_STR(err.text, text);
	free(gpus->pairs);
}

static void test_stays(void)
{
	struct gpu_set gpus = begin_two();

	CHECK(placement_map(&job, &gpus, NULL, NULL) == 0);
	CHECK(gpus.n_pairs == 0 && !notes[0]);
	free(gpus.pairs);

	gpus = begin(); /* without GPUs nobody is asked */
	broken = EPIPE;
	CHECK(placement_map(&job, &gpus, NULL, NULL) == 0 &&
	      placement_check_room(&job, &gpus, NULL, NULL) == 0);
}

/* More GPUs than the job saw, in another order: each stays what it was. */
static void test_stays_among_others(void)
{
	struct gpu_set gpus = begin();

	saw(&job, "GPU-a", H200, 10);
	put_gpu("GPU-c", H200, 0);
	put_gpu("GPU-b", H200, 0);
	put_gpu("GPU-a", H200, 100);
	CHECK(placement_map(&job, &gpus, NULL, NULL) == 0);
	CHECK(gpus.n_pairs == 0 && !notes[0]);
	free(gpus.pairs);
}

static void test_elsewhere(void)
{
	struct gpu_set gpus = begin();

	saw(&job, "GPU-a", H200, 10);
	saw(&job, "GPU-b", H200, 0);
	put_gpu("GPU-x", A100, 0);
	put_gpu("GPU-b", H200, 0);
	put_gpu("GPU-y", H200, 100);
	put_gpu("GPU-z", H200, 50); /* the one with most room */
	check_map(&gpus, "GPU-z", "GPU-b");
	CHECK_STR(notes, "GPU GPU-a is not here: on GPU-z instead");
}

/* A GPU that was only seen moves without a word. */
static void test_unused_elsewhere(void)
{
	struct gpu_set gpus = begin();

	saw(&job, "GPU-a", H200, 10);
	saw(&job, "GPU-b", H200, 0);
	put_gpu("GPU-a", H200, 0);
	put_gpu("GPU-z", H200, 0);
	check_map(&gpus, "GPU-a", "GPU-z");
	CHECK_STR(notes, "");
}

static void test_told(void)
{
	struct gpu_set gpus = begin_two();

	put_gpu("GPU-c", H200, 0);
	tell(&gpus, "GPU-a", "GPU-c");
	check_map(&gpus, "GPU-c", "GPU-b");

	gpus = begin_two(); /* whose place was taken goes to the one that became free */
	tell(&gpus, "GPU-a", "GPU-b");
	check_map(&gpus, "GPU-b", "GPU-a");
	CHECK_STR(notes, "");

	gpus = begin_two();
	tell(&gpus, "GPU-a", "GPU-b");
	tell(&gpus, "GPU-b", "GPU-a");
	check_map(&gpus, "GPU-b", "GPU-a");

	gpus = begin_two(); /* told to stay */
	tell(&gpus, "GPU-a", "GPU-a");
	CHECK(placement_map(&job, &gpus, NULL, NULL) == 0);
	CHECK(gpus.n_pairs == 0);
	free(gpus.pairs);
}

/* Driver 570 cannot move a process to another GPU: said before the job is touched. */
static void test_told_to_an_old_driver(void)
{
	struct gpu_set gpus = begin_two();
	struct brumate_error err = BRUMATE_ERROR_NONE;

	features = DEV_CHECKPOINT;
	tell(&gpus, "GPU-a", "GPU-b");
	CHECK(placement_map(&job, &gpus, NULL, &err) == -EOPNOTSUPP);
	CHECK(strstr(err.text, "cannot restore onto other GPUs"));
	features |= DEV_REMAP;
	free(gpus.pairs);
}

static void test_told_wrong(void)
{
	struct gpu_set gpus = begin_two();

	tell(&gpus, "GPU-a", "GPU-b");
	tell(&gpus, "GPU-b", "GPU-b");
	check_refused(&gpus, EINVAL, "GPU map: GPU GPU-b is the target of two GPUs");

	gpus = begin_two();
	tell(&gpus, "GPU-c", "GPU-b");
	check_refused(&gpus, EINVAL, "GPU map: the job saw no GPU GPU-c");

	gpus = begin_two();
	tell(&gpus, "GPU-a", "GPU-c");
	check_refused(&gpus, EINVAL, "GPU map: no GPU GPU-c here");

	gpus = begin_two();
	put_gpu("GPU-c", A100, 0);
	tell(&gpus, "GPU-a", "GPU-c");
	check_refused(&gpus, EOPNOTSUPP,
		      "GPU map: GPU GPU-c is a " A100 ", the job was on a " H200 " (GPU-a)");
}

/* One old GPU given two places would leave one of them out. */
static void test_told_twice(void)
{
	struct gpu_set gpus = begin_two();

	put_gpu("GPU-c", H200, 0);
	tell(&gpus, "GPU-a", "GPU-b");
	tell(&gpus, "GPU-a", "GPU-c");
	check_refused(&gpus, EINVAL, "GPU map: GPU-a is given twice");
}

static void test_no_place(void)
{
	struct gpu_set gpus = begin();

	saw(&job, "GPU-a", H200, 10);
	put_gpu("GPU-x", A100, 0);
	put_gpu("GPU-y", A100, 0);
	check_refused(&gpus, EOPNOTSUPP, "no free place here for the job's GPU GPU-a (" H200 ")");

	gpus = begin_two();
	n_here = 1;
	check_refused(&gpus, EOPNOTSUPP, "the job saw 2 GPUs, 1 are here");

	gpus = begin_two();
	broken = EPIPE;
	check_refused(&gpus, EPIPE, "broker: Broken pipe");
}

/* ---- memory ---- */

static void test_room(void)
{
	struct gpu_set gpus = begin_two();
	struct brumate_error err = BRUMATE_ERROR_NONE;

	here[0].used_bytes = 129ull * GIB; /* 11 GiB free of 140, 10 wanted */
	CHECK(placement_check_room(&job, &gpus, NULL, &err) == 0);
	here[1].used_bytes = here[1].total_bytes; /* full, but the job did not use it */
	CHECK(placement_check_room(&job, &gpus, NULL, &err) == 0);

	here[0].used_bytes = 130ull * GIB; /* as much as wanted, and no room for a context */
	CHECK(placement_check_room(&job, &gpus, NULL, &err) == -ENOSPC);
	CHECK_STR(err.text, "GPU GPU-a has 10240 MiB free, the job needs 10304 MiB");
	CHECK(strstr(err.hint, "--gpu-map"));

	here[0].used_bytes = 141ull * GIB; /* as some drivers count */
	CHECK(placement_check_room(&job, &gpus, NULL, &err) == -ENOSPC);
	CHECK_STR(err.text, "GPU GPU-a has 0 MiB free, the job needs 10304 MiB");

	broken = ETIMEDOUT;
	CHECK(placement_check_room(&job, &gpus, NULL, &err) == -ETIMEDOUT);
}

/* What counts is the GPU it goes to. */
static void test_room_elsewhere(void)
{
	struct gpu_set gpus = begin_two();
	struct brumate_error err = BRUMATE_ERROR_NONE;

	here[0].used_bytes = here[0].total_bytes;
	tell(&gpus, "GPU-a", "GPU-b");
	CHECK(placement_map(&job, &gpus, NULL, NULL) == 0);
	CHECK(placement_check_room(&job, &gpus, NULL, &err) == 0);
	here[1].used_bytes = 135ull * GIB;
	CHECK(placement_check_room(&job, &gpus, NULL, &err) == -ENOSPC);
	CHECK_STR(err.text, "GPU GPU-b has 5120 MiB free, the job needs 10304 MiB");
	free(gpus.pairs);
}

/* A small GPU keeps less back: 1/64 of it. */
static void test_room_of_a_small_gpu(void)
{
	struct gpu_set gpus = begin();

	saw(&job, "GPU-a", "Small", 0);
	put_gpu("GPU-a", "Small", 0);
	here[0].total_bytes = 64 << 20;
	job.gpus[0].bytes = 63 << 20;
	CHECK(placement_check_room(&job, &gpus, NULL, NULL) == 0);
	job.gpus[0].bytes++;
	CHECK(placement_check_room(&job, &gpus, NULL, NULL) == -ENOSPC);
}

/* ---- recording ---- */

static void test_recorded(void)
{
	struct gpu_set gpus = begin_two();
	struct gpu_process *processes = calloc(2, sizeof(*processes));

	CHECK(processes);
	gpus.items = processes;
	gpus.n = 2;
	for (int i = 0; i < 2; i++) {
		processes[i].dev.n_gpus = 1;
		strcpy(processes[i].dev.gpus[0], "GPU-b");
		processes[i].dev.gpu_bytes[0] = 3ull * GIB;
	}
	job.gpus = NULL;
	job.n_gpus = 0;
	CHECK(placement_record(&job, &gpus, NULL) == 0);
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

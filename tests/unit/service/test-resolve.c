// SPDX-License-Identifier: MIT
/* What the words of a caller mean: numbers of GPUs, and names of jobs and checkpoints. */
#include <errno.h>
#include <string.h>

#include "check.h"
#include "job/scratch.h"
#include "service/resolve.h"
#include "wire/wire.h"

/* ---- GPUs ---- */

static void check_map(void)
{
	static const struct dev_gpu gpus[] = { { .uuid = "GPU-a" }, { .uuid = "GPU-b" } };
	auto_json json_t *given = json_pack("[{s:s,s:s},{s:s,s:s}]", "from", "0", "to", "1", "from",
					    "GPU-x", "to", "0");
	auto_json json_t *bad = json_pack("[{s:s,s:s}]", "from", "0", "to", "2");
	auto_json json_t *plain = json_pack("[{s:s,s:s}]", "from", "GPU-a", "to", "GPU-b");
	auto_json json_t *odd = json_pack("[{s:s,s:i}]", "from", "GPU-a", "to", 1);
	auto_json json_t *want = json_pack("[{s:s,s:s},{s:s,s:s}]", "from", "GPU-a", "to", "GPU-b",
					   "from", "GPU-x", "to", "GPU-a");
	auto_json json_t *got = NULL;
	json_t *untouched = NULL;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(gpu_map_has_numbers(given) && !gpu_map_has_numbers(plain));
	CHECK(gpu_map_resolve(&got, given, gpus, 2, NULL) == 0);
	CHECK(json_equal(got, want));
	CHECK(gpu_map_resolve(&untouched, bad, gpus, 2, &err) == -EINVAL);
	CHECK_STR(err.text, "GPU map: there is no GPU 2 (this machine has 2)");
	CHECK(gpu_map_resolve(&untouched, odd, gpus, 2, &err) == -EINVAL);
	CHECK(!untouched);
}

/* ---- jobs and checkpoints ---- */

static char store[PATH_MAX + 16];

static void make_job(const char *id, const char *name, const char *checkpoint)
{
	static const char *const argv[] = { "true", NULL };
	const struct job_spec spec = {
		.id = id, .name = name, .argv = (char *const *)argv, .cwd = "/", .uid = 1000
	};
	auto_(job_fini) struct job j = JOB_EMPTY;

	CHECK(job_create(&j, &spec, NULL) == 0);
	j.checkpoint = checkpoint ? strdup(checkpoint) : NULL;
	CHECK(job_save(&j, NULL) == 0);
}

/* It cannot be opened, as it is empty, but root may name it. */
static void make_checkpoint(const char *id)
{
	char path[PATH_MAX + 64];

	snprintf(path, sizeof(path), "%s/%s", store, id);
	CHECK(mkdir(path, 0700) == 0);
}

static int resolve(struct resolve_question q, char ret_job[static JOB_ID_BYTES])
{
	const struct service_call by_root = { .uid = 0 };
	auto_(job_fini) struct job j = JOB_EMPTY;

	q.call = q.call ? q.call : &by_root;
	q.dir = store;
	int r = resolve_word(&j, &q, NULL);
	snprintf(ret_job, JOB_ID_BYTES, "%s", j.id);
	return r;
}

static void check_words(void)
{
	const struct service_call by_other = { .uid = 1001 };
	char job[JOB_ID_BYTES];

	make_job("aaaa1111", "train", NULL);
	make_job("bbbb2222", "both", NULL);
	make_job("cccc3333", "latest", "latest");
	make_checkpoint("both");
	make_checkpoint("train-1");
	make_checkpoint("latest");

	CHECK(resolve((struct resolve_question){ .word = "train" }, job) == MEANS_JOB);
	CHECK_STR(job, "aaaa1111");
	CHECK(resolve((struct resolve_question){ .word = "bbbb" }, job) == MEANS_JOB);
	CHECK_STR(job, "bbbb2222");
	CHECK(resolve((struct resolve_question){ .word = "train-1" }, job) == MEANS_CHECKPOINT);
	CHECK(resolve((struct resolve_question){ .word = "nothing" }, job) == MEANS_CHECKPOINT);
	CHECK(resolve((struct resolve_question){ .word = "both" }, job) == -ENOTUNIQ);
	CHECK(resolve((struct resolve_question){ .word = "latest" }, job) == -ENOTUNIQ);
	/* To be restored, a job stands for its latest checkpoint, so the two are one. */
	CHECK(resolve((struct resolve_question){ .word = "latest", .by_latest = true }, job) ==
	      MEANS_CHECKPOINT);
	/* The caller says which. */
	CHECK(resolve((struct resolve_question){ .word = "both", .kind = "job" }, job) ==
	      MEANS_JOB);
	CHECK(resolve((struct resolve_question){ .word = "both", .kind = "checkpoint" }, job) ==
	      MEANS_CHECKPOINT);
	CHECK(resolve((struct resolve_question){ .word = "both", .kind = "tree" }, job) == -EINVAL);
	CHECK(resolve((struct resolve_question){ .word = "train", .dir_given = true }, job) ==
	      MEANS_CHECKPOINT);
	CHECK(resolve((struct resolve_question){ .word = "/data/train" }, job) == MEANS_CHECKPOINT);
	/* Of what is another user's nothing is meant, unless it is named as a job. */
	CHECK(resolve((struct resolve_question){ .word = "nothing", .call = &by_other }, job) ==
	      MEANS_CHECKPOINT);
	CHECK(resolve((struct resolve_question){ .word = "train",
						 .kind = "job",
						 .call = &by_other },
		      job) == -EACCES);
}

int main(void)
{
	new_scratch();
	snprintf(store, sizeof(store), "%s/store", scratch);
	CHECK(mkdir(store, 0700) == 0);
	check_map();
	check_words();
	remove_scratch();
	return 0;
}

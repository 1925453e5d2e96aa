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
	const struct service_call call = { .uid = 0 };
	auto_(job_fini) struct job j = JOB_EMPTY;

	q.call = &call;
	q.dir = store;
	int r = resolve_word(&j, &q, NULL);
	snprintf(ret_job, JOB_ID_BYTES, "%s", j.id);
	return r;
}

static void check_words(void)
{
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
}

/* What is to be removed is not guessed. */
static int resolve_strictly(struct resolve_question q, struct brumate_error *err)
{
	const struct service_call call = { .uid = 0 };
	auto_(job_fini) struct job j = JOB_EMPTY;

	q.call = &call;
	q.dir = store;
	*err = BRUMATE_ERROR_NONE;
	return resolve_exactly(&j, &q, err);
}

static void check_exact_words(void)
{
	static const struct {
		const char *word, *kind;
		int r;
	} cases[] = {
		{ "train", NULL, MEANS_JOB },
		{ "aaaa1111", NULL, MEANS_JOB },
		{ "aaaa111", NULL, -EINVAL },
		{ "aaaa111", "job", -EINVAL },
		{ "train-1", NULL, MEANS_CHECKPOINT },
		{ "train-", NULL, -EBADMSG }, /* it begins train-1, which is damaged */
		{ "train-", "checkpoint", -EBADMSG },
		{ "train", "checkpoint", -EBADMSG },
		{ "train-1", "job", -ENOENT },
		{ "both", NULL, -ENOTUNIQ },
		{ "both", "job", MEANS_JOB },
		{ "both", "checkpoint", MEANS_CHECKPOINT },
		{ "nothing", NULL, -ENOENT },
		{ "nothing", "checkpoint", -ENOENT },
	};
	struct brumate_error err;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int r = resolve_strictly(
			(struct resolve_question){ .word = cases[i].word, .kind = cases[i].kind },
			&err);

		if (r != cases[i].r)
			fprintf(stderr, "%s: %d, %s\n", cases[i].word, r, err.text);
		CHECK(r == cases[i].r && (r >= 0 || err.text[0]));
	}
}

int main(void)
{
	new_scratch();
	snprintf(store, sizeof(store), "%s/store", scratch);
	CHECK(mkdir(store, 0700) == 0);
	check_map();
	check_words();
	check_exact_words();
	remove_scratch();
	return 0;
}

// SPDX-License-Identifier: MIT
/*
 * The machine crashes after every call that writes a record, with what was not synced lost or there
 * (tests/recorder). A record that was to last is read as it was saved from then on, and while another one that is
 * to last takes its place, one of the two is read. The record of a living job may be lost, never read wrong.
 */
#include "job/job.h"

#include <errno.h>

#include "recorder/recorder.h"
#include "scratch.h"

static const char id[] = "0123abcd";
static enum job_state before, after; /* what may be read */
static bool lasts;		     /* one of them must be */
static unsigned n_crashes, n_read;

static void save(struct job *j, enum job_state state, bool to_last)
{
	record_mark("saving %d %d %d", (int)j->state, (int)state, to_last);
	CHECK(job_set_state(j, state, NULL) == 0);
	record_mark("saved %d %d %d", (int)state, (int)state, to_last);
}

static void obey_mark(const char *text)
{
	int old, new, to_last;
	bool is_saving = sscanf(text, "saving %d %d %d", &old, &new, &to_last) == 3;

	if (!is_saving && sscanf(text, "saved %d %d %d", &old, &new, &to_last) != 3)
		return;
	before = (enum job_state)old;
	after = (enum job_state) new;
	lasts = to_last && (!is_saving || lasts);
}

static void on_crash(void *arg, const char *how)
{
	struct job j;

	n_crashes++;
	if (job_load(&j, id, NULL) < 0) {
		if (lasts)
			fprintf(stderr, "%s: the record of a job that is %s is lost\n", how,
				job_state_name(after));
		CHECK(!lasts);
		return;
	}
	n_read++;
	CHECK(!lasts || j.state == before || j.state == after);
	job_fini(&j);
}

static void replay_all(const struct record *records, size_t n)
{
	struct replay *p = replay_new();
	char root[PATH_MAX + 8], state_dir[PATH_MAX + 16];

	CHECK(snprintf(root, sizeof(root), "%.*s.crash", PATH_MAX - 32, scratch) > 0);
	CHECK(mkdir(root, 0700) == 0);
	snprintf(state_dir, sizeof(state_dir), "%s/state", root);
	CHECK(setenv("BRUMATE_STATE_DIR", state_dir, 1) == 0);
	for (size_t i = 0; i < n; i++) {
		replay_apply(p, &records[i]);
		if (records[i].kind == RECORD_MARK)
			obey_mark(records[i].name);
		replay_crashes(p, root, on_crash, NULL);
	}
	replay_free(p);
	CHECK(remove_tree(AT_FDCWD, root) == 0);
}

int main(void)
{
	static const char *const argv[] = { "/usr/bin/train", NULL };
	const struct job_spec spec = {
		.id = id, .name = "train", .argv = (char *const *)argv, .cwd = "/"
	};
	struct job j;
	size_t n;

	new_scratch();
	CHECK(rmdir(getenv("BRUMATE_STATE_DIR")) == 0 && rmdir(getenv("BRUMATE_LOG_DIR")) == 0);
	record_start(scratch);
	CHECK(mkdir(getenv("BRUMATE_STATE_DIR"), 0700) == 0 && sync_dir(AT_FDCWD, scratch) == 0);
	CHECK(job_create(&j, &spec, NULL) == 0);
	save(&j, JOB_RUNNING, false);
	save(&j, JOB_CHECKPOINTING, false);
	save(&j, JOB_CHECKPOINTED, true);
	save(&j, JOB_RESTORING, false);
	save(&j, JOB_CHECKPOINTED, true);
	save(&j, JOB_RESTORING, false);
	save(&j, JOB_RUNNING, false);
	save(&j, JOB_EXITED, true);
	job_fini(&j);

	const struct record *records = record_stop(&n);
	replay_all(records, n);
	printf("%zu calls, %u different crashes, %u records read\n", n, n_crashes, n_read);
	CHECK(n_crashes > 20 && n_read > 5);
	record_free();
	remove_scratch();
	return 0;
}

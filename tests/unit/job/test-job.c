// SPDX-License-Identifier: MIT
/* Jobs on disk: creating, finding, listing, removing, and what of a record is still true. */
#include "job/job.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/fd.h"
#include "base/paths.h"
#include "job/events.h"
#include "scratch.h"

static const char *const words[] = { "/usr/bin/train", "--lr", "0.1", NULL };

static const struct job_spec plain = {
	.argv = (char *const *)words, .cwd = "/home", .uid = 1000, .gid = 100
};

static struct job created(const char *id, const char *name)
{
	struct job_spec spec = plain;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct job j;

	spec.id = id;
	spec.name = name;
	if (job_create(&j, &spec, &err) < 0)
		fprintf(stderr, "%s\n", err.text);
	CHECK(!err.code);
	return j;
}

static void put_job(const char *id, const char *name)
{
	struct job j = created(id, name);

	job_fini(&j);
}

static char *path_in(const char *id, const char *name)
{
	char *path = path_format("%s/jobs/%s%s%s", path_state_dir(), id, name ? "/" : "",
				 name ? name : "");

	CHECK(path);
	return path;
}

static void clear(void)
{
	CHECK(remove_tree(AT_FDCWD, path_state_dir()) == 0);
	CHECK(mkdir(path_state_dir(), 0700) == 0);
}

/* ---- creating ---- */

static void check_mode(const char *path, mode_t mode)
{
	struct stat st;

	CHECK(stat(path, &st) == 0);
	CHECK((st.st_mode & 07777) == mode);
}

static void test_created(void)
{
	auto_(job_fini) struct job j = created(NULL, NULL);
	auto_(job_fini) struct job loaded = JOB_EMPTY;
	char name[JOB_NAME_BYTES], log[PATH_MAX + 32];
	auto_free char *dir = path_in(j.id, NULL), *record = path_in(j.id, "job.json");

	snprintf(name, sizeof(name), "train-%.4s", j.id);
	snprintf(log, sizeof(log), "%s/%s.log", path_log_dir(), j.id);
	check_mode(dir, 0700);
	check_mode(record, 0600);
	CHECK(job_load(&loaded, j.id, NULL) == 0);
	CHECK(strlen(loaded.id) == 8);
	CHECK_STR(loaded.id, j.id);
	CHECK_STR(loaded.name, name);
	CHECK_STR(loaded.dir, dir);
	CHECK_STR(loaded.log, log);
	CHECK_STR(loaded.cwd, "/home");
	CHECK_STR(loaded.argv[2], "0.1");
	CHECK(!loaded.argv[3] && loaded.uid == 1000 && loaded.gid == 100);
	CHECK(loaded.state == JOB_CREATED && loaded.exit_code == JOB_EXIT_UNKNOWN);
	CHECK(!loaded.root.pid && loaded.boot_id[0] && loaded.created[0]);
	clear();
}

/* A name is made from any command, also from one that has nothing of a name in it. */
static void test_default_names(void)
{
	static const struct {
		const char *command, *begins;
	} cases[] = {
		{ "/opt/a b/run me!.sh", "runme.sh-" },
		{ "./.hidden", "hidden-" },
		{ "\xff\xfe", "" },
		{ "/", "" },
		{ "a-command-with-a-name-of-far-more-than-forty-letters",
		  "a-command-with-a-name-of-far-more-than-f-" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const char *argv[] = { cases[i].command, NULL };
		struct job_spec spec = { .argv = (char *const *)argv };
		auto_(job_fini) struct job j = JOB_EMPTY, found = JOB_EMPTY;
		char want[JOB_NAME_BYTES];

		CHECK(job_create(&j, &spec, NULL) == 0);
		snprintf(want, sizeof(want), "%s%.4s", cases[i].begins, j.id);
		CHECK_STR(j.name, want);
		CHECK(job_find(&found, j.name, NULL) == 0);
		CHECK_STR(found.id, j.id);
	}
	clear();
}

static void test_bad_names(void)
{
	static const char *const names[] = {
		"",	"-x",
		".x",	"_x",
		"a b",	"a/b",
		"../x", "caf\xc3\xa9",
		"a\nb", "0123456789012345678901234567890123456789012345678901234567890123",
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		struct job_spec spec = plain;
		struct brumate_error err = BRUMATE_ERROR_NONE;
		struct job untouched = JOB_EMPTY;

		spec.name = names[i];
		CHECK(job_create(&untouched, &spec, &err) == -EINVAL);
		CHECK(strstr(err.text, "expected 1 to 63 letters"));
		CHECK(!untouched.dir);
	}
	put_job(NULL, "012345678901234567890123456789012345678901234567890123456789012");
	put_job(NULL, "A1._-");
	clear();
}

/* The id of a restored job comes out of a manifest, so it is foreign. */
static void test_bad_ids(void)
{
	static const char *const ids[] = { "",	       "0123abc",  "0123abcde",
					   "0123ABCD", "../../ab", "0123abc/" };

	for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
		struct job_spec spec = plain;
		struct brumate_error err = BRUMATE_ERROR_NONE;
		struct job j = JOB_EMPTY;

		spec.id = ids[i];
		CHECK(job_create(&j, &spec, &err) == -EBADMSG);
		CHECK(strstr(err.text, "8 hexadecimal digits"));
		CHECK(job_load(&j, ids[i], &err) == -ENOENT);
	}
}

static void check_taken(const char *id, const char *name, const char *text)
{
	struct job_spec spec = plain;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct job j = JOB_EMPTY;

	spec.id = id;
	spec.name = name;
	CHECK(job_create(&j, &spec, &err) == -EEXIST);
	CHECK_STR(err.text, text);
	CHECK(brumate_exit_code(&err) == EXIT_BUSY);
}

static void test_taken(void)
{
	put_job("aa000001", "one");
	check_taken(NULL, "one", "name one is taken by job aa000001");
	check_taken(NULL, "aa000001", "name aa000001 is taken by job aa000001");
	check_taken("aa000001", "two", "job aa000001 exists");
	put_job(NULL, "on"); /* the beginning of a name is free */
	clear();
}

/* ---- finding ---- */

static void check_found(const char *word, const char *id)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (job_find(&j, word, &err) < 0)
		fprintf(stderr, "%s: %s\n", word, err.text);
	CHECK_STR(j.id, id);
}

static void check_not_found(const char *word, int code)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct job untouched = JOB_EMPTY;

	CHECK(job_find(&untouched, word, &err) == -code);
	CHECK(brumate_exit_code(&err) == EXIT_NOT_FOUND);
	CHECK(strstr(err.text, word) && err.hint[0]);
	CHECK(!untouched.dir);
}

static void test_found(void)
{
	check_not_found("aa", ENOENT); /* before there is a directory of jobs */
	put_job("aa000001", "one");
	put_job("aa000002", "two");
	put_job("bb000001", "aa"); /* a name that is also the beginning of two ids */
	check_found("aa000001", "aa000001");
	check_found("aa000002", "aa000002");
	check_found("two", "aa000002");
	check_found("bb", "bb000001");
	check_found("bb00000", "bb000001");
	check_found("aa", "bb000001");
	/* One character is no prefix: too many jobs begin so. */
	check_not_found("b", ENOENT);
	check_not_found("a", ENOENT);
	check_not_found("aa00000", ENOTUNIQ);
	check_not_found("", ENOENT);
	check_not_found("tw", ENOENT);
	check_not_found("aa0000011", ENOENT);
	check_not_found("../state", ENOENT);
	clear();
}

static void test_found_by_pid(void)
{
	auto_(job_fini) struct job j = created("aa000001", "mine"), found = JOB_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int hold[2];

	CHECK(pipe(hold) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		char byte;

		close(hold[1]);
		_exit(read(hold[0], &byte, 1) != 0);
	}
	CHECK(proc_identify(&j.root, getpid(), NULL) == 0);
	CHECK(job_save(&j, NULL) == 0);
	CHECK(job_find_by_pid(&found, child, &err) == 0);
	CHECK_STR(found.id, "aa000001");
	CHECK(job_find_by_pid(&found, getppid(), &err) == -ENOENT);
	close(hold[1]);
	CHECK(waitpid(child, NULL, 0) == child);
	close(hold[0]);
	clear();
}

/* ---- listing ---- */

struct seen {
	char ids[256], why[1024];
};

static void see(void *arg, const struct job *j, const char *id, const struct brumate_error *why)
{
	struct seen *s = arg;

	CHECK(!j == (why != NULL));
	CHECK(!j || !strcmp(j->id, id));
	strcat(s->ids, id);
	strcat(s->ids, j ? " " : "! ");
	if (why)
		snprintf(s->why, sizeof(s->why), "%s", why->text);
}

static void set_age(const char *id, const char *stamp)
{
	auto_(job_fini) struct job j = JOB_EMPTY;

	CHECK(job_load(&j, id, NULL) == 0);
	snprintf(j.created, sizeof(j.created), "%s", stamp);
	CHECK(job_save(&j, NULL) == 0);
}

static void put_text(const char *id, const char *text)
{
	auto_free char *path = path_in(id, "job.json");

	CHECK(file_swap(AT_FDCWD, path, text, strlen(text), 0600) == 0);
}

static void test_listed(void)
{
	struct seen s = { .ids = "" };

	CHECK(job_list(see, &s, NULL) == 0);
	CHECK_STR(s.ids, "");
	put_job("cc000001", "c");
	put_job("aa000001", "a");
	put_job("bb000001", "b");
	set_age("bb000001", "2026-01-01T00:00:00.000Z");
	set_age("cc000001", "2026-01-01T00:00:00.001Z");
	set_age("aa000001", "2026-01-02T00:00:00.000Z");

	auto_free char *stranger = path_in("lost+found", NULL), *empty = path_in("dd000001", NULL);
	CHECK(mkdir(stranger, 0700) == 0);
	CHECK(mkdir(empty, 0700) == 0); /* as one that is being removed */
	CHECK(job_list(see, &s, NULL) == 0);
	CHECK_STR(s.ids, "bb000001 cc000001 aa000001 ");
	clear();
}

static void put_end(const char *id, time_t s)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	auto_free char *path = path_in(id, "job.json");
	const struct timespec times[] = { { .tv_sec = s }, { .tv_sec = s } };

	CHECK(job_load(&j, id, NULL) == 0);
	j.state = JOB_EXITED;
	CHECK(job_save(&j, NULL) == 0);
	CHECK(utimensat(AT_FDCWD, path, times, 0) == 0);
}

/* Neither one that lives and was not written for long, nor a link to a record, is left out. */
static void test_listed_since(void)
{
	struct seen s = { .ids = "" };
	auto_free char *record = path_in("dd000001", "job.json"),
		       *old = path_in("aa000001", "job.json");
	const struct timespec times[] = { { .tv_sec = 100 }, { .tv_sec = 100 } };
	size_t n;

	put_job("aa000001", "a");
	put_job("bb000001", "b");
	put_job("cc000001", "c");
	put_job("dd000001", "d");
	put_end("aa000001", 100);
	put_end("bb000001", 300);
	CHECK(unlink(record) == 0 && symlink(old, record) == 0);
	auto_free char *living = path_in("cc000001", "job.json");
	CHECK(utimensat(AT_FDCWD, living, times, 0) == 0);
	CHECK(job_list_since(200 * 1000, &n, see, &s, NULL) == 0);
	CHECK(n == 1 && strstr(s.ids, "bb000001 ") && strstr(s.ids, "cc000001 ") &&
	      strstr(s.ids, "dd000001! ") && !strstr(s.ids, "aa000001"));
	s = (struct seen){ .ids = "" };
	CHECK(job_list_since(0, &n, see, &s, NULL) == 0);
	CHECK(n == 0 && strstr(s.ids, "aa000001 "));
	clear();
}

static void test_damaged(void)
{
	struct seen s = { .ids = "" };
	auto_free char *path = path_in("aa000001", "job.json");
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct job untouched = JOB_EMPTY;

	put_job("aa000001", "a");
	put_job("bb000001", "b");
	put_text("aa000001", "{\"version\": 1");
	CHECK(job_list(see, &s, NULL) == 0);
	CHECK_STR(s.ids, "bb000001 aa000001! ");
	CHECK(strstr(s.why, path));
	CHECK(job_load(&untouched, "aa000001", &err) == -EBADMSG);
	CHECK(strstr(err.text, path));
	CHECK(job_find(&untouched, "aa", &err) == -EBADMSG);
	CHECK(!untouched.dir);
	check_found("b", "bb000001");
	clear();
}

/* A record that was copied into another job's directory must not stand for that job. */
static void test_record_of_another(void)
{
	auto_free char *from = path_in("aa000001", "job.json");
	auto_free char *text = NULL;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct job untouched = JOB_EMPTY;

	put_job("aa000001", "a");
	put_job("bb000001", "b");
	CHECK(file_read(AT_FDCWD, from, 1 << 20, &text, NULL) == 0);
	put_text("bb000001", text);
	CHECK(job_load(&untouched, "bb000001", &err) == -EBADMSG);
	CHECK(strstr(err.text, "aa000001") && strstr(err.text, "bb000001/job.json"));
	CHECK(!untouched.dir);
	clear();
}

/* ---- alive ---- */

static void test_alive(void)
{
	auto_(job_fini) struct job j = created(NULL, NULL);

	CHECK(job_has_ended(&j));
	CHECK(proc_identify(&j.root, getpid(), NULL) == 0);
	CHECK(!job_has_ended(&j));
	j.root.start_ticks++; /* the pid is another process's now */
	CHECK(job_has_ended(&j));
	j.root.start_ticks--;
	j.boot_id[0] = j.boot_id[0] == '0' ? '1' : '0'; /* the record is of another boot */
	CHECK(job_has_ended(&j));
	clear();
}

static void test_zombie_is_not_alive(void)
{
	auto_(job_fini) struct job j = created(NULL, NULL);
	int hold[2];
	siginfo_t info;

	CHECK(pipe(hold) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		char byte;

		close(hold[1]);
		_exit(read(hold[0], &byte, 1) != 0);
	}
	CHECK(proc_identify(&j.root, child, NULL) == 0);
	CHECK(!job_has_ended(&j));
	close(hold[1]);
	CHECK(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT) == 0);
	CHECK(job_has_ended(&j));
	CHECK(waitpid(child, NULL, 0) == child);
	close(hold[0]);
	clear();
}

/* ---- states ---- */

static void test_set_state(void)
{
	auto_(job_fini) struct job j = created("aa000001", "a"), loaded = JOB_EMPTY;
	int status;

	CHECK(job_set_state(&j, JOB_RUNNING, NULL) == 0);
	CHECK(job_load(&loaded, "aa000001", NULL) == 0);
	CHECK(loaded.state == JOB_RUNNING);

	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(freopen("/dev/null", "w", stderr));
		job_set_state(&j, JOB_RESTORING, NULL); /* not from running: an assertion of ours */
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	clear();
}

/* ---- removing ---- */

static void put_log(const char *path)
{
	CHECK(file_swap(AT_FDCWD, path, "output\n", 7, 0600) == 0);
}

static void test_removed(void)
{
	auto_(job_fini) struct job j = created("aa000001", "a");
	struct brumate_error err = BRUMATE_ERROR_NONE;
	auto_free char *dir = path_in("aa000001", NULL), *log = strdup(j.log);

	put_log(j.log);
	CHECK(proc_identify(&j.root, getpid(), NULL) == 0);
	j.state = JOB_RUNNING;
	CHECK(job_remove(&j, true, &err) == -EBUSY);
	CHECK_STR(err.text, "job aa000001 (a) is running");
	CHECK(is_there(dir) && is_there(log));
	j.root = PROC_ID_NONE;
	CHECK(job_remove(&j, true, &err) == 0);
	CHECK(!is_there(dir) && !is_there(log));
	CHECK(job_load(&j, "aa000001", NULL) == -ENOENT);
}

static int count_events(const char *kind)
{
	auto_free char *path = path_format("%s/%s", path_state_dir(), EVENTS_FILE), *text = NULL;
	int n = 0;

	CHECK(path && file_read(AT_FDCWD, path, EVENTS_BYTES_MAX, &text, NULL) == 0);
	for (const char *at = text; (at = strstr(at, kind)); at += strlen(kind))
		n++;
	return n;
}

/* Both have loaded it before either removes it, as a shim and a command may. */
static void test_removed_by_two(void)
{
	auto_(job_fini) struct job one = JOB_EMPTY, other = JOB_EMPTY;

	clear();
	put_job("aa000001", "a");
	CHECK(job_load(&one, "aa000001", NULL) == 0 && job_load(&other, "aa000001", NULL) == 0);
	CHECK(job_remove(&one, true, NULL) == 0 && job_remove(&other, true, NULL) == 0);
	CHECK(count_events("\"removed\"") == 1);
}

static void remove_and_be_killed(const char *fault_file)
{
	auto_(job_fini) struct job j = JOB_EMPTY;

	setenv("BRUMATE_FAULT_FILE", fault_file, 1);
	_exit(job_load(&j, "aa000001", NULL) == 0 ? job_remove(&j, true, NULL) : 1);
}

/* Whoever removes it is killed in the middle: it is removed, and the next to come sweeps. */
static void test_half_removed(void)
{
	auto_(job_fini) struct job j = created("aa000001", "a"), next = JOB_EMPTY;
	auto_free char *dir = path_in("aa000001", NULL), *left = path_in(".removed-aa000001", NULL);
	char fault[PATH_MAX + 16];
	int status;

	snprintf(fault, sizeof(fault), "%s/fault", scratch);
	CHECK(is_there(j.dir) && file_swap(AT_FDCWD, fault, "job.removed kill\n", 17, 0600) == 0);
	pid_t pid = fork();
	if (pid == 0)
		remove_and_be_killed(fault);
	CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
	CHECK(!is_there(dir) && is_there(left));
	CHECK(job_load(&next, "aa000001", NULL) == -ENOENT);
	next = created("aa000001", "a");
	CHECK(!is_there(left) && is_there(dir));
	CHECK(job_remove(&next, true, NULL) == 0);
	CHECK(!is_there(left) && !is_there(dir));
}

/* A restore that begins while the job is removed leaves no place for its agents. */
static void test_agents_of_a_removed_job(void)
{
	auto_(job_fini) struct job j = created("aa000001", "a");
	auto_free char *agents = job_agent_dir(&j.target);

	CHECK(job_make_agent_dir(&j.target, NULL) == 0 && is_there(agents));
	CHECK(job_remove(&j, true, NULL) == 0 && !is_there(agents));
	CHECK(job_make_agent_dir(&j.target, NULL) == -ENOENT && !is_there(agents));
}

static void test_foreign_log_stays(void)
{
	struct job_spec spec = plain;
	auto_(job_fini) struct job j = JOB_EMPTY;
	char log[PATH_MAX + 16];

	snprintf(log, sizeof(log), "%s/user.log", scratch);
	put_log(log);
	spec.log = log;
	CHECK(job_create(&j, &spec, NULL) == 0);
	CHECK(job_remove(&j, true, NULL) == 0);
	CHECK(is_there(log));
}

/* ---- as users see it ---- */

static const char *string_of(json_t *o, const char *key)
{
	return json_string_value(json_object_get(o, key));
}

static void test_shown(void)
{
	static const char *const argv[] = { "run", "caf\xe9", NULL };
	struct job_spec spec = {
		.argv = (char *const *)argv, .cwd = "/\xff", .uid = 4294967294u, .by_pid = true
	};
	auto_(job_fini) struct job j = JOB_EMPTY;

	CHECK(job_create(&j, &spec, NULL) == 0);
	auto_json json_t *o = job_to_json(&j);
	auto_free char *text = o ? json_dumps(o, 0) : NULL;
	CHECK(text);
	CHECK_STR(string_of(o, "state"), "created");
	CHECK_STR(string_of(o, "cwd"), "/?");
	CHECK_STR(json_string_value(json_array_get(json_object_get(o, "argv"), 1)), "caf?");
	CHECK(json_integer_value(json_object_get(o, "uid")) == 4294967294ll);
	CHECK(json_is_null(json_object_get(o, "log")) && json_is_null(json_object_get(o, "pid")));
	CHECK(json_is_null(json_object_get(o, "message")) &&
	      json_is_null(json_object_get(o, "exit_code")));
	CHECK(json_is_true(json_object_get(o, "by_pid")));
	clear();
}

static void check_shown(struct job *j, enum job_state state, const char *shown, int exit_code)
{
	j->state = state;
	auto_json json_t *o = job_to_json(j);
	CHECK(o);
	CHECK_STR(string_of(o, "state"), shown);
	json_t *code = json_object_get(o, "exit_code");
	CHECK(exit_code < 0 ? json_is_null(code) : json_integer_value(code) == exit_code);
}

static void test_shown_states(void)
{
	auto_(job_fini) struct job j = created("aa000001", "a");

	j.exit_code = 3;
	check_shown(&j, JOB_RUNNING, "lost",
		    -1); /* nothing of it is there, and no shim to say why */
	check_shown(&j, JOB_SUSPENDED, "lost", -1);
	check_shown(&j, JOB_CHECKPOINTED, "checkpointed", -1);
	check_shown(&j, JOB_EXITED, "exited", 3);
	CHECK(proc_identify(&j.root, getpid(), NULL) == 0);
	check_shown(&j, JOB_RUNNING, "running", -1);
	auto_json json_t *o = job_to_json(&j);
	CHECK(json_integer_value(json_object_get(o, "pid")) == getpid());
	CHECK(json_integer_value(json_object_get(o, "processes")) >= 1);
	clear();
}

static void test_last_summary(void)
{
	auto_(job_fini) struct job j = created("aa000001", "a");
	auto_free char *path = path_in("aa000001", "last.json");

	CHECK(!job_last_summary(&j));
	CHECK(file_swap(AT_FDCWD, path, "{\"operation\": \"suspend\"}", 24, 0600) == 0);
	auto_json json_t *o = job_last_summary(&j);
	CHECK_STR(string_of(o, "operation"), "suspend");
	CHECK(file_swap(AT_FDCWD, path, "{\"oper", 6, 0600) == 0);
	CHECK(!job_last_summary(&j));
	clear();
}

int main(void)
{
	new_scratch();
	test_created();
	test_default_names();
	test_bad_names();
	test_bad_ids();
	test_taken();
	test_found();
	test_found_by_pid();
	test_listed();
	test_listed_since();
	test_damaged();
	test_record_of_another();
	test_alive();
	test_zombie_is_not_alive();
	test_set_state();
	test_removed();
	test_removed_by_two();
	test_half_removed();
	test_agents_of_a_removed_job();
	test_foreign_log_stays();
	test_shown();
	test_shown_states();
	test_last_summary();
	remove_scratch();
	return 0;
}

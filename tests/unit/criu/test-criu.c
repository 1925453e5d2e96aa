// SPDX-License-Identifier: MIT
/* The real CRIU on a real little tree: what must survive a dump, a restore, a failure at each point,
 * CRIU's death at each point and a cancellation in the middle. */
#include "process/job.h"
#include "dump.h"
#include "sanitized.h"

#include <sys/un.h>

static struct criu_program program;

/* What the callbacks of one operation do, and saw. */
struct script {
	struct criu_options options;
	int fail_at, kill_at;		      /* an event, or -1 */
	off_t cancel_at_bytes, kill_at_bytes; /* of page images; 0: never */
	struct proc_id criu;
	pid_t killer; /* where kill_at_bytes is set; it ends with 0 if all was as it should be */
	bool kills_caller;
	const struct job_setup *late; /* gets a late child as soon as CRIU runs */
	int seen[CRIU_EVENT__MAX], n_spawned;
	pid_t restored;
	int dir_fd;
};

static off_t pages_written(int dir_fd)
{
	off_t sum = 0;

	for (int i = 1; i < 8; i++) {
		char name[32];
		struct stat st;

		snprintf(name, sizeof(name), "pages-%d.img", i);
		if (fstatat(dir_fd, name, &st, 0) == 0)
			sum += st.st_size;
	}
	return sum;
}

static bool must_stop(struct proc_id id)
{
	uint64_t deadline_ns = deadline_in_ms(JOB_WAIT_MS);
	struct proc_info info;

	while (proc_read(&info, id.pid, NULL) == 0 && info.state != 'T')
		if (!deadline_left_ms(deadline_ns) || poll(NULL, 0, 1) < 0)
			return false;
	return info.state == 'T';
}

/* While the caller stands still and cannot help, CRIU's end must leave the job stopped. */
static int kill_criu(const struct script *s, struct proc_id caller)
{
	if (proc_signal(caller, SIGSTOP) < 0 || !must_stop(caller))
		return 2;
	if (proc_signal(s->criu, SIGKILL) < 0 ||
	    proc_wait_gone(s->criu, deadline_in_ms(JOB_WAIT_MS)) < 0)
		return 3;
	bool stopped = must_stop(s->options.root);
	proc_signal(caller, s->kills_caller ? SIGKILL : SIGCONT);
	return stopped ? 0 : 4;
}

/* Kills CRIU as soon as it has written so much, far from the moments in which it injects its code: a
 * process of its own, as nobody hears of single writes here. */
static void kill_at_bytes(struct script *s)
{
	char path[64], events[4096];
	int fd = inotify_init1(IN_CLOEXEC);
	struct proc_id caller;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", s->dir_fd);
	CHECK(fd >= 0 && inotify_add_watch(fd, path, IN_MODIFY) >= 0);
	CHECK(proc_identify(&caller, getpid(), NULL) == 0);
	s->killer = fork();
	if (s->killer) {
		close(fd);
		return;
	}
	while (pages_written(s->dir_fd) < s->kill_at_bytes)
		if (read(fd, events, sizeof(events)) < 0)
			_exit(1);
	_exit(kill_criu(s, caller));
}

static void on_spawned(void *arg, struct proc_id criu)
{
	struct script *s = arg;

	CHECK(!proc_has_ended(criu));
	s->criu = criu;
	s->n_spawned++;
	if (s->late) {
		CHECK(proc_signal(s->options.root, SIGUSR1) == 0);
		job_must_run(take_ptr(&s->late), 2);
	}
	if (s->kill_at_bytes > 0)
		kill_at_bytes(s);
}

static int on_event(void *arg, enum criu_event event, struct proc_id root,
		    struct brumate_error *err)
{
	struct script *s = arg;

	s->seen[event]++;
	if (event == CRIU_EVENT_RESTORED)
		s->restored = root.pid;
	if ((int)event == s->kill_at)
		CHECK(proc_signal(s->criu, SIGKILL) == 0);
	if ((int)event == s->fail_at)
		return brumate_fail(err, ENODATA, "the test says no");
	return 0;
}

static int on_tick(void *arg, struct brumate_error *err)
{
	struct script *s = arg;
	off_t bytes = pages_written(s->dir_fd);

	if (s->cancel_at_bytes && bytes >= s->cancel_at_bytes)
		return brumate_fail(err, ECANCELED, "cancelled at %lld bytes", (long long)bytes);
	return 0;
}

static struct script script_for(const struct job_setup *setup, struct proc_id root,
				const char *name)
{
	char dir[128];

	snprintf(dir, sizeof(dir), "%s/%s", setup->dir, name);
	CHECK(mkdir(dir, 0700) == 0 || errno == EEXIST);
	int fd = open(dir, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	return (struct script){
		.fail_at = -1,
		.kill_at = -1,
		.dir_fd = fd,
		.options = {
			.images_dir_fd = fd,
			.work_dir_fd = fd,
			.log_name = "criu.log",
			.root = root,
			.on_spawned = on_spawned,
			.on_event = on_event,
			.on_tick = on_tick,
		},
	};
}

static int dump(struct script *s, struct brumate_error *err)
{
	struct criu_result result = { 0 };

	s->options.arg = s;
	*err = BRUMATE_ERROR_NONE;
	int r = dump_tree(&program, &s->options, &result, err);
	if (r == 0) {
		CHECK(result.seconds > 0 && result.frozen_seconds > 0 && result.pages_bytes > 0);
		CHECK(s->seen[CRIU_EVENT_FROZEN] == 1 && s->seen[CRIU_EVENT_DUMPED] == 1);
	}
	return r;
}

static int restore(struct script *s, struct brumate_error *err, struct proc_id *ret_root)
{
	struct criu_result result = { 0 };

	s->options.arg = s;
	*err = BRUMATE_ERROR_NONE;
	int r = criu_restore(&program, &s->options, &result, err);
	if (r == 0) {
		CHECK(s->seen[CRIU_EVENT_RESTORED] == 1 && s->restored == result.root_pid);
		CHECK(proc_identify(ret_root, result.root_pid, err) == 0);
	}
	return r;
}

static void must(int r, const struct brumate_error *err)
{
	if (r == 0)
		return;
	fprintf(stderr, "%s (%s)\n", err->text, err->hint);
	exit(1);
}

static void dump_and_kill(struct job_setup *setup, struct proc_id root, const char *name)
{
	struct brumate_error err;
	struct script s = script_for(setup, root, name);

	must(dump(&s, &err), &err);
	reap_everybody();
	CHECK(proc_is_gone(root));
	close(s.dir_fd);
}

static int n_open_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static void round_trip(void)
{
	struct job_setup setup = { 0 };
	struct brumate_error err;
	job_prepare(&setup);
	struct proc_id root = job_start(&setup);
	int fds_before = n_open_fds();

	job_must_run(&setup, 3);
	struct script s = script_for(&setup, root, "running");
	s.options.leave_running = true;
	must(dump(&s, &err), &err);
	job_must_run(&setup, 3);
	CHECK(!proc_has_ended(root));

	dump_and_kill(&setup, root, "image");
	int before = job_last_round(&setup), log = open(setup.log, O_WRONLY | O_APPEND);
	CHECK(dprintf(log, "a line from outside\n") > 0); /* the log may grow meanwhile */
	close(log);

	struct script back = script_for(&setup, PROC_ID_NONE, "image");
	struct proc_id again;
	must(restore(&back, &err, &again), &err);
	CHECK(again.pid == root.pid && again.start_ticks != root.start_ticks);
	struct proc_info info;
	CHECK(proc_read(&info, again.pid, NULL) == 0 && info.ppid == getpid());
	job_must_run(&setup, 5);

	char next[64], *text = job_log_text(&setup);
	snprintf(next, sizeof(next), "a line from outside\nround %d\n", before + 1);
	CHECK(strstr(text, next)); /* goes on exactly where it was */
	free(text);
	int lock = open(setup.lock, O_RDWR | O_CLOEXEC);
	CHECK(flock(lock, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK);
	close(lock);
	close(s.dir_fd);
	close(back.dir_fd);
	CHECK(n_open_fds() == fds_before);
	job_end(&setup, again);
}

static void refusal_leaves_it_running(void)
{
	struct job_setup setup = { 0 };
	struct brumate_error err;
	job_prepare(&setup);
	struct proc_id root = job_start(&setup);

	for (int event = CRIU_EVENT_FROZEN; event <= CRIU_EVENT_DUMPED; event++) {
		struct script s = script_for(&setup, root, "image");

		s.fail_at = event;
		CHECK(dump(&s, &err) == -ENODATA);
		CHECK_STR(err.text, "the test says no");
		CHECK(s.seen[event] == 1);
		job_must_run(&setup, 3);
		close(s.dir_fd);
	}
	dump_and_kill(&setup, root, "image");

	struct script s = script_for(&setup, PROC_ID_NONE, "image");
	s.fail_at = CRIU_EVENT_RESTORED;
	CHECK(restore(&s, &err, &root) == -ENODATA);
	reap_everybody();
	CHECK(kill(s.restored, 0) < 0 && errno == ESRCH);
	s.fail_at = -1;
	s.seen[CRIU_EVENT_RESTORED] = 0;
	must(restore(&s, &err, &root), &err); /* nothing stands in the way of a second try */
	job_must_run(&setup, 3);
	close(s.dir_fd);
	job_end(&setup, root);
}

static void death_of_criu(void)
{
	struct job_setup setup = { 0 };
	struct brumate_error err;
	job_prepare(&setup);
	struct proc_id root = job_start(&setup);

	for (int event = CRIU_EVENT_FROZEN; event <= CRIU_EVENT_DUMPED; event++) {
		struct script s = script_for(&setup, root, "image");

		s.kill_at = event;
		CHECK(dump(&s, &err) == -EPIPE);
		CHECK_STR(err.text, "CRIU was killed by signal 9");
		CHECK(strstr(err.hint, "criu.log"));
		CHECK(proc_is_gone(s.criu));
		close(s.dir_fd);
		if (event != CRIU_EVENT_DUMPED)
			job_must_run(&setup, 5);
	}
	reap_everybody(); /* the answer was that all is saved: it has ended and takes no step that would be done twice */
	CHECK(kill(root.pid, 0) < 0 && errno == ESRCH);

	struct script s = script_for(&setup, PROC_ID_NONE, "image");
	s.kill_at = CRIU_EVENT_RESTORED;
	CHECK(restore(&s, &err, &root) == -EPIPE);
	reap_everybody();
	CHECK(kill(s.restored, 0) < 0 && errno == ESRCH);
	s.kill_at = -1;
	s.seen[CRIU_EVENT_RESTORED] = 0;
	must(restore(&s, &err, &root), &err);
	job_must_run(&setup, 3);
	close(s.dir_fd);
	job_end(&setup, root);
}

/* A process that the job has got since it was looked at is seen all the same: its connection, for which
 * the network was not locked, and itself, when CRIU dies. */
static void late_children_are_seen(void)
{
	struct job_setup setup = { .plain = true };
	struct brumate_error err;
	job_prepare(&setup);
	struct proc_id root = job_start(&setup);
	struct script s = script_for(&setup, root, "image");

	s.options.leave_running = true;
	must(dump(&s, &err), &err);
	CHECK(s.n_spawned == 1);
	close(s.dir_fd);

	s = script_for(&setup, root, "late");
	s.options.leave_running = true;
	s.late = &setup;
	must(dump(&s, &err), &err);
	CHECK(s.n_spawned == 2); /* once more, and locked */
	job_must_run(&setup, 3);
	close(s.dir_fd);

	s = script_for(&setup, root, "killed");
	s.late = &setup;
	s.kill_at = CRIU_EVENT_FROZEN;
	CHECK(dump(&s, &err) == -EPIPE);
	CHECK(s.n_spawned == 1);
	job_must_run(&setup, 5);
	close(s.dir_fd);
	dump_and_kill(&setup, root, "killed");

	s = script_for(&setup, PROC_ID_NONE, "killed");
	must(restore(&s, &err, &root), &err);
	job_must_run(&setup, 5);
	close(s.dir_fd);
	job_end(&setup, root);
}

/* A CRIU that has come up and waits: it has done nothing yet, and may be let go of or die. */
static void waits_for_the_run(void)
{
	struct job_setup setup = { .plain = true };
	struct brumate_error err;
	struct criu_result result;
	struct criu_dump *d;
	job_prepare(&setup);
	struct proc_id root = job_start(&setup);
	struct script s = script_for(&setup, root, "image");
	int fds_before = n_open_fds();

	s.options.arg = &s;
	must(criu_dump_start(&d, &program, &s.options, &err), &err);
	job_must_run(&setup, 3);
	criu_dump_free(d);
	CHECK(proc_is_gone(s.criu) && n_open_fds() == fds_before);

	must(criu_dump_start(&d, &program, &s.options, &err), &err);
	CHECK(proc_signal(s.criu, SIGKILL) == 0);
	CHECK(proc_wait_gone(s.criu, deadline_in_ms(JOB_WAIT_MS)) == 0);
	CHECK(criu_dump_run(d, &result, &err) == -EPIPE);
	CHECK_STR(err.text, "CRIU was killed by signal 9");
	criu_dump_free(d);
	job_must_run(&setup, 3);
	CHECK(!s.seen[CRIU_EVENT_FROZEN] && n_open_fds() == fds_before);

	must(criu_dump_start(&d, &program, &s.options, &err), &err);
	job_must_run(&setup, 3);
	must(criu_dump_run(d, &result, &err), &err);
	criu_dump_free(d);
	CHECK(s.seen[CRIU_EVENT_DUMPED] == 1 && n_open_fds() == fds_before);
	reap_everybody();
	must(restore(&s, &err, &root), &err);
	job_must_run(&setup, 3);
	close(s.dir_fd);
	job_end(&setup, root);
}

static void must_end_well(pid_t pid)
{
	int status;

	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void stops_in_the_middle(void)
{
	struct job_setup setup = { .memory_mib = 1024 };
	struct brumate_error err;
	job_prepare(&setup);
	struct proc_id root = job_start(&setup);
	job_must_run(&setup, 2);

	struct script s = script_for(&setup, root, "image");
	s.cancel_at_bytes = 1 << 20;
	CHECK(dump(&s, &err) == -ECANCELED);
	CHECK(strstr(err.text, "cancelled at"));
	CHECK(s.seen[CRIU_EVENT_DUMPED] == 0);
	job_must_run(&setup, 5);

	s.cancel_at_bytes = 0;
	s.kill_at_bytes = 1 << 20;
	CHECK(remove_tree(s.dir_fd, "pages-1.img") == 0 &&
	      remove_tree(s.dir_fd, "pages-2.img") == 0);
	CHECK(dump(&s, &err) == -EPIPE);
	CHECK(s.seen[CRIU_EVENT_DUMPED] == 0);
	must_end_well(s.killer);
	job_must_run(&setup, 5);
	close(s.dir_fd);
	job_end(&setup, root);
}

/* Both are killed, CRIU first; whoever comes next puts it right. */
static void dies_with_its_caller(void)
{
	struct job_setup setup = { .memory_mib = 1024 };
	struct brumate_error err;
	job_prepare(&setup);
	struct proc_id root = job_start(&setup);
	struct script s = script_for(&setup, root, "image");
	int status;

	s.kill_at_bytes = 1 << 20;
	s.kills_caller = true;
	pid_t caller = fork();
	if (!caller) {
		dump(&s, &err);
		_exit(0);
	}
	CHECK(waitpid(caller, &status, 0) == caller && WIFSIGNALED(status));
	must(criu_heal(root, PROC_ID_NONE, 0, s.dir_fd, "criu.log", &err), &err);
	job_must_run(&setup, 5);
	close(s.dir_fd);
	job_end(&setup, root);
}

static void taken_pid_is_named(void)
{
	struct job_setup setup = { 0 };
	struct brumate_error err;
	char want[64];
	job_prepare(&setup);
	struct proc_id root = job_start(&setup), none;

	struct script s = script_for(&setup, root, "image");
	s.options.leave_running = true;
	must(dump(&s, &err), &err);
	CHECK(restore(&s, &err, &none) == -EEXIST);
	snprintf(want, sizeof(want), "process id %d of the checkpoint is in use", root.pid);
	CHECK(strstr(err.text, want));
	CHECK(strstr(err.hint, "pid namespace"));
	job_must_run(&setup, 3);
	close(s.dir_fd);
	job_end(&setup, root);
}

static void expect_restore_failure(struct job_setup *setup, const char *text, const char *hint)
{
	struct brumate_error err;
	struct proc_id root;
	struct script s = script_for(setup, PROC_ID_NONE, "image");

	CHECK(restore(&s, &err, &root) == -EIO);
	if (!strstr(err.text, text) || !strstr(err.hint, hint) ||
	    !strstr(err.hint, "/image/criu.log")) {
		fprintf(stderr, "got: %s (%s)\n", err.text, err.hint);
		exit(1);
	}
	reap_everybody();
	close(s.dir_fd);
}

static void changed_files_are_named(void)
{
	struct job_setup setup = { 0 };
	char data[128];
	job_prepare(&setup);
	struct proc_id root = job_start(&setup);
	job_must_run(&setup, 2);
	dump_and_kill(&setup, root, "image");

	int fd = open(setup.data, O_WRONLY | O_APPEND);
	CHECK(write(fd, "more", 4) == 4);
	expect_restore_failure(&setup, "has bad size 8 (expect 4)", "has changed since");
	CHECK(ftruncate(fd, 4) == 0);
	close(fd);

	snprintf(data, sizeof(data), "%s.away", setup.data);
	CHECK(rename(setup.data, data) == 0);
	expect_restore_failure(&setup, "No such file", "is missing");
	CHECK(rename(data, setup.data) == 0);

	struct brumate_error err;
	struct script s = script_for(&setup, PROC_ID_NONE, "image");
	must(restore(&s, &err, &root), &err);
	job_must_run(&setup, 3);
	close(s.dir_fd);
	job_end(&setup, root);
}

static void damaged_image_is_refused(void)
{
	struct job_setup setup = { 0 };
	struct brumate_error err;
	struct proc_id root;
	job_prepare(&setup);

	struct script s = script_for(&setup, PROC_ID_NONE, "image");
	CHECK(restore(&s, &err, &root) == -EBADMSG);
	CHECK(file_replace(s.dir_fd, "pstree.img", "no image", 8, 0600) == 0);
	CHECK(restore(&s, &err, &root) == -EBADMSG);
	CHECK(strstr(err.text, "pstree.img"));
	close(s.dir_fd);
	CHECK(remove_tree(AT_FDCWD, setup.dir) == 0);
}

/* A second copy beside the running original; that copy dumped from outside, and restored again. */
static void lives_in_a_namespace(void)
{
	struct job_setup setup = { .plain = true };
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct proc_id init, copy;
	char status_path[128];
	int status = -1;
	job_prepare(&setup);
	struct proc_id root = job_start(&setup);
	snprintf(status_path, sizeof(status_path), "%s/status", setup.dir);

	struct script s = script_for(&setup, root, "image");
	s.options.leave_running = true;
	must(dump(&s, &err), &err);

	must(pidns_start(&init, root.pid, status_path, NULL, &err), &err);
	struct script in = script_for(&setup, PROC_ID_NONE, "image");
	in.options.enter_ns_of = init.pid;
	must(restore(&in, &err, &copy), &err);
	struct proc_info info;
	CHECK(proc_read(&info, copy.pid, NULL) == 0);
	CHECK(copy.pid != root.pid && info.inner_pid == root.pid && info.pid_ns_depth == 2);
	CHECK(info.ppid == init.pid);
	CHECK(!proc_has_ended(root));
	CHECK(pidns_read_status(status_path, root.pid, &status) == -ENOENT);

	CHECK(proc_tree_kill(root, deadline_in_ms(JOB_WAIT_MS)) == 0);
	CHECK(waitpid(root.pid, NULL, 0) == root.pid);
	job_must_run(&setup, 5); /* now it is the copy alone that writes */

	struct script out = script_for(&setup, copy, "second");
	out.options.enter_ns_of = init.pid;
	must(dump(&out, &err), &err);
	CHECK(proc_wait_gone(init, deadline_in_ms(JOB_WAIT_MS)) == 0);
	CHECK(pidns_read_status(status_path, root.pid, &status) == 0);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	reap_everybody();

	must(pidns_start(&init, root.pid, status_path, NULL, &err), &err);
	struct script again = script_for(&setup, PROC_ID_NONE, "second");
	again.options.enter_ns_of = init.pid;
	must(restore(&again, &err, &copy), &err);
	job_must_run(&setup, 5);
	CHECK(proc_signal(copy, SIGTERM) == 0);
	CHECK(proc_wait_gone(copy, deadline_in_ms(JOB_WAIT_MS)) == 0);

	struct proc_tree left = PROC_TREE_EMPTY;
	CHECK(proc_tree_read(&left, init, &err) == 0);
	for (size_t i = 1; i < left.n; i++)
		proc_signal(left.items[i].id, SIGKILL);
	proc_tree_fini(&left);
	CHECK(proc_wait_gone(init, deadline_in_ms(JOB_WAIT_MS)) == 0);
	CHECK(pidns_read_status(status_path, root.pid, &status) == 0 &&
	      WTERMSIG(status) == SIGTERM);
	reap_everybody();
	close(s.dir_fd);
	close(in.dir_fd);
	close(out.dir_fd);
	close(again.dir_fd);
	CHECK(remove_tree(AT_FDCWD, setup.dir) == 0);
}

static const struct {
	const char *name;
	void (*run)(void);
} tests[] = {
	{ "round-trip", round_trip },
	{ "refusal", refusal_leaves_it_running },
	{ "death", death_of_criu },
	{ "late-children", late_children_are_seen },
	{ "waiting", waits_for_the_run },
	{ "middle", stops_in_the_middle },
	{ "death-of-both", dies_with_its_caller },
	{ "taken-pid", taken_pid_is_named },
	{ "changed-files", changed_files_are_named },
	{ "damaged-image", damaged_image_is_refused },
	{ "namespace", lives_in_a_namespace },
};

int main(int argc, char **argv)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (SANITIZED)
		SKIP("CRIU cannot save processes of a sanitizer's build");
	if (geteuid() != 0)
		SKIP("CRIU needs root");
	if (criu_find(&program, &err) < 0)
		SKIP("%s", err.text);
	must(criu_check(&program, &err), &err);
	CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
		if (argc < 2 || !strcmp(argv[1], tests[i].name))
			tests[i].run();
	return 0;
}

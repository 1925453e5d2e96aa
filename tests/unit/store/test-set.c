// SPDX-License-Identifier: MIT
/* Tests of store/set.c: one rename decides, and all who look come to the same end. */
#include "store/set.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"

static char dir[] = "/tmp/brumate-test-set-XXXXXX";

static bool is_poor; /* as NFS and FUSE are */

/* In the place of the C library's. */
int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
	if (is_poor && flags) {
		errno = EINVAL;
		return -1;
	}
	return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
}

static json_t *record_of(const char *id)
{
	return json_pack("{s:[{s:s}]}", "members", "checkpoint", id);
}

static void commit(struct set_writer *w, const char *id, int want)
{
	json_t *record = record_of(id);

	CHECK(set_commit(w, record, NULL) == want);
	json_decref(record);
}

static void test_committed(void)
{
	struct set_writer w = SET_WRITER_EMPTY, again = SET_WRITER_EMPTY;
	char name[MANIFEST_ID_BYTES];
	json_t *record = NULL;

	CHECK(set_begin(&w, dir, "one", SET_SAVE, NULL) == 0);
	CHECK(set_name_of(name, w.path) && !strcmp(name, "one"));
	CHECK(set_counts(dir, "one", "a") == 1); /* its coordinator lives */
	commit(&w, "a", 0);
	CHECK(set_give_up(w.path) == 0);
	set_end(&w);
	CHECK(set_give_up(w.path) == 0);
	CHECK(set_counts(dir, "one", "a") == 1);
	CHECK(set_counts(dir, "one", "b") == 0);
	CHECK(set_begin(&again, dir, "one", SET_SAVE, NULL) == -EEXIST);
	CHECK(set_read(&record, dir, "one", NULL) == 0);
	json_decref(record);
	CHECK(set_remove(dir, "one", NULL) == 0);
	CHECK(set_read(&record, dir, "one", NULL) == -ENOENT);
	CHECK(set_counts(dir, "one", "a") == 0);
}

/* The second is of another coordinator, which began before the first was committed. */
static void test_two_of_one_name(void)
{
	struct set_writer one = SET_WRITER_EMPTY, two = SET_WRITER_EMPTY;

	CHECK(set_begin(&one, dir, "both", SET_SAVE, NULL) == 0);
	CHECK(set_begin(&two, dir, "both", SET_SAVE, NULL) == 0);
	commit(&one, "a", 0);
	commit(&two, "b", -EEXIST);
	set_end(&one);
	set_end(&two);
	CHECK(set_give_up(one.path) == 0 && set_give_up(two.path) == 1);
	CHECK(set_counts(dir, "both", "a") == 1 && set_counts(dir, "both", "b") == 0);
	CHECK(set_remove(dir, "both", NULL) == 0);
}

/* What others could have written, or is no file, is no record; a link is followed by nobody who looks for what is left. */
static void test_of_others(void)
{
	char path[sizeof(dir) + 64], left[sizeof(dir) + 64];
	struct set_writer w = SET_WRITER_EMPTY;
	json_t *record = NULL;

	CHECK(set_begin(&w, dir, "others", SET_SAVE, NULL) == 0);
	commit(&w, "a", 0);
	snprintf(path, sizeof(path), "%s/.sets/others", dir);
	CHECK(chmod(path, 0620) == 0 && set_read(&record, dir, "others", NULL) == -EACCES);
	CHECK(chmod(path, 0600) == 0 && set_read(&record, dir, "others", NULL) == 0);
	json_decref(record);
	CHECK(unlink(path) == 0 && symlink("/dev/null", path) == 0);
	CHECK(set_read(&record, dir, "others", NULL) == -EBADMSG);
	CHECK(unlink(path) == 0 && mkfifo(path, 0600) == 0);
	CHECK(set_read(&record, dir, "others", NULL) == -EBADMSG);
	CHECK(unlink(path) == 0);
	snprintf(left, sizeof(left), "%s/.sets/.others.0123456789abcdef.save", dir);
	CHECK(symlink(dir, left) == 0 && set_counts(dir, "others", "a") < 0);
	CHECK(unlink(left) == 0 && set_counts(dir, "others", "a") == 0);
}

static void test_given_up(void)
{
	struct set_writer w = SET_WRITER_EMPTY, other = SET_WRITER_EMPTY;
	char late[SET_PATH_BYTES];

	CHECK(set_begin(&w, dir, "two", SET_SAVE, NULL) == 0);
	strcpy(late, w.path);
	CHECK(set_give_up(w.path) == 1);
	commit(&w, "a", -ECANCELED);
	set_end(&w);
	CHECK(set_begin(&other, dir, "two", SET_SAVE, NULL) == 0);
	commit(&other, "a", 0);
	CHECK(set_give_up(late) == 1); /* another set has the name by now */
	CHECK(set_give_up(other.path) == 0);
	CHECK(set_remove(dir, "two", NULL) == 0);
}

/* Its coordinator has died: who looks gives it up, and the next one sweeps. */
static void test_left(void)
{
	struct set_writer w = SET_WRITER_EMPTY, next = SET_WRITER_EMPTY;

	CHECK(set_begin(&w, dir, "three", SET_SAVE, NULL) == 0);
	close(w.fd);
	w.fd = -1;
	CHECK(set_counts(dir, "three", "a") == 0);
	CHECK(access(w.path, F_OK) < 0);
	CHECK(set_begin(&w, dir, "three", SET_SAVE, NULL) == 0);
	close(w.fd);
	w.fd = -1;
	CHECK(set_begin(&next, dir, "four", SET_SAVE, NULL) == 0);
	CHECK(access(w.path, F_OK) < 0 && access(next.path, F_OK) == 0);
	set_end(&next);
	CHECK(access(next.path, F_OK) < 0);
}

static void test_restored(void)
{
	struct set_writer w = SET_WRITER_EMPTY;

	CHECK(set_begin(&w, dir, "five", SET_RESTORE, NULL) == 0);
	commit(&w, "a", 0);
	CHECK(set_give_up(w.path) == 0);
	set_forget(&w);
	CHECK(set_give_up(w.path) == 1);
}

static void test_foreign(void)
{
	static const char *const paths[] = {
		"",
		"/",
		"x",
		"/s/.sets/one",
		"/s/.sets/.one.save",
		"/s/.sets/..0123456789abcdef.save",
		"/s/.sets/.one.0123456789abcdef.other",
		"/s/.sets/.one.0123456789abcdeX.save",
		"/s/.sets/.a b.0123456789abcdef.save",
	};
	struct set_writer w = SET_WRITER_EMPTY;
	char name[MANIFEST_ID_BYTES];

	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		CHECK(!set_name_of(name, paths[i]));
		CHECK(set_give_up(paths[i]) == -EINVAL);
	}
	CHECK(set_begin(&w, dir, "../x", SET_SAVE, NULL) == -EINVAL);
}

int main(void)
{
	char command[64];

	if (!mkdtemp(dir))
		return 1;
	for (int i = 0; i < 2; i++) {
		is_poor = i;
		test_committed();
		test_of_others();
		test_given_up();
		test_left();
		test_restored();
		test_foreign();
		test_two_of_one_name();
	}
	snprintf(command, sizeof(command), "rm -r %s", dir);
	return system(command) ? 1 : 0;
}

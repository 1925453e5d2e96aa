// SPDX-License-Identifier: MIT
/* Which CRIU is taken: programs that only say a version stand in for those of a system. */
#include "base/cleanup.h"
#include "base/fd.h"
#include "check.h"
#include "criu/criu.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[] = "/tmp/brumate-find-test-XXXXXX";

static const char *path_of(const char *name)
{
	static char path[128];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return path;
}

static const char *fake(const char *name, const char *script)
{
	const char *path = path_of(name);

	CHECK(file_replace(AT_FDCWD, path, script, strlen(script), 0755) == 0);
	return path;
}

static void named(void)
{
	struct criu_program p = { .version = -1 };
	struct brumate_error err = BRUMATE_ERROR_NONE;

	setenv("BRUMATE_CRIU", fake("good", "#!/bin/sh\necho Version: 4.3\n"), 1);
	CHECK(criu_find(&p, &err) == 0 && p.version == 40300);
	CHECK_STR(p.why, "named by BRUMATE_CRIU");
	CHECK_STR(p.path, fake("good", "#!/bin/sh\necho Version: v4.2.1\n"));
	CHECK(criu_find(&p, &err) == 0 && p.version == 40201);

	p.version = -1;
	setenv("BRUMATE_CRIU", fake("old", "#!/bin/sh\necho Version: 3.17.1\n"), 1);
	CHECK(criu_find(&p, &err) == -EOPNOTSUPP && p.version == -1);
	CHECK(strstr(err.text, "is version 3.17.1, 4.2 or newer is needed") &&
	      strstr(err.hint, "criu-provision"));

	setenv("BRUMATE_CRIU", "/nonexistent/criu", 1);
	CHECK(criu_find(&p, &err) == -ENOENT && strstr(err.text, "/nonexistent/criu"));
	unsetenv("BRUMATE_CRIU");
}

static void fails(const char *script, int r, enum exit_code exit_code, const char *words)
{
	struct criu_program p = { .version = -1 };
	struct brumate_error err = BRUMATE_ERROR_NONE;

	setenv("BRUMATE_CRIU", fake("other", script), 1);
	CHECK(criu_find(&p, &err) == r && p.version == -1);
	if (!strstr(err.text, words))
		fprintf(stderr, "%s\n", err.text);
	CHECK(strstr(err.text, words) && err.hint[0]);
	CHECK(brumate_exit_code(&err) == exit_code);
	unsetenv("BRUMATE_CRIU");
}

/* It answers, and is none. */
static void something_else(void)
{
	fails("#!/bin/sh\necho hello\n", -EOPNOTSUPP, EXIT_UNSUPPORTED,
	      "/other is not a CRIU: it said \"hello\", exit status 0");
	fails("#!/bin/sh\necho; printf 'no \\33[1mlibrary\\n' >&2; exit 127\n", -EOPNOTSUPP,
	      EXIT_UNSUPPORTED, "is not a CRIU: it said \"no ?[1mlibrary\", exit status 127");
	fails("#!/bin/sh\n", -EOPNOTSUPP, EXIT_UNSUPPORTED,
	      "is not a CRIU: it said nothing, exit status 0");
	fails("#!/bin/sh\nexec yes\n", -EOPNOTSUPP, EXIT_UNSUPPORTED,
	      "is not a CRIU: it said \"y\"");
	fails("#!/nonexistent/sh\n", -ENOENT, EXIT_UNSUPPORTED, "cannot run /tmp/");
}

/* Nobody knows what it would have answered. */
static void not_known(void)
{
	struct rlimit limit, none = { 0 };

	fails("#!/bin/sh\nkill -9 $$\n", -EIO, EXIT_FAILED,
	      "/other was killed by signal 9 before it told its version: it said nothing");
	fails("#!/bin/sh\necho so; kill -11 $$\n", -EIO, EXIT_FAILED,
	      "was killed by signal 11 before it told its version: it said \"so\"");

	setenv("BRUMATE_CRIU", fake("good", "#!/bin/sh\necho Version: 4.3\n"), 1);
	struct criu_program p = { .version = -1 };
	struct brumate_error err = BRUMATE_ERROR_NONE;
	auto_close int writer = open(getenv("BRUMATE_CRIU"), O_WRONLY | O_CLOEXEC);
	CHECK(writer >= 0 && criu_find(&p, &err) == -ETXTBSY);
	CHECK(brumate_exit_code(&err) == EXIT_FAILED && strstr(err.text, "Text file busy"));
	cleanup_close(&writer);

	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	none.rlim_max = limit.rlim_max;
	CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
	CHECK(criu_find(&p, &err) == -EMFILE && brumate_exit_code(&err) == EXIT_FAILED);
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	CHECK(criu_find(&p, &err) == 0 && p.version == 40300);
	unsetenv("BRUMATE_CRIU");
}

/* What it leaves behind has its output open: nobody waits for the end of that. */
static void left_open(void)
{
	struct criu_program p = { .version = -1 };
	struct brumate_error err = BRUMATE_ERROR_NONE;
	auto_free char *text = NULL;

	setenv("BRUMATE_CRIU",
	       fake("open", "#!/bin/sh\nsleep 600 & echo $! > ${0%/*}/pid; echo Version: 4.3\n"),
	       1);
	CHECK(criu_find(&p, &err) == 0 && p.version == 40300);
	CHECK(file_read(AT_FDCWD, path_of("pid"), 64, &text, NULL) == 0);
	CHECK(kill(atoi(text), SIGKILL) == 0);
	unsetenv("BRUMATE_CRIU");
}

static void in_path(void)
{
	struct criu_program p;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	char ours[160];

	setenv("PATH", dir, 1);
	setenv("BRUMATE_LIBEXEC_DIR", "/nonexistent", 1);
	const char *system = fake("criu", "#!/bin/sh\necho Version: 4.2\n");
	CHECK(criu_find(&p, &err) == 0 && p.version == 40200);
	CHECK_STR(p.path, system);
	CHECK_STR(p.why, "in PATH, version 4.2");

	fake("criu", "#!/bin/sh\necho Version: 4.1.1\n");
	CHECK(criu_find(&p, &err) == -EOPNOTSUPP);
	CHECK(strstr(err.text, "is version 4.1.1, 4.2 or newer is needed"));

	/* One of which nothing is known is not passed over. */
	fake("criu", "#!/bin/sh\nkill -9 $$\n");
	CHECK(criu_find(&p, &err) == -EIO && brumate_exit_code(&err) == EXIT_FAILED);

	/* Directories of administrators are looked into as well, whatever PATH says. */
	if (access("/usr/sbin/criu", X_OK) == 0 || access("/sbin/criu", X_OK) == 0 ||
	    access("/usr/local/sbin/criu", X_OK) == 0)
		return;
	setenv("BRUMATE_LIBEXEC_DIR", dir, 1); /* the provisioned one steps in */
	CHECK(unlink(system) == 0);
	snprintf(ours, sizeof(ours), "%s/criu", dir);
	CHECK(mkdir(ours, 0700) == 0);
	fake("criu/criu", "#!/bin/sh\necho Version: 4.2.1\n");
	CHECK(criu_find(&p, &err) == 0 && p.version == 40201);
	CHECK(strstr(p.why, "provisioned: ") && strstr(p.path, "/criu/criu"));
	fake("criu/criu", "#!/bin/sh\nkill -9 $$\n");
	CHECK(criu_find(&p, &err) == -EIO && strstr(err.text, "/criu/criu was killed by signal 9"));
	fake("criu/criu", "#!/bin/sh\nexit 3\n");
	CHECK(criu_find(&p, &err) == -EOPNOTSUPP);
	CHECK(strstr(err.text, "no CRIU to use: ") && strstr(err.text, "exit status 3"));
}

int main(void)
{
	CHECK(mkdtemp(dir));
	named();
	something_else();
	not_known();
	left_open();
	in_path();
	CHECK(remove_tree(AT_FDCWD, dir) == 0);
	return 0;
}

// SPDX-License-Identifier: MIT
/* Which CRIU is taken: programs that only say a version stand in for those of a system. */
#include "base/cleanup.h"
#include "base/fd.h"
#include "check.h"
#include "criu/criu.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[] = "/tmp/brumate-find-test-XXXXXX";

static const char *fake(const char *name, const char *script)
{
	static char path[128];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
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

	setenv("BRUMATE_CRIU", fake("other", "#!/bin/sh\necho hello\n"), 1);
	CHECK(criu_find(&p, &err) == -EOPNOTSUPP && strstr(err.text, "is not a CRIU"));
	setenv("BRUMATE_CRIU", "/nonexistent/criu", 1);
	CHECK(criu_find(&p, &err) == -ENOENT && strstr(err.text, "/nonexistent/criu"));
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
}

int main(void)
{
	CHECK(mkdtemp(dir));
	named();
	in_path();
	CHECK(remove_tree(AT_FDCWD, dir) == 0);
	return 0;
}

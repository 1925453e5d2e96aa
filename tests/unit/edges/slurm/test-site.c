// SPDX-License-Identifier: MIT
/* What a site may write about brumate, which steps are here, and where programs go that Slurm must not freeze. */
#include "edges/slurm/cgroup.h"
#include "edges/slurm/step.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static void check_good(void)
{
	struct site s = { .proctrack = "cgroup", .wait_s = 60 };

	site_apply(&s, "# comment\n\n  Proctrack = x\nProctrack=linuxproc\r\nWait=5 # "
		       "seconds\nDefault=Yes\n"
		       "Helper=/opt/brumate-slurm\nRunDir=/run/x\nPluginDir=/usr/lib/slurm");
	CHECK_STR(s.problem, "Proctrack = x"); /* no spaces around it, as in Slurm's own files */
	CHECK_STR(s.proctrack, "linuxproc");
	CHECK_STR(s.helper, "/opt/brumate-slurm");
	CHECK_STR(s.run_dir, "/run/x");
	CHECK_STR(s.plugin_dir, "/usr/lib/slurm");
	CHECK(s.wait_s == 5 && s.by_default);
}

static void check_bad(const char *line)
{
	struct site s = { .proctrack = "cgroup", .helper = "/h", .run_dir = "/r", .wait_s = 60 },
		    before = s;

	site_apply(&s, line);
	CHECK_STR(s.problem, line);
	memset(s.problem, 0, sizeof(s.problem));
	CHECK(!memcmp(&s, &before, sizeof(s)));
}

static void check_target(const char *line, const char *want)
{
	char target[256];

	cgroup_target(target, line, 1000);
	CHECK_STR(target, want);
}

static void check_steps(void)
{
	char dir[] = "/tmp/brumate-test-steps-XXXXXX";
	struct site s = { .wait_s = 1 };

	CHECK(mkdtemp(dir));
	strcpy(s.run_dir, dir);
	CHECK(!step_is_here(&s, "7") && !step_has_neighbours(&s, "7"));
	step_place(&s, "7.batch", STEP_HERE);
	CHECK(step_is_here(&s, "7") && !step_is_here(&s, "77") && !step_has_neighbours(&s, "7"));
	CHECK(step_has_neighbours(&s, "77"));
	step_place(&s, "7.batch", STEP_AWAY);
	CHECK(!step_is_here(&s, "7") && step_has_neighbours(&s, "77"));
	step_place(&s, "7.batch", STEP_HERE);
	CHECK(step_is_here(&s, "7"));
	step_place(&s, "7.batch", STEP_GONE);
	CHECK(!step_is_here(&s, "7") && rmdir(dir) == 0);
}

/* The file of a slurmstepd that was killed stays, and its pid may be another's by now: here ours. */
static void check_killed_step(void)
{
	char dir[] = "/tmp/brumate-test-steps-XXXXXX", path[PATH_MAX], link[PATH_MAX];
	struct site s = { .wait_s = 1 };
	int status = 0;

	CHECK(mkdtemp(dir));
	strcpy(s.run_dir, dir);
	pid_t pid = fork();
	if (pid == 0) {
		step_place(&s, "8.0", STEP_HERE);
		_exit(step_is_here(&s, "8") ? 0 : 1);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	snprintf(path, sizeof(path), "%s/8.0", dir);
	FILE *f = fopen(path, "w");
	CHECK(f && fprintf(f, "%d\n", (int)getpid()) > 0 && fclose(f) == 0);
	CHECK(!step_is_here(&s, "8") && !step_has_neighbours(&s, "77"));
	step_place(&s, "8.0", STEP_HERE);
	CHECK(step_is_here(&s, "8"));
	/* What cannot be looked at may be there. */
	snprintf(link, sizeof(link), "%s/9.0", dir);
	CHECK(symlink("8.0", link) == 0 && step_is_here(&s, "9") && unlink(link) == 0);
	step_place(&s, "8.0", STEP_GONE);
	CHECK(rmdir(dir) == 0);
	strcpy(s.run_dir, "/proc/self/status/none");
	CHECK(step_is_here(&s, "8"));
}

int main(void)
{
	static const char *const bad[] = { "Wait=0",	       "Wait=5s",    "Wait=-1",
					   "Wait=99999999999", "Wait",	     "Default=maybe",
					   "Proctrack=a/b",    "Helper=x",   "RunDir=relative",
					   "Unknown=1",	       "Proctrack=", "PluginDir=" };

	check_good();
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		check_bad(bad[i]);
	check_target("6:freezer:/slurm_n1/uid_0/job_3/step_0", "freezer/brumate/1000");
	check_target("9:name=systemd:/system.slice/slurmd.service", "systemd/brumate/1000");
	check_target("0::/system.slice/slurmstepd.scope/job_3/step_0/user/task_0", "brumate/1000");
	check_target("6:freezer:/", "");
	check_target("0::/user.slice/user-1000.slice/session-3.scope", "");
	check_target("3:cpuset:/slurm/uid_0/job_3", "");
	check_target("nonsense", "");
	check_target("", "");
	check_steps();
	check_killed_step();
	return 0;
}

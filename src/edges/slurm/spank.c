// SPDX-License-Identifier: MIT
/*
 * `optional spank_brumate.so` in plugstack.conf: gives srun, sbatch and salloc the option --brumate. The task's command becomes a job
 * of brumate, or its last checkpoint comes back in its place: as the last thing before execve(2), the task becomes brumate-slurm
 * with the command as its arguments. In slurmstepd it notes which step this is, for the proctrack plugin.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "edges/slurm/abi.h"
#include "edges/slurm/step.h"

#define EXPORTED __attribute__((visibility("default")))
/* A function that Slurm finds by its name; no header of ours declares it. */
#define CALLED_BY_SLURM(type, name, ...) \
	EXPORTED type name(__VA_ARGS__); \
	EXPORTED type name(__VA_ARGS__)

/* What Slurm's macro for SPANK plugins defines, but for the version: that of a plugin which came with this Slurm. */
EXPORTED const char plugin_name[] = "brumate", plugin_type[] = "spank";
EXPORTED uint32_t plugin_version;
EXPORTED unsigned int spank_plugin_version = 1;

/* How Slurm passes our option on to tasks, and so to the srun of a batch script. */
static const char option_variable[] = "_SLURM_SPANK_OPTION_brumate_brumate";

static struct site site;
static enum { WANTED_UNSAID, WANTED_YES, WANTED_NO, WANTED_STEPS } wanted;

__attribute__((constructor)) static void take_version(void)
{
	site_load(&site);
	site_open_plugin(&site, "proctrack_linuxproc.so", (const void *)slurm_error,
			 &plugin_version, NULL);
}

static int on_option(int val, const char *word, int remote)
{
	(void)val;
	if (!word || !*word || !strcasecmp(word, "yes"))
		wanted = WANTED_YES;
	else if (!strcasecmp(word, "no"))
		wanted = WANTED_NO;
	else if (!strcasecmp(word, "steps"))
		wanted = WANTED_STEPS;
	else if (remote)
		wanted = WANTED_NO;
	else
		return -1;
	return 0;
}

static struct spank_option option = {
	.name = (char *)"brumate",
	.arginfo = (char *)"[yes|no|steps]",
	.usage = (char *)"suspend this job's GPUs with it and save it when it is preempted; steps: "
			 "only what srun starts",
	.has_arg = SPANK_OPTIONAL_ARGUMENT,
	.cb = on_option,
};

CALLED_BY_SLURM(int, slurm_spank_init, spank_t sp, int ac, char **av)
{
	(void)ac;
	(void)av;
	return spank_context() == SPANK_CTX_SLURMD ? 0 : spank_option_register(sp, &option);
}

/* The step of this slurmstepd, where its tasks are to be jobs. */
static bool find_step(spank_t sp, char ret[static 48])
{
	uint32_t job = 0, step = 0;

	if (wanted == WANTED_NO || (wanted == WANTED_UNSAID && !site.by_default) ||
	    spank_get_item(sp, SPANK_JOB_ID, &job) || spank_get_item(sp, SPANK_JOB_STEPID, &step))
		return false;
	if (step == SLURM_BATCH_STEP)
		snprintf(ret, 48, "%u.batch", job);
	else
		snprintf(ret, 48, "%u.%u", job, step);
	return step < SLURM_STEP_MAX || (step == SLURM_BATCH_STEP && wanted != WANTED_STEPS);
}

/* What brumate reads in the environment of the user. */
static bool is_kept(const char *variable)
{
	return !strncmp(variable, "BRUMATE_", 8) || !strncmp(variable, "HOME=", 5) ||
	       !strncmp(variable, "XDG_RUNTIME_DIR=", 16);
}

static void keep_variables(char **env)
{
	for (; *env; env++) {
		const char *value = strchr(*env, '=');
		char name[128];

		if (value && is_kept(*env) &&
		    snprintf(name, sizeof(name), "%s%.*s", STEP_USER_VARIABLE, (int)(value - *env),
			     *env) < (int)sizeof(name))
			setenv(name, value + 1, 1);
	}
}

/* In slurmstepd, as root. */
CALLED_BY_SLURM(int, slurm_spank_init_post_opt, spank_t sp, int ac, char **av)
{
	char step[48], text[96];
	uid_t uid;
	gid_t gid;

	(void)ac;
	(void)av;
	if (spank_context() != SPANK_CTX_REMOTE || !find_step(sp, step) ||
	    spank_get_item(sp, SPANK_JOB_UID, &uid) || spank_get_item(sp, SPANK_JOB_GID, &gid))
		return 0;
	snprintf(text, sizeof(text), "%s %u %u", step, (unsigned)uid, (unsigned)gid);
	setenv(STEP_VARIABLE, text, 1);
	step_place(&site, step, STEP_HERE);
	return 0;
}

CALLED_BY_SLURM(int, slurm_spank_user_init, spank_t sp, int ac, char **av)
{
	char **env;

	(void)ac;
	(void)av;
	if (getenv(STEP_VARIABLE) && spank_get_item(sp, SPANK_JOB_ENV, &env) == 0)
		keep_variables(env);
	return 0;
}

/* In a batch script that is a job, srun starts no jobs within the job. */
static void drop_option(char **env)
{
	char **to = env;

	for (; *env; env++)
		if (!strstr(*env, option_variable))
			*to++ = *env;
	*to = NULL;
}

/* In the task, as its user, stdio in place. A failure leaves the task as it would be without us. */
CALLED_BY_SLURM(int, slurm_spank_task_init, spank_t sp, int ac, char **av)
{
	char **argv, **env, key[64], step[48];
	uint32_t rank = 0;
	int argc = 0;

	(void)ac;
	(void)av;
	if (!find_step(sp, step) || spank_get_item(sp, SPANK_JOB_ARGV, &argc, &argv) || argc < 1 ||
	    spank_get_item(sp, SPANK_JOB_ENV, &env))
		return 0;
	spank_get_item(sp, SPANK_TASK_GLOBAL_ID, &rank);
	snprintf(key, sizeof(key), "%s.%u", step, rank);
	if (isatty(0)) {
		fprintf(stderr, "brumate: a task at a terminal is not made a job: it runs as "
				"without --brumate\n");
		return 0;
	}
	const char **all = calloc((size_t)argc + 4, sizeof(*all));
	if (!all)
		return 0;
	all[0] = site.helper;
	all[1] = "task";
	all[2] = key;
	memcpy(all + 3, argv, (size_t)argc * sizeof(*all));
	if (strstr(step, ".batch"))
		drop_option(env);
	execve(site.helper, (char *const *)all, env);
	fprintf(stderr, "brumate: %s: %s: the task runs without it\n", site.helper,
		strerror(errno));
	free(all);
	return 0;
}

CALLED_BY_SLURM(int, slurm_spank_exit, spank_t sp, int ac, char **av)
{
	struct step_of step;

	(void)sp;
	(void)ac;
	(void)av;
	if (spank_context() == SPANK_CTX_REMOTE && step_get(&step))
		step_place(&site, step.name, STEP_GONE);
	return 0;
}

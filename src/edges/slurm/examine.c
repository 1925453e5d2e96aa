// SPDX-License-Identifier: MIT
/*
 * brumate-slurm doctor: what of a site's Slurm is in brumate's way. Reads what `scontrol show config` says and looks at the files that it
 * names; changes nothing. A finding is a line "LEVEL\tKEY\tTEXT\tHINT", for `brumate doctor --slurm`.
 */
#include "edges/slurm/examine.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VALUE_BYTES = 1024, SLICE_S_MIN = 30, KILL_WAIT_S_MIN = 60 };

static void __attribute__((format(printf, 4, 5)))
find(const char *level, const char *key, const char *hint, const char *fmt, ...)
{
	va_list ap;

	printf("%s\t%s\t", level, key);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	printf("\t%s\n", hint);
}

void site_config_value(char *ret, size_t room, const char *config, const char *name)
{
	const size_t len = strlen(name);

	*ret = '\0';
	for (const char *line = config; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		const char *after = line + len;

		if (strncmp(line, name, len) != 0 || !strchr(" =", *after))
			continue;
		after += strspn(after, " ");
		if (*after != '=')
			continue;
		after++;
		after += strspn(after, " ");
		snprintf(ret, room, "%.*s", (int)strcspn(after, "\n"), after);
		return;
	}
}

uint32_t site_config_version(const char *text)
{
	unsigned major, minor;

	return sscanf(text, "%u.%u", &major, &minor) == 2 && major < 256 && minor < 256
		       ? major << 16 | minor << 8
		       : 0;
}

/* ---- files ---- */

static bool names_plugin(const char *path)
{
	char line[1024];
	bool found = false;
	FILE *f = fopen(path, "re");

	while (f && !found && fgets(line, sizeof(line), f))
		found = strstr(line, "spank_brumate.so") && line[strspn(line, " \t")] != '#';
	if (f)
		fclose(f);
	return found;
}

static bool is_in_dirs(const char *dirs, const char *name)
{
	char copy[VALUE_BYTES], path[VALUE_BYTES + 64], *rest = copy, *dir;

	snprintf(copy, sizeof(copy), "%s", dirs);
	while ((dir = strsep(&rest, ":"))) {
		snprintf(path, sizeof(path), "%s/%s", dir, name);
		if (*dir && access(path, R_OK) == 0)
			return true;
	}
	return false;
}

/* A plugin uses variables of Slurm's library, which no program of ours is linked with. */
static uint32_t read_version(const char *path)
{
	char of_slurm[PATH_MAX + 32];

	snprintf(of_slurm, sizeof(of_slurm), "%.*s/libslurmfull.so",
		 (int)(strrchr(path, '/') - path), path);
	dlopen(of_slurm, RTLD_LAZY | RTLD_GLOBAL);
	void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
	const uint32_t *version = library ? dlsym(library, "plugin_version") : NULL;

	return version ? *version & 0xffff00 : 0;
}

/* ---- what is looked at ---- */

static void check_plugins(const char *config)
{
	char type[VALUE_BYTES], dirs[VALUE_BYTES], stack[VALUE_BYTES];
	static const char *const ours[] = { "proctrack_brumate.so", "spank_brumate.so" };

	site_config_value(type, sizeof(type), config, "ProctrackType");
	site_config_value(dirs, sizeof(dirs), config, "PluginDir");
	site_config_value(stack, sizeof(stack), config, "PlugStackConfig");
	if (!strcmp(type, "proctrack/brumate"))
		find("ok", "proctrack", "", "ProctrackType=%s", type);
	else
		find("fail", "proctrack",
		     "ProctrackType=proctrack/brumate in slurm.conf, then restart slurmctld and "
		     "slurmd",
		     "ProctrackType=%s: Slurm does not tell brumate when it suspends a step",
		     *type ? type : "(not said)");
	for (size_t i = 0; i < sizeof(ours) / sizeof(*ours); i++)
		if (!is_in_dirs(dirs, ours[i]))
			find("fail", "plugins",
			     "run link-plugins as root on every node, and where slurmctld and "
			     "logins are",
			     "%s is not in %s", ours[i], *dirs ? dirs : "PluginDir");
	if (!names_plugin(*stack ? stack : "/etc/slurm/plugstack.conf"))
		find("fail", "plugstack",
		     "add the line: optional spank_brumate.so; where it includes other files, look "
		     "there",
		     "%s does not name spank_brumate.so: there is no option --brumate",
		     *stack ? stack : "plugstack.conf");
}

/* Ours takes the version of the plugin that it wraps: with the one of another Slurm it would be refused, or called wrongly. */
static void check_wrapped(const char *config, const struct site *site)
{
	char name[sizeof(site->proctrack) + 16], path[PATH_MAX], said[VALUE_BYTES];

	site_config_value(said, sizeof(said), config, "SLURM_VERSION");
	snprintf(name, sizeof(name), "proctrack_%s.so", site->proctrack);
	if (!site_find_plugin(site, name, path)) {
		find("fail", "wrapped", "set Proctrack= and PluginDir= in brumate-slurm.conf",
		     "the plugin that is wrapped, %s, is nowhere", name);
		return;
	}
	const uint32_t own = site_config_version(said), its = read_version(path);
	if (!its)
		find("warn", "wrapped", "set Proctrack= and PluginDir= in brumate-slurm.conf",
		     "%s: its version cannot be read", path);
	else if (its != own)
		find("fail", "wrapped", "set PluginDir= in brumate-slurm.conf",
		     "%s is of Slurm %u.%02u, and Slurm here is %s: it does not load that", path,
		     its >> 16, its >> 8 & 0xff, said);
	else
		find("ok", "wrapped", "", "Slurm %s, around %s", said, path);
}

static void check_site(const struct site *site)
{
	struct stat st;

	if (*site->problem)
		find("fail", "brumate-slurm.conf", "correct it, or remove the line",
		     "\"%s\" is not understood and left out", site->problem);
	if (stat(site->helper, &st) < 0 || access(site->helper, X_OK) < 0)
		find("fail", "helper", "install brumate, or set Helper= in brumate-slurm.conf",
		     "%s cannot be run: %m", site->helper);
	else if (st.st_uid != 0 || st.st_mode & 022)
		find("fail", "helper", "chown root, chmod go-w",
		     "%s can be written by others than root, and slurmstepd starts it",
		     site->helper);
	if (access("/sys/fs/cgroup/cgroup.controllers", F_OK) < 0 &&
	    access("/sys/fs/cgroup/freezer", F_OK) < 0)
		find("warn", "cgroups", "mount cgroups on the nodes",
		     "no cgroups here: a user's broker may be frozen or killed with one step");
}

static void check_scheduling(const char *config, const struct site *site)
{
	char mode[VALUE_BYTES], slice[VALUE_BYTES], wait[VALUE_BYTES], gres[VALUE_BYTES],
		select[VALUE_BYTES], consumed[VALUE_BYTES];

	site_config_value(mode, sizeof(mode), config, "PreemptMode");
	site_config_value(slice, sizeof(slice), config, "SchedulerTimeSlice");
	site_config_value(wait, sizeof(wait), config, "KillWait");
	site_config_value(gres, sizeof(gres), config, "GresTypes");
	site_config_value(select, sizeof(select), config, "SelectType");
	site_config_value(consumed, sizeof(consumed), config, "SelectTypeParameters");
	const bool suspends = strstr(mode, "SUSPEND"), takes_turns = strstr(mode, "GANG");

	if (takes_turns && atoi(slice) < SLICE_S_MIN)
		find("warn", "time slice", "SchedulerTimeSlice=30 or more",
		     "SchedulerTimeSlice=%s: a suspend and a resume may take longer", slice);
	if (atoi(wait) < KILL_WAIT_S_MIN)
		find("warn", "KillWait",
		     "KillWait= what a checkpoint takes, or GraceTime= of the partition",
		     "KillWait=%s: a job that is preempted or requeued is killed then, saved or "
		     "not",
		     wait);
	if (suspends && strstr(gres, "gpu"))
		find("warn", "GRES", "jobs that take turns ask for no GRES, or for gres/shard",
		     "GresTypes=%s: Slurm gives no GRES back at suspend", gres);
	if (suspends && strstr(select, "linear"))
		find("warn", "whole nodes", "SelectType=select/cons_tres",
		     "%s: jobs get whole nodes", select);
	if (suspends && strcasestr(consumed, "memory"))
		find("note", "memory", "--mem of all that take turns has to fit at once",
		     "%s: a suspended job keeps its memory, where its device memory is, too",
		     consumed);
	find("ok", "preemption", "", "PreemptMode=%s; a suspend may take %u s", mode, site->wait_s);
}

void site_examine(const char *config, const struct site *site)
{
	check_plugins(config);
	check_wrapped(config, site);
	check_site(site);
	check_scheduling(config, site);
}

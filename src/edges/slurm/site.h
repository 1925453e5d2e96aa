// SPDX-License-Identifier: MIT
/*
 * What a site says about brumate under Slurm: brumate-slurm.conf next to slurm.conf, lines "Key=value". Read by both plugins and by
 * brumate-slurm; an unknown key or a value that is not one is reported and left at its default, so that no line stops slurmstepd.
 */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct site {
	char proctrack[64]; /* Proctrack=cgroup: the plugin that ours wraps */
	char plugin_dir
		[PATH_MAX]; /* PluginDir=: where Slurm's plugins are; "": next to ours, or at the usual places */
	char helper[PATH_MAX];	/* Helper=: brumate-slurm */
	char run_dir[PATH_MAX]; /* RunDir=/run/brumate-slurm: which steps are here */
	unsigned wait_s;	/* Wait=60: limit for one suspend or resume, in seconds */
	bool by_default;	/* Default=no: all jobs, unless they say --brumate=no */
	char problem[256];	/* the first line that was not understood; "": none */
};

/** Reads it. Without a file @ret has the defaults. */
void site_load(struct site *ret);

/** Applies the text of one file. Pure. */
void site_apply(struct site *s, const char *text);

/** Opens the plugin of Slurm with the file name @name. Where the site names one of another version than that next to the library with @of_slurm,
 * a function of Slurm (NULL: not known), it is the latter, and @ret_wrong, which may be NULL, says which was not taken; else "". NULL: there
 * is none. @ret_version: as Slurm has it. */
void *site_open_plugin(const struct site *s, const char *name, const void *of_slurm,
		       uint32_t *ret_version, char *ret_wrong);

/** The path of the plugin of Slurm with the file name @name; false: it is nowhere. */
bool site_find_plugin(const struct site *s, const char *name, char ret[static PATH_MAX]);

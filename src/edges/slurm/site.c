// SPDX-License-Identifier: MIT
/* See site.h. Part of Slurm's processes: depends on libc alone, and calls nothing of Slurm. */
#include "edges/slurm/site.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef BRUMATE_LIBEXECDIR
#define BRUMATE_LIBEXECDIR "/usr/libexec/brumate"
#endif

enum { CONF_BYTES_MAX = 65536, WAIT_S_MAX = 86400 };

static const char *const usual_dirs[] = {
	"/usr/lib/x86_64-linux-gnu/slurm-wlm",
	"/usr/lib/aarch64-linux-gnu/slurm-wlm",
	"/usr/lib64/slurm",
	"/usr/lib/slurm",
	"/usr/local/lib/slurm",
	"/opt/slurm/lib/slurm",
};

static void set_text(char *ret, size_t room, const char *value, struct site *s, const char *line)
{
	if (*value && strlen(value) < room)
		strcpy(ret, value);
	else if (!*s->problem)
		snprintf(s->problem, sizeof(s->problem), "%s", line);
}

static bool set_number(unsigned *ret, const char *value)
{
	char *end;
	unsigned long n = strtoul(value, &end, 10);

	if (*value < '0' || *value > '9' || *end || !n || n > WAIT_S_MAX)
		return false;
	*ret = (unsigned)n;
	return true;
}

static bool set_flag(bool *ret, const char *value)
{
	const bool yes = !strcasecmp(value, "yes"), no = !strcasecmp(value, "no");

	if (yes || no)
		*ret = yes;
	return yes || no;
}

static void apply_line(struct site *s, char *line)
{
	char whole[sizeof(s->problem)], *value;

	line += strspn(line, " \t");
	line[strcspn(line, "#\r")] = '\0';
	for (size_t n = strlen(line); n && strchr(" \t", line[n - 1]); n--)
		line[n - 1] = '\0';
	if (!*line)
		return;
	snprintf(whole, sizeof(whole), "%s", line);
	value = strchr(line, '=');
	if (value)
		*value++ = '\0';
	if (!value)
		set_text(NULL, 0, "", s, whole);
	else if (!strcasecmp(line, "Proctrack"))
		set_text(s->proctrack, strchr(value, '/') ? 0 : sizeof(s->proctrack), value, s,
			 whole);
	else if (!strcasecmp(line, "PluginDir"))
		set_text(s->plugin_dir, sizeof(s->plugin_dir), value, s, whole);
	else if (!strcasecmp(line, "Helper"))
		set_text(s->helper, *value == '/' ? sizeof(s->helper) : 0, value, s, whole);
	else if (!strcasecmp(line, "RunDir"))
		set_text(s->run_dir, *value == '/' ? sizeof(s->run_dir) : 0, value, s, whole);
	else if (!(!strcasecmp(line, "Wait") && set_number(&s->wait_s, value)) &&
		 !(!strcasecmp(line, "Default") && set_flag(&s->by_default, value)))
		set_text(NULL, 0, "", s, whole);
}

void site_apply(struct site *s, const char *text)
{
	char *copy = strdup(text), *rest = copy, *line;

	while (copy && (line = strsep(&rest, "\n")))
		apply_line(s, line);
	free(copy);
}

/* Like Slurm's own files: next to the slurm.conf that this process was started with. */
static void find_conf(char ret[static PATH_MAX])
{
	const char *conf = getenv("SLURM_CONF");
	const char *slash = conf ? strrchr(conf, '/') : NULL;

	if (slash)
		snprintf(ret, PATH_MAX, "%.*s/brumate-slurm.conf", (int)(slash - conf), conf);
	else
		snprintf(ret, PATH_MAX, "/etc/slurm/brumate-slurm.conf");
}

void site_load(struct site *ret)
{
	char path[PATH_MAX], *text = malloc(CONF_BYTES_MAX + 1);

	*ret = (struct site){ .proctrack = "cgroup",
			      .helper = BRUMATE_LIBEXECDIR "/brumate-slurm",
			      .run_dir = "/run/brumate-slurm",
			      .wait_s = 60 };
	find_conf(path);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 && text ? read(fd, text, CONF_BYTES_MAX) : -1;
	if (fd >= 0)
		close(fd);
	if (n >= 0) {
		text[n] = '\0';
		site_apply(ret, text);
	}
	free(text);
}

static bool is_there(char ret[static PATH_MAX], const char *dir, size_t len, const char *name)
{
	return snprintf(ret, PATH_MAX, "%.*s/%s", (int)len, dir, name) < PATH_MAX &&
	       access(ret, R_OK) == 0;
}

bool site_find_plugin(const struct site *s, const char *name, char ret[static PATH_MAX])
{
	Dl_info self;

	if (*s->plugin_dir)
		return is_there(ret, s->plugin_dir, strlen(s->plugin_dir), name);
	if (dladdr((void *)site_find_plugin, &self) && self.dli_fname &&
	    strrchr(self.dli_fname, '/') &&
	    is_there(ret, self.dli_fname, (size_t)(strrchr(self.dli_fname, '/') - self.dli_fname),
		     name))
		return true;
	for (size_t i = 0; i < sizeof(usual_dirs) / sizeof(*usual_dirs); i++)
		if (is_there(ret, usual_dirs[i], strlen(usual_dirs[i]), name))
			return true;
	return false;
}

static void *open_plugin(const char *path, uint32_t *ret_version)
{
	void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
	const uint32_t *version = library ? dlsym(library, "plugin_version") : NULL;

	*ret_version = version ? *version : 0;
	return library;
}

/* The plugins that a Slurm takes are next to its library. */
static bool find_beside(const void *of_slurm, const char *name, char ret[static PATH_MAX])
{
	Dl_info slurm;

	if (!of_slurm || !dladdr(of_slurm, &slurm) || !slurm.dli_fname)
		return false;
	const char *slash = strrchr(slurm.dli_fname, '/');
	return slash && is_there(ret, slurm.dli_fname, (size_t)(slash - slurm.dli_fname), name);
}

void *site_open_plugin(const struct site *s, const char *name, const void *of_slurm,
		       uint32_t *ret_version, char *ret_wrong)
{
	char path[PATH_MAX], beside[PATH_MAX];
	uint32_t version = 0;
	void *library = site_find_plugin(s, name, path) ? open_plugin(path, &version) : NULL;
	void *other = find_beside(of_slurm, name, beside) ? open_plugin(beside, ret_version) : NULL;

	if (ret_wrong)
		*ret_wrong = '\0';
	if (other && *ret_version != version) {
		if (library && ret_wrong)
			snprintf(ret_wrong, PATH_MAX, "%s", path);
		if (library)
			dlclose(library);
		return other;
	}
	if (other)
		dlclose(other);
	*ret_version = version;
	return library;
}

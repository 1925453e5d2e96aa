// SPDX-License-Identifier: MIT
/* What is known of a job's reaper from outside. See reaper.h. */
#include "process/reaper.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { ARGUMENTS_BYTES_MAX = 4096 };

bool reaper_is(struct proc_id id)
{
	char target[PATH_MAX];

	if (!id.pid || proc_link_read(id.pid, "exe", target, sizeof(target)) < 0)
		return false;
	const char *slash = strrchr(target, '/');
	/* After brumate was reinstalled, " (deleted)" follows. */
	return slash && !strncmp(slash + 1, REAPER_PROGRAM, strlen(REAPER_PROGRAM)) &&
	       !proc_has_ended(id);
}

/* Its argument: the command's pid as the reaper's pid namespace numbers it. 0: none. */
static pid_t read_argument(pid_t reaper)
{
	auto_free char *text = NULL;
	size_t len = 0;

	if (proc_file_read(reaper, "cmdline", ARGUMENTS_BYTES_MAX, &text, &len) < 0 ||
	    strlen(text) + 1 >= len)
		return 0;
	return atoi(text + strlen(text) + 1);
}

struct proc_id reaper_find_command(struct proc_id root)
{
	auto_free pid_t *children = NULL;
	pid_t inner_pid = reaper_is(root) ? read_argument(root.pid) : 0;
	size_t n = 0;

	if (!inner_pid || proc_children(root.pid, &children, &n) < 0)
		return PROC_ID_NONE;
	for (size_t i = 0; i < n; i++) {
		struct proc_info info;

		if (proc_read(&info, children[i], NULL) == 0 && info.inner_pid == inner_pid &&
		    info.ppid == root.pid)
			return info.id;
	}
	return PROC_ID_NONE;
}

bool reaper_is_alone(struct proc_id root)
{
	auto_free pid_t *children = NULL;
	size_t n = 0;

	if (!reaper_is(root) || proc_children(root.pid, &children, &n) < 0)
		return false;
	for (size_t i = 0; i < n; i++) {
		struct proc_info info;

		int r = proc_read(&info, children[i], NULL);

		if (r != -ESRCH && (r < 0 || info.state != 'Z'))
			return false;
	}
	return true;
}

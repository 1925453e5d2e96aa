// SPDX-License-Identifier: MIT
/* Which mappings of a process may be taken, by what smaps says of them. Pure. */
#include "cpumem/cpu-memory.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "process/smaps.h"

/* What may be said of memory that is plain: proc(5), VmFlags. All else (huge TLB pages, device memory,
 * userfaultfd, droppable pages, guards, shadow stacks, what a later kernel adds) stays with CRIU. */
static const char plain_flags[] = " rd wr ex mr mw me ac nr hg nh sd dd dc wf lo mg lf nl ";

static bool flags_are_plain(char *flags)
{
	char *rest = NULL;

	for (char *f = strtok_r(flags, " ", &rest); f; f = strtok_r(NULL, " ", &rest)) {
		char word[8];

		if (strlen(f) != 2)
			return false;
		snprintf(word, sizeof(word), " %s ", f);
		if (!strstr(plain_flags, word))
			return false;
	}
	return true;
}

/* The first line of a mapping. 1 a candidate, 0 none, -EBADMSG no such line. */
static int parse_head(const char *line, struct cpu_memory_vma *ret)
{
	unsigned long long start, end, inode;
	char perms[5];
	int name_at = 0;

	if (sscanf(line, "%llx-%llx %4s %*x %*x:%*x %llu %n", &start, &end, perms, &inode,
		   &name_at) < 4)
		return -EBADMSG;
	if (start >= end || (start | end) % 4096)
		return -EBADMSG;
	*ret = (struct cpu_memory_vma){ start, end, 0 };
	const char *name = line + name_at;
	bool is_anonymous = !*name || !strcmp(name, "[heap]") || !strncmp(name, "[anon:", 6);
	return is_anonymous && !inode && !strncmp(perms, "rw", 2) && perms[3] == 'p';
}

ssize_t cpu_memory_parse_smaps(char *text, struct cpu_memory_vma *ret, size_t room)
{
	struct cpu_memory_vma vma = { 0 };
	size_t n = 0;
	char *rest = NULL;
	int candidate = 0;
	uint64_t last_end = 0;

	for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		if (smaps_is_head(line)) {
			candidate = parse_head(line, &vma);
			if (candidate < 0 || vma.start < last_end)
				return -EBADMSG;
			last_end = vma.end;
		} else if (!strncmp(line, "VmFlags:", 8)) {
			if (candidate && n < room && flags_are_plain(line + 8))
				ret[n++] = vma;
			candidate = 0;
		} else {
			vma.there_bytes += smaps_bytes(line, "Rss:") + smaps_bytes(line, "Swap:");
		}
	}
	return (ssize_t)n;
}

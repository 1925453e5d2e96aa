// SPDX-License-Identifier: MIT
/* Destructors behind the auto_* attributes. Each keeps errno, so a return value survives the scope. */
#include "base/cleanup.h"

#include <errno.h>
#include <unistd.h>

void cleanup_close(int *fd)
{
	int saved = errno;

	if (*fd >= 0)
		close(*fd);
	*fd = -1;
	errno = saved;
}

void cleanup_free(void *pp)
{
	int saved = errno;

	free(*(void **)pp);
	*(void **)pp = NULL;
	errno = saved;
}

void cleanup_fclose(FILE **fp)
{
	int saved = errno;

	if (*fp)
		fclose(*fp);
	*fp = NULL;
	errno = saved;
}

void cleanup_closedir(DIR **dir)
{
	int saved = errno;

	if (*dir)
		closedir(*dir);
	*dir = NULL;
	errno = saved;
}

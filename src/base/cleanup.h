// SPDX-License-Identifier: MIT
/*
 * Scope-bound ownership: a variable declared with one of these attributes releases what it holds
 * when it goes out of scope. Every destructor accepts the empty value (-1, NULL), and take_fd() and
 * take_ptr() hand ownership over by leaving the empty value behind.
 */
#pragma once

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Each keeps errno, so that a return value survives the scope. */

static inline void cleanup_close(int *fd)
{
	int saved = errno;

	if (*fd >= 0)
		close(*fd);
	*fd = -1;
	errno = saved;
}

static inline void cleanup_free(void *pp)
{
	int saved = errno;

	free(*(void **)pp);
	*(void **)pp = NULL;
	errno = saved;
}

static inline void cleanup_fclose(FILE **fp)
{
	int saved = errno;

	if (*fp)
		fclose(*fp);
	*fp = NULL;
	errno = saved;
}

static inline void cleanup_closedir(DIR **dir)
{
	int saved = errno;

	if (*dir)
		closedir(*dir);
	*dir = NULL;
	errno = saved;
}

#define auto_close    __attribute__((cleanup(cleanup_close)))
#define auto_free     __attribute__((cleanup(cleanup_free)))
#define auto_fclose   __attribute__((cleanup(cleanup_fclose)))
#define auto_closedir __attribute__((cleanup(cleanup_closedir)))

/* Defines auto_(type_free)-style helpers: DEFINE_AUTO(struct x *, x_free) gives `auto_x_free`-able
 * function cleanup_x_free; use as __attribute__((cleanup(cleanup_x_free))) through auto_(x_free). */
#define DEFINE_AUTO(type, fn)                    \
	static inline void cleanup_##fn(type *p) \
	{                                        \
		fn(*p);                          \
	}
#define auto_(fn) __attribute__((cleanup(cleanup_##fn)))

/* Like DEFINE_AUTO, for embedded objects: fn takes a pointer to the object. */
#define DEFINE_AUTO_FINI(type, fn)               \
	static inline void cleanup_##fn(type *p) \
	{                                        \
		fn(p);                           \
	}

static inline int take_fd(int *fd)
{
	int taken = *fd;

	*fd = -1;
	return taken;
}

#define take_ptr(p)                             \
	({                                      \
		__typeof__(*(p)) taken_ = *(p); \
		*(p) = NULL;                    \
		taken_;                         \
	})

/** Moves a struct out, and leaves @empty in its place. */
#define take_struct(s, empty)               \
	({                                  \
		__typeof__(s) taken_ = (s); \
		(s) = (empty);              \
		taken_;                     \
	})

// SPDX-License-Identifier: MIT
/*
 * Scope-bound ownership: a variable declared with one of these attributes releases what it holds
 * when it goes out of scope. Every destructor accepts the empty value (-1, NULL), and take_fd() and
 * take_ptr() hand ownership over by leaving the empty value behind.
 */
#pragma once

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

void cleanup_close(int *fd);	  /* keeps errno */
void cleanup_free(void *pp);	  /* keeps errno */
void cleanup_fclose(FILE **fp);	  /* keeps errno */
void cleanup_closedir(DIR **dir); /* keeps errno */

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

/* As DEFINE_AUTO for embedded objects: fn takes a pointer to the object. */
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

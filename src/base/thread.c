// SPDX-License-Identifier: MIT
/* See thread.h. */
#include "base/thread.h"

#include <signal.h>

/* A thread inherits the signal mask of its creator. */
static int start_masked(pthread_t *ret, const pthread_attr_t *attr, void *(*fn)(void *arg),
			void *arg)
{
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int r = pthread_create(ret, attr, fn, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -r;
}

int thread_start(pthread_t *ret, void *(*fn)(void *arg), void *arg)
{
	return start_masked(ret, NULL, fn, arg);
}

int thread_start_detached(void *(*fn)(void *arg), void *arg, size_t stack_bytes)
{
	pthread_attr_t attr;
	pthread_t thread;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	if (stack_bytes)
		pthread_attr_setstacksize(&attr, stack_bytes);
	int r = start_masked(&thread, &attr, fn, arg);
	pthread_attr_destroy(&attr);
	return r;
}

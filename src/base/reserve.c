// SPDX-License-Identifier: MIT
/* See reserve.h. */
#include "base/reserve.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int stock[RESERVE_FDS];
static int n_stock;

void reserve_fill(void)
{
	pthread_mutex_lock(&lock);
	while (n_stock < RESERVE_FDS) {
		int fd = open("/", O_PATH | O_CLOEXEC);

		if (fd < 0)
			break;
		stock[n_stock++] = fd;
	}
	pthread_mutex_unlock(&lock);
}

int reserve_count(void)
{
	pthread_mutex_lock(&lock);
	int n = n_stock;
	pthread_mutex_unlock(&lock);
	return n;
}

bool reserve_lend(int error)
{
	bool lent = false;

	if (error != EMFILE && error != ENFILE)
		return false;
	pthread_mutex_lock(&lock);
	if (n_stock) {
		close(stock[--n_stock]);
		lent = true;
	}
	pthread_mutex_unlock(&lock);
	return lent;
}

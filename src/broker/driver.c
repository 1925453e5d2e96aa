// SPDX-License-Identifier: MIT
/*
 * The vendor driver of this broker: loaded and initialised once, by a thread of its own, so that the
 * time it takes runs beside the first caller's.
 */
#include "broker/broker.h"
#include "base/log.h"

#include <errno.h>
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct {
	bool done;
	int result;
	struct dev_info info;
	struct brumate_error err;
} driver; /* under the lock */

static struct dev_libraries libraries;
static void (*on_failure)(void);

static void *initialise(void *unused)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct dev_info info = { 0 };
	int r = dev_open(&dev_cuda, &libraries, &info, &err);

	pthread_mutex_lock(&lock);
	driver.info = info;
	driver.err = err;
	driver.result = r;
	driver.done = true;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);

	if (r < 0) {
		log_error("%s", err.text);
		on_failure();
	} else {
		log_info("driver ready version=%s api=%d simulated=%d seconds=%.3f",
			 info.driver_version, info.api_version, info.simulated, info.init_seconds);
	}
	return NULL;
}

int driver_start(const struct dev_libraries *where, void (*when_failed)(void),
		 struct brumate_error *err)
{
	pthread_t thread;

	libraries = *where;
	on_failure = when_failed;
	int r = pthread_create(&thread, NULL, initialise, NULL);
	if (r)
		return brumate_fail(err, r, "thread for the driver: %m");
	pthread_detach(thread);
	return 0;
}

int driver_wait(const struct dev_backend **ret, struct dev_info *ret_info,
		struct brumate_error *err)
{
	pthread_mutex_lock(&lock);
	while (!driver.done)
		pthread_cond_wait(&changed, &lock);
	int r = driver.result;
	if (r < 0 && err)
		*err = driver.err;
	if (r == 0 && ret_info)
		*ret_info = driver.info;
	pthread_mutex_unlock(&lock);
	if (r == 0)
		*ret = &dev_cuda;
	return r;
}

bool driver_has_failed(void)
{
	pthread_mutex_lock(&lock);
	bool failed = driver.done && driver.result < 0;
	pthread_mutex_unlock(&lock);
	return failed;
}

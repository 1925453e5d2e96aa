// SPDX-License-Identifier: MIT
/* A few threads that do jobs in the order they were given, until they are told to end. */
#include "broker/data.h"
#include "base/machine.h"

#include <errno.h>
#include <stdlib.h>

enum { CREW_MAX = 8 }; /* more do not copy faster: docs/architecture.md */

struct crew {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct crew_job *head, **tail;
	bool ending;
	unsigned n;
	pthread_t threads[CREW_MAX];
};

static void *run(void *arg)
{
	struct crew *c = arg;

	pthread_mutex_lock(&c->lock);
	for (;;) {
		struct crew_job *job = c->head;

		if (!job && c->ending)
			break;
		if (!job) {
			pthread_cond_wait(&c->changed, &c->lock);
			continue;
		}
		c->head = job->next;
		if (!c->head)
			c->tail = &c->head;
		pthread_mutex_unlock(&c->lock);
		job->run(job);
		pthread_mutex_lock(&c->lock);
	}
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

int crew_new(struct crew **ret, unsigned n_max, bool waits, struct brumate_error *err)
{
	struct crew *c = calloc(1, sizeof(*c));
	unsigned n = waits ? n_max : machine_cores();

	if (!c)
		return brumate_fail(err, ENOMEM, "threads: %m");
	n = n < n_max ? n : n_max;
	n = n < CREW_MAX ? n : CREW_MAX;
	c->tail = &c->head;
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->changed, NULL);
	for (; c->n < n; c->n++) {
		int r = pthread_create(&c->threads[c->n], NULL, run, c);

		if (r && c->n == 0) {
			crew_free(c);
			return brumate_fail(err, r, "threads: %m");
		}
		if (r)
			break; /* fewer do it too */
	}
	*ret = c;
	return 0;
}

void crew_add(struct crew *c, struct crew_job *job)
{
	job->next = NULL;
	pthread_mutex_lock(&c->lock);
	*c->tail = job;
	c->tail = &job->next;
	pthread_cond_signal(&c->changed);
	pthread_mutex_unlock(&c->lock);
}

void crew_free(struct crew *c)
{
	if (!c)
		return;
	pthread_mutex_lock(&c->lock);
	c->ending = true;
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
	for (unsigned i = 0; i < c->n; i++)
		pthread_join(c->threads[i], NULL);
	pthread_mutex_destroy(&c->lock);
	pthread_cond_destroy(&c->changed);
	free(c);
}

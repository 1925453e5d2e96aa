// SPDX-License-Identifier: MIT
/*
 * Events that processes give each other. The program gets a ticket in place of the driver's handle, which is good only
 * as long as the driver keeps what is behind it: who opens a ticket asks the agent of the event's maker for the
 * driver's handle of that moment (lend.c). So an event that is given away is no obstacle to an operation, and its ticket
 * is as good after it. One that is open in another process is: the driver shares it then, and the program there has the
 * driver's own name of it.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "interpose/core/agent.h"
#include "interpose/core/backend.h"
#include "interpose/core/memory.h"

#define EVENT_TICKET_MAGIC 0x627275636576656eull

/* An event that this process gave to others, or got from one. */
struct event {
	struct node node; /* start: the driver's handle */
	uint64_t id;
	void *context;	      /* NULL: gone, and the driver's event with it */
	struct ticket ticket; /* of one that another process made; else empty */
	unsigned int lent;    /* processes outside the job that have it open */
	int32_t borrower;     /* one of them */
	unsigned int pins;    /* questions to the driver about it that are under way */
	bool dropped;	      /* out of the table: whoever unpins it last ends it */
};

static bool is_imported(const struct event *event)
{
	return event->ticket.magic;
}

static void *handle_of(const struct event *event)
{
	return (void *)(uintptr_t)event->node.start;
}

/* ---- the table: with the lock ---- */

static struct event *add_event(void *handle, void *context)
{
	struct event *event = calloc(1, sizeof(*event));

	if (!event)
		return NULL;
	event->node = (struct node){ .start = (uintptr_t)handle, .bytes = 1 };
	event->id = ++memory.last_id;
	event->context = context;
	tree_add(&memory.events, &event->node);
	atomic_fetch_add(&memory.n_events, 1);
	return event;
}

static void remove_event(struct event *event)
{
	tree_remove(&memory.events, &event->node);
	atomic_fetch_sub(&memory.n_events, 1);
	event->dropped = true;
}

/* One that this process made; NULL: there is none of that name and id. */
static struct event *own_event(uint64_t name, uint64_t id)
{
	struct event *event = tree_get(&memory.events, name);

	return event && event->id == id && !is_imported(event) ? event : NULL;
}

/* ---- the program's calls ---- */

bool ticket_is_of_event(const struct ticket *ticket)
{
	return ticket->magic == EVENT_TICKET_MAGIC;
}

int event_give(struct ticket *ret, void *handle, void *context)
{
	struct event *event;

	memory_lock();
	event = tree_get(&memory.events, (uintptr_t)handle);
	if (!event)
		event = add_event(handle, context);
	if (event)
		*ret = (struct ticket){ .magic = EVENT_TICKET_MAGIC,
					.token = agent_token(),
					.block = event->node.start,
					.id = event->id,
					.pid = getpid(),
					.job = neighbour_here() };
	memory_unlock();
	return event ? 0 : -ENOMEM;
}

int event_note_taken(void *handle, void *context, const struct ticket *ticket)
{
	struct event *event;

	memory_lock();
	event = add_event(handle, context);
	if (event)
		event->ticket = *ticket;
	memory_unlock();
	return event ? 0 : -ENOMEM;
}

/* Of one that nobody else has. */
static void end_event(struct event *event)
{
	if (is_imported(event))
		lent_event_back(&event->ticket);
	free(event);
}

bool event_drop(void *handle)
{
	struct event *event;
	bool pinned = false;

	if (!atomic_load_explicit(&memory.n_events, memory_order_relaxed))
		return true;
	memory_lock();
	event = tree_get(&memory.events, (uintptr_t)handle);
	if (event) {
		remove_event(event);
		pinned = event->pins;
	}
	memory_unlock();
	if (event && !pinned)
		end_event(event);
	return !pinned;
}

void events_drop(void *context)
{
	struct event *event;

	do {
		bool pinned = false;

		event = NULL;
		memory_lock();
		while ((event = tree_next(&memory.events, event)) && event->context != context)
			;
		if (event) {
			remove_event(event);
			event->context = NULL;
			pinned = event->pins;
		}
		memory_unlock();
		if (event && !pinned)
			end_event(event);
	} while (event);
}

/* ---- the maker's agent ---- */

static void unpin_event(struct event *event)
{
	bool last;

	memory_lock();
	last = !--event->pins && event->dropped;
	memory_unlock();
	if (!last)
		return;
	if (event->context)
		backend_event_destroy(handle_of(event));
	free(event);
}

int event_lend(uint8_t ret[static AGENT_EVENT_BYTES], uint64_t name, uint64_t id, int32_t borrower)
{
	struct event *event;
	void *context = NULL;
	int r;

	memory_lock();
	event = own_event(name, id);
	if (event) {
		event->pins++;
		context = event->context;
	}
	memory_unlock();
	if (!event)
		return -ENOENT;
	r = backend_event_export(context, handle_of(event), ret);
	if (!r && borrower) {
		memory_lock();
		event->lent++;
		event->borrower = borrower;
		memory_unlock();
	}
	unpin_event(event);
	return r ? -EIO : 0;
}

void event_count_back(uint64_t name, uint64_t id)
{
	struct event *event;

	memory_lock();
	event = own_event(name, id);
	if (event && event->lent)
		event->lent--;
	memory_unlock();
}

int32_t event_find_open(int32_t *ret_borrower)
{
	struct event *event = NULL;
	int32_t maker = 0;

	*ret_borrower = 0;
	while ((event = tree_next(&memory.events, event))) {
		if (is_imported(event))
			maker = event->ticket.pid;
		else if (event->lent)
			*ret_borrower = event->borrower;
	}
	return maker;
}

// SPDX-License-Identifier: MIT
/*
 * Events that another process opens. How often such an event was recorded, and which recording is done, is stored in
 * a page of a file in $BRUMATE_SIM_DIR/ipc/, which all processes that have the event open map. The file's name is the
 * handle.
 *
 * From the documentation: an event with a handle has no times. Our choice, not a measurement: a handle is invalid
 * once the event's maker was restored, and a process that has another process's event open is lost, like one that has
 * its memory open.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "sim.h"

enum { EVENT_MAGIC = 0x62457643, LOOK_AGAIN_NS = 200000 };

struct event_handle {
	uint32_t magic;
	char name[SHARED_EVENT_NAME_BYTES];
	char rest[20];
};
_Static_assert(sizeof(struct event_handle) == sizeof(CUipcEventHandle), "one fits in the other");

struct event_page {
	_Atomic uint64_t recorded, done;
};

static int open_file(const char *name, int flags)
{
	char path[PATH_MAX];
	int fd;

	snprintf(path, sizeof(path), "%s/ipc", config_get()->dir);
	if (flags & O_CREAT && mkdir(path, 0700) < 0 && errno != EEXIST)
		return -errno;
	snprintf(path, sizeof(path), "%s/ipc/%s", config_get()->dir, name);
	fd = open(path, flags | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0600);
	return fd < 0 ? -errno : fd;
}

static int map_page(struct shared_event *event, int flags)
{
	auto_close int fd = open_file(event->name, flags);
	void *at;

	if (fd < 0)
		return fd;
	if (flags & O_CREAT && ftruncate(fd, SIM_PAGE_BYTES) < 0)
		return -errno;
	at = mmap(NULL, SIM_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED || madvise(at, SIM_PAGE_BYTES, MADV_DONTFORK) < 0)
		return -errno;
	event->page = at;
	return 0;
}

static void remove_file(const struct shared_event *event)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/ipc/%s", config_get()->dir, event->name);
	unlink(path);
}

CUresult shared_event_make(struct shared_event *event)
{
	snprintf(event->name, sizeof(event->name), "event-%d-%llu", getpid(),
		 (unsigned long long)clock_now_ns());
	return map_page(event, O_CREAT | O_EXCL) < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

void shared_event_fini(struct shared_event *event)
{
	if (event->page)
		munmap(event->page, SIM_PAGE_BYTES);
	if (*event->name && !event->opened)
		remove_file(event);
	*event = (struct shared_event){ 0 };
}

/* ---- how far it is ---- */

uint64_t shared_event_record(struct shared_event *event)
{
	return atomic_fetch_add(&event->page->recorded, 1) + 1;
}

void shared_event_pass(struct shared_event *event, uint64_t record)
{
	uint64_t done = atomic_load(&event->page->done);

	while (done < record && !atomic_compare_exchange_weak(&event->page->done, &done, record))
		;
}

uint64_t shared_event_last(const struct shared_event *event)
{
	return atomic_load(&event->page->recorded);
}

bool shared_event_is_done(const struct shared_event *event, uint64_t record)
{
	return atomic_load(&event->page->done) >= record;
}

void shared_event_wait(const struct shared_event *event, uint64_t record)
{
	while (!shared_event_is_done(event, record))
		nanosleep(&(struct timespec){ .tv_nsec = LOOK_AGAIN_NS }, NULL);
}

/* ---- handles ---- */

static CUresult get_handle(CUipcEventHandle *ret, CUevent event)
{
	struct event_handle handle = { .magic = EVENT_MAGIC };

	if (!ret)
		return CUDA_ERROR_INVALID_VALUE;
	if (!handle_valid(&sim.events, event) || !*event->shared.name || event->shared.opened)
		return CUDA_ERROR_INVALID_HANDLE;
	strcpy(handle.name, event->shared.name);
	memcpy(ret, &handle, sizeof(handle));
	return CUDA_SUCCESS;
}

static bool is_of_this_process(const char *name)
{
	for (size_t i = 0; i < sim.events.n; i++) {
		CUevent event = sim.events.slots[i].value;

		if (!strcmp(event->shared.name, name) && !event->shared.opened)
			return true;
	}
	return false;
}

static CUresult open_handle(CUcontext ctx, CUevent *ret, const CUipcEventHandle *wire)
{
	struct shared_event shared = { .opened = true };
	struct event_handle handle;
	CUresult r;

	memcpy(&handle, wire, sizeof(handle));
	if (!ret || handle.magic != EVENT_MAGIC ||
	    !memchr(handle.name, '\0', sizeof(handle.name)) ||
	    strspn(handle.name, "event-0123456789") != strlen(handle.name))
		return CUDA_ERROR_INVALID_VALUE;
	if (is_of_this_process(handle.name))
		return CUDA_ERROR_INVALID_CONTEXT;
	strcpy(shared.name, handle.name);
	if (map_page(&shared, 0) < 0)
		return CUDA_ERROR_INVALID_VALUE;
	r = event_new(ctx, ret, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
	if (r)
		shared_event_fini(&shared);
	else
		(*ret)->shared = shared;
	return r;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event)
{
	return API_CTX_LOCKED(get_handle(handle, event));
}

CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle)
{
	return API_CTX_LOCKED(open_handle(ctx, event, &handle));
}

/* ---- the checkpoint ---- */

bool shared_events_are_open(void)
{
	for (size_t i = 0; i < sim.events.n; i++)
		if (((CUevent)sim.events.slots[i].value)->shared.opened)
			return true;
	return false;
}

/* Nothing of the machine's stays mapped. */
void shared_events_save(void)
{
	for (size_t i = 0; i < sim.events.n; i++) {
		struct shared_event *event = &((CUevent)sim.events.slots[i].value)->shared;

		if (!event->page)
			continue;
		event->saved_recorded = atomic_load(&event->page->recorded);
		event->saved_done = atomic_load(&event->page->done);
		munmap(event->page, SIM_PAGE_BYTES);
		event->page = NULL;
		if (!event->opened)
			remove_file(event);
	}
}

CUresult shared_events_restore(void)
{
	for (size_t i = 0; i < sim.events.n; i++) {
		struct shared_event *event = &((CUevent)sim.events.slots[i].value)->shared;

		if (!*event->name || event->page)
			continue;
		CUresult r = shared_event_make(event);
		if (r)
			return r;
		atomic_store(&event->page->recorded, event->saved_recorded);
		atomic_store(&event->page->done, event->saved_done);
	}
	return CUDA_SUCCESS;
}

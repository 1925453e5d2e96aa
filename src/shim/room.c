// SPDX-License-Identifier: MIT
/* Giving back the device memory that the broker takes to be ready for a copy of this job, to a process of it that misses some. */
#include "shim/shim.h"

#include "base/log.h"

static void *answer(void *arg)
{
	struct shim *s = arg;
	struct shim_room *room = &s->prepare.room;

	room_give_back(room->simulated);
	room_answer(&room->at);
	room->task.state = TASK_DONE;
	shim_wake(s);
	return NULL;
}

bool room_settle(struct shim_room *room)
{
	if (room->task.state == TASK_WORKING)
		return false;
	task_join(&room->task);
	return true;
}

void room_asked(struct shim *s)
{
	struct shim_room *room = &s->prepare.room;

	if (!room_settle(room))
		return;
	room_tell(&room->at, NULL, 0);
	if (task_start(&room->task, answer, s) < 0)
		log_debug("nobody gives device memory back yet: no thread");
}

void room_fini(struct shim_room *room)
{
	task_join(&room->task);
	room_close(&room->at);
	cleanup_free(&room->at.dir);
}

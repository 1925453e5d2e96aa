// SPDX-License-Identifier: MIT
/*
 * The device memory that the broker takes to be ready for a copy: tells the processes that would be copied how much it
 * is, and gives it back if one of them needs it (src/interpose/core/room.h). The files are next to the sockets of their
 * agents, in a directory of the job's user, who may have put anything there.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "gpu/vendor.h"
#include "wire/agent.h"

struct room {
	char *dir;     /* of agents, as agent_dir_open() takes it; owned, NULL: none */
	int listen_fd; /* readable when a process needs some of it; -1: none can ask */
	int held_fd;   /* the file that tells how much, locked; -1: there is none */
};
#define ROOM_NONE ((struct room){ .listen_fd = -1, .held_fd = -1 })

/** Listens for processes that miss it. Whether it does, or did before. */
bool room_listen(struct room *room);
/** Tells them how much it is, on which GPUs; none: nothing. */
void room_tell(struct room *room, const struct agent_room *held, size_t n);
/** Has the broker give it back, and waits for that. */
void room_give_back(const struct gpu_kind *kind);
/** Answers the processes that asked: all that can be given back has been. */
void room_answer(struct room *room);
/** No memory is held any more; that answers the processes that asked. The directory stays known. */
void room_close(struct room *room);

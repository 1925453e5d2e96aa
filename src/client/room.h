// SPDX-License-Identifier: MIT
/*
 * The device memory that the broker takes to be ready for a copy: what of it is told to the processes that the copy would be of,
 * and giving it back to one that misses it (src/interpose/core/room.h). All of it is beside the sockets of their agents, in
 * a directory that is theirs: whatever is there may be anything.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "wire/agent.h"

struct room {
	char *dir;     /* of agents, as agent_dir_open() takes it; owned, NULL: none */
	int listen_fd; /* readable when somebody misses some; -1: nobody is to */
	int held_fd;   /* the file that tells how much, locked; -1: there is none */
};
#define ROOM_NONE ((struct room){ .listen_fd = -1, .held_fd = -1 })

/** Listens for processes that miss it. Whether it does, or did before. */
bool room_listen(struct room *room);
/** Tells them how much it is, on which GPUs; none: nothing. */
void room_tell(struct room *room, const struct agent_room *held, size_t n);
/** Has the broker give it back, and waits for that. */
void room_give_back(bool simulated);
/** Answers those who have asked: there is as much as there will be. */
void room_answer(struct room *room);
/** Nothing is taken any more: who has asked is answered by that. The directory stays known. */
void room_close(struct room *room);

// SPDX-License-Identifier: MIT
/*
 * Named fault points: places where a test can make this process fail, die, stall, or kill a peer.
 *
 * Nothing happens unless the environment names a file in BRUMATE_FAULT_FILE when the process starts.
 * The first line of the file is read at each point:
 *
 *	POINT ACTION[:ARG]
 *
 * with ACTION one of
 *	error:ERRNO   the point returns -ERRNO (a number)
 *	kill          SIGKILL to this process
 *	kill:WHO      SIGKILL to a peer, by the name it was registered under (broker, criu, job, keeper, reaper)
 *	stop          SIGSTOP to this process, whose number is added to the file's name and ".stopped" before
 *	stop:WHO      the same to a peer
 *	delay:MS      the point waits MS milliseconds
 *	hold          the point makes a FIFO, the file's name and ".held", and waits until it is opened
 * A line is removed from the file when its point is hit, so each fault fires once; from then on the next line
 * counts. The file is removed with its last line.
 */
#pragma once

#include <sys/types.h>

/** Passes the point @name. Returns 0, or the -errno that a test injected. */
int fault_point(const char *name);

/** Registers the pid of the peer @who (a string literal) for fault points; @pid 0 forgets it. */
void fault_register_peer(const char *who, pid_t pid);

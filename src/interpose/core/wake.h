// SPDX-License-Identifier: MIT
/*
 * What a process tells those who share its GPU with others: that a call waits at the closed gate, to the shim, which may
 * resume the job; and when the GPU was last used, to anybody, as the modification time of the agent's socket. Nothing is
 * connected, and nothing is sent or noted while the gate is open and unwatched. All keep errno.
 */
#pragma once

/** There is an agent, whose socket is at @path (static; NULL: there is none any more). */
void wake_begin(const char *path);

/** A call waits at the gate: sends the shim one packet, once until wake_forget(). @call: its name; NULL: not known. */
void wake_ask(const char *call);
/** Sends it again, as the shim may have been another then. */
void wake_ask_again(void);
/** The gate opens. */
void wake_forget(void);

/** The GPU is in use now. */
void wake_note_use(void);

/* SPDX-License-Identifier: MIT */
/*
 * libbrumate: a program that `brumate run` started asks to be saved at this point. See brumate_checkpoint(3).
 */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

enum {
	BRUMATE_LEAVE_RUNNING = 1u << 0, /* the program runs on once it is saved, instead of ending */
};

enum {
	BRUMATE_SAVED = 0,    /* the checkpoint has been made, and the program runs on */
	BRUMATE_RESTORED = 1, /* the program was restored from it */
};

/**
 * Saves the job that this process is of. @name: of the checkpoint; NULL: made from the job's name and the time.
 * Returns BRUMATE_SAVED, BRUMATE_RESTORED, or -errno, and then the program runs on: -ENOENT where brumate is not
 * installed, -ESRCH where this process is not of a job, -EIO where nobody can tell how it went. For one thread at a time; others wait.
 */
int brumate_checkpoint(const char *name, unsigned flags);

/** Why brumate_checkpoint() failed the last time in this thread, in one line; "" if it did not. Valid until the next call. */
const char *brumate_error(void);

#ifdef __cplusplus
}
#endif

/* SPDX-License-Identifier: MIT */
/*
 * libbrumate: lets a program that `brumate run` started request a checkpoint of itself at this point. See
 * brumate_checkpoint(3).
 */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

enum {
	BRUMATE_LEAVE_RUNNING = 1u << 0, /* do not end the program after it */
	BRUMATE_WITH_FILES = 1u << 1,	 /* take in the content of files that the job writes */
	BRUMATE_TCP_CLOSE = 1u << 2,	 /* a restore finds its TCP connections closed */
	BRUMATE_DROP_EXTERNAL = 1u << 3, /* and unix connections to outside the job */
};

enum {
	BRUMATE_SAVED = 0,    /* the checkpoint was made, and the program continues */
	BRUMATE_RESTORED = 1, /* the program was restored from the checkpoint */
};

/**
 * Saves the job of this process. @name: of the checkpoint; NULL: made from the job's name and the time. Returns
 * BRUMATE_SAVED or BRUMATE_RESTORED; or -errno, and the program continues: -ENOENT if brumate is not installed,
 * -ESRCH if this process is not in a job, -EIO if the result cannot be read. Only one thread at a time runs it; others
 * wait.
 */
int brumate_checkpoint(const char *name, unsigned flags);

/** Why brumate_checkpoint() last failed in this thread, in one line; "" if it did not. Valid until the next call. */
const char *brumate_error(void);

#ifdef __cplusplus
}
#endif

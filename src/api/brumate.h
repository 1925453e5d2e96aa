/* SPDX-License-Identifier: MIT */
/*
 * libbrumate: lets a program that `brumate run` started request a checkpoint of itself at this point, and any program of the
 * same user suspend, resume, save and restore jobs. No daemon is needed. See brumate_checkpoint(3).
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

/**
 * The caller's other jobs. @job: name, id or an unambiguous beginning of the id; for root also USER/JOB. They return 0 once it is
 * done, also if the job was in that state already; or -errno, and the job is as brumate(1) says for that exit status:
 * -EINVAL: no name that a job can have, or the own job is to be saved; -ESRCH: no such job; -EBUSY: its state or another operation;
 * -EACCES; -EOPNOTSUPP: it cannot be done, and nothing was touched; -ENOMEM: too little device memory is free; -ETIMEDOUT; -EIO.
 * Threads may call them side by side.
 */
int brumate_job_suspend(const char *job);
int brumate_job_resume(const char *job);
/** @name: of the checkpoint; NULL: made from the job's name and the time. */
int brumate_job_checkpoint(const char *job, const char *name, unsigned flags);
/** From its latest checkpoint. */
int brumate_job_restore(const char *job);

/** Why the last of these calls failed in this thread, in one line; "" if it did not. Valid until the next call. */
const char *brumate_error(void);

#ifdef __cplusplus
}
#endif

// SPDX-License-Identifier: MIT
/*
 * Puts right in the images of a dump what CRIU writes down, but would not restore as it was: timers,
 * semaphores, unix sockets without a file, and what TCP has not sent. Of what is read there, nothing is trusted. The rest of the images stays as it is.
 */
#pragma once

#include <protobuf-c/protobuf-c.h>

#include "base/error.h"
#include "criu/images.h"

/** An image that was changed (owned). */
struct criu_mended {
	uint8_t *bytes;
	size_t len_bytes;
};
#define CRIU_MENDED_NONE ((struct criu_mended){ 0 })
void criu_mended_fini(struct criu_mended *m);
DEFINE_AUTO_FINI(struct criu_mended, criu_mended_fini)

/** Begins a copy of @image, whose entries have just been opened; copies an entry of it; adds a message as one. 0, -ENOMEM. */
int criu_mended_begin(struct criu_mended *m, const void *image, const struct criu_entries *entries);
int criu_mended_copy(struct criu_mended *m, const struct criu_entries *entry);
int criu_mended_append(struct criu_mended *m, const ProtobufCMessage *message);

/** Writes it over the image @name. 0, -errno. */
int criu_mended_write(int dir_fd, const char *name, const struct criu_mended *m);

/** The eventfds in files.img that are semaphores, by their numbers there. */
struct criu_semaphores {
	uint32_t *ids;
	size_t n;
};

/**
 * Mends files.img. A timer behind a descriptor that repeats, and has expired unread, begins again when it is read, which
 * CRIU does not restore; and to what is left of an absolute one CRIU adds the seconds of the clock alone, so that it expires
 * too early, or again. That an eventfd is a semaphore CRIU does not write down: it gets O_DIRECT, which no eventfd has, and
 * by which our plugin knows it (criu-plugin/plugin.h). A unix socket whose file is deleted loses its owner, which CRIU does
 * not know and a restore without root's rights could not set. Pure. Returns 1 (@ret), 0 (nothing is to be changed), -EBADMSG,
 * -ENOMEM; -EOVERFLOW: an eventfd has a count that CRIU would cut.
 */
int criu_mend_files(struct criu_mended *ret, const void *buf, size_t len_bytes,
		    const struct criu_semaphores *semaphores);

/**
 * Mends the core image of a process's first thread: timer_create(2). A timer that notifies a thread, or counts its CPU time,
 * does nothing any more once the thread has ended, while CRIU fails to make it; and CLOCK_THREAD_CPUTIME_ID is the clock of
 * the thread that made the timer, while CRIU has the first thread make all. Pure. Returns 1 (@ret), 0, -EBADMSG, -ENOMEM;
 * -EOPNOTSUPP: it is unknown whose CPU time a timer counts.
 */
int criu_mend_core(struct criu_mended *ret, const void *buf, size_t len_bytes,
		   const struct criu_image_process *p);

/** Whether descriptor @fd of a process (numbered as in the images), an eventfd, is a semaphore: 1, 0, -errno. */
typedef int (*criu_semaphore_fn)(void *arg, pid_t pid, int fd);

/**
 * Mends the image of a TCP connection. What was not sent yet CRIU sends while it builds the processes, before the other end may
 * be there: that machine answers with a reset, and the connection or the restore is lost. Here it counts as sent and not
 * acknowledged, as if it had been lost on the way: CRIU puts that back without sending it, and the kernel sends it again a second later. Pure.
 * Returns 1 (@ret), 0, -EBADMSG, -ENOMEM.
 */
int criu_mend_tcp(struct criu_mended *ret, const void *buf, size_t len_bytes);

/** Calls @fn with each such timer of a core image. Pure. 0, -EBADMSG, what @fn returns. */
int criu_core_timers(const void *buf, size_t len_bytes, pid_t pid, criu_timer_fn fn, void *arg);

/** Mends the images of a dump beneath @dir_fd, and calls @on_timer. Errors to act on: -EOPNOTSUPP, as above, or by @is_semaphore. */
int criu_mend_images(int dir_fd, criu_semaphore_fn is_semaphore, criu_timer_fn on_timer, void *arg,
		     struct brumate_error *err);

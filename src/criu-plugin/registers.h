// SPDX-License-Identifier: MIT
/*
 * Registers that CRIU does not save. It knows components of the processor's state (XSAVE) by name, and leaves out all
 * others, tiles (AMX) among them: in the image, and in the first thread of a process that goes on. A thread uses tiles
 * while it multiplies matrices, and releases them afterwards. So a thread that has data in them is continued up to its
 * next system call, while all others stand still.
 *
 * CRIU does not save the permission to use them either (arch_prctl(2)), which a process asks for once; without it,
 * SIGILL would kill the restored process. We store it next to CRIU's images, in "brumate-registers.img".
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/** The components that CRIU's images have room for, a bit for each: x87, SSE, AVX, MPX (two), AVX-512 (three), protection keys. */
#define REGISTERS_SAVED ((uint64_t)(1 << 0 | 1 << 1 | 1 << 2 | 3 << 3 | 7 << 5 | 1 << 9))

/** The components other than @saved that are in use in an XSAVE area. Pure. */
uint64_t registers_lost(const void *area, size_t len_bytes, uint64_t saved);

/** A thread that does not release such components. */
struct registers_kept {
	pid_t tid;
	uint64_t lost;
};

/** Waits until no thread of process @pid, which we trace and which stands still, uses other components than those @saved. 0; 1: @ret
 * does; -errno. */
int registers_settle(pid_t pid, uint64_t saved, struct registers_kept *ret);

/** Writes down the permission of process @pid, if it has any, in the directory of images. 1, 0 (it has none), -errno. */
int registers_dump_permission(int images_fd, pid_t pid);

/** Gives a restored process, which we trace and which stands still, the permission that it had. 0, -errno. */
int registers_restore_permission(int images_fd, pid_t pid);

/** Whether this processor supports all permissions in the images: 0, -EOPNOTSUPP; another -errno: unknown, as they
 * cannot be read. */
int registers_check_permissions(int images_fd);

/** Finds what process @pid had in the text of a record: its permission; 0: none. Pure, for foreign bytes. */
uint64_t registers_decode(const char *text, size_t len_bytes, pid_t pid);

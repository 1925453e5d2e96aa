// SPDX-License-Identifier: MIT
/*
 * Memory of the simulated GPUs: one file per physical allocation in $BRUMATE_SIM_DIR/gpuN/.
 *
 * A file is in use while an open description of it holds a shared flock: through a descriptor or a mapping, in any
 * process. Like memory of a real GPU, it is freed with its last holder. A file without holders does not count, and
 * the next process that finds it removes it.
 */
#pragma once

#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

enum { VRAM_NAME_BYTES = 48 };

/** An allocation this process holds. Empty: holder NULL. */
struct vram_file {
	int gpu;
	char name[VRAM_NAME_BYTES];
	uint64_t bytes;
	void *holder; /* a page of the file, mapped without access: holds the lock, costs no fd */
};

int vram_init(void); /* directories; 0 or -errno */

/** Takes @bytes of GPU @gpu; -ENOSPC if it has not that much left. */
int vram_create(struct vram_file *ret, int gpu, uint64_t bytes);

/** Another descriptor of the allocation, holding it as well; fd or -errno. */
int vram_open(const struct vram_file *file);

/** Holds the allocation that @fd, from anywhere, is a descriptor of; -EINVAL if it is none. */
int vram_adopt(struct vram_file *ret, int fd);

/** Holds the allocation that is known by GPU and name; -ENOENT if it is gone. */
int vram_find(struct vram_file *ret, int gpu, const char *name);

/** Releases it. The memory is free once it has no other holder. Accepts the empty value. */
void vram_drop(struct vram_file *file);

/** Bytes in use on @gpu, after removing what nobody holds. */
int vram_used(int gpu, uint64_t *ret);

/** Calls @fn for each allocation in use on @gpu. */
int vram_for_each(int gpu, void (*fn)(const struct stat *st, const char *name, void *data),
		  void *data);

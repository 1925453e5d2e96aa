// SPDX-License-Identifier: MIT
/* Where host copies go that do not fit into memory: files without a name in a directory of a disk. */
#pragma once

#include <stdint.h>

#include "base/error.h"

/** @dir (copied) NULL: "spill" in the state directory. 0 or -ENOMEM. */
int spill_init(const char *dir);

/** The directory. */
const char *spill_dir(void);

/** Bytes that are free there, or will be once it is made. -EOPNOTSUPP: it is memory itself. */
int spill_free_bytes(uint64_t *ret, struct brumate_error *err);

/** A file of @bytes, whose blocks are there, open for O_DIRECT where the file system has that. Returns it
 * (owned). -ENOSPC. */
int spill_open(uint64_t bytes, struct brumate_error *err);

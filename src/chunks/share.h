// SPDX-License-Identifier: MIT
/* Taking over packs of earlier checkpoints: which of them, and what that makes of the ledger. */
#pragma once

#include "chunks/chunk-index.h"
#include "chunks/ledger.h"

/**
 * Links packs into @dir_fd that hold chunks known by @l and of which enough is used, a quarter. Chunks of
 * the others become LEDGER_WANTED; @ret_wanted says how many. Nobody else uses @l meanwhile. 0, -ENOMEM or
 * -EFBIG.
 */
int share_packs(struct ledger *l, const struct chunk_index *x, int dir_fd, size_t *ret_wanted);

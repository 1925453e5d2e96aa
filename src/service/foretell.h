// SPDX-License-Identifier: MIT
/* What a restore of a checkpoint would do, told from its manifest and CRIU's images (`inspect --restore`). */
#pragma once

#include <jansson.h>

#include "base/error.h"
#include "store/authentic.h"
#include "store/store.h"

/**
 * foretell_restore() - tell what a restore of @image would open, bind, connect, become, map and run
 * @authority: by what it would be believed; its key opens it
 *
 * Nothing is restored, and nothing that the image names is touched. @ret (owned): Foretold of io.brumate.
 * Errors to act on: -EBADMSG (an image is damaged), -ENOKEY, -EKEYREJECTED, -E2BIG.
 */
int foretell_restore(json_t **ret, struct store_image *image, const struct authority *authority,
		     struct brumate_error *err);

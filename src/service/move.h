// SPDX-License-Identifier: MIT
/* The parameters of every call about a place elsewhere: address and credentials. */
#pragma once

#include "service/service.h"

#include "store/source.h"

/** "url" and "remote" of @parameters, which @ret borrows. -EINVAL. */
int place_get(struct source_place *ret, json_t *parameters, struct brumate_error *err);

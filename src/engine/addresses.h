// SPDX-License-Identifier: MIT
/* Addresses that a restored job listens at. */
#pragma once

#include "engine/op.h"

/**
 * Refuses (-EADDRINUSE) to restore from CRIU's images, which are open, where somebody listens already at an address of
 * the job. CRIU would say it late or, where it is a path, take that away from whoever listens there.
 */
int addresses_check(const struct op *op, struct brumate_error *err);

// SPDX-License-Identifier: MIT
/* Addresses that a restored job is at. */
#pragma once

#include "engine/op.h"

/**
 * Refuses (-EADDRINUSE) to restore from CRIU's images, which are open, where somebody is already at an address of
 * the job; --force does it all the same. CRIU would say it late, and not who; or, where it is a path, take that away from
 * whoever listens there. A port that only connections of before keep is waited for. -ETIMEDOUT, -ECANCELED.
 */
int addresses_check(struct op *op, struct brumate_error *err);

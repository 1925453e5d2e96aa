// SPDX-License-Identifier: MIT
/* What `brumate top` and `metrics` both look at. */
#pragma once

#include "client/broker.h"

/** What the broker that runs for real, or for simulated, GPUs says (owned). NULL: none runs, or it does not answer. */
struct broker_info *broker_seen(bool simulated);

// SPDX-License-Identifier: MIT
/* Which of the driver's entry points have a wrapper. */
#include "interpose/interpose.h"

const struct wrapper wrappers[] = {
	{ NULL, NULL },
};

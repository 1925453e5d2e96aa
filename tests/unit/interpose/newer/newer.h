// SPDX-License-Identifier: MIT
/* What the newer driver has that others have not. */
#pragma once

#include <stdbool.h>

#include "driver-abi.h"

enum { NEWER_WORDS = 16 };

struct newer_sum {
	long whole;
	double real;
};

/* Handed over by value, on the stack. */
struct newer_large {
	long words[NEWER_WORDS];
};

#pragma GCC visibility push(default)

CUresult cuStreamQuery_ptsz(CUstream stream);
CUresult cuTexRefSetMipmapLevelBias(void *texture, float bias);
CUresult cuNewSum(struct newer_sum *ret, long a, long b, long c, long d, long e, long f, long g,
		  double x, double y, struct newer_large large, long last);
CUresult cuNewCall(void (*fn)(void *), void *arg);
CUresult cuNewVersioned(void);
int cudbgNewFunction(void);

#pragma GCC visibility pop

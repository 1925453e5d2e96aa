// SPDX-License-Identifier: MIT
/* What later.c exports. */
#pragma once

enum later_way { LATER_LINKED, LATER_HANDLE, LATER_DEFAULT, LATER_NEXT };

void *later_find(enum later_way way);

// SPDX-License-Identifier: MIT
/*
 * Memory that members of a job share. One of them made it, its owner: that one's agent parks it as all of its
 * pieces. The others have aliases of it, which nobody copies: they are unmapped with all the rest, and mapped
 * again from what the owner exports once it has its memory back.
 */
#pragma once

#include "datapath/datapath.h"

/** Whether the process, as its agent told last, has memory of others mapped. */
bool share_uses_others(const struct datapath_agent *a);
/** Whether any of them has. */
bool share_is_used(const struct datapath *d);

/** Refuses where the owner of what a member has mapped is not among the agents: -EOPNOTSUPP. Their gates are
 * closed. */
int share_check(struct datapath *d, struct brumate_error *err);

/** Refuses where the vault lacks what a member has mapped of another: that one has ended since share_check(), before its
 * memory was parked, and what is unmapped now nobody could map again. -EAGAIN. */
int share_check_parked(struct datapath *d, struct brumate_error *err);

/** Where memory is to be made anew: unmaps the aliases of members whose gates are closed, but not what nobody could
 * export again. d->aliases_hidden says whether none is mapped any more. */
int share_hide(struct datapath *d, struct brumate_error *err);

/** Maps all aliases that are not mapped. Their owners have their memory. */
int share_bring(struct datapath *d, struct brumate_error *err);

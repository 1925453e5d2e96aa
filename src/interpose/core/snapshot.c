// SPDX-License-Identifier: MIT
/* Device memory that is held beside the program for a while. See snapshot.h. */
#include "interpose/core/snapshot.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

/* Who let go of it may have died before it told: then it is tried anyway, and for so long. */
enum { TRY_S = 1, SILENCE_S = 30 };

static atomic_bool is_held;
static atomic_uint changes; /* a futex */
static atomic_ulong noted_ns;

void snapshot_note(bool held)
{
	atomic_store(&noted_ns, clock_now_ns());
	atomic_store(&is_held, held);
	atomic_fetch_add(&changes, 1);
	syscall(SYS_futex, &changes, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT_MAX, NULL, NULL, 0);
}

void snapshot_forget(void)
{
	if (atomic_load(&is_held))
		snapshot_note(false);
}

bool snapshot_is_held(void)
{
	return atomic_load(&is_held);
}

unsigned int snapshot_look(void)
{
	return atomic_load(&changes);
}

bool snapshot_wait(unsigned int *seen)
{
	const struct timespec patience = { .tv_sec = TRY_S };
	unsigned int now = atomic_load(&changes);
	int saved = errno;

	if (now == *seen && !atomic_load(&is_held))
		return false;
	if (now == *seen && clock_now_ns() - atomic_load(&noted_ns) > SILENCE_S * NS_PER_S) {
		snapshot_forget();
		return false;
	}
	if (now == *seen)
		syscall(SYS_futex, &changes, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, now, &patience, NULL,
			0);
	*seen = atomic_load(&changes);
	errno = saved;
	return true;
}

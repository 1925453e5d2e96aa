// SPDX-License-Identifier: MIT
/* Whether the one that is waited for stands still, and its end then. See peer.h. */
#include "client/peer.h"

#include <errno.h>
#include <signal.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/machine.h"

/* They are counted, as time goes on while we stand still ourselves, with it or alone. */
enum { LOOKS = 8, END_TIMEOUT_MS = 1000 };

void peer_set(struct peer *p, pid_t pid)
{
	*p = PEER_NONE;
	p->may_end = pid > 0 && proc_identify(&p->id, pid, NULL) == 0;
}

/* Not one that is held by a debugger, whose user knows. */
static bool was_stopped(struct proc_id id)
{
	struct proc_info info;

	return proc_read(&info, id.pid, NULL) == 0 && proc_is_same(info.id, id) &&
	       info.state == 'T' && !info.tracer_pid;
}

static bool stands_still(struct proc_id id)
{
	return id.pid && (was_stopped(id) || machine_is_frozen(id.pid));
}

bool peer_stands_still(const struct peer *p)
{
	return stands_still(p->id);
}

static int end(struct peer *p)
{
	p->still = 0;
	log_warn("a program that stands still is ended, as it answers nobody: pid=%d", p->id.pid);
	if (proc_signal(p->id, SIGKILL) < 0 ||
	    proc_wait_gone(p->id, deadline_in_ms(END_TIMEOUT_MS)) < 0)
		return -ETIMEDOUT;
	return -EPIPE;
}

int peer_look(struct peer *p)
{
	p->still = stands_still(p->id) ? p->still + 1 : 0;
	return p->may_end && p->still >= LOOKS ? end(p) : 0;
}

int peer_wait(struct peer *p, int fd, short events, uint64_t deadline_ns)
{
	int r;

	p->still = 0;
	for (;;) {
		const uint64_t look_ns = deadline_in_ms(PEER_LOOK_MS);

		r = fd_wait(fd, events, look_ns < deadline_ns ? look_ns : deadline_ns);
		if (r != -ETIMEDOUT || deadline_left_ms(deadline_ns) == 0)
			return r;
		if ((r = peer_look(p)) < 0)
			return r;
	}
}

int peer_fail(const struct peer *p, const char *name, struct brumate_error *err)
{
	if (!stands_still(p->id))
		return brumate_fail(err, ETIMEDOUT, "%s: it did not answer in time", name);
	return brumate_fail(
		err, ETIMEDOUT, "%s, process %d, %s, and so answers nobody", name, p->id.pid,
		was_stopped(p->id) ? "was stopped by a signal" : "is frozen with its cgroup");
}

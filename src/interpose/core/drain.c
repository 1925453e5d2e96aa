// SPDX-License-Identifier: MIT
/*
 * Closing the gate over an idle GPU. A process alone closes it and waits. Members of a job wait for each
 * other: where a kernel of one waits for work of another that the other's gate holds back, closing alone would
 * take for ever. So they drain in lockstep: a member that is idle while others are not lets one call through,
 * becomes idle again, and so on, until all are idle at once. Then no kernel waits for anybody. This needs no
 * knowledge of what the kernels do: collectives of any library, captured into graphs or not.
 *
 * Calls that are let through may be long and have nothing to do with what the others wait for: members that are
 * independent would hardly ever be idle at once. So there are times for it, which each counts from when it is asked, as
 * all are at a time (the clock of a restored process is another than the shim's): first none is let through, then for a
 * while they are, then for half as long they are not, then twice as long, and so on. Members that are independent
 * become idle as soon as such a pause is longer than their work; members in lockstep take about one and a half times
 * what they need. In the first half of a turn the members that are behind catch up, one call after the other. In the
 * second half a member that has become idle stays so for a moment before it lets a call through: that call may be what
 * the kernels of all others wait for, and the first that becomes idle by it would otherwise be busy again before the
 * last is idle, again and again.
 *
 * The same happens within a process that uses several GPUs: work on one waits for work on another that is held back,
 * and so may a thread that waits in the driver. So where some contexts are idle and others do not become so, a few
 * calls are let through, one after the other, and after a pause that is twice as long some more.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "interpose/core/agent.h"
#include "interpose/core/backend.h"
#include "interpose/core/gate.h"
#include "interpose/core/memory.h"
#include "wire/agent.h"

enum {
	STACK_BYTES = 1 << 20,
	/* Until the first call is let through, and then for how long: most queues are empty by then. */
	FIRST_PAUSE_MS = 20,
	FIRST_TURN_MS = 20,
	/* A member that has become idle in the second half of a turn stays so for this part of the turn. */
	STAYS_IDLE = 32,
	/* Between GPUs of one process. Independent ones are soon idle: so few calls each time, and longer pauses. */
	FIRST_PUSH_MS = 200,
	PUSH_CALLS = 32,
	PUSH_CALL_MS = 2, /* from one to the next: then it is either enough or not */
	/* How often to look whether the client is still there, of which no change at the gate tells. */
	CLIENT_MS = 200,
};

/* ---- whether the contexts are idle ---- */

/* The driver's wait has no deadline, so another thread does it, which is left to itself when the time is up:
 * it ends with the work it waits for. */
struct look {
	atomic_uint refs;
	atomic_bool done, given_up;
	atomic_int failed; /* of the first context with a permanent error; 0: none */
	size_t n;
	atomic_size_t n_begun, n_idle; /* contexts: one thread waits for each */
	void *contexts[];
};

static void put_look(struct look *look)
{
	if (look && atomic_fetch_sub(&look->refs, 1) == 1)
		free(look);
}

static void *wait_for_context(void *arg)
{
	struct look *look = arg;
	size_t own = atomic_fetch_add(&look->n_begun, 1);
	int r = 0, none = 0;

	gate_exempt();
	capture_relax();
	/* An error is of work that failed: nothing of that context is running any more. */
	if (own < look->n && !atomic_load(&look->given_up))
		r = backend_wait(look->contexts[own]);
	if (r == -ESHUTDOWN || backend_is_lasting(r))
		atomic_compare_exchange_strong(&look->failed, &none, r);
	if (atomic_fetch_add(&look->n_idle, 1) + 1 >= look->n)
		atomic_store(&look->done, true);
	gate_wake_closer();
	put_look(look);
	return NULL;
}

static size_t count_contexts(void)
{
	size_t n = 0;

	for (struct context *c = memory.contexts; c; c = c->next)
		n++;
	return n;
}

/* At least one thread is started, so that a look with nothing to wait for ends, too. */
static int start_threads(struct look *look)
{
	size_t n_threads = look->n ? look->n : 1;
	int r = 0;

	atomic_store(&look->refs, (unsigned int)n_threads + 1);
	for (size_t i = 0; i < n_threads; i++) {
		if (!r)
			r = thread_start_detached(wait_for_context, look, STACK_BYTES);
		if (r)
			put_look(look);
	}
	return r;
}

static struct look *start_look(int *ret_error)
{
	struct look *look;

	memory_lock();
	look = calloc(1, sizeof(*look) + count_contexts() * sizeof(*look->contexts));
	for (struct context *c = memory.contexts; c && look; c = c->next)
		look->contexts[look->n++] = c->handle;
	memory_unlock();
	*ret_error = look ? start_threads(look) : -ENOMEM;
	if (!look || !*ret_error)
		return look;
	atomic_store(&look->given_up, true);
	put_look(look);
	return NULL;
}

/* ---- the members ---- */

struct members {
	struct agent_drain *shared; /* NULL: there are no others */
	uint64_t own;		    /* our bit in it */
	pthread_t listener;
	atomic_bool leaving;
};

static void futex_shared(uint32_t *word, int op, uint32_t value)
{
	syscall(SYS_futex, word, op, value, NULL, NULL, 0);
}

static void tell_members(struct agent_drain *shared)
{
	__atomic_fetch_add(&shared->changes, 1, __ATOMIC_SEQ_CST);
	futex_shared(&shared->changes, FUTEX_WAKE, INT_MAX);
}

/* Turns what changes among the members into a change at our gate: the closer waits for one thing. */
static void *listen_to_members(void *arg)
{
	struct members *m = arg;

	for (;;) {
		uint32_t seen = __atomic_load_n(&m->shared->changes, __ATOMIC_SEQ_CST);

		gate_wake_closer();
		if (atomic_load(&m->leaving))
			return NULL;
		futex_shared(&m->shared->changes, FUTEX_WAIT, seen);
	}
}

/* What another process might shrink would end this one. */
static bool is_sound(int fd)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;

	return seals >= 0 && seals & F_SEAL_SHRINK && !fstat(fd, &st) &&
	       st.st_size >= (off_t)sizeof(struct agent_drain);
}

static int join_members(struct members *m, unsigned int member, int fd)
{
	void *at;
	int r;

	*m = (struct members){ .own = 1 };
	if (fd < 0)
		return 0;
	if (member >= AGENT_DRAIN_MEMBERS_MAX || !is_sound(fd))
		return -EBADMSG;
	at = mmap(NULL, sizeof(*m->shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		return -errno;
	madvise(at, sizeof(*m->shared), MADV_DONTFORK);
	m->shared = at;
	m->own = 1ull << member;
	r = thread_start(&m->listener, listen_to_members, m);
	if (r < 0)
		munmap(at, sizeof(*m->shared));
	return r;
}

static _Atomic(struct agent_drain *) joined; /* while it may be asked about */

bool drain_waits(void)
{
	struct agent_drain *shared = atomic_load(&joined);

	return shared && __atomic_load_n(&shared->busy, __ATOMIC_SEQ_CST);
}

/* A member may be busy for as long as it waits for memory of this one. */
static void meet_members(struct members *m)
{
	if (!m->shared)
		return;
	atomic_store(&joined, m->shared);
	agent_lend_meanwhile();
}

static void leave_members(struct members *m)
{
	if (!m->shared)
		return;
	agent_lend_no_more();
	atomic_store(&joined, NULL);
	atomic_store(&m->leaving, true);
	tell_members(m->shared);
	pthread_join(m->listener, NULL);
	munmap(m->shared, sizeof(*m->shared));
}

static uint64_t others_busy(const struct members *m)
{
	return m->shared ? __atomic_load_n(&m->shared->busy, __ATOMIC_SEQ_CST) & ~m->own : 0;
}

static void become_idle(struct members *m)
{
	uint64_t left;

	if (!m->shared)
		return;
	left = __atomic_and_fetch(&m->shared->busy, ~m->own, __ATOMIC_SEQ_CST);
	/* Nobody is, or one who may have a ticket to take back; to the others it makes no difference. */
	if (!(left & (left - 1)))
		tell_members(m->shared);
}

enum { NO_PASSES = 1 };

static bool are_held(const struct members *m)
{
	return m->shared && __atomic_load_n(&m->shared->passes, __ATOMIC_SEQ_CST) == NO_PASSES;
}

static bool take_pass(struct members *m)
{
	uint32_t seen = __atomic_load_n(&m->shared->passes, __ATOMIC_SEQ_CST);

	while (seen > NO_PASSES)
		if (__atomic_compare_exchange_n(&m->shared->passes, &seen, seen - 1, false,
						__ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
			tell_members(m->shared);
			return true;
		}
	return seen != NO_PASSES;
}

/* False: all are idle, and stay so; or there are no passes. The shim takes those back before it looks at the bits, so ours is set
 * before we look for one. */
static bool become_busy(struct members *m)
{
	uint64_t seen = others_busy(m);

	while (seen)
		if (__atomic_compare_exchange_n(&m->shared->busy, &seen, seen | m->own, false,
						__ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
			if (take_pass(m))
				return true;
			become_idle(m);
			return false;
		}
	return false;
}

/* ---- the drain ---- */

struct drain {
	struct members members;
	struct look *look; /* under way */
	bool look_is_old; /* a thread was in the driver since it began: it can only show that contexts are busy */
	bool idle;	  /* our bit is not set */
	int failed;	  /* as the last look found it */
	uint64_t idle_ns; /* since when */
	uint64_t start_ns, deadline_ns;
	uint64_t push_ns, push_pause_ns; /* when to push() next; and after so many of them */
	unsigned int n_pushed;
};

static void drop_look(struct drain *d)
{
	if (d->look)
		atomic_store(&d->look->given_up, true);
	put_look(d->look);
	d->look = NULL;
	d->look_is_old = false;
}

static void end_look(struct drain *d)
{
	bool idle = !d->look_is_old;

	d->failed = atomic_load(&d->look->failed);
	drop_look(d);
	if (!idle)
		return;
	d->idle = true;
	d->idle_ns = clock_now_ns();
	become_idle(&d->members);
}

/* When to look for the client again, at the latest. */
static uint64_t next_look(const struct drain *d)
{
	const uint64_t soon_ns = deadline_in_ms(CLIENT_MS);

	return soon_ns < d->deadline_ns ? soon_ns : d->deadline_ns;
}

/* Nothing may wait for work during a capture, nor cut it in two, so the gate is open until the capture ends. */
static int let_capture_end(struct drain *d)
{
	int r;

	d->look_is_old = true;
	gate_open();
	do
		r = capture_wait(next_look(d));
	while (r == -ETIMEDOUT && clock_now_ns() < d->deadline_ns && !agent_client_is_gone());
	return r < 0 ? r : gate_close();
}

/* Busy: takes the next steps towards idle that need no waiting. */
static int step_busy(struct drain *d)
{
	int r = 0;

	/* Nobody came for the ticket, and nobody waits for us, or not any more. */
	if (d->look ? atomic_load(&d->look->done) : !others_busy(&d->members))
		gate_take_back();
	if (!gate_is_empty())
		d->look_is_old = true;
	else if (capture_active())
		r = let_capture_end(d);
	else if (d->look && atomic_load(&d->look->done))
		end_look(d);
	if (!r && !d->look && !d->idle && gate_is_empty()) {
		d->look_is_old = false;
		d->look = start_look(&r);
	}
	return r;
}

/* When the next call may be let through: in a turn, and some time after we became idle; @now, if that has come. */
static uint64_t next_call(const struct drain *d, uint64_t now)
{
	uint64_t len = FIRST_TURN_MS * NS_PER_MS;
	uint64_t at = d->start_ns + FIRST_PAUSE_MS * NS_PER_MS;

	while (at + len <= now) {
		at += len + len / 2;
		len *= 2;
	}
	if (now >= at + len / 2 && at < d->idle_ns + len / STAYS_IDLE)
		at = d->idle_ns + len / STAYS_IDLE;
	return at > now ? at : now;
}

/* Idle: on to a call that is let through. Returns until when there is nothing to do but for changes. */
static uint64_t step_idle(struct drain *d)
{
	uint64_t now = clock_now_ns(), turn = next_call(d, now);

	if (!gate_holds_back() || are_held(&d->members))
		return DEADLINE_NEVER;
	if (turn > now)
		return turn;
	if (become_busy(&d->members)) {
		d->idle = false;
		gate_let_through();
	}
	return DEADLINE_NEVER;
}

/* Busy: lets a call through that may be what work of another context waits for. Returns when to do so again. */
static uint64_t push(struct drain *d)
{
	uint64_t now = clock_now_ns();

	if (!gate_holds_back() || !atomic_load(&memory.several_devices) ||
	    (d->look && !atomic_load(&d->look->n_idle)))
		return DEADLINE_NEVER;
	if (now < d->push_ns)
		return d->push_ns;
	gate_take_back(); /* nobody used it */
	gate_let_through();
	d->look_is_old = true;
	d->push_ns = now + PUSH_CALL_MS * NS_PER_MS;
	if (++d->n_pushed % PUSH_CALLS == 0) {
		d->push_pause_ns *= 2;
		d->push_ns = now + d->push_pause_ns;
	}
	return d->push_ns;
}

static int drain_to_the_end(struct drain *d)
{
	for (;;) {
		unsigned int seen = gate_changes();
		uint64_t until = DEADLINE_NEVER, look = next_look(d);
		bool was_idle = d->idle;
		int r = 0;

		if (d->idle && !others_busy(&d->members))
			return 0;
		if (clock_now_ns() >= d->deadline_ns)
			return -ETIMEDOUT;
		if (agent_client_is_gone())
			return -ECANCELED;
		if (d->idle)
			until = step_idle(d);
		else
			r = step_busy(d);
		if (r < 0)
			return r;
		if (!was_idle && !d->idle)
			until = push(d);
		if (d->idle == was_idle)
			gate_wait(seen, until < look ? until : look);
	}
}

static const char *why_not(const struct drain *d, int r)
{
	if (r != -ETIMEDOUT)
		return "the gate cannot be closed";
	if (d->idle)
		return "this process is idle, but others of the job did not become so in time";
	return d->look && gate_is_empty() ? "work on the GPU did not end in time"
					  : backend_why_busy();
}

int drain(unsigned int member, int fd, uint64_t deadline_ns, int *ret_failed, const char **why)
{
	struct drain d = { .deadline_ns = deadline_ns, .push_pause_ns = FIRST_PUSH_MS * NS_PER_MS };
	int r = join_members(&d.members, member, fd);

	if (r == 0) {
		d.start_ns = clock_now_ns();
		d.push_ns = d.start_ns + d.push_pause_ns;
		meet_members(&d.members);
		r = gate_close();
		if (r == 0)
			r = drain_to_the_end(&d);
		leave_members(&d.members);
	}
	*ret_failed = d.failed;
	if (r < 0)
		*why = why_not(&d, r);
	drop_look(&d);
	if (r < 0 && gate_is_closed())
		gate_open();
	return r;
}

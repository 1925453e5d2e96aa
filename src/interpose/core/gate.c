// SPDX-License-Identifier: MIT
/*
 * The gate: which threads are in the driver, and keeping them out. Each thread has a record with the
 * depth of its calls; entering stores the depth, then looks whether the gate is closed, with no fence
 * between: the closer makes all threads pass one by membarrier(2), after which each either sees the
 * gate closed or is seen inside. Records are never given back to the system, so that the closer may
 * look at one whose thread is just ending. All waiting is on futexes, which survive a dump.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "interpose/core/gate.h"
#include "interpose/core/wake.h"

#define unlikely(x) __builtin_expect(!!(x), 0)
/* Kept out of what every call passes, which then saves no registers for it. */
#define SLOW __attribute__((noinline, cold))

enum { RECORDS_BYTES = 16384 };

/* One cache line each: the owner writes depth at every call. The assembler does, too. */
struct record {
	_Alignas(64) atomic_uint depth; /* written by the owner alone */
	atomic_bool exempt;
	bool used; /* under the lock, as next */
	struct record *next;
};
_Static_assert(!offsetof(struct record, depth), "the assembler of entry points has it so");

enum {
	CLOSED = 1u << 0,
	FENCED = 1u
		 << 1, /* no membarrier here: a thread that enters or leaves makes a fence itself */
	SETTLED =
		1u
		<< 2, /* closed over idle contexts: what only looks is answered, what waits asks for the GPU */
	WATCHED = 1u << 3, /* the next call that uses the GPU says so, and takes this away */
	TICKET = 1u << 4, /* and above: counts the calls that were let through while it is closed */
};

/* What the assembler uses. gate_state is 0 where a call has nothing to do but to count. */
extern atomic_uint gate_state;
extern __thread struct record *gate_self;
void gate_left(struct record *record);

atomic_uint gate_state; /* a futex: who waits for the gate to open */
static atomic_uint
	changes; /* a futex: counts comings and goings while it is closed, for the closer */
static atomic_uint waiting; /* threads that the closed gate holds back */
static atomic_uint tickets; /* how many of them may pass: 0 or 1 */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct record *records;
static bool prepared,
	told; /* under the lock; the second: end_thread() runs at the end of each thread */
static pthread_key_t ending;

__thread struct record *gate_self __attribute__((tls_model("initial-exec")));

static int futex(atomic_uint *word, int op, unsigned int value, const struct timespec *deadline)
{
	return (int)syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, value, deadline, NULL,
			    FUTEX_BITSET_MATCH_ANY);
}

void gate_wake_closer(void)
{
	atomic_fetch_add(&changes, 1);
	futex(&changes, FUTEX_WAKE, INT_MAX, NULL);
}

static int membarrier(int command)
{
	return syscall(SYS_membarrier, command, 0, 0) ? -errno : 0;
}

/* ---- records ---- */

static void end_thread(void *arg)
{
	struct record *record = arg;

	gate_self = NULL; /* a later destructor of this thread may use the driver yet */
	pthread_mutex_lock(&lock);
	atomic_store(&record->depth, 0);
	atomic_store(&record->exempt, false);
	record->used = false;
	pthread_mutex_unlock(&lock);
	gate_wake_closer();
}

static void fork_prepare(void)
{
	pthread_mutex_lock(&lock);
}

static void fork_parent(void)
{
	pthread_mutex_unlock(&lock);
}

/* The child has only the thread that forked. */
static void fork_child(void)
{
	for (struct record *r = records; r; r = r->next) {
		if (r == gate_self)
			continue;
		atomic_store(&r->depth, 0);
		atomic_store(&r->exempt, false);
		r->used = false;
	}
	atomic_store(&waiting, 0);
	atomic_store(&tickets, 0);
	wake_forget();
	atomic_fetch_and(&gate_state, FENCED);
	pthread_mutex_unlock(&lock);
}

/* The first thread that uses the driver calls it, once per process. */
static void prepare(void)
{
	prepared = true;
	told = !pthread_key_create(&ending, end_thread);
	pthread_atfork(fork_prepare, fork_parent, fork_child);
	if (membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED))
		atomic_fetch_or(&gate_state, FENCED);
}

static struct record *add_records(void)
{
	struct record *new = mmap(NULL, RECORDS_BYTES, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (new == MAP_FAILED)
		return NULL;
	for (size_t i = 0; i < RECORDS_BYTES / sizeof(*new); i++) {
		new[i].next = records;
		records = &new[i];
	}
	return records;
}

/* Signals wait: a handler that uses the driver would find the lock taken. */
SLOW static struct record *add_self(void)
{
	int saved = errno;
	struct record *record;
	sigset_t all, old;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_mutex_lock(&lock);
	if (!prepared)
		prepare();
	for (record = records; record && record->used; record = record->next)
		;
	if (!record)
		record = add_records();
	if (record)
		record->used = true;
	gate_self = record;
	pthread_mutex_unlock(&lock);
	if (record && told)
		pthread_setspecific(ending, record);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	errno = saved;
	return record;
}

/* ---- threads that come and go ---- */

static bool take_ticket(void)
{
	unsigned int one = 1;

	return atomic_compare_exchange_strong(&tickets, &one, 0);
}

/* The state is not plainly open: the thread makes a fence, and stays out while the gate is closed, unless it gets a ticket.
 * Returns false if it does not enter at all: @call is answered without the driver. */
SLOW static bool enter_slowly(struct record *record, const struct gate_call *call)
{
	int saved = errno;
	bool waits = false, enters = true;

	for (;;) {
		unsigned int seen;

		atomic_store(&record->depth, 1); /* a full fence */
		seen = atomic_load(&gate_state);
		if (!(seen & CLOSED) || atomic_load(&record->exempt) || take_ticket())
			break;
		atomic_store(&record->depth, 0);
		enters = !(seen & SETTLED && call && call->only_looks);
		if (!enters)
			break;
		if (!waits)
			atomic_fetch_add(&waiting, 1);
		waits = true;
		gate_wake_closer();
		if (seen & SETTLED)
			wake_ask(call ? call->name : NULL);
		futex(&gate_state, FUTEX_WAIT_BITSET, seen, NULL);
	}
	if (waits)
		atomic_fetch_sub(&waiting, 1);
	errno = saved;
	return enters;
}

/* A call that uses the GPU, the first since gate_look_in(). */
SLOW static void note_use(const struct record *record, const struct gate_call *call)
{
	if (atomic_load(&record->exempt) || (call && call->only_looks))
		return;
	if (atomic_fetch_and(&gate_state, ~(unsigned int)WATCHED) & WATCHED)
		wake_note_use();
}

SLOW static void leave_slowly(struct record *record)
{
	int saved = errno;

	atomic_store(&record->depth, 0); /* a full fence */
	if (atomic_load(&gate_state) & CLOSED)
		gate_wake_closer();
	errno = saved;
}

bool gate_enter_call(const struct gate_call *call)
{
	struct record *record = gate_self;
	unsigned int depth;

	if (unlikely(!record)) {
		record = add_self();
		if (!record) /* no memory for it: a thread that the closer does not see */
			return true;
	}
	depth = atomic_load_explicit(&record->depth, memory_order_relaxed);
	atomic_store_explicit(&record->depth, depth + 1, memory_order_relaxed);
	atomic_signal_fence(memory_order_seq_cst);
	unsigned int state = atomic_load_explicit(&gate_state, memory_order_acquire);
	if (unlikely(state & ~(unsigned int)WATCHED) && !depth && !enter_slowly(record, call))
		return false;
	/* Read again: it may have waited. */
	if (unlikely(state) && atomic_load(&gate_state) & WATCHED)
		note_use(record, call);
	return true;
}

void gate_enter(void)
{
	gate_enter_call(NULL);
}

void gate_leave(void)
{
	struct record *record = gate_self;
	unsigned int depth;

	if (unlikely(!record))
		return;
	depth = atomic_load_explicit(&record->depth, memory_order_relaxed);
	if (unlikely(!depth)) /* entered when there was no record */
		return;
	atomic_store_explicit(&record->depth, depth - 1, memory_order_release);
	atomic_signal_fence(memory_order_seq_cst);
	if (unlikely(atomic_load_explicit(&gate_state, memory_order_acquire)) && depth == 1)
		leave_slowly(record);
}

void gate_pass(void)
{
	struct record *record = gate_self;

	if (!record || atomic_load_explicit(&record->depth, memory_order_relaxed) != 1)
		return;
	gate_leave();
	gate_enter();
}

void gate_left(struct record *record)
{
	if (!atomic_load_explicit(&record->depth, memory_order_relaxed))
		leave_slowly(record);
}

void gate_exempt(void)
{
	struct record *record = gate_self ? gate_self : add_self();

	if (record)
		atomic_store(&record->exempt, true);
}

/* ---- the closer ---- */

static bool somebody_inside(void)
{
	bool inside = false;

	pthread_mutex_lock(&lock);
	for (struct record *r = records; r && !inside; r = r->next)
		inside = r != gate_self && !atomic_load(&r->exempt) && atomic_load(&r->depth);
	pthread_mutex_unlock(&lock);
	return inside;
}

/* Makes all threads pass a fence. It registers each time, as a restored process may have lost the registration. */
static int fence_all(void)
{
	int r;

	if (atomic_load(&gate_state) & FENCED)
		return 0;
	r = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
	if (!r)
		r = membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
	if (r) /* it went away; threads make fences from here on, but some may just be entering */
		atomic_fetch_or(&gate_state, FENCED);
	return r;
}

int gate_close(void)
{
	int r;

	if (atomic_fetch_or(&gate_state, CLOSED) & CLOSED)
		return -EBUSY;
	r = fence_all();
	if (r)
		gate_open();
	return r;
}

unsigned int gate_changes(void)
{
	return atomic_load(&changes);
}

void gate_wait(unsigned int seen, uint64_t deadline_ns)
{
	struct timespec deadline = deadline_timespec(deadline_ns);

	futex(&changes, FUTEX_WAIT_BITSET, seen, deadline_ns == DEADLINE_NEVER ? NULL : &deadline);
}

bool gate_is_empty(void)
{
	return !atomic_load(&tickets) && !somebody_inside();
}

bool gate_holds_back(void)
{
	return atomic_load(&waiting);
}

void gate_let_through(void)
{
	atomic_store(&tickets, 1);
	atomic_fetch_add(&gate_state,
			 TICKET); /* a thread that is about to wait sees the change and does not */
	futex(&gate_state, FUTEX_WAKE, 1, NULL);
}

bool gate_take_back(void)
{
	return take_ticket();
}

void gate_hold(void)
{
	atomic_fetch_or(&gate_state, CLOSED);
}

void gate_settle(void)
{
	atomic_fetch_or(&gate_state, SETTLED);
	futex(&gate_state, FUTEX_WAKE, INT_MAX,
	      NULL); /* those who wait look whether they have to */
}

void gate_look_in(void)
{
	if (gate_holds_back() && atomic_load(&gate_state) & SETTLED)
		wake_ask_again();
	else if (somebody_inside())
		wake_note_use();
	atomic_fetch_or(&gate_state, WATCHED);
}

void gate_open(void)
{
	int saved = errno;

	atomic_store(&tickets, 0);
	wake_forget();
	atomic_fetch_or(&gate_state, WATCHED);
	atomic_fetch_and(&gate_state, FENCED | WATCHED);
	futex(&gate_state, FUTEX_WAKE, INT_MAX, NULL);
	errno = saved;
}

bool gate_is_closed(void)
{
	return atomic_load(&gate_state) & CLOSED;
}

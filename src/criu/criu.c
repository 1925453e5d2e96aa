// SPDX-License-Identifier: MIT
/*
 * Dumps and restores by CRIU. Each is a session, a conversation with CRIU by its RPC: a request, CRIU's
 * notifications, each acknowledged after the caller was asked, and a response; then CRIU's process is waited for.
 *
 * How a dump is cancelled. SIGTERM or SIGKILL end CRIU wherever it is; the tree survives that (see heal.c) except
 * in the short while in which CRIU has overwritten code of a task to run its first system calls there. So CRIU is
 * made to fail by itself instead, and takes everything back: the next notification is refused, and its file size
 * limit becomes 0, so that the next page it writes fails as on a full disk. A restore is cancelled by killing the
 * root that it is building, which CRIU sees at once.
 */
#include "criu/criu.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "criu/images.h"
#include "criu/mend.h"
#include "criu/criu-private.h"
#include "process/connections.h"
#include "process/credentials.h"
#include "process/eventfd.h"
#include "process/pidns.h"
#include "process/reap.h"
#include "rpc.pb-c.h"

enum {
	TICK_MS = 200,
	CANCEL_TIMEOUT_MS = 15000, /* for CRIU to take everything back before it is killed */
	STUCK_AFTER_MS = 10000,	   /* when it was killed */
	STILL_TIMEOUT_MS = 120000, /* without any work of CRIU's, while it is its turn */
	STOPPED_TIMEOUT_MS = 5000, /* until a CRIU that was stopped by a signal is given up */
	PACKET_BYTES = 64 * 1024,
	TICKS_WITHOUT_ROOT = 10, /* two seconds: a job may end while CRIU still has to answer */
	TICKS_WITHOUT_ONE =
		75, /* a member may end by itself, and to release many others takes time */
	KILL_TIMEOUT_MS = 10000, /* for the end of a half built tree */
	LOG_LEVEL = 4,
};

enum outcome { UNDECIDED, SUCCEEDED, FAILED, DIED };

/* What a dump does about the packets of the tree's TCP connections while it is frozen. */
enum packet_lock {
	LOCK_NEEDED, /* CRIU holds them back, where it can */
	LOCK_SPARED, /* there are no connections */
	LOCK_MISSED, /* there were some after all: the dump is to be done again */
};

struct session {
	const struct criu_options *options;
	Criu__ReqType type;
	bool unprivileged; /* CRIU's user is not root */
	struct criu_child child;
	int hold_fd;		     /* keeps the namespace it runs in; -1: none */
	struct criu_image_tree tree; /* restore: what is being built */
	struct heal_state heal;	     /* dump: what to put right if CRIU dies */
	enum outcome outcome;
	enum packet_lock lock; /* dump */
	bool past_return;      /* the last question was answered with yes */
	bool is_cancelled;     /* by the tick or an event; @why says so */
	uint64_t kill_at_ns, stuck_at_ns;
	uint64_t work, worked_at_ns; /* how much CRIU had done when it was last seen at work */
	uint64_t beside;	     /* restore: and what it builds, at the first look since then */
	bool has_looked_beside;
	uint64_t stopped_at_ns; /* since when CRIU stands stopped; 0: it does not */
	struct brumate_error why;
	int cr_errno;
	enum criu_event awaited;     /* what CRIU is to tell next; each once, in their order */
	struct proc_id root;	     /* restore: the root, once it is complete */
	struct proc_tree restored;   /* the root and all below it, as they were then */
	unsigned ticks_without_root; /* since its end */
	unsigned ticks_without_one;  /* since the end of any of them */
	char errmsg[512];
};
#define SESSION_EMPTY                                     \
	((struct session){ .hold_fd = -1,                 \
			   .stuck_at_ns = DEADLINE_NEVER, \
			   .heal = HEAL_STATE_EMPTY,      \
			   .child = CRIU_CHILD_NONE,      \
			   .restored = PROC_TREE_EMPTY })

/* ---- the conversation ---- */

/* Does not wait: the socket has room for what a CRIU that listens was sent, and one that does not may be a user's doing. */
static int send_request(int fd, const Criu__Req *req)
{
	size_t len = criu__req__get_packed_size(req);
	auto_free uint8_t *buf = malloc(len);

	if (!buf)
		return -ENOMEM;
	criu__req__pack(req, buf);
	ssize_t n = send(fd, buf, len, MSG_NOSIGNAL | MSG_DONTWAIT);
	return n < 0 ? -errno : 0;
}

static int acknowledge(struct session *s, bool success)
{
	Criu__Req req = CRIU__REQ__INIT;

	req.type = CRIU__REQ_TYPE__NOTIFY;
	req.has_notify_success = true;
	req.notify_success = success;
	return send_request(s->child.socket_fd, &req);
}

static pid_t our_pid_of(const struct session *s, pid_t pid)
{
	return s->options->enter_ns_of ? pidns_translate(s->options->enter_ns_of, pid) : pid;
}

/* Whose child is made by a CRIU of this session: ours, or in another namespace CRIU's, and once that has ended, the init's. */
static bool is_made_for(const struct session *s, pid_t ppid)
{
	if (!s->options->enter_ns_of)
		return ppid == getpid();
	return ppid == s->child.id.pid || ppid == s->options->enter_ns_of;
}

/* What a restore builds as process @i of the images: what has its number there, is younger than CRIU, and was made where
 * CRIU makes processes. Returns 0; -ESRCH: no process has the number; -EPERM: another process has it. */
static int find_half_built(const struct session *s, size_t i, struct proc_id *ret)
{
	pid_t pid = i < s->tree.n ? our_pid_of(s, s->tree.items[i].pid) : 0;
	struct proc_info info;
	int r = pid > 0 ? proc_read(&info, pid, NULL) : -ESRCH;

	if (r < 0)
		return r == -EINVAL ? -EPERM : r; /* a thread has it */
	if (info.id.start_ticks < s->child.id.start_ticks || !is_made_for(s, info.ppid))
		return -EPERM;
	*ret = info.id;
	return 0;
}

static struct proc_id half_built(const struct session *s, size_t i)
{
	struct proc_id id = PROC_ID_NONE;

	find_half_built(s, i, &id);
	return id;
}

/* The user whose job it is, where that is not ours: with those rights its processes are signalled. */
static uid_t uid_of(const struct session *s)
{
	return s->options->user ? s->options->user->uid : 0;
}

/* How long CRIU has for something: a test has all of it shorter, by "criu.patience error:MS". */
static uint64_t patience_ms(uint64_t usual_ms)
{
	int r = fault_point("criu.patience");

	return r < 0 ? (uint64_t)-r : usual_ms;
}

static void cancel_session(struct session *s)
{
	struct rlimit none = { 0, 0 };

	if (s->is_cancelled)
		return;
	s->is_cancelled = true;
	s->kill_at_ns = deadline_in_ms(patience_ms(CANCEL_TIMEOUT_MS));
	if (s->type == CRIU__REQ_TYPE__RESTORE)
		proc_signal_as(half_built(s, 0), SIGKILL, uid_of(s));
	else /* it is not reaped yet: the number is its own */
		prlimit(s->child.id.pid, RLIMIT_FSIZE, &none, NULL);
}

static bool event_of(const char *script, enum criu_event *ret)
{
	static const struct {
		const char *script;
		enum criu_event event;
	} events[] = {
		{ "query-ext-files", CRIU_EVENT_FROZEN },
		{ "post-dump", CRIU_EVENT_DUMPED },
		{ "post-restore", CRIU_EVENT_RESTORED },
		{ "pre-resume", CRIU_EVENT_RESUMING },
	};

	for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++)
		if (!strcmp(events[i].script, script)) {
			*ret = events[i].event;
			return true;
		}
	return false;
}

/* Looks at the tree again now that it is frozen: it may have changed since the first look. */
static int look_again(struct session *s, struct brumate_error *err)
{
	int r = heal_renew(&s->heal, s->options->root, err);

	if (r < 0)
		return r;
	if (s->lock == LOCK_SPARED && heal_has_tcp(&s->heal)) {
		s->lock = LOCK_MISSED;
		return brumate_fail(err, EAGAIN,
				    "the job has opened a TCP connection in the meantime");
	}
	if ((r = heal_guard(&s->heal)) < 0)
		brumate_fail(err, -r, "CRIU: cannot guard the job against its death: %m");
	return r;
}

/* As a plugin that is not there could not restore one. */
static int is_semaphore(void *arg, pid_t pid, int fd)
{
	const struct session *s = arg;
	int r = eventfd_of_process_is_semaphore(our_pid_of(s, pid), fd);

	return r > 0 && !s->options->plugin ? -EOPNOTSUPP : r;
}

static int on_timer(void *arg, const struct criu_timer *timer)
{
	const struct session *s = arg;

	return s->options->on_timer ? s->options->on_timer(s->options->arg, timer) : 0;
}

/* What is in the images from here on is ours, and its user cannot change it any more. */
static int complete_images(struct session *s, struct brumate_error *err)
{
	const struct criu_user *user = s->options->user;
	const int dir_fd = s->options->images_dir_fd;
	int r = user ? criu_take_back_dir(dir_fd, user) : 0;

	if (r == -EBADMSG)
		return brumate_fail(
			err, EBADMSG,
			"CRIU's images: there is something in them that is not a file of CRIU's");

	if (r == 0)
		r = fault_point("criu.images");
	if (r == 0 && s->unprivileged)
		r = criu_ask_no_capability(dir_fd);
	return r < 0 ? brumate_fail(err, -r, "CRIU's images: %m")
		     : criu_mend_images(dir_fd, is_semaphore, on_timer, s, err);
}

/* CRIU goes on, no matter what we answer here: it releases a tree that has ended. All of the tree still stands
 * still. */
static void kill_before_it_runs(const struct session *s)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;

	proc_tree_read(&tree, s->root, NULL);
	for (size_t i = 0; i < tree.n; i++)
		proc_signal_as(tree.items[i].id, SIGKILL, uid_of(s));
}

/* ---- what CRIU says ---- */

static void kill_criu(struct session *s)
{
	s->kill_at_ns = DEADLINE_NEVER;
	s->stuck_at_ns = deadline_in_ms(patience_ms(STUCK_AFTER_MS));
	proc_signal(s->child.id, SIGKILL);
}

/*
 * CRIU's word is input: it parses what a user wrote, and where it has a user's rights, that user can send it signals, and
 * anybody who finds a fault in it speaks for it. One that says what cannot be is killed, and nothing that it named is touched.
 */
static int distrust(struct session *s, const char *what)
{
	s->is_cancelled = true;
	brumate_fail(&s->why, EBADMSG, "CRIU, process %d, %s: it was ended", s->child.id.pid, what);
	brumate_hint(&s->why, "a program of the job's user may have taken it over; `criu` itself "
			      "never says that");
	kill_criu(s);
	return -EBADMSG;
}

/* Whether all ids of process @pid are those of the job's user: 1, 0, -errno. Its capabilities are CRIU's own until it is
 * about to run. */
static int has_ids_of(pid_t pid, const struct criu_user *user)
{
	auto_(credentials_fini) struct credentials c = CREDENTIALS_EMPTY;
	int r = credentials_read(&c, pid);
	bool same = true;

	if (r < 0)
		return r;
	for (int i = 0; i < CREDENTIALS_ID__MAX; i++)
		same = same && c.uids[i] == user->uid && c.gids[i] == user->gid;
	return same;
}

/* That the process cannot be looked at is nobody's lie. */
static int fail_look(struct session *s, int r)
{
	pid_t pid = s->tree.items[0].pid;

	if (r == -ESRCH)
		brumate_fail(&s->why, ESRCH, "process %d ended while it was restored", pid);
	else
		brumate_fail(&s->why, -r, "restored process %d cannot be looked at: %m", pid);
	cancel_session(s);
	return 0;
}

/* Takes the process that CRIU names for the restored root, if it is the one that CRIU was to make. The pidfd tells at the end
 * that it was looked at, and no other by its number. */
static int accept_root(struct session *s, pid_t named)
{
	struct proc_id id = PROC_ID_NONE;
	int r = !s->tree.n || named != s->tree.items[0].pid ? -EPERM : find_half_built(s, 0, &id);

	if (r == -EPERM)
		return distrust(s, "names a process as restored that it was not to make");
	auto_close int fd = r < 0 ? r : proc_open(id);
	if (fd < 0)
		return fail_look(s, fd);
	r = s->options->user ? has_ids_of(id.pid, s->options->user) : 1;
	if (r < 0 || !proc_has_number(fd))
		return fail_look(s, r < 0 ? r : -ESRCH);
	if (r == 0)
		return distrust(s, "names a process as restored that is not of the job's user");
	s->root = id;
	return 0;
}

/* After the answer to this event the tree runs. */
static enum criu_event last_event(Criu__ReqType type)
{
	return type == CRIU__REQ_TYPE__DUMP ? CRIU_EVENT_DUMPED : CRIU_EVENT_RESUMING;
}

static int on_notify(struct session *s, const Criu__Notify *notify)
{
	const struct criu_options *o = s->options;
	enum criu_event event;

	if (!event_of(notify->script ? notify->script : "", &event))
		return acknowledge(s, !s->is_cancelled || s->past_return);
	if (event != s->awaited)
		return distrust(s, "says something out of turn");
	s->awaited++;
	if (event == CRIU_EVENT_RESTORED) {
		int r = accept_root(s, notify->has_pid ? notify->pid : 0);
		if (r < 0)
			return r;
		if (s->root.pid)
			proc_tree_read(&s->restored, s->root, NULL);
	}

	const struct proc_id root = s->type == CRIU__REQ_TYPE__RESTORE ? s->root : o->root;
	if (event == CRIU_EVENT_FROZEN && look_again(s, &s->why) < 0)
		cancel_session(s);
	if (event == CRIU_EVENT_DUMPED && complete_images(s, &s->why) < 0)
		cancel_session(s);
	if (!s->is_cancelled && o->on_event && o->on_event(o->arg, event, root, &s->why) < 0)
		cancel_session(s);
	if (event == CRIU_EVENT_RESUMING && s->is_cancelled)
		kill_before_it_runs(s);
	s->past_return = event == last_event(s->type) && !s->is_cancelled;
	/* It lets the tree run and ends next, and that end is not to be taken for a death. If it is a death after all,
	 * nothing stops the tree, and its connections must be usable. */
	if (s->past_return && o->leave_running) {
		if (s->lock == LOCK_NEEDED)
			heal_sockets(&s->heal);
		heal_disarm(&s->heal);
	}
	return acknowledge(s, !s->is_cancelled);
}

static int on_response(struct session *s, const Criu__Resp *resp)
{
	const bool has_events = s->type != CRIU__REQ_TYPE__CHECK;

	if (resp->success && has_events && s->awaited != last_event(s->type) + 1)
		return distrust(s, "says that it is done, and has not asked what it has to");
	if (resp->success && resp->restore &&
	    (!s->tree.n || resp->restore->pid != s->tree.items[0].pid))
		return distrust(s, "names another process at the end than before");
	s->outcome = resp->success ? SUCCEEDED : FAILED;
	s->cr_errno = resp->has_cr_errno ? resp->cr_errno : 0;
	snprintf(s->errmsg, sizeof(s->errmsg), "%s", resp->cr_errmsg ? resp->cr_errmsg : "");
	return 0;
}

static void on_packet(struct session *s)
{
	uint8_t buf[PACKET_BYTES];
	ssize_t n = recv(s->child.socket_fd, buf, sizeof(buf), 0);

	if (n < 0 && errno == EINTR)
		return;
	Criu__Resp *resp = n > 0 ? criu__resp__unpack(NULL, (size_t)n, buf) : NULL;
	int r = -EPIPE;
	if (resp && resp->type != CRIU__REQ_TYPE__NOTIFY)
		r = on_response(s, resp);
	else if (resp && resp->notify)
		r = on_notify(s, resp->notify);
	if (r < 0)
		s->outcome = DIED;
	if (resp)
		criu__resp__free_unpacked(resp, NULL);
}

static bool one_has_ended(const struct session *s)
{
	for (size_t i = 0; i < s->restored.n; i++)
		if (proc_has_ended(s->restored.items[i].id))
			return true;
	return false;
}

/* A killed process does not end while it waits for a file system in user space (FUSE) that has its question and does not
 * answer, and it holds those it traces until it ends. */
static void tell_if_stuck(struct session *s)
{
	const struct criu_options *o = s->options;
	struct brumate_error why = s->why;

	if (clock_now_ns() <= s->stuck_at_ns)
		return;
	s->stuck_at_ns = DEADLINE_NEVER;
	if (!why.code)
		brumate_fail(&why, EPIPE, "CRIU has failed");
	if (o->on_stuck)
		o->on_stuck(o->arg, s->child.id.pid, &why);
}

/* Cancels while CRIU works. Once it has built all of a tree, it waits for each task to reach its end and sees none die; as it
 * traces some of them by then, which would run if it alone ended, they end first. */
static void break_off(struct session *s)
{
	cancel_session(s);
	if (!s->root.pid)
		return;
	kill_before_it_runs(s);
	kill_criu(s);
}

/* How much was done by what a restore builds, which works by itself while CRIU waits. */
static uint64_t work_beside(const struct session *s)
{
	auto_(proc_tree_fini) struct proc_tree below = PROC_TREE_EMPTY;
	uint64_t work, sum = 0;

	/* In another namespace they are CRIU's children, and to look for each by its number there takes long. */
	if (s->options->enter_ns_of)
		proc_tree_read(&below, s->child.id, NULL);
	for (size_t i = 1; i < below.n; i++)
		sum += proc_work(below.items[i].id.pid, &work) == 0 ? work : 0;
	for (size_t i = 0; !s->options->enter_ns_of && i < s->tree.n; i++)
		sum += proc_work(half_built(s, i).pid, &work) == 0 ? work : 0;
	return sum;
}

static void note_work(struct session *s, uint64_t work)
{
	s->work = work;
	s->has_looked_beside = false;
	s->worked_at_ns = clock_now_ns();
}

/* The tree of a dump stands still meanwhile, and neither it nor a restore has another end by itself: CRIU waits without end for what it
 * restores, where a signal stops that while CRIU traces it, even if another one continues it. */
static void cancel_if_still(struct session *s)
{
	const uint64_t patience_ns = patience_ms(STILL_TIMEOUT_MS) * NS_PER_MS;
	uint64_t work = 0, beside, still_ns;

	if (s->is_cancelled || s->type == CRIU__REQ_TYPE__CHECK ||
	    proc_work(s->child.id.pid, &work) < 0)
		return;
	if (work != s->work || !s->worked_at_ns)
		note_work(s, work);
	still_ns = clock_now_ns() - s->worked_at_ns;
	if (still_ns <= (s->has_looked_beside ? patience_ns : patience_ns / 2))
		return;
	/* The first look, after half of the time, says nothing yet. */
	beside = s->type == CRIU__REQ_TYPE__RESTORE ? work_beside(s) : 0;
	if (!s->has_looked_beside) {
		s->beside = beside;
		s->has_looked_beside = true;
		return;
	}
	if (beside != s->beside) {
		note_work(s, work);
		return;
	}
	brumate_fail(&s->why, ETIMEDOUT, "CRIU has waited for %.0f s, and done nothing",
		     clock_since_s(s->worked_at_ns));
	break_off(s);
}

/* A dump that is complete and ends its processes: nothing of it can be lost any more, and others can end them. */
static bool is_needed(const struct session *s)
{
	return !s->past_return || s->type != CRIU__REQ_TYPE__DUMP || s->options->leave_running;
}

/* Its user may stop a CRIU that works with the user's rights. It can take nothing back then, and is killed. */
static void kill_if_stopped(struct session *s)
{
	uint64_t patience;

	if (proc_has_stopped(s->child.id) != 1 || proc_has_ended(s->child.id)) {
		s->stopped_at_ns = 0;
		return;
	}
	if (!s->stopped_at_ns)
		s->stopped_at_ns = clock_now_ns();
	patience = is_needed(s) ? patience_ms(STOPPED_TIMEOUT_MS) : 0;
	if (!s->is_cancelled && clock_now_ns() - s->stopped_at_ns > patience * NS_PER_MS) {
		brumate_fail(&s->why, EIO, "CRIU, process %d, was stopped by a signal",
			     s->child.id.pid);
		break_off(s);
	}
	if (s->is_cancelled && s->kill_at_ns != DEADLINE_NEVER)
		kill_criu(s);
}

/* The restored process that a signal has stopped, for which CRIU waits; NULL: none. Those of its threads that wait for the others are not
 * stopped. */
static const struct proc_info *find_stopped(const struct session *s)
{
	for (size_t i = 0; i < s->restored.n; i++)
		if (proc_has_stopped(s->restored.items[i].id) == 1)
			return &s->restored.items[i];
	for (size_t i = 0; i < s->restored.n; i++)
		if (proc_has_stopped_thread(s->restored.items[i].id) == 1)
			return &s->restored.items[i];
	return NULL;
}

/* The time is over: adds to the reason which process CRIU waited for. */
static void tell_of_stop(struct session *s)
{
	const struct proc_info *p = find_stopped(s);
	char text[sizeof(s->why.text)];

	if (s->why.code != ETIMEDOUT || (!s->stopped_at_ns && !p))
		return;
	if (s->stopped_at_ns)
		snprintf(text, sizeof(text), "%s; CRIU, process %d, was stopped by a signal",
			 s->why.text, s->child.id.pid);
	else
		snprintf(text, sizeof(text),
			 "%s; process %d (%s), which is being restored, was stopped by a signal",
			 s->why.text, p->id.pid, p->comm);
	strcpy(s->why.text, text);
}

static void tick_session(struct session *s)
{
	const struct criu_options *o = s->options;

	if (s->is_cancelled && clock_now_ns() > s->kill_at_ns)
		kill_criu(s);
	kill_if_stopped(s);
	tell_if_stuck(s);
	cancel_if_still(s);
	/* A task that dies from here on CRIU does not see: it waits for it for ever. */
	if (s->root.pid && proc_has_ended(s->root) && ++s->ticks_without_root == TICKS_WITHOUT_ROOT)
		proc_signal(s->child.id, SIGKILL);
	if (one_has_ended(s) && ++s->ticks_without_one == TICKS_WITHOUT_ONE)
		proc_signal(s->child.id, SIGKILL);
	if (!s->is_cancelled && !s->past_return && o->on_tick && o->on_tick(o->arg, &s->why) < 0) {
		tell_of_stop(s);
		break_off(s);
	}
}

/* The end of its socket tells first of the end of CRIU; but a process that it forked on the way may hold
 * that open, so its own end counts as well. */
static void converse(struct session *s)
{
	auto_close int life_fd = proc_open(s->child.id);

	while (s->outcome == UNDECIDED) {
		struct pollfd p[] = {
			{ .fd = s->child.socket_fd, .events = POLLIN },
			{ .fd = life_fd, .events = POLLIN },
		};

		tick_session(s);
		int n = poll(p, 2, TICK_MS);
		if (n > 0 && p[0].revents) {
			on_packet(s);
			s->worked_at_ns = 0; /* it was our turn */
		} else if (n > 0 || (n == 0 && life_fd < 0))
			s->outcome = DIED;
	}
	/* A process that CRIU forked may be holding the guard. */
	if (s->outcome == DIED)
		heal_signal(&s->heal, SIGSTOP);
}

static void hint_at_log(struct brumate_error *err, const struct criu_options *o, const char *reason)
{
	const char *known = criu_hint_for(reason);
	char link[64], dir[PATH_MAX];

	snprintf(link, sizeof(link), "/proc/self/fd/%d", o->work_dir_fd);
	ssize_t n = readlink(link, dir, sizeof(dir) - 1);
	dir[n > 0 ? n : 0] = '\0';
	brumate_hint(err, "%s%sfull log: %s/%s", known ? known : "", known ? "; " : "", dir,
		     o->log_name);
}

/* The code to forward: the errno that CRIU names, where that has a meaning to callers. That an id was taken since
 * check_pids() only its log tells. */
static int code_of(const struct session *s, const char *reason)
{
	if (s->outcome == DIED)
		return EPIPE;
	if ((strstr(reason, "Can't fork for") && strstr(reason, "File exists")) ||
	    strstr(reason, "Unable to create a thread: -17"))
		return EEXIST;
	return s->cr_errno == EEXIST || s->cr_errno == ESRCH ? s->cr_errno : EIO;
}

/* Why the session did not succeed. @status: of run_session(). Returns -errno. */
static int explain_session(const struct session *s, int status, struct brumate_error *err)
{
	const struct criu_options *o = s->options;
	char reason[512] = "";
	size_t len = 0;

	if (s->is_cancelled) {
		if (err)
			*err = s->why;
		int r = s->why.code ? -s->why.code : -ECANCELED;
		return s->why.code ? r : brumate_fail(err, ECANCELED, "CRIU was cancelled");
	}
	auto_free char *log = criu_log_tail(o, &len);
	if (!log || criu_log_reason(log, len, reason, sizeof(reason)) < 0)
		snprintf(reason, sizeof(reason), "%s",
			 s->errmsg[0] ? s->errmsg : "no reason in its log");
	if (s->outcome == DIED && status >= 0 && WIFSIGNALED(status))
		brumate_fail(err, EPIPE, "CRIU was killed by signal %d", WTERMSIG(status));
	else if (s->outcome == DIED)
		brumate_fail(err, EPIPE, "CRIU ended without an answer: %s", reason);
	else
		brumate_fail(err, code_of(s, reason), "CRIU: %s", reason);
	hint_at_log(err, o, reason);
	return -code_of(s, reason);
}

static int set_directories(Criu__Opts *opts, const struct criu_options *o, struct criu_fds *fds,
			   struct brumate_error *err)
{
	int images_fd = criu_fds_add(fds, o->images_dir_fd, "the images", err);
	int work_fd = images_fd < 0 ? images_fd : criu_fds_add(fds, o->work_dir_fd, "the log", err);

	if (work_fd < 0)
		return work_fd;
	opts->images_dir_fd = images_fd;
	opts->has_work_dir_fd = true;
	opts->work_dir_fd = work_fd;
	opts->has_log_level = true;
	opts->log_level = LOG_LEVEL;
	opts->log_file = (char *)o->log_name;
	return 0;
}

/* What dumps and restores both ask for; the directories are added to @fds. Returns 0 or -errno. */
static int set_common(Criu__Opts *opts, const struct criu_options *o, bool locks_network,
		      struct criu_fds *fds, struct brumate_error *err)
{
	opts->has_notify_scripts = opts->notify_scripts = true;
	opts->has_ext_unix_sk = opts->ext_unix_sk = true;
	opts->has_file_locks = opts->file_locks = true;
	opts->has_link_remap = opts->link_remap = true;
	opts->has_shell_job = true;
	opts->shell_job = o->shell_job;
	opts->has_manage_cgroups_mode = true;
	opts->manage_cgroups_mode = CRIU__CGROUP_MODE__CGROUP_IGNORE;
	opts->has_network_lock = true;
	opts->network_lock =
		locks_network ? CRIU__NETWORK_LOCK__LOCK_NFTABLES : CRIU__NETWORK_LOCK__LOCK_SKIP;
	/* Deleted files of any size are saved: if there is no room for one, writing it fails. */
	opts->has_ghost_limit = true;
	opts->ghost_limit = UINT32_MAX;
	if (o->timeout_s) {
		opts->has_timeout = true;
		opts->timeout = o->timeout_s;
	}
	return set_directories(opts, o, fds, err);
}

static int add_plugin(struct criu_plugin_env *env, const struct criu_plugin *plugin,
		      struct criu_fds *fds, struct brumate_error *err)
{
	env->devices = plugin->devices;
	env->vendor = plugin->vendor;
	env->gpu_map = plugin->gpu_map;
	env->table_fd = criu_fds_add(fds, plugin->table_fd, "the table", err);
	return env->table_fd;
}

/* Documentation/admin-guide/LSM/Yama.rst: 1: descendants alone may be traced, and neither the job nor what CRIU makes of it
 * is one of CRIU's; 2: by the capability to trace; 3: nobody may. CRIU says no more than that a call failed. */
static int check_may_trace(bool unprivileged, struct brumate_error *err)
{
	static const char path[] = "/proc/sys/kernel/yama/ptrace_scope";
	auto_free char *text = NULL;
	long scope = file_read(AT_FDCWD, path, 64, &text, NULL) == 0 ? strtol(text, NULL, 10) : 0;

	if (scope < 3 && (scope <= 0 || !unprivileged))
		return 0;
	brumate_fail(err, EPERM, "kernel.yama.ptrace_scope is %ld: %s", scope,
		     scope < 3 ? "CRIU of a user who is not root may not trace the user's jobs"
			       : "nobody may trace, so CRIU cannot work");
	brumate_error_exit(err, EXIT_UNSUPPORTED);
	brumate_hint(err, "%s",
		     scope < 3 ? "as root: sysctl kernel.yama.ptrace_scope=0"
			       : "3 cannot be undone: set it to 2 or less, and reboot");
	return -EPERM;
}

/* Starts CRIU with @s's options and sends the request; @fds are CRIU's alone from then on. A dump gets to its
 * first notification by itself, before it looks at the tree, and waits there. */
static int start_session(struct session *s, const struct criu_program *program, Criu__Opts *opts,
			 struct criu_fds *fds, struct brumate_error *err)
{
	const struct criu_options *o = s->options;
	Criu__Req req = CRIU__REQ__INIT;

	int r = check_may_trace(s->unprivileged, err);
	if (r < 0)
		return r;
	/* The init of a place apart ends with us alone. */
	bool is_held = o->enter_ns_of && !o->is_apart;
	s->hold_fd = is_held ? pidns_hold(o->enter_ns_of) : -1;
	if (is_held && s->hold_fd < 0)
		return brumate_fail(err, -s->hold_fd,
				    "cannot hold the pid namespace of init %d: %m", o->enter_ns_of);
	struct criu_plugin_env env = { .libdir = o->libdir, .table_fd = -1 };
	r = o->plugin ? add_plugin(&env, o->plugin, fds, err) : 0;
	if (r >= 0)
		r = criu_spawn(&s->child, program, fds, &env, o, err);
	criu_fds_fini(fds); /* CRIU alone has them now */
	if (r < 0) {
		cleanup_close(&s->hold_fd);
		return r;
	}
	if (o->on_spawned)
		o->on_spawned(o->arg, s->child.id);

	req.type = s->type;
	req.opts = opts;
	opts->has_unprivileged = opts->unprivileged = s->unprivileged;
	if (send_request(s->child.socket_fd, &req) < 0)
		s->outcome = DIED;
	return 0;
}

/* Waits for the end of a CRIU that died in the middle: until then it may hold the tree. */
static void await_end(struct session *s)
{
	cleanup_close(&s->child.socket_fd);
	s->child.socket_fd = -1;
	int r = proc_wait_gone(s->child.id, deadline_in_ms(patience_ms(STUCK_AFTER_MS)));
	if (r == -ETIMEDOUT)
		kill_criu(s);
	while (r == -ETIMEDOUT) {
		tell_if_stuck(s);
		r = proc_wait_gone(s->child.id, deadline_in_ms(TICK_MS));
	}
}

/* Closes the connection to CRIU, which fails when it next uses it, and waits for its end. Returns its wait status, or
 * -errno. */
static int end_session(struct session *s)
{
	if (s->outcome == DIED)
		await_end(s);
	int status = criu_reap(&s->child);

	proc_tree_fini(&s->restored);
	cleanup_close(&s->hold_fd);
	return status;
}

/* Carries the conversation on until it is over. Returns as end_session() does. */
static int run_session(struct session *s)
{
	converse(s);
	return end_session(s);
}

/* CRIU's user gets what it needs for this session alone. */
static int lend_images(const struct session *s, bool repairs_tcp, struct brumate_error *err)
{
	const struct criu_options *o = s->options;
	int r = criu_lend_dir(o->images_dir_fd, o->user);

	o->user->net_admin = repairs_tcp;
	return r < 0 ? brumate_fail(err, -r, "CRIU's images cannot be given to uid %u: %m",
				    (unsigned)o->user->uid)
		     : 0;
}

/* ---- dump ---- */

static int ask_for_dump(struct session *s, Criu__Opts *opts, struct criu_fds *fds,
			struct brumate_error *err)
{
	const struct criu_options *o = s->options;
	struct proc_info info;
	int r = heal_prepare(&s->heal, o->root, uid_of(s), err);

	if (r >= 0)
		r = proc_read(&info, o->root.pid, err);
	if (r < 0)
		return r;
	/* Making the lock and taking it back costs ten times what the dump of a small job does. */
	if (s->lock == LOCK_SPARED && heal_has_tcp(&s->heal))
		s->lock = LOCK_NEEDED;
	r = set_common(opts, o, s->lock == LOCK_NEEDED && !o->tcp.is_held && heal_can_lock(), fds,
		       err);
	if (r >= 0 && o->user)
		r = lend_images(s, s->lock == LOCK_NEEDED, err);
	if (r < 0)
		return r;
	r = criu_fds_take(fds, heal_arm(&s->heal), "the guard of its death", err);
	if (r < 0)
		return r;
	opts->has_pid = true;
	opts->pid = o->enter_ns_of ? info.inner_pid : o->root.pid;
	opts->has_leave_running = true;
	opts->leave_running = o->leave_running;
	opts->has_tcp_established = opts->tcp_established = true;
	opts->has_tcp_close = opts->tcp_close = o->tcp.is_carried && s->lock == LOCK_NEEDED;
	opts->has_tcp_skip_in_flight = true;
	opts->tcp_skip_in_flight = o->tcp.skip_in_flight;
	opts->external = (char **)o->externals;
	while (o->externals && o->externals[opts->n_external])
		opts->n_external++;
	return 0;
}

static void read_statistics(struct criu_result *result, const struct criu_options *o)
{
	struct criu_image_stats stats;

	if (criu_image_stats_read(&stats, o->work_dir_fd) < 0)
		return;
	result->frozen_seconds = stats.frozen_seconds;
	result->pages_bytes = stats.pages_written * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Makes the tree run on, since CRIU did not end as it should, and only then says why. One that was to end, and of which all is saved, is
 * ended where it stands: what it would do now, it does again when it is restored. */
static int dump_failed(struct session *s, int status, struct brumate_error *err)
{
	if (s->past_return && !s->options->leave_running) {
		heal_signal(&s->heal, SIGKILL);
	} else if (s->outcome == DIED) {
		auto_close int log_fd = criu_log_open(s->options);
		heal_tree(&s->heal, log_fd);
	} else {
		/* The end of CRIU may have stopped it, and code of CRIU's may be in it. */
		heal_continue(&s->heal);
	}
	return s->outcome == UNDECIDED ? status : explain_session(s, status, err);
}

/* Starts a CRIU, which comes up by itself while the tree does what it will. */
static int begin_dump(struct session *s, const struct criu_program *program,
		      const struct criu_options *options, enum packet_lock lock,
		      struct brumate_error *err)
{
	auto_(criu_fds_fini) struct criu_fds fds = { .n = 0 };
	Criu__Opts opts = CRIU__OPTS__INIT;

	*s = SESSION_EMPTY;
	s->options = options;
	s->unprivileged = program->unprivileged || options->user;
	s->type = CRIU__REQ_TYPE__DUMP;
	s->lock = lock;
	int r = ask_for_dump(s, &opts, &fds, err);
	if (r >= 0)
		r = start_session(s, program, &opts, &fds, err);
	if (r < 0)
		heal_state_fini(&s->heal);
	return r < 0 ? r : 0;
}

static int end_dump(struct session *s, struct brumate_error *err)
{
	int status = run_session(s), r = 0;

	if (s->outcome != SUCCEEDED)
		r = dump_failed(s, status, err);
	heal_state_fini(&s->heal);
	return r;
}

struct criu_dump {
	struct session session;
	struct criu_program program;
	struct criu_options options;
	bool has_run;
};

int criu_dump_start(struct criu_dump **ret, const struct criu_program *program,
		    const struct criu_options *options, struct brumate_error *err)
{
	struct criu_dump *d = calloc(1, sizeof(*d));

	if (!d)
		return brumate_fail(err, ENOMEM, "%m");
	d->program = *program;
	d->options = *options;
	int r = begin_dump(&d->session, &d->program, &d->options, LOCK_SPARED, err);
	if (r < 0) {
		free(d);
		return r;
	}
	*ret = d;
	return 0;
}

int criu_dump_run(struct criu_dump *d, struct criu_result *ret, struct brumate_error *err)
{
	uint64_t start_ns = clock_now_ns();
	int r = end_dump(&d->session, err);

	if (d->session.lock == LOCK_MISSED) {
		r = begin_dump(&d->session, &d->program, &d->options, LOCK_NEEDED, err);
		if (r == 0)
			r = end_dump(&d->session, err);
	}
	d->has_run = true;
	if (r < 0)
		return r;

	struct criu_result result = { .seconds = clock_since_s(start_ns) };
	read_statistics(&result, &d->options);
	*ret = result;
	return 0;
}

void criu_dump_free(struct criu_dump *d)
{
	if (d && !d->has_run) {
		end_session(&d->session);
		heal_state_fini(&d->session.heal);
	}
	free(d);
}

/* ---- restore ---- */

static int refuse_taken(pid_t pid, struct brumate_error *err)
{
	auto_free char *comm = NULL;

	if (proc_file_read(pid, "comm", 4096, &comm, NULL) < 0)
		return 0;
	comm[strcspn(comm, "\n")] = '\0';
	brumate_fail(err, EEXIST, "process id %d of the checkpoint is in use (%s)", pid, comm);
	brumate_hint(err, "%s", criu_hint_for("Can't fork for"));
	return -EEXIST;
}

/* CRIU says only that some number is taken; this says which, and by whom, before anything starts. */
static int check_pids(const struct criu_image_tree *t, struct brumate_error *err)
{
	for (size_t i = 0; i < t->n; i++) {
		const struct criu_image_process *p = &t->items[i];
		int r = refuse_taken(p->pid, err);

		for (size_t k = 0; r >= 0 && k < p->n_threads; k++)
			r = refuse_taken(p->threads[k], err);
		if (r < 0)
			return r;
	}
	return 0;
}

static int add_inherits(Criu__Opts *opts, Criu__InheritFd *items, Criu__InheritFd **pointers,
			struct criu_fds *fds, const struct criu_options *o,
			struct brumate_error *err)
{
	for (size_t i = 0; i < o->n_inherits; i++) {
		int fd = criu_fds_add(fds, o->inherits[i].fd, o->inherits[i].key, err);

		if (fd < 0)
			return fd;
		criu__inherit_fd__init(&items[i]);
		items[i].key = o->inherits[i].key;
		items[i].fd = fd;
		pointers[i] = &items[i];
	}
	opts->inherit_fd = pointers;
	opts->n_inherit_fd = o->n_inherits;
	return 0;
}

/* To drop a capability takes one that a user's CRIU has not, and its restorer stops in the middle then. */
static int check_bounding_sets(const struct session *s, struct brumate_error *err)
{
	int r = s->unprivileged ? criu_bounding_sets_are_full(s->options->images_dir_fd) : 1;

	if (r < 0)
		return brumate_fail(err, -r, "CRIU's images: %m");
	if (r > 0)
		return 0;
	brumate_fail(err, EPERM,
		     "the job was saved with a lesser bounding set of capabilities, which a "
		     "user's CRIU cannot restore");
	brumate_hint(err, "save a job as the user it belongs to");
	return -EPERM;
}

/* CRIU would find out in the middle, with the tree half built. */
static int check_connections(const struct session *s, struct brumate_error *err)
{
	const struct criu_options *o = s->options;

	if (connections_may_be_repaired() || o->tcp.close ||
	    !criu_images_have_tcp(o->images_dir_fd))
		return 0;
	brumate_fail(
		err, EPERM,
		"the job was saved with TCP connections, which takes CAP_NET_ADMIN to restore");
	brumate_hint(err, "--tcp-close restores them as closed");
	return -EPERM;
}

static int start_restore(struct session *s, Criu__Opts *opts, struct criu_fds *fds,
			 Criu__InheritFd *items, Criu__InheritFd **pointers,
			 struct brumate_error *err)
{
	const struct criu_options *o = s->options;
	int r = criu_image_tree_read(&s->tree, o->images_dir_fd);

	if (r < 0)
		return brumate_fail(err, r == -ENOENT ? EBADMSG : -r, "CRIU's image pstree.img: %s",
				    strerror(-r));
	r = check_bounding_sets(s, err);
	if (r >= 0)
		r = check_connections(s, err);
	if (r >= 0 && !o->enter_ns_of)
		r = check_pids(&s->tree, err);
	if (r >= 0)
		r = set_common(opts, o, !o->is_apart && heal_can_lock(), fds, err);
	if (r >= 0 && o->user)
		r = lend_images(s, !o->tcp.close && criu_images_have_tcp(o->images_dir_fd), err);
	if (r < 0)
		return r;
	/* In another namespace the root is to be a child of its init, which CRIU's end makes it. */
	opts->has_rst_sibling = true;
	opts->rst_sibling = !o->enter_ns_of;
	/* CRIU signals it to stop before it detaches, so that it runs no instruction even if we are killed. */
	opts->has_leave_stopped = opts->leave_stopped = o->is_apart;
	opts->has_tcp_established = opts->has_tcp_close = true;
	opts->tcp_established = !o->tcp.close;
	opts->tcp_close = o->tcp.close;
	return add_inherits(opts, items, pointers, fds, o, err);
}

/* The root, and those whose parents have ended: a subreaper gets them. */
static void remove_half_built(const struct session *s)
{
	int status;

	/* The paths in the log of one apart are not those of the machine. */
	if (s->outcome == DIED && !s->options->is_apart) {
		auto_close int log_fd = criu_log_open(s->options);
		heal_restore(log_fd, s->options->user);
	}
	for (size_t i = 0; i < s->tree.n; i++) {
		const struct proc_id id = half_built(s, i);

		if (!id.pid)
			continue;
		const struct proc_members built = { .root = id, .uid = uid_of(s) };

		proc_members_kill(&built, deadline_in_ms(KILL_TIMEOUT_MS));
		if (!s->options->enter_ns_of)
			reap_poll(id.pid, &status);
	}
}

int criu_restore(const struct criu_program *program, const struct criu_options *options,
		 struct criu_result *ret, struct brumate_error *err)
{
	struct session s = SESSION_EMPTY;
	auto_(criu_fds_fini) struct criu_fds fds = { .n = 0 };
	auto_free Criu__InheritFd *items = calloc(options->n_inherits + 1, sizeof(*items));
	auto_free Criu__InheritFd **pointers = calloc(options->n_inherits + 1, sizeof(*pointers));
	Criu__Opts opts = CRIU__OPTS__INIT;
	uint64_t start_ns = clock_now_ns();

	if (!items || !pointers)
		return brumate_fail(err, ENOMEM, "%m");
	s.options = options;
	s.type = CRIU__REQ_TYPE__RESTORE;
	s.awaited = CRIU_EVENT_RESTORED;
	s.unprivileged = program->unprivileged || options->user;
	int status = start_restore(&s, &opts, &fds, items, pointers, err);
	if (status >= 0)
		status = start_session(&s, program, &opts, &fds, err);
	if (status >= 0)
		status = run_session(&s);
	if (s.outcome == SUCCEEDED && s.is_cancelled)
		s.outcome = FAILED;
	if (s.outcome != UNDECIDED && s.outcome != SUCCEEDED) {
		remove_half_built(&s);
		status = explain_session(&s, status, err);
	}
	criu_image_tree_fini(&s.tree);
	if (s.outcome != SUCCEEDED)
		return status;
	*ret = (struct criu_result){ .root_pid = s.root.pid, .seconds = clock_since_s(start_ns) };
	return 0;
}

/* ---- check ---- */

int criu_check(const struct criu_program *program, struct brumate_error *err)
{
	const struct criu_options none = { 0 };
	struct session s = SESSION_EMPTY;
	Criu__Opts opts = CRIU__OPTS__INIT;
	auto_(criu_fds_fini) struct criu_fds fds = { .n = 0 };
	auto_close int dir_fd = open("/run", O_PATH | O_DIRECTORY | O_CLOEXEC);
	int images_fd = dir_fd < 0 ? brumate_fail(err, errno, "/run: %m")
				   : criu_fds_add(&fds, dir_fd, "/run", err);

	s.options = &none;
	s.type = CRIU__REQ_TYPE__CHECK;
	s.unprivileged = program->unprivileged;
	opts.images_dir_fd = images_fd;
	int r = images_fd < 0 ? images_fd : start_session(&s, program, &opts, &fds, err);
	if (r < 0)
		return r;
	run_session(&s);
	if (s.outcome == SUCCEEDED)
		return 0;
	brumate_fail(err, EOPNOTSUPP, "the kernel lacks what CRIU needs%s%s",
		     s.errmsg[0] ? ": " : "", s.errmsg);
	brumate_hint(err, "run '%s check' to see what is missing", program->path);
	return -EOPNOTSUPP;
}

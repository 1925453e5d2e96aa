// SPDX-License-Identifier: MIT
/*
 * What is known to fail is refused before the job is touched; what is only suspected to lose it needs
 * --force. Looks from outside only: nothing is stopped or attached to.
 */
#include "engine/op.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/size.h"
#include "datapath/move.h"
#include "process/reaper.h"
#include "engine/job-files.h"
#include "engine/rights.h"
#include "engine/together.h"

enum { END_TIMEOUT_MS = 200, LEADER_WAIT_MS = 100 };

/* ---- what the driver knows beyond /proc ---- */

static int add_gpu_finding(struct scan_report *report, enum scan_level level, pid_t pid,
			   const char *what, const char *text, const char *hint)
{
	struct scan_finding f = { .level = level, .scope = SCAN_GPU | SCAN_CRIU, .pid = pid };

	snprintf(f.what, sizeof(f.what), "%s", what);
	snprintf(f.text, sizeof(f.text), "%s", text);
	snprintf(f.hint, sizeof(f.hint), "%s", hint);
	return scan_add(report, &f);
}

static const struct agent *agent_of(const struct op *op, const struct gpu_process *p)
{
	for (size_t i = 0; i < op->data.n_agents; i++)
		if (op->data.agents[i].agent.id.pid == p->id.pid)
			return &op->data.agents[i].agent;
	return NULL;
}

/* From outside, a process with memory on two GPUs looks the same with and without peer access. */
static int suspect_peers(struct scan_report *report, const struct gpu_process *p,
			 const struct agent *agent)
{
	char text[160];

	if (p->dev.n_gpus < 2 ||
	    (agent && agent->sharing & AGENT_SHARING_KNOWN && !(agent->sharing & AGENT_HAS_PEERS)))
		return 0;
	snprintf(text, sizeof(text),
		 "process %d works on %zu GPUs, maybe with peer access between them", p->id.pid,
		 p->dev.n_gpus);
	return add_gpu_finding(report, SCAN_SUSPECT, p->id.pid, "peer-access", text,
			       "the driver saves such a process but cannot restore it where "
			       "peer access is on");
}

/* In a job of the driver, which restores what its processes share by legacy IPC. */
static int tell_driver_job(struct scan_report *report, const struct gpu_process *p)
{
	char text[200], hint[120];

	if (!p->driver_job.missing) {
		snprintf(text, sizeof(text),
			 "process %d is in a job of the driver, which restores what its processes "
			 "share by legacy IPC, and nothing else that they share",
			 p->id.pid);
		return add_gpu_finding(report, SCAN_NOTE, p->id.pid, "driver-job", text, "");
	}
	snprintf(text, sizeof(text),
		 "process %d is in a job of the driver, but may share device memory by ways that "
		 "the driver does not restore",
		 p->id.pid);
	snprintf(hint, sizeof(hint), "start it with %s", p->driver_job.missing);
	return add_gpu_finding(report, SCAN_SUSPECT, p->id.pid, "shared-memory", text, hint);
}

/* From outside, an importer of device memory looks like any process (docs/driver-behaviour.md). What the agents
 * tell is known. */
static int suspect_sharing(struct scan_report *report, const struct gpu_set *gpus,
			   const struct gpu_process *p, const struct agent *agent)
{
	char text[80 + AGENT_TEXT_BYTES], hint[200];

	snprintf(hint, sizeof(hint),
		 "the driver saves processes that share device memory but cannot restore them%s%s",
		 agent ? "" : ", but of a job of its own from version ",
		 agent ? "" : gpus->vendor->feature_since(DEV_LEGACY_IPC));
	/* An agent ends a moment before its process. */
	if (!agent && proc_wait_gone(p->id, deadline_in_ms(END_TIMEOUT_MS)) == 0)
		return 0;
	if (!agent && gpu_set_shares_by_driver(gpus))
		return tell_driver_job(report, p);
	if (!agent)
		snprintf(text, sizeof(text),
			 "process %d has no agent that tells whether it shares device memory with "
			 "others of the job",
			 p->id.pid);
	else if (!(agent->sharing & AGENT_SHARING_KNOWN))
		snprintf(text, sizeof(text),
			 "the agent of process %d is too old to tell whether it shares device "
			 "memory with others of the job",
			 p->id.pid);
	else if (agent->sharing & AGENT_SHARES)
		snprintf(text, sizeof(text), "process %d shares %s", p->id.pid, agent->shares);
	else
		return 0;
	return add_gpu_finding(report, SCAN_SUSPECT, p->id.pid, "shared-memory", text, hint);
}

/* Which way the memory of a process without an agent goes, and why. Of the others the agents tell how much. */
static int tell_way(const struct op *op, struct scan_report *report, const struct gpu_process *p)
{
	const char *why = !op->target->owned_by->was_started(op->target)
				  ? "its job was already running when it was managed"
			  : op->data.uses_agents ? "it has no agent"
						 : "its job was started with --data-path driver";
	char text[160];

	snprintf(text, sizeof(text), "process %d: %.1f MiB of device memory go by the driver: %s",
		 p->id.pid, (double)p->dev.used_bytes / 0x1p20, why);
	return add_gpu_finding(report, SCAN_NOTE, p->id.pid, "memory", text, "");
}

/* Notes features that the library reported to the program as missing. */
static int tell_withheld(struct scan_report *report, const struct gpu_process *p,
			 const struct agent *agent)
{
	static const struct {
		unsigned flag;
		const char *what;
	} all[] = {
		{ AGENT_WITHHELD_MULTICAST, "multicast between GPUs" },
		{ AGENT_WITHHELD_SHARING,
		  "the driver's memory on the host, or sharing beyond this machine" },
	};
	int r = 0;

	for (size_t i = 0; i < sizeof(all) / sizeof(*all) && r == 0; i++) {
		char text[160];

		if (!(agent->sharing & all[i].flag))
			continue;
		snprintf(text, sizeof(text), "process %d asked for %s, and was told there is none",
			 p->id.pid, all[i].what);
		r = add_gpu_finding(report, SCAN_NOTE, p->id.pid, "withheld", text,
				    "it could not be brought back; --data-path driver leaves it to "
				    "the program");
	}
	return r;
}

/* CRIU's plugin of the vendor saves each process by itself. */
static int tell_plugin(struct scan_report *report, const struct gpu_set *gpus,
		       const struct gpu_process *p)
{
	char text[160];

	snprintf(text, sizeof(text),
		 "process %d: CRIU's plugin saves %.1f MiB of memory of %s GPUs", p->id.pid,
		 (double)p->dev.used_bytes / 0x1p20, gpus->vendor->name);
	int r = add_gpu_finding(report, SCAN_NOTE, p->id.pid, "memory", text, "");
	if (r < 0 || gpus->n < 2)
		return r;
	snprintf(text, sizeof(text),
		 "process %d may share device memory with others of the job: nothing tells",
		 p->id.pid);
	return add_gpu_finding(report, SCAN_SUSPECT, p->id.pid, "shared-memory", text,
			       "CRIU's plugin gives each of them memory of its own at a restore");
}

static int scan_suspects(struct op *op, struct scan_report *report)
{
	int r = 0;

	for (size_t i = 0; op->gpus.vendor->saved_by_criu && r == 0 && i < op->gpus.n; i++)
		r = tell_plugin(report, &op->gpus, &op->gpus.items[i]);
	if (op->gpus.vendor->saved_by_criu)
		return r;
	for (size_t i = 0; r == 0 && i < op->gpus.n; i++) {
		const struct gpu_process *p = &op->gpus.items[i];
		const struct agent *agent = agent_of(op, p);

		if (p->is_asleep) /* that was judged before it was stopped */
			continue;
		r = agent ? tell_withheld(report, p, agent) : tell_way(op, report, p);
		if (r == 0)
			r = suspect_peers(report, p, agent);
		/* One alone may share with processes outside the job, which its agent knows. */
		if (r == 0 && (op->gpus.n > 1 || (agent && agent->sharing & AGENT_SHARES)))
			r = suspect_sharing(report, &op->gpus, p, agent);
	}
	return r;
}

static bool has_process(const struct proc_tree *tree, pid_t pid)
{
	for (size_t i = 0; i < tree->n; i++)
		if (tree->items[i].id.pid == pid && tree->items[i].state != 'Z')
			return true;
	return false;
}

static int refuse_process(struct scan_report *report, const struct proc_info *p, const char *what,
			  const char *why, const char *hint)
{
	struct scan_finding f = { .level = SCAN_REFUSE, .scope = SCAN_CRIU, .pid = p->id.pid };

	snprintf(f.what, sizeof(f.what), "%s", what);
	snprintf(f.text, sizeof(f.text), "process %d (%s): %s", p->id.pid, p->comm, why);
	snprintf(f.hint, sizeof(f.hint), "suspend and resume work; %s", hint);
	return scan_add(report, &f) < 0 ? -ENOMEM : 0;
}

/* CRIU makes the leader of such a session for a while. A child of the root loses its parent then, and would become a
 * child of the shim, as the root is not a subreaper yet. */
static int scan_sessions(const struct op *op, struct scan_report *report)
{
	int r = 0;

	for (size_t i = 1; r == 0 && i < op->tree.n && reaper_is(op->tree.items[0].id); i++) {
		const struct proc_info *p = &op->tree.items[i];

		if (p->state != 'Z' && p->ppid == op->tree.items[0].id.pid &&
		    !has_process(&op->tree, p->sid))
			r = refuse_process(report, p, "session",
					   "its parent and the leader of its session have ended, "
					   "CRIU cannot bring it back as a process of the job",
					   "started by `setsid -f` it can be saved");
	}
	return r;
}

/* One whose other threads are killed is gone in a moment. */
static bool lost_its_leader(const struct proc_info *p)
{
	const uint64_t until_ns = deadline_in_ms(LEADER_WAIT_MS);
	struct proc_info now = *p;

	while (now.state == 'Z' && now.n_threads > 1 && clock_now_ns() < until_ns) {
		nanosleep(&(struct timespec){ .tv_nsec = NS_PER_MS }, NULL);
		if (proc_read(&now, p->id.pid, NULL) < 0 || !proc_is_same(now.id, p->id))
			return false;
	}
	return now.state == 'Z' && now.n_threads > 1;
}

static int scan_leaders(const struct op *op, struct scan_report *report)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < op->tree.n; i++)
		if (lost_its_leader(&op->tree.items[i]))
			r = refuse_process(report, &op->tree.items[i], "leader",
					   "its first thread has ended, and others run on, which "
					   "CRIU cannot save",
					   "let the first thread wait for the others "
					   "(pthread_join) in place of pthread_exit");
	return r;
}

static int scan_driver_state(struct op *op, struct scan_report *report)
{
	for (size_t i = 0; i < op->gpus.n; i++) {
		const struct gpu_process *p = &op->gpus.items[i];
		char text[160];

		bool failed = p->dev.state == DEV_STATE_FAILED;

		if (!failed && p->dev.state != DEV_STATE_UNKNOWN)
			continue;
		snprintf(text, sizeof(text),
			 failed ? "process %d: the driver reports its state as failed"
				: "process %d: the driver does not tell its state",
			 p->id.pid);
		if (add_gpu_finding(report, SCAN_REFUSE, p->id.pid, "driver-state", text,
				    failed ? "its GPU state cannot be saved any more"
					   : "try again") < 0)
			return -ENOMEM;
	}
	return scan_suspects(op, report);
}

/* CRIU saves one tree. */
static int scan_orphans(struct op *op, struct scan_report *report)
{
	const struct proc_members members = target_members(op->target);
	int r = 0;

	for (size_t i = 0; r == 0 && i < op->tree.n; i++) {
		const struct proc_info *info = &op->tree.items[i];
		struct scan_finding f = { .level = SCAN_REFUSE,
					  .scope = SCAN_CRIU,
					  .pid = info->id.pid,
					  .what = "orphan" };

		if (!proc_is_orphan(&members, info) || info->state == 'Z')
			continue;
		snprintf(f.text, sizeof(f.text),
			 "process %d (%s) is of the job, but not below process %d any more: its "
			 "parent has ended",
			 info->id.pid, info->comm, members.root.pid);
		snprintf(f.hint, sizeof(f.hint),
			 "it can be suspended, but not saved on disk: start it "
			 "without nohup, setsid or &, so that its parent stays");
		r = scan_add(report, &f);
	}
	return r;
}

/* A member that stands still because its job is suspended does not count as stopped: a resume or restore makes it run. */
static void forget_stopped(struct op *op, struct scan_report *report)
{
	size_t left = 0;

	for (size_t i = 0; i < report->n; i++) {
		const struct scan_finding *f = &report->items[i];
		bool ours = false;

		for (size_t k = 0; k < op->tree.n && !strcmp(f->what, "stopped"); k++)
			ours |= op->tree.items[k].id.pid == f->pid &&
				target_find_stopped(op->target, op->tree.items[k].id);
		if (!ours)
			report->items[left++] = *f;
	}
	report->n = left;
}

int preflight_scan(struct op *op, unsigned scopes, struct scan_report *ret,
		   struct brumate_error *err)
{
	auto_(scan_report_fini) struct scan_report report = SCAN_REPORT_EMPTY;
	int r = scan_tree(&report, &op->tree, scopes, err);

	if (r < 0)
		return r;
	forget_stopped(op, &report);
	if (scan_driver_state(op, &report) < 0 || scan_orphans(op, &report) < 0 ||
	    scan_sessions(op, &report) < 0 || scan_leaders(op, &report) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	r = scopes & SCAN_CRIU ? job_files_scan(op, &report, err) : 0;
	if (r < 0)
		return r;
	*ret = take_struct(report, SCAN_REPORT_EMPTY);
	return 0;
}

/* ---- memory ---- */

uint64_t op_zero_bytes(struct op *op)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	uint64_t start_ns = clock_now_ns();
	const struct vault *v = op->data.vault;

	/* A host copy was counted by its digests. */
	if (op->knows_zeros || !v || (op->was_suspended && v->copied) ||
	    (!op->data.n_agents && !v->n_pieces))
		return op->zero_bytes;
	op->knows_zeros = true;
	if (live_count_zeros(&op->data, &op->zero_bytes, &op->counted, &err) < 0) {
		log_info("it is not known how much device memory is zero: job=%s reason=\"%s\"",
			 op->target->id, err.text);
		op->zero_bytes = 0;
	}
	progress_phase(&op->progress, "count", start_ns);
	return op->zero_bytes;
}

static bool fits(uint64_t copies, uint64_t memory, uint64_t disk)
{
	return copies <= memory || copies - memory <= disk;
}

/* What the broker copies may spill to a disk too; its own call says how much room there is. */
static int check_copies(struct op *op, uint64_t copies, uint64_t by_driver,
			struct brumate_error *err)
{
	struct broker_info info;

	if (gpu_set_open(&op->gpus, NULL) < 0 ||
	    broker_client_info(&op->gpus.broker, &info, NULL) < 0)
		return 0; /* the copy itself will tell */
	uint64_t memory = info.room.memory_bytes, disk = info.room.disk_bytes;
	memory -= by_driver < memory ? by_driver : memory;
	if (fits(copies, memory, disk))
		return 0;
	uint64_t zero = op_zero_bytes(op);
	copies -= zero < copies ? zero : copies;
	if (fits(copies, memory, disk))
		return 0;
	brumate_fail(err, ENOSPC,
		     "%s of device memory do not fit into the %s of host memory available "
		     "and the %s free in %s",
		     SIZE_TEXT(copies), SIZE_TEXT(memory), SIZE_TEXT(disk), info.room.disk);
	brumate_hint(err,
		     "free host memory, or set SpillDirectory= in [Broker] of brumate.conf to a "
		     "larger file system");
	return -ENOSPC;
}

/* What the driver will save of a process, into memory of that process. */
static uint64_t by_driver_bytes(const struct op *op, size_t i)
{
	const struct gpu_process *p = &op->gpus.items[i];
	uint64_t managed = 0;

	if (p->dev.state == DEV_STATE_CHECKPOINTED)
		return 0;
	for (size_t k = 0; k < op->data.n_agents; k++)
		if (op->data.agents[k].agent.id.pid == p->id.pid)
			managed += op->data.agents[k].agent.managed_bytes;
	return managed < p->dev.used_bytes ? p->dev.used_bytes - managed : 0;
}

static bool is_within(const char *cgroup, const char *outer)
{
	size_t len = strlen(outer);

	return cgroup && !strncmp(cgroup, outer, len) && (!cgroup[len] || cgroup[len] == '/');
}

/* The processes that are within one cgroup share what its limit leaves. */
static int check_cgroup(const struct op *op, char *const *cgroups, const char *cgroup,
			struct brumate_error *err)
{
	uint64_t left = machine_cgroup_room_bytes(cgroup), need = 0;

	for (size_t i = 0; i < op->gpus.n; i++)
		need += is_within(cgroups[i], cgroup) ? by_driver_bytes(op, i) : 0;
	if (need <= left)
		return 0;
	brumate_fail(err, ENOMEM,
		     "%s of device memory do not fit into the %s of memory that cgroup %s "
		     "has left",
		     SIZE_TEXT(need), SIZE_TEXT(left), *cgroup ? cgroup : "/");
	brumate_hint(err,
		     "raise its memory limit: the driver keeps the saved data in the job's own "
		     "memory, and beyond the limit the kernel would end the job");
	return -ENOMEM;
}

static int check_cgroups(const struct op *op, struct brumate_error *err)
{
	auto_free char **cgroups = calloc(op->gpus.n + 1, sizeof(*cgroups));
	int r = 0;

	if (!cgroups)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < op->gpus.n; i++)
		cgroups[i] = machine_cgroup(op->gpus.items[i].id.pid);
	for (size_t i = 0; i < op->gpus.n && r == 0; i++) {
		auto_free char *cgroup = cgroups[i] ? strdup(cgroups[i]) : NULL;

		if (!cgroup)
			continue;
		do
			r = check_cgroup(op, cgroups, cgroup, err);
		while (r == 0 && machine_cgroup_go_out(cgroup));
	}
	for (size_t i = 0; i < op->gpus.n; i++)
		free(cgroups[i]);
	return r;
}

/* The broker gives back what it has ready as the driver takes memory. */
static uint64_t ready_bytes(struct op *op)
{
	struct broker_info info;

	if (gpu_set_open(&op->gpus, NULL) < 0 ||
	    broker_client_info(&op->gpus.broker, &info, NULL) < 0)
		return 0;
	return info.room.free_bytes;
}

int preflight_memory(struct op *op, struct brumate_error *err)
{
	uint64_t available, used = 0, need = 0;

	for (size_t i = 0; i < op->gpus.n; i++) {
		used += op->gpus.items[i].dev.state == DEV_STATE_CHECKPOINTED
				? 0
				: op->gpus.items[i].dev.used_bytes;
		need += by_driver_bytes(op, i);
	}
	if (!used)
		return 0;
	if (machine_meminfo("MemAvailable", &available) && need > available &&
	    need > (available += ready_bytes(op))) {
		brumate_fail(err, ENOMEM,
			     "%s of device memory do not fit into the %s of host memory "
			     "available",
			     SIZE_TEXT(need), SIZE_TEXT(available));
		brumate_hint(err, "free host memory; the driver keeps the saved data in the job's "
				  "own memory");
		return -ENOMEM;
	}
	int r = check_cgroups(op, err);
	uint64_t managed = used - need;
	uint64_t kept =
		op->data.vault ? vault_baseline_bytes(op->data.vault) : 0; /* is written in place */

	if (r < 0 || managed <= kept || op->request->park)
		return r;
	return check_copies(op, managed - kept, need, err);
}

/* ---- judging ---- */

static int refuse(const struct scan_finding *f, struct brumate_error *err)
{
	brumate_fail(err, EOPNOTSUPP, "%s", f->text);
	brumate_hint(err, "%s", f->hint);
	return -EOPNOTSUPP;
}

static int ask_for_force(const struct scan_finding *f, struct brumate_error *err)
{
	brumate_fail(err, EOPNOTSUPP, "%s: this may lose the job", f->text);
	brumate_hint(err, "%s%s--force does it all the same", f->hint, f->hint[0] ? "; " : "");
	return -EOPNOTSUPP;
}

/* The coordinator of the set looks for the other end. */
static bool is_of_the_set(const struct op *op, const struct scan_finding *f)
{
	return together_is_wanted(op) && !strcmp(f->what, SCAN_TCP_OUTSIDE);
}

static bool is_to_be_left_out(const struct op *op, const struct scan_finding *f)
{
	return (op->request->tcp_skip_in_flight && !strcmp(f->what, SCAN_TCP_IN_FLIGHT)) ||
	       (op->request->drop_external && !strcmp(f->what, SCAN_UNIX_OUTSIDE));
}

/* Whether the job lacks something after a restore: the summary says so then, and not of what merely is worth knowing. */
static bool is_lost(const struct scan_finding *f)
{
	static const char *const lost[] = { "udp", "ended-process" };
	bool found = false;

	for (size_t i = 0; i < sizeof(lost) / sizeof(*lost); i++)
		found = found || !strcmp(f->what, lost[i]);
	return found;
}

/* The two ends of a connection no longer agree on what has passed since the checkpoint: one that comes back waits for ever for what it had got, or
 * the other end resets it. */
static int refuse_connections(const struct scan_report *report, struct brumate_error *err)
{
	for (size_t i = 0; i < report->n; i++) {
		const struct scan_finding *f = &report->items[i];

		if (f->level != SCAN_NOTE || strcmp(f->what, SCAN_TCP))
			continue;
		brumate_fail(err, EOPNOTSUPP,
			     "%s, which goes on after the checkpoint: a restore would hang or be "
			     "cut off",
			     f->text);
		brumate_hint(err, "--tcp-close makes checkpoints that are restored with all TCP "
				  "connections closed; one without "
				  "--leave-running keeps them; --force does it all the same, for "
				  "who saves both ends at once");
		return -EOPNOTSUPP;
	}
	return 0;
}

int preflight_connections(struct op *op, struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	auto_(scan_report_fini) struct scan_report report = SCAN_REPORT_EMPTY;
	const struct proc_members members = target_members(op->target);

	if (proc_members_read(&tree, &members, NULL) < 0 ||
	    scan_tree(&report, &tree, SCAN_CRIU, NULL) < 0)
		return 0;
	return refuse_connections(&report, err);
}

int preflight(struct op *op, unsigned scopes, struct brumate_error *err)
{
	auto_(scan_report_fini) struct scan_report report = SCAN_REPORT_EMPTY;
	int r = scopes & SCAN_CRIU ? rights_check_dump(op, err) : rights_check(op, err);

	if (r == 0)
		r = preflight_scan(op, scopes, &report, err);
	if (r == 0 && op->request->leave_running && !op->request->tcp_close &&
	    !op->request->force && !together_is_wanted(op)) /* both ends are saved at once */
		r = refuse_connections(&report, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < report.n; i++) {
		const struct scan_finding *f = &report.items[i];

		const bool is_refused = f->level == SCAN_REFUSE || (op->request->leave_running &&
								    !strcmp(f->what, SCAN_LINKED));
		if (!is_refused || !(f->scope & scopes) || is_of_the_set(op, f))
			continue;
		if (!is_to_be_left_out(op, f))
			return refuse(f, err);
		progress_note(&op->progress, "%s: left out, %s", f->text,
			      !strcmp(f->what, SCAN_TCP_IN_FLIGHT)
				      ? op->request->wake ? "they wait for it"
							  : "they end with the job"
				      : "after a restore it finds the connection closed");
	}
	for (size_t i = 0; i < report.n; i++) {
		const struct scan_finding *f = &report.items[i];

		if (f->level != SCAN_SUSPECT || !(f->scope & scopes))
			continue;
		if (!op->request->force)
			return ask_for_force(f, err);
		progress_note(&op->progress, "%s (--force)", f->text);
	}
	for (size_t i = 0; i < report.n && scopes & SCAN_CRIU; i++)
		if (report.items[i].level == SCAN_NOTE && is_lost(&report.items[i]))
			progress_note(&op->progress, "%s", report.items[i].text);
	return preflight_memory(op, err);
}

// SPDX-License-Identifier: MIT
/* The command table itself; see command.h. */
#include "cli/command.h"
#include "cli/options.h"


const struct option_spec help_option = FLAG(OPT_HELP, "help", 'h', "show this help");

static const struct option_spec run_options[] = {
	NAME("name of the job (default: made from the command)"),
	VALUE(OPT_LOG, "log", 'l', "FILE", COMPLETES_FILE, "append the job's output to FILE"),
	ATTACH,
	CHOICE(OPT_DATA_PATH, "data-path", "PATH", "auto broker driver",
	       "what moves its device memory: auto (default), broker or driver"),
	CHOICE(OPT_MANAGED, "managed", "WHERE", "driver host",
	       "managed memory: driver (default: fast, never saved) or host"),
	VALUE(OPT_LABEL, "label", 0, "KEY=VALUE", COMPLETES_LABEL,
	      "a label for the job; may be repeated"),
	FLAG(OPT_WAKE, "wake", 0, "once suspended, resume it when it next calls the GPU"),
	VALUE(OPT_PRIORITY, "priority", 0, "N", COMPLETES_NOTHING,
	      "of jobs that share GPUs, those with a higher one come first (default: 0)"),
	VALUE(OPT_HOOK, "hook", 0, "PROGRAM", COMPLETES_FILE,
	      "run it before a suspend, and after a resume, a restore and a failure"),
	FLAG(OPT_EXAMPLE, "example", 0,
	     "run the counter that comes with brumate; what follows are its options"),
	SIMULATED,
	FORMAT,
	END,
};
static const struct option_spec ps_options[] = {
	FLAG(OPT_ALL, "all", 'a', "also jobs that ended more than an hour ago"),
	ALL_USERS("jobs"),
	VALUE(OPT_FILTER, "filter", 0, "KEY=VALUE,...", COMPLETES_FILTER,
	      "only jobs with this state, name, id, gpu or label"),
	VALUE(OPT_COLUMNS, "columns", 0, "NAME,...", COMPLETES_NOTHING,
	      "only these columns, in this order, as in name,state,gpu"),
	CHOICE(OPT_SORT, "sort", "KEY", "age name state gpu-mem host-mem",
	       "order by age, name, state or memory (default: what lives first, then by age)"),
	FORMAT,
	NO_HEADERS,
	QUIET,
	END,
};
static const struct option_spec logs_options[] = {
	FOLLOW("keep showing new output until the job ends; exit as it does"),
	VALUE(OPT_TAIL, "tail", 0, "N", COMPLETES_NOTHING, "start with the last N lines"),
	SINCE("only output since TIME: 2h for two hours ago, or a date and time"),
	FLAG(OPT_TIMESTAMPS, "timestamps", 0, "show when each line was written"),
	END,
};
static const struct option_spec events_options[] = {
	FOLLOW("keep showing new events until Ctrl-C"),
	SINCE("only events since TIME: 2h for two hours ago, or a date and time"),
	FORMAT,
	END,
};
static const struct option_spec no_options[] = { END };
static const struct option_spec wait_options[] = {
	TIMEOUT("give up after TIME (exit code 124)"),
	FORMAT,
	END,
};
static const struct option_spec kill_options[] = {
	ALL_OF("jobs that are alive"),
	VALUE(OPT_SIGNAL, "signal", 's', "SIGNAL", COMPLETES_SIGNAL,
	      "send only this signal (default: TERM, then KILL)"),
	VALUE(OPT_GRACE, "grace", 0, "TIME", COMPLETES_NOTHING,
	      "time between TERM and KILL (default: 10s)"),
	YES,
	FORMAT,
	END,
};
static const struct option_spec rm_options[] = {
	MEANS_JOB,
	MEANS_CHECKPOINT,
	YES,
	FLAG(OPT_ENDED, "ended", 0, "forget all jobs that have exited or are lost"),
	DIR("remove checkpoints in DIR instead of the default place"),
	FORMAT,
	END,
};
static const struct option_spec manage_options[] = {
	PID("the process to take in, with its descendants"),
	NAME("name of the job (default: made from the command)"),
	SIMULATED,
	FORMAT,
	END,
};
static const struct option_spec release_options[] = { FORMAT, END };
static const struct option_spec suspend_options[] = {
	ALL_OF("running jobs"),
	ALL_USERS("running jobs"),
	PID("a process instead of a job"),
	CONTAINER,
	FLAG(OPT_PARK, "park", 0, "leave its device memory on the GPU, detached from the job"),
	FLAG(OPT_CPU_RUNS, "cpu-runs", 0,
	     "let its processes run on until they call the GPU, rather than stop them"),
	WAIT("wait up to TIME for another operation on the job to end"),
	TIMEOUT("give up after TIME; the job keeps running (exit code 124)"),
	FORCE("continue even if doctor suspects that the job may be lost"),
	DRY_RUN("say whether it would work, how much it would move and about how long it would "
		"take"),
	SIMULATED,
	STATS,
	FORMAT,
	END,
};
static const struct option_spec resume_options[] = {
	ALL_OF("suspended jobs"),
	ALL_USERS("suspended jobs"),
	PID("a process instead of a job"),
	CONTAINER,
	KEEP_COPY,
	GPU_MAP,
	WAIT("wait up to TIME for room on the GPU and for another operation on the job"),
	TIMEOUT("give up after TIME; the job stays suspended (exit code 124)"),
	STATS,
	FORMAT,
	END,
};
static const struct option_spec checkpoint_options[] = {
	ALL_OF("running or suspended jobs"),
	ALL_USERS("running or suspended jobs"),
	PID("a process instead of a job"),
	CONTAINER,
	OUTPUT("with --container: the archive to write"),
	OCI("with --container: the directory to make, an OCI image"),
	WHEN_READY("with --container: wait until it says so in SNAPSHOT_CONTROL_DIR"),
	FLAG(OPT_SELF, "self", 0,
	     "the job that this command is part of, once the command has ended"),
	KEEP_COPY,
	FLAG(OPT_LEAVE_RUNNING, "leave-running", 'R', "keep the job running"),
	FLAG(OPT_TCP_CLOSE, "tcp-close", 0, "a restore finds its TCP connections closed"),
	FLAG(OPT_TCP_SKIP_IN_FLIGHT, "tcp-skip-in-flight", 0,
	     "leave out TCP connections not accepted yet"),
	FLAG(OPT_DROP_EXTERNAL, "drop-external", 0,
	     "unix connections to outside the job are found closed after a restore"),
	FLAG(OPT_WITH_FILES, "with-files", 0, "take in the content of files that it writes"),
	FLAG(OPT_WAKE, "wake", 0,
	     "of a suspended job: hold its TCP ports, and restore it when somebody connects"),
	FLAG(OPT_REHEARSE, "rehearse", 0,
	     "with --leave-running or --every: keep it only if it comes back"),
	NAME("id of the checkpoint (default: made from the job's name and the time)"),
	VALUE(OPT_EVERY, "every", 0, "TIME", COMPLETES_NOTHING,
	      "save it every TIME from now on and keep it running; 0 stops that"),
	KEEP_LAST("with --every: remove all but the newest N of the job"),
	KEEP_WITHIN("with --every: remove those of the job older than TIME"),
	CHOICE(OPT_COMPRESS, "compress", "HOW", "auto none lz4 zstd",
	       "compress its memory: auto (default: if that is faster), none, lz4 or zstd"),
	KEY_FILE("encrypt it with the key in FILE instead of the configured one"),
	DIR("keep it in DIR instead of the default place"),
	WAIT("wait up to TIME for another operation on the job to end"),
	TIMEOUT("give up after TIME; the job keeps running (exit code 124)"),
	FORCE("continue even if doctor suspects that the job may be lost"),
	DRY_RUN("say whether it would work, how large it would be and about how long it would "
		"take"),
	SIMULATED,
	STATS,
	FORMAT,
	END,
};
static const struct option_spec restore_options[] = {
	FLAG(OPT_ALL, "all", 0, "all jobs that were saved"),
	ALL_USERS("jobs that were saved"),
	MEANS_JOB,
	MEANS_CHECKPOINT,
	VALUE(OPT_CONTAINER, "container", 'C', "NAME", COMPLETES_NOTHING,
	      "restore an archive or OCI image of a container as this container"),
	VALUE(OPT_BUNDLE, "bundle", 0, "DIR", COMPLETES_DIR,
	      "with --container: its bundle, if it has moved (runc, crun)"),
	NAME("restore it as a separate job of this name, next to the original"),
	GPU_MAP,
	ATTACH,
	DIR("look for it in DIR instead of the default place"),
	FLAG(OPT_PULL, "pull", 0,
	     "with s3://...: pull it into the store first, and keep that copy"),
	WAIT("wait up to TIME for room on the GPU"),
	TIMEOUT("give up after TIME (exit code 124)"),
	FLAG(OPT_TCP_CLOSE, "tcp-close", 0, "restore established TCP connections as closed"),
	FLAG(OPT_KEEP_FILES, "keep-files", 0,
	     "refuse if files of the job have changed, rather than make them as they were"),
	FORCE("continue even if the host or its files differ in ways that may matter"),
	KEY_FILE("decrypt it with the key in FILE instead of the configured one"),
	ALLOW_UNAUTHENTICATED,
	STATS,
	FORMAT,
	END,
};
static const struct option_spec swap_options[] = {
	TIMEOUT("put both back after TIME (exit code 124)"),
	STATS,
	FORMAT,
	END,
};
static const struct option_spec ls_options[] = {
	ONE_JOB("only checkpoints of this job, by id or name"),
	CHOICE(OPT_SORT, "sort", "KEY", "age size disk job",
	       "order by age (default, oldest first), size, size on disk or job"),
	DIR("list DIR instead of the default place"),
	FORMAT,
	NO_HEADERS,
	QUIET,
	END,
};
static const struct option_spec inspect_options[] = {
	MEANS_JOB,
	MEANS_CHECKPOINT,
	FLAG(OPT_RESTORE, "restore", 0,
	     "show what a restore would open, bind, connect, become, map and run"),
	FLAG(OPT_NEEDS, "needs", 0,
	     "list the paths that a restore needs, and what is wrong with them here"),
	KEY_FILE("with --restore and --needs: decrypt it with the key in FILE instead of the "
		 "configured one"),
	DIR("look for it in DIR instead of the default place"),
	FORMAT,
	END,
};
static const struct option_spec verify_options[] = {
	FLAG(OPT_ALL, "all", 'a', "all checkpoints in the store"),
	AUTHENTIC,
	DIR("look for them in DIR instead of the default place"),
	FORMAT,
	END,
};
static const struct option_spec rehearse_options[] = {
	DIR("look for it in DIR instead of the default place"),
	TIMEOUT("give up after TIME (exit code 124)"),
	FLAG(OPT_TCP_CLOSE, "tcp-close", 0, "restore established TCP connections as closed"),
	FORCE("continue even if root's job has processes of other users"),
	KEY_FILE("decrypt it with the key in FILE instead of the configured one"),
	ALLOW_UNAUTHENTICATED,
	FORMAT,
	END,
};
static const struct option_spec diff_options[] = {
	AUTHENTIC,
	DIR("look for them in DIR instead of the default place"),
	FORMAT,
	END,
};
static const struct option_spec prune_options[] = {
	ONE_JOB("only checkpoints of this job, by id or name"),
	KEEP_LAST("keep the newest N of each job"),
	KEEP_WITHIN("keep those younger than TIME"),
	FLAG(OPT_LEFTOVERS, "leftovers", 0,
	     "remove what interrupted checkpoints, imports and pulls left, nothing else"),
	DRY_RUN("show what would be removed, without removing it"),
	YES,
	DIR("prune DIR instead of the default place"),
	FORMAT,
	END,
};
static const struct option_spec pin_options[] = {
	FLAG(OPT_REMOVE, "remove", 0, "let them be removed again; takes full ids"),
	DIR("look for it in DIR instead of the default place"),
	FORMAT,
	END,
};
static const struct option_spec export_options[] = {
	OUTPUT("write to FILE; - is standard output (default)"),
	AUTHENTIC,
	DIR("look for it in DIR instead of the default place"),
	END,
};
static const struct option_spec import_options[] = {
	AUTHENTIC,
	DIR("keep it in DIR instead of the default place"),
	FORMAT,
	END,
};
static const struct option_spec push_options[] = {
	AUTHENTIC,
	DIR("look for it in DIR instead of the default place"),
	FORMAT,
	END,
};
static const struct option_spec pull_options[] = {
	AUTHENTIC,
	DIR("keep it in DIR instead of the default place"),
	FORMAT,
	END,
};
static const struct option_spec doctor_options[] = {
	ONE_JOB("can this job be checkpointed?"),
	PID("can this process be checkpointed?"),
	FLAG(OPT_SLURM, "slurm", 0, "is Slurm set up for it?"),
	SIMULATED,
	FORMAT,
	END,
};
static const struct option_spec version_options[] = { FORMAT, END };

static const struct command commands[] = {
	{ "run", NULL, "start submit launch create", "[--] COMMAND [ARG...]",
	  "start a command as a job", 1, -1, true, COMPLETES_COMMAND, NULL, run_options, verb_run },
	{ "ps", NULL, "jobs list status queue", "", "list jobs", 0, 0, false, COMPLETES_NOTHING,
	  NULL, ps_options, verb_ps },
	{ "logs", NULL, "output tail", "JOB", "show the output of a job", 1, 1, false,
	  COMPLETES_JOB, NULL, logs_options, verb_logs },
	{ "events", NULL, "history", "[JOB...]", "show what happened to jobs", 0, -1, false,
	  COMPLETES_JOB, NULL, events_options, verb_events },
	{ "wait", NULL, NULL, "JOB", "wait for a job to end; exit as it did", 1, 1, false,
	  COMPLETES_LIVING, NULL, wait_options, verb_wait },
	{ "kill", NULL, "stop cancel terminate end", "[JOB...]", "end jobs", 0, -1, false,
	  COMPLETES_LIVING, NULL, kill_options, verb_kill },
	{ "rm", NULL, "delete remove forget", "JOB...|CHECKPOINT...",
	  "forget ended jobs, or remove checkpoints", 0, -1, false, COMPLETES_CHECKPOINT, NULL,
	  rm_options, verb_rm },
	{ "manage", NULL, "adopt", "", "manage a running process as a job", 0, 0, false,
	  COMPLETES_NOTHING, NULL, manage_options, verb_manage, NULL, true },
	{ "release", NULL, "unmanage detach", "JOB...",
	  "stop managing jobs; their processes keep running", 1, -1, false, COMPLETES_LIVING, NULL,
	  release_options, verb_release },
	{ "suspend", NULL, "pause sleep offload freeze", "[JOB...]",
	  "free the GPUs of jobs; they stay in memory", 0, -1, false, COMPLETES_RUNNING, NULL,
	  suspend_options, verb_suspend },
	{ "resume", NULL, "unpause continue cont wake thaw unfreeze", "[JOB...]",
	  "put suspended jobs back on their GPUs", 0, -1, false, COMPLETES_SUSPENDED, NULL,
	  resume_options, verb_resume },
	{ "swap", NULL, "switch exchange replace", "LEAVES COMES",
	  "suspend one job and resume another, or neither", 2, 2, false, COMPLETES_LIVING, NULL,
	  swap_options, verb_swap },
	{ "checkpoint", "dump", "save snapshot backup", "[JOB...]", "save jobs to disk", 0, -1,
	  false, COMPLETES_LIVING, NULL, checkpoint_options, verb_checkpoint,
	  .with_container = "brumate-container" },
	{ "restore", NULL, "load undump recover", "[CHECKPOINT|JOB|s3://...]...",
	  "bring jobs back from checkpoints", 0, -1, false, COMPLETES_CHECKPOINT, NULL,
	  restore_options, verb_restore, .with_container = "brumate-container" },
	{ "ls", NULL, "checkpoints images snapshots", "[s3://BUCKET/PREFIX]", "list checkpoints", 0,
	  1, false, COMPLETES_NOTHING, NULL, ls_options, verb_ls },
	{ "inspect", NULL, "show describe", "CHECKPOINT|JOB",
	  "show everything about a checkpoint or a job", 1, 1, false, COMPLETES_CHECKPOINT, NULL,
	  inspect_options, verb_inspect },
	{ "diff", NULL, "compare", "CHECKPOINT CHECKPOINT",
	  "show what differs between two checkpoints", 2, 2, false, COMPLETES_CHECKPOINT, NULL,
	  diff_options, verb_diff },
	{ "verify", NULL, NULL, "[CHECKPOINT...]", "check every byte of checkpoints", 0, -1, false,
	  COMPLETES_CHECKPOINT, NULL, verify_options, verb_verify },
	{ "rehearse", NULL, NULL, "CHECKPOINT",
	  "prove that a checkpoint comes back, apart from what runs", 1, 1, false,
	  COMPLETES_CHECKPOINT, NULL, rehearse_options, verb_rehearse },
	{ "export", NULL, NULL, "CHECKPOINT", "write a checkpoint as one stream", 1, 1, false,
	  COMPLETES_CHECKPOINT, NULL, export_options, verb_export },
	{ "import", NULL, NULL, "[FILE|-]", "read a checkpoint from a stream", 0, 1, false,
	  COMPLETES_FILE, NULL, import_options, verb_import },
	{ "push", NULL, "upload", "CHECKPOINT s3://BUCKET/PREFIX",
	  "copy a checkpoint to an object store", 2, 2, false, COMPLETES_CHECKPOINT, NULL,
	  push_options, verb_push },
	{ "pull", NULL, "download", "s3://BUCKET/PREFIX/CHECKPOINT",
	  "copy a checkpoint from an object store", 1, 1, false, COMPLETES_NOTHING, NULL,
	  pull_options, verb_pull },
	{ "prune", NULL, "clean cleanup", "", "remove old checkpoints by a rule", 0, 0, false,
	  COMPLETES_NOTHING, NULL, prune_options, verb_prune },
	{ "pin", NULL, NULL, "CHECKPOINT...", "protect checkpoints from removal", 1, -1, false,
	  COMPLETES_CHECKPOINT, NULL, pin_options, verb_pin },
	{ "doctor", NULL, "check diagnose info", "",
	  "check this machine, or whether a job can be checkpointed", 0, 0, false,
	  COMPLETES_NOTHING, NULL, doctor_options, verb_doctor },
	{ "version", NULL, NULL, "", "show the version", 0, 0, false, COMPLETES_NOTHING, NULL,
	  version_options, verb_version },
	{ "completion", NULL, NULL, "bash|zsh|fish", "print the completion script of a shell", 1, 1,
	  false, COMPLETES_WORDS, "bash zsh fish", no_options, verb_completion },
	{ "help", NULL, NULL, "[COMMAND]", "show help", 0, 1, false, COMPLETES_NOTHING, NULL,
	  no_options, verb_help },
};

const struct command *command_at(size_t i)
{
	enum { OWN = sizeof(commands) / sizeof(commands[0]) };
	/* Volatile: compilers take the address of an array for one that is never NULL, weak or not. */
	const struct command *const *volatile others = edge_commands;

	if (i < OWN)
		return &commands[i];
	return others ? others[i - OWN] : NULL;
}

const struct former_command former_commands[] = {
	{ "attach", "logs --follow" },
	{ "gc", "prune --leftovers" },
	{ "unpin", "pin --remove" },
	{ NULL, NULL },
};

const struct foreign_option foreign_options[] = {
	{ "", "--latest -l",
	  "`brumate ps -q` lists all, the latest last; the name of a job means one of them" },
	{ "", "--live",
	  "`brumate checkpoint --leave-running` copies a running job's memory as its GPUs have "
	  "room" },
	{ "", "--gpu", "--simulated, or BRUMATE_GPU=real in the environment" },
	{ "logs", "-n", "--tail N" },
	{ "run", "-a", "--attach" },
	{ "run", "-d --detach --background",
	  "a job runs in the background anyway; --attach shows its output" },
	{ "run", "-i -t --interactive --tty", "a job has no terminal; --attach shows its output" },
	{ "run", "--rm", "`brumate rm JOB` removes its record once it has ended" },
	{ "run", "-e --env", "a job has this command's environment: NAME=VALUE brumate run ..." },
	{ "run", "--gpus --device",
	  "the command's environment says which GPUs it sees, as without brumate" },
	{ "ps", "-w --watch", "`brumate top` keeps the list up to date" },
	{ "ps", "", "`brumate inspect JOB` shows one job; --filter name=JOB lists it" },
	{ "rm", "-f --force", "end a running job first: `brumate kill JOB`" },
	{ "kill", "-9 -KILL", "`brumate kill --signal KILL JOB`" },
	{ "manage", "", "--pid PID names the process" },
	{ "suspend", "--dir -D --images-dir", "`brumate checkpoint` saves a job to disk" },
	{ "checkpoint", "-e --export",
	  "`brumate export CHECKPOINT` writes a checkpoint as a file" },
	{ "checkpoint", "-D --images-dir --output", "--dir DIR says where it goes" },
	{ "checkpoint", "--tree", "--pid PID takes a process with its descendants" },
	{ "restore", "-i --import", "`brumate import FILE` first, then restore what it prints" },
	{ "restore", "-D --images-dir", "--dir DIR says where it is" },
	{ "metrics", "--port --address -p", "--listen ADDRESS:PORT answers HTTP requests there" },
	{ "ls", "-l -a --all", "ls lists all checkpoints with all there is to say" },
	{ NULL, NULL, NULL },
};

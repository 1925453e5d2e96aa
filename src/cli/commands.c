// SPDX-License-Identifier: MIT
/* The command table itself; see command.h. */
#include "cli/command.h"

#include <string.h>

#define FORMAT                                                                                 \
	{                                                                                      \
		OPT_FORMAT, "format", 0, "FORMAT", "table (default) or json", COMPLETES_WORDS, \
			"table json"                                                           \
	}
#define NO_HEADERS                                                                      \
	{                                                                               \
		.id = OPT_NO_HEADERS, .name = "no-headers", .help = "omit the headings" \
	}
#define QUIET                                                                             \
	{                                                                                 \
		.id = OPT_QUIET, .name = "quiet", .letter = 'q', .help = "print ids only" \
	}
#define PID(what)                                                     \
	{                                                             \
		OPT_PID, "pid", 'p', "PID", what, COMPLETES_PID, NULL \
	}
#define CONTAINER                                                                            \
	{                                                                                    \
		.id = OPT_CONTAINER, .name = "container", .letter = 'C', .value = "ID|NAME", \
		.help = "a container of runc, crun, podman, containerd or docker"            \
	}
#define WHEN_READY(what)                                                 \
	{                                                                \
		.id = OPT_WHEN_READY, .name = "when-ready", .help = what \
	}
#define OCI(what)                                                   \
	{                                                           \
		OPT_OCI, "oci", 0, "DIR", what, COMPLETES_DIR, NULL \
	}
#define GPU                                                                                   \
	{                                                                                     \
		OPT_GPU, "gpu", 0, "KIND",                                                    \
			"real, or simulated for the simulated driver (default: BRUMATE_GPU)", \
			COMPLETES_WORDS, "real simulated"                                     \
	}
#define TIMEOUT(what)                                                                              \
	{                                                                                          \
		.id = OPT_TIMEOUT, .name = "timeout", .letter = 't', .value = "TIME", .help = what \
	}
#define FORCE(what)                                            \
	{                                                      \
		.id = OPT_FORCE, .name = "force", .help = what \
	}
#define DIR(what)                                                   \
	{                                                           \
		OPT_DIR, "dir", 0, "DIR", what, COMPLETES_DIR, NULL \
	}
#define GPU_MAP                                                                         \
	{                                                                               \
		OPT_GPU_MAP, "gpu-map", 0, "OLD=NEW,...",                               \
			"move to other GPUs; UUIDs, or numbers as in `brumate doctor`", \
			COMPLETES_GPU_MAP, NULL                                         \
	}
#define NAME(what)                                                                           \
	{                                                                                    \
		.id = OPT_NAME, .name = "name", .letter = 'n', .value = "NAME", .help = what \
	}
#define MEANS_JOB                                                                   \
	{                                                                           \
		.id = OPT_JOB, .name = "job", .letter = 'j',                        \
		.help = "take the name as a job's, even if a checkpoint has it too" \
	}
#define MEANS_CHECKPOINT                                                            \
	{                                                                           \
		.id = OPT_CHECKPOINT, .name = "checkpoint", .letter = 'c',          \
		.help = "take the name as a checkpoint's, even if a job has it too" \
	}
#define KEEP_LAST(what)                                                              \
	{                                                                            \
		.id = OPT_KEEP_LAST, .name = "keep-last", .value = "N", .help = what \
	}
#define KEEP_WITHIN(what)                                                                   \
	{                                                                                   \
		.id = OPT_KEEP_WITHIN, .name = "keep-within", .value = "TIME", .help = what \
	}
#define YES                                                                                     \
	{                                                                                       \
		.id = OPT_YES, .name = "yes", .letter = 'y', .help = "do not ask on a terminal" \
	}
#define ALL_OF(what)                                                             \
	{                                                                        \
		.id = OPT_ALL, .name = "all", .letter = 'a', .help = "all " what \
	}
#define LATEST                                                     \
	{                                                          \
		.id = OPT_LATEST, .name = "latest", .letter = 'l', \
		.help = "the latest of these only"                 \
	}
#define END                  \
	{                    \
		.name = NULL \
	}

const struct option_spec help_option = {
	.id = OPT_HELP, .name = "help", .letter = 'h', .help = "show this help"
};

static const struct option_spec run_options[] = {
	NAME("name of the job (default: made from the command)"),
	{ OPT_LOG, "log", 'l', "FILE", "append the job's output to FILE", COMPLETES_FILE, NULL },
	{ .id = OPT_ATTACH,
	  .name = "attach",
	  .letter = 'a',
	  .help = "show the output and pass on signals and the exit status" },
	{ OPT_DATA_PATH, "data-path", 0, "PATH",
	  "what moves its device memory: auto (default), broker or driver", COMPLETES_WORDS,
	  "auto broker driver" },
	{ OPT_MANAGED, "managed", 0, "WHERE",
	  "managed memory: driver (default: fast, never saved) or host", COMPLETES_WORDS,
	  "driver host" },
	{ OPT_LABEL, "label", 0, "KEY=VALUE", "a label for the job; may be repeated",
	  COMPLETES_LABEL, NULL },
	GPU,
	END,
};
static const struct option_spec ps_options[] = {
	{ OPT_FILTER, "filter", 'f', "KEY=VALUE,...",
	  "only jobs with this state, name, id, gpu or label", COMPLETES_FILTER, NULL },
	{ OPT_SORT, "sort", 0, "KEY", "order by age (default, oldest first), name or state",
	  COMPLETES_WORDS, "age name state" },
	{ .id = OPT_WATCH,
	  .name = "watch",
	  .letter = 'w',
	  .help = "keep the list up to date until q is pressed" },
	FORMAT,
	NO_HEADERS,
	QUIET,
	END,
};
#define SINCE(what)                                                             \
	{                                                                       \
		.id = OPT_SINCE, .name = "since", .value = "TIME", .help = what \
	}
static const struct option_spec logs_options[] = {
	{ .id = OPT_FOLLOW,
	  .name = "follow",
	  .letter = 'f',
	  .help = "keep showing new output until the job ends" },
	{ .id = OPT_TAIL,
	  .name = "tail",
	  .letter = 'n',
	  .value = "N",
	  .help = "start with the last N lines" },
	SINCE("only output since TIME: 2h for two hours ago, or a date and time"),
	{ .id = OPT_TIMESTAMPS, .name = "timestamps", .help = "show when each line was written" },
	END,
};
static const struct option_spec events_options[] = {
	{ .id = OPT_FOLLOW,
	  .name = "follow",
	  .letter = 'f',
	  .help = "keep showing new events until Ctrl-C" },
	SINCE("only events since TIME: 2h for two hours ago, or a date and time"),
	FORMAT,
	END,
};
static const struct option_spec no_options[] = { END };
static const struct option_spec wait_options[] = {
	TIMEOUT("give up after TIME (exit code 124)"),
	END,
};
static const struct option_spec kill_options[] = {
	ALL_OF("jobs that are alive"),
	LATEST,
	{ OPT_SIGNAL, "signal", 's', "SIGNAL", "send only this signal (default: TERM, then KILL)",
	  COMPLETES_SIGNAL, NULL },
	{ .id = OPT_GRACE,
	  .name = "grace",
	  .value = "TIME",
	  .help = "time between TERM and KILL (default: 10s)" },
	END,
};
static const struct option_spec rm_options[] = {
	MEANS_JOB, MEANS_CHECKPOINT,
	YES,	   DIR("remove checkpoints in DIR instead of the default place"),
	END,
};
static const struct option_spec manage_options[] = {
	PID("the process to take in, with its descendants"),
	NAME("name of the job (default: made from the command)"),
	GPU,
	END,
};
#define LIVE                                                                             \
	{                                                                                \
		.id = OPT_LIVE, .name = "live",                                          \
		.help = "copy while the job runs, and stop it only for what has changed" \
	}
#define STATS                                                                \
	{                                                                    \
		.id = OPT_STATS, .name = "stats",                            \
		.help = "show how long each phase took, and what was copied" \
	}
static const struct option_spec suspend_options[] = {
	ALL_OF("running jobs"),
	LATEST,
	PID("a process instead of a job"),
	CONTAINER,
	{ .id = OPT_PARK,
	  .name = "park",
	  .help = "leave its device memory on the GPU, detached from the job" },
	LIVE,
	TIMEOUT("give up after TIME; the job keeps running (exit code 124)"),
	FORCE("continue even if doctor suspects that the job may be lost"),
	GPU,
	STATS,
	FORMAT,
	END,
};
#define KEEP_COPY                                                                        \
	{                                                                                \
		.id = OPT_KEEP_COPY, .name = "keep-copy",                                \
		.help = "keep the copy in host memory, so that the next one is of what " \
			"changed",                                                       \
	}
static const struct option_spec resume_options[] = {
	ALL_OF("suspended jobs"),
	LATEST,
	PID("a process instead of a job"),
	CONTAINER,
	KEEP_COPY,
	GPU_MAP,
	TIMEOUT("give up after TIME; the job stays suspended (exit code 124)"),
	STATS,
	FORMAT,
	END,
};
#define KEY_FILE(what)                                                           \
	{                                                                        \
		OPT_KEY_FILE, "key-file", 0, "FILE", what, COMPLETES_FILE, NULL, \
	}
#define ALLOW_UNAUTHENTICATED                                                      \
	{                                                                          \
		.id = OPT_ALLOW_UNAUTHENTICATED, .name = "allow-unauthenticated",  \
		.help = "accept a checkpoint of unknown origin although a key is " \
			"configured"                                               \
	}
#define AUTHENTIC                                                                \
	KEY_FILE("check it with the key in FILE instead of the configured one"), \
		ALLOW_UNAUTHENTICATED
static const struct option_spec checkpoint_options[] = {
	ALL_OF("running or suspended jobs"),
	LATEST,
	PID("a process instead of a job"),
	CONTAINER,
	{ OPT_OUTPUT, "output", 'o', "FILE", "with --container: the archive to write",
	  COMPLETES_FILE, NULL },
	OCI("with --container: the directory to make, an OCI image"),
	WHEN_READY("with --container: wait until it says so in SNAPSHOT_CONTROL_DIR"),
	{ .id = OPT_SELF,
	  .name = "self",
	  .help = "the job that this command is part of, once the command has ended" },
	KEEP_COPY,
	LIVE,
	{ .id = OPT_LEAVE_RUNNING,
	  .name = "leave-running",
	  .letter = 'R',
	  .help = "keep the job running" },
	{ .id = OPT_TCP_SKIP_IN_FLIGHT,
	  .name = "tcp-skip-in-flight",
	  .help = "leave out TCP connections not accepted yet" },
	NAME("id of the checkpoint (default: made from the job's name and the time)"),
	{ .id = OPT_EVERY,
	  .name = "every",
	  .value = "TIME",
	  .help = "save it every TIME from now on and keep it running; 0 stops that" },
	KEEP_LAST("with --every: remove all but the newest N of the job"),
	KEEP_WITHIN("with --every: remove those of the job older than TIME"),
	{ OPT_COMPRESS, "compress", 0, "HOW",
	  "compress its memory: auto (default: if that is faster), none, lz4 or zstd",
	  COMPLETES_WORDS, "auto none lz4 zstd" },
	KEY_FILE("encrypt it with the key in FILE instead of the configured one"),
	DIR("keep it in DIR instead of the default place"),
	TIMEOUT("give up after TIME; the job keeps running (exit code 124)"),
	FORCE("continue even if doctor suspects that the job may be lost"),
	GPU,
	STATS,
	FORMAT,
	END,
};
static const struct option_spec restore_options[] = {
	MEANS_JOB,
	MEANS_CHECKPOINT,
	{ .id = OPT_CONTAINER,
	  .name = "container",
	  .letter = 'C',
	  .value = "NAME",
	  .help = "restore an archive or OCI image of a container as this container" },
	{ OPT_BUNDLE, "bundle", 0, "DIR",
	  "with --container: its bundle, if it has moved (runc, crun)", COMPLETES_DIR, NULL },
	NAME("restore it as a separate job of this name, next to the original"),
	GPU_MAP,
	{ .id = OPT_ATTACH,
	  .name = "attach",
	  .letter = 'a',
	  .help = "show the output and pass on signals and the exit status" },
	DIR("look for it in DIR instead of the default place"),
	{ .id = OPT_PULL,
	  .name = "pull",
	  .help = "with s3://...: pull it into the store first, and keep that copy" },
	TIMEOUT("give up after TIME (exit code 124)"),
	{ .id = OPT_TCP_CLOSE,
	  .name = "tcp-close",
	  .help = "restore established TCP connections as closed" },
	FORCE("continue even if the host differs in ways that may matter"),
	KEY_FILE("decrypt it with the key in FILE instead of the configured one"),
	ALLOW_UNAUTHENTICATED,
	STATS,
	FORMAT,
	END,
};
static const struct option_spec ls_options[] = {
	DIR("list DIR instead of the default place"), FORMAT, NO_HEADERS, QUIET, END,
};
static const struct option_spec inspect_options[] = {
	MEANS_JOB,
	MEANS_CHECKPOINT,
	{ .id = OPT_RESTORE,
	  .name = "restore",
	  .help = "show what a restore would open, bind, connect, become, map and run" },
	KEY_FILE("with --restore: decrypt it with the key in FILE instead of the configured one"),
	DIR("look for it in DIR instead of the default place"),
	FORMAT,
	END,
};
static const struct option_spec verify_options[] = {
	{ .id = OPT_ALL, .name = "all", .letter = 'a', .help = "all checkpoints in the store" },
	AUTHENTIC,
	DIR("look for them in DIR instead of the default place"),
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
	{ OPT_JOB, "job", 'j', "JOB", "only checkpoints of this job, by id or name", COMPLETES_JOB,
	  NULL },
	KEEP_LAST("keep the newest N of each job"),
	KEEP_WITHIN("keep those younger than TIME"),
	{ .id = OPT_DRY_RUN,
	  .name = "dry-run",
	  .help = "show what would be removed, without removing it" },
	YES,
	DIR("prune DIR instead of the default place"),
	FORMAT,
	END,
};
static const struct option_spec pin_options[] = {
	DIR("look for it in DIR instead of the default place"),
	END,
};
static const struct option_spec gc_options[] = {
	DIR("sweep DIR instead of the default place"),
	END,
};
static const struct option_spec export_options[] = {
	{ OPT_OUTPUT, "output", 'o', "FILE", "write to FILE; - is standard output (default)",
	  COMPLETES_FILE, NULL },
	AUTHENTIC,
	DIR("look for it in DIR instead of the default place"),
	END,
};
static const struct option_spec import_options[] = {
	AUTHENTIC,
	DIR("keep it in DIR instead of the default place"),
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
	{ OPT_JOB, "job", 'j', "JOB", "can this job be checkpointed?", COMPLETES_JOB, NULL },
	PID("can this process be checkpointed?"),
	GPU,
	FORMAT,
	END,
};
static const struct option_spec bench_options[] = {
	{ .id = OPT_SIZE,
	  .name = "size",
	  .letter = 's',
	  .value = "SIZE",
	  .help = "device memory of the job (default: 1G)" },
	{ .id = OPT_PIECES,
	  .name = "pieces",
	  .value = "MIN[-MAX]",
	  .help = "sizes of its buffers, doubling from MIN to MAX (default: 64M)" },
	{ .id = OPT_ZERO, .name = "zero", .value = "PERCENT", .help = "percentage that is zeros" },
	{ .id = OPT_CHANGE,
	  .name = "change",
	  .value = "PERCENT",
	  .help = "percentage that the job changes between rounds" },
	{ .id = OPT_ROUNDS,
	  .name = "rounds",
	  .letter = 'r',
	  .value = "N",
	  .help = "how often to repeat each operation (default: 2; the pool is cold in the "
		  "first)" },
	{ OPT_DATA_PATH, "data-path", 0, "PATH", "broker, driver or both (default)",
	  COMPLETES_WORDS, "broker driver both" },
	DIR("checkpoint into DIR instead of the default place"),
	{ .id = OPT_NO_CHECKPOINT,
	  .name = "no-checkpoint",
	  .help = "only suspend and resume; write nothing to disk" },
	KEEP_COPY,
	LIVE,
	{ OPT_TIMELINE, "timeline", 0, "FILE", "draw the phases as SVG", COMPLETES_FILE, NULL },
	{ OPT_TRACE, "trace", 0, "FILE", "write the phases for Perfetto", COMPLETES_FILE, NULL },
	GPU,
	FORMAT,
	END,
};
static const struct option_spec metrics_options[] = {
	{ OPT_TEXTFILE, "textfile", 0, "FILE", "write to FILE, for node_exporter", COMPLETES_FILE,
	  NULL },
	{ .id = OPT_LISTEN,
	  .name = "listen",
	  .help = "answer an HTTP request on standard input and output" },
	{ .id = OPT_NAMES,
	  .name = "names",
	  .help = "include the names of jobs, even if others can read them" },
	END,
};
static const struct option_spec k8s_options[] = {
	{ .id = OPT_NAMESPACE,
	  .name = "namespace",
	  .letter = 'n',
	  .value = "NAMESPACE",
	  .help = "of the pod (default: default)" },
	{ .id = OPT_CONTAINER,
	  .name = "container",
	  .letter = 'c',
	  .value = "NAME",
	  .help = "this container alone, not all of the pod" },
	TIMEOUT("give up on a container after TIME (default for checkpoint: 10m)"),
	OCI("checkpoint: make this directory, an OCI image of the archive, which takes -c"),
	WHEN_READY("checkpoint: wait until the container says so in SNAPSHOT_CONTROL_DIR"),
	FORCE("suspend: continue even if doctor suspects that a container may be lost"),
	{ .id = OPT_SERVER,
	  .name = "server",
	  .value = "URL",
	  .help = "checkpoint, watch: the kubelet, https://HOST[:PORT] (default: of this node)" },
	{ .id = OPT_SERVER_NAME,
	  .name = "server-name",
	  .value = "HOST",
	  .help = "checkpoint: the name that its certificate must have" },
	{ OPT_CA_FILE, "ca-file", 0, "FILE", "checkpoint: the certificates to trust",
	  COMPLETES_FILE, NULL },
	{ OPT_TOKEN_FILE, "token-file", 0, "FILE",
	  "checkpoint: a file with the token of an account", COMPLETES_FILE, NULL },
	{ OPT_CERT, "cert", 0, "FILE", "checkpoint: a client certificate", COMPLETES_FILE, NULL },
	{ OPT_KEY, "key", 0, "FILE", "checkpoint: its key (default: in the same file)",
	  COMPLETES_FILE, NULL },
	{ .id = OPT_INTERVAL,
	  .name = "interval",
	  .value = "TIME",
	  .help = "watch: how often the kubelet is asked for its pods (default: 5s)" },
	GPU,
	STATS,
	FORMAT,
	END,
};
static const struct option_spec version_options[] = { FORMAT, END };

const struct command commands[] = {
	{ "run", NULL, "[--] COMMAND [ARG...]", "start a command as a job", 1, -1, true,
	  COMPLETES_COMMAND, NULL, run_options, verb_run },
	{ "ps", NULL, "", "list jobs", 0, 0, false, COMPLETES_NOTHING, NULL, ps_options, verb_ps },
	{ "top", NULL, "", "watch jobs, GPUs and operations", 0, 0, false, COMPLETES_NOTHING, NULL,
	  no_options, verb_top },
	{ "logs", NULL, "JOB", "show the output of a job", 1, 1, false, COMPLETES_JOB, NULL,
	  logs_options, verb_logs },
	{ "attach", NULL, "JOB", "follow a job's output; exit as it does", 1, 1, false,
	  COMPLETES_JOB, NULL, no_options, verb_attach },
	{ "events", NULL, "[JOB...]", "show what happened to jobs", 0, -1, false, COMPLETES_JOB,
	  NULL, events_options, verb_events },
	{ "wait", NULL, "JOB", "wait for a job to end; exit as it did", 1, 1, false, COMPLETES_JOB,
	  NULL, wait_options, verb_wait },
	{ "kill", NULL, "[JOB...]", "end jobs", 0, -1, false, COMPLETES_JOB, NULL, kill_options,
	  verb_kill },
	{ "rm", NULL, "JOB...|CHECKPOINT...", "forget ended jobs, or remove checkpoints", 1, -1,
	  false, COMPLETES_CHECKPOINT, NULL, rm_options, verb_rm },
	{ "manage", NULL, "", "manage a running process as a job", 0, 0, false, COMPLETES_NOTHING,
	  NULL, manage_options, verb_manage },
	{ "release", NULL, "JOB...", "stop managing jobs; their processes keep running", 1, -1,
	  false, COMPLETES_JOB, NULL, no_options, verb_release },
	{ "suspend", "freeze", "[JOB...]", "free the GPUs of jobs; they stay in memory", 0, -1,
	  false, COMPLETES_JOB, NULL, suspend_options, verb_suspend },
	{ "resume", "thaw unfreeze", "[JOB...]", "put suspended jobs back on their GPUs", 0, -1,
	  false, COMPLETES_JOB, NULL, resume_options, verb_resume },
	{ "checkpoint", "dump", "[JOB...]", "save jobs to disk", 0, -1, false, COMPLETES_JOB, NULL,
	  checkpoint_options, verb_checkpoint },
	{ "restore", NULL, "CHECKPOINT|JOB|s3://...", "bring a job back from a checkpoint", 1, 1,
	  false, COMPLETES_CHECKPOINT, NULL, restore_options, verb_restore },
	{ "ls", NULL, "[s3://BUCKET/PREFIX]", "list checkpoints", 0, 1, false, COMPLETES_NOTHING,
	  NULL, ls_options, verb_ls },
	{ "inspect", NULL, "CHECKPOINT|JOB", "show everything about a checkpoint or a job", 1, 1,
	  false, COMPLETES_CHECKPOINT, NULL, inspect_options, verb_inspect },
	{ "diff", NULL, "CHECKPOINT CHECKPOINT", "show what differs between two checkpoints", 2, 2,
	  false, COMPLETES_CHECKPOINT, NULL, diff_options, verb_diff },
	{ "verify", NULL, "[CHECKPOINT...]", "check every byte of checkpoints", 0, -1, false,
	  COMPLETES_CHECKPOINT, NULL, verify_options, verb_verify },
	{ "export", NULL, "CHECKPOINT", "write a checkpoint as one stream", 1, 1, false,
	  COMPLETES_CHECKPOINT, NULL, export_options, verb_export },
	{ "import", NULL, "[FILE|-]", "read a checkpoint from a stream", 0, 1, false,
	  COMPLETES_FILE, NULL, import_options, verb_import },
	{ "push", NULL, "CHECKPOINT s3://BUCKET/PREFIX", "copy a checkpoint to an object store", 2,
	  2, false, COMPLETES_CHECKPOINT, NULL, push_options, verb_push },
	{ "pull", NULL, "s3://BUCKET/PREFIX/CHECKPOINT", "copy a checkpoint from an object store",
	  1, 1, false, COMPLETES_NOTHING, NULL, pull_options, verb_pull },
	{ "prune", NULL, "", "remove old checkpoints by a rule", 0, 0, false, COMPLETES_NOTHING,
	  NULL, prune_options, verb_prune },
	{ "pin", NULL, "CHECKPOINT...", "protect checkpoints from removal", 1, -1, false,
	  COMPLETES_CHECKPOINT, NULL, pin_options, verb_pin },
	{ "unpin", NULL, "CHECKPOINT...", "undo pin", 1, -1, false, COMPLETES_CHECKPOINT, NULL,
	  pin_options, verb_unpin },
	{ "gc", NULL, "", "remove leftovers of interrupted checkpoints", 0, 0, false,
	  COMPLETES_NOTHING, NULL, gc_options, verb_gc },
	{ "doctor", NULL, "", "check this machine, or whether a job can be checkpointed", 0, 0,
	  false, COMPLETES_NOTHING, NULL, doctor_options, verb_doctor },
	{ "bench", NULL, "", "measure this machine, and the operations on a synthetic job", 0, 0,
	  false, COMPLETES_NOTHING, NULL, bench_options, verb_bench },
	{ "metrics", NULL, "", "show jobs, operations and checkpoints for Prometheus", 0, 0, false,
	  COMPLETES_NOTHING, NULL, metrics_options, verb_metrics },
	{ "cdi", NULL, "", "print the CDI device that gives containers brumate's library", 0, 0,
	  false, COMPLETES_NOTHING, NULL, no_options, verb_cdi },
	{ "k8s", NULL, "checkpoint|suspend|resume|restored POD|watch",
	  "checkpoint the containers of a pod on this node, or free its GPUs", 1, 2, false,
	  COMPLETES_WORDS, "checkpoint suspend resume restored watch", k8s_options, verb_k8s },
	{ "version", NULL, "", "show the version", 0, 0, false, COMPLETES_NOTHING, NULL,
	  version_options, verb_version },
	{ "completion", NULL, "bash|zsh|fish", "print the completion script of a shell", 1, 1,
	  false, COMPLETES_WORDS, "bash zsh fish", no_options, verb_completion },
	{ "help", NULL, "[COMMAND]", "show help", 0, 1, false, COMPLETES_NOTHING, NULL, no_options,
	  verb_help },
};
const size_t n_commands = sizeof(commands) / sizeof(commands[0]);

const struct foreign_word foreign_words[] = {
	{ "ps", "jobs list status queue" },
	{ "top", "stats monitor watch" },
	{ "run", "start submit launch create" },
	{ "suspend", "pause sleep offload" },
	{ "resume", "unpause continue cont wake" },
	{ "checkpoint", "save snapshot backup" },
	{ "restore", "load undump recover" },
	{ "ls", "checkpoints images snapshots" },
	{ "inspect", "show info describe" },
	{ "kill", "stop cancel terminate end" },
	{ "rm", "delete remove forget" },
	{ "prune", "clean cleanup" },
	{ "push", "upload" },
	{ "pull", "download" },
	{ "diff", "compare" },
	{ "events", "history" },
	{ "logs", "output tail" },
	{ "manage", "adopt" },
	{ "release", "unmanage detach" },
	{ "doctor", "check diagnose" },
	{ NULL, NULL },
};

const struct foreign_option foreign_options[] = {
	{ "run", "-d --detach --background",
	  "a job runs in the background anyway; --attach shows its output" },
	{ "run", "-i -t --interactive --tty", "a job has no terminal; --attach shows its output" },
	{ "run", "--rm", "`brumate rm JOB` removes its record once it has ended" },
	{ "run", "-e --env", "a job has this command's environment: NAME=VALUE brumate run ..." },
	{ "run", "--gpus --device",
	  "the command's environment says which GPUs it sees, as without brumate" },
	{ "ps", "-a --all",
	  "ps lists all jobs, ended ones too; --filter state=running lists fewer" },
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
	{ "metrics", "--port --address -p", "--listen answers on standard input and output: a socket of systemd gives it the port" },
	{ "ls", "-l -a --all", "ls lists all checkpoints with all there is to say" },
	{ NULL, NULL, NULL },
};

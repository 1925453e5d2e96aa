// SPDX-License-Identifier: MIT
/* Rows of options (struct option_spec), for the command table and the rows of edges. */
#pragma once

#include "cli/command.h"

/* A flag; an option with a value; and one whose value is a word of a few. @letter: 0 where it has none. */
#define FLAG(id, name, letter, help)                                  \
	{                                                             \
		id, name, letter, NULL, help, COMPLETES_NOTHING, NULL \
	}
#define VALUE(id, name, letter, value, completes, help)        \
	{                                                      \
		id, name, letter, value, help, completes, NULL \
	}
#define CHOICE(id, name, value, words, help)                     \
	{                                                        \
		id, name, 0, value, help, COMPLETES_WORDS, words \
	}
#define END                  \
	{                    \
		.name = NULL \
	}

/* Options of several commands. */
#define FORMAT	   CHOICE(OPT_FORMAT, "format", "FORMAT", "table json", "table (default) or json")
#define NO_HEADERS FLAG(OPT_NO_HEADERS, "no-headers", 0, "omit the headings")
#define QUIET	   FLAG(OPT_QUIET, "quiet", 'q', "print ids only")
#define PID(what)  VALUE(OPT_PID, "pid", 'p', "PID", COMPLETES_PID, what)
#define CONTAINER                                                            \
	VALUE(OPT_CONTAINER, "container", 'C', "ID|NAME", COMPLETES_NOTHING, \
	      "a container of runc, crun, podman, containerd or docker")
#define WHEN_READY(what) FLAG(OPT_WHEN_READY, "when-ready", 0, what)
#define OCI(what)	 VALUE(OPT_OCI, "oci", 0, "DIR", COMPLETES_DIR, what)
#define SIMULATED \
	FLAG(OPT_SIMULATED, "simulated", 0, "use the simulated driver, whatever BRUMATE_GPU says")
#define TIMEOUT(what) VALUE(OPT_TIMEOUT, "timeout", 't', "TIME", COMPLETES_NOTHING, what)
#define WAIT(what)    VALUE(OPT_WAIT, "wait", 0, "TIME", COMPLETES_NOTHING, what)
#define FORCE(what)   FLAG(OPT_FORCE, "force", 0, what)
#define DRY_RUN(what) FLAG(OPT_DRY_RUN, "dry-run", 0, what)
#define DIR(what)     VALUE(OPT_DIR, "dir", 0, "DIR", COMPLETES_DIR, what)
#define GPU_MAP                                                            \
	VALUE(OPT_GPU_MAP, "gpu-map", 0, "OLD=NEW,...", COMPLETES_GPU_MAP, \
	      "move to other GPUs; UUIDs, or numbers as in `brumate doctor`")
#define NAME(what) VALUE(OPT_NAME, "name", 'n', "NAME", COMPLETES_NOTHING, what)
#define MEANS_JOB \
	FLAG(OPT_JOB, "job", 'j', "take the name as a job's, even if a checkpoint has it too")
#define MEANS_CHECKPOINT                        \
	FLAG(OPT_CHECKPOINT, "checkpoint", 'c', \
	     "take the name as a checkpoint's, even if a job has it too")
#define KEEP_LAST(what)	  VALUE(OPT_KEEP_LAST, "keep-last", 0, "N", COMPLETES_NOTHING, what)
#define KEEP_WITHIN(what) VALUE(OPT_KEEP_WITHIN, "keep-within", 0, "TIME", COMPLETES_NOTHING, what)
#define YES		  FLAG(OPT_YES, "yes", 'y', "do not ask on a terminal")
#define ALL_OF(what)	  FLAG(OPT_ALL, "all", 'a', "all " what)
#define ALL_USERS(what)	  FLAG(OPT_ALL_USERS, "all-users", 0, "all " what " of all users (root)")
#define ATTACH \
	FLAG(OPT_ATTACH, "attach", 0, "show the output and pass on signals and the exit status")
#define FOLLOW(what)  FLAG(OPT_FOLLOW, "follow", 'f', what)
#define SINCE(what)   VALUE(OPT_SINCE, "since", 0, "TIME", COMPLETES_NOTHING, what)
#define OUTPUT(what)  VALUE(OPT_OUTPUT, "output", 'o', "FILE", COMPLETES_FILE, what)
#define ONE_JOB(what) VALUE(OPT_JOB, "job", 'j', "JOB", COMPLETES_JOB, what)
#define STATS FLAG(OPT_STATS, "stats", 0, "show how long each phase took, and what was copied")
#define KEEP_COPY                           \
	FLAG(OPT_KEEP_COPY, "keep-copy", 0, \
	     "keep the copy in host memory, so that the next one is of what changed")
#define KEY_FILE(what) VALUE(OPT_KEY_FILE, "key-file", 0, "FILE", COMPLETES_FILE, what)
#define ALLOW_UNAUTHENTICATED                                       \
	FLAG(OPT_ALLOW_UNAUTHENTICATED, "allow-unauthenticated", 0, \
	     "accept a checkpoint of unknown origin although a key is configured")
#define AUTHENTIC                                                                \
	KEY_FILE("check it with the key in FILE instead of the configured one"), \
		ALLOW_UNAUTHENTICATED

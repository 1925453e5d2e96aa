// SPDX-License-Identifier: MIT
/* The program that does the work of the plugin in a container engine's CRIU (src/container/main.c). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { HELPER_ANSWER_BYTES = 4096 };

struct helper {
	int fd; /* -1: there is none */
};

#define HELPER_NONE ((struct helper){ .fd = -1 })

/** Starts it, in a session of its own and nobody's child: it outlives CRIU. @table_fd: of a hidden_table, or -1. What it logs goes
 * to "brumate.log" in the working directory, where CRIU logs too. -errno. */
int helper_start(struct helper *h, int images_dir_fd, int table_fd);

/** Asks for @word about @pid. */
void helper_request(const struct helper *h, const char *word, pid_t pid);

/** Whether its answer, or its end, has come within @timeout_ms. */
bool helper_has_answered(const struct helper *h, int timeout_ms);

/** Waits for the answer, however long that takes: its end is an answer, too. Returns 0 and what comes with it, or -EIO and the
 * reason; -EPIPE and the reason where the helper has died. */
int helper_answer(const struct helper *h, char answer[static HELPER_ANSWER_BYTES]);

/** Both, one after the other. */
int helper_ask(const struct helper *h, const char *word, pid_t pid,
	       char answer[static HELPER_ANSWER_BYTES]);

/** Whether it has died. */
bool helper_is_gone(const struct helper *h);

/** Hangs up, whereupon it does what is left to be done and ends. */
void helper_hang_up(struct helper *h);

// SPDX-License-Identifier: MIT
/* The program that does the work of the plugin in a container engine's CRIU (src/edges/containers/main.c). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { HELPER_ANSWER_BYTES = 4096 };

struct helper {
	int fd; /* -1: there is none */
};

#define HELPER_NONE ((struct helper){ .fd = -1 })

/** Starts it in a session of its own, not as a child of CRIU: it outlives CRIU. @table_fd: of a hidden_table, or -1.
 * It logs to "brumate.log" in the working directory, where CRIU's log is, too. -errno. */
int helper_start(struct helper *h, int images_dir_fd, int table_fd);

/** Asks for @word about @pid. */
void helper_request(const struct helper *h, const char *word, pid_t pid);

/** Whether its answer, or its end, has arrived within @timeout_ms. */
bool helper_has_answered(const struct helper *h, int timeout_ms);

/** Waits for the answer without a limit; the end of the helper counts as one. Returns 0 and the text of the answer,
 * or -EIO and the reason; -EPIPE and the reason if the helper has died. */
int helper_answer(const struct helper *h, char answer[static HELPER_ANSWER_BYTES]);

/** Both, one after the other. */
int helper_ask(const struct helper *h, const char *word, pid_t pid,
	       char answer[static HELPER_ANSWER_BYTES]);

/** Whether it has died. */
bool helper_is_gone(const struct helper *h);

/** Closes the connection, upon which the helper completes its work and ends. */
void helper_hang_up(struct helper *h);

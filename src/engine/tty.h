// SPDX-License-Identifier: MIT
/* A terminal for a restored job whose own is gone. */
#pragma once

/**
 * Makes a pseudo terminal below the file system root @root ("" for ours) and a process that copies what is written to it to @log_fd (borrowed; -1:
 * nowhere). That process is nobody's but the terminal's: it outlives its maker and ends when the last
 * user of the terminal has gone, so the job never sees a hang-up because of us.
 * Returns the slave's fd (owned) or -errno.
 */
int tty_with_reader(const char *root, int log_fd);

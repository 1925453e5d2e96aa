// SPDX-License-Identifier: MIT
/*
 * Files that are sealed one by one (docs/image-format.md, "Sealed"). What is in them is in the clear in a
 * directory in memory (process/memory-dir.h), and nowhere else.
 */
#pragma once

#include "base/error.h"
#include "chunks/key.h"

/** Seals what is in the directory @from_fd, files and directories, into @to_fd, which is empty. @id: of the
 * checkpoint, without which it does not open. Files are 0600, directories 0700; the caller syncs. */
int sealed_close_dir(int to_fd, int from_fd, const struct store_key *key, const char *id,
		     struct brumate_error *err);

/** The reverse. -EBADMSG names the file that is damaged, or sealed by another key, or of elsewhere. */
int sealed_open_dir(int to_fd, int from_fd, const struct store_key *key, const char *id,
		    struct brumate_error *err);

/** The same of one file @from_fd, which is @name in its directory, into @to_fd, an empty file. -EBADMSG, or another
 * -errno. */
int sealed_open_file(int to_fd, int from_fd, const struct store_key *key, const char *id,
		     const char *name);

// SPDX-License-Identifier: MIT
/*
 * Files that are encrypted one by one (docs/image-format.md, "Sealed"). Their plain content is only in a directory in
 * memory (process/memory-dir.h).
 */
#pragma once

#include "base/error.h"
#include "chunks/key.h"

/** Encrypts the content of the directory @from_fd, files and directories, into @to_fd, which is empty. @id: of the
 * checkpoint; it is needed for decryption. Files are 0600, directories 0700; the caller syncs. */
int sealed_close_dir(int to_fd, int from_fd, const struct store_key *key, const char *id,
		     struct brumate_error *err);

/** The reverse. -EBADMSG names the file that is damaged, was encrypted with another key, or belongs elsewhere. */
int sealed_open_dir(int to_fd, int from_fd, const struct store_key *key, const char *id,
		    struct brumate_error *err);

/** Decrypts one file @from_fd, which has the path @name in its checkpoint, into @to_fd, an empty file. -EBADMSG, or
 * another -errno. */
int sealed_open_file(int to_fd, int from_fd, const struct store_key *key, const char *id,
		     const char *name);

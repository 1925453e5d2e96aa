// SPDX-License-Identifier: MIT
/*
 * Files that are sealed one by one (docs/image-format.md, "Sealed"), and a place in memory for what is in
 * them: other programs, CRIU above all, read and write plain files, which must never be on a disk.
 */
#pragma once

#include <stdint.h>

#include "base/error.h"
#include "chunks/key.h"

/** A directory on a tmpfs of its own for at most @max_bytes, which nobody else sees and which is gone with
 * the last fd. Needs CAP_SYS_ADMIN. Returns its fd (owned), or -errno: -EPERM, -ENOSYS (before 5.2),
 * -ENOMEM (the machine has less left). */
int sealed_plain_dir(uint64_t max_bytes, struct brumate_error *err);

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

// SPDX-License-Identifier: MIT
/* Keys that a program gives ([Store] EncryptionKeyCommand=): one that asks a vault, or a TPM. */
#pragma once

#include "chunks/key.h"

/** Runs the program @path, without arguments; the key is what it prints. Errors to act on: -ENOKEY (it
 * cannot be run, or fails), -ETIMEDOUT (30 s), -EINVAL (what it prints is no key). */
int key_program_ask(struct store_key *ret, const char *path, struct brumate_error *err);

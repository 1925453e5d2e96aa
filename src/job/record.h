// SPDX-License-Identifier: MIT
/* The record of a job as JSON. Decoding is pure and takes foreign bytes. */
#pragma once

#include "job/job.h"

/** Encodes the record (owned). NULL without memory. */
json_t *record_encode(const struct job *j);

/**
 * record_decode() - read a job's record
 * @text: borrowed, untrusted
 *
 * Pure. Leaves @ret->dir NULL. Return: 0 and @ret owned; -EBADMSG.
 */
int record_decode(struct job *ret, const char *text, size_t len_bytes, struct brumate_error *err);

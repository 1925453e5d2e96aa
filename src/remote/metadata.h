// SPDX-License-Identifier: MIT
/*
 * Credentials of the container or the machine this runs on, from the service beside it that knows:
 * that of a container (AWS_CONTAINER_CREDENTIALS_...), else that of an EC2 machine (IMDSv2).
 */
#pragma once

#include "remote/config.h"

/** Fills key, secret and token of @c. -ENOENT without touching @err: there is no such service. */
int metadata_credentials(struct remote_config *c, struct brumate_error *err);

/** Reads the answer of such a service. 0 or -EBADMSG. Pure. */
int metadata_parse(struct remote_config *c, const char *text);

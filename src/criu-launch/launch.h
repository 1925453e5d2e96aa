// SPDX-License-Identifier: MIT
/* Shared by the launcher of CRIU and its callers. */
#pragma once

#define LAUNCH_PROGRAM "brumate-criu-launch"

/** An installation gives the file to this group, mode 0750: its users have the capability. */
#define LAUNCH_GROUP "brumate-users"

/** CRIU is started with this option: /etc/criu/default.conf and ~/.criu/default.conf are for running CRIU by hand,
 * and could change the content of a checkpoint. The launcher adds it for callers of an older version. */
#define CRIU_WITHOUT_CONFIG "--no-default-config"

/** Exit codes of the launcher if CRIU is not started; the reason is a line on its standard error. */
enum launch_exit {
	LAUNCH_EXIT_REFUSED = 120,	 /* something is not as it has to be */
	LAUNCH_EXIT_NO_CAPABILITY = 121, /* it was not given CAP_CHECKPOINT_RESTORE */
};

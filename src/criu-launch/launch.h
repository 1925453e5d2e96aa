// SPDX-License-Identifier: MIT
/* What the launcher of CRIU and those who start it agree on. */
#pragma once

#define LAUNCH_PROGRAM "brumate-criu-launch"

/** An installation gives the file to this group, mode 0750: its users have the capability. */
#define LAUNCH_GROUP "brumate-users"

/** What CRIU is started with, too: /etc/criu/default.conf and ~/.criu/default.conf are for those who run it by hand, and
 * could change what a checkpoint is. The launcher adds it where its caller, of an older version, does not. */
#define CRIU_WITHOUT_CONFIG "--no-default-config"

/** Exit codes of the launcher where CRIU is not reached; the reason is a line on its standard error. */
enum launch_exit {
	LAUNCH_EXIT_REFUSED = 120,	 /* something is not as it has to be */
	LAUNCH_EXIT_NO_CAPABILITY = 121, /* it was not given CAP_CHECKPOINT_RESTORE */
};

// SPDX-License-Identifier: MIT
/* What the launcher of CRIU and those who start it agree on. */
#pragma once

#define LAUNCH_PROGRAM "brumate-criu-launch"

/** Exit codes of the launcher where CRIU is not reached; the reason is a line on its standard error. */
enum launch_exit {
	LAUNCH_EXIT_REFUSED = 120,	 /* something is not as it has to be */
	LAUNCH_EXIT_NO_CAPABILITY = 121, /* it was not given CAP_CHECKPOINT_RESTORE */
};

// SPDX-License-Identifier: MIT
/*
 * `brumate cdi`: the specification of a device of the Container Device Interface by which engines put brumate's library into
 * containers (https://github.com/cncf-tags/container-device-interface). Agents have a tmpfs of the container's own: nothing of
 * the host is in there but the library, to be read.
 */
#include "cli/command.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/paths.h"
#include "gpu/vendor.h"
#include "wire/agent.h"
#include "wire/wire.h"

#define LIBRARY_DIR "/usr/local/lib/brumate"

/* Up from the folder of whatever program it is, to the root. glibc's loader puts that folder in the place of $ORIGIN. musl's,
 * which could load the library but not bind it, and would not start the program, looks for the name as it is, finds nothing
 * and goes on. */
#define UP4	"/../../../.."
#define TO_ROOT "$ORIGIN" UP4 UP4 UP4 UP4 UP4

/* 1777: the container's users need not be root. So small that it takes no memory worth mentioning. */
static json_t *pack_spec(const char *library, const char *inside)
{
	auto_free char *preload = path_format("LD_PRELOAD=" TO_ROOT "%s", inside);

	return json_pack("{s:s, s:s, s:[{s:s, s:{s:[s, s], s:[{s:s, s:s, s:[s, s, s, s]},"
			 " {s:s, s:s, s:s, s:[s, s, s, s, s, s]}]}}]}",
			 "cdiVersion", "0.4.0", "kind", "brumate.dev/gpu", "devices", "name", "on",
			 "containerEdits", "env", preload,
			 AGENT_DIR_VARIABLE "=" AGENT_CONTAINER_DIR, "mounts", "hostPath", library,
			 "containerPath", inside, "options", "ro", "bind", "nosuid", "nodev",
			 "hostPath", "tmpfs", "containerPath", AGENT_CONTAINER_DIR, "type", "tmpfs",
			 "options", "nosuid", "nodev", "noexec", "mode=1777", "size=1m",
			 "nr_inodes=4096");
}

int verb_cdi(const struct invocation *in, struct brumate_error *err)
{
	const char *name = gpu_vendor()->interposer;
	auto_free char *found = path_find_helper(name);
	/* CRIU mounts no symbolic links. */
	auto_free char *library = found ? realpath(found, NULL) : NULL;
	auto_free char *inside = path_format(LIBRARY_DIR "/%s", name);

	(void)in;
	if (!library) {
		brumate_fail(err, ENOENT, "%s is not installed", name);
		return -ENOENT;
	}
	auto_json json_t *spec = inside ? pack_spec(library, inside) : NULL;
	/* As it is: engines refuse what they do not know, such as our apiVersion. */
	if (!spec || json_dumpf(spec, stdout, JSON_INDENT(2)) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	putchar('\n');
	return 0;
}

// SPDX-License-Identifier: MIT
/*
 * `brumate checkpoint --container` and `restore --container`: by the engine of the container, into a file of the caller's.
 * `brumate cdi`: what puts brumate's library into containers.
 */
#include "edges/containers/container-verbs.h"
#include "cli/verbs.h"
#include "cli/arguments.h"
#include "cli/output.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/conf.h"
#include "base/paths.h"
#include "gpu/vendor.h"
#include "service/audit.h"
#include "edges/containers/engines.h"
#include "edges/containers/find.h"
#include "edges/containers/snapshot-control.h"
#include "wire/agent.h"
#include "wire/wire.h"

/* Refuses what is given besides @allowed, which ends with OPT__MAX. */
static int check_options(const struct invocation *in, const int *allowed, struct brumate_error *err)
{
	for (const struct option_spec *o = in->command->options; o->name; o++) {
		const int *a = allowed;

		while (*a != OPT__MAX && *a != o->id)
			a++;
		if (in->values[o->id] && *a == OPT__MAX)
			return brumate_fail(err, EINVAL,
					    "%s: --%s cannot be combined with --container",
					    in->command->name, o->name);
	}
	return 0;
}

/* No method of the daemon does this, so its audit record is written here. */
static int note_audit(const char *method, const char *container, const char *path, int r)
{
	const struct audit_caller caller = { .uid = getuid(), .pid = getpid() };
	auto_json json_t *what = json_pack("{s:s, s:s}", "container", container, "path", path);

	audit_write(method, &caller, what, NULL, r);
	return r;
}

static int print_done(const struct invocation *in, const char *container, const char *engine,
		      const char *path, uint64_t start_ns, struct brumate_error *err)
{
	const bool saved = !strcmp(in->command->name, "checkpoint");
	double seconds = clock_since_s(start_ns);
	char took[WORD_BYTES];

	format_seconds(took, seconds);
	fprintf(stderr, "container %s: %s by %s in %s\n", container, saved ? "saved" : "restored",
		engine, took);
	if (!wants_json(in)) {
		puts(saved ? path : container);
		return 0;
	}
	auto_json json_t *o = json_pack("{s:s,s:s,s:s,s:f}", "container", container, "engine",
					engine, "path", path, "seconds", seconds);
	return o ? print_json(o, err) : brumate_fail(err, ENOMEM, "%m");
}

enum { READY_MS = 600000 };

/* What was to be done is done: what stands in the way of telling so is no failure of that. */
static void tell(const struct snapshot_control *control, const char *name)
{
	struct brumate_error why = BRUMATE_ERROR_NONE;

	if (snapshot_control_tell(control, name, &why) < 0)
		fprintf(stderr, "note: the container was not told: %s\n", why.text);
}

/* Waits until the program of the container says that it is ready. */
static int wait_until_ready(struct snapshot_control *ret, const struct invocation *in,
			    const struct service_container *c, struct brumate_error *err)
{
	uint64_t deadline_ns;
	int r = parse_deadline(&deadline_ns, in->values[OPT_TIMEOUT], READY_MS, err);

	if (r == 0 && (r = snapshot_control_open(ret, c->init, err)) == 0)
		return brumate_fail(err, ENOENT,
				    "the environment of the container has no SNAPSHOT_CONTROL_DIR "
				    "to be ready in");
	return r < 0 ? r : snapshot_control_wait(ret, deadline_ns, err);
}

int checkpoint_by_engine(const struct invocation *in, struct brumate_error *err)
{
	static const int allowed[] = { OPT_CONTAINER,  OPT_LEAVE_RUNNING, OPT_OUTPUT, OPT_OCI,
				       OPT_WHEN_READY, OPT_TIMEOUT,	  OPT_FORMAT, OPT__MAX };
	const char *output = in->values[OPT_OUTPUT], *oci = in->values[OPT_OCI];
	auto_free char *path = absolute_path(oci ? oci : output ? output : ".");
	const struct service_container_checkpoint how = {
		.output = oci ? NULL : path,
		.oci = oci ? path : NULL,
		.leave_running = in->values[OPT_LEAVE_RUNNING] != NULL,
	};
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	auto_(snapshot_control_fini) struct snapshot_control control = SNAPSHOT_CONTROL_NONE;
	struct service_container c = { .init = PROC_ID_NONE };
	int r = check_options(in, allowed, err);

	if (r == 0 && in->n_operands)
		r = brumate_fail(err, EINVAL, "checkpoint: --container takes no job");
	if (r == 0 && !output == !oci) {
		r = brumate_fail(err, EINVAL,
				 "checkpoint: --container takes one of --output and --oci");
		brumate_hint(err, "--output FILE writes an archive, --oci DIR an OCI image");
	}
	if (r == 0 && !path)
		r = brumate_fail(err, ENOMEM, "%m");
	if (r == 0)
		r = conf_load(&conf, err);
	if (r == 0)
		r = service_find_container(&c, in->values[OPT_CONTAINER], conf.container_state,
					   err);
	if (r == 0 && in->values[OPT_WHEN_READY])
		r = wait_until_ready(&control, in, &c, err);
	uint64_t start_ns = clock_now_ns();
	if (r == 0)
		r = note_audit("Checkpoint", *c.name ? c.name : c.id, path,
			       service_checkpoint_container(&c, &how, err));
	if (r == 0 && control.dir_fd >= 0 && how.leave_running)
		tell(&control, SNAPSHOT_COMPLETE);
	if (r < 0)
		return r;
	return print_done(in, *c.name ? c.name : c.id, service_engine_name(&c), path, start_ns,
			  err);
}

/* One that waits for it goes on by that. */
static void tell_restored(const char *name)
{
	auto_(snapshot_control_fini) struct snapshot_control control = SNAPSHOT_CONTROL_NONE;
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	struct service_container c = { .init = PROC_ID_NONE };
	struct brumate_error why = BRUMATE_ERROR_NONE;
	int r = conf_load(&conf, &why);

	if (r == 0)
		r = service_find_container(&c, name, conf.container_state, &why);
	if (r == 0)
		r = snapshot_control_open(&control, c.init, &why);
	if (r < 0)
		fprintf(stderr, "note: nobody looked whether %s waits for its restore: %s\n", name,
			why.text);
	if (r > 0)
		tell(&control, RESTORE_COMPLETE);
}

int restore_by_engine(const struct invocation *in, struct brumate_error *err)
{
	static const int allowed[] = { OPT_CONTAINER, OPT_BUNDLE, OPT_FORMAT, OPT__MAX };
	auto_free char *path = absolute_path(in->n_operands ? in->operands[0] : ".");
	auto_free char *bundle =
		in->values[OPT_BUNDLE] ? absolute_path(in->values[OPT_BUNDLE]) : NULL;
	const char *name = in->values[OPT_CONTAINER], *engine = "";
	uint64_t start_ns = clock_now_ns();
	int r = check_options(in, allowed, err);

	if (r == 0 && in->n_operands != 1)
		r = brumate_fail(err, EINVAL, "restore: --container takes one archive or image");
	if (r == 0 && (!path || (in->values[OPT_BUNDLE] && !bundle)))
		r = brumate_fail(err, ENOMEM, "%m");
	if (r == 0)
		r = note_audit("Restore", name, path,
			       service_restore_container(path, name, bundle, &engine, err));
	if (r < 0)
		return r;
	tell_restored(name);
	return print_done(in, name, engine, path, start_ns, err);
}

/*
 * ---- `brumate cdi` ----
 *
 * The specification of a device of the Container Device Interface by which engines put brumate's library into
 * containers (https://github.com/cncf-tags/container-device-interface). Agents have a tmpfs of the container's own: nothing of
 * the host is in there but the library, to be read.
 */

#define LIBRARY_DIR "/usr/local/lib/brumate"

/* Up from the folder of any program to the root. glibc's loader replaces $ORIGIN by that folder. musl's loader could
 * load the library but not bind it, and would not start the program; but it takes the name as it is, finds nothing, and
 * goes on. */
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
	const struct gpu_kind kind = gpu_kind_here(false);
	const char *name = gpu_kind_vendor(&kind)->interposer;
	auto_free char *found = name ? path_find_helper(name) : NULL;
	/* CRIU mounts no symbolic links. */
	auto_free char *library = found ? realpath(found, NULL) : NULL;
	auto_free char *inside = found ? path_format(LIBRARY_DIR "/%s", name) : NULL;

	if (!library) {
		brumate_fail(err, ENOENT, "%s is not installed",
			     name ? name : "a library for these GPUs");
		return -ENOENT;
	}
	auto_json json_t *spec = inside ? pack_spec(library, inside) : NULL;
	/* As it is: engines refuse what they do not know, such as our apiVersion. */
	if (!spec || json_dumpf(spec, stdout, JSON_INDENT(2)) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	putchar('\n');
	return 0;
}

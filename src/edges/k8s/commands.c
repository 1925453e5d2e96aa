// SPDX-License-Identifier: MIT
/* The row of `brumate k8s`: linked by `brumate` too, for help and completion. */
#include <stddef.h>

#include "cli/options.h"
#include "edges/k8s/options.h"

static const struct option_spec k8s_options[] = {
	VALUE(OPT_NAMESPACE, "namespace", 0, "NAMESPACE", COMPLETES_NOTHING,
	      "of the pod (default: default)"),
	VALUE(OPT_CONTAINER, "container", 'C', "NAME", COMPLETES_NOTHING,
	      "this container alone, not all of the pod"),
	TIMEOUT("give up on a container after TIME (default for checkpoint: 10m)"),
	OCI("checkpoint: make this directory, an OCI image of the archive, which takes -C"),
	WHEN_READY("checkpoint: wait until the container says so in SNAPSHOT_CONTROL_DIR"),
	FORCE("suspend: continue even if doctor suspects that a container may be lost"),
	VALUE(OPT_SERVER, "server", 0, "URL", COMPLETES_NOTHING,
	      "checkpoint, watch: the kubelet, https://HOST[:PORT] (default: of this node)"),
	VALUE(OPT_SERVER_NAME, "server-name", 0, "HOST", COMPLETES_NOTHING,
	      "checkpoint: the name that its certificate must have"),
	VALUE(OPT_CA_FILE, "ca-file", 0, "FILE", COMPLETES_FILE,
	      "checkpoint: the certificates to trust"),
	VALUE(OPT_TOKEN_FILE, "token-file", 0, "FILE", COMPLETES_FILE,
	      "checkpoint: a file with the token of an account"),
	VALUE(OPT_CERT, "cert", 0, "FILE", COMPLETES_FILE, "checkpoint: a client certificate"),
	VALUE(OPT_KEY, "key", 0, "FILE", COMPLETES_FILE,
	      "checkpoint: its key (default: in the same file)"),
	VALUE(OPT_INTERVAL, "interval", 0, "TIME", COMPLETES_NOTHING,
	      "watch: how often the kubelet is asked for its pods (default: 5s)"),
	SIMULATED,
	STATS,
	FORMAT,
	END,
};

const struct command k8s_command = {
	"k8s",
	NULL,
	NULL,
	"checkpoint|suspend|resume|restored POD|watch",
	"checkpoint the containers of a pod on this node, or free its GPUs",
	1,
	2,
	false,
	COMPLETES_WORDS,
	"checkpoint suspend resume restored watch",
	k8s_options,
	NULL,
	"brumate-k8s"
};

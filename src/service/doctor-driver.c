// SPDX-License-Identifier: MIT
/* Checks of CRIU, of the GPU driver and of the GPUs, as the broker tells of them. */
#include "service/doctor.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/broker.h"
#include "criu/criu.h"

void doctor_criu(struct doctor *d)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct criu_program program;

	if (criu_find(&program, &err) < 0) {
		finding_error(d, FINDING_FAIL, "criu", &err);
		return;
	}
	fact(d, "criu",
	     json_pack("{s:s,s:i,s:s}", "path", program.path, "version", program.version, "why",
		       program.why));
	finding(d, FINDING_OK, "criu", "", "CRIU %d.%d.%d, %s (%s)", program.version / 10000,
		program.version / 100 % 100, program.version % 100, program.path, program.why);

	if (criu_check(&program, &err) < 0)
		finding_error(d, FINDING_FAIL, "criu-check", &err);
	else
		finding(d, FINDING_OK, "criu-check", "", "the kernel offers what CRIU needs");
}

/* The ladder of docs: what each driver adds, and what is lost without it. */
static const struct {
	enum dev_feature bit;
	const char *key, *name, *since;
	enum finding_level level_without;
	const char *without;
} ladder[] = {
	{ DEV_CHECKPOINT, "driver-checkpoint", "the driver saves GPU state", "570", FINDING_FAIL,
	  "nothing can be suspended or checkpointed" },
	{ DEV_REMAP, "driver-remap", "restore onto other GPUs", "580", FINDING_WARN,
	  "jobs can be restored on the same GPUs only" },
	{ DEV_JOB_FILE, "driver-job-file", "jobs of several processes by the driver itself", "590",
	  FINDING_NOTE, "processes that share GPU memory are refused" },
	{ DEV_LEGACY_IPC, "driver-ipc", "legacy IPC within a job", "610", FINDING_NOTE,
	  "jobs that use it are refused" },
	{ DEV_CUSTOM_STORAGE, "driver-storage", "custom storage", "615", FINDING_NOTE,
	  "--pid copies at the driver's own speed" },
};

static void check_ladder(struct doctor *d, uint32_t features)
{
	json_t *names = json_array();

	for (size_t i = 0; i < sizeof(ladder) / sizeof(ladder[0]); i++) {
		char hint[64];

		snprintf(hint, sizeof(hint), "install driver %s or newer", ladder[i].since);
		if (features & ladder[i].bit) {
			finding(d, FINDING_OK, ladder[i].key, "", "%s", ladder[i].name);
			json_array_append_new(names, json_string(ladder[i].key));
		} else {
			finding(d, ladder[i].level_without, ladder[i].key, hint, "without %s: %s",
				ladder[i].name, ladder[i].without);
		}
	}
	fact(d, "driver_features", names);
}

static void check_gpu(struct doctor *d, size_t i, const struct dev_gpu *gpu, json_t *gpus)
{
	json_array_append_new(gpus, json_pack("{s:I,s:s,s:s,s:I,s:I,s:b}", "index", (json_int_t)i,
					      "uuid", gpu->uuid, "name", gpu->name, "total_bytes",
					      (json_int_t)gpu->total_bytes, "used_bytes",
					      (json_int_t)gpu->used_bytes, "mig", gpu->mig));
	d->vram_bytes += gpu->total_bytes;
	if (gpu->mig)
		finding(d, FINDING_WARN, "gpu", "turn MIG off: nvidia-smi -mig 0",
			"GPU %zu: %s, %s: MIG is on, which the driver cannot checkpoint", i,
			gpu->name, gpu->uuid);
	else
		finding(d, FINDING_OK, "gpu", "", "GPU %zu: %s, %s, %.1f GB, %.1f GB in use", i,
			gpu->name, gpu->uuid, (double)gpu->total_bytes / 1e9,
			(double)gpu->used_bytes / 1e9);
}

/* The tool that keeps the driver loaded listens here; the older way (nvidia-smi -pm) cannot be seen
 * without asking the driver. */
static void check_persistence(struct doctor *d)
{
	if (d->simulated)
		return;
	if (access("/run/nvidia-persistenced/socket", F_OK) == 0)
		finding(d, FINDING_OK, "persistence", "", "nvidia-persistenced runs");
	else
		finding(d, FINDING_NOTE, "persistence",
			"systemctl enable --now nvidia-persistenced (or nvidia-smi -pm 1)",
			"nvidia-persistenced does not run: the first operation on an idle machine "
			"waits for the driver");
}

void doctor_driver(struct doctor *d)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	auto_(broker_client_close) struct broker_client broker = BROKER_CLIENT_EMPTY;
	struct broker_info info;
	int r = broker_client_open(&broker, d->simulated, &err);

	if (r == 0)
		r = broker_client_info(&broker, &info, &err);
	if (r < 0) {
		if (!err.hint[0])
			brumate_hint(&err, "install a driver, 570 or newer; without a GPU try "
					   "BRUMATE_GPU=simulated");
		finding_error(d, FINDING_FAIL, "driver", &err);
		return;
	}
	finding(d, FINDING_OK, "driver", "", "%sdriver %s, API %d.%d, initialised in %.2f s",
		info.device.simulated ? "simulated " : "", info.device.driver_version,
		info.device.api_version / 1000, info.device.api_version % 1000 / 10,
		info.device.init_seconds);
	fact(d, "driver",
	     json_pack("{s:s,s:i,s:b,s:f,s:s}", "version", info.device.driver_version,
		       "api_version", info.device.api_version, "simulated", info.device.simulated,
		       "init_seconds", info.device.init_seconds, "backend", info.backend));
	check_ladder(d, info.device.features);

	json_t *gpus = json_array();
	for (size_t i = 0; i < info.n_gpus; i++)
		check_gpu(d, i, &info.gpus[i], gpus);
	fact(d, "gpus", gpus);
	d->room = info.room;
	if (!info.n_gpus)
		finding(d, FINDING_FAIL, "gpu", "is a GPU assigned to this machine or container?",
			"the driver shows no GPU");
	check_persistence(d);
}

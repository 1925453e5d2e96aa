// SPDX-License-Identifier: MIT
/* A manifest with every member set, and hostile strings where strings are free. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "image/manifest.h"

static inline char *copy_string(const char *text)
{
	char *copy = strdup(text);

	CHECK(copy);
	return copy;
}

static inline void sample_lists(struct manifest *m)
{
	m->sequence = 77;
	m->gpus = calloc(2, sizeof(*m->gpus));
	m->n_gpus = 2;
	m->gpus[0] = (struct manifest_gpu){ "GPU-00000000-0000-0000-0000-000000000001", "Simulated",
					    8ull << 30, 1 << 30 };
	m->gpus[1] = (struct manifest_gpu){ "GPU-00000000-0000-0000-0000-000000000002", "Simulated",
					    INT64_MAX, 0 };
	m->processes = calloc(2, sizeof(*m->processes));
	m->n_processes = 2;
	m->processes[0] = (struct manifest_process){ 101, 1, "python3", true, true, 1 << 30, 4096 };
	m->processes[1] =
		(struct manifest_process){ 102, 101, "worker \xff", false, false, 0, 8192 };
	m->externals = calloc(3, sizeof(*m->externals));
	m->n_externals = 3;
	m->externals[0] = (struct manifest_external){ copy_string("pipe:[123]"), "log" };
	m->externals[1] = (struct manifest_external){ copy_string("tty[8803:6]"), "tty" };
	m->externals[2] = (struct manifest_external){ copy_string("file[4:5]"), "null" };
	m->files = calloc(3, sizeof(*m->files));
	m->n_files = 3;
	m->files[0] =
		(struct manifest_file){ copy_string("criu/inventory.img"), 5, { { 1, 2, 3 } } };
	m->files[1] = (struct manifest_file){ copy_string("criu/pages-1.img"), 0, { { 0xff } } };
	m->files[2] = (struct manifest_file){ copy_string(MANIFEST_TABLE_PATH), 0, { { 7 } } };
	m->phases = calloc(2, sizeof(*m->phases));
	m->n_phases = 2;
	m->phases[0] = (struct manifest_phase){ "lock", 0.000001 };
	m->phases[1] = (struct manifest_phase){ "dump", 12.345678 };
	m->huge_pages = calloc(1, sizeof(*m->huge_pages));
	m->n_huge_pages = 1;
	m->huge_pages[0] = (struct manifest_huge_pages){ 2 << 20, 8 << 20 };
}

static inline void sample_memory(struct manifest *m)
{
	m->memory.regions = calloc(2, sizeof(*m->memory.regions));
	m->memory.n_regions = 2;
	m->memory.regions[0] = (struct manifest_region){
		.kind = MANIFEST_REGION_HOST, .pid = 101, .va = 0x7f0000001000, .len_bytes = 4096
	};
	m->memory.regions[1] = (struct manifest_region){
		MANIFEST_REGION_DEVICE, 102, 3, 1ull << 40, 1 << 30, "GPU-1"
	};
	m->memory.packs = calloc(2, sizeof(*m->memory.packs));
	m->memory.n_packs = 2;
	m->memory.packs[0] = (struct manifest_pack){ copy_string("memory/0.pack"), 8192 };
	m->memory.packs[1] = (struct manifest_pack){ copy_string("memory/1.pack"), 1 << 20 };
	m->memory.zero_bytes = 4096;
	m->memory.shared_bytes = 2 << 20;
	m->memory.written_bytes = 12345;
}

static inline struct manifest sample_manifest(void)
{
	struct manifest m = {
		.version = MANIFEST_VERSION,
		.id = "train-1",
		.created = "2026-01-02T03:04:05.678Z",
		.brumate_version = "0.1.0",
		.driver_version = "580.95.05",
		.api_version = 13000,
		.criu_version = 40201,
		.shell_job = true,
		.leave_running = true,
		.downtime_seconds = 0.5,
	};

	strcpy(m.job.id, "job-7");
	strcpy(m.job.name, "na\\me \xc3\xa4\x1b");
	m.job.uid = 1000;
	m.job.gid = UINT32_MAX;
	m.job.argv = calloc(5, sizeof(char *));
	m.job.argv[0] = copy_string("python3");
	m.job.argv[1] = copy_string("");
	m.job.argv[2] = copy_string("\xff\xfe raw \xed\xa0\x80");
	m.job.argv[3] = copy_string("back\\slash \"quoted\" \x01\n\t\x7f \xf0\x9f\xa6\x94");
	m.job.cwd = copy_string("/home/\xe9t\xe9");
	m.job.log = copy_string("/var/log/brumate/job-7.log");
	m.job.rootfs = copy_string("/");
	m.job.simulated = true;
	strcpy(m.job.gpu_vendor, "other");
	strcpy(m.job.started_as, "0badcafe");
	strcpy(m.host.kernel, "6.18.0");
	strcpy(m.host.machine, "x86_64");
	strcpy(m.host.hostname, "node1");
	strcpy(m.host.cpu_model, "A CPU @ 3 GHz");
	strcpy(m.host.boot_id, "01234567-89ab-cdef-0123-456789abcdef");
	memset(m.mac, 'a', sizeof(m.mac) - 1);
	memset(m.signer, '0', sizeof(m.signer) - 1);
	memset(m.signature, 'f', sizeof(m.signature) - 1);
	sample_lists(&m);
	sample_memory(&m);
	return m;
}

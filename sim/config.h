// SPDX-License-Identifier: MIT
/*
 * What machine is simulated, from the environment:
 *
 *	BRUMATE_SIM_DIR       where the memory of the GPUs lives   /dev/shm/brumate-sim-UID
 *	BRUMATE_SIM_GPUS      number of GPUs                       2
 *	BRUMATE_SIM_VRAM_MIB  MiB per GPU, or one number per GPU   4096
 *	BRUMATE_SIM_MODEL     name of the GPUs, or one per GPU     Simulated H200
 *	BRUMATE_SIM_UUIDS     numbers in the UUIDs, one per GPU    0,1,...
 *	BRUMATE_SIM_DRIVER    570, 580, 590, 610 or 615            580
 *	BRUMATE_SIM_CTX_MIB   MiB a context takes on its GPU       8 (H200: about 530)
 *	BRUMATE_SIM_STACKS_MIB  MiB for its stacks, at their usual limit   0 (H200: about 260)
 *	BRUMATE_SIM_GBPS      OUT,IN: speed of checkpoint copies   as fast as memory goes
 *	BRUMATE_SIM_MIG       1: the GPUs are in MIG mode          0
 *	BRUMATE_SIM_PEERS     0: none reaches another's memory     1
 *	BRUMATE_SIM_RDMA      1: memory can be made for GPUDirect  0
 *	BRUMATE_SIM_SHUTDOWN  init or module: with what the driver registers its end at exit()   init
 *	BRUMATE_SIM_FAULT     faults to inject (fault.c)
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { CONFIG_GPUS_MAX = 16, CONFIG_MODEL_BYTES = 96 };

struct config_gpu {
	uint64_t vram_bytes;
	uint8_t uuid; /* the last byte of it */
	char model[CONFIG_MODEL_BYTES];
};

/** The part of the configuration that is the machine: a restored process adopts its caller's. */
struct config_machine {
	uint32_t n_gpus, mig;
	struct config_gpu gpu[CONFIG_GPUS_MAX];
};

/** What of the driver registers the handler that shuts it down at exit(): handlers run last first. */
enum config_shutdown { SHUTDOWN_OF_INIT, SHUTDOWN_OF_MODULE };

struct config {
	char *dir;
	struct config_machine machine;
	int driver;		    /* 580 */
	const char *driver_version; /* "580.159.04" */
	int cuda_version;	    /* 13000 */
	uint64_t context_bytes, stacks_bytes;
	bool rdma, peers;
	enum config_shutdown shutdown;
	double out_gbps, in_gbps; /* 0: no limit */
};

/**
 * The configuration, read once; NULL, after one line on stderr, when a value is wrong. Only the
 * machine changes later, with sim.lock held.
 */
struct config *config_get(void);

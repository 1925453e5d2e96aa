// SPDX-License-Identifier: MIT
/*
 * What is known of a vendor's GPUs without its driver: how a process that uses them is told from others, what
 * our programs load for its programs, and what users are told to do. One constant struct per vendor. Nobody
 * but the vendor's own folders names the vendor (tools/check-vendor).
 */
#pragma once

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpu/gpu.h"

/** The flag of what the simulated driver has open in the place of a device file: CRIU would not save it, and it goes with
 * the GPU state. Nobody else sets it on objects of that kind. */
enum { GPU_SIMULATED_DEVICE_FLAG = O_APPEND };

/** How long things take at their best, for choices where being wrong costs time alone. */
struct gpu_tuning {
	uint32_t control_ms;	    /* the driver, to save or restore its own state of a process */
	uint64_t link_bytes_per_ms; /* between host and GPU, one way */
	/* A stream of so much, which waits for the store, takes longer than the driver's own work, even where copies are queued
	 * before that. */
	uint64_t large_stream_bytes;
};

/** A way of parting or sharing GPUs that the driver cannot save. */
struct gpu_unsaved {
	const char *kind; /* of the finding that tells of it */
	const char *name;
	const char *part; /* what a process has of it; NULL: it goes by @name */
	const char *hint;
};

/* Texts are for users. Predicates are pure. */
struct gpu_vendor {
	const char *name;
	const char *api; /* that programs use: "no … state" */

	/* ---- processes and what they have open or mapped ---- */

	const char *devices;	    /* how the paths of its device files begin, parted by colons */
	const char *driver_library; /* how the names of files of its driver begin */
	const char *const
		*graphics_libraries; /* the same of what the driver does not save; ends with NULL */
	const char *
		driver_threads; /* how the names of threads begin that its driver has in programs */
	/* Who has GPU state has threads of the driver beside its own: a process of one thread has none. */
	bool clients_have_threads;
	/* A device file of a part of a GPU, which the driver cannot save. */
	bool (*is_partition)(const char *path);
	struct gpu_unsaved partition;
	/* A file or socket of a service that shares GPUs between processes, which the driver cannot save. */
	bool (*is_sharing_service)(const char *path);
	struct gpu_unsaved sharing_service;
	/* /proc/PID/maps shows memory that driver and kernel move between host and GPU by themselves. */
	bool (*maps_managed_memory)(const char *maps);
	const char *managed_memory_hint;

	/* ---- what we load; names as path_find_helper() takes them ---- */

	const char *interposer; /* our library in its programs */
	const char *simulated_driver, *simulated_management_library;

	/* ---- jobs of several processes by the driver itself (DEV_JOB_FILE) ---- */

	struct gpu_driver_job {
		const char *variable; /* of the environment: the path of the job's file */
		/* The vendor's tool, by the name that users know. What it writes into such a file nobody else knows: it
		 * runs a command with the variable set. */
		const char *tool, *option;
		const char *simulated_tool; /* beside the simulated driver */
		/* "NAME=VALUE": what programs are to be told so that they share memory by ways that the driver restores;
		 * ends with NULL */
		const char *const *environment;
	} driver_job;

	/* ---- drivers ---- */

	/* The version with which drivers began to have @feature (one bit); "?": none has yet. */
	const char *(*feature_since)(uint32_t feature);
	const char *persistence_daemon, *persistence_socket, *persistence_hint;
	const char *partition_hint; /* how to make a whole GPU of parts */
	const char *usage_tool;	    /* shows who holds memory of a GPU */

	/* CRIU's plugin of the vendor saves the state of GPU processes: the driver has no calls for it, and GPUs
	 * cannot be emptied into host memory. */
	bool saved_by_criu;

	struct gpu_tuning tuning;
};

/** The vendor whose GPUs this build is for. */
const struct gpu_vendor *gpu_vendor(void);

/** Whether the @len bytes at @path are the path of a device file of @vendor. Pure. */
bool gpu_vendor_has_device(const struct gpu_vendor *vendor, const char *path, size_t len);

/** The same of gpu_vendor(). */
bool gpu_is_device(const char *path, size_t len);

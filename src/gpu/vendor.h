// SPDX-License-Identifier: MIT
/*
 * What is known about a vendor's GPUs without its driver: how to recognise a process that uses them, what our
 * programs load into the vendor's programs, and instructions for users. One constant struct per vendor. Only the
 * vendor's own folders name the vendor (tools/check-vendor).
 */
#pragma once

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpu/gpu.h"

/** The flag of what the simulated driver has open in the place of a device file: CRIU would not save it, and it goes with
 * the GPU state. Nobody else sets it on objects of that kind. */
enum { GPU_SIMULATED_DEVICE_FLAG = O_APPEND };

/** Durations and rates at their best, for choices where a wrong one only costs time. */
struct gpu_tuning {
	uint32_t control_ms;	    /* the driver, saving or restoring its own state of a process */
	uint64_t link_bytes_per_ms; /* between host and GPU, one way */
	/* A stream of that length waits for the store, and takes longer than the driver's own work even if that is
	 * delayed by queued copies. */
	uint64_t large_stream_bytes;
};

/** A way of dividing or sharing GPUs that the driver cannot save. */
struct gpu_unsaved {
	const char *kind; /* of the finding that reports it */
	const char *name;
	const char *part; /* what a process has of it; NULL: called @name */
	const char *hint;
};

/* Texts are for users. Predicates are pure. */
struct gpu_vendor {
	const char *name;
	const char *api; /* of its programs: "no … state" */

	/* ---- processes and what they have open or mapped ---- */

	const char *devices; /* prefixes of the paths of its device files, separated by colons */
	const char *driver_library; /* prefix of the names of its driver's files */
	const char *const *
		graphics_libraries; /* the same for libraries whose state the driver does not save; ends with NULL */
	const char *
		driver_threads; /* prefix of the names of threads that its driver starts in programs */
	/* A process with GPU state has threads of the driver, so a process with a single thread has no GPU state. */
	bool clients_have_threads;
	/* Whether a device file is of a part of a GPU, which the driver cannot save. */
	bool (*is_partition)(const char *path);
	struct gpu_unsaved partition;
	/* Whether a file or socket is of a service that shares GPUs between processes, which the driver cannot save. */
	bool (*is_sharing_service)(const char *path);
	struct gpu_unsaved sharing_service;
	/* Whether /proc/PID/maps shows memory that driver and kernel move between host and GPU by themselves. */
	bool (*maps_managed_memory)(const char *maps);
	const char *managed_memory_hint;

	/* ---- what we load; names as path_find_helper() takes them ---- */

	const char *interposer; /* our library for its programs */
	const char *simulated_driver, *simulated_management_library;

	/* ---- jobs of several processes by the driver itself (DEV_JOB_FILE) ---- */

	struct gpu_driver_job {
		const char *variable; /* environment variable with the path of the job's file */
		/* The vendor's tool, by the name that users know. Only the tool knows the format of such a file: it
		 * runs a command with the variable set. */
		const char *tool, *option;
		const char *simulated_tool; /* the tool for the simulated driver */
		/* "NAME=VALUE": environment of programs that makes them share memory in ways that the driver
		 * restores; ends with NULL */
		const char *const *environment;
	} driver_job;

	/* ---- drivers ---- */

	/* The driver version that introduced @feature (one bit); "?": none so far. */
	const char *(*feature_since)(uint32_t feature);
	const char *persistence_daemon, *persistence_socket, *persistence_hint;
	const char *partition_hint; /* how to turn a divided GPU into a whole one */
	const char *usage_tool;	    /* shows which processes use memory of a GPU */

	/* CRIU's plugin of the vendor saves the state of GPU processes: the driver has no calls for it, and memory of
	 * GPUs cannot be moved to the host. */
	bool saved_by_criu;

	struct gpu_tuning tuning;
};

/** The vendor whose GPUs this build is for. */
const struct gpu_vendor *gpu_vendor(void);

/** Whether the @len bytes at @path are the path of a device file of @vendor. Pure. */
bool gpu_vendor_has_device(const struct gpu_vendor *vendor, const char *path, size_t len);

/** The same for gpu_vendor(). */
bool gpu_is_device(const char *path, size_t len);

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

enum { GPU_VENDOR_ID_BYTES = 16 };

/* Texts are for users. Predicates are pure. */
struct gpu_vendor {
	const char *id; /* in records, images and names of sockets: a word in lower case */
	const char *name;
	const struct dev_backend *backend;
	/* Whether such GPUs, and what it takes to save them, are on this machine; not pure. NULL: it is taken to be. */
	bool (*is_here)(void);
	/* What to do where its devices are there and something that it takes to save them is not; NULL: it lacks nothing. */
	const char *(*lacks)(void);
	const char *unproven; /* what users are to know of how it was tried; NULL: nothing */
	/* The same of GPUs of the model @name; NULL, and the call NULL: nothing. */
	const char *(*unproven_model)(const char *name);
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

/** The vendors that this build knows, the default first; ends with NULL. Each is a folder of gpu (meson.build). */
extern const struct gpu_vendor *const gpu_vendors[];

/** NULL: there is none of that id. */
const struct gpu_vendor *gpu_vendor_find(const char *id);

/** Which GPUs a job uses. It stands in its record, and the vendor in images, too. */
struct gpu_kind {
	char vendor
		[GPU_VENDOR_ID_BYTES]; /* empty: the default, of records from before there were several */
	bool simulated;
};

/** Those of a new job: of the first vendor whose GPUs are here, or that has a simulated driver; else of the default. What
 * its processes use then decides, scan_gpu_vendor(). */
struct gpu_kind gpu_kind_here(bool simulated);

/** Of an id that is not known, as in the record of a newer brumate: the default. */
const struct gpu_vendor *gpu_kind_vendor(const struct gpu_kind *kind);

bool gpu_kind_is_same(const struct gpu_kind *a, const struct gpu_kind *b);

/** The name of its broker: "broker", "broker-simulated", "broker-ID". Owned; NULL without memory. */
char *gpu_kind_broker(const struct gpu_kind *kind);

/** Resumes a process on GPUs that CRIU's plugin saves, where a plugin left it paused whose CRIU was killed. */
void gpu_vendor_go_on(const struct gpu_vendor *vendor, pid_t pid);

/** Whether the @len bytes at @path are the path of a device file of @vendor. Pure. */
bool gpu_vendor_has_device(const struct gpu_vendor *vendor, const char *path, size_t len);

/*
 * What names tell of a process, of all vendors whose GPUs are here; of the default on any machine. NULL: nothing.
 */

/** Whose device file it is. */
const struct gpu_vendor *gpu_vendor_of_device(const char *path, size_t len);
bool gpu_is_device(const char *path, size_t len);

/** Whose is what a device file is of, a part of a GPU; or a file or socket, a service that shares GPUs. */
const struct gpu_vendor *gpu_vendor_of_partition(const char *path);
const struct gpu_vendor *gpu_vendor_of_service(const char *path);

/** Whose managed memory, or driver's library, the text of /proc/PID/maps shows. */
const struct gpu_vendor *gpu_vendor_of_managed(const char *maps);
const struct gpu_vendor *gpu_vendor_of_library(const char *maps);

/** Whether a file with that name is our library for programs of one of them. */
bool gpu_is_interposer(const char *name);

/** Whether a thread of that name may be one that a driver started. */
bool gpu_is_driver_thread(const char *name);

/** Whether a process with a single thread cannot be a client of any of them. */
bool gpu_clients_have_threads(void);

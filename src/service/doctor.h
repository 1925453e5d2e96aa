// SPDX-License-Identifier: MIT
/* What the checks of `doctor` share: the list of findings, and facts for whoever reads the JSON. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/broker.h"
#include "service/service.h"

enum finding_level { FINDING_OK, FINDING_NOTE, FINDING_WARN, FINDING_FAIL };

struct doctor {
	const struct service_call *call;
	bool simulated; /* the simulated driver is asked */
	json_t *findings;
	json_t *facts;
	uint64_t vram_bytes;	 /* of all GPUs; 0: unknown */
	struct broker_room room; /* for host copies; no directory: unknown */
	bool out_of_memory;
};

/** Adds a finding. @key: stable name of the check; @hint: what to do, "" for ok. */
void finding(struct doctor *d, enum finding_level level, const char *key, const char *hint,
	     const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/** As finding() with text and hint of @err. */
void finding_error(struct doctor *d, enum finding_level level, const char *key,
		   const struct brumate_error *err);

/** Adds a fact (takes @value). */
void fact(struct doctor *d, const char *key, json_t *value);

/** First line of a small file such as a sysctl; false if it cannot be read. */
bool read_line(const char *path, char *ret, size_t room);

/* The checks, by what they look at. */
void doctor_kernel(struct doctor *d); /* kernel, capabilities, sysctls, cgroups */
void doctor_criu(struct doctor *d);
void doctor_driver(struct doctor *d);  /* driver, GPUs; sets vram_bytes and room */
void doctor_room(struct doctor *d);    /* memory, limits, space */
void doctor_brumate(struct doctor *d); /* our own directories, programs, leftovers */

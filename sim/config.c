// SPDX-License-Identifier: MIT
/* Reads the simulated machine from the environment, once per process. */
#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"

static struct config config;
static bool config_ok;

/* What each adds: docs/driver-behaviour.md; versions as these branches report them. */
static const struct driver {
	int branch;
	const char *version;
	int cuda_version;
} drivers[] = {
	{ 570, "570.172.08", 12080 }, { 580, "580.159.04", 13000 }, { 590, "590.48.01", 13010 },
	{ 610, "610.43.02", 13030 },  { 615, "615.36.01", 13040 },
};

static bool complain(const char *name, const char *value, const char *want)
{
	fprintf(stderr, "simulated CUDA driver: %s=%s is wrong, want %s\n", name, value, want);
	return false;
}

static bool parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *ret)
{
	char *end;
	unsigned long long n;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	n = strtoull(text, &end, 10);
	if (errno || *end || n < min || n > max)
		return false;
	*ret = n;
	return true;
}

static bool read_number(const char *name, uint64_t fallback, uint64_t min, uint64_t max,
			const char *want, uint64_t *ret)
{
	const char *text = getenv(name);

	if (!text || !*text) {
		*ret = fallback;
		return true;
	}
	return parse_number(text, min, max, ret) || complain(name, text, want);
}

static bool take_vram(unsigned int gpu, const char *item)
{
	uint64_t mib;

	if (!parse_number(item, 16, 1 << 24, &mib))
		return false;
	config.machine.gpu[gpu].vram_bytes = mib << 20;
	return true;
}

static bool take_model(unsigned int gpu, const char *item)
{
	if (!*item || strlen(item) >= CONFIG_MODEL_BYTES)
		return false;
	strcpy(config.machine.gpu[gpu].model, item);
	return true;
}

static bool take_uuid(unsigned int gpu, const char *item)
{
	uint64_t number;

	if (!parse_number(item, 0, UINT8_MAX, &number))
		return false;
	for (unsigned int i = 0; i < gpu; i++)
		if (config.machine.gpu[i].uuid == number)
			return false;
	config.machine.gpu[gpu].uuid = (uint8_t)number;
	return true;
}

/* One value for all GPUs, or one for each, separated by commas. */
static bool read_per_gpu(const char *name, const char *fallback, const char *want,
			 bool (*take)(unsigned int gpu, const char *item))
{
	const char *text = getenv(name);
	auto_free char *copy = strdup(text && *text ? text : fallback);
	char *rest = copy, *item = NULL;
	unsigned int n = 0;

	while (copy && (item = strsep(&rest, ","))) {
		if (n == config.machine.n_gpus || !take(n, item))
			return complain(name, text, want);
		n++;
	}
	if (n != 1 && n != config.machine.n_gpus)
		return complain(name, text ? text : "", want);
	for (unsigned int i = n; i < config.machine.n_gpus; i++)
		if (!take(i, copy))
			return complain(name, text, want);
	return true;
}

static bool read_uuids(void)
{
	const char *text = getenv("BRUMATE_SIM_UUIDS");

	for (unsigned int i = 0; i < config.machine.n_gpus; i++)
		config.machine.gpu[i].uuid = (uint8_t)i;
	return !text || !*text ||
	       read_per_gpu("BRUMATE_SIM_UUIDS", "",
			    "a number from 0 to 255 for each GPU, no two alike", take_uuid);
}

static bool read_driver(void)
{
	const char *text = getenv("BRUMATE_SIM_DRIVER");
	uint64_t branch = 580;

	if (text && *text && !parse_number(text, 1, 9999, &branch))
		branch = 0;
	for (size_t i = 0; i < sizeof(drivers) / sizeof(*drivers); i++) {
		if ((uint64_t)drivers[i].branch != branch)
			continue;
		config.driver = drivers[i].branch;
		config.driver_version = drivers[i].version;
		config.cuda_version = drivers[i].cuda_version;
		return true;
	}
	return complain("BRUMATE_SIM_DRIVER", text, "570, 580, 590, 610 or 615");
}

static bool read_gbps(void)
{
	const char *text = getenv("BRUMATE_SIM_GBPS");
	char *end;

	if (!text || !*text)
		return true;
	config.out_gbps = strtod(text, &end);
	if (*end == ',')
		config.in_gbps = strtod(end + 1, &end);
	if (*end || !(config.out_gbps > 0) || !(config.in_gbps > 0))
		return complain("BRUMATE_SIM_GBPS", text, "two speeds in GB/s, OUT,IN");
	return true;
}

static bool read_shutdown(void)
{
	const char *text = getenv("BRUMATE_SIM_SHUTDOWN");

	if (!text || !*text || !strcmp(text, "init"))
		return true;
	config.shutdown = SHUTDOWN_OF_MODULE;
	return !strcmp(text, "module") || complain("BRUMATE_SIM_SHUTDOWN", text, "init or module");
}

static bool read_dir(void)
{
	const char *text = getenv("BRUMATE_SIM_DIR");

	if (text && *text) {
		if (*text != '/')
			return complain("BRUMATE_SIM_DIR", text, "an absolute path");
		config.dir = strdup(text);
	} else if (asprintf(&config.dir, "/dev/shm/brumate-sim-%u", geteuid()) < 0) {
		config.dir = NULL;
	}
	return config.dir;
}

static void config_read(void)
{
	uint64_t n_gpus, mib, stacks_mib, mig, rdma, peers;

	if (!read_number("BRUMATE_SIM_GPUS", 2, 1, CONFIG_GPUS_MAX, "1 to 16", &n_gpus))
		return;
	config.machine.n_gpus = (uint32_t)n_gpus;
	if (!read_number("BRUMATE_SIM_CTX_MIB", 8, 0, 65536, "MiB per context", &mib) ||
	    !read_number("BRUMATE_SIM_STACKS_MIB", 0, 0, 65536, "MiB for stacks per context",
			 &stacks_mib) ||
	    !read_number("BRUMATE_SIM_MIG", 0, 0, 1, "0 or 1", &mig) ||
	    !read_number("BRUMATE_SIM_PEERS", 1, 0, 1, "0 or 1", &peers) ||
	    !read_number("BRUMATE_SIM_RDMA", 0, 0, 1, "0 or 1", &rdma) ||
	    !read_per_gpu("BRUMATE_SIM_VRAM_MIB", "4096",
			  "MiB (at least 16) for all GPUs or for each", take_vram) ||
	    !read_per_gpu("BRUMATE_SIM_MODEL", "Simulated H200", "a name for all GPUs or for each",
			  take_model) ||
	    !read_uuids() || !read_driver() || !read_gbps() || !read_shutdown() || !read_dir())
		return;
	config.context_bytes = mib << 20;
	config.stacks_bytes = stacks_mib << 20;
	config.machine.mig = (uint32_t)mig;
	config.rdma = rdma;
	config.peers = peers && !mig;
	config_ok = true;
}

struct config *config_get(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, config_read);
	return config_ok ? &config : NULL;
}

// SPDX-License-Identifier: MIT
/* `brumate bench`: what this machine can do, and what share of it the operations reach. */
#include "cli/arguments.h"
#include "cli/bench.h"
#include "cli/words.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/conf.h"
#include "base/fd.h"
#include "base/paths.h"
#include "wire/wire.h"

enum { ROUNDS_DEFAULT = 2, ROUNDS_MAX = 100, PIECE_KIB_MIN = 1 };

#define SIZE_DEFAULT   "1G"
#define SIZE_MAX_BYTES (1ull << 42)

static const char *const both_paths[] = { "broker", "driver", NULL };
static const char *const broker_only[] = { "broker", NULL };
static const char *const driver_only[] = { "driver", NULL };

static int get_percent(unsigned *ret, const char *what, const char *text, unsigned max,
		       struct brumate_error *err)
{
	char *end;

	if (!text)
		return 0;
	unsigned long n = strtoul(text, &end, 10);
	if (end == text || *end || n > max)
		return brumate_fail(err, EINVAL, "--%s %s: want 0 to %u (percent)", what, text,
				    max);
	*ret = (unsigned)n;
	return 0;
}

/* "64M-1G" as bench-job takes it, in KiB. */
static int get_pieces(char *ret, size_t ret_bytes, const char *text, struct brumate_error *err)
{
	auto_free char *copy = strdup(text);
	char *dash = copy ? strchr(copy, '-') : NULL;
	uint64_t from, to;

	if (!copy)
		return brumate_fail(err, ENOMEM, "%m");
	if (dash)
		*dash++ = '\0';
	if (conf_size_bytes(&from, copy) < 0 || conf_size_bytes(&to, dash ? dash : copy) < 0 ||
	    from >> 10 < PIECE_KIB_MIN || to < from)
		return brumate_fail(err, EINVAL,
				    "--pieces %s: want a size or MIN-MAX, as in 64M-1G", text);
	snprintf(ret, ret_bytes, "%llu-%llu", (unsigned long long)(from >> 10),
		 (unsigned long long)(to >> 10));
	return 0;
}

static int get_options(struct bench_options *o, const struct invocation *in, char *pieces,
		       size_t pieces_bytes, struct brumate_error *err)
{
	const char *size = in->values[OPT_SIZE] ? in->values[OPT_SIZE] : SIZE_DEFAULT;
	const char *path = in->values[OPT_DATA_PATH];
	int64_t rounds = ROUNDS_DEFAULT;
	int r = 0;

	if (conf_size_bytes(&o->size_bytes, size) < 0 || o->size_bytes < 1 << 20 ||
	    o->size_bytes > SIZE_MAX_BYTES)
		return brumate_fail(err, EINVAL, "--size %s: want a size of at least 1M", size);
	if (in->values[OPT_ROUNDS])
		r = parse_count(&rounds, "--rounds", in->values[OPT_ROUNDS], err);
	if (r == 0)
		r = get_percent(&o->zero, "zero", in->values[OPT_ZERO], 99, err);
	if (r == 0)
		r = get_percent(&o->change, "change", in->values[OPT_CHANGE], 100, err);
	if (r == 0)
		r = get_pieces(pieces, pieces_bytes,
			       in->values[OPT_PIECES] ? in->values[OPT_PIECES] : "64M", err);
	if (r < 0)
		return r;
	o->pieces_kib = pieces;
	o->keep_copy = in->values[OPT_KEEP_COPY];
	o->live = in->values[OPT_LIVE];
	o->rounds = rounds > ROUNDS_MAX ? ROUNDS_MAX : (unsigned)rounds;
	o->gpu = in->values[OPT_GPU] ? in->values[OPT_GPU] : getenv("BRUMATE_GPU");
	if (o->gpu && strcmp(o->gpu, "simulated") != 0)
		o->gpu = NULL;
	o->paths = both_paths;
	if (path && strcmp(path, "both") != 0)
		o->paths = strcmp(path, "driver") ? broker_only : driver_only;
	return 0;
}

static int run_all(struct bench *b, struct brumate_error *err)
{
	int r = bench_measure_memcpy(&b->limits, err);

	if (r == 0 && b->options.dir)
		r = bench_measure_disk(&b->limits, b->options.dir, err);
	for (const char *const *path = b->options.paths; r == 0 && *path; path++)
		r = bench_run_path(b, *path, err);
	return r;
}

int verb_bench(const struct invocation *in, struct brumate_error *err)
{
	auto_(bench_fini) struct bench b = { 0 };
	auto_free char *dir = in->values[OPT_DIR] ? absolute_path(in->values[OPT_DIR]) : NULL;
	char pieces[64];
	int r = get_options(&b.options, in, pieces, sizeof(pieces), err);

	if (r < 0)
		return r;
	if (dir && (r = mkdir_parents(dir, 0700)) < 0)
		return brumate_fail(err, -r, "%s: %m", dir);
	b.options.dir = dir;
	r = run_all(&b, err);
	if (r == 0 && in->values[OPT_TRACE])
		r = bench_write_trace(&b, in->values[OPT_TRACE], err);
	if (r < 0)
		return r;
	if (!wants_json(in))
		return bench_print(&b, err);
	auto_json json_t *o = bench_to_json(&b);
	return o ? print_json(o, err) : brumate_fail(err, ENOMEM, "%m");
}

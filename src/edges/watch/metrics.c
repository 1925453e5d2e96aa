// SPDX-License-Identifier: MIT
/* The text format of Prometheus (https://prometheus.io/docs/instrumenting/exposition_formats/). See metrics.h. */
#include "edges/watch/metrics.h"
#include "cli/output.h"

#include <string.h>

#include "base/clock.h"
#include "base/plain.h"
#include "job/record.h"
#include "wire/wire.h"

/* A value may hold any text that its user chose; it can end neither the value nor the line, and a terminal only draws it. */
static void print_value(FILE *f, const char *text)
{
	bool is_safe;

	putc('"', f);
	for (size_t n; *text; text += n) {
		n = plain_step(text, &is_safe);
		if (*text == '\n')
			fputs("\\n", f);
		else if (!is_safe)
			putc('?', f);
		else
			fprintf(f, "%s%.*s", *text == '\\' || *text == '"' ? "\\" : "", (int)n,
				text);
	}
	putc('"', f);
}

static void begin_family(FILE *f, const char *name, const char *type, const char *help)
{
	fprintf(f, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* A sample about a job: "NAME{job="1a2b3c4d",KEY="TEXT"} VALUE". @key: of one more label; NULL: none. */
struct sample {
	const char *name;
	const char *key, *text;
	const char *key2, *text2;
};

static void print_job_sample(const struct metrics *m, json_t *job, const struct sample *s,
			     double value, FILE *f)
{
	fprintf(f, "%s{job=", s->name);
	print_value(f, text_of(job, "id"));
	if (json_object_get(job, "user")) { /* of all users' */
		fputs(",user=", f);
		print_value(f, text_of(job, "user"));
	}
	if (m->names) {
		fputs(",name=", f);
		print_value(f, text_of(job, "name"));
	}
	if (s->key) {
		fprintf(f, ",%s=", s->key);
		print_value(f, s->text);
	}
	if (s->key2) {
		fprintf(f, ",%s=", s->key2);
		print_value(f, s->text2);
	}
	fprintf(f, "} %.15g\n", value); /* with more, 0.3 would be 0.29999999999999999 */
}

/* ---- values of a job; false: it has none ---- */

typedef bool (*job_value_fn)(json_t *job, const char *key, double *ret);

static bool number(json_t *job, const char *key, double *ret)
{
	json_t *value = json_object_get(job, key);

	*ret = json_number_value(value);
	return json_is_number(value);
}

static bool stamp(json_t *job, const char *key, double *ret)
{
	uint64_t ms;

	if (clock_parse_stamp(&ms, text_of(job, key)) < 0)
		return false;
	*ret = (double)ms / 1000;
	return true;
}

static bool seconds(json_t *job, const char *key, double *ret)
{
	*ret = json_number_value(json_object_get(job, key)) / 1000;
	return true;
}

static bool is_given(json_t *job, const char *key, double *ret)
{
	*ret = text_of(job, key)[0] != '\0';
	return true;
}

static bool schedule_every(json_t *job, const char *key, double *ret)
{
	bool has = number(json_object_get(job, "schedule"), key, ret);

	*ret /= 1000;
	return has;
}

static bool schedule_failed(json_t *job, const char *key, double *ret)
{
	json_t *schedule = json_object_get(job, "schedule");

	*ret = text_of(schedule, key)[0] != '\0';
	return json_is_object(schedule);
}

static bool schedule_stamp(json_t *job, const char *key, double *ret)
{
	return stamp(json_object_get(job, "schedule"), key, ret);
}

static bool last_checkpoint(json_t *job, const char *key, double *ret)
{
	json_t *counts = json_object_get(json_object_get(job, "counts"), "checkpoint");
	bool has = number(counts, key, ret);

	*ret /= 1000;
	return has;
}

static const struct {
	const char *name, *help, *key;
	job_value_fn value;
} job_gauges[] = {
	{ "brumate_job_processes", "Processes of the job.", "processes", number },
	{ "brumate_job_gpu_processes", "Processes of the job that use a GPU.", "gpu_processes",
	  number },
	{ "brumate_job_device_memory_bytes",
	  "Device memory of the job: on the GPU, or, of one that is suspended or saved, what it "
	  "needs again.",
	  "device_memory_bytes", number },
	{ "brumate_job_host_copy_bytes",
	  "Host memory that holds copies of the job's device memory.", "copy_bytes", number },
	{ "brumate_job_waiting_seconds",
	  "For how long the job has waited for device memory that others have; 0: it does not.",
	  "waits_ms", seconds },
	{ "brumate_job_created_timestamp_seconds", "When the record of the job was made.",
	  "created", stamp },
	{ "brumate_job_last_operation_failed", "Whether the last operation on the job failed.",
	  "message", is_given },
	{ "brumate_job_last_checkpoint_timestamp_seconds",
	  "When the latest checkpoint of the job was made.", "last_ms", last_checkpoint },
	{ "brumate_job_schedule_interval_seconds", "Time between checkpoints by schedule.",
	  "every_ms", schedule_every },
	{ "brumate_job_schedule_next_timestamp_seconds",
	  "When the next checkpoint by schedule is due.", "next", schedule_stamp },
	{ "brumate_job_schedule_failed", "Whether the last checkpoint by schedule failed.",
	  "failure", schedule_failed },
};

static void print_job_gauges(const struct metrics *m, FILE *f)
{
	for (size_t i = 0; i < sizeof(job_gauges) / sizeof(job_gauges[0]); i++) {
		const struct sample s = { .name = job_gauges[i].name };
		json_t *job;
		size_t k;

		begin_family(f, s.name, "gauge", job_gauges[i].help);
		json_array_foreach (m->jobs, k, job) {
			double value;

			if (job_gauges[i].value(job, job_gauges[i].key, &value))
				print_job_sample(m, job, &s, value, f);
		}
	}
}

static void print_states(const struct metrics *m, FILE *f)
{
	const char *name = "brumate_jobs";
	json_t *job;
	size_t i;

	begin_family(f, name, "gauge", "Jobs by state.");
	for (int state = 0; state < JOB_STATE__MAX; state++) {
		unsigned n = 0;

		json_array_foreach (m->jobs, i, job)
			n += !strcmp(text_of(job, "state"), job_state_name(state));
		fprintf(f, "%s{state=\"%s\"} %u\n", name, job_state_name(state), n);
	}
	name = "brumate_job_state";
	begin_family(f, name, "gauge", "1 for the state that the job is in.");
	json_array_foreach (m->jobs, i, job)
		print_job_sample(
			m, job,
			&(struct sample){ name, "state", text_of(job, "state"), NULL, NULL }, 1, f);
}

/* What an administrator asks first: whether one more job can be suspended. */
static void print_host_memory(const struct metrics *m, FILE *f)
{
	size_t i, n = 0;
	uint64_t bytes = 0;
	json_t *job;

	json_array_foreach (m->jobs, i, job) {
		n += bytes_of(job, "copy_bytes") > 0;
		bytes += bytes_of(job, "copy_bytes");
	}
	begin_family(f, "brumate_host_copies", "gauge",
		     "Jobs of whose device memory there is a copy in host memory.");
	fprintf(f, "brumate_host_copies %zu\n", n);
	begin_family(f, "brumate_host_copies_bytes", "gauge", "What those copies take.");
	fprintf(f, "brumate_host_copies_bytes %llu\n", (unsigned long long)bytes);
	begin_family(f, "brumate_host_prepared_bytes", "gauge",
		     "Host memory that brokers have ready for the next copies.");
	fprintf(f, "brumate_host_prepared_bytes %llu\n", (unsigned long long)m->prepared_bytes);
}

/* ---- operations ---- */

static const char *const kinds[] = { "suspend", "resume", "checkpoint", "restore" };
static const char *const results[] = { "done", "failed", "cancelled" };
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]), RESULTS = sizeof(results) / sizeof(results[0]) };

/* All kinds and results are there from the start, so that the first failure is an increase. */
static void print_results(const struct metrics *m, json_t *job, FILE *f)
{
	for (size_t i = 0; i < KINDS; i++) {
		json_t *of_kind = json_object_get(json_object_get(job, "counts"), kinds[i]);

		for (size_t k = 0; k < RESULTS; k++) {
			const struct sample s = { "brumate_job_operations_total", "operation",
						  kinds[i], "result", results[k] };

			print_job_sample(m, job, &s,
					 json_number_value(json_object_get(of_kind, results[k])),
					 f);
		}
	}
}

/* A job that is suspended stands still on. */
static double standing_now(const struct metrics *m, json_t *job, const char *kind)
{
	json_t *since = json_object_get(json_object_get(job, "counts"), "still_since_ns");
	double now_s = (double)m->boot_ns / (double)NS_PER_S;
	double since_s = json_number_value(since) / (double)NS_PER_S;

	if (!json_is_number(since) || strcmp(kind, "resume") != 0 ||
	    strcmp(text_of(job, "state"), job_state_name(JOB_SUSPENDED)) != 0)
		return 0;
	return now_s > since_s ? now_s - since_s : 0;
}

static const struct {
	const char *name, *help, *key;
} job_counters[] = {
	{ "brumate_job_operation_seconds_total", "Time that operations took which were done.",
	  "seconds" },
	{ "brumate_job_standstill_seconds_total",
	  "Time that the job stood still; a suspension counts as the operation \"resume\".",
	  "standstill_s" },
	{ "brumate_job_device_bytes_total", "Device memory that operations saved or brought back.",
	  "gpu_bytes" },
	{ "brumate_job_image_bytes_total", "Bytes of checkpoints that operations wrote or read.",
	  "image_bytes" },
};

static void print_counter(const struct metrics *m, size_t counter, json_t *job, FILE *f)
{
	const char *key = job_counters[counter].key;

	for (size_t i = 0; i < KINDS; i++) {
		const struct sample s = { .name = job_counters[counter].name,
					  .key = "operation",
					  .text = kinds[i] };
		json_t *of_kind = json_object_get(json_object_get(job, "counts"), kinds[i]);
		double value = json_number_value(json_object_get(of_kind, key));

		if (!strcmp(key, "standstill_s"))
			value += standing_now(m, job, kinds[i]);
		print_job_sample(m, job, &s, value, f);
	}
}

static void print_operations(const struct metrics *m, FILE *f)
{
	json_t *job;
	size_t i;

	begin_family(f, "brumate_job_operations_total", "counter",
		     "Operations on the job, by kind and result.");
	json_array_foreach (m->jobs, i, job)
		print_results(m, job, f);
	for (size_t c = 0; c < sizeof(job_counters) / sizeof(job_counters[0]); c++) {
		begin_family(f, job_counters[c].name, "counter", job_counters[c].help);
		json_array_foreach (m->jobs, i, job)
			print_counter(m, c, job, f);
	}
}

/* ---- checkpoints ---- */

static void print_checkpoints(const struct metrics *m, FILE *f)
{
	json_int_t bytes = 0, disk_bytes = 0, damaged = 0;
	json_t *checkpoint;
	size_t i;

	if (!m->checkpoints)
		return;
	json_array_foreach (m->checkpoints, i, checkpoint) {
		bytes += json_integer_value(json_object_get(checkpoint, "bytes"));
		disk_bytes += json_integer_value(json_object_get(checkpoint, "disk_bytes"));
		damaged += json_is_string(json_object_get(checkpoint, "error"));
	}
	begin_family(f, "brumate_checkpoints", "gauge", "Checkpoints in the default place.");
	fprintf(f, "brumate_checkpoints %zu\n", json_array_size(m->checkpoints));
	begin_family(f, "brumate_checkpoints_damaged", "gauge", "Those that cannot be opened.");
	fprintf(f, "brumate_checkpoints_damaged %lld\n", (long long)damaged);
	begin_family(f, "brumate_checkpoints_bytes", "gauge",
		     "What is saved in them, before compression and sharing.");
	fprintf(f, "brumate_checkpoints_bytes %lld\n", (long long)bytes);
	begin_family(f, "brumate_checkpoints_disk_bytes", "gauge", "What they take on the disk.");
	fprintf(f, "brumate_checkpoints_disk_bytes %lld\n", (long long)disk_bytes);
	if (!m->store_bytes)
		return;
	begin_family(f, "brumate_store_size_bytes", "gauge",
		     "Size of the file system that the default place is on.");
	fprintf(f, "brumate_store_size_bytes %llu\n", (unsigned long long)m->store_bytes);
	begin_family(f, "brumate_store_free_bytes", "gauge", "What is free of it.");
	fprintf(f, "brumate_store_free_bytes %llu\n", (unsigned long long)m->store_free_bytes);
}

/* ---- pods ---- */

/* A sum and of how many, as those who take averages want it. */
static void print_summary(FILE *f, const char *name, const char *help, double sum, double count)
{
	begin_family(f, name, "summary", help);
	fprintf(f, "%s_sum %.15g\n%s_count %.15g\n", name, sum, name, count);
}

/* Named as the kubelet's own for checkpoints of pods are to be. */
static void print_pods(const struct metrics *m, FILE *f)
{
	json_t *saved = json_object_get(m->pods, "checkpoint");
	double done = json_number_value(json_object_get(saved, "done"));

	if (!m->pods)
		return;
	begin_family(f, "brumate_pod_checkpoint_operations_total", "counter",
		     "Checkpoints of pods that were asked for by brumate, by result.");
	for (size_t i = 0; i < RESULTS; i++)
		fprintf(f, "brumate_pod_checkpoint_operations_total{result=\"%s\"} %.15g\n",
			results[i], json_number_value(json_object_get(saved, results[i])));
	print_summary(f, "brumate_pod_checkpoint_duration_seconds",
		      "Time that those took which were done, over all containers of the pod.",
		      json_number_value(json_object_get(saved, "seconds")), done);
	print_summary(f, "brumate_pod_checkpoint_size_bytes",
		      "Their archives, as far as they are on this machine.",
		      json_number_value(json_object_get(saved, "image_bytes")), done);
}

void metrics_print(const struct metrics *m, FILE *f)
{
	begin_family(f, "brumate_build_info", "gauge", "1, with the version.");
	fprintf(f, "brumate_build_info{version=\"%s\"} 1\n", BRUMATE_VERSION);
	begin_family(f, "brumate_collector_success", "gauge",
		     "Whether all of the jobs, and of the checkpoints, could be looked at.");
	fprintf(f, "brumate_collector_success{collector=\"jobs\"} %d\n", m->jobs != NULL);
	fprintf(f, "brumate_collector_success{collector=\"checkpoints\"} %d\n",
		m->checkpoints != NULL);
	if (m->jobs) {
		print_states(m, f);
		print_job_gauges(m, f);
		print_host_memory(m, f);
		print_operations(m, f);
	}
	print_checkpoints(m, f);
	print_pods(m, f);
}

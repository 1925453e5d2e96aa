// SPDX-License-Identifier: MIT
/* The method Doctor: all checks of the machine, or the scan of one job or process. Changes nothing. */
#include "service/doctor.h"
#include "service/access.h"
#include "service/jobs.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "engine/op.h"
#include "process/scan.h"

static const char *const level_names[] = {
	[FINDING_OK] = "ok",
	[FINDING_NOTE] = "note",
	[FINDING_WARN] = "warn",
	[FINDING_FAIL] = "fail",
};

static void add(struct doctor *d, enum finding_level level, const char *key, const char *text,
		const char *hint)
{
	json_t *o = json_pack("{s:s,s:s,s:s,s:s}", "level", level_names[level], "key", key, "text",
			      text, "hint", hint);

	if (json_array_append_new(d->findings, o) < 0)
		d->out_of_memory = true;
}

void finding(struct doctor *d, enum finding_level level, const char *key, const char *hint,
	     const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	add(d, level, key, text, hint);
}

void finding_error(struct doctor *d, enum finding_level level, const char *key,
		   const struct brumate_error *err)
{
	add(d, level, key, err->text, err->hint);
}

void fact(struct doctor *d, const char *key, json_t *value)
{
	if (json_object_set_new(d->facts, key, value) < 0)
		d->out_of_memory = true;
}

bool read_line(const char *path, char *ret, size_t room)
{
	auto_fclose FILE *f = fopen(path, "re");

	if (!f || !fgets(ret, (int)room, f))
		return false;
	ret[strcspn(ret, "\n")] = '\0';
	return true;
}

static void check_machine(struct doctor *d)
{
	static void (*const checks[])(struct doctor * d) = {
		doctor_kernel, doctor_criu, doctor_driver, doctor_room, doctor_brumate,
	};

	for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++)
		checks[i](d);
}

/* ---- one job ---- */

static void add_scanned(struct doctor *d, const struct scan_report *report)
{
	static const enum finding_level levels[] = {
		[SCAN_NOTE] = FINDING_NOTE,
		[SCAN_SUSPECT] = FINDING_WARN,
		[SCAN_REFUSE] = FINDING_FAIL,
	};

	for (size_t i = 0; i < report->n; i++) {
		const struct scan_finding *f = &report->items[i];

		add(d, levels[f->level], f->what, f->text, f->hint);
	}
}

/* With the driver's view where there is a driver, else by what /proc tells. */
static int scan_process(struct doctor *d, struct proc_id root, struct brumate_error *err)
{
	struct job j = { .root = root, .simulated = d->simulated, .by_pid = true };
	struct progress_caller nobody = { 0 };
	auto_(op_fini) struct op op;
	auto_(scan_report_fini) struct scan_report report = SCAN_REPORT_EMPTY;

	op_init(&op, "scan", &j, &nobody, NULL);
	int r = op_find_gpus(&op, err);
	if (r < 0 && r != -ESRCH) {
		finding_error(d, FINDING_WARN, "driver", err);
		r = proc_tree_read(&op.tree, root, err);
	}
	if (r == 0)
		r = preflight_scan(&op, SCAN_GPU | SCAN_CRIU, &report, err);
	if (r == 0)
		add_scanned(d, &report);
	return r;
}

static int scan_job(struct doctor *d, const struct job *j, struct brumate_error *err)
{
	auto_json json_t *reply = NULL;
	json_t *findings, *item;
	size_t i;

	if (!job_is_alive(j))
		return brumate_fail(err, ESRCH, "job %s is not running (%s)", j->id,
				    job_state_name(j->state));
	int r = shim_relay(d->call, j, "Scan", NULL, &reply, err);
	if (r == 0)
		r = wire_get_array(reply, "findings", &findings, err);
	if (r < 0)
		return r;
	json_array_foreach (findings, i, item)
		if (json_array_append(d->findings, item) < 0)
			d->out_of_memory = true;
	return 0;
}

static void add_verdict(struct doctor *d, const char *what)
{
	json_t *item;
	size_t i;

	json_array_foreach (d->findings, i, item) {
		const char *level = json_string_value(json_object_get(item, "level"));

		if (level && strcmp(level, "ok") && strcmp(level, "note"))
			return;
	}
	finding(d, FINDING_OK, "scan", "", "nothing found in %s that would not checkpoint", what);
}

static int check_job(struct doctor *d, const char *word, pid_t pid, struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	auto_(job_fini) struct job j = JOB_EMPTY;
	char what[64];
	int r = word ? access_job(&j, d->call, word, err) : access_tree(&tree, d->call, pid, err);
	if (r < 0)
		return r;

	if (word || job_find_by_pid(&j, pid, NULL) == 0) {
		snprintf(what, sizeof(what), "job %s", j.id);
		r = scan_job(d, &j, err);
	} else {
		snprintf(what, sizeof(what), "process %d", (int)pid);
		r = scan_process(d, tree.items[0].id, err);
	}
	if (r == 0)
		add_verdict(d, what);
	return r;
}

int service_doctor(const struct service_call *call, json_t *parameters, json_t **ret,
		   struct brumate_error *err)
{
	auto_json json_t *findings = json_array();
	auto_json json_t *facts = json_object();
	struct doctor d = { .call = call, .findings = findings, .facts = facts };
	const char *word;
	int64_t pid = 0;
	int r = wire_get_string(parameters, "job", &word, err);

	if (r == 0)
		r = wire_get_int(parameters, "pid", 1, INT_MAX, &pid, err);
	if (r == 0)
		r = get_simulated(parameters, &d.simulated, err);
	if (r < 0)
		return r;
	if (word && pid)
		return wire_fail_parameter(err, "job", "want job or pid, not both");

	if (word || pid)
		r = check_job(&d, word, (pid_t)pid, err);
	else
		check_machine(&d);
	if (r < 0)
		return r;
	json_t *reply = d.out_of_memory
				? NULL
				: json_pack("{s:O,s:O}", "findings", findings, "facts", facts);
	if (!reply)
		return brumate_fail(err, ENOMEM, "%m");
	*ret = reply;
	return 0;
}

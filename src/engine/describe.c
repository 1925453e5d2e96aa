// SPDX-License-Identifier: MIT
/* What a checkpoint says of itself. */
#include "engine/steps.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "process/hugetlb.h"
#include "process/reaper.h"

enum { CPUINFO_BYTES_MAX = 4 << 20 };

static void describe_cpu(char *ret, size_t room)
{
	auto_free char *text = NULL;

	if (file_read(AT_FDCWD, "/proc/cpuinfo", CPUINFO_BYTES_MAX, &text, NULL) < 0)
		return;
	char *line = strstr(text, "model name");
	char *value = line ? strchr(line, ':') : NULL;
	char *end = value ? strchr(value, '\n') : NULL;
	if (!end)
		return;
	*end = '\0';
	snprintf(ret, room, "%s", value + 1 + strspn(value + 1, " \t"));
}

static void describe_host(struct manifest *m)
{
	struct utsname u;

	if (uname(&u) == 0) {
		snprintf(m->host.kernel, sizeof(m->host.kernel), "%s", u.release);
		snprintf(m->host.machine, sizeof(m->host.machine), "%s", u.machine);
		snprintf(m->host.hostname, sizeof(m->host.hostname), "%s", u.nodename);
	}
	describe_cpu(m->host.cpu_model, sizeof(m->host.cpu_model));
	proc_boot_id(m->host.boot_id);
	m->host.page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
}

static int describe_job(struct op *op)
{
	struct manifest *m = &op->checkpoint.manifest;
	const struct target *target = op->target;

	snprintf(m->job.id, sizeof(m->job.id), "%s", target->id);
	snprintf(m->job.name, sizeof(m->job.name), "%s", target->name);
	snprintf(m->job.started_as, sizeof(m->job.started_as), "%s", target->started_as);
	m->job.uid = target->uid;
	m->job.gid = target->gid;
	m->job.simulated = target->simulated;
	snprintf(m->job.gpu_vendor, sizeof(m->job.gpu_vendor), "%s", target->vendor);
	m->job.rootfs = strdup("/");
	if (!m->job.rootfs || (target->log && !(m->job.log = strdup(target->log))))
		return -ENOMEM;
	return target->owned_by->describe(target, m);
}

static const struct gpu_process *gpu_process(const struct op *op, pid_t pid)
{
	for (size_t i = 0; i < op->gpus.n; i++)
		if (op->gpus.items[i].id.pid == pid)
			return &op->gpus.items[i];
	return NULL;
}

static pid_t inner_ppid(const struct proc_tree *tree, size_t i)
{
	for (size_t k = 0; k < i; k++)
		if (tree->items[k].id.pid == tree->items[i].ppid)
			return tree->items[k].inner_pid;
	return 0;
}

static int describe_huge_pages(struct manifest *m, const struct proc_tree *tree)
{
	struct hugetlb_sums sums;
	int r = hugetlb_sum(&sums, tree);

	if (r < 0 || !sums.n)
		return r;
	m->huge_pages = calloc(sums.n, sizeof(*m->huge_pages));
	if (!m->huge_pages)
		return -ENOMEM;
	for (; m->n_huge_pages < sums.n; m->n_huge_pages++)
		m->huge_pages[m->n_huge_pages] =
			(struct manifest_huge_pages){ sums.items[m->n_huge_pages].page_bytes,
						      sums.items[m->n_huge_pages].bytes };
	return 0;
}

static int describe_processes(struct op *op, struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	struct manifest *m = &op->checkpoint.manifest;
	int r = proc_tree_read(&tree, op->target->root, err);

	if (r < 0)
		return r;
	if ((r = describe_huge_pages(m, &tree)) < 0)
		return brumate_fail(err, -r, "%m");
	m->processes = calloc(tree.n, sizeof(*m->processes));
	if (!m->processes)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < tree.n; i++) {
		const struct proc_info *info = &tree.items[i];
		const struct gpu_process *gpu = gpu_process(op, info->id.pid);
		struct manifest_process *p = &m->processes[m->n_processes];

		if (info->state == 'Z')
			continue;
		m->n_processes++;
		p->pid = info->inner_pid;
		p->ppid = inner_ppid(&tree, i);
		snprintf(p->comm, sizeof(p->comm), "%s", info->comm);
		p->gpu = gpu != NULL;
		p->stopped = target_find_stopped(op->target, info->id) != NULL;
		p->rss_bytes = info->rss_bytes;
	}
	/* The reaper ends with the last process that it stands for. */
	if (m->n_processes <= reaper_is(op->target->root))
		return brumate_fail(err, ESRCH, "job %s has ended", op->target->id);
	return 0;
}

static int describe_gpus(struct op *op, struct brumate_error *err)
{
	struct manifest *m = &op->checkpoint.manifest;
	auto_free struct broker_info *info = calloc(1, sizeof(*info));

	if (!op->gpus.n)
		return 0;
	if (!info)
		return brumate_fail(err, ENOMEM, "%m");
	int r = broker_client_info(&op->gpus.broker, info, err);
	if (r < 0)
		return r;
	snprintf(m->driver_version, sizeof(m->driver_version), "%s", info->device.driver_version);
	m->api_version = info->device.api_version;
	m->gpus = calloc(op->target->n_gpus + 1, sizeof(*m->gpus));
	if (!m->gpus)
		return brumate_fail(err, ENOMEM, "%m");
	m->n_gpus = op->target->n_gpus;
	for (size_t i = 0; i < m->n_gpus; i++) {
		const struct job_gpu *gpu = &op->target->gpus[i];

		snprintf(m->gpus[i].uuid, sizeof(m->gpus[i].uuid), "%s", gpu->uuid);
		snprintf(m->gpus[i].name, sizeof(m->gpus[i].name), "%s", gpu->name);
		m->gpus[i].used_bytes = gpu->bytes;
		for (size_t k = 0; k < info->n_gpus; k++)
			if (!strcmp(info->gpus[k].gpu.uuid, gpu->uuid))
				m->gpus[i].total_bytes = info->gpus[k].gpu.total_bytes;
	}
	return 0;
}

int describe_tree(struct op *op, struct brumate_error *err)
{
	struct manifest *m = &op->checkpoint.manifest;
	int r;

	m->version = MANIFEST_VERSION;
	snprintf(m->id, sizeof(m->id), "%s", op->checkpoint.writer.id);
	clock_stamp(m->created);
	m->sequence = op->target->sequence;
	snprintf(m->brumate_version, sizeof(m->brumate_version), "%s", BRUMATE_VERSION);
	m->criu_version = op->images.criu.version;
	m->leave_running = op->request->leave_running;
	m->tcp_close = op->request->tcp_close;
	describe_host(m);
	if (describe_job(op) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	if ((r = describe_processes(op, err)) < 0)
		return r;
	return describe_gpus(op, err);
}

int describe_phases(struct op *op)
{
	const struct progress *p = &op->progress;
	struct manifest *m = &op->checkpoint.manifest;
	struct manifest_phase *phases = calloc(p->n_phases + 1, sizeof(*phases));

	if (!phases)
		return -ENOMEM;
	for (size_t i = 0; i < p->n_phases; i++) {
		snprintf(phases[i].name, sizeof(phases[i].name), "%s", p->phases[i].name);
		phases[i].seconds = p->phases[i].seconds;
	}
	free(m->phases);
	m->phases = phases;
	m->n_phases = p->n_phases;
	if (p->stopped_ns && p->released_ns)
		m->downtime_seconds = (double)(p->released_ns - p->stopped_ns) / (double)NS_PER_S;
	return 0;
}

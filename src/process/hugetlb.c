// SPDX-License-Identifier: MIT
/* Counting huge pages by smaps, and by /sys; see hugetlb.h. */
#include "process/hugetlb.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "process/process.h"

enum { SMAPS_BYTES_MAX = 256 << 20, VMAS_MAX = 4096 };

/* ---- smaps ---- */

static const char deleted[] = " (deleted)";

/* Reads the first line of a mapping. Returns whether it is of a file without a name. */
static bool parse_head(const char *line, struct hugetlb_vma *ret)
{
	struct proc_mapping m;

	*ret = (struct hugetlb_vma){ 0 };
	if (!proc_mapping_parse(&m, line))
		return false;
	ret->start = m.start;
	ret->end = m.end;
	ret->inode = m.inode;
	ret->device = (uint64_t)m.major << 32 | m.minor;
	ret->shared = m.access[3] == 's';
	const size_t len = strlen(m.name), n = strlen(deleted);
	return len > n && !strcmp(m.name + len - n, deleted);
}

static void parse_line(const char *line, struct hugetlb_vma *vma)
{
	uint64_t own = smaps_bytes(line, "Private_Hugetlb:");

	vma->private_bytes += own;
	vma->there_bytes += own + smaps_bytes(line, "Shared_Hugetlb:");
	vma->page_bytes += smaps_bytes(line, "KernelPageSize:");
}

size_t hugetlb_parse_smaps(char *text, struct hugetlb_vma *ret, size_t room)
{
	struct hugetlb_vma vma = { 0 };
	bool candidate = false;
	char *rest = NULL;
	size_t n = 0;

	for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		if (smaps_is_head(line)) {
			candidate = parse_head(line, &vma);
			continue;
		}
		parse_line(line, &vma);
		if (!candidate || strncmp(line, "VmFlags:", 8) || !strstr(line, " ht") ||
		    !vma.page_bytes)
			continue;
		vma.unreserved = strstr(line, " nr");
		if (n < room)
			ret[n++] = vma;
	}
	return n;
}

/* ---- a tree ---- */

struct huge_mapping {
	struct hugetlb_vma vma;
	pid_t pid;
};

struct mappings {
	struct huge_mapping *items;
	size_t n;
};

static int add_mappings(struct mappings *m, pid_t pid)
{
	auto_free char *text = NULL;

	/* smaps walks all pages, and status does not. A mapping that was never touched does not count. */
	if (proc_status_number(pid, "HugetlbPages") <= 0 ||
	    proc_file_read(pid, "smaps", SMAPS_BYTES_MAX, &text, NULL) < 0)
		return 0;
	auto_free struct hugetlb_vma *vmas = malloc(VMAS_MAX * sizeof(*vmas));
	if (!vmas)
		return -ENOMEM;
	size_t n = hugetlb_parse_smaps(text, vmas, VMAS_MAX);
	struct huge_mapping *items = reallocarray(m->items, m->n + n + 1, sizeof(*items));
	if (!items)
		return -ENOMEM;
	m->items = items;
	for (size_t i = 0; i < n; i++)
		m->items[m->n++] = (struct huge_mapping){ vmas[i], pid };
	return 0;
}

static void add_bytes(struct hugetlb_sums *sums, uint64_t page_bytes, uint64_t bytes)
{
	size_t i = 0;

	while (i < sums->n && sums->items[i].page_bytes != page_bytes)
		i++;
	if (i == HUGETLB_SIZES_MAX || !bytes)
		return;
	if (i == sums->n) {
		sums->items[sums->n].page_bytes = page_bytes;
		sums->items[sums->n++].bytes = 0;
	}
	sums->items[i].bytes += bytes;
}

static uint64_t claim_of(const struct hugetlb_vma *v)
{
	return v->unreserved ? v->there_bytes : v->end - v->start;
}

/* Of all mappings of one file the largest counts: parts that only other mappings have are not added up. */
static bool is_largest(const struct mappings *m, size_t i)
{
	const struct hugetlb_vma *v = &m->items[i].vma;

	for (size_t k = 0; k < m->n; k++) {
		const struct hugetlb_vma *w = &m->items[k].vma;

		if (k == i || !w->shared || w->device != v->device || w->inode != v->inode)
			continue;
		if (claim_of(w) > claim_of(v) || (claim_of(w) == claim_of(v) && k < i))
			return false;
	}
	return true;
}

/* A forked process has a claim to those pages alone that it has written to. */
static bool is_inherited(const struct mappings *m, size_t i, pid_t ppid)
{
	const struct hugetlb_vma *v = &m->items[i].vma;

	for (size_t k = 0; k < m->n; k++)
		if (m->items[k].pid == ppid && m->items[k].vma.inode == v->inode &&
		    m->items[k].vma.start < v->end && v->start < m->items[k].vma.end)
			return true;
	return false;
}

static pid_t parent_of(const struct proc_tree *tree, pid_t pid)
{
	for (size_t i = 0; i < tree->n; i++)
		if (tree->items[i].id.pid == pid)
			return tree->items[i].ppid;
	return 0;
}

int hugetlb_sum(struct hugetlb_sums *ret, const struct proc_tree *tree)
{
	struct hugetlb_sums sums = { 0 };
	struct mappings m = { 0 };
	int r = 0;

	for (size_t i = 0; r == 0 && i < tree->n; i++)
		r = add_mappings(&m, tree->items[i].id.pid);
	for (size_t i = 0; r == 0 && i < m.n; i++) {
		const struct hugetlb_vma *v = &m.items[i].vma;

		if (v->shared && !is_largest(&m, i))
			continue;
		bool inherited = !v->shared && is_inherited(&m, i, parent_of(tree, m.items[i].pid));
		add_bytes(&sums, v->page_bytes, inherited ? v->private_bytes : claim_of(v));
	}
	free(m.items);
	if (r == 0)
		*ret = sums;
	return r;
}

/* ---- this machine ---- */

/* Reads a number; 0 where there are no pages of that size. */
static uint64_t read_pages(uint64_t page_bytes, const char *name)
{
	auto_free char *text = NULL;
	char path[128];

	snprintf(path, sizeof(path), "/sys/kernel/mm/hugepages/hugepages-%" PRIu64 "kB/%s",
		 page_bytes >> 10, name);
	return file_read(AT_FDCWD, path, 64, &text, NULL) < 0 ? 0 : strtoull(text, NULL, 10);
}

static uint64_t less(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

uint64_t hugetlb_free_bytes(uint64_t page_bytes)
{
	uint64_t idle = less(read_pages(page_bytes, "free_hugepages"),
			     read_pages(page_bytes, "resv_hugepages"));
	/* These are made when they are asked for, if memory allows. */
	uint64_t more = less(read_pages(page_bytes, "nr_overcommit_hugepages"),
			     read_pages(page_bytes, "surplus_hugepages"));

	return (idle + more) * page_bytes;
}

uint64_t hugetlb_pool_pages(uint64_t page_bytes)
{
	return read_pages(page_bytes, "nr_hugepages");
}

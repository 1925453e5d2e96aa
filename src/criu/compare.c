// SPDX-License-Identifier: MIT
/*
 * Compares restored processes with their images; see compare.h. Each image is read, compared and freed before the next.
 * The kernel joins mappings that are alike and lie side by side, so that mappings are compared by what covers an address
 * and not one by one.
 */
#include "criu/compare.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/param.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "criu/images.h"
#include "images.pb-c.h"
#include "process/credentials.h"
#include "process/process.h"

#define MAGIC_PAGEMAP 0x56084025u
#define MAGIC_CORE    0x55053847u

enum {
	PROC_BYTES_MAX = 64 << 20,
	BUFFER_BYTES = 1 << 20,
	AREA_VSYSCALL = 1 << 2,
	AREA_VDSO = 1 << 3,
	AREA_ANON_SHARED = 1 << 8,
	AREA_VVAR = 1 << 12,
	AREA_GUARD = 1 << 16,
	AREA_UPROBES = 1 << 17,
	PAGES_PRESENT = 1 << 2,
	TASK_DEAD = 2,
	TYPE_REGULAR = 1,
	N_ACTIONS = 62, /* of 64 signals, without SIGKILL and SIGSTOP */
};

/* A file of files.img. */
struct file {
	uint32_t type, id;
	char *path; /* of a regular one; owned */
	uint32_t flags, mode;
	uint64_t position;
	bool is_remapped; /* deleted: it has another path by now */
};

/* Memory of a thread in which the kernel notes on which processor it is (rseq(2)). */
struct kernel_area {
	uint64_t start, end;
};

struct comparing {
	const struct criu_comparing *what;
	int proc_fd;
	struct criu_compared done;
	struct file *files; /* sorted by type and id */
	size_t n_files;
	struct criu_image_tree tree;

	/* the process that is looked at */
	pid_t pid;
	int dir_fd; /* /proc/PID */
	const CriuImage__Memory *memory;
	uint64_t *shared; /* owned; memory that was compared already */
	size_t n_shared;
	struct kernel_area *areas; /* owned */
	size_t n_areas;
};

/* ---- images ---- */

static int fail_damaged(struct brumate_error *err, const char *name)
{
	return brumate_fail(err, EBADMSG, "CRIU's image %s is damaged", name);
}

/* @ret: owned. -ENOENT: there is none, without @err. */
static int read_image(const struct comparing *c, const char *name, char **ret, size_t *ret_len,
		      struct brumate_error *err)
{
	int r = file_read_plain(c->what->dir_fd, name, CRIU_IMAGE_BYTES_MAX, ret, ret_len);

	return r < 0 && r != -ENOENT ? brumate_fail(err, -r, "CRIU's image %s: %m", name) : r;
}

/* -EINVAL: the image is damaged. */
typedef int (*message_fn)(struct comparing *c, const void *message, struct brumate_error *err);

/* An image, and what is done with each of its entries, which are messages of one type. */
struct part {
	uint32_t magic;
	const ProtobufCMessageDescriptor *type;
	message_fn fn;
};

/* Of an image there may be none. */
static int each_entry(struct comparing *c, const char *name, const struct part *part,
		      struct brumate_error *err)
{
	auto_free char *text = NULL;
	struct criu_entries image, entry;
	size_t len;
	int r = read_image(c, name, &text, &len, err);

	if (r < 0)
		return r == -ENOENT ? 0 : r;
	if (criu_entries_open(&image, text, len, CRIU_MAGIC_IMAGE, part->magic) < 0)
		return fail_damaged(err, name);
	while ((r = criu_entries_next(&image, &entry)) > 0) {
		ProtobufCMessage *m =
			protobuf_c_message_unpack(part->type, NULL, entry.left, entry.p);

		r = m ? part->fn(c, m, err) : -EINVAL;
		if (m)
			protobuf_c_message_free_unpacked(m, NULL);
		if (r < 0)
			return r == -EINVAL ? fail_damaged(err, name) : r;
	}
	return r < 0 ? fail_damaged(err, name) : 0;
}

static int each_of_process(struct comparing *c, const char *kind, const struct part *part,
			   struct brumate_error *err)
{
	char name[64];

	snprintf(name, sizeof(name), "%s-%d.img", kind, c->pid);
	return each_entry(c, name, part, err);
}

#define UNPACK(message, entry) criu_image__##message##__unpack(NULL, (entry)->left, (entry)->p)

/* ---- what is different ---- */

static int differs(const struct comparing *c, struct brumate_error *err, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

static int differs(const struct comparing *c, struct brumate_error *err, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return brumate_fail(err, EBADMSG, "process %d: %s", c->pid, text);
}

static int fail_look(const struct comparing *c, int code, const char *name,
		     struct brumate_error *err)
{
	return brumate_fail(err, code, "restored process %d: %s cannot be read: %m", c->pid, name);
}

/* A file of the process in /proc (owned). */
static int read_proc(const struct comparing *c, const char *name, char **ret,
		     struct brumate_error *err)
{
	int r = file_read(c->dir_fd, name, PROC_BYTES_MAX, ret, NULL);

	return r < 0 ? fail_look(c, -r, name, err) : 0;
}

static uint64_t number_of(const char *text, const char *key, int base)
{
	const char *field = proc_status_field(text, key);

	return field ? strtoull(field, NULL, base) : 0;
}

/* ---- files.img ---- */

static int by_type_and_id(const void *a, const void *b)
{
	const struct file *x = a, *y = b;

	if (x->type != y->type)
		return x->type < y->type ? -1 : 1;
	return x->id < y->id ? -1 : x->id > y->id;
}

static struct file *find_file(const struct comparing *c, uint32_t type, uint32_t id)
{
	const struct file key = { .type = type, .id = id };

	return c->n_files ? bsearch(&key, c->files, c->n_files, sizeof(key), by_type_and_id) : NULL;
}

static int add_file(struct comparing *c, const void *message, struct brumate_error *err)
{
	const CriuImage__File *m = message;
	struct file *files = array_room(c->files, c->n_files, sizeof(*files));
	struct file f = { .type = m->type, .id = m->id };

	if (!files)
		return brumate_fail(err, ENOMEM, "%m");
	c->files = files;
	if (m->regular) {
		f.path = strndup((const char *)m->regular->name.data, m->regular->name.len);
		f.flags = m->regular->flags;
		f.mode = m->regular->mode;
		f.position = m->regular->position;
		if (!f.path)
			return brumate_fail(err, ENOMEM, "%m");
	}
	files[c->n_files++] = f;
	return 0;
}

static int mark_remapped(struct comparing *c, const void *message, struct brumate_error *err)
{
	const CriuImage__RemappedPath *m = message;
	struct file *f = find_file(c, TYPE_REGULAR, m->file_id);

	if (f)
		f->is_remapped = true;
	return 0;
}

static const struct part all_files = { CRIU_MAGIC_FILES, &criu_image__file__descriptor, add_file },
			 remapped = { CRIU_MAGIC_REMAP_FPATH,
				      &criu_image__remapped_path__descriptor, mark_remapped };

static int read_files(struct comparing *c, struct brumate_error *err)
{
	int r = each_entry(c, "files.img", &all_files, err);

	if (r == 0 && c->n_files)
		qsort(c->files, c->n_files, sizeof(*c->files), by_type_and_id);
	return r < 0 ? r : each_entry(c, "remap-fpath.img", &remapped, err);
}

/* ---- descriptors ---- */

/* How the kernel names files of a type. */
static const char *const names_of_types[] = {
	[2] = "pipe:[",
	[4] = "socket:[",
	[5] = "socket:[",
	[6] = "anon_inode:[eventfd",
	[7] = "anon_inode:[eventpoll",
	[8] = "anon_inode:inotify",
	[9] = "anon_inode:[signalfd",
	[10] = "socket:[",
	[13] = "socket:[",
	[17] = "anon_inode:[timerfd",
	[18] = "/memfd:",
};

static bool is_replaced(const struct comparing *c, const struct file *f)
{
	static const char *const of_types[] = { [2] = "pipe:[", [11] = "tty[" };
	const char *begin =
		f->type < sizeof(of_types) / sizeof(of_types[0]) ? of_types[f->type] : NULL;

	for (size_t i = 0; i < c->what->n_replaced; i++)
		if ((begin && !strncmp(c->what->replaced[i], begin, strlen(begin))) ||
		    (f->path && !strcmp(f->path + strspn(f->path, "/"), c->what->replaced[i])))
			return true;
	return false;
}

static int compare_regular(const struct comparing *c, uint32_t fd, const struct file *f,
			   const char *link, const char *info, struct brumate_error *err)
{
	const uint32_t mask = O_ACCMODE | O_APPEND | O_NONBLOCK | O_PATH | O_DIRECT;
	uint64_t flags = number_of(info, "flags", 8), position = number_of(info, "pos", 10);

	if (!f->is_remapped && strcmp(link, f->path))
		return differs(c, err, "descriptor %" PRIu32 " is of %s, and was of %s", fd, link,
			       f->path);
	if ((flags ^ f->flags) & mask)
		return differs(c, err,
			       "descriptor %" PRIu32 " (%s) has the flags 0%" PRIo64
			       ", and had 0%" PRIo32,
			       fd, f->path, flags, f->flags);
	if (S_ISREG(f->mode) && !(f->flags & O_PATH) && position != f->position)
		return differs(c, err,
			       "descriptor %" PRIu32 " (%s) is at %" PRIu64 ", and was at %" PRIu64,
			       fd, f->path, position, f->position);
	return 0;
}

static int compare_descriptor(struct comparing *c, const void *message, struct brumate_error *err)
{
	const CriuImage__Descriptor *d = message;
	const size_t n_names = sizeof(names_of_types) / sizeof(names_of_types[0]);
	const struct file *f = find_file(c, d->type, d->id);
	auto_free char *info = NULL;
	char path[48], link[PATH_MAX + 16];

	if (!f)
		return -EINVAL;
	snprintf(path, sizeof(path), "fdinfo/%" PRIu32, d->fd);
	if (file_read(c->dir_fd, path, PROC_BYTES_MAX, &info, NULL) < 0)
		return differs(c, err, "descriptor %" PRIu32 " is missing", d->fd);
	if (!(number_of(info, "flags", 8) & O_CLOEXEC) != !(d->flags & FD_CLOEXEC))
		return differs(c, err, "descriptor %" PRIu32 " %s close-on-exec", d->fd,
			       d->flags & FD_CLOEXEC ? "was" : "was not");
	snprintf(path, sizeof(path), "fd/%" PRIu32, d->fd);
	ssize_t n = readlinkat(c->dir_fd, path, link, sizeof(link) - 1);
	if (n < 0)
		return fail_look(c, errno, path, err);
	link[n] = '\0';
	c->done.descriptors++;
	if (is_replaced(c, f))
		return 0;
	const char *begin = d->type < n_names ? names_of_types[d->type] : NULL;
	if (begin && strncmp(link, begin, strlen(begin)))
		return differs(c, err, "descriptor %" PRIu32 " is %s, and was one of %s...", d->fd,
			       link, begin);
	return f->path ? compare_regular(c, d->fd, f, link, info, err) : 0;
}

static const struct part descriptors = { CRIU_MAGIC_FDINFO, &criu_image__descriptor__descriptor,
					 compare_descriptor };

static int count_entries(int dir_fd, const char *name, size_t *ret)
{
	auto_closedir DIR *dir = dir_open(dir_fd, name);
	struct dirent *e;
	int r;

	*ret = 0;
	if (!dir)
		return -errno;
	while ((r = dir_next(dir, &e)) > 0)
		(*ret)++;
	return r;
}

/* As many descriptors as there are. */
static int compare_table(struct comparing *c, const void *message, struct brumate_error *err)
{
	const CriuImage__KernelIds *m = message;
	uint64_t before = c->done.descriptors;
	char name[64];
	size_t n;

	if (!m->has_files_id)
		return 0;
	snprintf(name, sizeof(name), "fdinfo-%" PRIu32 ".img", m->files_id);
	int r = each_entry(c, name, &descriptors, err);
	if (r < 0)
		return r;
	if ((r = count_entries(c->dir_fd, "fd", &n)) < 0)
		return fail_look(c, -r, "fd", err);
	if (n != c->done.descriptors - before)
		return differs(c, err, "has %zu descriptors, and had %" PRIu64, n,
			       c->done.descriptors - before);
	return 0;
}

static const struct part tables = { CRIU_MAGIC_IDS, &criu_image__kernel_ids__descriptor,
				    compare_table };

/* ---- mappings ---- */

struct mapped {
	uint64_t start, end;
	uint32_t protection;
	bool shared;
};

static bool parse_mapped(struct mapped *ret, const char *line)
{
	struct proc_mapping m;

	if (!proc_mapping_parse(&m, line))
		return false;
	*ret = (struct mapped){ m.start, m.end,
				(m.access[0] == 'r' ? PROT_READ : 0) |
					(m.access[1] == 'w' ? PROT_WRITE : 0) |
					(m.access[2] == 'x' ? PROT_EXEC : 0),
				m.access[3] == 's' };
	return true;
}

/* Those of the process now (owned), lowest first; that of the kernel's own is left out. */
static int read_mapped(const struct comparing *c, struct mapped **ret, size_t *ret_n,
		       struct brumate_error *err)
{
	auto_free char *text = NULL;
	auto_free struct mapped *all = NULL;
	size_t n = 0;
	int r = read_proc(c, "maps", &text, err);
	char *rest = text;

	for (char *line; r == 0 && (line = strsep(&rest, "\n"));) {
		struct mapped m;

		if (!parse_mapped(&m, line) || strstr(line, "[vsyscall]") ||
		    strstr(line, "[uprobes]"))
			continue;
		if (array_add(all, n, m) < 0)
			return brumate_fail(err, ENOMEM, "%m");
	}
	if (r < 0)
		return r;
	*ret = take_ptr(&all);
	*ret_n = n;
	return 0;
}

static bool is_compared(const CriuImage__Mapping *m)
{
	return !(m->status & (AREA_VSYSCALL | AREA_GUARD | AREA_UPROBES));
}

static const char *perms_text(char ret[static 6], uint32_t protection, bool shared)
{
	snprintf(ret, 6, "%c%c%c%c", protection & PROT_READ ? 'r' : '-',
		 protection & PROT_WRITE ? 'w' : '-', protection & PROT_EXEC ? 'x' : '-',
		 shared ? 's' : 'p');
	return ret;
}

/* @k: the first of @all that ends behind it, moved on. */
static int compare_mapping(const struct comparing *c, const CriuImage__Mapping *m,
			   const struct mapped *all, size_t n, size_t *k, struct brumate_error *err)
{
	const bool shared = m->flags & MAP_SHARED;
	const uint32_t protection = m->protection & (PROT_READ | PROT_WRITE | PROT_EXEC);
	char is[6], was[6];

	for (uint64_t at = m->start; at < m->end; at = all[*k].end) {
		while (*k < n && all[*k].end <= at)
			++*k;
		if (*k == n || all[*k].start > at)
			return differs(c, err,
				       "nothing is mapped at %" PRIx64 ", where its memory was",
				       at);
		if (all[*k].protection != protection || all[*k].shared != shared)
			return differs(c, err, "memory at %" PRIx64 " is %s, and was %s", at,
				       perms_text(is, all[*k].protection, all[*k].shared),
				       perms_text(was, protection, shared));
	}
	return 0;
}

static int compare_mappings(struct comparing *c, struct brumate_error *err)
{
	auto_free struct mapped *all = NULL;
	uint64_t was_bytes = 0, is_bytes = 0;
	size_t n = 0, k = 0;
	int r = read_mapped(c, &all, &n, err);

	for (size_t i = 0; r == 0 && i < c->memory->n_mappings; i++) {
		const CriuImage__Mapping *m = c->memory->mappings[i];

		if (!is_compared(m))
			continue;
		r = compare_mapping(c, m, all, n, &k, err);
		was_bytes += m->end - m->start;
		c->done.mappings++;
	}
	for (size_t i = 0; r == 0 && i < n; i++)
		is_bytes += all[i].end - all[i].start;
	if (r == 0 && is_bytes != was_bytes)
		r = differs(c, err, "has %" PRIu64 " kB mapped, and had %" PRIu64 " kB",
			    is_bytes >> 10, was_bytes >> 10);
	return r;
}

/* ---- pages ---- */

struct pages {
	int mem_fd, data_fd;
	const CriuImage__Mapping *
		shared; /* the memory is what this maps: addresses in the image are its offsets; or NULL */
	uint64_t at; /* in the data */
	char *now, *then;
};

/* What the kernel keeps there is its own: the time, and code that reads it. */
static bool is_of_kernel(const struct comparing *c, uint64_t va)
{
	for (size_t i = 0; i < c->memory->n_mappings; i++) {
		const CriuImage__Mapping *m = c->memory->mappings[i];

		if (va >= m->start && va < m->end)
			return m->status & (AREA_VDSO | AREA_VVAR | AREA_VSYSCALL);
	}
	return false;
}

/* The end of the area that @va lies in; 0: none. */
static uint64_t end_of_area(const struct comparing *c, uint64_t va)
{
	for (size_t i = 0; i < c->n_areas; i++)
		if (va >= c->areas[i].start && va < c->areas[i].end)
			return c->areas[i].end;
	return 0;
}

/* The first address at which the process has something else; 0: none. */
static uint64_t find_difference(const struct comparing *c, const struct pages *p, uint64_t va,
				size_t len)
{
	size_t i = memcmp(p->now, p->then, len) ? 0 : len;

	while (i < len) {
		uint64_t end;

		if (p->now[i] == p->then[i])
			i++;
		else if ((end = end_of_area(c, va + i)))
			i = (size_t)(end - va);
		else
			return va + i;
	}
	return 0;
}

static int compare_bytes(struct comparing *c, struct pages *p, uint64_t va, uint64_t at,
			 uint64_t len, struct brumate_error *err)
{
	for (uint64_t done = 0; done < len;) {
		size_t part = (size_t)MIN(len - done, (uint64_t)BUFFER_BYTES);

		if (fd_read_at(p->data_fd, p->then, part, at + done) != (ssize_t)part)
			return -EINVAL;
		if (fd_read_at(p->mem_fd, p->now, part, va + done) != (ssize_t)part)
			return differs(c, err, "its memory at %" PRIx64 " cannot be read",
				       va + done);
		uint64_t where = find_difference(c, p, va + done, part);
		if (where)
			return differs(c, err, "its memory is different at %" PRIx64, where);
		done += part;
	}
	c->done.page_bytes += len;
	return 0;
}

/* As much of it as is mapped. */
static int compare_shared_run(struct comparing *c, struct pages *p, uint64_t offset, uint64_t len,
			      struct brumate_error *err)
{
	const CriuImage__Mapping *m = p->shared;
	uint64_t start = MAX(offset, m->offset),
		 end = MIN(offset + len, m->offset + (m->end - m->start));

	if (offset + len < offset)
		return -EINVAL;
	return start < end ? compare_bytes(c, p, m->start + (start - m->offset),
					   p->at + (start - offset), end - start, err)
			   : 0;
}

static int compare_run(struct comparing *c, struct pages *p, const CriuImage__Pages *m,
		       struct brumate_error *err)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t n = m->has_n ? m->n : m->n_short;
	int r = 0;

	if (m->has_flags ? !(m->flags & PAGES_PRESENT) : m->in_parent)
		return 0;
	if (n > UINT64_MAX / page || p->at + n * page < p->at)
		return -EINVAL;
	if (p->shared)
		r = compare_shared_run(c, p, m->va, n * page, err);
	else if (!is_of_kernel(c, m->va))
		r = compare_bytes(c, p, m->va, p->at, n * page, err);
	p->at += n * page;
	return r;
}

/* The first entry says in which file the pages are. */
static int open_data(struct comparing *c, struct pages *p, const struct criu_entries *entry)
{
	CriuImage__PagesHead *m = UNPACK(pages_head, entry);
	char name[48];

	if (!m)
		return -EINVAL;
	snprintf(name, sizeof(name), "pages-%" PRIu32 ".img", m->pages_id);
	criu_image__pages_head__free_unpacked(m, NULL);
	p->data_fd = openat(c->what->dir_fd, name,
			    O_RDONLY | O_CLOEXEC | O_NONBLOCK | (geteuid() == 0 ? O_NOFOLLOW : 0));
	return p->data_fd < 0 ? -EINVAL : 0;
}

static int compare_runs(struct comparing *c, struct pages *p, const char *name,
			struct brumate_error *err)
{
	auto_free char *text = NULL;
	struct criu_entries image, entry;
	size_t len;
	int r = read_image(c, name, &text, &len, err);

	if (r < 0)
		return r == -ENOENT ? 0 : r;
	if (criu_entries_open(&image, text, len, CRIU_MAGIC_IMAGE, MAGIC_PAGEMAP) < 0 ||
	    criu_entries_next(&image, &entry) <= 0 || open_data(c, p, &entry) < 0)
		return fail_damaged(err, name);
	while ((r = criu_entries_next(&image, &entry)) > 0) {
		CriuImage__Pages *m = UNPACK(pages, &entry);

		r = m ? compare_run(c, p, m, err) : -EINVAL;
		if (m)
			criu_image__pages__free_unpacked(m, NULL);
		if (r < 0)
			break;
	}
	return r == -EINVAL || (r == -EBADMSG && (!err || !err->code)) ? fail_damaged(err, name)
								       : r;
}

/* @shared: as in struct pages. */
static int compare_pages_of(struct comparing *c, const char *name, const CriuImage__Mapping *shared,
			    struct brumate_error *err)
{
	auto_close int mem_fd = openat(c->dir_fd, "mem", O_RDONLY | O_CLOEXEC);
	auto_free char *now = malloc(BUFFER_BYTES), *then = malloc(BUFFER_BYTES);
	struct pages p = {
		.mem_fd = mem_fd, .data_fd = -1, .shared = shared, .now = now, .then = then
	};

	if (mem_fd < 0)
		return fail_look(c, errno, "mem", err);
	if (!now || !then)
		return brumate_fail(err, ENOMEM, "%m");
	int r = compare_runs(c, &p, name, err);
	cleanup_close(&p.data_fd);
	return r;
}

static bool was_compared(const struct comparing *c, uint64_t id)
{
	for (size_t i = 0; i < c->n_shared; i++)
		if (c->shared[i] == id)
			return true;
	return false;
}

/* Memory that processes share is compared in the first that maps it readable. */
static int compare_shared(struct comparing *c, const CriuImage__Mapping *m,
			  struct brumate_error *err)
{
	char name[64];

	if (!(m->status & AREA_ANON_SHARED) || !(m->protection & PROT_READ) ||
	    was_compared(c, m->file_id))
		return 0;
	if (array_add(c->shared, c->n_shared, m->file_id) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	snprintf(name, sizeof(name), "pagemap-shmem-%" PRIu64 ".img", m->file_id);
	return compare_pages_of(c, name, m, err);
}

static int compare_pages(struct comparing *c, struct brumate_error *err)
{
	char name[48];

	snprintf(name, sizeof(name), "pagemap-%d.img", c->pid);
	int r = compare_pages_of(c, name, NULL, err);
	for (size_t i = 0; r == 0 && i < c->memory->n_mappings; i++)
		r = compare_shared(c, c->memory->mappings[i], err);
	return r;
}

/* ---- threads ---- */

/* The bounding set is full where the image does not know it. */
static const char *different_rights(const struct comparing *c, const struct credentials *is,
				    const struct credentials *was)
{
	if (memcmp(is->uids, was->uids, sizeof(is->uids)))
		return "another user";
	if (memcmp(is->gids, was->gids, sizeof(is->gids)) || is->n_groups != was->n_groups)
		return "other groups";
	if (!c->what->groups_are_masked && is->n_groups &&
	    memcmp(is->groups, was->groups, is->n_groups * sizeof(*is->groups)))
		return "other groups";
	for (int i = 0; i < CREDENTIALS_SET__MAX; i++)
		if (i != CREDENTIALS_BOUNDING && is->capabilities[i] != was->capabilities[i])
			return "other capabilities";
	if (is->capabilities[CREDENTIALS_BOUNDING] & ~was->capabilities[CREDENTIALS_BOUNDING])
		return "more capabilities in its bounding set";
	if (is->no_new_privs != was->no_new_privs)
		return "another no_new_privs";
	return NULL;
}

static int compare_rights(const struct comparing *c, pid_t tid, const char *status,
			  struct brumate_error *err)
{
	auto_(criu_image_thread_fini) struct criu_image_thread was = CRIU_IMAGE_THREAD_EMPTY;
	auto_(credentials_fini) struct credentials is = CREDENTIALS_EMPTY;
	int r = criu_image_thread_read(&was, c->what->dir_fd, tid);

	if (r == 0)
		r = credentials_parse(&is, status);
	if (r < 0)
		return brumate_fail(err, -r, "the rights of thread %d: %m", tid);
	const char *why = different_rights(c, &is, &was.credentials);
	return why ? differs(c, err, "thread %d has %s", tid, why) : 0;
}

/* How a thread is scheduled: fields 19, 40 and 41 of proc_pid_stat(5). */
struct scheduling {
	long nice, priority, policy;
};

static int read_scheduling(const struct comparing *c, pid_t tid, struct scheduling *ret,
			   struct brumate_error *err)
{
	auto_free char *text = NULL;
	char name[48];

	snprintf(name, sizeof(name), "task/%d/stat", tid);
	int r = read_proc(c, name, &text, err);
	const char *nice = r == 0 ? proc_stat_field(text, 19) : NULL;
	const char *rest = r == 0 ? proc_stat_field(text, 40) : NULL;

	if (r < 0)
		return r;
	if (!rest || sscanf(rest, "%ld %ld", &ret->priority, &ret->policy) != 2)
		return fail_look(c, EBADMSG, name, err);
	ret->nice = strtol(nice, NULL, 10);
	return 0;
}

static int compare_name_of_thread(const struct comparing *c, pid_t tid, ProtobufCBinaryData was,
				  struct brumate_error *err)
{
	auto_free char *is = NULL;
	char name[48];

	snprintf(name, sizeof(name), "task/%d/comm", tid);
	int r = read_proc(c, name, &is, err);
	if (r < 0)
		return r;
	is[strcspn(is, "\n")] = '\0';
	if (strlen(is) == strnlen((char *)was.data, was.len) &&
	    !strncmp(is, (char *)was.data, was.len))
		return 0;
	return differs(c, err, "thread %d is called %s, and was called %.*s", tid, is, (int)was.len,
		       (char *)was.data);
}

static int compare_scheduling(const struct comparing *c, pid_t tid,
			      const CriuImage__ThreadCore *was, struct brumate_error *err)
{
	struct scheduling is = { 0 };
	int r = read_scheduling(c, tid, &is, err);

	if (r < 0)
		return r;
	if (was->has_nice && was->nice != is.nice)
		return differs(c, err, "thread %d has niceness %ld, and had %" PRId32, tid, is.nice,
			       was->nice);
	if (!was->has_policy)
		return 0;
	uint32_t policy = was->policy & ~(uint32_t)SCHED_RESET_ON_FORK;
	if (policy != (uint32_t)is.policy ||
	    (was->has_priority && was->priority != (uint32_t)is.priority))
		return differs(
			c, err,
			"thread %d has the scheduling policy %ld and priority %ld, and had %" PRIu32
			" and %" PRIu32,
			tid, is.policy, is.priority, policy, was->priority);
	return 0;
}

static int compare_attributes_of_thread(const struct comparing *c, pid_t tid,
					const CriuImage__ThreadCore *was, const char *status,
					struct brumate_error *err)
{
	int r = was ? compare_scheduling(c, tid, was, err) : 0;

	if (r == 0 && was && was->has_comm)
		r = compare_name_of_thread(c, tid, was->comm, err);
	if (r < 0 || !was)
		return r;
	if (was->has_blocked_signals && was->blocked_signals != number_of(status, "SigBlk", 16))
		return differs(c, err,
			       "thread %d blocks the signals %" PRIx64 ", and blocked %" PRIx64,
			       tid, number_of(status, "SigBlk", 16), was->blocked_signals);
	return 0;
}

/* ---- what all threads have in common ---- */

static int compare_actions(const struct comparing *c, const CriuImage__TaskCore *was,
			   const char *status, struct brumate_error *err)
{
	uint64_t ignored = 0, caught = 0;
	size_t i = 0;

	if (was->n_actions != N_ACTIONS) /* it shares them with another */
		return 0;
	for (int s = 1; s <= 64; s++) {
		if (s == SIGKILL || s == SIGSTOP)
			continue;
		uint64_t handler = was->actions[i++]->handler;

		ignored |= handler == (uintptr_t)SIG_IGN ? 1ull << (s - 1) : 0;
		caught |= handler > (uintptr_t)SIG_IGN ? 1ull << (s - 1) : 0;
	}
	if (ignored != number_of(status, "SigIgn", 16) || caught != number_of(status, "SigCgt", 16))
		return differs(c, err,
			       "ignores the signals %" PRIx64 " and handles %" PRIx64
			       ", and did %" PRIx64 " and %" PRIx64,
			       number_of(status, "SigIgn", 16), number_of(status, "SigCgt", 16),
			       ignored, caught);
	return 0;
}

static uint64_t parse_limit(const char *text)
{
	return !strncmp(text, "unlimited", 9) ? UINT64_MAX : strtoull(text, NULL, 10);
}

/* A name of 25 characters, then the two limits; in the order of their numbers. */
static int compare_limits(const struct comparing *c, const CriuImage__Limits *was,
			  struct brumate_error *err)
{
	enum { NAME_CHARS = 26, VALUE_CHARS = 21 };
	auto_free char *text = NULL;
	int r = was ? read_proc(c, "limits", &text, err) : 0;
	char *rest = text;

	if (r < 0 || !was)
		return r;
	strsep(&rest, "\n");
	for (size_t i = 0; i < was->n_limits; i++) {
		char *line = strsep(&rest, "\n");

		if (!line || strlen(line) < NAME_CHARS + VALUE_CHARS + 1)
			return 0;
		if (parse_limit(line + NAME_CHARS) != was->limits[i]->soft ||
		    parse_limit(line + NAME_CHARS + VALUE_CHARS) != was->limits[i]->hard)
			return differs(c, err, "a limit is other than it was: %.47s", line);
	}
	return 0;
}

/* A timer, of which /proc/PID/timers has four lines. */
static int compare_timer(struct comparing *c, char **rest, const CriuImage__PosixTimer *was,
			 struct brumate_error *err)
{
	static const char *const ways[] = {
		[0] = "signal", [1] = "none", [2] = "thread", [4] = "signal"
	};
	const char *way = was->notify < sizeof(ways) / sizeof(ways[0]) ? ways[was->notify] : NULL;
	unsigned id, signal;
	char how[16], *lines[4];
	int clock;

	for (int i = 0; i < 4; i++)
		if (!(lines[i] = strsep(rest, "\n")))
			return differs(c, err, "timer %" PRIu32 " is missing", was->id);
	if (sscanf(lines[0], "ID: %u", &id) != 1 || sscanf(lines[1], "signal: %u/", &signal) != 1 ||
	    sscanf(lines[2], "notify: %15[a-z]", how) != 1 ||
	    sscanf(lines[3], "ClockID: %d", &clock) != 1)
		return fail_look(c, EBADMSG, "timers", err);
	if (id != was->id || signal != was->signal || clock != (int)was->clock ||
	    (way && strcmp(how, way)))
		return differs(c, err,
			       "timer %u (signal %u, clock %d, %s) was timer %" PRIu32
			       " (signal %" PRIu32 ", clock %d, %s)",
			       id, signal, clock, how, was->id, was->signal, (int)was->clock,
			       way ? way : "?");
	c->done.timers++;
	return 0;
}

static int compare_timers(struct comparing *c, const CriuImage__Timers *was,
			  struct brumate_error *err)
{
	auto_free char *text = NULL;
	size_t n = was ? was->n_posix : 0;
	int r = file_read(c->dir_fd, "timers", PROC_BYTES_MAX, &text, NULL);
	char *rest = text;

	if (r < 0) /* a kernel that was built without it */
		return r == -ENOENT ? 0 : fail_look(c, -r, "timers", err);
	for (size_t i = 0; r == 0 && i < n; i++)
		r = compare_timer(c, &rest, was->posix[i], err);
	return r == 0 && rest && *rest ? differs(c, err, "has timers that it had not") : r;
}

static int compare_comm(const struct comparing *c, const CriuImage__TaskCore *was,
			struct brumate_error *err)
{
	auto_free char *is = NULL;
	int r = was->has_comm ? read_proc(c, "comm", &is, err) : 0;

	if (r < 0 || !was->has_comm)
		return r;
	is[strcspn(is, "\n")] = '\0';
	if (strlen(is) == strnlen((char *)was->comm.data, was->comm.len) &&
	    !strncmp(is, (char *)was->comm.data, was->comm.len))
		return 0;
	return differs(c, err, "is called %s, and was called %.*s", is, (int)was->comm.len,
		       (char *)was->comm.data);
}

static int compare_task(struct comparing *c, const CriuImage__TaskCore *was, const char *status,
			struct brumate_error *err)
{
	auto_free char *oom = NULL;
	int r = compare_comm(c, was, err);

	if (r == 0)
		r = compare_actions(c, was, status, err);
	if (r == 0)
		r = compare_limits(c, was->limits, err);
	if (r == 0)
		r = compare_timers(c, was->timers, err);
	if (r == 0)
		r = read_proc(c, "oom_score_adj", &oom, err);
	if (r == 0 && was->has_oom_score_adj && atoi(oom) != was->oom_score_adj)
		r = differs(c, err, "has oom_score_adj %d, and had %" PRId32, atoi(oom),
			    was->oom_score_adj);
	return r;
}

static int note_area(struct comparing *c, const CriuImage__ThreadCore *was)
{
	const CriuImage__RestartableSequence *s = was ? was->sequence : NULL;

	return s ? array_add(c->areas, c->n_areas, (struct kernel_area){ s->va, s->va + s->len })
		 : 0;
}

static int compare_core(struct comparing *c, pid_t tid, const CriuImage__Core *was,
			struct brumate_error *err)
{
	auto_free char *status = NULL;
	char name[48];

	snprintf(name, sizeof(name), "task/%d/status", tid);
	if (faccessat(c->dir_fd, name, F_OK, 0) < 0)
		return differs(c, err, "thread %d is missing", tid);
	int r = read_proc(c, name, &status, err);
	if (r == 0)
		r = compare_rights(c, tid, status, err);
	if (r == 0)
		r = compare_attributes_of_thread(c, tid, was->thread_core, status, err);
	if (r == 0 && note_area(c, was->thread_core) < 0)
		r = brumate_fail(err, ENOMEM, "%m");
	if (r == 0 && tid == c->pid && was->tc)
		r = compare_task(c, was->tc, status, err);
	c->done.threads++;
	return r;
}

/* Reads the core image of a thread (owned). */
static int read_core(const struct comparing *c, pid_t tid, CriuImage__Core **ret,
		     struct brumate_error *err)
{
	auto_free char *text = NULL;
	struct criu_entries image, entry;
	char name[48];
	size_t len;

	snprintf(name, sizeof(name), "core-%d.img", tid);
	int r = read_image(c, name, &text, &len, err);
	if (r == -ENOENT)
		return fail_damaged(err, name);
	if (r < 0)
		return r;
	*ret = criu_entries_open(&image, text, len, CRIU_MAGIC_IMAGE, MAGIC_CORE) == 0 &&
			       criu_entries_next(&image, &entry) > 0
		       ? UNPACK(core, &entry)
		       : NULL;
	return *ret ? 0 : fail_damaged(err, name);
}

static int compare_thread(struct comparing *c, pid_t tid, struct brumate_error *err)
{
	CriuImage__Core *was;
	int r = read_core(c, tid, &was, err);

	if (r < 0)
		return r;
	r = compare_core(c, tid, was, err);
	criu_image__core__free_unpacked(was, NULL);
	return r;
}

static int compare_threads(struct comparing *c, const struct criu_image_process *p,
			   struct brumate_error *err)
{
	size_t n;
	int r = 0;

	for (size_t i = 0; r == 0 && i < p->n_threads; i++)
		r = compare_thread(c, p->threads[i], err);
	if (r < 0)
		return r;
	if ((r = count_entries(c->dir_fd, "task", &n)) < 0)
		return fail_look(c, -r, "task", err);
	return n == p->n_threads ? 0
				 : differs(c, err, "has %zu threads, and had %zu", n, p->n_threads);
}

/* ---- directories and program ---- */

static int compare_link(const struct comparing *c, const char *name, uint32_t id, bool by_last_part,
			struct brumate_error *err)
{
	const struct file *f = find_file(c, TYPE_REGULAR, id);
	char link[PATH_MAX + 16];
	ssize_t n = readlinkat(c->dir_fd, name, link, sizeof(link) - 1);

	if (!f || !f->path)
		return -EINVAL;
	if (n < 0)
		return fail_look(c, errno, name, err);
	link[n] = '\0';
	if (f->is_remapped || !strcmp(link, f->path) ||
	    (by_last_part && !strcmp(basename(link), basename(f->path))))
		return 0;
	return differs(c, err, "its %s is %s, and was %s", name, link, f->path);
}

static int compare_directories(struct comparing *c, const void *message, struct brumate_error *err)
{
	const CriuImage__Directories *m = message;
	auto_free char *status = NULL;
	int r = compare_link(c, "cwd", m->cwd_id, false, err);

	if (r == 0)
		r = compare_link(c, "root", m->root_id, false, err);
	if (r == 0)
		r = read_proc(c, "status", &status, err);
	if (r == 0 && m->has_umask && number_of(status, "Umask", 8) != m->umask)
		r = differs(c, err, "has the umask %" PRIo64 ", and had %" PRIo32,
			    number_of(status, "Umask", 8), m->umask);
	return r;
}

/* A copy of one of our own programs has another path. */
static int compare_memory(struct comparing *c, const void *message, struct brumate_error *err)
{
	c->memory = message;
	int r = compare_link(c, "exe", c->memory->executable_id, true, err);

	if (r == 0)
		r = compare_mappings(c, err);
	return r < 0 ? r : compare_pages(c, err);
}

static const struct part memory = { CRIU_MAGIC_MM, &criu_image__memory__descriptor,
				    compare_memory },
			 directories = { CRIU_MAGIC_FS, &criu_image__directories__descriptor,
					 compare_directories };

/* ---- processes ---- */

static bool is_in_tree(const struct comparing *c, pid_t pid)
{
	for (size_t i = 0; i < c->tree.n; i++)
		if (c->tree.items[i].pid == pid)
			return true;
	return false;
}

/* The parent of the root is CRIU. */
static int compare_place(const struct comparing *c, const struct criu_image_process *p,
			 char *ret_state, struct brumate_error *err)
{
	auto_free char *text = NULL;
	int r = read_proc(c, "stat", &text, err), ppid, pgid, sid;

	if (r < 0)
		return r;
	const char *rest = proc_stat_field(text, 3);
	if (!rest || sscanf(rest, "%c %d %d %d", ret_state, &ppid, &pgid, &sid) != 4)
		return fail_look(c, EBADMSG, "stat", err);
	if (p->ppid && is_in_tree(c, p->ppid) && p->ppid != ppid)
		return differs(c, err, "is a child of %d, and was one of %d", ppid, p->ppid);
	if (is_in_tree(c, p->pgid) && p->pgid != pgid)
		return differs(c, err, "is in the process group %d, and was in %d", pgid, p->pgid);
	if (is_in_tree(c, p->sid) && p->sid != sid)
		return differs(c, err, "is in the session %d, and was in %d", sid, p->sid);
	return 0;
}

static int compare_living(struct comparing *c, const struct criu_image_process *p,
			  struct brumate_error *err)
{
	int r = compare_threads(c, p, err);

	if (r == 0)
		r = each_of_process(c, "mm", &memory, err);
	if (r == 0)
		r = each_of_process(c, "fs", &directories, err);
	return r < 0 ? r : each_of_process(c, "ids", &tables, err);
}

static int compare_process(struct comparing *c, const struct criu_image_process *p,
			   struct brumate_error *err)
{
	auto_close int dir_fd = -1;
	CriuImage__Core *core;
	char name[16], state = '?';

	c->pid = p->pid;
	cleanup_free(&c->areas);
	c->n_areas = 0;
	snprintf(name, sizeof(name), "%d", p->pid);
	c->dir_fd = dir_fd = openat(c->proc_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir_fd < 0)
		return differs(c, err, "is missing");
	int r = compare_place(c, p, &state, err);
	if (r == 0)
		r = read_core(c, p->pid, &core, err);
	if (r < 0)
		return r;
	bool had_ended = core->tc && core->tc->task_state == TASK_DEAD;
	criu_image__core__free_unpacked(core, NULL);
	c->done.processes++;
	if (had_ended != (state == 'Z'))
		return differs(c, err, "%s", had_ended ? "had ended, and lives" : "has ended");
	return had_ended ? 0 : compare_living(c, p, err);
}

static int compare_all(struct comparing *c, struct brumate_error *err)
{
	int r = criu_image_tree_read(&c->tree, c->what->dir_fd);

	if (r < 0)
		return brumate_fail(err, -r, "CRIU's image pstree.img: %m");
	r = read_files(c, err);
	for (size_t i = 0; r == 0 && i < c->tree.n; i++)
		r = compare_process(c, &c->tree.items[i], err);
	return r;
}

int criu_compare(struct criu_compared *ret, const struct criu_comparing *what,
		 struct brumate_error *err)
{
	struct comparing c = { .what = what, .tree = CRIU_IMAGE_TREE_EMPTY };
	char path[48];

	snprintf(path, sizeof(path), "/proc/%d/root/proc", what->init);
	auto_close int proc_fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (proc_fd < 0)
		return brumate_fail(err, errno, "%s: %m", path);
	c.proc_fd = proc_fd;
	int r = compare_all(&c, err);
	for (size_t i = 0; i < c.n_files; i++)
		free(c.files[i].path);
	free(c.files);
	free(c.areas);
	free(c.shared);
	criu_image_tree_fini(&c.tree);
	if (r < 0)
		return r;
	*ret = c.done;
	return 0;
}

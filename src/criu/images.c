// SPDX-License-Identifier: MIT
/* The frame of CRIU's image files, and the few facts read from them; what the job has open is read by contents.c. */
#include "criu/images.h"

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "criu-plugin/hidden.h"
#include "images.pb-c.h"

#define MAGIC_PSTREE  0x50273030u
#define MAGIC_SERVICE 0x55105940u
#define MAGIC_STATS   0x57093306u
#define MAGIC_SECCOMP 0x64413049u

void criu_image_tree_fini(struct criu_image_tree *t)
{
	for (size_t i = 0; i < t->n; i++)
		free(t->items[i].threads);
	free(t->items);
	*t = CRIU_IMAGE_TREE_EMPTY;
}

static int add_process(struct criu_image_tree *t, const CriuImage__Process *msg)
{
	struct criu_image_process *items = array_room(t->items, t->n, sizeof(*items));

	if (!items)
		return -ENOMEM;
	t->items = items;

	struct criu_image_process *p = &items[t->n];
	*p = (struct criu_image_process){ .pid = (pid_t)msg->pid,
					  .ppid = (pid_t)msg->ppid,
					  .pgid = (pid_t)msg->pgid,
					  .sid = (pid_t)msg->sid };
	p->threads = calloc(msg->n_threads + 1, sizeof(*p->threads));
	if (!p->threads)
		return -ENOMEM;
	t->n++;
	p->n_threads = msg->n_threads;
	for (size_t i = 0; i < msg->n_threads; i++)
		p->threads[i] = (pid_t)msg->threads[i];
	return p->pid > 0 ? 0 : -EBADMSG;
}

int criu_image_tree_decode(struct criu_image_tree *ret, const void *buf, size_t len_bytes)
{
	auto_(criu_image_tree_fini) struct criu_image_tree tree = CRIU_IMAGE_TREE_EMPTY;
	struct criu_entries image, entry;
	int r = criu_entries_open(&image, buf, len_bytes, CRIU_MAGIC_IMAGE, MAGIC_PSTREE);

	if (r < 0)
		return r;
	while ((r = criu_entries_next(&image, &entry)) > 0) {
		CriuImage__Process *msg = criu_image__process__unpack(NULL, entry.left, entry.p);

		if (!msg)
			return -EBADMSG;
		r = add_process(&tree, msg);
		criu_image__process__free_unpacked(msg, NULL);
		if (r < 0)
			return r;
	}
	if (r < 0 || !tree.n)
		return -EBADMSG;
	*ret = tree;
	tree = CRIU_IMAGE_TREE_EMPTY;
	return 0;
}

int criu_image_stats_decode(struct criu_image_stats *ret, const void *buf, size_t len_bytes)
{
	struct criu_entries image, entry;

	if (criu_entries_open(&image, buf, len_bytes, MAGIC_SERVICE, MAGIC_STATS) < 0 ||
	    criu_entries_next(&image, &entry) <= 0)
		return -EBADMSG;

	CriuImage__Stats *msg = criu_image__stats__unpack(NULL, entry.left, entry.p);
	int r = msg && msg->dump ? 0 : -EBADMSG;
	if (r == 0)
		*ret = (struct criu_image_stats){
			.frozen_seconds = msg->dump->frozen_us / 1e6,
			.pages_written = msg->dump->pages_written,
		};
	if (msg)
		criu_image__stats__free_unpacked(msg, NULL);
	return r;
}

int criu_image_tree_read(struct criu_image_tree *ret, int dir_fd)
{
	auto_free char *text = NULL;
	size_t len;
	int r = file_read_plain(dir_fd, "pstree.img", CRIU_IMAGE_BYTES_MAX, &text, &len);

	return r < 0 ? r : criu_image_tree_decode(ret, text, len);
}

int criu_image_stats_read(struct criu_image_stats *ret, int dir_fd)
{
	auto_free char *text = NULL;
	size_t len;
	int r = file_read_plain(dir_fd, "stats-dump", CRIU_IMAGE_BYTES_MAX, &text, &len);

	return r < 0 ? r : criu_image_stats_decode(ret, text, len);
}

/* ---- the rights of a thread ---- */

void criu_image_thread_fini(struct criu_image_thread *t)
{
	credentials_fini(&t->credentials);
	*t = CRIU_IMAGE_THREAD_EMPTY;
}

/* Two words, the lower one first. */
static int get_set(uint64_t *ret, const uint32_t *words, size_t n)
{
	if (n > 2)
		return -EBADMSG;
	*ret = (n ? words[0] : 0) | (uint64_t)(n > 1 ? words[1] : 0) << 32;
	return 0;
}

static int get_sets(struct credentials *c, const CriuImage__Creds *m)
{
	int r = get_set(&c->capabilities[CREDENTIALS_INHERITABLE], m->cap_inh, m->n_cap_inh);

	if (r == 0)
		r = get_set(&c->capabilities[CREDENTIALS_PERMITTED], m->cap_prm, m->n_cap_prm);
	if (r == 0)
		r = get_set(&c->capabilities[CREDENTIALS_IN_EFFECT], m->cap_eff, m->n_cap_eff);
	if (r == 0)
		r = get_set(&c->capabilities[CREDENTIALS_BOUNDING], m->cap_bnd, m->n_cap_bnd);
	return r < 0 ? r : get_set(&c->capabilities[CREDENTIALS_AMBIENT], m->cap_amb, m->n_cap_amb);
}

static int get_credentials(struct credentials *c, const CriuImage__Creds *m)
{
	const uint32_t uids[] = { m->uid, m->euid, m->suid, m->fsuid };
	const uint32_t gids[] = { m->gid, m->egid, m->sgid, m->fsgid };

	for (int i = 0; i < CREDENTIALS_ID__MAX; i++) {
		c->uids[i] = uids[i];
		c->gids[i] = gids[i];
	}
	c->no_new_privs = m->no_new_privs;
	if (m->lsm_profile && strlen(m->lsm_profile) >= sizeof(c->label))
		return -EBADMSG;
	if (m->lsm_profile)
		strcpy(c->label, m->lsm_profile);
	int r = get_sets(c, m);
	return r < 0 ? r : credentials_set_groups(c, m->groups, m->n_groups);
}

static int get_thread(struct criu_image_thread *t, const CriuImage__Core *core)
{
	enum { TASK_DEAD = 2 };
	const CriuImage__ThreadCore *thread = core->thread_core;

	t->has_ended = core->tc && core->tc->task_state == TASK_DEAD;
	if (t->has_ended)
		return 0;
	if (!thread || !thread->creds) /* CRIU would leave it with its own */
		return -EBADMSG;
	/* Old CRIUs wrote these, and where they are it takes them in place of those of the thread. */
	if (core->tc && (core->tc->has_old_seccomp_mode || core->tc->has_old_seccomp_filter))
		return -EBADMSG;
	t->securebits = thread->creds->secbits;
	t->credentials.seccomp = thread->seccomp_mode;
	t->filter = thread->seccomp_filter;
	return get_credentials(&t->credentials, thread->creds);
}

/* The kernel lets a thread have no more instructions, of 8 bytes each, than 32768, and counts each filter as 4 more. A chain
 * that comes back to itself has no end. */
enum { CHAIN_FILTERS_MAX = 32768 / 5, CHAIN_BYTES_MAX = 32768 * 8 };

void criu_image_filters_free(struct criu_image_filters *f)
{
	if (f)
		criu_image__filters__free_unpacked((CriuImage__Filters *)f, NULL);
}

int criu_image_filters_decode(struct criu_image_filters **ret, const void *buf, size_t len_bytes)
{
	struct criu_entries image, entry;

	if (criu_entries_open(&image, buf, len_bytes, CRIU_MAGIC_IMAGE, MAGIC_SECCOMP) < 0 ||
	    criu_entries_next(&image, &entry) <= 0)
		return -EBADMSG;
	*ret = (struct criu_image_filters *)criu_image__filters__unpack(NULL, entry.left, entry.p);
	return *ret ? 0 : -EBADMSG;
}

int criu_image_filters_read(struct criu_image_filters **ret, int dir_fd)
{
	auto_free char *text = NULL;
	size_t len;
	int r = file_read_plain(dir_fd, "seccomp.img", CRIU_IMAGE_BYTES_MAX, &text, &len);

	return r < 0 ? r : criu_image_filters_decode(ret, text, len);
}

/* As the plugin writes it down (criu-plugin/hidden.h). That a filter is for all threads is CRIU's own note. */
static int add_filter(struct digest_run *run, const CriuImage__Filter *f)
{
	const struct filter_head head = { f->flags & ~(uint32_t)SECCOMP_FILTER_FLAG_TSYNC,
					  (uint32_t)f->program.len };
	int r = digest_add(run, &head, sizeof(head));

	return r < 0 ? r : digest_add(run, f->program.data, f->program.len);
}

int criu_image_filters_digest(struct digest *ret, const struct criu_image_filters *filters,
			      uint32_t filter)
{
	const CriuImage__Filters *m = (const CriuImage__Filters *)filters;
	auto_(digest_run_free) struct digest_run *run = NULL;
	size_t n_bytes = 0;
	int r = digest_begin(&run), are_for_all = 1;

	for (size_t i = 0; r == 0 && i < CHAIN_FILTERS_MAX; i++) {
		if (filter >= m->n_filters)
			return -EBADMSG;
		const CriuImage__Filter *f = m->filters[filter];
		if ((n_bytes += f->program.len) > CHAIN_BYTES_MAX)
			return -EBADMSG;
		are_for_all = are_for_all && f->flags & SECCOMP_FILTER_FLAG_TSYNC;
		r = add_filter(run, f);
		if (r == 0 && !f->has_prev)
			return (r = digest_take(run, ret)) < 0 ? r : are_for_all;
		filter = f->prev;
	}
	return r < 0 ? r : -EBADMSG;
}

CriuImage__Core *criu_core_unpack(const void *buf, size_t len_bytes)
{
	struct criu_entries image, entry;

	if (criu_entries_open(&image, buf, len_bytes, CRIU_MAGIC_IMAGE, CRIU_MAGIC_CORE) < 0 ||
	    criu_entries_next(&image, &entry) <= 0 || image.left)
		return NULL;
	return criu_image__core__unpack(NULL, entry.left, entry.p);
}

int criu_image_thread_decode(struct criu_image_thread *ret, const void *buf, size_t len_bytes)
{
	auto_(criu_image_thread_fini) struct criu_image_thread t = CRIU_IMAGE_THREAD_EMPTY;
	CriuImage__Core *core = criu_core_unpack(buf, len_bytes);
	int r = core ? get_thread(&t, core) : -EBADMSG;

	if (core)
		criu_image__core__free_unpacked(core, NULL);
	if (r < 0)
		return r;
	*ret = t;
	t = CRIU_IMAGE_THREAD_EMPTY;
	return 0;
}

int criu_image_comm_decode(char ret[static 64], const void *buf, size_t len_bytes)
{
	CriuImage__Core *core = criu_core_unpack(buf, len_bytes);
	int r = core ? 0 : -EBADMSG;

	ret[0] = '\0';
	if (core && core->tc && core->tc->has_comm && core->tc->comm.len < 64) {
		memcpy(ret, core->tc->comm.data, core->tc->comm.len);
		ret[core->tc->comm.len] = '\0';
	}
	if (core)
		criu_image__core__free_unpacked(core, NULL);
	return r;
}

int criu_image_thread_read(struct criu_image_thread *ret, int dir_fd, pid_t tid)
{
	auto_free char *text = NULL;
	char name[32];
	size_t len;

	snprintf(name, sizeof(name), "core-%d.img", tid);
	int r = file_read_plain(dir_fd, name, CRIU_IMAGE_BYTES_MAX, &text, &len);
	return r < 0 ? r : criu_image_thread_decode(ret, text, len);
}

/* ---- bounding sets ---- */

enum { CORE_HEAD_BYTES = 12 }; /* two magic numbers and a length */

static int write_core(int dir_fd, const char *name, const CriuImage__Core *core)
{
	size_t len = criu_image__core__get_packed_size(core);
	auto_free uint8_t *buf = malloc(CORE_HEAD_BYTES + len);
	const uint32_t head[] = { htole32(CRIU_MAGIC_IMAGE), htole32(CRIU_MAGIC_CORE),
				  htole32((uint32_t)len) };

	if (!buf)
		return -ENOMEM;
	memcpy(buf, head, sizeof(head));
	criu_image__core__pack(core, buf + CORE_HEAD_BYTES);
	auto_close int fd = openat(dir_fd, name, O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOFOLLOW);
	return fd < 0 ? -errno : fd_write_full(fd, buf, CORE_HEAD_BYTES + len);
}

/* Calls @fn for each core image with the bounding set in it, until it does not return 0. */
static int each_core(int dir_fd, int (*fn)(int dir_fd, const char *name, CriuImage__Core *core))
{
	int copy = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	auto_closedir DIR *dir = copy < 0 ? NULL : fdopendir(copy);
	int r = 0;

	if (!dir)
		return -errno;
	for (struct dirent *e; r == 0 && (e = readdir(dir));) {
		auto_free char *text = NULL;
		CriuImage__Core *core = NULL;
		size_t len;

		if (strncmp(e->d_name, "core-", strlen("core-")))
			continue;
		r = file_read_plain(dir_fd, e->d_name, CRIU_IMAGE_BYTES_MAX, &text, &len);
		core = r == 0 ? criu_core_unpack(text, len) : NULL;
		if (!core)
			return r < 0 ? r : -EBADMSG;
		r = core->thread_core && core->thread_core->creds ? fn(dir_fd, e->d_name, core) : 0;
		criu_image__core__free_unpacked(core, NULL);
	}
	return r;
}

static int ask_no_capability(int dir_fd, const char *name, CriuImage__Core *core)
{
	CriuImage__Creds *creds = core->thread_core->creds;

	for (size_t i = 0; i < creds->n_cap_bnd; i++)
		creds->cap_bnd[i] = UINT32_MAX;
	creds->secbits &= ~(uint32_t)SECBIT_KEEP_CAPS;
	return write_core(dir_fd, name, core);
}

int criu_ask_no_capability(int dir_fd)
{
	return each_core(dir_fd, ask_no_capability);
}

static uint32_t overflow_gid(void)
{
	auto_free char *text = NULL;
	int r = file_read(AT_FDCWD, "/proc/sys/kernel/overflowgid", 32, &text, NULL);

	return r < 0 ? 65534 : (uint32_t)strtoul(text, NULL, 10);
}

static int mask_groups(int dir_fd, const char *name, CriuImage__Core *core)
{
	CriuImage__Creds *creds = core->thread_core->creds;
	const uint32_t nobodys = overflow_gid(), own = getegid();

	for (size_t i = 0; i < creds->n_groups; i++)
		if (creds->groups[i] != own)
			creds->groups[i] = nobodys;
	return creds->n_groups ? write_core(dir_fd, name, core) : 0;
}

int criu_mask_groups(int dir_fd)
{
	return each_core(dir_fd, mask_groups);
}

static int has_groups(int dir_fd, const char *name, CriuImage__Core *core)
{
	(void)dir_fd;
	(void)name;
	return core->thread_core->creds->n_groups > 0;
}

int criu_images_have_groups(int dir_fd)
{
	return each_core(dir_fd, has_groups);
}

/* 1 ends the search. */
static int lacks_capability(int dir_fd, const char *name, CriuImage__Core *core)
{
	const CriuImage__Creds *creds = core->thread_core->creds;

	/* The kernel knows of no more than those it answers for. */
	for (unsigned long c = 0; prctl(PR_CAPBSET_READ, c, 0, 0, 0) >= 0; c++)
		if (c / 32 >= creds->n_cap_bnd || !(creds->cap_bnd[c / 32] >> c % 32 & 1))
			return 1;
	return 0;
}

int criu_bounding_sets_are_full(int dir_fd)
{
	int r = each_core(dir_fd, lacks_capability);

	return r < 0 ? r : !r;
}

enum { ENTRY_BYTES_MAX = 8 * 1024 * 1024 };

static int get_u32(struct criu_entries *r, uint32_t *ret)
{
	if (r->left < 4)
		return -EBADMSG;
	*ret = (uint32_t)r->p[0] | (uint32_t)r->p[1] << 8 | (uint32_t)r->p[2] << 16 |
	       (uint32_t)r->p[3] << 24;
	r->p += 4;
	r->left -= 4;
	return 0;
}

int criu_entries_open(struct criu_entries *ret, const void *buf, size_t len_bytes, uint32_t first,
		      uint32_t second)
{
	struct criu_entries r = { buf, len_bytes };
	uint32_t a, b;

	if (get_u32(&r, &a) < 0 || get_u32(&r, &b) < 0 || a != first || b != second)
		return -EBADMSG;
	*ret = r;
	return 0;
}

int criu_entries_open_bare(struct criu_entries *ret, const void *buf, size_t len_bytes,
			   uint32_t number)
{
	struct criu_entries r = { buf, len_bytes };
	uint32_t a;

	if (get_u32(&r, &a) < 0 || a != number)
		return -EBADMSG;
	*ret = r;
	return 0;
}

bool criu_image_is_tcp(const char *name)
{
	return !strncmp(name, "tcp-stream-", strlen("tcp-stream-"));
}

int criu_entries_next(struct criu_entries *r, struct criu_entries *ret)
{
	uint32_t len;

	if (!r->left)
		return 0;
	if (get_u32(r, &len) < 0 || len > r->left || len > ENTRY_BYTES_MAX)
		return -EBADMSG;
	*ret = (struct criu_entries){ r->p, len };
	r->p += len;
	r->left -= len;
	return 1;
}

// SPDX-License-Identifier: MIT
/*
 * What a crash may leave. Each node has what programs see (now) and what is safe; a crash is a choice of
 * one of them for every node. All choices are too many: here are those where everything is lost, where
 * nothing is, where all bytes are lost but names are there and the other way round, and where one node
 * alone is lost, or alone is there.
 */
#include "recorder.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "check.h"

struct content {
	uint8_t *data;
	size_t len;
};

struct entry {
	char *name;
	unsigned node;
};

struct entries {
	struct entry *all;
	size_t n;
};

struct node {
	bool is_dir;
	bool dirty; /* now and safe differ, or may */
	struct content now, safe;
	struct entries names, safe_names;
};

/* What a node is after the crash. */
enum choice {
	SAFE,
	NOW,
	LENGTH, /* of files: as long as now, with the bytes that are safe and zeros */
};

struct replay {
	struct node *nodes;
	unsigned n;
	enum choice *choices;
	uint64_t *tried; /* digests of what crashes left, since the last mark */
	size_t n_tried, room;
};

static void *need(void *p)
{
	CHECK(p);
	return p;
}

static struct content copy_content(const struct content *c)
{
	struct content copy = { .data = need(malloc(c->len + 1)), .len = c->len };

	if (c->len)
		memcpy(copy.data, c->data, c->len);
	return copy;
}

static void free_names(struct entries *e)
{
	for (size_t i = 0; i < e->n; i++)
		free(e->all[i].name);
	free(e->all);
	*e = (struct entries){ 0 };
}

static void add_name(struct entries *e, const char *name, unsigned node)
{
	e->all = need(realloc(e->all, (e->n + 1) * sizeof(*e->all)));
	e->all[e->n++] = (struct entry){ need(strdup(name)), node };
}

static struct entries copy_names(const struct entries *e)
{
	struct entries copy = { 0 };

	for (size_t i = 0; i < e->n; i++)
		add_name(&copy, e->all[i].name, e->all[i].node);
	return copy;
}

static struct entry *find_name(struct entries *e, const char *name)
{
	for (size_t i = 0; i < e->n; i++)
		if (!strcmp(e->all[i].name, name))
			return &e->all[i];
	return NULL;
}

static unsigned take_name(struct entries *e, const char *name)
{
	struct entry *found = find_name(e, name);

	CHECK(found);
	unsigned node = found->node;
	free(found->name);
	*found = e->all[--e->n];
	return node;
}

static unsigned add_node(struct replay *p, bool is_dir)
{
	p->nodes = need(realloc(p->nodes, (p->n + 1) * sizeof(*p->nodes)));
	p->choices = need(realloc(p->choices, (p->n + 1) * sizeof(*p->choices)));
	p->nodes[p->n] = (struct node){ .is_dir = is_dir };
	return p->n++;
}

struct replay *replay_new(void)
{
	struct replay *p = need(calloc(1, sizeof(*p)));

	add_node(p, true);
	return p;
}

void replay_free(struct replay *p)
{
	for (unsigned i = 0; i < p->n; i++) {
		free(p->nodes[i].now.data);
		free(p->nodes[i].safe.data);
		free_names(&p->nodes[i].names);
		free_names(&p->nodes[i].safe_names);
	}
	free(p->nodes);
	free(p->choices);
	free(p->tried);
	free(p);
}

static void set_len(struct content *c, size_t len)
{
	c->data = need(realloc(c->data, len + 1));
	if (len > c->len)
		memset(c->data + c->len, 0, len - c->len);
	c->len = len;
}

static void put_bytes(struct content *c, const struct record *r)
{
	if (c->len < r->offset + r->len_bytes)
		set_len(c, r->offset + r->len_bytes);
	memcpy(c->data + r->offset, r->data, r->len_bytes);
}

static void sync_node(struct node *n)
{
	free(n->safe.data);
	n->safe = copy_content(&n->now);
	free_names(&n->safe_names);
	n->safe_names = copy_names(&n->names);
	n->dirty = false;
}

static void move_name(struct replay *p, const struct record *r)
{
	struct entries *to = &p->nodes[r->dir2].names;
	unsigned node = take_name(&p->nodes[r->dir].names, r->name);

	if (find_name(to, r->name2))
		take_name(to, r->name2);
	add_name(to, r->name2, node);
	p->nodes[r->dir].dirty = p->nodes[r->dir2].dirty = true;
}

void replay_apply(struct replay *p, const struct record *r)
{
	switch (r->kind) {
	case RECORD_CREATE:
		CHECK(add_node(p, r->is_dir) == r->node);
		/* fallthrough */
	case RECORD_LINK:
		add_name(&p->nodes[r->dir].names, r->name, r->node);
		p->nodes[r->dir].dirty = true;
		break;
	case RECORD_UNLINK:
		take_name(&p->nodes[r->dir].names, r->name);
		p->nodes[r->dir].dirty = true;
		break;
	case RECORD_RENAME:
		move_name(p, r);
		break;
	case RECORD_WRITE:
		put_bytes(&p->nodes[r->node].now, r);
		p->nodes[r->node].dirty = true;
		break;
	case RECORD_LENGTH:
		set_len(&p->nodes[r->node].now, r->len_bytes);
		p->nodes[r->node].dirty = true;
		break;
	case RECORD_SYNC:
		sync_node(&p->nodes[r->node]);
		break;
	case RECORD_MARK: /* what was right before it need not be after it */
		p->n_tried = 0;
		break;
	}
}

static struct content chosen(const struct replay *p, unsigned node)
{
	const struct node *n = &p->nodes[node];

	if (p->choices[node] == NOW)
		return copy_content(&n->now);
	struct content c = copy_content(&n->safe);
	if (p->choices[node] == LENGTH)
		set_len(&c, n->now.len);
	return c;
}

static const struct entries *chosen_names(const struct replay *p, unsigned node)
{
	const struct node *n = &p->nodes[node];

	return p->choices[node] == SAFE ? &n->safe_names : &n->names;
}

static uint64_t mix(uint64_t h, const void *data, size_t len)
{
	const uint8_t *p = data;

	for (size_t i = 0; i < len; i++)
		h = (h ^ p[i]) * 0x100000001b3ull;
	return (h ^ len) * 0x9e3779b97f4a7c15ull;
}

/* Of what is at @node and below. Names are summed up: their order says nothing. */
static uint64_t hash(const struct replay *p, unsigned node)
{
	uint64_t h = 0xcbf29ce484222325ull ^ p->nodes[node].is_dir;

	if (!p->nodes[node].is_dir) {
		struct content c = chosen(p, node);

		h = mix(h, c.data, c.len);
		free(c.data);
		return h;
	}
	const struct entries *e = chosen_names(p, node);
	for (size_t i = 0; i < e->n; i++) {
		uint64_t below = hash(p, e->all[i].node);

		h += mix(mix(0, e->all[i].name, strlen(e->all[i].name)), &below, sizeof(below));
	}
	return h;
}

static void write_node(const struct replay *p, int dir_fd, const char *name, unsigned node,
		       char **paths, const char *path);

static void write_names(const struct replay *p, int fd, unsigned node, char **paths,
			const char *path)
{
	const struct entries *e = chosen_names(p, node);

	for (size_t i = 0; i < e->n; i++) {
		auto_free char *below = NULL;

		CHECK(asprintf(&below, "%s/%s", path, e->all[i].name) > 0);
		write_node(p, fd, e->all[i].name, e->all[i].node, paths, below);
	}
}

/* @paths: where each file is that is written already, for its further names. */
static void write_node(const struct replay *p, int dir_fd, const char *name, unsigned node,
		       char **paths, const char *path)
{
	if (p->nodes[node].is_dir) {
		CHECK(mkdirat(dir_fd, name, 0700) == 0);
		auto_close int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		CHECK(fd >= 0);
		write_names(p, fd, node, paths, path);
		return;
	}
	if (paths[node]) {
		CHECK(linkat(AT_FDCWD, paths[node], dir_fd, name, 0) == 0);
		return;
	}
	auto_close int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	struct content c = chosen(p, node);
	CHECK(fd >= 0 && fd_write_full(fd, c.data, c.len) == 0);
	free(c.data);
	paths[node] = need(strdup(path));
}

static void write_all(const struct replay *p, const char *root)
{
	char **paths = need(calloc(p->n, sizeof(*paths)));
	auto_close int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	CHECK(fd >= 0);
	write_names(p, fd, 0, paths, root);
	for (unsigned i = 0; i < p->n; i++)
		free(paths[i]);
	free(paths);
}

static void empty(const char *root)
{
	CHECK(remove_tree(AT_FDCWD, root) == 0 && mkdir(root, 0700) == 0);
}

static void choose(struct replay *p, enum choice dirs, enum choice files)
{
	for (unsigned i = 0; i < p->n; i++)
		p->choices[i] = p->nodes[i].is_dir ? dirs : files;
}

void replay_write(struct replay *p, const char *root)
{
	choose(p, NOW, NOW);
	empty(root);
	write_all(p, root);
}

/* True if this has not been tried, and remembers it. */
static bool is_new(struct replay *p)
{
	uint64_t h = hash(p, 0);

	for (size_t i = 0; i < p->n_tried; i++)
		if (p->tried[i] == h)
			return false;
	if (p->n_tried == p->room) {
		p->room = p->room ? 2 * p->room : 64;
		p->tried = need(realloc(p->tried, p->room * sizeof(*p->tried)));
	}
	p->tried[p->n_tried++] = h;
	return true;
}

struct crash {
	const char *root;
	void (*fn)(void *arg, const char *how);
	void *arg;
};

static void crash(struct replay *p, const struct crash *c, const char *how, unsigned node)
{
	char text[128];

	if (!is_new(p))
		return;
	snprintf(text, sizeof(text), "%s %u", how, node);
	empty(c->root);
	write_all(p, c->root);
	c->fn(c->arg, text);
	empty(c->root);
}

/* One node by itself. */
static void crash_node(struct replay *p, const struct crash *c, unsigned i)
{
	bool is_dir = p->nodes[i].is_dir;

	choose(p, NOW, NOW);
	p->choices[i] = SAFE;
	crash(p, c, "lost: only node", i);
	if (!is_dir) {
		p->choices[i] = LENGTH;
		crash(p, c, "lost: only the bytes of node", i);
	}
	choose(p, SAFE, LENGTH);
	p->choices[i] = NOW;
	crash(p, c, "lost: all but node", i);
	choose(p, NOW, LENGTH);
	p->choices[i] = is_dir ? SAFE : NOW;
	crash(p, c, is_dir ? "lost: bytes, and node" : "lost: all bytes but those of node", i);
}

void replay_crashes(struct replay *p, const char *root, void (*fn)(void *arg, const char *how),
		    void *arg)
{
	static const struct {
		enum choice dirs, files;
		const char *how;
	} whole[] = {
		{ SAFE, SAFE, "lost: everything" },
		{ NOW, NOW, "lost: nothing" },
		{ NOW, SAFE, "lost: all bytes and lengths" },
		{ NOW, LENGTH, "lost: all bytes" },
		{ SAFE, NOW, "lost: all names" },
	};
	struct crash c = { root, fn, arg };

	for (size_t i = 0; i < sizeof(whole) / sizeof(whole[0]); i++) {
		choose(p, whole[i].dirs, whole[i].files);
		crash(p, &c, whole[i].how, 0);
	}
	for (unsigned i = 0; i < p->n; i++)
		if (p->nodes[i].dirty)
			crash_node(p, &c, i);
}

// SPDX-License-Identifier: MIT
/* Sockets that become external files; see carry.h. */
#include "criu/carry.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "criu-plugin/hidden.h"
#include "criu/images.h"
#include "criu/mend.h"
#include "images.pb-c.h"

void criu_connection_key(char ret[static CRIU_CONNECTION_KEY_BYTES], uint32_t file)
{
	snprintf(ret, CRIU_CONNECTION_KEY_BYTES, HIDDEN_CONNECTION_KEY "%x", file);
}

void criu_listener_key(char ret[static CRIU_LISTENER_KEY_BYTES], const char *address)
{
	snprintf(ret, CRIU_LISTENER_KEY_BYTES, HIDDEN_LISTENER_KEY "%s", address);
}

enum { TYPE_INET = 4, TYPE_EXTERNAL = 16, STATE_CLOSED = 7, STATE_LISTENING = 10 };

/* Appends an entry as it is to be. 1: changed; 0: as it was; -errno. */
typedef int (*change_fn)(struct criu_mended *m, const struct criu_entries *entry,
			 struct connections *c);

static struct connection_end *find_inode(const struct connections *c, uint32_t inode)
{
	for (size_t i = 0; i < 2 * c->n; i++)
		if ((uint32_t)c->items[i / 2].ends[i % 2].inode == inode)
			return &c->items[i / 2].ends[i % 2];
	return NULL;
}

static bool has_file(const struct connections *c, uint32_t id)
{
	for (size_t i = 0; i < 2 * c->n; i++)
		if (c->items[i / 2].ends[i % 2].file == id)
			return true;
	return false;
}

static bool is_connection(const CriuImage__InetSocket *s)
{
	return s->proto == IPPROTO_TCP && s->dst_port && s->state != STATE_CLOSED &&
	       s->state != STATE_LISTENING;
}

/* An external file has the number, and whom its owner has signals sent to; nothing else is known of it. */
static int replace(struct criu_mended *m, const CriuImage__File *file, struct connection_end *e)
{
	CriuImage__ExternalFile external = CRIU_IMAGE__EXTERNAL_FILE__INIT;
	CriuImage__File changed = CRIU_IMAGE__FILE__INIT;

	external.id = file->id;
	external.owner = file->inet->owner;
	changed.type = TYPE_EXTERNAL;
	changed.id = e->file = file->id;
	changed.external = &external;
	int r = criu_mended_append(m, &changed.base);
	return r < 0 ? r : 1;
}

static int change_file(struct criu_mended *m, const struct criu_entries *entry,
		       struct connections *c)
{
	CriuImage__File *file = criu_image__file__unpack(NULL, entry->left, entry->p);
	struct connection_end *e;
	int r = 0;

	if (!file)
		return -EBADMSG;
	if (file->inet && is_connection(file->inet)) {
		e = file->inet->has_ino ? find_inode(c, file->inet->ino) : NULL;
		r = !e ? -EOPNOTSUPP : !file->inet->has_owner ? -EBADMSG : replace(m, file, e);
	}
	criu_image__file__free_unpacked(file, NULL);
	return r;
}

static int change_descriptor(struct criu_mended *m, const struct criu_entries *entry,
			     struct connections *c)
{
	CriuImage__Descriptor *d = criu_image__descriptor__unpack(NULL, entry->left, entry->p);
	int r = 0;

	if (!d)
		return -EBADMSG;
	if (d->type == TYPE_INET && has_file(c, d->id)) {
		d->type = TYPE_EXTERNAL;
		r = criu_mended_append(m, &d->base);
		r = r < 0 ? r : 1;
	}
	criu_image__descriptor__free_unpacked(d, NULL);
	return r;
}

/* A restore is to bring back what else there is of TCP sockets as it was. */
static int change_inventory(struct criu_mended *m, const struct criu_entries *entry,
			    struct connections *c)
{
	CriuImage__Inventory *i = criu_image__inventory__unpack(NULL, entry->left, entry->p);

	(void)c;
	if (!i)
		return -EBADMSG;
	i->has_tcp_close = false;
	int r = criu_mended_append(m, &i->base);
	criu_image__inventory__free_unpacked(i, NULL);
	return r < 0 ? r : 1;
}

static int change_image(int dir_fd, const char *name, uint32_t magic, change_fn change,
			struct connections *c)
{
	auto_(criu_mended_fini) struct criu_mended m = CRIU_MENDED_NONE;
	struct criu_entries image, entry;
	auto_free char *text = NULL;
	bool is_changed = false;
	size_t len;
	int r = file_read_plain(dir_fd, name, CRIU_IMAGE_BYTES_MAX, &text, &len);

	if (r == 0)
		r = magic == CRIU_MAGIC_INVENTORY
			    ? criu_entries_open_bare(&image, text, len, magic)
			    : criu_entries_open(&image, text, len, CRIU_MAGIC_IMAGE, magic);
	if (r == 0)
		r = criu_mended_begin(&m, text, &image);
	while (r >= 0 && (r = criu_entries_next(&image, &entry)) > 0) {
		if ((r = change(&m, &entry, c)) == 0)
			r = criu_mended_copy(&m, &entry);
		else if (r > 0)
			is_changed = true;
	}
	return r < 0 || !is_changed ? r : criu_mended_write(dir_fd, name, &m);
}

static int change_descriptors(int dir_fd, struct connections *c)
{
	int copy = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;
	auto_closedir DIR *dir = copy < 0 ? NULL : fdopendir(copy);

	if (!dir) {
		r = -errno;
		cleanup_close(&copy);
	}
	for (struct dirent *e; dir && r == 0 && (e = readdir(dir));)
		if (!strncmp(e->d_name, "fdinfo-", strlen("fdinfo-")))
			r = change_image(dir_fd, e->d_name, CRIU_MAGIC_FDINFO, change_descriptor,
					 c);
	return r;
}

int criu_carry_connections(int dir_fd, struct connections *c, struct brumate_error *err)
{
	int r = change_image(dir_fd, "files.img", CRIU_MAGIC_FILES, change_file, c);

	for (size_t i = 0; i < 2 * c->n && r == 0; i++)
		if (c->items[i / 2].elsewhere != (int)(i % 2) && !c->items[i / 2].ends[i % 2].file)
			r = -ENOENT;
	if (r == 0)
		r = change_descriptors(dir_fd, c);
	if (r == 0)
		r = change_image(dir_fd, "inventory.img", CRIU_MAGIC_INVENTORY, change_inventory,
				 c);
	if (r == -EOPNOTSUPP)
		return brumate_fail(err, EOPNOTSUPP,
				    "the job has a TCP connection that no descriptor of its "
				    "processes shows, which takes CAP_NET_ADMIN to save");
	return r < 0 ? brumate_fail(err, -r, "CRIU's images of TCP connections: %s", strerror(-r))
		     : 0;
}

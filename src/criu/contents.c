// SPDX-License-Identifier: MIT
/*
 * Reads CRIU's images and tells what is in them; see images.h. All hangs from files.img, whose entries have a type
 * and a number: the tables of descriptors, the mappings and the directories of the processes name them by these.
 *
 * Each image is read, reported and freed before the next. The report's text has a budget, as a few bytes of an image can
 * name the same long path again and again.
 */
#include "criu/images.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/escape.h"
#include "images.pb-c.h"

/* Of CRIU's image format. */
enum {
	TYPE_REGULAR = 1,
	TYPE_INET = 4,
	TYPE_UNIX = 5,
	TYPE_TERMINAL = 11,
	TYPE_NETLINK = 13,
	TYPE_NAMESPACE = 14,
	TYPE_TUN = 15,
	TYPE_EXTERNAL = 16,
	TYPE_MEMORY = 18,
	MAPS_PRIVATE_FILE = 1 << 6,
	MAPS_SHARED_FILE = 1 << 7,
	REMAP_GHOST = 1,
	UNIX_OUTSIDE = 1, /* a socket of another process, that the job sends to */
	ITEM_BYTES = 512, /* about what an item costs in addition to its text */
};

static const char *const kinds[] = {
	[TYPE_REGULAR] = "file",
	[2] = "pipe",
	[3] = "fifo",
	[TYPE_INET] = "inet",
	[TYPE_UNIX] = "unix",
	[6] = "eventfd",
	[7] = "epoll",
	[8] = "inotify",
	[9] = "signalfd",
	[10] = "packet",
	[11] = "terminal",
	[12] = "fanotify",
	[TYPE_NETLINK] = "netlink",
	[14] = "namespace",
	[15] = "tun",
	[16] = "external",
	[17] = "timerfd",
	[TYPE_MEMORY] = "memfd",
	[19] = "bpf-map",
	[20] = "pidfd",
};

struct contents {
	criu_image_read_fn read;
	void *arg;
	json_t *files, *sockets; /* the result; borrowed, as are all members without a word about it */
	json_t *entries;	 /* of both, by type and number; owned */
	json_t *memory_names;	 /* of memfds, by number; owned */
	json_t *process;	 /* the one that is read */
	pid_t pid;
	CriuImage__KernelIds *root_ids; /* the namespaces outside the tree, from the inventory; owned; NULL: not known */
	size_t left_bytes;
};

/* ---- what is told ---- */

static int spend(struct contents *c, size_t bytes, struct brumate_error *err)
{
	if (bytes > c->left_bytes)
		return brumate_fail(err, E2BIG,
				    "CRIU's images ask for more than can be listed (%d MB of text)",
				    CRIU_CONTENTS_TEXT_MAX >> 20);
	c->left_bytes -= bytes;
	return 0;
}

/* Takes @value. */
static int put(json_t *o, const char *key, json_t *value, struct brumate_error *err)
{
	return json_object_set_new(o, key, value) < 0 ? brumate_fail(err, ENOMEM, "%m") : 0;
}

static int put_text(struct contents *c, json_t *o, const char *key, ProtobufCBinaryData text,
		    struct brumate_error *err)
{
	auto_free char *escaped = NULL;

	if (text.len > PATH_MAX)
		return brumate_fail(err, EBADMSG,
				    "CRIU's images: a name of %zu bytes, expected at most %d",
				    text.len, PATH_MAX);
	escaped = text_escape((const char *)text.data, text.len);
	if (!escaped)
		return brumate_fail(err, ENOMEM, "%m");
	int r = spend(c, strlen(escaped), err);
	return r < 0 ? r : put(o, key, json_string(escaped), err);
}

static int put_format(json_t *o, const char *key, struct brumate_error *err, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

static int put_format(json_t *o, const char *key, struct brumate_error *err, const char *fmt, ...)
{
	char text[128];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return put(o, key, json_string(text), err);
}

/* Adds an empty object to @array, and lends it. */
static int add_item(struct contents *c, json_t *array, json_t **ret, struct brumate_error *err)
{
	json_t *item = json_object();
	int r = spend(c, ITEM_BYTES, err);

	if (json_array_append_new(array, item) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	*ret = item;
	return r;
}

/* The array @key of @o, which is made where there is none. NULL without memory. */
static json_t *array_of(json_t *o, const char *key)
{
	if (!json_object_get(o, key))
		json_object_set_new(o, key, json_array());
	return json_object_get(o, key);
}

/* ---- images ---- */

typedef int (*entry_fn)(struct contents *c, const struct criu_entries *entry,
			struct brumate_error *err);

static int fail_damaged(struct brumate_error *err, const char *name)
{
	return brumate_fail(err, EBADMSG, "CRIU's image %s is damaged", name);
}

static int each_entry_of(struct contents *c, const char *name, uint32_t magic, const char *text,
			 size_t len, entry_fn fn, struct brumate_error *err)
{
	struct criu_entries image, entry;
	int r = criu_entries_open(&image, text, len, CRIU_MAGIC_IMAGE, magic);

	/* The one image that says which format all the others have begins with its own number. */
	if (r < 0 && magic == CRIU_MAGIC_INVENTORY)
		r = criu_entries_open_bare(&image, text, len, magic);
	if (r < 0)
		return fail_damaged(err, name);
	while ((r = criu_entries_next(&image, &entry)) > 0) {
		r = fn(c, &entry, err);
		if (r < 0)
			return r == -EBADMSG && (!err || !err->code) ? fail_damaged(err, name) : r;
	}
	return r < 0 ? fail_damaged(err, name) : 0;
}

/* Calls @fn for each entry of an image, of which there may be none. */
static int each_entry(struct contents *c, const char *name, uint32_t magic, entry_fn fn,
		      struct brumate_error *err)
{
	auto_free char *text = NULL;
	size_t len;
	int r = c->read(c->arg, name, &text, &len, err);

	if (r == -ENOENT && err)
		*err = BRUMATE_ERROR_NONE;
	return r < 0 ? (r == -ENOENT ? 0 : r) : each_entry_of(c, name, magic, text, len, fn, err);
}

/* The same of an image of a process. */
static int each_of_process(struct contents *c, const char *kind, uint32_t number, uint32_t magic,
			   entry_fn fn, struct brumate_error *err)
{
	char name[64];

	snprintf(name, sizeof(name), "%s-%" PRIu32 ".img", kind, number);
	return each_entry(c, name, magic, fn, err);
}

#define UNPACK(message, entry) criu_image__##message##__unpack(NULL, (entry)->left, (entry)->p)

/* ---- files.img ---- */

/* As open(2) has them. */
static void flags_text(char *ret, size_t room, uint32_t flags)
{
	static const struct {
		uint32_t bits;
		const char *name;
	} names[] = {
		{ O_APPEND, "O_APPEND" },	{ O_NONBLOCK, "O_NONBLOCK" },
		{ O_DIRECTORY, "O_DIRECTORY" }, { O_DIRECT, "O_DIRECT" },
		{ O_PATH, "O_PATH" },		{ O_SYNC, "O_SYNC" },
		{ O_NOATIME, "O_NOATIME" },	{ O_ASYNC, "O_ASYNC" },
		{ O_CREAT, "O_CREAT" },		{ O_TRUNC, "O_TRUNC" },
	};
	static const char *const ways[] = { "O_RDONLY", "O_WRONLY", "O_RDWR", "O_ACCMODE" };
	size_t len = (size_t)snprintf(ret, room, "%s", ways[flags & O_ACCMODE]);

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && len < room; i++)
		if ((flags & names[i].bits) == names[i].bits)
			len += (size_t)snprintf(ret + len, room - len, "|%s", names[i].name);
}

static int put_flags(json_t *o, uint32_t flags, struct brumate_error *err)
{
	char text[160];

	flags_text(text, sizeof(text), flags);
	return put_format(o, "flags", err, "%s", text);
}

static const char *kind_of_mode(uint32_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFDIR:
		return "directory";
	case S_IFCHR:
	case S_IFBLK:
		return "device";
	case S_IFIFO:
		return "fifo";
	case S_IFLNK:
		return "link";
	default:
		return "file";
	}
}

static int tell_regular(struct contents *c, json_t *o, const CriuImage__RegularFile *m,
			struct brumate_error *err)
{
	int r = put_text(c, o, "path", m->name, err);

	if (r == 0)
		r = put_flags(o, m->flags, err);
	if (r == 0 && m->has_mode)
		r = put_format(o, "mode", err, "%04" PRIo32, m->mode & 07777);
	if (r == 0 && m->has_mode)
		r = put_format(o, "kind", err, "%s", kind_of_mode(m->mode));
	if (r == 0 && m->has_size && m->size <= INT64_MAX)
		r = put(o, "size", json_integer((json_int_t)m->size), err);
	return r < 0 || !m->external ? r : put(o, "external", json_true(), err);
}

/* ---- sockets ---- */

static const char *socket_type(uint32_t type)
{
	static const char *const types[] = { [SOCK_STREAM] = "stream",
					     [SOCK_DGRAM] = "datagram",
					     [SOCK_RAW] = "raw",
					     [SOCK_SEQPACKET] = "packets" };

	return type < sizeof(types) / sizeof(types[0]) && types[type] ? types[type] : "unknown";
}

static const char *protocol_name(const CriuImage__InetSocket *m)
{
	static const struct {
		uint32_t number;
		const char *name;
	} names[] = { { IPPROTO_TCP, "tcp" },	      { IPPROTO_UDP, "udp" },
		      { IPPROTO_ICMP, "icmp" },	      { IPPROTO_ICMPV6, "icmpv6" },
		      { IPPROTO_UDPLITE, "udplite" }, { IPPROTO_SCTP, "sctp" } };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (m->proto == names[i].number)
			return names[i].name;
	return socket_type(m->type);
}

/* CRIU keeps the states of TCP for all kinds of sockets (tcp(7)). */
static const char *socket_state(uint32_t state)
{
	return state == TCP_LISTEN ? "listening" : state == TCP_ESTABLISHED ? "connected" : "open";
}

static int put_address(json_t *o, const char *key, uint32_t family, const uint32_t *words, size_t n,
		       uint32_t port, struct brumate_error *err)
{
	char text[INET6_ADDRSTRLEN];
	bool is_v6 = family == AF_INET6;

	if ((family != AF_INET && !is_v6) || n < (is_v6 ? 4 : 1) || port > 65535)
		return -EBADMSG;
	if (!inet_ntop(is_v6 ? AF_INET6 : AF_INET, words, text, sizeof(text)))
		return -EBADMSG;
	return put_format(o, key, err, is_v6 ? "[%s]:%" PRIu32 : "%s:%" PRIu32, text, port);
}

static int tell_inet(struct contents *c, json_t *o, const CriuImage__InetSocket *m,
		     struct brumate_error *err)
{
	int r = put_format(o, "protocol", err, "%s", protocol_name(m));

	if (r == 0)
		r = put_format(o, "state", err, "%s", socket_state(m->state));
	if (r == 0)
		r = put_address(o, "address", m->family, m->src_addr, m->n_src_addr, m->src_port,
				err);
	if (r == 0 && m->dst_port)
		r = put_address(o, "peer", m->family, m->dst_addr, m->n_dst_addr, m->dst_port, err);
	return r < 0 || !m->has_ifname ? r : put_text(c, o, "interface", m->ifname, err);
}

/* A name that begins with a NUL is not a path, but one of the abstract ones, and any byte may be in it. */
static int put_unix_name(struct contents *c, json_t *o, ProtobufCBinaryData name,
			 struct brumate_error *err)
{
	char text[128];

	if (!name.len)
		return 0;
	if (name.data[0])
		return put_text(c, o, "address", name, err);
	if (name.len > sizeof(text))
		return -EBADMSG;
	text[0] = '@';
	for (size_t i = 1; i < name.len; i++)
		text[i] = name.data[i] ? (char)name.data[i] : '@';
	return put_text(c, o, "address", (ProtobufCBinaryData){ name.len, (uint8_t *)text }, err);
}

static int tell_unix(struct contents *c, json_t *o, const CriuImage__UnixSocket *m,
		     struct brumate_error *err)
{
	int r = put_format(o, "protocol", err, "%s", socket_type(m->type));

	if (r == 0)
		r = put_format(o, "state", err, "%s",
			       m->uflags & UNIX_OUTSIDE ? "outside" : socket_state(m->state));
	if (r == 0)
		r = put_unix_name(c, o, m->name, err);
	if (r == 0 && m->has_directory)
		r = put_text(c, o, "directory", m->directory, err);
	if (r == 0 && m->permissions)
		r = put_format(o, "mode", err, "%04" PRIo32, m->permissions->mode & 07777);
	if (r == 0 && m->permissions)
		r = put_format(o, "owner", err, "%" PRIu32 ":%" PRIu32, m->permissions->uid,
			       m->permissions->gid);
	return r;
}

/* ---- what has an entry ---- */

static void key_of(char ret[static 32], uint32_t type, uint32_t id)
{
	snprintf(ret, 32, "%" PRIu32 ":%" PRIu32, type, id);
}

static json_t *entry_of(const struct contents *c, uint32_t type, uint32_t id)
{
	char key[32];

	key_of(key, type, id);
	return json_object_get(c->entries, key);
}

static int tell_memory_file(struct contents *c, json_t *o, const CriuImage__MemoryFile *m,
			    struct brumate_error *err)
{
	char number[32];

	snprintf(number, sizeof(number), "%" PRIu64, m->inode_id);
	json_t *name = json_object_get(c->memory_names, number);
	int r = name ? spend(c, json_string_length(name), err) : 0;

	if (r == 0 && name)
		r = put(o, "path", json_incref(name), err);
	return r < 0 ? r : put_flags(o, m->flags, err);
}

static int tell_by_type(struct contents *c, json_t *o, const CriuImage__File *m,
			struct brumate_error *err)
{
	switch (m->type) {
	case TYPE_REGULAR:
		return m->regular ? tell_regular(c, o, m->regular, err) : -EBADMSG;
	case TYPE_INET:
		return m->inet ? tell_inet(c, o, m->inet, err) : -EBADMSG;
	case TYPE_UNIX:
		return m->unix_socket ? tell_unix(c, o, m->unix_socket, err) : -EBADMSG;
	case TYPE_NETLINK:
		return m->netlink ? put_format(o, "protocol", err, "%" PRIu32, m->netlink->protocol)
				  : -EBADMSG;
	case TYPE_MEMORY:
		return m->memory ? tell_memory_file(c, o, m->memory, err) : -EBADMSG;
	case TYPE_TUN:
		return m->tun && m->tun->has_device ? put_text(c, o, "path", m->tun->device, err)
						    : 0;
	default:
		return 0;
	}
}

static bool is_socket(uint32_t type)
{
	return type == TYPE_INET || type == TYPE_UNIX || type == TYPE_NETLINK || type == 10;
}

static int add_file(struct contents *c, const CriuImage__File *m, struct brumate_error *err)
{
	const size_t n_kinds = sizeof(kinds) / sizeof(kinds[0]);
	json_t *o = NULL;
	char key[32];

	key_of(key, m->type, m->id);
	if (m->type >= n_kinds || !kinds[m->type] || json_object_get(c->entries, key))
		return -EBADMSG;
	int r = add_item(c, is_socket(m->type) ? c->sockets : c->files, &o, err);
	if (r == 0)
		r = put(c->entries, key, json_incref(o), err);
	if (r == 0)
		r = put_format(o, "kind", err, "%s", kinds[m->type]);
	return r < 0 ? r : tell_by_type(c, o, m, err);
}

static int on_file(struct contents *c, const struct criu_entries *entry, struct brumate_error *err)
{
	CriuImage__File *m = UNPACK(file, entry);
	int r = m ? add_file(c, m, err) : -EBADMSG;

	if (m)
		criu_image__file__free_unpacked(m, NULL);
	return r;
}

static int on_memory_inode(struct contents *c, const struct criu_entries *entry,
			   struct brumate_error *err)
{
	CriuImage__MemoryFileInode *m = UNPACK(memory_file_inode, entry);
	char number[32];

	if (!m)
		return -EBADMSG;
	snprintf(number, sizeof(number), "%" PRIu64, m->inode_id);
	int r = spend(c, ITEM_BYTES, err);
	if (r == 0)
		r = put_text(c, c->memory_names, number, m->name, err);
	criu_image__memory_file_inode__free_unpacked(m, NULL);
	return r;
}

/* A file that was deleted. */
static int on_remap(struct contents *c, const struct criu_entries *entry, struct brumate_error *err)
{
	CriuImage__RemappedPath *m = UNPACK(remapped_path, entry);
	json_t *o = m ? entry_of(c, TYPE_REGULAR, m->file_id) : NULL;
	bool is_made = m && (!m->has_how || m->how == REMAP_GHOST);

	if (m)
		criu_image__remapped_path__free_unpacked(m, NULL);
	return o ? put_format(o, "deleted", err, is_made ? "made anew" : "under another name")
		 : -EBADMSG;
}

/* ---- a process ---- */

static int on_descriptor(struct contents *c, const struct criu_entries *entry,
			 struct brumate_error *err)
{
	CriuImage__Descriptor *m = UNPACK(descriptor, entry);
	json_t *o = m ? entry_of(c, m->type, m->id) : NULL, *item = NULL;
	int r = -EBADMSG;

	if (o && m->fd <= INT_MAX)
		r = add_item(c, array_of(o, "open"), &item, err);
	if (r == 0)
		r = put(item, "pid", json_integer(c->pid), err);
	if (r == 0)
		r = put(item, "fd", json_integer(m->fd), err);
	if (m)
		criu_image__descriptor__free_unpacked(m, NULL);
	return r;
}

static int put_path_of(struct contents *c, const char *key, uint32_t id, struct brumate_error *err)
{
	json_t *path = json_object_get(entry_of(c, TYPE_REGULAR, id), "path");

	if (!path)
		return -EBADMSG;
	int r = spend(c, json_string_length(path), err);
	return r < 0 ? r : put(c->process, key, json_incref(path), err);
}

static int on_directories(struct contents *c, const struct criu_entries *entry,
			  struct brumate_error *err)
{
	CriuImage__Directories *m = UNPACK(directories, entry);
	int r = m ? put_path_of(c, "directory", m->cwd_id, err) : -EBADMSG;

	if (r == 0)
		r = put_path_of(c, "root", m->root_id, err);
	if (r == 0 && m->has_umask)
		r = put_format(c->process, "umask", err, "%04" PRIo32, m->umask & 07777);
	if (m)
		criu_image__directories__free_unpacked(m, NULL);
	return r;
}

/* A mapping says the number of what it maps, but not its type. */
static json_t *mapped_entry(const struct contents *c, uint64_t id)
{
	static const uint32_t types[] = { TYPE_REGULAR, TYPE_MEMORY, TYPE_EXTERNAL };
	json_t *o = NULL;

	for (size_t i = 0; !o && id <= UINT32_MAX && i < sizeof(types) / sizeof(types[0]); i++)
		o = entry_of(c, types[i], (uint32_t)id);
	return o;
}

/* A library is mapped in some pieces, by many: said once for each way. */
static int add_mapping(struct contents *c, const CriuImage__Mapping *m, struct brumate_error *err)
{
	const bool shared = m->status & MAPS_SHARED_FILE;
	char way[32];

	if (!(m->status & (MAPS_PRIVATE_FILE | MAPS_SHARED_FILE)))
		return 0;
	json_t *o = mapped_entry(c, m->file_id);
	if (!o)
		return -EBADMSG;
	snprintf(way, sizeof(way), "%c%c%c %s", m->protection & PROT_READ ? 'r' : '-',
		 m->protection & PROT_WRITE ? 'w' : '-', m->protection & PROT_EXEC ? 'x' : '-',
		 shared ? "shared" : "private");
	if (!json_object_get(o, "mapped") && put(o, "mapped", json_object(), err) < 0)
		return -ENOMEM;
	json_t *pids = array_of(json_object_get(o, "mapped"), way);
	size_t n = json_array_size(pids);
	if (n && json_integer_value(json_array_get(pids, n - 1)) == c->pid)
		return 0;
	int r = spend(c, ITEM_BYTES / 8, err);
	if (r == 0 && json_array_append_new(pids, json_integer(c->pid)) < 0)
		r = brumate_fail(err, ENOMEM, "%m");
	return r;
}

static int on_memory(struct contents *c, const struct criu_entries *entry,
		     struct brumate_error *err)
{
	CriuImage__Memory *m = UNPACK(memory, entry);
	int r = m ? put_path_of(c, "executable", m->executable_id, err) : -EBADMSG;

	for (size_t i = 0; r == 0 && i < m->n_mappings; i++)
		r = add_mapping(c, m->mappings[i], err);
	if (m)
		criu_image__memory__free_unpacked(m, NULL);
	return r;
}

/* Lists the namespaces of the process that differ from those outside the tree. */
static int put_namespaces(struct contents *c, const CriuImage__KernelIds *m,
			  struct brumate_error *err)
{
	const CriuImage__KernelIds *root = c->root_ids;
	const struct {
		const char *name;
		uint32_t here, there;
	} all[] = {
		{ "pid", m->pid_ns, root->pid_ns },	     { "net", m->net_ns, root->net_ns },
		{ "ipc", m->ipc_ns, root->ipc_ns },	     { "uts", m->uts_ns, root->uts_ns },
		{ "mnt", m->mnt_ns, root->mnt_ns },	     { "user", m->user_ns, root->user_ns },
		{ "cgroup", m->cgroup_ns, root->cgroup_ns }, { "time", m->time_ns, root->time_ns },
	};
	json_t *names = array_of(c->process, "namespaces");

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (all[i].here && all[i].here != all[i].there &&
		    json_array_append_new(names, json_string(all[i].name)) < 0)
			return brumate_fail(err, ENOMEM, "%m");
	return 0;
}

static int on_ids(struct contents *c, const struct criu_entries *entry, struct brumate_error *err)
{
	CriuImage__KernelIds *m = UNPACK(kernel_ids, entry);
	int r = m ? 0 : -EBADMSG;

	if (m && c->root_ids)
		r = put_namespaces(c, m, err);
	if (r == 0 && m->has_files_id)
		r = each_of_process(c, "fdinfo", m->files_id, CRIU_MAGIC_FDINFO, on_descriptor,
				    err);
	if (m)
		criu_image__kernel_ids__free_unpacked(m, NULL);
	return r;
}

static int on_inventory(struct contents *c, const struct criu_entries *entry,
			struct brumate_error *err)
{
	CriuImage__Inventory *m = UNPACK(inventory, entry);

	if (!m)
		return -EBADMSG;
	if (!c->root_ids && m->root_ids) {
		c->root_ids = m->root_ids;
		m->root_ids = NULL;
	}
	criu_image__inventory__free_unpacked(m, NULL);
	return 0;
}

/* ---- whose rights ---- */

static json_t *numbers(const uint32_t *items, size_t n)
{
	json_t *a = json_array();

	for (size_t i = 0; i < n; i++)
		json_array_append_new(a, json_integer(items[i]));
	return a;
}

static json_t *capability_sets(const struct credentials *k)
{
	static const char *const names[] = { "inheritable", "permitted", "effective", "bounding",
					     "ambient" };
	json_t *o = json_object();
	char text[32];

	for (int i = 0; i < CREDENTIALS_SET__MAX; i++) {
		snprintf(text, sizeof(text), "%016" PRIx64, k->capabilities[i]);
		json_object_set_new(o, names[i], json_string(text));
	}
	return o;
}

static int put_rights(struct contents *c, json_t *o, const struct criu_image_thread *t,
		      struct brumate_error *err)
{
	static const char *const seccomp[] = { "none", "strict", "filters" };
	const struct credentials *k = &t->credentials;
	ProtobufCBinaryData label = { strlen(k->label), (uint8_t *)k->label };
	int r = spend(c, ITEM_BYTES + 64 * k->n_groups, err);

	if (r == 0)
		r = put(o, "uids", numbers(k->uids, CREDENTIALS_ID__MAX), err);
	if (r == 0)
		r = put(o, "gids", numbers(k->gids, CREDENTIALS_ID__MAX), err);
	if (r == 0)
		r = put(o, "groups", numbers(k->groups, k->n_groups), err);
	if (r == 0)
		r = put(o, "capabilities", capability_sets(k), err);
	if (r == 0)
		r = put(o, "securebits", json_integer(t->securebits), err);
	if (r == 0)
		r = put(o, "no_new_privs", json_boolean(k->no_new_privs), err);
	if (r == 0)
		r = put_format(o, "seccomp", err, "%s",
			       k->seccomp < 3 ? seccomp[k->seccomp] : "unknown");
	return r < 0 ? r : put_text(c, o, "label", label, err);
}

static bool have_same_rights(const struct criu_image_thread *a, const struct criu_image_thread *b)
{
	return credentials_are_same(&a->credentials, &b->credentials) &&
	       a->securebits == b->securebits;
}

static int read_thread(struct contents *c, struct criu_image_thread *ret, char comm[static 64],
		       pid_t tid, struct brumate_error *err)
{
	auto_free char *text = NULL;
	char name[64];
	size_t len = 0;

	snprintf(name, sizeof(name), "core-%d.img", tid);
	int r = c->read(c->arg, name, &text, &len, err);
	if (r == -ENOENT)
		return brumate_fail(err, EBADMSG, "CRIU's image %s is missing", name);
	if (r == 0)
		r = criu_image_thread_decode(ret, text, len);
	if (r == 0)
		r = criu_image_comm_decode(comm, text, len);
	return r == -EBADMSG && (!err || !err->code) ? fail_damaged(err, name) : r;
}

/* A thread that has other rights than the first one. */
static int tell_thread(struct contents *c, const struct criu_image_thread *first, pid_t tid,
		       struct brumate_error *err)
{
	auto_(criu_image_thread_fini) struct criu_image_thread t = CRIU_IMAGE_THREAD_EMPTY;
	char comm[64];
	json_t *item;
	int r = read_thread(c, &t, comm, tid, err);

	if (r < 0 || t.has_ended || have_same_rights(first, &t))
		return r;
	r = add_item(c, array_of(c->process, "threads_with_other_rights"), &item, err);
	if (r == 0)
		r = put(item, "tid", json_integer(tid), err);
	return r < 0 ? r : put_rights(c, item, &t, err);
}

static int tell_rights(struct contents *c, const struct criu_image_process *p, bool *ret_has_ended,
		       struct brumate_error *err)
{
	auto_(criu_image_thread_fini) struct criu_image_thread first = CRIU_IMAGE_THREAD_EMPTY;
	char comm[64];
	int r = read_thread(c, &first, comm, p->pid, err);

	if (r == 0)
		r = put_text(c, c->process, "comm",
			     (ProtobufCBinaryData){ strlen(comm), (uint8_t *)comm }, err);
	*ret_has_ended = first.has_ended;
	if (r == 0 && first.has_ended)
		return put(c->process, "ended", json_true(), err);
	if (r == 0)
		r = put_rights(c, c->process, &first, err);
	for (size_t i = 0; r == 0 && i < p->n_threads; i++)
		if (p->threads[i] != p->pid)
			r = tell_thread(c, &first, p->threads[i], err);
	return r;
}

static int tell_process(struct contents *c, json_t *processes, const struct criu_image_process *p,
			struct brumate_error *err)
{
	const uint32_t number = (uint32_t)p->pid;
	bool has_ended = false;
	int r = add_item(c, processes, &c->process, err);

	c->pid = p->pid;
	if (r == 0)
		r = put(c->process, "pid", json_integer(p->pid), err);
	if (r == 0)
		r = put(c->process, "ppid", json_integer(p->ppid), err);
	if (r == 0)
		r = put(c->process, "threads", json_integer((json_int_t)p->n_threads), err);
	if (r == 0)
		r = tell_rights(c, p, &has_ended, err);
	if (r < 0 || has_ended)
		return r;
	r = each_of_process(c, "mm", number, CRIU_MAGIC_MM, on_memory, err);
	if (r == 0)
		r = each_of_process(c, "fs", number, CRIU_MAGIC_FS, on_directories, err);
	return r < 0 ? r : each_of_process(c, "ids", number, CRIU_MAGIC_IDS, on_ids, err);
}

/* ---- all of it ---- */

static int read_tree(struct contents *c, struct criu_image_tree *ret, struct brumate_error *err)
{
	auto_free char *text = NULL;
	size_t len = 0;
	int r = c->read(c->arg, "pstree.img", &text, &len, err);

	if (r == -ENOENT)
		return brumate_fail(err, EBADMSG, "CRIU's image pstree.img is missing");
	if (r == 0)
		r = criu_image_tree_decode(ret, text, len);
	return r == -EBADMSG && (!err || !err->code) ? fail_damaged(err, "pstree.img") : r;
}

static int tell_all(struct contents *c, json_t *processes, struct brumate_error *err)
{
	auto_(criu_image_tree_fini) struct criu_image_tree tree = CRIU_IMAGE_TREE_EMPTY;
	int r = read_tree(c, &tree, err);

	if (r == 0)
		r = each_entry(c, "inventory.img", CRIU_MAGIC_INVENTORY, on_inventory, err);
	if (r == 0)
		r = each_entry(c, "memfd.img", CRIU_MAGIC_MEMFD_INODE, on_memory_inode, err);
	if (r == 0)
		r = each_entry(c, "files.img", CRIU_MAGIC_FILES, on_file, err);
	if (r == 0)
		r = each_entry(c, "remap-fpath.img", CRIU_MAGIC_REMAP_FPATH, on_remap, err);
	for (size_t i = 0; r == 0 && i < tree.n; i++)
		r = tell_process(c, processes, &tree.items[i], err);
	return r;
}

static int tell_files(struct contents *c, json_t *processes, struct brumate_error *err)
{
	return each_entry(c, "files.img", CRIU_MAGIC_FILES, on_file, err);
}

typedef int (*tell_fn)(struct contents *c, json_t *processes, struct brumate_error *err);

static int read_contents(json_t **ret, tell_fn tell, criu_image_read_fn read, void *arg,
			 struct brumate_error *err)
{
	json_t *processes = json_array(), *files = json_array(), *sockets = json_array();
	json_t *all = json_pack("{s:o,s:o,s:o}", "processes", processes, "files", files, "sockets",
				sockets);
	struct contents c = {
		.read = read,
		.arg = arg,
		.files = files,
		.sockets = sockets,
		.entries = json_object(),
		.memory_names = json_object(),
		.left_bytes = CRIU_CONTENTS_TEXT_MAX,
	};
	int r = all && c.entries && c.memory_names ? tell(&c, processes, err) : -ENOMEM;

	json_decref(c.entries);
	json_decref(c.memory_names);
	if (c.root_ids)
		criu_image__kernel_ids__free_unpacked(c.root_ids, NULL);
	if (r == -ENOMEM && (!err || !err->code))
		brumate_fail(err, ENOMEM, "%m");
	if (r < 0) {
		json_decref(all);
		return r;
	}
	*ret = all;
	return 0;
}

int criu_contents_read(json_t **ret, criu_image_read_fn read, void *arg, struct brumate_error *err)
{
	return read_contents(ret, tell_all, read, arg, err);
}

static int tell_paths(struct contents *c, json_t *processes, struct brumate_error *err)
{
	int r = tell_files(c, processes, err);

	return r < 0 ? r : each_entry(c, "remap-fpath.img", CRIU_MAGIC_REMAP_FPATH, on_remap, err);
}

int criu_files_read(json_t **ret, criu_image_read_fn read, void *arg, struct brumate_error *err)
{
	return read_contents(ret, tell_paths, read, arg, err);
}

int criu_sockets_read(json_t **ret, criu_image_read_fn read, void *arg, struct brumate_error *err)
{
	json_t *all;
	int r = read_contents(&all, tell_files, read, arg, err);

	if (r < 0)
		return r;
	*ret = json_incref(json_object_get(all, "sockets"));
	json_decref(all);
	return 0;
}

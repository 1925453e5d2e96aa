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
	json_t *files,
		*sockets;     /* the result; borrowed, as are all members without a word about it */
	json_t *entries;      /* of both, by type and number; owned */
	json_t *memory_names; /* of memfds, by number; owned */
	json_t *process;      /* the one that is read */
	pid_t pid;
	size_t left_bytes;
	int r;			   /* the first failure; after it nothing is added any more */
	struct brumate_error *err; /* its text; none yet where an image is damaged */
};

/* ---- what is told ---- */

static void fail_damaged(struct contents *c)
{
	c->r = c->r < 0 ? c->r : -EBADMSG;
}

static void fail_memory(struct contents *c)
{
	c->r = c->r < 0 ? c->r : brumate_fail(c->err, ENOMEM, "%m");
}

static void spend(struct contents *c, size_t bytes)
{
	if (c->r == 0 && bytes > c->left_bytes)
		c->r = brumate_fail(c->err, E2BIG,
				    "CRIU's images ask for more than can be listed (%d MB of text)",
				    CRIU_CONTENTS_TEXT_MAX >> 20);
	c->left_bytes -= c->r == 0 ? bytes : 0;
}

/* Takes @value. */
static void put(struct contents *c, json_t *o, const char *key, json_t *value)
{
	if (c->r < 0)
		json_decref(value);
	else if (json_object_set_new(o, key, value) < 0)
		fail_memory(c);
}

static void put_number(struct contents *c, json_t *o, const char *key, json_int_t n)
{
	put(c, o, key, json_integer(n));
}

static void put_text(struct contents *c, json_t *o, const char *key, ProtobufCBinaryData text)
{
	auto_free char *escaped = NULL;

	if (c->r == 0 && text.len > PATH_MAX)
		c->r = brumate_fail(c->err, EBADMSG,
				    "CRIU's images: a name of %zu bytes, expected at most %d",
				    text.len, PATH_MAX);
	if (c->r < 0)
		return;
	escaped = text_escape((const char *)text.data, text.len);
	if (!escaped) {
		fail_memory(c);
		return;
	}
	spend(c, strlen(escaped));
	put(c, o, key, json_string(escaped));
}

static void put_format(struct contents *c, json_t *o, const char *key, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

static void put_format(struct contents *c, json_t *o, const char *key, const char *fmt, ...)
{
	char text[128];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	put(c, o, key, json_string(text));
}

/* Adds an empty object to @array, and lends it; NULL after a failure. */
static json_t *add_item(struct contents *c, json_t *array)
{
	json_t *item = json_object();

	spend(c, ITEM_BYTES);
	if (json_array_append_new(array, item) < 0)
		fail_memory(c);
	return c->r == 0 ? item : NULL;
}

/* The array @key of @o, which is made where there is none. NULL without memory. */
static json_t *array_of(json_t *o, const char *key)
{
	if (!json_object_get(o, key))
		json_object_set_new(o, key, json_array());
	return json_object_get(o, key);
}

/* ---- images ---- */

typedef void (*entry_fn)(struct contents *c, const struct criu_entries *entry);

/* Says which image it is that was found to be damaged. */
static void name_damaged(struct contents *c, const char *name)
{
	if (c->r == -EBADMSG && !c->err->code)
		brumate_fail(c->err, EBADMSG, "CRIU's image %s is damaged", name);
}

/* Reads an image (owned). Returns false where there is none, and after a failure. */
static bool read_one(struct contents *c, const char *name, char **ret, size_t *ret_len)
{
	if (c->r < 0)
		return false;
	int r = c->read(c->arg, name, ret, ret_len, c->err);
	if (r == -ENOENT)
		*c->err = BRUMATE_ERROR_NONE;
	else
		c->r = r;
	return r == 0;
}

static void need_one(struct contents *c, const char *name, char **ret, size_t *ret_len)
{
	if (!read_one(c, name, ret, ret_len) && c->r == 0)
		c->r = brumate_fail(c->err, EBADMSG, "CRIU's image %s is missing", name);
}

/* Calls @fn for each entry of an image, of which there may be none. */
static void each_entry(struct contents *c, const char *name, uint32_t magic, entry_fn fn)
{
	auto_free char *text = NULL;
	struct criu_entries image, entry;
	size_t len;

	if (!read_one(c, name, &text, &len))
		return;
	int r = criu_entries_open(&image, text, len, CRIU_MAGIC_IMAGE, magic);
	while (r >= 0 && c->r == 0 && (r = criu_entries_next(&image, &entry)) > 0)
		fn(c, &entry);
	if (r < 0)
		fail_damaged(c);
	name_damaged(c, name);
}

/* The same of an image of a process. */
static void each_of_process(struct contents *c, const char *kind, uint32_t number, uint32_t magic,
			    entry_fn fn)
{
	char name[64];

	snprintf(name, sizeof(name), "%s-%" PRIu32 ".img", kind, number);
	each_entry(c, name, magic, fn);
}

/* Defines the function for the entries of an image, of the one that adds such a message. */
#define ON_ENTRY(message, Type)                                                        \
	static void on_##message(struct contents *c, const struct criu_entries *entry) \
	{                                                                              \
		CriuImage__##Type *m =                                                 \
			criu_image__##message##__unpack(NULL, entry->left, entry->p);  \
                                                                                       \
		if (!m) {                                                              \
			fail_damaged(c);                                               \
			return;                                                        \
		}                                                                      \
		tell_##message(c, m);                                                  \
		criu_image__##message##__free_unpacked(m, NULL);                       \
	}

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

static void put_flags(struct contents *c, json_t *o, uint32_t flags)
{
	char text[160];

	flags_text(text, sizeof(text), flags);
	put_format(c, o, "flags", "%s", text);
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

static void tell_regular(struct contents *c, json_t *o, const CriuImage__RegularFile *m)
{
	put_text(c, o, "path", m->name);
	put_flags(c, o, m->flags);
	if (m->has_mode) {
		put_format(c, o, "mode", "%04" PRIo32, m->mode & 07777);
		put_format(c, o, "kind", "%s", kind_of_mode(m->mode));
	}
	if (m->has_size && m->size <= INT64_MAX)
		put_number(c, o, "size", (json_int_t)m->size);
	if (m->external)
		put(c, o, "external", json_true());
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

static void put_address(struct contents *c, json_t *o, const char *key, uint32_t family,
			const uint32_t *words, size_t n, uint32_t port)
{
	char text[INET6_ADDRSTRLEN];
	bool is_v6 = family == AF_INET6;

	if ((family != AF_INET && !is_v6) || n < (is_v6 ? 4 : 1) || port > 65535 ||
	    !inet_ntop(is_v6 ? AF_INET6 : AF_INET, words, text, sizeof(text)))
		fail_damaged(c);
	else
		put_format(c, o, key, is_v6 ? "[%s]:%" PRIu32 : "%s:%" PRIu32, text, port);
}

static void tell_inet(struct contents *c, json_t *o, const CriuImage__InetSocket *m)
{
	put_format(c, o, "protocol", "%s", protocol_name(m));
	put_format(c, o, "state", "%s", socket_state(m->state));
	put_address(c, o, "address", m->family, m->src_addr, m->n_src_addr, m->src_port);
	if (m->dst_port)
		put_address(c, o, "peer", m->family, m->dst_addr, m->n_dst_addr, m->dst_port);
	if (m->has_ifname)
		put_text(c, o, "interface", m->ifname);
}

/* A name that begins with a NUL is not a path, but one of the abstract ones, and any byte may be in it. */
static void put_unix_name(struct contents *c, json_t *o, ProtobufCBinaryData name)
{
	char text[128];

	if (name.len && name.data[0]) {
		put_text(c, o, "address", name);
	} else if (name.len > sizeof(text)) {
		fail_damaged(c);
	} else if (name.len) {
		text[0] = '@';
		for (size_t i = 1; i < name.len; i++)
			text[i] = name.data[i] ? (char)name.data[i] : '@';
		put_text(c, o, "address", (ProtobufCBinaryData){ name.len, (uint8_t *)text });
	}
}

static void tell_unix(struct contents *c, json_t *o, const CriuImage__UnixSocket *m)
{
	put_format(c, o, "protocol", "%s", socket_type(m->type));
	put_format(c, o, "state", "%s",
		   m->uflags & UNIX_OUTSIDE ? "outside" : socket_state(m->state));
	put_unix_name(c, o, m->name);
	if (m->has_directory)
		put_text(c, o, "directory", m->directory);
	if (m->permissions) {
		put_format(c, o, "mode", "%04" PRIo32, m->permissions->mode & 07777);
		put_format(c, o, "owner", "%" PRIu32 ":%" PRIu32, m->permissions->uid,
			   m->permissions->gid);
	}
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

static void tell_memory_file(struct contents *c, json_t *o, const CriuImage__MemoryFile *m)
{
	char number[32];

	snprintf(number, sizeof(number), "%" PRIu64, m->inode_id);
	json_t *name = json_object_get(c->memory_names, number);
	if (name) {
		spend(c, json_string_length(name));
		put(c, o, "path", json_incref(name));
	}
	put_flags(c, o, m->flags);
}

/* An entry has the message of its type. */
static void tell_by_type(struct contents *c, json_t *o, const CriuImage__File *m)
{
	if (m->type == TYPE_REGULAR && m->regular)
		tell_regular(c, o, m->regular);
	else if (m->type == TYPE_INET && m->inet)
		tell_inet(c, o, m->inet);
	else if (m->type == TYPE_UNIX && m->unix_socket)
		tell_unix(c, o, m->unix_socket);
	else if (m->type == TYPE_NETLINK && m->netlink)
		put_format(c, o, "protocol", "%" PRIu32, m->netlink->protocol);
	else if (m->type == TYPE_MEMORY && m->memory)
		tell_memory_file(c, o, m->memory);
	else if (m->type == TYPE_REGULAR || m->type == TYPE_INET || m->type == TYPE_UNIX ||
		 m->type == TYPE_NETLINK || m->type == TYPE_MEMORY)
		fail_damaged(c);
	else if (m->type == TYPE_TUN && m->tun && m->tun->has_device)
		put_text(c, o, "path", m->tun->device);
}

static bool is_socket(uint32_t type)
{
	return type == TYPE_INET || type == TYPE_UNIX || type == TYPE_NETLINK || type == 10;
}

static void tell_file(struct contents *c, const CriuImage__File *m)
{
	const size_t n_kinds = sizeof(kinds) / sizeof(kinds[0]);
	char key[32];

	key_of(key, m->type, m->id);
	if (m->type >= n_kinds || !kinds[m->type] || json_object_get(c->entries, key)) {
		fail_damaged(c);
		return;
	}
	json_t *o = add_item(c, is_socket(m->type) ? c->sockets : c->files);
	if (!o)
		return;
	put(c, c->entries, key, json_incref(o));
	put_format(c, o, "kind", "%s", kinds[m->type]);
	tell_by_type(c, o, m);
}
ON_ENTRY(file, File)

static void tell_memory_file_inode(struct contents *c, const CriuImage__MemoryFileInode *m)
{
	char number[32];

	snprintf(number, sizeof(number), "%" PRIu64, m->inode_id);
	spend(c, ITEM_BYTES);
	put_text(c, c->memory_names, number, m->name);
}
ON_ENTRY(memory_file_inode, MemoryFileInode)

/* A file that was deleted. */
static void tell_remapped_path(struct contents *c, const CriuImage__RemappedPath *m)
{
	json_t *o = entry_of(c, TYPE_REGULAR, m->file_id);
	bool is_made = !m->has_how || m->how == REMAP_GHOST;

	if (o)
		put_format(c, o, "deleted", "%s", is_made ? "made anew" : "under another name");
	else
		fail_damaged(c);
}
ON_ENTRY(remapped_path, RemappedPath)

/* ---- a process ---- */

static void put_path_of(struct contents *c, const char *key, uint32_t id)
{
	json_t *path = json_object_get(entry_of(c, TYPE_REGULAR, id), "path");

	if (!path) {
		fail_damaged(c);
		return;
	}
	spend(c, json_string_length(path));
	put(c, c->process, key, json_incref(path));
}

static void tell_directories(struct contents *c, const CriuImage__Directories *m)
{
	put_path_of(c, "directory", m->cwd_id);
	put_path_of(c, "root", m->root_id);
	if (m->has_umask)
		put_format(c, c->process, "umask", "%04" PRIo32, m->umask & 07777);
}
ON_ENTRY(directories, Directories)

/* A mapping says the number of what it maps, but not its type. */
static json_t *mapped_entry(const struct contents *c, uint64_t id)
{
	static const uint32_t types[] = { TYPE_REGULAR, TYPE_MEMORY, TYPE_EXTERNAL };
	json_t *o = NULL;

	for (size_t i = 0; !o && id <= UINT32_MAX && i < sizeof(types) / sizeof(types[0]); i++)
		o = entry_of(c, types[i], (uint32_t)id);
	return o;
}

/* What a shared mapping writes to need not be open for writing. */
static void add_mapping(struct contents *c, const CriuImage__Mapping *m)
{
	const bool shared = m->status & MAPS_SHARED_FILE;

	if (!(m->status & (MAPS_PRIVATE_FILE | MAPS_SHARED_FILE)))
		return;
	json_t *o = mapped_entry(c, m->file_id);
	if (!o)
		fail_damaged(c);
	else if (shared && m->protection & PROT_WRITE)
		put(c, o, "written", json_true());
}

static void tell_memory(struct contents *c, const CriuImage__Memory *m)
{
	put_path_of(c, "executable", m->executable_id);
	for (size_t i = 0; c->r == 0 && i < m->n_mappings; i++)
		add_mapping(c, m->mappings[i]);
}
ON_ENTRY(memory, Memory)

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

static void put_rights(struct contents *c, json_t *o, const struct criu_image_thread *t)
{
	static const char *const seccomp[] = { "none", "strict", "filters" };
	const struct credentials *k = &t->credentials;

	spend(c, ITEM_BYTES + 64 * k->n_groups);
	put(c, o, "uids", numbers(k->uids, CREDENTIALS_ID__MAX));
	put(c, o, "gids", numbers(k->gids, CREDENTIALS_ID__MAX));
	put(c, o, "groups", numbers(k->groups, k->n_groups));
	put(c, o, "capabilities", capability_sets(k));
	put_number(c, o, "securebits", t->securebits);
	put(c, o, "no_new_privs", json_boolean(k->no_new_privs));
	put_format(c, o, "seccomp", "%s", k->seccomp < 3 ? seccomp[k->seccomp] : "unknown");
	put_text(c, o, "label", (ProtobufCBinaryData){ strlen(k->label), (uint8_t *)k->label });
}

static bool have_same_rights(const struct criu_image_thread *a, const struct criu_image_thread *b)
{
	return credentials_are_same(&a->credentials, &b->credentials) &&
	       a->securebits == b->securebits;
}

static void read_thread(struct contents *c, struct criu_image_thread *ret, char comm[static 64],
			pid_t tid)
{
	auto_free char *text = NULL;
	char name[64];
	size_t len = 0;

	snprintf(name, sizeof(name), "core-%d.img", tid);
	need_one(c, name, &text, &len);
	if (c->r == 0)
		c->r = criu_image_thread_decode(ret, text, len);
	if (c->r == 0)
		c->r = criu_image_comm_decode(comm, text, len);
	name_damaged(c, name);
}

/* A thread that has other rights than the first one. */
static void tell_thread(struct contents *c, const struct criu_image_thread *first, pid_t tid)
{
	auto_(criu_image_thread_fini) struct criu_image_thread t = CRIU_IMAGE_THREAD_EMPTY;
	char comm[64];

	read_thread(c, &t, comm, tid);
	if (c->r < 0 || t.has_ended || have_same_rights(first, &t))
		return;
	json_t *item = add_item(c, array_of(c->process, "threads_with_other_rights"));
	put_number(c, item, "tid", tid);
	put_rights(c, item, &t);
}

/* Returns whether it runs. */
static bool tell_rights(struct contents *c, const struct criu_image_process *p)
{
	auto_(criu_image_thread_fini) struct criu_image_thread first = CRIU_IMAGE_THREAD_EMPTY;
	char comm[64] = "";

	read_thread(c, &first, comm, p->pid);
	put_text(c, c->process, "comm", (ProtobufCBinaryData){ strlen(comm), (uint8_t *)comm });
	if (first.has_ended) {
		put(c, c->process, "ended", json_true());
		return false;
	}
	put_rights(c, c->process, &first);
	for (size_t i = 0; c->r == 0 && i < p->n_threads; i++)
		if (p->threads[i] != p->pid)
			tell_thread(c, &first, p->threads[i]);
	return true;
}

static void tell_process(struct contents *c, json_t *processes, const struct criu_image_process *p)
{
	const uint32_t number = (uint32_t)p->pid;

	c->process = add_item(c, processes);
	c->pid = p->pid;
	put_number(c, c->process, "pid", p->pid);
	put_number(c, c->process, "ppid", p->ppid);
	put_number(c, c->process, "threads", (json_int_t)p->n_threads);
	if (!tell_rights(c, p))
		return;
	each_of_process(c, "mm", number, CRIU_MAGIC_MM, on_memory);
	each_of_process(c, "fs", number, CRIU_MAGIC_FS, on_directories);
}

/* ---- all of it ---- */

static void read_tree(struct contents *c, struct criu_image_tree *ret)
{
	auto_free char *text = NULL;
	size_t len = 0;

	need_one(c, "pstree.img", &text, &len);
	if (c->r == 0)
		c->r = criu_image_tree_decode(ret, text, len);
	name_damaged(c, "pstree.img");
}

static void tell_files(struct contents *c, json_t *processes)
{
	each_entry(c, "files.img", CRIU_MAGIC_FILES, on_file);
}

static void tell_paths(struct contents *c, json_t *processes)
{
	tell_files(c, processes);
	each_entry(c, "remap-fpath.img", CRIU_MAGIC_REMAP_FPATH, on_remapped_path);
}

static void tell_all(struct contents *c, json_t *processes)
{
	auto_(criu_image_tree_fini) struct criu_image_tree tree = CRIU_IMAGE_TREE_EMPTY;

	read_tree(c, &tree);
	each_entry(c, "memfd.img", CRIU_MAGIC_MEMFD_INODE, on_memory_file_inode);
	tell_paths(c, processes);
	for (size_t i = 0; c->r == 0 && i < tree.n; i++)
		tell_process(c, processes, &tree.items[i]);
}

typedef void (*tell_fn)(struct contents *c, json_t *processes);

static int read_contents(json_t **ret, tell_fn tell, criu_image_read_fn read, void *arg,
			 struct brumate_error *err)
{
	json_t *processes = json_array(), *files = json_array(), *sockets = json_array();
	json_t *all = json_pack("{s:o,s:o,s:o}", "processes", processes, "files", files, "sockets",
				sockets);
	struct brumate_error unheard = BRUMATE_ERROR_NONE;
	struct contents c = {
		.read = read,
		.arg = arg,
		.files = files,
		.sockets = sockets,
		.entries = json_object(),
		.memory_names = json_object(),
		.left_bytes = CRIU_CONTENTS_TEXT_MAX,
		.err = err ? err : &unheard,
	};

	if (all && c.entries && c.memory_names)
		tell(&c, processes);
	else
		fail_memory(&c);
	json_decref(c.entries);
	json_decref(c.memory_names);
	if (c.r == -ENOMEM && !c.err->code)
		brumate_fail(c.err, ENOMEM, "%m");
	if (c.r == 0)
		*ret = all;
	else
		json_decref(all);
	return c.r;
}

int criu_contents_read(json_t **ret, criu_image_read_fn read, void *arg, struct brumate_error *err)
{
	return read_contents(ret, tell_all, read, arg, err);
}

int criu_files_read(json_t **ret, criu_image_read_fn read, void *arg, struct brumate_error *err)
{
	return read_contents(ret, tell_paths, read, arg, err);
}

int criu_sockets_read(json_t **ret, criu_image_read_fn read, void *arg, struct brumate_error *err)
{
	json_t *all = NULL;
	int r = read_contents(&all, tell_files, read, arg, err);

	if (r == 0)
		*ret = json_incref(json_object_get(all, "sockets"));
	json_decref(all);
	return r;
}

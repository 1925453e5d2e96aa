// SPDX-License-Identifier: MIT
/*
 * What is peculiar to amdgpu_plugin.so, of CRIU's plugins/amdgpu: the images by which it is known to have done its work, and how
 * processes go on that it left paused. Part of our plugin in CRIU. Not run on hardware by us.
 *
 * Up to CRIU 4.2.1 it reports what it could not save as saved, where the file is the last one of a process
 * (its hook returns what unpausing did); and a process that does not have the render nodes of all GPUs open
 * stays paused. No version unpauses a process whose dump failed, or reports that the GPU could not copy.
 */
#include "gpu/saved-by.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "gpu/amd/private.h"

static bool has_image(int images_fd, const char *format, int id)
{
	char name[64];

	snprintf(name, sizeof(name), format, id);
	return faccessat(images_fd, name, R_OK, 0) == 0;
}

static bool is_saved(int images_fd, int id)
{
	return has_image(images_fd, "amdgpu-kfd-%d.img", id) ||
	       has_image(images_fd, "amdgpu-renderD-%d.img", id) ||
	       has_image(images_fd, "amdgpu-dmabuf_%d.img", id);
}

/* Its copies by the GPU return what their cleaning up does. What it says of its own failures begins so; other errors are tries that may
 * fail, or are returned. */
static bool is_loss(const char *format)
{
	return strstr(format, "failed to ") || strstr(format, "did not complete");
}

/* ---- which GPU is which ----
 *
 * The plugin's images name GPUs by the numbers under which the program knows them: those of the machine where it began. Which
 * cards had them at the dump stands in an image of ours; at a restore that decides what may take which card's place, and the
 * plugin chooses within that.
 */

struct numbered {
	uint32_t number, here; /* of the program, and of this machine */
	char uuid[DEV_UUID_TEXT_BYTES];
};

struct numbers {
	struct numbered items[DEV_GPUS_MAX];
	size_t n;
};

static struct numbers here, of_file;
static bool is_restoring;
static const char *gpu_map = "";
static void *(*pair_before)(void *maps, uint32_t one, uint32_t other);
static void *(*node_before)(const void *system, uint32_t index);
static int (*open_before)(void *node);

static void add_number(struct numbers *l, uint32_t number, uint32_t here_number, const char *uuid)
{
	if (l->n == DEV_GPUS_MAX)
		return;
	l->items[l->n].number = number;
	l->items[l->n].here = here_number;
	snprintf(l->items[l->n++].uuid, DEV_UUID_TEXT_BYTES, "%s", uuid);
}

/* Empty: there is no such GPU. */
static const char *uuid_of(const struct numbers *l, uint32_t number)
{
	for (size_t i = 0; i < l->n; i++)
		if (l->items[i].number == number)
			return l->items[i].uuid;
	return "";
}

static void begin(bool is_restore, const char *map)
{
	char uuid[DEV_UUID_TEXT_BYTES];
	struct amd_node node;

	is_restoring = is_restore;
	gpu_map = map;
	for (unsigned i = 0; i < AMD_NODES_MAX && amd_read_node("/sys", i, &node); i++)
		if (node.gpu_id) {
			amd_node_uuid(&node, uuid);
			add_number(&here, (uint32_t)node.gpu_id, (uint32_t)node.gpu_id, uuid);
		}
}

bool amd_map_allows(const char *map, const char *from, const char *to)
{
	const size_t from_len = strlen(from), to_len = strlen(to);

	for (const char *p = map; *p; p += strcspn(p, ","), p += *p == ',')
		if (!strncmp(p, from, from_len) && p[from_len] == '=') {
			p += from_len + 1;
			return !strncmp(p, to, to_len) && (!p[to_len] || p[to_len] == ',');
		}
	return !strcmp(from, to);
}

/* Called with the number here and that of the program at a dump, and with that of the program and one here at a restore. There NULL, which is no memory for it, has the
 * plugin try another one. */
static void *pair(void *maps, uint32_t one, uint32_t other)
{
	if (!is_restoring)
		add_number(&of_file, other, one, uuid_of(&here, one));
	else if (!amd_map_allows(gpu_map, uuid_of(&of_file, one), uuid_of(&here, other)))
		return NULL;
	return pair_before(maps, one, other);
}

/* Of a process that was restored on other GPUs than it began on, the kernel names those of its memory by the program's numbers, and a dump looks for the
 * machine's: it would copy nothing, or by the wrong GPU. It gets nodes with the program's numbers, which open the right one. */
static struct stand_in {
	uint32_t node, number; /* how the plugin's own begin */
	void *real;
} stand_ins[DEV_GPUS_MAX];

static void *find_node(const void *system, uint32_t index)
{
	uint32_t *node = node_before(system, index);
	bool is_moved = false;

	for (size_t i = 0; !is_restoring && node && i < of_file.n; i++) {
		const struct numbered *gpu = &of_file.items[i];
		is_moved = is_moved || gpu->here != gpu->number;
		if (gpu->here != node[1])
			continue;
		stand_ins[i] = (struct stand_in){ node[0], gpu->number, node };
		return &stand_ins[i];
	}
	return is_moved ? NULL : node; /* NULL: nodes do not begin as we know it */
}

static int open_node(void *node)
{
	for (size_t i = 0; i < DEV_GPUS_MAX; i++)
		if (node == &stand_ins[i])
			node = stand_ins[i].real;
	return open_before(node);
}

static void name_image(char *ret, size_t room, int id)
{
	snprintf(ret, room, "amdgpu-gpus-%d.img", id);
}

static int write_gpus(int images_fd, int id)
{
	char name[64];

	if (!of_file.n) /* a render node */
		return 0;
	name_image(name, sizeof(name), id);
	auto_close int fd = openat(images_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	int r = fd < 0 ? -errno : 0;
	for (size_t i = 0; r == 0 && i < of_file.n; i++)
		if (dprintf(fd, "%u %s\n", of_file.items[i].number, of_file.items[i].uuid) < 0)
			r = -errno;
	of_file.n = 0;
	return r;
}

static int read_gpus(int images_fd, int id)
{
	auto_free char *text = NULL;
	char name[64], uuid[DEV_UUID_TEXT_BYTES];
	unsigned number;

	of_file.n = 0;
	name_image(name, sizeof(name), id);
	int r = file_read(images_fd, name, 1 << 16, &text, NULL);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	for (const char *p = text; *p; p += strcspn(p, "\n"), p += *p == '\n')
		if (sscanf(p, "%u %47s", &number, uuid) == 2)
			add_number(&of_file, number, 0, uuid);
	return 0;
}

/* ---- */

/* Facts of the kernel's interface, whose header takes those of libdrm. */
struct criu_args {
	uint64_t devices, bos, private_data, private_bytes;
	uint32_t n_devices, n_bos, n_objects, pid, op;
};
#define CRIU_OP _IOWR('K', 0x22, struct criu_args)
enum { CRIU_OP_UNPAUSE = 2 };

/* The kernel answers EINVAL for a process that is not paused, and other files with ENOTTY. */
static void go_on(int fd)
{
	struct criu_args args = { .op = CRIU_OP_UNPAUSE };

	ioctl(fd, CRIU_OP, &args);
}

static const struct gpu_saved_call calls[] = {
	{ "maps_add_gpu_entry", (void *)pair, (void **)&pair_before },
	{ "sys_get_node_by_index", (void *)find_node, (void **)&node_before },
	{ "node_get_drm_render_device", (void *)open_node, (void **)&open_before },
	{ 0 },
};

extern const struct gpu_saved_by gpu_saved_by_amd;
const struct gpu_saved_by gpu_saved_by_amd = {
	.vendor = "amd",
	.library = "amd/amdgpu_plugin.so",
	.files = "/dev/kfd:/dev/dri/renderD:/dmabuf:",
	.is_saved = is_saved,
	.is_loss = is_loss,
	.calls = calls,
	.begin = begin,
	.read_gpus = read_gpus,
	.write_gpus = write_gpus,
	.go_on = go_on,
};

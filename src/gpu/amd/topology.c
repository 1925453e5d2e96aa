// SPDX-License-Identifier: MIT
/* The kernel's topology of AMD's GPUs, as sysfs has it. Part of our plugin in CRIU, too: it takes nothing but libc and base/fd.c. */
#include "gpu/amd/private.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fd.h"

enum { TEXT_BYTES_MAX = 64 << 10, PATH_BYTES = 256 };

void amd_read_line(const char *path, char *ret, size_t room)
{
	auto_free char *text = NULL;

	*ret = '\0';
	if (file_read(AT_FDCWD, path, TEXT_BYTES_MAX, &text, NULL) == 0)
		snprintf(ret, room, "%.*s", (int)strcspn(text, "\n"), text);
}

uint64_t amd_read_number(const char *path)
{
	char line[32];

	amd_read_line(path, line, sizeof(line));
	return strtoull(line, NULL, 10);
}

/* The value of "NAME VALUE" in a node's properties; 0 if it has none. */
static uint64_t find_property(const char *properties, const char *name)
{
	size_t len = strlen(name);

	for (const char *p = properties; *p; p += strcspn(p, "\n"), p += *p == '\n')
		if (!strncmp(p, name, len) && p[len] == ' ')
			return strtoull(p + len, NULL, 10);
	return 0;
}

bool amd_read_node(const char *sysfs, unsigned int number, struct amd_node *ret)
{
	char id[PATH_BYTES], path[PATH_BYTES];
	auto_free char *text = NULL;

	snprintf(id, sizeof(id), "%s/class/kfd/kfd/topology/nodes/%u/gpu_id", sysfs, number);
	snprintf(path, sizeof(path), "%s/class/kfd/kfd/topology/nodes/%u/properties", sysfs,
		 number);
	if (file_read(AT_FDCWD, path, TEXT_BYTES_MAX, &text, NULL) < 0)
		return false;
	*ret = (struct amd_node){ .gpu_id = amd_read_number(id),
				  .unique_id = find_property(text, "unique_id"),
				  .domain = find_property(text, "domain"),
				  .location_id = find_property(text, "location_id"),
				  .device_id = find_property(text, "device_id"),
				  .render_minor = find_property(text, "drm_render_minor") };
	return true;
}

/* The last 16 digits are those that AMD's own tools show. A card without such an id has its place as one. */
void amd_node_uuid(const struct amd_node *node, char ret[static DEV_UUID_TEXT_BYTES])
{
	const uint64_t place = node->unique_id ? 0 : node->domain << 32 | node->location_id;

	snprintf(ret, DEV_UUID_TEXT_BYTES, "GPU-%08llx-%04llx-%04llx-%04llx-%012llx",
		 (unsigned long long)(place >> 32), (unsigned long long)(place >> 16 & 0xffff),
		 (unsigned long long)(place & 0xffff), (unsigned long long)(node->unique_id >> 48),
		 (unsigned long long)(node->unique_id & 0xffffffffffff));
}

// SPDX-License-Identifier: MIT
/*
 * The hooks for devices in a CRIU whose table of hooks has TABLE_BYTES (0: none to be seen), which this program is to a plugin: a flag is
 * written where CRIU passes one, and nothing where it does not. The paths of the plugins are the arguments.
 */
#include "check.h"
#include "criu-plugin/plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	HEAD_BYTES = 2 * sizeof(void *), /* of one list */
	KINDS = TABLE_BYTES % HEAD_BYTES ? 0 : TABLE_BYTES / HEAD_BYTES - 1,
	IS_KNOWN = KINDS > 0,
	HAS_FLAG = KINDS >= 14,
	OURS = 7, /* a descriptor with a record, and one without */
	OTHERS = 8,
	PAGE_BYTES = 4096,
};

typedef int (*dump_fn)(int fd, int id);
typedef int (*restore_fn)(int id, bool *flag);

static int image_dir = -1;
static char said[1024];

/* ---- what a plugin finds in CRIU ---- */

#pragma GCC visibility push(default)

#if TABLE_BYTES
extern const char cr_plugin_ctl[TABLE_BYTES];
const char cr_plugin_ctl[TABLE_BYTES];
#endif

int criu_get_image_dir(void)
{
	return image_dir;
}

bool check_and_remove_inventory_plugin(const char *name, size_t len)
{
	(void)name;
	(void)len;
	return false;
}

int add_inventory_plugin(const char *name)
{
	(void)name;
	return 0;
}

void print_on_level(unsigned level, const char *format, ...)
{
	va_list list;

	if (level != CRIU_LOG_ERROR)
		return;
	va_start(list, format);
	vsnprintf(said, sizeof(said), format, list);
	va_end(list);
}

#pragma GCC visibility pop

/* ---- what it does there ---- */

/* Its value is neither true nor false, and what is written beside it is seen. */
static unsigned char *flag_new(int protection)
{
	unsigned char *page =
		mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(page != MAP_FAILED);
	memset(page, 0xa5, PAGE_BYTES);
	CHECK(mprotect(page, PAGE_BYTES, protection) == 0);
	return page + PAGE_BYTES / 2;
}

static bool is_untouched(const unsigned char *flag)
{
	for (int i = -PAGE_BYTES / 2; i < PAGE_BYTES / 2; i++)
		if (i != 0 && flag[i] != 0xa5)
			return false;
	return true;
}

static void must_refuse(int r)
{
	CHECK(r < 0 && r != -ENOTSUP);
	CHECK(strstr(said, "table of hooks (cr_plugin_ctl)") && strstr(said, "use CRIU"));
	CHECK(strchr(said, '\n') == said + strlen(said) - 1);
	said[0] = '\0';
}

/* A read-only page is what CRIU's log leaves in the place of a flag. */
static void restores(restore_fn restore)
{
	unsigned char *flag = flag_new(HAS_FLAG ? PROT_READ | PROT_WRITE : PROT_READ);

	CHECK(restore(OTHERS, (bool *)flag) == -ENOTSUP && *flag == 0xa5 && is_untouched(flag));
	int fd = restore(OURS, (bool *)flag);
	CHECK(is_untouched(flag) && *flag == (HAS_FLAG ? 0 : 0xa5));
	if (!IS_KNOWN) {
		must_refuse(fd);
		return;
	}
	CHECK(fd >= 0 && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR && !said[0]);
	close(fd);
}

/* What could not be restored is not dumped; then the record that restores() wants is made here. */
static void dumps(dump_fn dump)
{
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

	CHECK(fd >= 0);
	int r = dump(fd, OURS);
	close(fd);
	if (IS_KNOWN) {
		CHECK(r == 0 && !said[0]);
		return;
	}
	must_refuse(r);
	CHECK(faccessat(image_dir, "brumate-device-7.img", F_OK, 0) < 0 && errno == ENOENT);
	int out = openat(image_dir, "brumate-device-7.img", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	CHECK(out >= 0 && dprintf(out, "/dev/null %x\n", O_RDWR) > 0);
	close(out);
}

static void try_plugin(const char *path)
{
	char dir[] = "/tmp/brumate-hooks-XXXXXX";
	void *module = dlopen(path, RTLD_NOW);

	if (!module)
		printf("%s\n", dlerror());
	CHECK(module && mkdtemp(dir));
	image_dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(image_dir >= 0);
	const struct cr_plugin *plugin = dlsym(module, "CR_PLUGIN_DESC");
	CHECK(plugin && (!IS_KNOWN || plugin->n_hooks <= KINDS));
	dumps((dump_fn)plugin->hooks[CRIU_HOOK_DUMP_EXT_FILE]);
	restores((restore_fn)plugin->hooks[CRIU_HOOK_RESTORE_EXT_FILE]);
	CHECK(unlinkat(image_dir, "brumate-device-7.img", 0) == 0 && rmdir(dir) == 0);
	close(image_dir);
	CHECK(dlclose(module) == 0);
}

int main(int argc, char **argv)
{
	CHECK(argc > 1 && setenv(HIDDEN_DEV_VARIABLE, "/dev/null", 1) == 0);
	for (int i = 1; i < argc; i++)
		try_plugin(argv[i]);
	return 0;
}

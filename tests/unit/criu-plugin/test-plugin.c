// SPDX-License-Identifier: MIT
/* The plugin as CRIU loads it: it stands before calls of this program, and no more once it is unloaded. Its path is the argument. */
#include "check.h"
#include "criu-plugin/plugin.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

static struct hidden_table *make_table(void)
{
	char number[16];
	int fd = memfd_create("hidden", MFD_CLOEXEC);

	CHECK(fd >= 0 && ftruncate(fd, sizeof(struct hidden_table)) == 0);
	struct hidden_table *t = mmap(NULL, sizeof(*t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(t != MAP_FAILED);
	t->magic = HIDDEN_MAGIC;
	snprintf(number, sizeof(number), "%d", fd);
	setenv(HIDDEN_FD_VARIABLE, number, 1);
	return t;
}

int main(int argc, char **argv)
{
	struct hidden_table *table = make_table();
	char buf[8];
	int fds[2], n;

	CHECK(argc == 2);
	void *module = dlopen(argv[1], RTLD_NOW);
	if (!module)
		printf("%s\n", dlerror());
	CHECK(module);
	struct cr_plugin *plugin = dlsym(module, "CR_PLUGIN_DESC");
	CHECK(plugin && plugin->init(CRIU_STAGE_DUMP) == 0);
	if (!table->is_heeded)
		SKIP("a program without imports by name");
	CHECK(pipe(fds) == 0 && write(fds[1], "some", 4) == 4);
	CHECK(ioctl(fds[0], FIONREAD, &n) == 0 && n == 4);
	CHECK(pread(fds[0], buf, sizeof(buf), 0) < 0); /* of a pipe nothing can be read so */
	plugin->exit(CRIU_STAGE_DUMP, 0);
	CHECK(dlclose(module) == 0);
	CHECK(!dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD));
	CHECK(ioctl(fds[0], FIONREAD, &n) == 0 && n == 4);
	CHECK(pread(fds[0], buf, sizeof(buf), 0) < 0);
	return 0;
}

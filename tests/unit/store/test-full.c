// SPDX-License-Identifier: MIT
/* A store on a disk that is full, and one on a disk that is read-only. Needs a mount of its own. */
#include "scratch.h"

#include <sched.h>
#include <sys/mount.h>

static void test_full(void)
{
	auto_(store_abort) struct store_writer w = STORE_WRITER_EMPTY;
	auto_(manifest_fini) struct manifest m = MANIFEST_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	static char fill[1 << 20];
	uint64_t free_bytes = 1;

	CHECK(store_begin(&w, dir, "full", &err) == 0);
	auto_close int fd = openat(w.dir_fd, "pages", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && fd_write_full(fd, fill, sizeof(fill)) == -ENOSPC);
	cleanup_close(&fd);
	CHECK(store_free_bytes(dir, &free_bytes, &err) == 0 && free_bytes == 0);

	CHECK(store_commit(&w, &m, NULL, NULL, &err) == -ENOSPC);
	CHECK(strstr(err.text, "checkpoint full: ") && strstr(err.text, "write the manifest"));
	CHECK(strstr(err.text, "No space left") && strstr(err.hint, "0 B are free"));
	CHECK(!is_there(at("full")));
	store_abort(&w);
	CHECK(!is_there(at(".full.partial")));
	CHECK(store_free_bytes(dir, &free_bytes, &err) == 0 && free_bytes > 500000);
}

static void test_read_only(void)
{
	auto_(store_abort) struct store_writer w = STORE_WRITER_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(mount(NULL, scratch, NULL, MS_REMOUNT | MS_RDONLY, "size=768k") == 0);
	CHECK(store_begin(&w, dir, "any", &err) == -EROFS);
	CHECK(strstr(err.text, dir) && strstr(err.hint, "--dir"));
	CHECK(store_remove(dir, "none", &err) == -ENOENT);
	CHECK(store_sweep(dir) == 0);
}

int main(void)
{
	new_scratch();
	/* A mount namespace of our own: it goes away with us, whatever happens. */
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("tmpfs", scratch, "tmpfs", MS_NOSUID | MS_NODEV, "size=768k") < 0) {
		int code = errno;

		rmdir(scratch);
		SKIP("needs to mount a small tmpfs: %s", strerror(code));
	}
	test_full();
	test_read_only();
	CHECK(umount(scratch) == 0);
	CHECK(rmdir(scratch) == 0);
	return 0;
}

// SPDX-License-Identifier: MIT
/* Small files and trees: replaced whole, read within bounds, removed without following links. */
#include "scratch.h"

#include "base/cleanup.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static int top;

static unsigned count_entries(int dir_fd)
{
	auto_closedir DIR *dir = fdopendir(openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	unsigned n = 0;

	CHECK(dir);
	for (struct dirent *e; (e = readdir(dir));)
		n += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
	return n;
}

static void test_replace(void)
{
	auto_free char *text = NULL, *other = NULL;
	struct stat st;
	size_t len;

	CHECK(file_replace(top, "conf", "one", 3, 0640) == 0);
	CHECK(file_replace(top, "conf", "two\0!", 5, 0600) == 0);
	CHECK(file_read(top, "conf", 5, &text, &len) == 0);
	CHECK(len == 5 && !memcmp(text, "two\0!", 6));
	CHECK(fstatat(top, "conf", &st, 0) == 0 && (st.st_mode & 0777) == 0600);
	CHECK(count_entries(top) == 1);

	/* A link is replaced, not written through. */
	put_text(top, "target", "kept");
	CHECK(symlinkat("target", top, "link") == 0);
	CHECK(file_replace(top, "link", "new", 3, 0600) == 0);
	CHECK(fstatat(top, "link", &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode));
	CHECK(file_read(top, "target", 100, &other, NULL) == 0);
	CHECK_STR(other, "kept");

	/* What cannot be replaced leaves nothing behind. */
	CHECK(mkdirat(top, "dir", 0700) == 0);
	CHECK(file_replace(top, "dir", "x", 1, 0600) == -EISDIR);
	CHECK(file_replace(top, "absent/conf", "x", 1, 0600) == -ENOENT);
	CHECK(count_entries(top) == 4);
	CHECK(file_replace(top, "dir/conf", "x", 1, 0600) == 0);
}

static void test_sweep(void)
{
	char path[64], name[64];
	unsigned n = count_entries(top);
	pid_t pid = fork();

	if (pid == 0)
		_exit(0);
	/* A zombie has ended as well. */
	CHECK(pid > 0 && waitid(P_PID, (id_t)pid, NULL, WEXITED | WNOWAIT) == 0);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", top);
	snprintf(name, sizeof(name), "job.json.tmp.%d.%d", pid, pid + 1);
	put_text(top, name, "left");
	file_sweep(path);
	CHECK(faccessat(top, name, F_OK, 0) < 0 && count_entries(top) == n);
	CHECK(waitpid(pid, NULL, 0) == pid);
	put_text(top, name, "left");
	file_sweep(path);
	CHECK(faccessat(top, name, F_OK, 0) < 0 && count_entries(top) == n);

	/* One that is being written, and files of other names. */
	snprintf(name, sizeof(name), "job.json.tmp.%d.%d", getpid(), getpid());
	put_text(top, name, "busy");
	put_text(top, "notes.tmp.txt", "kept");
	put_text(top, "notes.tmp.1.2.txt", "kept");
	file_sweep(path);
	CHECK(count_entries(top) == n + 3);
	CHECK(unlinkat(top, name, 0) == 0 && unlinkat(top, "notes.tmp.txt", 0) == 0 &&
	      unlinkat(top, "notes.tmp.1.2.txt", 0) == 0);
	file_sweep("/proc/self/absent");
}

static void test_read(void)
{
	auto_free char *text = NULL;
	char big[10000];
	size_t len = 7;

	memset(big, 'b', sizeof(big));
	CHECK(file_replace(top, "big", big, sizeof(big), 0600) == 0);
	CHECK(file_read(top, "big", sizeof(big) - 1, &text, &len) == -EFBIG);
	CHECK(!text && len == 7);
	CHECK(file_read(top, "big", sizeof(big), &text, &len) == 0);
	CHECK(len == sizeof(big) && !memcmp(text, big, len) && text[len] == '\0');
	CHECK(file_read(top, "absent", 10, &text, &len) == -ENOENT);
	CHECK(file_read(top, "dir", 10, &text, &len) == -EISDIR);
}

static void *write_slowly(void *arg)
{
	int fd = *(int *)arg;

	/* More than a pipe holds: the writer blocks, and the reader gets it in pieces. */
	static char data[300000];
	memset(data, 'd', sizeof(data));
	CHECK(fd_write_full(fd, data, sizeof(data)) == 0);
	close(fd);
	return NULL;
}

static void test_full(void)
{
	static char buf[400000];
	pthread_t thread;
	int pipes[2];

	CHECK(pipe2(pipes, O_CLOEXEC) == 0);
	CHECK(pthread_create(&thread, NULL, write_slowly, &pipes[1]) == 0);
	CHECK(fd_read_full(pipes[0], buf, 100000) == 100000);
	CHECK(fd_read_full(pipes[0], buf, sizeof(buf)) == 200000);
	CHECK(fd_read_full(pipes[0], buf, sizeof(buf)) == 0);
	pthread_join(thread, NULL);
	close(pipes[0]);
	CHECK(fd_read_full(-1, buf, 1) == -EBADF);
	CHECK(fd_write_full(-1, buf, 1) == -EBADF);
}

static void test_remove_tree(void)
{
	CHECK(mkdirat(top, "tree", 0700) == 0 && mkdirat(top, "tree/a", 0700) == 0);
	CHECK(mkdirat(top, "kept", 0700) == 0);
	put_text(top, "tree/a/file", "x");
	put_text(top, "kept/file", "x");
	CHECK(symlinkat("../../kept", top, "tree/a/out") == 0);
	CHECK(symlinkat("kept", top, "tree/dangling") == 0);
	CHECK(mkfifoat(top, "tree/pipe", 0600) == 0);
	CHECK(remove_tree(top, "tree") == 0);
	CHECK(faccessat(top, "tree", F_OK, 0) < 0 && faccessat(top, "kept/file", F_OK, 0) == 0);

	CHECK(remove_tree(top, "tree") == 0); /* missing is success */
	CHECK(symlinkat("kept", top, "way") == 0);
	CHECK(remove_tree(top, "way") == 0);
	CHECK(faccessat(top, "way", F_OK, AT_SYMLINK_NOFOLLOW) < 0);
	CHECK(faccessat(top, "kept/file", F_OK, 0) == 0);
	CHECK(remove_tree(top, "kept/file") == 0 && faccessat(top, "kept", F_OK, 0) == 0);
}

/* Directories one in the other, as anybody can make them who may write where we clean up. */
static void test_remove_deep_tree(void)
{
	enum { LEVELS = 200 };

	CHECK(mkdirat(top, "deep", 0700) == 0);
	for (int i = 0; i < LEVELS; i++)
		CHECK(mkdirat(top, "around", 0700) == 0 &&
		      renameat(top, "deep", top, "around/in") == 0 &&
		      renameat(top, "around", top, "deep") == 0);
	CHECK(remove_tree(top, "deep") == -ENAMETOOLONG);
	for (int i = 0; i < LEVELS - 10; i++)
		CHECK(renameat(top, "deep/in", top, "around") == 0 &&
		      unlinkat(top, "deep", AT_REMOVEDIR) == 0 &&
		      renameat(top, "around", top, "deep") == 0);
	CHECK(remove_tree(top, "deep") == 0);
}

static void test_mkdir_parents(void)
{
	char path[PATH_MAX + 32];
	struct stat st;

	snprintf(path, sizeof(path), "%s/m/n//o", scratch);
	CHECK(mkdir_parents(path, 0750) == 0 && mkdir_parents(path, 0700) == 0);
	CHECK(stat(path, &st) == 0 && S_ISDIR(st.st_mode) && (st.st_mode & 0777) == 0750);
	snprintf(path, sizeof(path), "%s/big/x", scratch);
	CHECK(mkdir_parents(path, 0700) == -ENOTDIR);
}

/* A pipe without a writer would be waited for, and a link leads elsewhere. */
static void test_read_plain(void)
{
	auto_free char *text = NULL;
	size_t len;

	put_text(top, "plain", "here");
	CHECK(symlinkat("plain", top, "plain-link") == 0 && mkfifoat(top, "plain-pipe", 0600) == 0);
	CHECK(file_read_plain(top, "plain", 4, &text, &len) == 0 && len == 4);
	CHECK_STR(text, "here");
	cleanup_free(&text);
	CHECK(file_read_plain(top, "plain", 3, &text, &len) == -EFBIG);
	CHECK(file_read_plain(top, "plain-link", 4, &text, &len) == -EBADMSG);
	CHECK(file_read_plain(top, "plain-pipe", 4, &text, &len) == -EBADMSG);
	CHECK(file_read_plain(top, ".", 4, &text, &len) == -EBADMSG);
	CHECK(file_read_plain(top, "absent", 4, &text, &len) == -ENOENT);
	CHECK(!text);
}

static void test_peer(void)
{
	struct ucred peer;
	int pair[2];

	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
	CHECK(fd_peer(pair[0], &peer) == 0);
	CHECK(peer.pid == getpid() && peer.uid == geteuid() && peer.gid == getegid());
	CHECK(fd_peer(top, &peer) == -ENOTSOCK);
	close(pair[0]);
	close(pair[1]);
}

static bool lacks_flags;

/* In the place of libc's: NFS, for one, has none of the flags. */
int renameat2(int from_dir_fd, const char *from, int to_dir_fd, const char *to, unsigned flags)
{
	errno = EINVAL;
	return lacks_flags && flags
		       ? -1
		       : (int)syscall(SYS_renameat2, from_dir_fd, from, to_dir_fd, to, flags);
}

static void test_rename_new(void)
{
	auto_free char *text = NULL;

	for (int i = 0; i < 2; i++, cleanup_free(&text)) {
		lacks_flags = i;
		CHECK(file_replace(top, "one", "one", 3, 0600) == 0 &&
		      file_replace(top, "two", "two", 3, 0600) == 0);
		CHECK(mkdirat(top, "from", 0700) == 0 && mkdirat(top, "taken", 0700) == 0 &&
		      mkdirat(top, "taken/below", 0700) == 0);
		CHECK(rename_new(top, "one", top, "two") == -EEXIST);
		CHECK(rename_new(top, "from", top, "taken") == -EEXIST);
		CHECK(rename_new(top, "from", top, "two") == -EEXIST);
		CHECK(rename_new(top, "absent", top, "new") == -ENOENT);
		CHECK(rename_new(top, "one", top, "new") == 0);
		CHECK(rename_new(top, "from", top, "to") == 0);
		CHECK(file_read(top, "new", 5, &text, NULL) == 0 && !strcmp(text, "one"));
		CHECK(faccessat(top, "one", F_OK, 0) < 0 && faccessat(top, "from", F_OK, 0) < 0);
		CHECK(unlinkat(top, "new", 0) == 0 && unlinkat(top, "two", 0) == 0);
		CHECK(unlinkat(top, "to", AT_REMOVEDIR) == 0 && remove_tree(top, "taken") == 0);
	}
	lacks_flags = false;
}

int main(void)
{
	umask(022);
	top = new_scratch();
	test_replace();
	test_rename_new();
	test_sweep();
	test_read();
	test_read_plain();
	test_full();
	test_remove_tree();
	test_remove_deep_tree();
	test_mkdir_parents();
	test_peer();
	CHECK(sync_dir(top, ".") == 0 && sync_dir(top, "absent") == -ENOENT);
	close(top);
	remove_scratch();
	return 0;
}

// SPDX-License-Identifier: MIT
/* Reading and writing what is on a disk of a host copy. See spill.h. */
#include "wire/spill.h"
#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL };

int spill_key_new(struct seal_disk_key *ret, int *ret_fd)
{
	auto_(seal_disk_key_fini) struct seal_disk_key key;
	auto_close int fd = memfd_create("brumate-key", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return -errno;
	if (getrandom(&key, sizeof(key), 0) != (ssize_t)sizeof(key))
		return -errno;
	ssize_t n = pwrite(fd, &key, sizeof(key), 0);
	if (n != (ssize_t)sizeof(key))
		return n < 0 ? -errno : -EIO;
	if (fcntl(fd, F_ADD_SEALS, SEALS) < 0)
		return -errno;
	*ret = key;
	*ret_fd = take_fd(&fd);
	return 0;
}

int spill_key_read(struct seal_disk_key *ret, int fd)
{
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &st) < 0 ||
	    st.st_size != (off_t)sizeof(*ret) ||
	    pread(fd, ret, sizeof(*ret), 0) != (ssize_t)sizeof(*ret))
		return -EBADF;
	return 0;
}

bool spill_is_segment(int fd, uint64_t len_bytes)
{
	struct stat st;

	return fcntl(fd, F_GET_SEALS) < 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
	       st.st_nlink == 0 && st.st_size >= 0 && (uint64_t)st.st_size >= len_bytes;
}

static int read_all(int fd, char *buf, size_t len_bytes, uint64_t offset)
{
	for (size_t done = 0; done < len_bytes;) {
		ssize_t n = pread(fd, buf + done, len_bytes - done, (off_t)(offset + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		done += (size_t)n;
	}
	return 0;
}

static int write_all(int fd, const char *buf, size_t len_bytes, uint64_t offset)
{
	for (size_t done = 0; done < len_bytes;) {
		ssize_t n = pwrite(fd, buf + done, len_bytes - done, (off_t)(offset + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		done += (size_t)n;
	}
	return 0;
}

int spill_read(int fd, const struct seal_disk_key *key, uint64_t start, uint64_t at, void *buf,
	       size_t len_bytes)
{
	int r = read_all(fd, buf, len_bytes, at - start);

	return r < 0 ? r : seal_disk(buf, key, SEAL_DISK_OPEN, at, buf, len_bytes);
}

int spill_write(int fd, const struct seal_disk_key *key, uint64_t start, uint64_t at, void *buf,
		size_t len_bytes)
{
	int r = seal_disk(buf, key, SEAL_DISK_CLOSE, at, buf, len_bytes);

	return r < 0 ? r : write_all(fd, buf, len_bytes, at - start);
}

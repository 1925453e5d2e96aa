// SPDX-License-Identifier: MIT
/* Keys of checkpoints, and the place for what is in the clear; see secret.h. */
#include "engine/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/conf.h"
#include "base/fd.h"
#include "process/memory-dir.h"
#include "process/reap.h"
#include "store/sealed.h"
#include "store/authentic.h"

enum { KEY_TIMEOUT_MS = 30000, KEY_TEXT_BYTES = 2 * SEAL_KEY_BYTES + 2 };

/* CRIU's own, in addition to the memory of the processes: their fds, mounts and the like. */
#define IMAGES_EXTRA_BYTES (256ull << 20)

/* ---- the program that gives a key ([Store] EncryptionKeyCommand=) ---- */

/* Reads until the end, or more than a key is long. Returns the bytes or -errno. */
static ssize_t read_key(int fd, uint8_t *text)
{
	uint64_t deadline_ns = deadline_in_ms(KEY_TIMEOUT_MS);
	size_t len = 0;

	while (len < KEY_TEXT_BYTES) {
		int r = fd_wait(fd, POLLIN, deadline_ns);
		ssize_t n = r < 0 ? -1 : read(fd, text + len, KEY_TEXT_BYTES - len);

		if (r < 0)
			return r;
		if (n < 0 && errno != EINTR)
			return -errno;
		if (n == 0)
			break;
		len += n > 0 ? (size_t)n : 0;
	}
	return (ssize_t)len;
}

static int fail_key_program(int status, const char *path, struct brumate_error *err)
{
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	if (WIFEXITED(status))
		brumate_fail(err, ENOKEY, "key program %s: failed with exit status %d", path,
			     WEXITSTATUS(status));
	else
		brumate_fail(err, ENOKEY, "key program %s: killed by signal %d", path,
			     WTERMSIG(status));
	brumate_hint(err, "run it by hand, as the user that brumate runs as");
	return -ENOKEY;
}

/* Runs the program @path, without arguments; the key is what it prints. Errors to act on: -ENOKEY (it cannot be
 * run, or fails), -ETIMEDOUT, -EINVAL (what it prints is not a key). */
static int ask_key_program(struct store_key *ret, const char *path, struct brumate_error *err)
{
	uint8_t text[KEY_TEXT_BYTES];
	int p[2], status = 0;
	pid_t pid;

	if (pipe2(p, O_CLOEXEC) < 0)
		return brumate_fail(err, errno, "key program %s: %m", path);
	auto_close int in = p[0];
	int r = reap_spawn(&pid, path, (char *[]){ (char *)path, NULL }, environ, p[1], -1);
	close(p[1]);
	if (r < 0)
		return brumate_fail(err, ENOKEY, "key program %s: %s", path, strerror(-r));

	ssize_t n = read_key(in, text);
	cleanup_close(&in); /* one that prints more ends by that */
	if (n < 0)
		kill(pid, SIGKILL); /* nobody else waits for it: the number is still its own */
	reap_wait(pid, &status);
	if (n < 0)
		r = brumate_fail(err, (int)-n, "key program %s: %s", path,
				 n == -ETIMEDOUT ? "does not answer" : strerror((int)-n));
	else
		r = fail_key_program(status, path, err);
	if (r == 0)
		r = store_key_parse(ret, path, text, (size_t)n, err);
	explicit_bzero(text, sizeof(text));
	return r;
}

/* ---- keys ---- */

/* That of the request comes before the configured one. 1: there is a key; 0: there is none. */
static int load_key(struct store_key *ret, const struct request *request,
		    const struct brumate_conf *conf, struct brumate_error *err)
{
	if (*request->key.id) {
		*ret = request->key;
		return 1;
	}
	if (!conf->key_file && !conf->key_program)
		return 0;
	if (conf->key_file && conf->key_program)
		return brumate_fail(err, EINVAL,
				    "EncryptionKeyFile= and EncryptionKeyCommand= of "
				    "[Store]: expected one of them");
	int r = conf->key_file ? store_key_load(ret, conf->key_file, err)
			       : ask_key_program(ret, conf->key_program, err);
	return r < 0 ? r : 1;
}

static int load_authority(struct authority *ret, const struct request *request,
			  const struct brumate_conf *conf, struct brumate_error *err)
{
	int r = load_key(&ret->key, request, conf, err);

	if (r < 0)
		return r;
	ret->has_key = r;
	ret->lenient = request->allow_unauthenticated || conf->allow_unauthenticated;
	return conf->trusted_keys ? trusted_keys_load(&ret->trusted, conf->trusted_keys, err) : 0;
}

int secret_authority(struct authority *ret, const struct request *request,
		     struct brumate_error *err)
{
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	auto_(authority_fini) struct authority a = AUTHORITY_EMPTY;
	int r = conf_load(&conf, err);

	if (r == 0)
		r = load_authority(&a, request, &conf, err);
	if (r < 0)
		return r;
	*ret = take_struct(a, AUTHORITY_EMPTY);
	return 0;
}

int secret_begin(struct op *op, struct brumate_error *err)
{
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	struct op_images *images = &op->images;
	int r = conf_load(&conf, err);

	if (r == 0)
		r = load_key(&images->authority.key, op->request, &conf, err);
	if (r > 0)
		op->checkpoint.writer.key = &images->authority.key;
	if (r < 0 || !conf.signing_key)
		return r < 0 ? r : 0;
	r = signing_key_load(&images->signing, conf.signing_key, err);
	op->checkpoint.writer.signing = images->signing;
	return r;
}

bool secret_is_wanted(const struct request *request)
{
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;

	return *request->key.id || conf_load(&conf, NULL) < 0 || conf.key_file || conf.key_program;
}

int secret_images_to(struct op *op, struct brumate_error *err)
{
	if (!op->checkpoint.writer.key)
		return store_mkdir(&op->checkpoint.writer, "criu", err);
	/* At most that: it includes memory that is kept next to CRIU's images. CRIU fails where it needs more, and the
	 * job runs on. */
	return memory_dir_open(op->image_bytes + IMAGES_EXTRA_BYTES, err);
}

int secret_seal(struct op *op, struct brumate_error *err)
{
	if (!op->checkpoint.writer.key)
		return 0;
	auto_close int to = store_mkdir(&op->checkpoint.writer, "criu", err);
	return to < 0 ? to
		      : sealed_close_dir(to, op->images.dir_fd, &op->images.authority.key,
					 op->checkpoint.writer.id, err);
}

int secret_believe(struct op *op, struct brumate_error *err)
{
	struct store_image *image = &op->restore.image;
	struct authority *a = &op->images.authority;
	const char *of = op->restore.of[0] ? op->restore.of : op->target->id;
	int r = secret_authority(a, op->request, err);

	if (r == 0 && *image->manifest.job.id && strcmp(image->manifest.job.id, of))
		r = brumate_fail(err, EBADMSG, "checkpoint %s: is of job %s, not of job %s",
				 image->manifest.id, image->manifest.job.id, of);
	if (r == 0)
		r = store_unlock(image, a->has_key ? &a->key : NULL, err);
	return r == 0 ? authentic_check_image(image, a, err) : r;
}

int secret_images_from(struct op *op, struct brumate_error *err)
{
	const struct manifest *m = &op->restore.image.manifest;
	auto_close int sealed = openat(op->restore.image.dir_fd, "criu",
				       O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

	if (sealed < 0)
		return brumate_fail(err, errno, "%s: %m", op->restore.image.path);
	if (!*m->key_id)
		return take_fd(&sealed);
	auto_close int plain =
		memory_dir_open(manifest_files_bytes(m, "criu/") + IMAGES_EXTRA_BYTES, err);
	if (plain < 0)
		return plain;
	int r = sealed_open_dir(plain, sealed, &op->images.authority.key, m->id, err);
	return r < 0 ? brumate_wrap(err, r, "checkpoint %s: criu", m->id) : take_fd(&plain);
}

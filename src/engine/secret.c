// SPDX-License-Identifier: MIT
/* Keys of checkpoints, and the place for what is in the clear; see secret.h. */
#include "engine/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/conf.h"
#include "engine/engine.h"
#include "engine/key-program.h"
#include "store/sealed.h"

/* CRIU's own beside the memory of the processes: their fds, mounts and the like. */
#define IMAGES_EXTRA_BYTES (256ull << 20)

/* That of the request comes before the configured one. 1: there is a key; 0: there is none. */
static int load_key(struct op *op, struct brumate_error *err)
{
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	bool is_given = *op->request->key.id;
	int r = is_given ? 1 : conf_load(&conf, err);

	if (is_given)
		op->key = op->request->key;
	if (r > 0)
		return r;
	if (r < 0 || (!conf.key_file && !conf.key_program))
		return r;
	if (conf.key_file && conf.key_program)
		return brumate_fail(err, EINVAL,
				    "EncryptionKeyFile= and EncryptionKeyCommand= of "
				    "[Store]: want one of them");
	r = conf.key_file ? store_key_load(&op->key, conf.key_file, err)
			  : key_program_ask(&op->key, conf.key_program, err);
	return r < 0 ? r : 1;
}

int secret_begin(struct op *op, struct brumate_error *err)
{
	int r = load_key(op, err);

	if (r > 0)
		op->writer.key = &op->key;
	return r < 0 ? r : 0;
}

int secret_images_to(struct op *op, struct brumate_error *err)
{
	if (!op->writer.key)
		return store_mkdir(&op->writer, "criu", err);
	/* At most that: memory that is kept beside CRIU's images is among it. CRIU fails where it needs
	 * more, and the job runs on. */
	return sealed_plain_dir(op->image_bytes + IMAGES_EXTRA_BYTES, err);
}

int secret_seal(struct op *op, struct brumate_error *err)
{
	if (!op->writer.key)
		return 0;
	auto_close int to = store_mkdir(&op->writer, "criu", err);
	return to < 0 ? to : sealed_close_dir(to, op->criu_dir_fd, &op->key, op->writer.id, err);
}

int secret_unlock(struct op *op, struct brumate_error *err)
{
	if (!*op->image.manifest.key_id)
		return 0;
	int r = load_key(op, err);
	return r < 0 ? r : store_unlock(&op->image, r ? &op->key : NULL, err);
}

static uint64_t images_bytes(const struct manifest *m)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < m->n_files; i++)
		if (!strncmp(m->files[i].path, "criu/", 5))
			sum += m->files[i].len_bytes;
	return sum;
}

int secret_images_from(struct op *op, struct brumate_error *err)
{
	const struct manifest *m = &op->image.manifest;
	auto_close int sealed =
		openat(op->image.dir_fd, "criu", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

	if (sealed < 0)
		return brumate_fail(err, errno, "%s: %m", op->image.path);
	if (!*m->key_id)
		return take_fd(&sealed);
	auto_close int plain = sealed_plain_dir(images_bytes(m) + IMAGES_EXTRA_BYTES, err);
	if (plain < 0)
		return plain;
	int r = sealed_open_dir(plain, sealed, &op->key, m->id, err);
	return r < 0 ? brumate_wrap(err, r, "checkpoint %s: criu", m->id) : take_fd(&plain);
}

// SPDX-License-Identifier: MIT
/* OCI images of checkpoints; see archive.h. The input is untrusted: a digest cannot lead to other places. */
#include "edges/containers/archive.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/fd.h"
#include "base/paths.h"
#include "base/tar.h"
#include "wire/wire.h"

#define BLOBS	     "blobs/sha256"
#define MANIFEST     "application/vnd.oci.image.manifest.v1+json"
#define INDEX	     "application/vnd.oci.image.index.v1+json"
#define IMAGE_CONFIG "application/vnd.oci.image.config.v1+json"
#define LAYER	     "application/vnd.oci.image.layer.v1.tar"
#define SHA256	     "sha256:"

enum { COPY_BYTES = 1 << 20, JSON_BYTES_MAX = 1 << 20 };

/* A file named by its digest. */
struct blob {
	char digest[DIGEST_TEXT_BYTES];
	uint64_t len_bytes;
};

static json_t *pack_blob(const char *type, const struct blob *b)
{
	char digest[sizeof(SHA256) + DIGEST_TEXT_BYTES];

	snprintf(digest, sizeof(digest), SHA256 "%s", b->digest);
	return json_pack("{s:s,s:s,s:I}", "mediaType", type, "digest", digest, "size",
			 (json_int_t)b->len_bytes);
}

/* ---- writing ---- */

int oci_image_check(const char *dir, struct brumate_error *err)
{
	const char *slash = strrchr(dir, '/');
	auto_free char *above = slash ? strndup(dir, (size_t)(slash - dir) + 1) : strdup(".");
	struct stat st;

	if (!above)
		return brumate_fail(err, ENOMEM, "%m");
	if (lstat(dir, &st) == 0)
		return brumate_fail(err, EEXIST, "%s: is there already", dir);
	if (errno != ENOENT || access(above, W_OK | X_OK) < 0)
		return brumate_fail(err, errno, "%s: %m", dir);
	return 0;
}

/* Each file of an image is written once. */
static int write_json(int dir_fd, const char *name, json_t *value)
{
	auto_free char *text = json_dumps(value, JSON_COMPACT);

	return text ? file_replace(dir_fd, name, text, strlen(text), 0600) : -ENOMEM;
}

/* @value: taken. */
static int write_blob(struct blob *ret, int dir_fd, json_t *value)
{
	auto_json json_t *owned = value;
	auto_free char *text = owned ? json_dumps(owned, JSON_COMPACT) : NULL;
	char name[sizeof(BLOBS) + 1 + DIGEST_TEXT_BYTES];
	struct digest digest;
	int r = text ? digest_buffer(&digest, text, strlen(text)) : -ENOMEM;

	if (r < 0)
		return r;
	digest_format(ret->digest, &digest);
	ret->len_bytes = strlen(text);
	snprintf(name, sizeof(name), BLOBS "/%s", ret->digest);
	return file_replace(dir_fd, name, text, strlen(text), 0600);
}

static int copy_file(int dir_fd, const char *name, int from)
{
	auto_close int to =
		openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	auto_free char *buf = malloc(COPY_BYTES);
	ssize_t n;
	int r = 0;

	if (to < 0 || !buf)
		return to < 0 ? -errno : -ENOMEM;
	while (r == 0 && (n = fd_read_full(from, buf, COPY_BYTES)) != 0)
		r = n < 0 ? (int)n : fd_write_full(to, buf, (size_t)n);
	if (r == 0 && fsync(to) < 0)
		r = -errno;
	return r;
}

static bool is_plain_tar(int fd)
{
	struct tar_header h;

	return pread(fd, &h, sizeof(h), 0) == (ssize_t)sizeof(h) && !memcmp(h.magic, "ustar", 5);
}

/* Archives are never changed: on the same disk the image shares their blocks. */
static int add_layer(struct blob *ret, int dir_fd, const char *archive, struct brumate_error *err)
{
	static const char unnamed[] = BLOBS "/layer";
	char name[sizeof(BLOBS) + 1 + DIGEST_TEXT_BYTES];
	struct digest digest;
	auto_close int from = open(archive, O_RDONLY | O_CLOEXEC);

	if (from < 0)
		return brumate_fail(err, errno, "%s: %m", archive);
	if (!is_plain_tar(from))
		return brumate_fail(err, EBADMSG, "%s: is not a plain tar archive", archive);
	int r = linkat(AT_FDCWD, archive, dir_fd, unnamed, AT_SYMLINK_FOLLOW) < 0
			? copy_file(dir_fd, unnamed, from)
			: 0;
	if (r == 0)
		r = digest_file(&digest, from, &ret->len_bytes);
	if (r < 0)
		return brumate_fail(err, -r, "%s: %s", archive, strerror(-r));
	digest_format(ret->digest, &digest);
	snprintf(name, sizeof(name), BLOBS "/%s", ret->digest);
	if (renameat(dir_fd, unnamed, dir_fd, name) < 0)
		return brumate_fail(err, errno, "%s: %m", archive);
	return 0;
}

static const char *architecture(void)
{
	static struct utsname machine;

	uname(&machine);
	return !strcmp(machine.machine, "x86_64")    ? "amd64"
	       : !strcmp(machine.machine, "aarch64") ? "arm64"
						     : machine.machine;
}

static json_t *pack_config(const struct blob *layer)
{
	char stamp[CLOCK_STAMP_BYTES], digest[sizeof(SHA256) + DIGEST_TEXT_BYTES];

	clock_stamp(stamp);
	snprintf(digest, sizeof(digest), SHA256 "%s", layer->digest);
	return json_pack("{s:s,s:s,s:s,s:{},s:{s:s,s:[s]}}", "created", stamp, "architecture",
			 architecture(), "os", "linux", "config", "rootfs", "type", "layers",
			 "diff_ids", digest);
}

/* The first is used by CRI-O and containerd, the second by older CRI-O; podman needs the runtime. */
static json_t *pack_annotations(const struct oci_about *about)
{
	const struct {
		const char *key, *value;
	} all[] = {
		{ "org.criu.checkpoint.container.name", about->container },
		{ "io.kubernetes.cri-o.annotations.checkpoint.name", about->container },
		{ "org.criu.checkpoint.engine.name", about->engine },
		{ "org.criu.checkpoint.pod.name", about->pod },
		{ "org.criu.checkpoint.pod.namespace", about->namespace },
		{ "org.criu.checkpoint.rootfsImageName", about->image },
		{ "io.podman.annotations.checkpoint.name",
		  about->runtime ? about->container : NULL },
		{ "io.podman.annotations.checkpoint.runtime.name", about->runtime },
		{ "io.podman.annotations.checkpoint.rootfsImageName",
		  about->runtime ? about->image : NULL },
	};
	json_t *o = json_object();

	for (size_t i = 0; o && i < sizeof(all) / sizeof(*all); i++)
		if (all[i].value && json_object_set_new(o, all[i].key, json_string(all[i].value)))
			break;
	return o;
}

static int write_descriptions(int dir_fd, const struct blob *layer, const struct oci_about *about)
{
	struct blob config, manifest;
	int r = write_blob(&config, dir_fd, pack_config(layer));

	if (r == 0)
		r = write_blob(&manifest, dir_fd,
			       json_pack("{s:i,s:s,s:o,s:[o],s:o}", "schemaVersion", 2, "mediaType",
					 MANIFEST, "config", pack_blob(IMAGE_CONFIG, &config),
					 "layers", pack_blob(LAYER, layer), "annotations",
					 pack_annotations(about)));
	if (r < 0)
		return r;
	auto_json json_t *index = json_pack("{s:i,s:s,s:[o]}", "schemaVersion", 2, "mediaType",
					    INDEX, "manifests", pack_blob(MANIFEST, &manifest));
	auto_json json_t *layout = json_pack("{s:s}", "imageLayoutVersion", "1.0.0");
	r = index && layout ? write_json(dir_fd, "index.json", index) : -ENOMEM;
	return r < 0 ? r : write_json(dir_fd, "oci-layout", layout);
}

static int fill_image(const char *dir, const char *archive, const struct oci_about *about,
		      struct brumate_error *err)
{
	struct blob layer;
	auto_close int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (dir_fd < 0 || mkdirat(dir_fd, "blobs", 0700) < 0 || mkdirat(dir_fd, BLOBS, 0700) < 0)
		return brumate_fail(err, errno, "%s: %m", dir);
	int r = add_layer(&layer, dir_fd, archive, err);
	if (r < 0)
		return r;
	r = write_descriptions(dir_fd, &layer, about);
	return r < 0 ? brumate_fail(err, -r, "%s: %s", dir, strerror(-r)) : 0;
}

int oci_image_write(const char *dir, const char *archive, const struct oci_about *about,
		    struct brumate_error *err)
{
	auto_free char *new = path_format("%s.XXXXXX", dir);
	int r = oci_image_check(dir, err);

	if (r < 0)
		return r;
	if (!new || !mkdtemp(new))
		return brumate_fail(err, errno, "%s: %m", dir);
	r = fill_image(new, archive, about, err);
	if (r == 0 && (r = rename_new(AT_FDCWD, new, AT_FDCWD, dir)) < 0)
		brumate_fail(err, -r, "%s: %m", dir);
	if (r < 0)
		remove_tree(AT_FDCWD, new);
	return r;
}

/* ---- reading ---- */

static json_t *read_json(const char *dir, const char *name)
{
	auto_free char *path = path_format("%s/%s", dir, name), *text = NULL;
	size_t len;

	if (!path || file_read(AT_FDCWD, path, JSON_BYTES_MAX, &text, &len) < 0)
		return NULL;
	return json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
}

/* The name of the file that the descriptor @o refers to; false if it is invalid. */
static bool blob_name(char ret[static sizeof(BLOBS) + 1 + DIGEST_TEXT_BYTES], json_t *o)
{
	const char *text = text_of(o, "digest");
	struct digest digest;

	if (strncmp(text, SHA256, strlen(SHA256)) ||
	    digest_parse(&digest, text + strlen(SHA256)) < 0)
		return false;
	snprintf(ret, sizeof(BLOBS) + 1 + DIGEST_TEXT_BYTES, BLOBS "/%s", text + strlen(SHA256));
	return true;
}

int oci_image_layer(char **ret, const char *dir, struct brumate_error *err)
{
	char name[sizeof(BLOBS) + 1 + DIGEST_TEXT_BYTES];
	auto_json json_t *index = read_json(dir, "index.json"), *manifest = NULL;
	json_t *manifests = json_object_get(index, "manifests"), *layers;

	if (json_array_size(manifests) == 1 && blob_name(name, json_array_get(manifests, 0)))
		manifest = read_json(dir, name);
	layers = json_object_get(manifest, "layers");
	if (json_array_size(layers) != 1 || !blob_name(name, json_array_get(layers, 0)))
		return brumate_fail(err, EBADMSG,
				    "%s: is no OCI image of one checkpoint in one layer", dir);
	*ret = path_format("%s/%s", dir, name);
	return *ret ? 0 : brumate_fail(err, ENOMEM, "%m");
}

// SPDX-License-Identifier: MIT
/*
 * Images of every version that was ever written open, verify and load for ever. They lie in golden/;
 * git keeps neither modes nor owners, so they are copied into a store first.
 */
#include "golden.h"

#include <dirent.h>

static void copy_file(const char *from, const char *to)
{
	auto_free char *bytes = NULL;
	size_t len;

	CHECK(file_read(AT_FDCWD, from, 1 << 20, &bytes, &len) == 0);
	auto_close int fd = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && fd_write_full(fd, bytes, len) == 0);
}

static void copy_dir(const char *from, const char *to)
{
	auto_closedir DIR *d = opendir(from);
	struct dirent *entry;

	CHECK(d && mkdir(to, 0700) == 0);
	while ((entry = readdir(d))) {
		auto_free char *source = path_format("%s/%s", from, entry->d_name);
		auto_free char *target = path_format("%s/%s", to, entry->d_name);
		struct stat st;

		if (entry->d_name[0] == '.')
			continue;
		CHECK(source && target && stat(source, &st) == 0);
		if (S_ISDIR(st.st_mode))
			copy_dir(source, target);
		else
			copy_file(source, target);
	}
}

static void check_image(const char *id, int version)
{
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (store_open(&i, dir, id, &err) < 0 || store_verify(&i, NULL, NULL, &err) < 0)
		fprintf(stderr, "%s: %d %s\n", id, err.code, err.text);
	CHECK(!err.code);
	CHECK(i.manifest.version == version);
	CHECK_STR(i.manifest.job.name, "golden");
	CHECK(i.manifest.n_processes == 1 && i.manifest.processes[0].pid == 101);
}

int main(int argc, char **argv)
{
	auto_(memory_job_fini) struct memory_job j = { 0 };
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;
	auto_(chunks_reader_free) struct chunks_reader *reader = NULL;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(argc == 2);
	new_scratch();
	CHECK(mkdir_parents(dir, 0700) == 0);
	auto_free char *v1 = path_format("%s/golden/v1", argv[1]);
	auto_free char *v2 = path_format("%s/golden/v2", argv[1]);
	auto_free char *v3 = path_format("%s/golden/v3", argv[1]);
	CHECK(v1 && v2 && v3);
	copy_dir(v1, at("v1"));
	copy_dir(v2, at("v2"));
	copy_dir(v3, at("v3"));

	check_image("v1", 1);
	CHECK(store_open(&i, dir, "v1", &err) == 0);
	CHECK(store_chunks_open(&reader, &i, &err) == -ENOENT);
	err = BRUMATE_ERROR_NONE;

	check_image("v2", 2);
	golden_job(&j);
	if (load_all(&j, "v2", &err) < 0)
		fprintf(stderr, "v2: %s\n", err.text);
	CHECK(!err.code);
	check_image("v3", 3);
	remove_scratch();
	return 0;
}

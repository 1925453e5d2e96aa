// SPDX-License-Identifier: MIT
/*
 * From whom a checkpoint is: whoever may write to it changes what he likes and makes all digests right again, which
 * take no key. It is found all the same.
 */
#include "scratch.h"

#include <openssl/evp.h>
#include <openssl/pem.h>

#include "store/authentic.h"

static struct store_key key, other;

static void make_key(struct store_key *ret, uint8_t first)
{
	const struct seal_key from = { { first } };

	CHECK(store_key_make(ret, &from) == 0);
}

static void write_by(const char *id, const struct store_key *k, const struct signing_key *signing)
{
	auto_(store_abort) struct store_writer w = STORE_WRITER_EMPTY;
	auto_(manifest_fini) struct manifest m = job_manifest("job", "2026-01-01T00:00:00.000Z");

	CHECK(store_begin(&w, dir, id, NULL) == 0);
	w.key = k;
	w.signing = signing;
	put_data(&w);
	CHECK(store_commit(&w, &m, NULL, NULL, NULL) == 0);
}

static int check(const char *id, const struct authority *a, struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;

	*err = BRUMATE_ERROR_NONE;
	int r = store_open(&i, dir, id, err);
	return r < 0 ? r : authentic_check_image(&i, a, err);
}

static json_t *read_manifest(const char *id)
{
	json_t *object = json_load_file(at("%s/manifest.json", id), 0, NULL);

	CHECK(object);
	return object;
}

/* As anybody can. */
static void write_manifest(const char *id, json_t *object)
{
	char text[DIGEST_TEXT_BYTES];
	struct digest d;

	json_object_del(object, "digest");
	CHECK(manifest_canonical_digest(&d, object) == 0);
	digest_format(text, &d);
	json_object_set_new(object, "digest", json_string(text));
	CHECK(json_dump_file(object, at("%s/manifest.json", id), 0) == 0);
}

/* ---- MACs ---- */

static void test_mac(const struct authority *a)
{
	struct authority lenient = *a, wrong = *a;
	struct brumate_error err;

	lenient.lenient = true;
	wrong.key = other;
	write_by("mac", &key, NULL);
	write_by("plain", NULL, NULL);
	CHECK(check("mac", a, &err) == 0 && check("mac", &AUTHORITY_EMPTY, &err) == 0);
	CHECK(check("mac", &wrong, &err) == -EKEYREJECTED && strstr(err.text, "not by"));
	CHECK(check("plain", a, &err) == -EKEYREJECTED && strstr(err.text, "not encrypted"));
	CHECK(strstr(err.hint, "--allow-unauthenticated"));
	CHECK(brumate_exit_code(&err) == EXIT_PERMISSION);
	CHECK(check("plain", &lenient, &err) == 0);
	CHECK(check("plain", &AUTHORITY_EMPTY, &err) == 0);
}

/* Every member but the MAC itself: of each object and each first item of a list, a changed value. */
static json_t *changed(json_t *value)
{
	if (json_is_string(value))
		return json_string(
			strlen(json_string_value(value)) == 64
				? "0000000000000000000000000000000000000000000000000000000000000000"
				: "x");
	if (json_is_integer(value))
		return json_integer(json_integer_value(value) + 1);
	return json_is_boolean(value) ? json_boolean(!json_is_true(value)) : NULL;
}

static size_t forge_members(json_t *root, json_t *object, const struct authority *a)
{
	const char *name;
	json_t *old;
	void *next;
	size_t n = 0;

	json_object_foreach_safe(object, next, name, old)
	{
		json_t *inner = json_is_array(old) ? json_array_get(old, 0) : old;
		json_t *value = changed(old);
		struct brumate_error err;

		if (json_is_object(inner))
			n += forge_members(root, inner, a);
		if (!value || !strcmp(name, "mac") || !strcmp(name, "digest") ||
		    !strcmp(name, "format") || !strcmp(name, "version")) {
			json_decref(value);
			continue;
		}
		json_incref(old);
		json_object_set_new(object, name, value);
		write_manifest("mac", root);
		int r = check("mac", a, &err);
		if (r != -EBADMSG && r != -EKEYREJECTED)
			fprintf(stderr, "%s: %d %s\n", name, r, err.text);
		CHECK(r == -EBADMSG || r == -EKEYREJECTED);
		json_object_set_new(object, name, old);
		n++;
	}
	return n;
}

static void test_forged(const struct authority *a)
{
	json_auto_t *object = read_manifest("mac");
	struct brumate_error err;

	CHECK(forge_members(object, object, a) > 20);
	write_manifest("mac", object);
	CHECK(check("mac", a, &err) == 0);

	json_object_set_new(
		object, "mac",
		json_string("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"));
	write_manifest("mac", object);
	CHECK(check("mac", a, &err) == -EBADMSG && strstr(err.text, "forged"));
	struct authority lenient = *a;
	lenient.lenient = true;
	CHECK(check("mac", &lenient, &err) == -EBADMSG); /* what lies is not old */

	json_object_del(object, "mac");
	write_manifest("mac", object);
	CHECK(check("mac", a, &err) == -EKEYREJECTED && strstr(err.text, "no MAC"));
	CHECK(check("mac", &lenient, &err) == 0);
}

/* One in the place of another, its manifest as it was. */
static void test_swapped(const struct authority *a)
{
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	write_by("older", &key, NULL);
	write_by("newer", &key, NULL);
	CHECK(store_remove(dir, "newer", NULL) == 0);
	CHECK(rename(at("older"), at("newer")) == 0);
	CHECK(check("newer", a, &err) == -EBADMSG && strstr(err.text, "that of older"));
	CHECK(store_open(&i, dir, at("newer"), NULL) == 0);
	CHECK(authentic_check_image(&i, a, &err) == -EKEYREJECTED);
	CHECK(strstr(err.text, "in the place of newer"));
	CHECK(authentic_check_image(&i, &AUTHORITY_EMPTY, &err) == 0);
}

/* ---- signatures ---- */

static EVP_PKEY *make_pair(const char *private, const char *public)
{
	EVP_PKEY *pkey = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
	FILE *file;

	CHECK(pkey);
	umask(077);
	if (private) {
		CHECK((file = fopen(private, "w")));
		CHECK(PEM_write_PrivateKey(file, pkey, NULL, NULL, 0, NULL, NULL) == 1);
		fclose(file);
	}
	if (public) {
		CHECK((file = fopen(public, "w")));
		CHECK(PEM_write_PUBKEY(file, pkey) == 1);
		fclose(file);
	}
	umask(022);
	return pkey;
}

static struct signing_key *make_signer(const char *public)
{
	struct signing_key *k = NULL;

	EVP_PKEY_free(make_pair(at("../private"), public));
	CHECK(signing_key_load(&k, at("../private"), NULL) == 0);
	return k;
}

static void test_signed(void)
{
	auto_(authority_fini) struct authority a = AUTHORITY_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(mkdir(at("../trusted"), 0755) == 0);
	auto_(signing_key_free) struct signing_key *one = make_signer(at("../trusted/one.pem"));
	auto_(signing_key_free) struct signing_key *stranger = make_signer(NULL);
	CHECK(trusted_keys_load(&a.trusted, at("../trusted"), &err) == 0);
	write_by("signed", NULL, one);
	write_by("both", &key, one);
	write_by("stranger", NULL, stranger);
	write_by("unsigned", NULL, NULL);
	CHECK(check("signed", &a, &err) == 0 && check("both", &a, &err) == 0);
	CHECK(check("stranger", &a, &err) == -EKEYREJECTED &&
	      strstr(err.text, "not in TrustedKeys="));
	CHECK(check("unsigned", &a, &err) == -EKEYREJECTED && strstr(err.text, "not signed"));

	json_auto_t *object = read_manifest("signed"), *foreign = read_manifest("stranger");
	json_object_set_new(json_object_get(object, "job"), "uid", json_integer(4711));
	write_manifest("signed", object);
	CHECK(check("signed", &a, &err) == -EBADMSG && strstr(err.text, "forged"));
	/* A stranger's signature under a trusted name. */
	json_object_set(foreign, "signer", json_object_get(object, "signer"));
	write_manifest("stranger", foreign);
	a.lenient = true;
	CHECK(check("stranger", &a, &err) == -EBADMSG && check("unsigned", &a, &err) == 0);
}

static void put_text(const char *path, mode_t mode)
{
	auto_close int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	CHECK(fd >= 0 && fd_write_full(fd, "no key", 6) == 0 && fchmod(fd, mode) == 0);
}

static void test_key_files(void)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct trusted_keys *t = NULL;
	struct signing_key *k = NULL;

	CHECK(signing_key_load(&k, at("../none"), &err) == -ENOKEY);
	put_text(at("../bad"), 0600);
	CHECK(signing_key_load(&k, at("../bad"), &err) == -EINVAL && strstr(err.text, "ed25519"));
	CHECK(chmod(at("../private"), 0640) == 0);
	CHECK(signing_key_load(&k, at("../private"), &err) == -EACCES);
	CHECK(strstr(err.text, "signing key") && !k);

	CHECK(trusted_keys_load(&t, at("../none"), &err) == -ENOKEY);
	put_text(at("../trusted/ignored.txt"), 0600);
	CHECK(trusted_keys_load(&t, at("../trusted"), &err) == 0);
	trusted_keys_free(take_ptr(&t));
	put_text(at("../trusted/two.pem"), 0600);
	CHECK(trusted_keys_load(&t, at("../trusted"), &err) == -EINVAL &&
	      strstr(err.text, "two.pem"));
	put_text(at("../trusted/two.pem"), 0666);
	CHECK(trusted_keys_load(&t, at("../trusted"), &err) == -EACCES);
	CHECK(unlink(at("../trusted/two.pem")) == 0 && chmod(at("../trusted"), 0777) == 0);
	CHECK(trusted_keys_load(&t, at("../trusted"), &err) == -EACCES && !t);
}

int main(void)
{
	struct authority a = AUTHORITY_EMPTY;

	new_scratch();
	make_key(&key, 1);
	make_key(&other, 2);
	a.has_key = true;
	a.key = key;
	test_mac(&a);
	test_forged(&a);
	test_swapped(&a);
	test_signed();
	test_key_files();
	remove_scratch();
	return 0;
}

// SPDX-License-Identifier: MIT
/* MACs and signatures of manifests; see authentic.h. */
#include "store/authentic.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/array.h"
#include "base/fd.h"
#include "chunks/files.h"
#include "chunks/key.h"
#include "store/store.h"

void authority_fini(struct authority *a)
{
	store_key_fini(&a->key);
	trusted_keys_free(a->trusted);
	*a = AUTHORITY_EMPTY;
}

/* The MAC covers the digest of the body instead of the body: an attacker who could find another body of the same
 * digest could also change every file. */
static int make_mac(char ret[static DIGEST_TEXT_BYTES], const struct store_key *key,
		    const struct digest *body)
{
	auto_(seal_key_fini) struct seal_key mac = { { 0 } };
	struct digest d;
	int r = seal_derive(&mac, &key->manifest, "mac", body->bytes, DIGEST_BYTES);

	if (r < 0)
		return r;
	memcpy(d.bytes, mac.bytes, DIGEST_BYTES);
	digest_format(ret, &d);
	return 0;
}

int authentic_make(struct manifest *m, const struct store_key *key,
		   const struct signing_key *signing)
{
	struct digest body;
	int r = key || signing ? manifest_body(&body, m) : 0;

	if (r == 0 && key)
		r = make_mac(m->mac, key, &body);
	if (r == 0 && signing)
		r = signing_make(m->signer, m->signature, signing, &body);
	return r;
}

/* In constant time, so that the duration does not reveal how much of it is right. */
static bool is_same(const char *a, const char *b, size_t len)
{
	unsigned char differs = 0;

	for (size_t i = 0; i < len; i++)
		differs |= (unsigned char)(a[i] ^ b[i]);
	return !differs;
}

static int fail_unproven(const struct authority *a, struct brumate_error *err, const char *why)
{
	if (a->lenient)
		return 0;
	brumate_fail(err, EKEYREJECTED, "not authentic: %s", why);
	brumate_hint(
		err,
		"anyone who can write to its directory could have made it; if you know that it is "
		"yours, --allow-unauthenticated");
	return -EKEYREJECTED;
}

static int fail_other_key(const struct manifest *m, const struct authority *a,
			  struct brumate_error *err)
{
	if (a->lenient)
		return 0;
	brumate_fail(err, EKEYREJECTED, "encrypted by key %.8s, not by %.8s", m->key_id, a->key.id);
	brumate_hint(err, "name the file of key %.8s by --key-file, or in EncryptionKeyFile=",
		     m->key_id);
	return -EKEYREJECTED;
}

static int check_mac(const struct manifest *m, const struct authority *a, struct brumate_error *err)
{
	char mac[DIGEST_TEXT_BYTES];

	if (!*m->key_id)
		return fail_unproven(a, err, "it is not encrypted, and a key is configured");
	if (strcmp(m->key_id, a->key.id))
		return fail_other_key(m, a, err);
	if (!*m->mac)
		return fail_unproven(a, err, "its manifest has no MAC");
	if (make_mac(mac, &a->key, &m->body) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	if (is_same(mac, m->mac, sizeof(mac) - 1))
		return 0;
	return brumate_fail(err, EBADMSG, "forged: the MAC of its manifest is not by its key");
}

static int check_signature(const struct manifest *m, const struct authority *a,
			   struct brumate_error *err)
{
	if (!*m->signature)
		return fail_unproven(a, err, "it is not signed, and TrustedKeys= is set");
	int r = trusted_keys_check(a->trusted, m->signer, m->signature, &m->body);
	if (r == -EKEYREJECTED)
		return fail_unproven(a, err, "it is signed by a key that is not in TrustedKeys=");
	if (r == -EBADMSG)
		return brumate_fail(err, EBADMSG, "forged: its signature is not by key %.16s",
				    m->signer);
	return r < 0 ? brumate_fail(err, -r, "%m") : 0;
}

static int check_proofs(const struct manifest *m, const struct authority *a,
			struct brumate_error *err)
{
	int r = a->has_key ? check_mac(m, a, err) : 0;

	return r == 0 && a->trusted ? check_signature(m, a, err) : r;
}

int authentic_check(const struct manifest *m, const struct authority *a, struct brumate_error *err)
{
	int r = check_proofs(m, a, err);

	return r < 0 ? brumate_wrap(err, r, "checkpoint %s", m->id) : 0;
}

int authentic_check_image(const struct store_image *i, const struct authority *a,
			  struct brumate_error *err)
{
	const char *slash = strrchr(i->path, '/');
	const char *name = slash ? slash + 1 : i->path;
	int r = authentic_check(&i->manifest, a, err);

	if (r < 0 || a->lenient || (!a->has_key && !a->trusted) || !strcmp(name, i->manifest.id))
		return r;
	brumate_fail(err, EKEYREJECTED, "checkpoint %s: not authentic: it is in the place of %s",
		     i->manifest.id, name);
	brumate_hint(err, "if you renamed or copied it yourself, give it its name again, or "
			  "--allow-unauthenticated");
	return -EKEYREJECTED;
}

enum { PUBLIC_BYTES = 32, RAW_BYTES = 64, PEM_BYTES_MAX = 16 << 10, TRUSTED_MAX = 1024 };

/* Prefix of everything that is signed, so that our signatures cannot be used for anything else. */
static const char label[] = "brumate-manifest-1";

DEFINE_AUTO(EVP_MD_CTX *, EVP_MD_CTX_free)
DEFINE_AUTO(EVP_PKEY *, EVP_PKEY_free)
DEFINE_AUTO(BIO *, BIO_free_all)

struct public_key {
	EVP_PKEY *pkey; /* owned */
	char id[DIGEST_TEXT_BYTES];
};

struct signing_key {
	struct public_key key; /* includes the private part */
};

struct trusted_keys {
	struct public_key *items; /* owned */
	size_t n;
};

struct message {
	uint8_t bytes[sizeof(label) + DIGEST_BYTES];
};

static struct message message_of(const struct digest *body)
{
	struct message m;

	memcpy(m.bytes, label, sizeof(label));
	memcpy(m.bytes + sizeof(label), body->bytes, DIGEST_BYTES);
	return m;
}

/* Takes @pkey. -EINVAL: it is of another kind. */
static int name_key(struct public_key *ret, EVP_PKEY *pkey)
{
	uint8_t raw[PUBLIC_BYTES];
	size_t len = sizeof(raw);
	struct digest d;

	if (EVP_PKEY_get_id(pkey) != EVP_PKEY_ED25519 ||
	    !EVP_PKEY_get_raw_public_key(pkey, raw, &len) || len != sizeof(raw))
		return -EINVAL;
	int r = digest_buffer(&d, raw, sizeof(raw));
	if (r < 0)
		return r;
	ret->pkey = pkey;
	digest_format(ret->id, &d);
	return 0;
}

/* A key with a passphrase is refused: there is no user to be asked. */
static int no_passphrase(char *buf, int size, int writes, void *arg)
{
	return -1;
}

/* Reads the PEM of @fd. */
static int read_key(struct public_key *ret, int fd, bool private)
{
	char text[PEM_BYTES_MAX];
	ssize_t n = digest_has_libcrypto() ? fd_read_full(fd, text, sizeof(text)) : -ENOMEM;
	auto_(BIO_free_all) BIO *bio = n < 0 ? NULL : BIO_new_mem_buf(text, (int)n);
	auto_(EVP_PKEY_free) EVP_PKEY *pkey = NULL;

	if (n < 0)
		return (int)n;
	if (bio)
		pkey = private ? PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, NULL)
			       : PEM_read_bio_PUBKEY(bio, NULL, no_passphrase, NULL);
	explicit_bzero(text, sizeof(text));
	int r = !bio ? -ENOMEM : !pkey ? -EINVAL : name_key(ret, pkey);
	if (r == 0)
		pkey = NULL;
	return r;
}

/* ---- the key that signs ---- */

int signing_key_load(struct signing_key **ret, const char *path, struct brumate_error *err)
{
	auto_close int fd = store_key_open("signing key", path, err);
	auto_(signing_key_free) struct signing_key *k = NULL;

	if (fd < 0)
		return fd;
	k = calloc(1, sizeof(*k));
	int r = k ? read_key(&k->key, fd, true) : -ENOMEM;
	if (r == -EINVAL) {
		brumate_fail(err, EINVAL, "signing key %s: not a private ed25519 key in PEM", path);
		brumate_hint(err, "(umask 077; openssl genpkey -algorithm ed25519 -out FILE)");
		return r;
	}
	if (r < 0)
		return brumate_fail(err, -r, "signing key %s: %m", path);
	*ret = take_ptr(&k);
	return 0;
}

void signing_key_free(struct signing_key *k)
{
	if (k)
		EVP_PKEY_free(k->key.pkey);
	free(k);
}

static void format_raw(char *ret, const uint8_t *raw)
{
	char half[DIGEST_TEXT_BYTES];

	for (int i = 0; i < RAW_BYTES / DIGEST_BYTES; i++) {
		struct digest d;

		memcpy(d.bytes, raw + i * DIGEST_BYTES, DIGEST_BYTES);
		digest_format(half, &d);
		memcpy(ret + i * (DIGEST_TEXT_BYTES - 1), half, sizeof(half));
	}
}

int signing_make(char ret_signer[static DIGEST_TEXT_BYTES],
		 char ret_signature[static MANIFEST_SIGNATURE_BYTES], const struct signing_key *k,
		 const struct digest *body)
{
	auto_(EVP_MD_CTX_free) EVP_MD_CTX *ctx = EVP_MD_CTX_new();
	const struct message m = message_of(body);
	uint8_t raw[RAW_BYTES];
	size_t len = sizeof(raw);

	if (!ctx || !EVP_DigestSignInit(ctx, NULL, NULL, NULL, k->key.pkey) ||
	    EVP_DigestSign(ctx, raw, &len, m.bytes, sizeof(m.bytes)) != 1 || len != sizeof(raw))
		return -ENOMEM;
	memcpy(ret_signer, k->key.id, DIGEST_TEXT_BYTES);
	format_raw(ret_signature, raw);
	return 0;
}

/* ---- keys that are trusted ---- */

void trusted_keys_free(struct trusted_keys *t)
{
	for (size_t i = 0; t && i < t->n; i++)
		EVP_PKEY_free(t->items[i].pkey);
	if (t)
		free(t->items);
	free(t);
}

static int add_trusted(struct trusted_keys *t, int dir_fd, const char *name)
{
	auto_close int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	if (files_check_owner(&st, NULL) < 0)
		return -EACCES;
	struct public_key *items = array_room(t->items, t->n, sizeof(*items));
	if (!items || t->n == TRUSTED_MAX)
		return -ENOMEM;
	t->items = items;
	int r = read_key(&t->items[t->n], fd, false);
	t->n += r == 0;
	return r;
}

static int fail_trusted(const char *path, const char *name, int r, struct brumate_error *err)
{
	if (r == -EINVAL)
		return brumate_fail(err, EINVAL,
				    "trusted keys %s: %s: not a public ed25519 key in PEM", path,
				    name);
	if (r == -EACCES)
		return brumate_fail(err, EACCES,
				    "trusted keys %s: %s: belongs to neither you nor root, or "
				    "others may write to it",
				    path, name);
	return brumate_fail(err, -r, "trusted keys %s: %s: %m", path, name);
}

static bool is_pem(const char *name)
{
	size_t len = strlen(name);

	return name[0] != '.' && len > 4 && !strcmp(name + len - 4, ".pem");
}

static int add_all(struct trusted_keys *t, DIR *dir, const char *path, struct brumate_error *err)
{
	struct dirent *entry;

	while ((errno = 0, entry = readdir(dir))) {
		int r = is_pem(entry->d_name) ? add_trusted(t, dirfd(dir), entry->d_name) : 0;

		if (r < 0)
			return fail_trusted(path, entry->d_name, r, err);
	}
	return errno ? brumate_fail(err, errno, "trusted keys %s: %m", path) : 0;
}

int trusted_keys_load(struct trusted_keys **ret, const char *path, struct brumate_error *err)
{
	auto_(trusted_keys_free) struct trusted_keys *t = calloc(1, sizeof(*t));
	auto_closedir DIR *dir = opendir(path);
	struct stat st;

	if (!t)
		return brumate_fail(err, ENOMEM, "%m");
	if (!dir || fstat(dirfd(dir), &st) < 0)
		return brumate_fail(err, errno == ENOENT ? ENOKEY : errno, "trusted keys %s: %s",
				    path, strerror(errno));
	if (files_check_owner(&st, NULL) < 0)
		return fail_trusted(path, ".", -EACCES, err);
	int r = add_all(t, dir, path, err);
	if (r == 0)
		*ret = take_ptr(&t);
	return r;
}

static int parse_raw(uint8_t *ret, const char *text)
{
	for (int i = 0; i < RAW_BYTES / DIGEST_BYTES; i++) {
		char half[DIGEST_TEXT_BYTES] = { 0 };
		struct digest d;

		memcpy(half, text + i * (DIGEST_TEXT_BYTES - 1), DIGEST_TEXT_BYTES - 1);
		if (digest_parse(&d, half) < 0)
			return -EBADMSG;
		memcpy(ret + i * DIGEST_BYTES, d.bytes, DIGEST_BYTES);
	}
	return 0;
}

static int check_raw(EVP_PKEY *pkey, const char *signature, const struct digest *body)
{
	auto_(EVP_MD_CTX_free) EVP_MD_CTX *ctx = EVP_MD_CTX_new();
	const struct message m = message_of(body);
	uint8_t raw[RAW_BYTES];

	if (parse_raw(raw, signature) < 0)
		return -EBADMSG;
	if (!ctx || !EVP_DigestVerifyInit(ctx, NULL, NULL, NULL, pkey))
		return -ENOMEM;
	return EVP_DigestVerify(ctx, raw, sizeof(raw), m.bytes, sizeof(m.bytes)) == 1 ? 0
										      : -EBADMSG;
}

int trusted_keys_check(const struct trusted_keys *t, const char *signer, const char *signature,
		       const struct digest *body)
{
	for (size_t i = 0; i < t->n; i++)
		if (!strcmp(t->items[i].id, signer))
			return check_raw(t->items[i].pkey, signature, body);
	return -EKEYREJECTED;
}

// SPDX-License-Identifier: MIT
/* MACs and signatures of manifests; see authentic.h. */
#include "store/authentic.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "store/signing.h"
#include "store/store.h"

void authority_fini(struct authority *a)
{
	store_key_fini(&a->key);
	trusted_keys_free(a->trusted);
	*a = AUTHORITY_EMPTY;
}

/* The digest of the body goes in, not the body: whoever can find another body of the same digest can change
 * every file, too. */
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

/* In constant time: how much of it is right is nobody's business. */
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
	brumate_hint(err,
		     "whoever may write to where it was can have made it; if you know that it is "
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

// SPDX-License-Identifier: MIT
/* A strict decoder of UTF-8 (RFC 3629), and what of Unicode is not for show; see plain.h for the contract. */
#include "base/plain.h"

size_t utf8_decode(uint32_t *ret, const char *text, size_t left)
{
	static const uint32_t lowest[] = { 0, 0, 0x80, 0x800, 0x10000 };
	const unsigned char *s = (const unsigned char *)text;
	size_t n = *s < 0x80	     ? 1
		   : *s >> 5 == 0x6  ? 2
		   : *s >> 4 == 0xe  ? 3
		   : *s >> 3 == 0x1e ? 4
				     : 0;
	uint32_t c = n == 1 ? *s : *s & (0x7fu >> n);

	if (n == 0 || n > left)
		return 0;
	for (size_t i = 1; i < n; i++) {
		if (s[i] >> 6 != 0x2)
			return 0;
		c = c << 6 | (s[i] & 0x3f);
	}
	if (c < lowest[n] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
		return 0;
	*ret = c;
	return n;
}

static bool is_safe(uint32_t c)
{
	static const struct {
		uint32_t first, last;
	} unsafe[] = {
		{ 0x0, 0x1f },
		{ 0x7f, 0x9f }, /* C0, DEL, C1 */
		{ 0x61c, 0x61c },
		{ 0x200e, 0x200f }, /* marks of direction */
		{ 0x2028, 0x202e },
		{ 0x2066, 0x2069 }, /* separators, embeddings, overrides; isolates */
		{ 0xfff9, 0xfffb },
		{ 0xe0000, 0xe007f }, /* annotations; tags, which nobody sees */
	};

	for (size_t i = 0; i < sizeof(unsafe) / sizeof(unsafe[0]); i++)
		if (c >= unsafe[i].first && c <= unsafe[i].last)
			return false;
	return true;
}

size_t plain_step(const char *text, bool *ret_safe)
{
	uint32_t c;
	size_t n = utf8_decode(&c, text, SIZE_MAX);

	*ret_safe = n && is_safe(c);
	return n ? n : 1;
}

void plain_make(char *text, char instead)
{
	while (*text) {
		bool safe;

		for (size_t n = plain_step(text, &safe); n; n--, text++)
			if (!safe)
				*text = instead;
	}
}

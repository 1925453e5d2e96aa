// SPDX-License-Identifier: MIT
/* Which characters of foreign text are shown as they are. */
#include "base/plain.h"

#include <stdio.h>
#include <string.h>

#include "check.h"

static void expect_plain(const char *text, const char *expected)
{
	char made[64];

	snprintf(made, sizeof(made), "%s", text);
	plain_make(made, '?');
	CHECK_STR(made, expected);
}

static void ordinary_text_stays(void)
{
	expect_plain("", "");
	expect_plain("train 1~/[]", "train 1~/[]");
	expect_plain("Gr\u00f6\u00dfe \u2013 \u65e5\u672c \U0001f40c",
		     "Gr\u00f6\u00dfe \u2013 \u65e5\u672c \U0001f40c");
	expect_plain("\u00a0\uffff\U0010ffff", "\u00a0\uffff\U0010ffff");
}

static void controls_go(void)
{
	expect_plain("a\033[2Jb\n\r\t\177", "a?[2Jb????");
	expect_plain("\xc2\x80\xc2\x9b"
		     "31m\xc2\x9f",
		     "????31m??"); /* CSI of C1, two bytes each */
	expect_plain("\u061c \u200e \u200f", "?? ??? ???");
	expect_plain("gpj.\u202egnp", "gpj.???gnp");
	expect_plain("\u2066a\u2069\u2028", "???a??????");
	expect_plain("\U000e0041", "????");
}

static void what_is_no_utf8_goes(void)
{
	expect_plain("\x9b"
		     "31m",
		     "?31m"); /* CSI where the terminal is no UTF-8 one */
	expect_plain("caf\xe9", "caf?");
	expect_plain("\xc0\x9b", "??"); /* too long a form of ESC */
	expect_plain("\xe0\x80\x9b", "???");
	expect_plain("\xed\xa0\x80", "???");	  /* a surrogate */
	expect_plain("\xf4\x90\x80\x80", "????"); /* above U+10FFFF */
	expect_plain("a\xe2\x80", "a??");	  /* cut off */
	expect_plain("\xff\xfe", "??");
}

int main(void)
{
	ordinary_text_stays();
	controls_go();
	what_is_no_utf8_goes();
	return 0;
}

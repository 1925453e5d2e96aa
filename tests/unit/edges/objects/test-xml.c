// SPDX-License-Identifier: MIT
/* The XML of object stores: what is read, and what is refused. */
#include <errno.h>
#include <string.h>

#include "check.h"
#include "edges/objects/xml.h"

static char told[8192];

static int tell(void *arg, const char *path, const char *text)
{
	size_t len = strlen(told);

	snprintf(told + len, sizeof(told) - len, "%s=%s;", path, text);
	return arg && !strcmp(path, arg) ? -ECANCELED : 0;
}

static int read_text(const char *text)
{
	told[0] = '\0';
	return xml_read(text, strlen(text), tell, NULL);
}

static void check_good(void)
{
	CHECK(read_text("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<A x=\"1\" y='2'>\n"
			" <B>one</B><C/><D ><E>t w o</E></D>\n</A>\n") == 0);
	CHECK_STR(told, "A/B=one;A/C=;A/D/E=t w o;A/D=;A=\n;");
	CHECK(read_text("<A>&lt;&amp;&gt;&quot;&apos;&#65;&#x20AC;&#x1F600;</A>") == 0);
	CHECK_STR(told, "A=<&>\"'A\xe2\x82\xac\xf0\x9f\x98\x80;");
	CHECK(read_text("\xef\xbb\xbf<a/>") == 0);
	/* What keeps the connection alive while an upload is put together. */
	CHECK(read_text("  \n\n<?xml version=\"1.0\"?>  \n<a/>\n") == 0);
	CHECK(read_text("<?xml version=\"1.0\"?>\n   \n\n<a/>") == 0);
	told[0] = '\0';
	CHECK(xml_read("<a><b/><c/></a>", 15, tell, "a/b") == -ECANCELED);
	CHECK_STR(told, "a/b=;");
}

static void check_bad(void)
{
	static const char *const bad[] = {
		"",
		"text",
		"<a>",
		"<a></b>",
		"<a></a",
		"<a></a><b/>",
		"<a></a>x",
		"<a",
		"<a b></a>",
		"<a b=c></a>",
		"<a b=\"c></a>",
		"<a>&nbsp;</a>",
		"<a>&#0;</a>",
		"<a>&#xD800;</a>",
		"<a>&#1114112;</a>",
		"<a>&#99999999999;</a>",
		"<a>&#;</a>",
		"<a>&amp</a>",
		"<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>",
		"<a><!-- c --></a>",
		"<a><![CDATA[x]]></a>",
		"<a><?b c?></a>",
		"<!DOCTYPE a><a/>",
		"<!DOCTYPE a SYSTEM \"file:///etc/passwd\"><a/>",
		"<!-- c --><a/>",
		"<a>\xff</a>",
		"<a>\x01</a>",
		"<a><b><c><d><e><f><g><h><i/></h></g></f></e></d></c></b></a>",
		"</a>",
		"<?xml?>",
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		CHECK(read_text(bad[i]) == -EBADMSG);
}

/* Wherever it is cut off. */
static void check_cut(void)
{
	static const char text[] = "<?xml version=\"1.0\"?><A x=\"y\"><B>&lt;1</B><C/></A>";

	for (size_t len = 0; len < strlen(text); len++)
		CHECK(xml_read(text, len, tell, NULL) == -EBADMSG);
	CHECK(xml_read(text, strlen(text), tell, NULL) == 0);
}

static void check_long(void)
{
	static char text[2 * XML_TEXT_BYTES_MAX];

	memset(text, 'x', sizeof(text));
	memcpy(text, "<a>", 3);
	memcpy(text + 3 + XML_TEXT_BYTES_MAX, "</a>", 5);
	CHECK(read_text(text) == 0);
	memcpy(text + 3 + XML_TEXT_BYTES_MAX, "x</a>", 6);
	CHECK(read_text(text) == -EBADMSG);
}

int main(void)
{
	check_good();
	check_bad();
	check_cut();
	check_long();
	return 0;
}

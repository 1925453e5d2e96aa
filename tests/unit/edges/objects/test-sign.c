// SPDX-License-Identifier: MIT
/* Signatures: the examples of AWS's own documentation ("Examples: Signature Calculations"). */
#include <errno.h>
#include <string.h>

#include "check.h"
#include "edges/objects/http.h"

#define EMPTY  "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define DATE   "20130524T000000Z"
#define HOST   "examplebucket.s3.amazonaws.com"
#define SECRET "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"

static void check(const struct sign_request *given, const char *names, const char *signature)
{
	struct sign_request q = *given;
	char answer[SIGN_ANSWER_BYTES], want[SIGN_ANSWER_BYTES];

	q.date = DATE;
	q.region = "us-east-1";
	q.key_id = "AKIAIOSFODNN7EXAMPLE";
	q.secret = SECRET;
	CHECK(sign_request(answer, &q) == 0);
	snprintf(want, sizeof(want),
		 "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/"
		 "aws4_request, SignedHeaders=%s, Signature=%s",
		 names, signature);
	CHECK_STR(answer, want);
}

static void check_get(void)
{
	/* Out of order: the signature sorts them. */
	static const struct sign_header headers[] = { { "x-amz-date", DATE },
						      { "range", "bytes=0-9" },
						      { "x-amz-content-sha256", EMPTY },
						      { "host", HOST } };

	check(&(struct sign_request){ "GET", "/test.txt", "", headers, 4, EMPTY },
	      "host;range;x-amz-content-sha256;x-amz-date",
	      "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

static void check_put(void)
{
	static const char payload[] =
		"44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
	static const struct sign_header headers[] = { { "date", "Fri, 24 May 2013 00:00:00 GMT" },
						      { "host", HOST },
						      { "x-amz-content-sha256", payload },
						      { "x-amz-date", DATE },
						      { "x-amz-storage-class",
							"REDUCED_REDUNDANCY" } };

	check(&(struct sign_request){ "PUT", "/test%24file.text", "", headers, 5, payload },
	      "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
	      "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
}

static void check_queries(void)
{
	static const struct sign_header headers[] = { { "host", HOST },
						      { "x-amz-content-sha256", EMPTY },
						      { "x-amz-date", DATE } };
	static const char names[] = "host;x-amz-content-sha256;x-amz-date";

	check(&(struct sign_request){ "GET", "/", "lifecycle=", headers, 3, EMPTY }, names,
	      "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
	check(&(struct sign_request){ "GET", "/", "max-keys=2&prefix=J", headers, 3, EMPTY }, names,
	      "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

static void check_limits(void)
{
	static const struct sign_header headers[] = { { "host", HOST } };
	struct sign_request q = { "GET", "/", "", headers, 1, EMPTY, DATE, "us-east-1", "A", NULL };
	char answer[SIGN_ANSWER_BYTES], secret[400], region[200];

	memset(secret, 's', sizeof(secret) - 1);
	secret[sizeof(secret) - 1] = '\0';
	q.secret = secret;
	CHECK(sign_request(answer, &q) == -E2BIG);
	q.secret = SECRET;
	memset(region, 'r', sizeof(region) - 1);
	region[sizeof(region) - 1] = '\0';
	q.region = region;
	CHECK(sign_request(answer, &q) == -E2BIG);
	q.region = "us-east-1";
	q.n_headers = SIGN_HEADERS_MAX + 1;
	CHECK(sign_request(answer, &q) == -E2BIG);
}

int main(void)
{
	check_get();
	check_put();
	check_queries();
	check_limits();
	return 0;
}

// SPDX-License-Identifier: MIT
/* From an answer to one line that says what, where and what to do. */
#include "remote/http-fail.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

enum { SKEW_WORTH_S = 300 };

static bool is_code(const struct http_answer *a, const char *code)
{
	return !strcmp(a->code, code);
}

static void hint_refused(const struct client *c, const struct http_answer *a,
			 struct brumate_error *err)
{
	int64_t skew = a->date ? (int64_t)time(NULL) - a->date : 0;

	if (is_code(a, "RequestTimeTooSkewed") || skew > SKEW_WORTH_S || skew < -SKEW_WORTH_S)
		brumate_hint(err, "this machine's clock is %" PRId64 " s %s the server's: set it",
			     skew < 0 ? -skew : skew, skew < 0 ? "behind" : "ahead of");
	else if (is_code(a, "ExpiredToken") || is_code(a, "TokenRefreshRequired"))
		brumate_hint(err, "the session token has expired: get new credentials");
	else if (is_code(a, "InvalidAccessKeyId"))
		brumate_hint(err, "the server does not know this access key: see AWS_PROFILE and "
				  "AWS_ACCESS_KEY_ID");
	else if (is_code(a, "SignatureDoesNotMatch"))
		brumate_hint(err,
			     "the secret does not belong to this access key, or the region %s "
			     "is not the bucket's",
			     c->config->region);
	else
		brumate_hint(err, "the owner of the bucket must allow it to this key: get, put, "
				  "delete and list, and multipart uploads");
}

static int fail_access(const struct client *c, const char *where, const struct http_answer *a,
		       struct brumate_error *err)
{
	brumate_fail(err, EACCES, "%s: access key %s may not do this in bucket %s (%ld%s%s)", where,
		     c->config->key_id, c->place->bucket, a->status, a->code[0] ? " " : "",
		     a->code);
	hint_refused(c, a, err);
	return -EACCES;
}

static int fail_region(const struct client *c, const char *where, const struct http_answer *a,
		       struct brumate_error *err)
{
	brumate_fail(err, EINVAL, "%s: bucket %s is not in region %s (%ld %s)", where,
		     c->place->bucket, c->config->region, a->status, a->code);
	if (a->region[0])
		brumate_hint(err, "AWS_REGION=%s", a->region);
	else
		brumate_hint(err, "set AWS_REGION to the bucket's region");
	return -EINVAL;
}

int http_fail_refused(const struct client *c, const struct http_request *q,
		      const struct http_answer *a, struct brumate_error *err)
{
	char where[1400];

	snprintf(where, sizeof(where), "s3://%s%s%s", c->place->bucket, q->key ? "/" : "",
		 q->key ? q->key : "");
	if (is_code(a, "NoSuchBucket")) {
		brumate_fail(err, ENOENT, "no bucket %s at %s", c->place->bucket,
			     c->config->endpoint);
		brumate_hint(err, "make it first; AWS_ENDPOINT_URL and AWS_REGION say where");
		return -ENOENT;
	}
	if (a->status == 404)
		return brumate_fail(err, ENOENT, "%s: is not there", where);
	if (a->status == 301 || a->status == 307 || is_code(a, "AuthorizationHeaderMalformed") ||
	    is_code(a, "IllegalLocationConstraintException"))
		return fail_region(c, where, a, err);
	if (a->status == 401 || a->status == 403 || is_code(a, "ExpiredToken") ||
	    is_code(a, "InvalidToken"))
		return fail_access(c, where, a, err);
	return brumate_fail(err, EREMOTEIO, "%s: %s: the server answered %ld%s%s%s%s", where,
			    q->method, a->status, a->code[0] ? " " : "", a->code,
			    a->message[0] ? ": " : "", a->message);
}

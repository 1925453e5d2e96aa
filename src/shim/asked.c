// SPDX-License-Identifier: MIT
/*
 * A checkpoint that a member of the job asks for (`checkpoint --self`). A connection to this shim is a socket to
 * outside the job, with which the job cannot be saved: the caller is answered at once, and the checkpoint begins when
 * its process has gone. A symbolic link in the job's directory holds the result: readlink(2) opens no file, so the
 * member that waits may be frozen at any moment. It owns that link.
 */
#include "shim/shim.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/paths.h"
#include "process/process.h"

enum { CALLER_ENDS_MS = 60000, ANSWER_BYTES = 2048 };

static void write_answer(const struct job *job, const char *id, int result, const char *text)
{
	auto_free char *path = path_format("%s/asked", job->dir);
	auto_free char *new = path_format("%s/asked.new", job->dir);
	char answer[ANSWER_BYTES];

	snprintf(answer, sizeof(answer), "%s %d %s", id, -result, text);
	if (path && new)
		unlink(new);
	if (!path || !new || symlink(answer, new) < 0 || rename(new, path) < 0)
		log_warn("a member is not told of its checkpoint: job=%s checkpoint=%s", job->id,
			 id);
}

static int reply_asked(struct wire_call_context *call, const struct job *job,
		       const struct request *request)
{
	auto_free char *answer = path_format("%s/asked", job->dir);
	auto_json json_t *reply = json_pack(
		"{s:{s:s,s:s,s:o,s:o}}", "asked", "job", job->id, "checkpoint", request->id, "dir",
		wire_string(request->dir), "answer", wire_string(answer ? answer : ""));

	return answer && reply ? wire_reply(call, reply) : -ENOMEM;
}

/* As @request says (taken over). */
static int make_checkpoint(struct shim *s, struct request *request, struct brumate_error *err)
{
	auto_(shim_own_fini) struct shim_own own;
	int r = shim_own_init(&own, s, "checkpoint", request, 0, err);

	*request = (struct request){ 0 };
	if (r == 0)
		r = engine_checkpoint(&own.op, err);
	op_finish(&own.op, r);
	store_abort(&own.op.checkpoint.writer); /* before another checkpoint may take that id */
	return r;
}

/* Replies, and carries out what was asked. The record is taken; whether it is given back is the caller's care. */
static void serve_member(struct shim *s, struct wire_call_context *call, struct request *request,
			 struct proc_id caller)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	char id[MANIFEST_ID_BYTES];
	int r;

	memcpy(id, request->id, sizeof(id));
	write_answer(&s->job, request->id, -EINPROGRESS, "under way");
	if (reply_asked(call, &s->job, request) < 0)
		return;
	r = proc_wait_gone(caller, deadline_in_ms(CALLER_ENDS_MS));
	if (r < 0)
		brumate_fail(&err, -r, "the process that asked has not ended");
	else
		r = make_checkpoint(s, request, &err);
	if (r < 0) {
		log_warn("a checkpoint that job %s asked for failed: reason=\"%s\"", s->job.id,
			 err.text);
		hooks_failed(s, "checkpoint --self", err.text);
	}
	write_answer(&s->job, id, r, r < 0 ? err.text : "done");
}

int asked_checkpoint(struct shim *s, struct wire_call_context *call, json_t *parameters,
		     struct brumate_error *err)
{
	auto_(request_fini) struct request request = { 0 };
	struct proc_info caller;
	uid_t uid;
	gid_t gid;
	pid_t pid;

	wire_call_peer(call, &uid, &gid, &pid);
	int r = request_decode(&request, REQUEST_CHECKPOINT, parameters, err);

	if (r == 0)
		r = wire_get_bool(parameters, "unnamed", &request.unnamed, err);
	if (r == 0)
		r = proc_read(&caller, pid, err);
	if (r == 0)
		r = shim_begin(s, "checkpoint", 1u << JOB_RUNNING, err);
	if (r < 0)
		return r;
	serve_member(s, call, &request, caller.id);
	shim_end(s);
	return 0;
}

void asked_recover(const struct job *job)
{
	auto_free char *path = path_format("%s/asked", job->dir);
	auto_free char *new = path_format("%s/asked.new", job->dir);
	char answer[ANSWER_BYTES], id[MANIFEST_ID_BYTES];
	ssize_t n = path ? readlink(path, answer, sizeof(answer) - 1) : -1;
	int result;

	if (new)
		unlink(new); /* half made */
	if (n <= 0)
		return;
	answer[n] = '\0';
	if (sscanf(answer, "%79s %d", id, &result) == 2 && result == EINPROGRESS)
		write_answer(job, id, -EINTR, "the shim ended while it made the checkpoint");
}

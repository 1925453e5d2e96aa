// SPDX-License-Identifier: MIT
/* The broker's driver calls on real processes of the simulated driver. */
#include "node.h"

static struct broker_client b = BROKER_CLIENT_EMPTY;

static enum dev_state state_of(pid_t pid)
{
	struct dev_process p;

	CHECK(broker_client_state(&b, &pid, 1, &p, NULL) == 0);
	return p.state;
}

/* Runs one action and returns the driver's number. */
static int act(pid_t pid, enum dev_action action, uint32_t timeout_ms)
{
	struct broker_outcome o;
	struct brumate_error err;

	if (broker_client_act(&b, action, &pid, 1, timeout_ms, NULL, 0, &o, &err) < 0) {
		fprintf(stderr, "%s\n", err.text);
		CHECK(0);
	}
	return o.result.number;
}

static void suspend_and_resume(pid_t pid)
{
	CHECK(act(pid, DEV_LOCK, 5000) == 0 && act(pid, DEV_DO_CHECKPOINT, 5000) == 0);
	CHECK(state_of(pid) == DEV_STATE_CHECKPOINTED);
	CHECK(act(pid, DEV_RESTORE, 5000) == 0 && act(pid, DEV_UNLOCK, 5000) == 0);
	CHECK(state_of(pid) == DEV_STATE_RUNNING);
}

static void test_info(struct broker_info *info)
{
	struct dev_gpu gpus[DEV_GPUS_MAX];
	size_t n;

	CHECK(broker_client_info(&b, info, NULL) == 0);
	CHECK_STR(info->backend, "cuda");
	CHECK(info->device.simulated && info->pid == broker_client_pid(&b));
	CHECK(info->device.api_version == 13000);
	CHECK(!strncmp(info->device.driver_version, "580.", 4));
	CHECK(info->device.features == (DEV_CHECKPOINT | DEV_REMAP));
	CHECK(info->n_gpus == 2 && strcmp(info->gpus[0].gpu.uuid, info->gpus[1].gpu.uuid));
	CHECK(broker_client_gpus(&b, gpus, &n, NULL) == 0 && n == 2);
	CHECK(gpus[0].total_bytes > 0 && gpus[0].used_bytes == 0 && !gpus[0].partitioned);
}

static void test_states(const struct node_target *t)
{
	pid_t pids[] = { getpid(), t->pid, 1 << 22 };
	struct dev_process p[3];

	CHECK(broker_client_state(&b, pids, 3, p, NULL) == 0);
	CHECK(p[0].state == DEV_STATE_NONE && p[0].restore_tid == 0 && p[0].n_gpus == 0);
	CHECK(p[1].state == DEV_STATE_RUNNING && p[1].restore_tid > 0 && p[1].n_gpus == 1);
	CHECK(p[1].used_bytes >= TARGET_BYTES && p[1].gpu_bytes[0] == p[1].used_bytes);
	CHECK(p[2].state == DEV_STATE_NONE);
	CHECK(broker_client_state(&b, pids, 0, p, NULL) == 0);
}

static void test_cycle_onto_the_other_gpu(const struct node_target *t,
					  const struct broker_info *info)
{
	struct broker_outcome o;
	struct dev_process p;
	struct dev_gpu_pair pair;

	CHECK(broker_client_state(&b, &t->pid, 1, &p, NULL) == 0);
	CHECK_STR(p.gpus[0], info->gpus[0].gpu.uuid);
	CHECK(act(t->pid, DEV_LOCK, 5000) == 0);
	CHECK(state_of(t->pid) == DEV_STATE_LOCKED);
	CHECK(broker_client_act(&b, DEV_DO_CHECKPOINT, &t->pid, 1, 5000, NULL, 0, &o, NULL) == 0);
	CHECK(o.result.number == 0 && o.state == DEV_STATE_CHECKPOINTED && o.seconds > 0);
	CHECK_STR(o.result.name, "CUDA_SUCCESS");
	CHECK(broker_client_state(&b, &t->pid, 1, &p, NULL) == 0 && p.used_bytes == 0);

	strcpy(pair.from, info->gpus[0].gpu.uuid);
	strcpy(pair.to, info->gpus[1].gpu.uuid);
	CHECK(broker_client_act(&b, DEV_RESTORE, &t->pid, 1, 5000, &pair, 1, &o, NULL) == 0);
	CHECK(o.result.number == 0 && o.state == DEV_STATE_LOCKED);
	CHECK(act(t->pid, DEV_UNLOCK, 5000) == 0);
	CHECK(broker_client_state(&b, &t->pid, 1, &p, NULL) == 0 && p.n_gpus == 1);
	CHECK_STR(p.gpus[0], info->gpus[1].gpu.uuid);
	target_check(t);
}

static void test_refusals(const struct node_target *t)
{
	struct broker_outcome o[2];
	struct brumate_error err;
	struct dev_gpu_pair pair = { "GPU-99999999-9999-9999-9999-999999999999",
				     "GPU-99999999-9999-9999-9999-999999999999" };
	pid_t twice[] = { t->pid, t->pid };

	CHECK(act(t->pid, DEV_UNLOCK, 1000) == CUDA_ERROR_ILLEGAL_STATE);
	CHECK(act(t->pid, DEV_RESTORE, 1000) != 0);
	CHECK(act(getpid(), DEV_LOCK, 1000) != 0);
	CHECK(state_of(t->pid) == DEV_STATE_RUNNING);
	CHECK(broker_client_act(&b, DEV_RESTORE, &t->pid, 1, 1000, &pair, 1, o, &err) == -EINVAL);
	CHECK(strstr(err.text, pair.from));
	CHECK(broker_client_act(&b, DEV_LOCK, &t->pid, 1, 1000, &pair, 1, o, &err) == -EINVAL);
	CHECK(broker_client_act(&b, DEV_LOCK, twice, 2, 1000, NULL, 0, o, &err) == -EINVAL);
	CHECK(broker_client_act(&b, DEV_LOCK, &t->pid, 1, 0, NULL, 0, o, &err) == -EINVAL);
	CHECK(strstr(err.text, "timeout_ms"));
}

/* Calls on several processes run at the same time. */
static void test_parallel(struct node_target *t, size_t n)
{
	struct broker_outcome o[3];
	pid_t pids[3];

	for (size_t i = 0; i < n; i++)
		pids[i] = t[i].pid;
	CHECK(broker_client_act(&b, DEV_LOCK, pids, n, 5000, NULL, 0, o, NULL) == 0);
	node_sim_fault("target:checkpoint:*:delay=700");
	uint64_t start_ns = clock_now_ns();
	CHECK(broker_client_act(&b, DEV_DO_CHECKPOINT, pids, n, 10000, NULL, 0, o, NULL) == 0);
	double seconds = clock_since_s(start_ns);
	node_sim_fault(NULL);
	for (size_t i = 0; i < n; i++)
		CHECK(o[i].result.number == 0 && o[i].seconds >= 0.7);
	CHECK(seconds < 0.7 * (double)n - 0.2);
	CHECK(broker_client_act(&b, DEV_RESTORE, pids, n, 5000, NULL, 0, o, NULL) == 0);
	CHECK(broker_client_act(&b, DEV_UNLOCK, pids, n, 5000, NULL, 0, o, NULL) == 0);
	for (size_t i = 0; i < n; i++)
		target_check(&t[i]);
}

/* A call that is late is told as such, and its process is busy until it has ended. */
static void test_deadline(const struct node_target *t)
{
	struct broker_outcome o;

	CHECK(act(t->pid, DEV_LOCK, 5000) == 0);
	node_sim_fault("target:checkpoint:*:delay=900");
	CHECK(broker_client_act(&b, DEV_DO_CHECKPOINT, &t->pid, 1, 100, NULL, 0, &o, NULL) == 0);
	CHECK(o.result.number == -1 && o.state == DEV_STATE_UNKNOWN);
	CHECK_STR(o.result.name, "TIMEOUT");
	CHECK(act(t->pid, DEV_UNLOCK, 50) == -1);	   /* waited its turn, and never got it */
	CHECK(state_of(t->pid) == DEV_STATE_CHECKPOINTED); /* waited for the late call */
	node_sim_fault(NULL);
	CHECK(act(t->pid, DEV_RESTORE, 5000) == 0 && act(t->pid, DEV_UNLOCK, 5000) == 0);
	target_check(t);
}

/* A second act on a busy process waits for the first, then does its work. */
static void test_second_act_waits(const struct node_target *t)
{
	CHECK(act(t->pid, DEV_LOCK, 5000) == 0);
	node_sim_fault("target:checkpoint:*:delay=400");
	CHECK(act(t->pid, DEV_DO_CHECKPOINT, 50) == -1);
	node_sim_fault(NULL);
	CHECK(act(t->pid, DEV_RESTORE, 5000) == 0);
	CHECK(act(t->pid, DEV_UNLOCK, 5000) == 0);
	target_check(t);
}

static void set_fault(const char *text)
{
	CHECK(file_replace(AT_FDCWD, getenv("BRUMATE_FAULT_FILE"), text, strlen(text), 0600) == 0);
}

/* The driver does not answer about a stopped process; the broker does, and serves the others. */
static void test_stopped(const struct node_target *t, const struct node_target *other)
{
	pid_t pids[] = { t->pid, other->pid };
	struct dev_process p[2];
	int status;

	CHECK(kill(t->pid, SIGSTOP) == 0 && waitpid(t->pid, &status, WUNTRACED) == t->pid);
	CHECK(broker_client_state(&b, pids, 2, p, NULL) == 0);
	CHECK(p[0].state == DEV_STATE_UNKNOWN && p[1].state == DEV_STATE_RUNNING);
	CHECK(act(t->pid, DEV_LOCK, 50) == -1);
	suspend_and_resume(other->pid);
	CHECK(kill(t->pid, SIGCONT) == 0);
	CHECK(state_of(t->pid) == DEV_STATE_RUNNING);
	target_check(t);
}

static void test_injected_faults(const struct node_target *t)
{
	struct broker_outcome o;
	struct brumate_error err;
	struct dev_gpu gpus[DEV_GPUS_MAX];
	size_t n;

	set_fault("device.lock error:5\n");
	CHECK(broker_client_act(&b, DEV_LOCK, &t->pid, 1, 1000, NULL, 0, &o, NULL) == 0);
	CHECK(o.result.number == -5 && o.state == DEV_STATE_RUNNING);
	CHECK(strstr(o.result.name, "device.lock"));
	set_fault("device.gpus error:5\n");
	CHECK(broker_client_gpus(&b, gpus, &n, &err) == -EIO && strstr(err.text, "device.gpus"));
}

/* The caller goes away in the middle: the call ends as if it were there. */
static void test_caller_gone(const struct node_target *t)
{
	struct broker_client other = BROKER_CLIENT_EMPTY;
	auto_json json_t *call = json_pack("{s:s, s:{s:s, s:[i], s:i}}", "method",
					   "io.brumate.broker.Act", "parameters", "action",
					   "checkpoint", "pids", (int)t->pid, "timeout_ms", 5000);

	CHECK(act(t->pid, DEV_LOCK, 5000) == 0);
	node_sim_fault("target:checkpoint:*:delay=300");
	CHECK(broker_client_open(&other, &(struct gpu_kind){ .simulated = true }, NULL) == 0);
	CHECK(wire_send(&other.wire, call, NULL, 0, deadline_in_ms(1000), NULL) == 0);
	broker_client_close(&other);
	enum dev_state state;
	uint64_t deadline_ns = deadline_in_ms(5000);
	while ((state = state_of(t->pid)) == DEV_STATE_LOCKED && deadline_left_ms(deadline_ns))
		;
	CHECK(state == DEV_STATE_CHECKPOINTED);
	node_sim_fault(NULL);
	CHECK(act(t->pid, DEV_RESTORE, 5000) == 0 && act(t->pid, DEV_UNLOCK, 5000) == 0);
	target_check(t);
}

static void *checkpoint_slowly(void *arg)
{
	struct broker_client other = BROKER_CLIENT_EMPTY;
	struct broker_outcome o;
	const struct node_target *t = arg;

	CHECK(broker_client_open(&other, &(struct gpu_kind){ .simulated = true }, NULL) == 0);
	CHECK(broker_client_act(&other, DEV_DO_CHECKPOINT, &t->pid, 1, 10000, NULL, 0, &o, NULL) ==
	      -EPIPE);
	broker_client_close(&other);
	return NULL;
}

/* The broker dies in the middle: callers are told, the next broker takes over, the process lives. */
static void test_broker_killed(struct node_target *t)
{
	pid_t pid = broker_client_pid(&b);
	pthread_t thread;

	CHECK(act(t->pid, DEV_LOCK, 5000) == 0);
	node_sim_fault("target:checkpoint:*:delay=500");
	CHECK(pthread_create(&thread, NULL, checkpoint_slowly, t) == 0);
	poll(NULL, 0, 200);
	CHECK(kill(pid, SIGKILL) == 0);
	pthread_join(thread, NULL);
	struct dev_process p;
	CHECK(broker_client_state(&b, &t->pid, 1, &p, NULL) == -EPIPE);
	node_sim_fault(NULL);

	CHECK(broker_client_reopen(&b, NULL) == 0);
	CHECK(broker_client_pid(&b) != pid);
	uint64_t deadline_ns = deadline_in_ms(5000);
	while (state_of(t->pid) == DEV_STATE_LOCKED && deadline_left_ms(deadline_ns))
		poll(NULL, 0, 10);
	if (state_of(t->pid) == DEV_STATE_CHECKPOINTED)
		CHECK(act(t->pid, DEV_RESTORE, 5000) == 0);
	CHECK(act(t->pid, DEV_UNLOCK, 5000) == 0);
	target_check(t);
}

int main(void)
{
	struct broker_info info;
	struct brumate_error err;
	struct node_target t[3];

	node_start();
	for (int i = 0; i < 3; i++)
		t[i] = target_start();
	if (broker_client_open(&b, &(struct gpu_kind){ .simulated = true }, &err) < 0) {
		fprintf(stderr, "%s\n", err.text);
		return 1;
	}
	CHECK(broker_client_info(&b, &info, NULL) == 0);
	test_states(&t[0]);
	suspend_and_resume(t[1].pid);
	target_check(&t[1]);
	test_refusals(&t[0]);
	test_cycle_onto_the_other_gpu(&t[0], &info);
	test_parallel(t, 3);
	test_deadline(&t[0]);
	test_second_act_waits(&t[0]);
	test_stopped(&t[0], &t[1]);
	test_injected_faults(&t[0]);
	test_caller_gone(&t[0]);
	test_broker_killed(&t[0]);
	for (int i = 0; i < 3; i++)
		target_end(&t[i]);
	test_info(&info);
	end_broker(&b);
	node_end();
	return 0;
}

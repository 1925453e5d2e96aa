// SPDX-License-Identifier: MIT
/* Answers of agents: any bytes are refused, or hold what may be looked into. */
#include "client/agent.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct agent_reply reply;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	memset(&reply, 0, sizeof(reply));
	memcpy(&reply, data, size < sizeof(reply) ? size : sizeof(reply));
	if (agent_check_reply(&reply, size, AGENT_LIST, &err) < 0) {
		if (!err.text[0])
			abort();
		/* Most inputs are too short: what they begin with is judged all the same. */
		if (agent_check_reply(&reply, sizeof(reply), AGENT_LIST, NULL) < 0)
			return 0;
	}
	if (reply.n > AGENT_PIECES_MAX || strlen(reply.text) >= sizeof(reply.text))
		abort();
	for (uint32_t i = 0; i < reply.n; i++)
		if (reply.pieces[i].va + reply.pieces[i].len_bytes < reply.pieces[i].va)
			abort();
	return 0;
}

// SPDX-License-Identifier: MIT
/* A packet of a session that moves device memory, from a stranger. The first byte: how many fds came. */
#include "wire/transfer-packets.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct transfer_packet p = { 0 };

	if (!len_bytes)
		return 0;
	size_t n_fds = data[0], len = len_bytes - 1;
	memcpy(&p, data + 1, len < sizeof(p) ? len : sizeof(p));
	if (transfer_check(&p, len, n_fds, &err) < 0) {
		if (err.code != EBADMSG || !err.text[0])
			abort();
		return 0;
	}
	if (len != sizeof(p) || (p.op != TRANSFER_FDS && p.op != TRANSFER_SEGMENTS &&
				 p.op != TRANSFER_DIGESTS && n_fds))
		abort();
	if (p.op == TRANSFER_LAYOUT && (!p.n || p.n > TRANSFER_ITEMS_MAX || p.n > p.n_total))
		abort();
	if (p.op == TRANSFER_DONE && strlen(p.failure.text) >= sizeof(p.failure.text))
		abort();
	return 0;
}

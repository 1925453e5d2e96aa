// SPDX-License-Identifier: MIT
/* Device memory out to host memory and back, by a broker on the simulated driver. */
#include "pieces.h"
#include "sanitized.h"

/* Out, the device memory let go, in again: the same bytes in both places. */
static void cycle(struct set set)
{
	auto_(transfer_client_close) struct transfer_client *s = session();

	out(s, &set);
	set_check_device(&set);
	set_check_copy(&set);
	set_close_fds(&set);
	in(s, &set);
	set_check_device(&set);
	set_free(&set);
}

/* So many pieces on two GPUs that their fds go in batches; other tests want memory too, and a sanitizer takes
 * several bytes for each. */
static size_t many(void)
{
	return SANITIZED ? 150 : 600;
}

int main(void)
{
	node_start();
	driver_open();
	broker_start();
	cycle(set_make(1, granule, 1));
	cycle(set_make(9, odd, 1));
	cycle(set_make(14, odd, 2));
	cycle(set_make(1, large, 1));
	cycle(set_make(many(), granule, 2));
	end_broker(&b);
	node_end();
	return 0;
}

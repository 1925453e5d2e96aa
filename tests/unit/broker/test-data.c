// SPDX-License-Identifier: MIT
/* Device memory out to host memory and back, by a broker on the simulated driver. */
#include "pieces.h"

/* Out, the device memory let go, in again: the same bytes in both places. */
static void cycle(struct set set)
{
	auto_(data_close) struct data_session *s = session();

	out(s, &set);
	set_check_device(&set);
	set_check_copy(&set);
	set_close_fds(&set);
	in(s, &set);
	set_check_device(&set);
	set_free(&set);
}

/* Two thousand pieces, two GPUs: as much as this machine has memory for. */
static size_t many(void)
{
	return (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) > 16000 * MIB
		       ? 2000
		       : 300;
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

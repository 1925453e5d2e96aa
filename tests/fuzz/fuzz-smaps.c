// SPDX-License-Identifier: MIT
/* Mappings out of any text: in order, not empty, of whole pages, no more than asked for. */
#include "cpumem/cpu-memory.h"
#include "process/hugetlb.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	enum { ROOM = 16 };
	struct cpu_memory_vma found[ROOM];
	char *text = malloc(len_bytes + 1);

	if (!text)
		return 0;
	memcpy(text, data, len_bytes);
	text[len_bytes] = '\0';
	ssize_t n = cpu_memory_parse_smaps(text, found, ROOM);
	if (n > ROOM || (n < 0 && n != -EBADMSG))
		abort();
	for (ssize_t i = 0; i < n; i++)
		if (found[i].start >= found[i].end || (found[i].start | found[i].end) % 4096 ||
		    (i && found[i].start < found[i - 1].end))
			abort();
	struct hugetlb_vma huge[ROOM];
	memcpy(text, data, len_bytes);
	size_t n_huge = hugetlb_parse_smaps(text, huge, ROOM);
	if (n_huge > ROOM)
		abort();
	for (size_t i = 0; i < n_huge; i++)
		if (huge[i].start >= huge[i].end || !huge[i].page_bytes)
			abort();
	free(text);
	return 0;
}

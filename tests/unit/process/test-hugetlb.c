// SPDX-License-Identifier: MIT
/* Which huge pages a tree has claim to: of mappings as the kernel tells them, and of real ones where this
 * machine has set some aside. */
#include "process/hugetlb.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "little.h"

enum { PAGE = 2 << 20 };

static const char smaps[] =
	"5637e1000000-5637e1001000 r--p 00000000 fe:01 1234   /usr/bin/python3\n"
	"KernelPageSize:        4 kB\n"
	"VmFlags: rd mr mw me sd\n"
	/* private, one of two pages touched */
	"7f0000000000-7f0000400000 rw-p 00000000 00:10 77    /anon_hugepage (deleted)\n"
	"Size:               4096 kB\n"
	"KernelPageSize:     2048 kB\n"
	"MMUPageSize:        2048 kB\n"
	"Shared_Hugetlb:        0 kB\n"
	"Private_Hugetlb:    2048 kB\n"
	"VmFlags: rd wr mr mw me de ht sd\n"
	/* a memfd of 1 GiB pages, shared and not reserved */
	"7f0040000000-7f00c0000000 rw-s 00000000 00:11 78    /memfd:x y (deleted)\n"
	"KernelPageSize:  1048576 kB\n"
	"Shared_Hugetlb:  1048576 kB\n"
	"Private_Hugetlb:       0 kB\n"
	"VmFlags: rd wr sh mr mw me ms nr de ht sd\n"
	/* a file that stays, with its pages */
	"7f0100000000-7f0100200000 rw-s 00000000 00:2f 79    /mnt/huge/file\n"
	"KernelPageSize:     2048 kB\n"
	"Private_Hugetlb:    2048 kB\n"
	"VmFlags: rd wr sh mr mw me ms de ht sd\n"
	/* a memfd of small pages */
	"7f0200000000-7f0200200000 rw-s 00000000 00:01 80    /memfd:z (deleted)\n"
	"KernelPageSize:        4 kB\n"
	"VmFlags: rd wr sh mr mw me ms sd\n";

static void told_by_smaps(void)
{
	char text[sizeof(smaps)];
	struct hugetlb_vma v[4];

	memcpy(text, smaps, sizeof(smaps));
	CHECK(hugetlb_parse_smaps(text, v, 4) == 2);
	CHECK(v[0].start == 0x7f0000000000 && v[0].end - v[0].start == 2 * PAGE);
	CHECK(v[0].page_bytes == PAGE && v[0].there_bytes == PAGE && v[0].private_bytes == PAGE);
	CHECK(!v[0].shared && !v[0].unreserved && v[0].inode == 77);
	CHECK(v[1].page_bytes == 1 << 30 && v[1].there_bytes == 1 << 30 && !v[1].private_bytes);
	CHECK(v[1].shared && v[1].unreserved && v[1].device != v[0].device);
	memcpy(text, smaps, sizeof(smaps));
	CHECK(hugetlb_parse_smaps(text, v, 1) == 1);
}

static void *map(size_t len, int how)
{
	return mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_HUGETLB | how, -1, 0);
}

/* Two pages of its own, of which the child writes one, and one that both share. */
static void have_pages(void *arg)
{
	char *own = map(2 * PAGE, MAP_PRIVATE), *shared = map(PAGE, MAP_SHARED);

	(void)arg;
	CHECK(own != MAP_FAILED && shared != MAP_FAILED);
	own[0] = own[PAGE] = shared[0] = 1;
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid) {
		waitpid(pid, NULL, 0);
		return;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	own[0] = 2;
	CHECK(shared[0] == 1);
	little_pause(NULL);
}

static void of_a_tree(void)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	struct hugetlb_sums sums;

	if (hugetlb_free_bytes(PAGE) < 4 * PAGE)
		SKIP("no 4 huge pages are set aside");
	struct little l = little_start(have_pages, NULL);
	little_wait_ready(&l);
	CHECK(proc_tree_read(&tree, little_id(&l), NULL) == 0 && tree.n == 2);
	CHECK(hugetlb_sum(&sums, &tree) == 0);
	CHECK(sums.n == 1 && sums.items[0].page_bytes == PAGE && sums.items[0].bytes == 4 * PAGE);
	CHECK(hugetlb_pool_pages(PAGE) >= 4);
	little_end(&l);
}

int main(void)
{
	struct hugetlb_sums sums;
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	struct little l = little_start(little_pause, NULL);

	told_by_smaps();
	CHECK(proc_tree_read(&tree, little_id(&l), NULL) == 0);
	CHECK(hugetlb_sum(&sums, &tree) == 0 && !sums.n);
	little_end(&l);
	CHECK(hugetlb_free_bytes(PAGE + 1024) == 0); /* no size of a page */
	of_a_tree();
	return 0;
}

// SPDX-License-Identifier: MIT
/* What is held outside a job: the keeper gives back what it got, the table says what is what, and
 * neither a dead keeper nor a damaged table goes unseen. The job is this process. */
#include "datapath/vault.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/paths.h"
#include "check.h"

enum { PIECES = 150, SEGMENTS = 3 };

static char dir[] = "/tmp/brumate-held-XXXXXX";
static const struct target_owner test_owner;

static int memory(unsigned n)
{
	int fd = memfd_create("piece", MFD_CLOEXEC);

	CHECK(fd >= 0 && write(fd, &n, sizeof(n)) == sizeof(n));
	return fd;
}

static unsigned what(int fd)
{
	unsigned n = 0;

	CHECK(pread(fd, &n, sizeof(n), 0) == sizeof(n));
	return n;
}

static struct target this_owner(void)
{
	struct target owner = { .owned_by = &test_owner, .id = "0123abcd", .dir = dir };

	CHECK(proc_identify(&owner.root, getpid(), NULL) == 0);
	return owner;
}

static void fill(struct vault *h, const struct target *owner)
{
	h->pieces = calloc(PIECES, sizeof(*h->pieces));
	h->copy.segments = calloc(SEGMENTS, sizeof(int));
	CHECK(h->pieces && h->copy.segments);
	for (unsigned i = 0; i < PIECES; i++) {
		h->pieces[i] = (struct vault_piece){ .process = owner->root,
						     .id = i + 1,
						     .va = 0x7f0000000000ull + i * (2ull << 20),
						     .len_bytes = 2ull << 20,
						     .fd = memory(i) };
		strcpy(h->pieces[i].gpu, "GPU-1");
	}
	h->n_pieces = PIECES;
	for (unsigned i = 0; i < SEGMENTS; i++)
		h->copy.segments[i] = memory(1000 + i);
	h->copy.n_segments = SEGMENTS;
	h->copy.segment_bytes = 50 * (2ull << 20);
	h->copy.total_bytes = PIECES * (2ull << 20);
	h->copied = true;
}

static void expect_same(const struct vault *h, bool device)
{
	CHECK(h->n_pieces == PIECES && h->copied && h->copy.n_segments == SEGMENTS);
	CHECK(vault_has_device(h) == device && vault_bytes(h) == PIECES * (2ull << 20));
	for (unsigned i = 0; i < PIECES; i++)
		CHECK(h->pieces[i].id == i + 1 && (!device || what(h->pieces[i].fd) == i));
	for (unsigned i = 0; i < SEGMENTS; i++)
		CHECK(what(h->copy.segments[i]) == 1000 + i);
}

static void successor_takes_over(void)
{
	struct target owner = this_owner();
	struct vault h = VAULT_EMPTY, next = VAULT_EMPTY;
	struct proc_id keeper;
	size_t first;

	fill(&h, &owner);
	CHECK(vault_is_alone(&h));
	CHECK(vault_guard(&h, &owner, NULL) == 0 && vault_save(&h, &owner, NULL) == 0);
	CHECK(!vault_is_alone(&h) && h.keeper.pid > 0);
	CHECK(vault_find(&h, owner.root, &first) == PIECES && first == 0);
	CHECK(proc_identify(&keeper, h.keeper.pid, NULL) == 0);
	vault_fini(&h);
	CHECK(!proc_has_ended(keeper));

	CHECK(vault_load(&next, &owner, NULL) == 0);
	expect_same(&next, true);
	CHECK(next.keeper.pid == keeper.pid);
	vault_drop_device(&next);
	vault_fini(&next);
	CHECK(vault_load(&next, &owner, NULL) == 0);
	expect_same(&next, false);
	vault_clear(&next, &owner);
	CHECK(proc_wait_gone(keeper, deadline_in_ms(10000)) == 0);
	CHECK(vault_load(&next, &owner, NULL) == 0 && !next.n_pieces);
}

static void dead_keeper_is_replaced(void)
{
	struct target owner = this_owner();
	struct vault h = VAULT_EMPTY, next = VAULT_EMPTY;
	struct proc_id keeper;

	fill(&h, &owner);
	CHECK(vault_guard(&h, &owner, NULL) == 0 && vault_save(&h, &owner, NULL) == 0);
	CHECK(proc_identify(&keeper, h.keeper.pid, NULL) == 0);
	CHECK(proc_signal(keeper, SIGKILL) == 0 &&
	      proc_wait_gone(keeper, deadline_in_ms(10000)) == 0);
	CHECK(vault_is_alone(&h));
	CHECK(vault_guard(&h, &owner, NULL) == 0 && !vault_is_alone(&h));
	vault_fini(&h);
	CHECK(vault_load(&next, &owner, NULL) == 0);
	expect_same(&next, true);
	vault_clear(&next, &owner);
}

static void half_a_copy_is_none(void)
{
	struct target owner = this_owner();
	struct vault h = VAULT_EMPTY, next = VAULT_EMPTY;
	const struct keeper_tag tag = { KEEPER_HOST, 0, 1 };

	fill(&h, &owner);
	CHECK(vault_guard(&h, &owner, NULL) == 0 && vault_save(&h, &owner, NULL) == 0);
	CHECK(keeper_drop(&h.keeper, &tag, 1, NULL) == 0);
	vault_fini(&h);
	CHECK(vault_load(&next, &owner, NULL) == 0);
	CHECK(!next.copied && !next.copy.n_segments && vault_has_device(&next));
	vault_clear(&next, &owner);
}

/* A shim that died before it had written the table, and after it had removed it, leaves nothing at the keeper. */
static void keeper_lets_go_of_what_no_table_names(void)
{
	struct target owner = this_owner();
	struct vault h = VAULT_EMPTY, next = VAULT_EMPTY;
	struct proc_id keeper;

	fill(&h, &owner);
	CHECK(vault_guard(&h, &owner, NULL) == 0);
	CHECK(proc_identify(&keeper, h.keeper.pid, NULL) == 0);
	vault_fini(&h);
	CHECK(!proc_has_ended(keeper));
	CHECK(vault_load(&next, &owner, NULL) == 0 && !next.n_pieces);
	CHECK(proc_wait_gone(keeper, deadline_in_ms(10000)) == 0);
}

/* A copy that the table does not call whole is let go of; with the pieces gone, too, the keeper ends. */
static void keeper_lets_go_of_half_a_copy(void)
{
	struct target owner = this_owner();
	struct vault h = VAULT_EMPTY, next = VAULT_EMPTY;
	struct proc_id keeper;

	fill(&h, &owner);
	h.copied = false;
	CHECK(vault_guard(&h, &owner, NULL) == 0 && vault_save(&h, &owner, NULL) == 0);
	CHECK(proc_identify(&keeper, h.keeper.pid, NULL) == 0);
	vault_fini(&h);
	CHECK(vault_load(&next, &owner, NULL) == 0);
	CHECK(!next.copied && !next.copy.n_segments && vault_has_device(&next));
	vault_clear(&next, &owner);
	CHECK(proc_wait_gone(keeper, deadline_in_ms(10000)) == 0);
}

/* Its fds are with who asked by then. */
static void keeper_dies_before_it_lets_go(void)
{
	struct target owner = this_owner();
	struct vault h = VAULT_EMPTY, next = VAULT_EMPTY;
	auto_free char *fault_file = path_format("%s/fault", dir);
	const char fault[] = "vault.given kill:keeper\n";

	fill(&h, &owner);
	h.copied = false;
	CHECK(vault_guard(&h, &owner, NULL) == 0 && vault_save(&h, &owner, NULL) == 0);
	vault_fini(&h);
	CHECK(setenv("BRUMATE_FAULT_FILE", fault_file, 1) == 0);
	CHECK(file_replace(AT_FDCWD, fault_file, fault, strlen(fault), 0600) == 0);
	CHECK(vault_load(&next, &owner, NULL) == 0);
	CHECK(access(fault_file, F_OK) < 0 && unsetenv("BRUMATE_FAULT_FILE") == 0);
	CHECK(next.n_pieces == PIECES && vault_has_device(&next) && vault_is_alone(&next));
	CHECK(vault_guard(&next, &owner, NULL) == 0 && !vault_is_alone(&next));
	vault_clear(&next, &owner);
}

/* A connection that broke is no reason to leave anything there. */
static void keeper_is_emptied_over_another_connection(void)
{
	struct target owner = this_owner();
	struct vault h = VAULT_EMPTY;
	struct proc_id keeper;

	fill(&h, &owner);
	CHECK(vault_guard(&h, &owner, NULL) == 0);
	CHECK(proc_identify(&keeper, h.keeper.pid, NULL) == 0);
	keeper_close(&h.keeper);
	vault_clear(&h, &owner);
	CHECK(proc_wait_gone(keeper, deadline_in_ms(10000)) == 0);
}

static void expect_refused(const char *text)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct vault h = VAULT_EMPTY;
	size_t segments = 0;

	CHECK(vault_decode(&h, &segments, text, strlen(text), &err) == -EBADMSG && err.text[0]);
	CHECK(!h.n_pieces && !segments);
}

static void bad_tables_are_refused(void)
{
	expect_refused("");
	expect_refused("{}");
	expect_refused("{\"version\":2,\"copy\":null,\"pieces\":[]}");
	expect_refused("{\"version\":1,\"copy\":null,\"pieces\":[7]}");
	expect_refused("{\"version\":1,\"copy\":null,\"pieces\":[{\"pid\":1}]}");
	/* A copy that is shorter than its pieces would be read beyond its end. */
	expect_refused("{\"version\":1,\"copy\":{\"total\":4096,\"segment\":4096,\"segments\":1},"
		       "\"pieces\":[{\"pid\":1,\"start\":1,\"id\":1,\"va\":0,\"len\":8192,"
		       "\"gpu\":\"\"}]}");
}

int main(void)
{
	CHECK(mkdtemp(dir));
	bad_tables_are_refused();
	successor_takes_over();
	dead_keeper_is_replaced();
	keeper_lets_go_of_what_no_table_names();
	keeper_lets_go_of_half_a_copy();
	keeper_dies_before_it_lets_go();
	keeper_is_emptied_over_another_connection();
	half_a_copy_is_none();
	CHECK(remove_tree(AT_FDCWD, dir) == 0);
	return 0;
}

// SPDX-License-Identifier: MIT
/*
 * The members of weave (weave.h) and their processes. The root uses no GPU. It forks a process for each member;
 * that lives for some steps, tells the root how far it came, and ends in one of several ways; the root forks the
 * next one, which goes on from there. Some are forked by a process that ends at once, and so are orphans.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "weave.h"

enum { LIFE_STEPS_MIN = 5, LIFE_STEPS_MAX = 60, DICE_WEAVE = 1, DICE_LIFE };

enum end { END_EXIT, END_QUICK, END_KILLED, ENDS };

struct life {
	uint64_t first, last; /* steps */
	bool orphan;
	enum end end;
};

/* A process of @member has ended, or is about to; @next is the first step that is not done. */
struct news {
	unsigned int member;
	bool right;
	uint64_t next;
};

static struct weave weave;
static int news_from, news_to;

/* ---- dice ---- */

static uint64_t mix(uint64_t z)
{
	z += 0x9e3779b97f4a7c15u;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

struct dice dice_of(uint64_t seed, uint64_t what, uint64_t which)
{
	return (struct dice){ mix(mix(seed ^ what << 56) + which) };
}

unsigned int dice_throw(struct dice *dice, unsigned int n)
{
	dice->state = mix(dice->state);
	return (unsigned int)(dice->state % n);
}

/* ---- a process ---- */

static struct life life_of(unsigned int member, uint64_t first)
{
	struct dice dice = dice_of(weave.seed, DICE_LIFE, first << 8 | member);
	struct life life = { .first = first };

	life.last =
		first + LIFE_STEPS_MIN - 1 + dice_throw(&dice, LIFE_STEPS_MAX - LIFE_STEPS_MIN + 1);
	if (weave.options->steps && life.last > weave.options->steps)
		life.last = weave.options->steps;
	life.orphan = dice_once_in(&dice, 3);
	life.end = (enum end)dice_throw(&dice, ENDS);
	return life;
}

static void tell_root(unsigned int member, bool right, uint64_t next)
{
	const struct news news = { member, right, next };

	if (write(news_to, &news, sizeof(news)) != sizeof(news))
		die("write to the root: %m");
}

static void pause_between(void)
{
	unsigned int ms = weave.options->interval_ms;
	struct timespec left = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000 };

	while (nanosleep(&left, &left) < 0 && errno == EINTR)
		;
}

static void __attribute__((noreturn)) end_as(enum end end)
{
	if (end == END_KILLED)
		raise(SIGKILL);
	if (end == END_QUICK)
		_exit(0);
	exit(0);
}

static void __attribute__((noreturn)) live(unsigned int member, const struct life *life)
{
	struct work *work = work_begin(&weave, member, life->first);

	for (uint64_t n = life->first; n <= life->last; n++) {
		bool right = work_step(work, n);

		say("member %u step %llu %s", member, (unsigned long long)n, right ? "OK" : "BAD");
		if (!right) {
			tell_root(member, false, n);
			_exit(1);
		}
		pause_between();
	}
	work_end(work);
	tell_root(member, true, life->last + 1);
	end_as(life->end);
}

/* ---- the root ---- */

static pid_t fork_or_die(void)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid < 0)
		die("fork: %m");
	return pid;
}

static void begin_life(unsigned int member, uint64_t first)
{
	const struct life life = life_of(member, first);

	if (fork_or_die())
		return;
	signal(SIGCHLD, SIG_DFL);
	if (life.orphan && fork_or_die())
		_exit(0);
	live(member, &life);
}

static void hear(struct news *ret)
{
	ssize_t n;

	do
		n = read(news_from, ret, sizeof(*ret));
	while (n < 0 && errno == EINTR);
	if (n != sizeof(*ret))
		die("read from the members: %m");
}

static bool is_over(const struct news *news)
{
	return weave.options->steps && news->next > weave.options->steps;
}

static void make_weave(const struct options *options)
{
	struct dice dice;
	int ends[2];

	weave.options = options;
	weave.seed = strtoull(options->word, NULL, 10);
	dice = dice_of(weave.seed, DICE_WEAVE, 0);
	weave.n_members = 2 + dice_throw(&dice, WEAVE_MEMBERS_MAX - 1);
	weave.page = mmap(NULL, sizeof(*weave.page), PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (weave.page == MAP_FAILED || pipe(ends) < 0)
		die("%m");
	news_from = ends[0];
	news_to = ends[1];
	signal(SIGCHLD, SIG_IGN); /* nobody waits for those that end */
}

int main(int argc, char **argv)
{
	struct options options = { .mib = 1, .chunk_mib = 1, .interval_ms = 5 };
	unsigned int n_over = 0;

	options_parse(&options, argc, argv, "weave SEED [--steps N] [--interval-ms 5]");
	if (!options.word)
		die("weave wants a seed");
	make_weave(&options);
	say("ready pid %d: %u members", (int)getpid(), weave.n_members);
	for (unsigned int i = 0; i < weave.n_members; i++)
		begin_life(i, 1);
	while (n_over < weave.n_members) {
		struct news news;

		hear(&news);
		if (!news.right)
			return 1;
		if (is_over(&news))
			n_over++;
		else
			begin_life(news.member, news.next);
	}
	return 0;
}

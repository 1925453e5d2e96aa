// SPDX-License-Identifier: MIT
/*
 * Drawing on a terminal by the control sequences of ECMA-48 and xterm, which all of today's know. See screen.h. Signals
 * are handled rather than blocked, for the reason given in cli/client.c.
 */
#include "edges/watch/screen.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"

/* The other screen, without a cursor and without wrapping of lines; and back. */
static const char enter[] = "\033[?1049h\033[?25l\033[?7l",
		  leave[] = "\033[?7h\033[?25h\033[?1049l";

enum { LINES_MAX = 1 << 20 };

/* There is one terminal, and handlers of signals have to know it. */
static struct {
	bool taken;
	struct termios before, raw;
	int ends[2]; /* of a pipe, by which handlers tell */
	char *text;  /* the picture that is being made */
	size_t len;
	int skipped;   /* lines of its beginning that are not shown */
	unsigned page; /* lines that a page key moves it by */
	char key;      /* the last that is the command's own; 0: none */
} screen = { .ends = { -1, -1 } };

/* These two are async-signal-safe. */
static void take(void)
{
	tcsetattr(STDIN_FILENO, TCSANOW, &screen.raw);
	fd_write_full(STDOUT_FILENO, enter, sizeof(enter) - 1);
}

static void give_back(void)
{
	fd_write_full(STDOUT_FILENO, leave, sizeof(leave) - 1);
	tcsetattr(STDIN_FILENO, TCSANOW, &screen.before);
}

static void tell(int number)
{
	unsigned char byte = (unsigned char)number;

	if (write(screen.ends[1], &byte, 1) < 0)
		return; /* it is full: who reads it looks soon */
}

static void on_end(int number)
{
	int saved = errno;

	tell(number);
	errno = saved;
}

/* The shell gets the terminal as it gave it, and the program has it again when it goes on. */
static void on_stop(int number)
{
	int saved = errno;

	give_back();
	raise(SIGSTOP);
	take();
	tell(SIGWINCH);
	errno = saved;
}

/* A crash leaves no terminal that shows nothing of what is typed. */
static void on_crash(int number)
{
	give_back();
	signal(number, SIG_DFL);
	raise(number);
}

static void handle(const int *numbers, size_t n, void (*handler)(int))
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };

	sigemptyset(&action.sa_mask);
	for (size_t i = 0; i < n; i++)
		sigaction(numbers[i], &action, NULL);
}

int screen_open(const char *what, struct brumate_error *err)
{
	static const int ends[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH };
	static const int stops[] = { SIGTSTP },
			 crashes[] = { SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL };

	if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) ||
	    tcgetattr(STDIN_FILENO, &screen.before) < 0) {
		brumate_fail(err, ENOTTY, "%s: standard input and output are not a terminal", what);
		brumate_hint(err,
			     "`brumate ps` and `brumate events --follow` go to files and pipes");
		brumate_error_exit(err, EXIT_USAGE);
		return -ENOTTY;
	}
	if (pipe2(screen.ends, O_CLOEXEC | O_NONBLOCK) < 0)
		return brumate_fail(err, errno, "pipe: %m");
	screen.raw = screen.before;
	screen.raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
	screen.raw.c_cc[VMIN] = 0; /* so that a read does not block if the keys are gone by then */
	screen.raw.c_cc[VTIME] = 0;
	screen.taken = true;
	atexit(screen_close);
	handle(ends, sizeof(ends) / sizeof(ends[0]), on_end);
	handle(stops, sizeof(stops) / sizeof(stops[0]), on_stop);
	handle(crashes, sizeof(crashes) / sizeof(crashes[0]), on_crash);
	take();
	return 0;
}

void screen_close(void)
{
	if (screen.taken)
		give_back();
	screen.taken = false;
}

FILE *screen_begin(void)
{
	return open_memstream(&screen.text, &screen.len);
}

/* The line after the first that is to be seen, once as many have been skipped as were asked for and the picture has. */
static char *skip_lines(char *text, unsigned rows)
{
	int n = 0;

	for (const char *at = text; *at; at++)
		n += *at == '\n';
	if (screen.skipped > n - (int)rows)
		screen.skipped = n > (int)rows ? n - (int)rows : 0;
	for (int i = 0; i < screen.skipped; i++)
		text += strcspn(text, "\n") + 1;
	return text;
}

/* Each line takes the place of the one before, and what is left of that goes; so nothing flickers. */
void screen_end(FILE *f)
{
	struct winsize size = { .ws_row = 24 };
	auto_free char *drawn = NULL;
	size_t len = 0;
	unsigned row = 0;

	ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
	fclose(f);
	FILE *out = open_memstream(&drawn, &len);
	if (out) {
		fputs("\033[H", out);
		screen.page = size.ws_row > 1 ? size.ws_row - 1u : 1;
		for (char *line = skip_lines(screen.text, size.ws_row); *line && row < size.ws_row;
		     row++) {
			const size_t n = strcspn(line, "\n");

			fprintf(out, "%s%.*s\033[0m\033[K", row ? "\r\n" : "", (int)n, line);
			line += n + (line[n] == '\n');
		}
		fputs("\033[J", out);
		fclose(out);
		fd_write_full(STDOUT_FILENO, drawn, len);
	}
	free(screen.text);
	screen.text = NULL;
}

/* By how many lines a key moves the picture; an arrow is three bytes, a page four. */
static int lines_of_key(const char *keys, size_t n, unsigned page)
{
	static const struct {
		const char *key;
		int lines, pages;
	} moves[] = {
		{ "j", 1, 0 },		{ "\033[B", 1, 0 },
		{ "k", -1, 0 },		{ "\033[A", -1, 0 },
		{ " ", 0, 1 },		{ "\033[6~", 0, 1 },
		{ "b", 0, -1 },		{ "\033[5~", 0, -1 },
		{ "g", -LINES_MAX, 0 }, { "\033[H", -LINES_MAX, 0 },
		{ "G", LINES_MAX, 0 },	{ "\033[F", LINES_MAX, 0 },
	};

	for (size_t i = 0; i < sizeof(moves) / sizeof(moves[0]); i++)
		if (n >= strlen(moves[i].key) && !strncmp(keys, moves[i].key, strlen(moves[i].key)))
			return moves[i].lines + moves[i].pages * (int)page;
	return 0;
}

/* Where nobody can type any more, it is over, too. */
static enum screen_event take_keys(short revents)
{
	char keys[64];
	ssize_t n = revents & POLLIN ? read(STDIN_FILENO, keys, sizeof(keys)) : 0;
	enum screen_event event = SCREEN_TIME;

	for (ssize_t i = 0; i < n; i++) {
		const int lines = lines_of_key(keys + i, (size_t)(n - i), screen.page);

		if (keys[i] == 'q' || keys[i] == 'Q' || keys[i] == 3)
			return SCREEN_QUIT;
		screen.skipped = screen.skipped + lines < 0 ? 0 : screen.skipped + lines;
		if (!lines && keys[i] >= 'a' && keys[i] <= 'z')
			screen.key = keys[i];
		if (lines || screen.key)
			event = SCREEN_CHANGED;
	}
	return revents & (POLLHUP | POLLERR | POLLNVAL) ? SCREEN_QUIT : event;
}

char screen_key(void)
{
	const char key = screen.key;

	screen.key = 0;
	return key;
}

static enum screen_event take_signals(void)
{
	unsigned char number;
	enum screen_event event = SCREEN_TIME;

	while (read(screen.ends[0], &number, 1) == 1)
		if (number != SIGWINCH)
			return SCREEN_QUIT;
		else
			event = SCREEN_CHANGED;
	return event;
}

enum screen_event screen_wait(int fd, int timeout_ms)
{
	const uint64_t deadline_ns = deadline_in_ms((uint64_t)timeout_ms);

	for (;;) {
		struct pollfd fds[] = { { .fd = fd, .events = POLLIN },
					{ .fd = STDIN_FILENO, .events = POLLIN },
					{ .fd = screen.ends[0], .events = POLLIN } };
		int n = poll(fds, 3, deadline_left_ms(deadline_ns));

		if (n < 0 && errno != EINTR)
			return SCREEN_QUIT;
		if (n == 0)
			return SCREEN_TIME;
		if (n < 0)
			continue;
		if (fds[2].revents) {
			enum screen_event event = take_signals();

			if (event != SCREEN_TIME)
				return event;
		}
		if (fds[1].revents) {
			enum screen_event event = take_keys(fds[1].revents);

			if (event != SCREEN_TIME)
				return event;
		}
		if (fds[0].revents)
			return SCREEN_CHANGED;
	}
}

// SPDX-License-Identifier: MIT
/*
 * A terminal that a command has for itself: pictures take the place of each other, keys are read as they are typed, and the
 * terminal is what it was before, however the command ends but for SIGKILL. There is one in a program.
 */
#pragma once

#include <stdio.h>

#include "base/error.h"

/** Takes the terminal of standard input and output. -ENOTTY where they are none: @what names the command. */
int screen_open(const char *what, struct brumate_error *err);

/** Gives it back. Does nothing where it is not taken. */
void screen_close(void);

/** Begins a picture: what is to be seen goes to the stream, whose lines that do not fit are cut. NULL without memory. */
FILE *screen_begin(void);

/** Shows it, and closes the stream. What is longer than the terminal is moved by keys: arrows, j and k, pages, space and b, g and G. */
void screen_end(FILE *f);

enum screen_event {
	SCREEN_QUIT,	/* q, or a signal that ends programs */
	SCREEN_CHANGED, /* @fd is readable, the picture was moved, a key was typed, or the terminal has another size: look again */
	SCREEN_TIME,	/* the time is over */
};

/** Waits for @fd (-1: nothing), the terminal, or @timeout_ms. */
enum screen_event screen_wait(int fd, int timeout_ms);

/** The letter that was typed last, of those that neither move the picture nor end the command, once; 0: none. */
char screen_key(void);

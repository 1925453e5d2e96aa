# SPDX-License-Identifier: MIT
"""criu#2887 and others about timers: a profiler's ticks, by the clock and by CPU time."""
import signal
import time
from report import steps

ticks = {signal.SIGALRM: 0, signal.SIGPROF: 0}


def tick(number, frame):
    ticks[number] += 1


for number, timer in ((signal.SIGALRM, signal.ITIMER_REAL), (signal.SIGPROF, signal.ITIMER_PROF)):
    signal.signal(number, tick)
    signal.setitimer(timer, 0.01, 0.01)


def look(step):
    before, until = dict(ticks), time.monotonic() + 20
    while any(ticks[number] == before[number] for number in ticks):
        assert time.monotonic() < until, f"no ticks: {ticks}, were {before}"


steps(look)

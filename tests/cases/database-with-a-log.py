# SPDX-License-Identifier: MIT
"""dmtcp#324: a database that two processes write to: SQLite with its log, which maps a file and locks bytes of it."""
import os
import sqlite3
import time
from report import in_child, place, same, steps

path = os.path.join(place(), "db")


def opened():
    base = sqlite3.connect(path, timeout=20, isolation_level=None)
    base.execute("pragma journal_mode=wal")
    return base


with opened() as first:
    first.execute("create table t (who, n)")
first.close()  # SQLite takes no connection through a fork


def child():
    base, n = opened(), 0
    while True:
        n += 1
        base.execute("insert into t values ('child', ?)", (n,))
        time.sleep(0.01)


in_child(child)
base = opened()


def look(step):
    base.execute("insert into t values ('own', ?)", (step,))
    same("rows", base.execute("select count(*), max(n) from t where who = 'own'").fetchone(), (step, step))
    count, last = base.execute("select count(*), max(n) from t where who = 'child'").fetchone()
    same("rows of the child", count, last or 0)
    same("integrity", base.execute("pragma quick_check").fetchone(), ("ok",))


steps(look)

# SPDX-License-Identifier: MIT
"""Slurm's batch scripts (criu#3078): bash with traps, a coprocess and children that it waits for one by one."""
import subprocess
from report import same, steps

bash = subprocess.Popen(["bash", "-c", """
trap 'echo trapped' USR1
coproc CAT { while read line; do echo "co $line"; done; }
while read line; do
  case $line in signal) kill -USR1 $$;; *) echo "$line" >&${CAT[1]}; read back <&${CAT[0]}; sleep 0.001 & wait -n; echo "$back";; esac
done"""], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def look(step):
    for line, answer in ((b"%d\n" % step, b"co %d\n" % step), (b"signal\n", b"trapped\n")):
        bash.stdin.write(line)
        bash.stdin.flush()
        same("the answer", bash.stdout.readline(), answer)


steps(look)

# SPDX-License-Identifier: MIT
"""criu#2131: Node.js, whose loop uses threads, epoll and, where it may, io_uring."""
import os
import shutil
import subprocess
from report import place, same, sleep_on, steps

if not shutil.which("node"):
    print("LACKS node", flush=True)
    sleep_on()
file = os.path.join(place(), "file")
node = subprocess.Popen(["node", "-e", """
const fs = require("fs"); let n = 0;
require("readline").createInterface({input: process.stdin}).on("line", line => {
  fs.promises.writeFile(process.argv[1], line).then(() => fs.promises.readFile(process.argv[1]))
    .then(text => process.stdout.write(text + " " + ++n + "\\n")); });
""", file], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def look(step):
    node.stdin.write(b"line\n")
    node.stdin.flush()
    same("the answer", node.stdout.readline(), b"line %d\n" % step)


steps(look)

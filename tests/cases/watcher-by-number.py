# SPDX-License-Identifier: MIT
"""ray#54237: a shell asks again and again whether the process of that number lives, and kills the rest where it does not."""
import os
import subprocess
from report import same, steps

shell = subprocess.Popen(["sh", "-c", f"while kill -s 0 {os.getpid()}; do sleep 0.05; done; kill -9 {os.getpid()}"])
steps(lambda step: same("the watcher", shell.poll(), None))

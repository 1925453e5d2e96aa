#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The alert rules and the dashboard of packaging/monitoring: they ask for what `brumate metrics` tells, and a real Prometheus
takes them, where Debian's is installed."""

import json
import os
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request

from cases import SOURCE, Skipped, case, expect, main, read_text, run, wait_until

FOLDER = os.path.join(SOURCE, "packaging", "monitoring")


def queries():
    """(title of the panel, expression for any instance, legend) of each query of the dashboard."""
    with open(os.path.join(FOLDER, "dashboard.json"), encoding="utf-8") as file:
        panels = json.load(file)["panels"]
    return [(panel["title"], target["expr"].replace('"$instance"', '".*"'), target["legendFormat"])
            for panel in panels for target in panel["targets"]]


def tool(name):
    path = shutil.which(name)
    if not path:
        raise Skipped(f"{name} is not installed (Debian's package prometheus)")
    return path


def failed_schedule(bed):
    """A job whose checkpoints by schedule fail from now on: there is a file where its store was."""
    job, _ = bed.counter(name="train", mib=16)
    store = os.path.join(bed.dir, "store")
    bed.ok("checkpoint", "train", "--every", "1s", "--dir", store)
    wait_until(lambda: os.path.isdir(store), "the first checkpoint", 60)
    os.rename(store, store + "-away")
    with open(store, "w", encoding="utf-8"):
        pass
    wait_until(lambda: bed.job("train")["schedule"]["failure"], "a failure", 60)
    return job


@case
def all_that_is_asked_for_is_told(bed):
    bed.counter(name="train", mib=16)
    bed.ok("checkpoint", "train", "--leave-running", "--name", "first")
    bed.ok("checkpoint", "train", "--every", "1h")
    told = set(re.findall(r"^# TYPE (\S+)", bed.ok("metrics").out, re.M))
    asked = set(re.findall(r"\bbrumate_\w+", "\n".join(expr for _, expr, _ in queries()) + read_text(os.path.join(FOLDER, "alerts.yml"))))
    expect(len(asked) > 12 and asked <= told, f"nobody tells {asked - told}")
    samples = bed.ok("metrics").out
    expect(re.search(r"^brumate_job_schedule_failed{.*} 0$", samples, re.M), samples)
    size, free = (int(float(re.search(rf"^brumate_store_{what}_bytes (\S+)$", samples, re.M)[1])) for what in ("size", "free"))
    expect(0 < free <= size, f"{free} of {size}")
    bed.end_schedule("train")


@case
def rules_do_as_they_say(bed):
    promtool = tool("promtool")
    for words in (("check", "rules", "alerts.yml"), ("test", "rules", "alerts-test.yml")):
        done = run([promtool, *words], cwd=FOLDER, env=bed.command_env())
        expect(done.code == 0, done.why())
    bed.counter(name="train", mib=16)
    checked = subprocess.run([promtool, "check", "metrics"], input=bed.ok("metrics").out, capture_output=True, text=True, check=False)
    expect(checked.returncode == 0, checked.stderr)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def answer_of(port, path):
    """What is answered there; None: nothing, yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.read()
    except OSError:
        return None


class Prometheus:
    """A real one, set up as packaging/monitoring says, with the server of this bed's metrics."""

    def __init__(self, bed):
        self.port, source = free_port(), free_port()
        config = os.path.join(bed.dir, "prometheus.yml")
        text = read_text(os.path.join(FOLDER, "prometheus.yml")).replace("127.0.0.1:9857", f"127.0.0.1:{source}")
        with open(config, "w", encoding="utf-8") as file:
            file.write("global: {scrape_interval: 1s, evaluation_interval: 1s}\n" + text.replace("alerts.yml", f"{FOLDER}/alerts.yml"))
        self.processes = [subprocess.Popen([bed.brumate, "metrics", "--listen", f"127.0.0.1:{source}"], env=bed.command_env())]
        with open(os.path.join(bed.dir, "prometheus.log"), "wb") as log:
            self.processes.append(subprocess.Popen([tool("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={bed.dir}/tsdb",
                                                    f"--web.listen-address=127.0.0.1:{self.port}"], stdout=log, stderr=log))

    def asked(self, path):
        answer = answer_of(self.port, path)
        return json.loads(answer)["data"] if answer else None

    def alerts(self, name):
        """The jobs that it fires for."""
        found = (self.asked("/api/v1/alerts") or {"alerts": []})["alerts"]
        return [a["labels"]["job"] for a in found if a["labels"]["alertname"] == name and a["state"] == "firing"]

    def evaluated(self, expr):
        return (self.asked("/api/v1/query?query=" + urllib.parse.quote(expr)) or {"result": []})["result"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.terminate()
            process.wait(30)


@case
def a_prometheus_sees_a_failed_schedule(bed):
    """It fires the alert; each query of the dashboard has an answer, with the labels that its legend shows."""
    tool("prometheus")
    job = failed_schedule(bed)
    other, _ = bed.counter(name="other", mib=16)
    bed.ok("checkpoint", other, "--leave-running")
    with Prometheus(bed) as prometheus:
        wait_until(lambda: prometheus.alerts("BrumateScheduleFailed") == [job], "the alert", 60)
        for title, expr, legend in queries():
            wait_until(lambda e=expr: prometheus.evaluated(e), f"an answer to {title}: {expr}", 60)
            lacking = [label for label in re.findall(r"{{(\w+)}}", legend) if label not in prometheus.evaluated(expr)[0]["metric"]]
            expect(not lacking, f"{title}: no {lacking} in the answer to {expr}")
        failed = next(expr for title, expr, _ in queries() if title == "Failed schedules")
        expect(float(prometheus.evaluated(failed)[0]["value"][1]) == 1, "the dashboard shows no failure")
        values = prometheus.asked("/api/v1/label/instance/values?match[]=brumate_build_info")
        expect(len(values) == 1 and values[0].startswith("127.0.0.1:"), f"the dashboard's choice of machines: {values}")
    bed.end_schedule("train")


main()

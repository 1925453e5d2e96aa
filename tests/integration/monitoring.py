#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The alert rules and the dashboard of packaging/monitoring: they ask for what `brumate metrics` tells, and a real Prometheus
takes them, where Debian's is installed."""

import contextlib
import http.server
import json
import os
import re
import shutil
import socket
import subprocess
import threading
import urllib.parse
import urllib.request

from cases import SOURCE, Skipped, case, expect, main, read_text, run, wait_until

FOLDER = os.path.join(SOURCE, "packaging", "monitoring")


def dashboard():
    """The expressions of the dashboard, for any instance."""
    with open(os.path.join(FOLDER, "dashboard.json"), encoding="utf-8") as file:
        panels = json.load(file)["panels"]
    return [target["expr"].replace('"$instance"', '".*"') for panel in panels for target in panel["targets"]]


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
    asked = set(re.findall(r"\bbrumate_\w+", "\n".join(dashboard()) + read_text(os.path.join(FOLDER, "alerts.yml"))))
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


@contextlib.contextmanager
def served(bed):
    """What `brumate metrics` tells, over HTTP; the port."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            text = bed.ok("metrics").out.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@case
def a_prometheus_sees_a_failed_schedule(bed):
    prometheus, port = tool("prometheus"), free_port()
    job = failed_schedule(bed)
    config = os.path.join(bed.dir, "prometheus.yml")

    def asked(path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return json.load(answer)["data"]
        except OSError:
            return None

    with served(bed) as source, open(os.path.join(bed.dir, "prometheus.log"), "wb") as log:
        with open(config, "w", encoding="utf-8") as file:
            file.write(f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{FOLDER}/alerts.yml']\n"
                       f"scrape_configs: [{{job_name: brumate, honor_labels: true, static_configs: [{{targets: ['127.0.0.1:{source}']}}]}}]\n")
        process = subprocess.Popen([prometheus, f"--config.file={config}", f"--storage.tsdb.path={bed.dir}/tsdb",
                                    f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
        try:
            def fires():
                alerts = (asked("/api/v1/alerts") or {"alerts": []})["alerts"]
                return [a for a in alerts if a["labels"]["alertname"] == "BrumateScheduleFailed" and a["labels"]["job"] == job]
            wait_until(fires, "the alert", 60)
            for expr in dashboard():
                answer = asked("/api/v1/query?query=" + urllib.parse.quote(expr))
                expect(answer is not None, f"{expr} is no question")
        finally:
            process.terminate()
            process.wait(30)
    bed.end_schedule("train")


main()

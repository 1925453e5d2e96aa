#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The site that tools/site makes, where mkdocs is installed: all its links lead somewhere, it needs nobody else's server, and
in a browser, where there is one, its search finds what operators ask first."""

import contextlib
import html.parser
import http.server
import json
import os
import shutil
import subprocess
import threading
import urllib.parse

from cases import SOURCE, Skipped, case, expect, main, run

# What is typed, and the page that answers.
QUESTIONS = {
    "slurm": "docs/slurm.html",
    "vllm": "docs/servers.html",
    "how much RAM": "docs/questions.html",
    "why is my checkpoint slow": "docs/questions.html",
    "move a job to another machine": "docs/questions.html",
    "torchrun": "docs/questions.html",
    "MIG": "docs/questions.html",
    "MPS": "docs/questions.html",
    "remove everything": "docs/questions.html",
    "pods kubernetes": "docs/kubernetes.html",
    "schedule failed": "docs/monitoring.html",
    "host memory": "docs/questions.html",
    "grafana": "docs/monitoring.html",
}
FIRST = 5  # the results that fit on a screen
ASK = """<!doctype html><meta charset="utf-8"><body><script>
const ask = query => new Promise(done => {
	const frame = document.createElement("iframe");
	frame.src = "search.html?q=" + encodeURIComponent(query);
	document.body.append(frame);
	const timer = setInterval(() => {
		const shown = frame.contentDocument.getElementById("mkdocs-search-results");
		if (!shown || !shown.firstElementChild)
			return;
		clearInterval(timer);
		done([...shown.querySelectorAll("h3 a")].map(a => a.getAttribute("href")));
	}, 50);
});
(async () => {
	const found = {};
	for (const query of QUERIES)
		found[query] = await ask(query);
	fetch("/found", { method: "POST", body: JSON.stringify(found) });
})();
</script>"""


def site(bed):
    """Where it has been made."""
    out = os.path.join(bed.dir, "site")
    done = run([os.path.join(SOURCE, "tools", "site"), "--out", out, "--build", bed.build.path], timeout=300)
    if "mkdocs is not installed" in done.err:
        raise Skipped("mkdocs is not installed (Debian's package mkdocs)")
    expect(done.code == 0 and done.out == f"{out}\n", done.why())
    return out


class Page(html.parser.HTMLParser):
    """What a page links to, what it loads, and the anchors that it has."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loads, self.anchors = [], [], set()
        with open(path, encoding="utf-8") as file:
            self.feed(file.read())

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.anchors.update(filter(None, (named.get("id"),)))
        for name in ("href", "src", "action"):
            if named.get(name):
                (self.links if tag == "a" else self.loads).append(named[name])


@case
def all_links_lead_somewhere(bed):
    out = site(bed)
    paths = [os.path.join(base, name) for base, _, names in os.walk(out) for name in names if name.endswith(".html")]
    pages = {path: Page(path) for path in paths}
    wrong, n_links = [], 0
    for path, page in pages.items():
        if path.endswith("/404.html"):
            continue  # which is served for any path
        for link in page.links + page.loads:
            url = urllib.parse.urlparse(link)
            if url.scheme or url.netloc:
                if link in page.loads:
                    wrong.append(f"{path} loads {link}")
                continue
            to = os.path.normpath(os.path.join(os.path.dirname(path), urllib.parse.unquote(url.path))) if url.path else path
            n_links += 1
            if not os.path.isfile(to) or (url.fragment and to in pages and url.fragment not in pages[to].anchors):
                wrong.append(f"{path}: {link}")
    expect(not wrong, "\n  ".join([f"{len(wrong)} links:", *wrong]))
    expect(len(pages) > 40 and n_links > 1000, f"{len(pages)} pages with {n_links} links")
    named = [os.path.relpath(path, out) for path in paths]
    expect({*QUESTIONS.values(), "index.html", "SECURITY.html"} <= set(named), f"{named}")


def browser():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if shutil.which(name):
            return name
    raise Skipped("chromium is not installed")


@contextlib.contextmanager
def served(folder):
    """The folder over HTTP, with a page that asks all questions: (its address, a list that gets what was found, an event for that)."""
    found, told = [], threading.Event()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=folder)

        def do_POST(self):
            found.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()
            told.set()

        def log_message(self, *_):
            pass

    with open(os.path.join(folder, "ask.html"), "w", encoding="utf-8") as file:
        file.write(ASK.replace("QUERIES", json.dumps(list(QUESTIONS))))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/ask.html", found, told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@case
def search_finds_what_is_asked_first(bed):
    program, out = browser(), site(bed)
    with served(out) as (address, found, told), open(os.path.join(bed.dir, "browser.log"), "wb") as log:
        with subprocess.Popen([program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0",
                               f"--user-data-dir={bed.dir}/profile", address], stdout=log, stderr=log, start_new_session=True,
                              env={**os.environ, "HOME": bed.dir}) as process:
            try:
                expect(told.wait(120), "the browser has not told what it found")
            finally:
                process.terminate()
                process.wait(60)
    for query, page in QUESTIONS.items():
        pages = [link.removeprefix("./").partition("#")[0] for link in found[0][query]]
        expect(page in pages[:FIRST], f"{query}: {pages[:FIRST]}, not {page}")


main()

# SPDX-License-Identifier: MIT
"""A stand-in for a kubelet: by TLS, with certificates that are made when it is asked for, who may ask and who may not, its
pods, and the answers that it is told to give instead. It shares no code with what it tests."""

import http.server
import json
import os
import re
import shutil
import ssl
import subprocess
import threading

from harness import Skipped

NAME = "node-1"  # the certificate is for it alone, and for no address, as a kubelet's own is

CA_CONFIG = """
[ca]
default_ca = own
[own]
database = {dir}/index
new_certs_dir = {dir}
rand_serial = yes
default_md = sha256
policy = any
copy_extensions = copy
unique_subject = no
[any]
commonName = supplied
"""


class Authority:
    """A certificate authority in a directory."""

    def __init__(self, folder, name="authority"):
        if not shutil.which("openssl"):
            raise Skipped("no openssl")
        self.dir = folder
        os.makedirs(folder)
        with open(self.path("config"), "w", encoding="utf-8") as file:
            file.write(CA_CONFIG.format(dir=folder))
        with open(self.path("index"), "w", encoding="utf-8"):
            pass
        self.openssl("req", "-x509", "-subj", f"/CN={name}", "-keyout", self.path("ca.key"), "-out", self.path("ca.crt"),
                     "-days", "2", "-addext", "keyUsage=critical,keyCertSign", *self.NEW_KEY)
        self.ca = self.path("ca.crt")

    NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")

    def path(self, name):
        return os.path.join(self.dir, name)

    @staticmethod
    def openssl(*words):
        done = subprocess.run(["openssl", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise Skipped(f"openssl {words[0]}: {done.stderr[-300:]}")

    def issue(self, name, common_name, expired=False, alt=None):
        """A certificate and its key in one file."""
        key, request, cert = (self.path(f"{name}.{end}") for end in ("key", "csr", "crt"))
        more = ["-addext", f"subjectAltName={alt}"] if alt else []
        self.openssl("req", "-new", "-subj", f"/CN={common_name}", "-keyout", key, "-out", request, *more, *self.NEW_KEY)
        end = "20200102000000Z" if expired else "20990101000000Z"
        self.openssl("ca", "-batch", "-config", self.path("config"), "-cert", self.ca, "-keyfile", self.path("ca.key"),
                     "-in", request, "-out", cert, "-notext", "-startdate", "20200101000000Z", "-enddate", end)
        both = self.path(f"{name}.pem")
        with open(both, "w", encoding="utf-8") as file:
            for part in (cert, key):
                with open(part, encoding="utf-8") as source:
                    file.write(source.read())
        return both


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def who(self):
        """As whom the request comes: by a certificate, else by a token."""
        peer = self.connection.getpeercert()
        if peer:
            return dict(pair[0] for pair in peer["subject"])["commonName"]
        return self.server.kubelet.tokens.get(self.headers.get("Authorization", "").removeprefix("Bearer "))

    def answer(self, status, text):
        data = text if isinstance(text, bytes) else text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        kubelet = self.server.kubelet
        who = self.who()
        if not who:
            return self.answer(401, "Unauthorized")
        if who not in kubelet.allowed:
            return self.answer(403, f"Forbidden (user={who}, verb=get, resource=nodes, subresource=pods)")
        if self.path != "/pods":
            return self.answer(404, "404 page not found")
        kubelet.asked += 1
        return self.answer(200, kubelet.pod_list)

    def do_POST(self):
        kubelet = self.server.kubelet
        kubelet.log.append((self.path, int(self.headers.get("Content-Length", -1))))
        who = self.who()
        if not who:
            return self.answer(401, "Unauthorized")
        if who not in kubelet.allowed:
            return self.answer(403, f"Forbidden (user={who}, verb=create, resource=nodes, subresource=checkpoint)")
        found = re.fullmatch(r"/checkpoint/([^/]+)/([^/]+)/([^/?]+)\?timeout=([1-9]\d*)", self.path)
        if not found or not kubelet.gate:
            return self.answer(404, "404 page not found")
        namespace, pod, container = found.groups()[:3]
        if (namespace, pod) not in kubelet.pods:
            return self.answer(404, "pod does not exist")
        if container not in kubelet.pods[namespace, pod]:
            return self.answer(404, f"container {container} does not exist")
        told = kubelet.pods[namespace, pod][container]
        if told is None:
            path = f"/var/lib/kubelet/checkpoints/checkpoint-{pod}_{namespace}-{container}-2026-01-02T03:04:05Z.tar"
            return self.answer(200, json.dumps({"items": [path]}))
        if told == "late":
            kubelet.over.wait()
        elif told == "cut":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b'{"items":')
        if isinstance(told, str):
            self.close_connection = True
            return None
        return self.answer(*told)


class Quiet(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        pass  # clients that hang up are what is tested


class Kubelet:
    """The stand-in on a port of its own, until closed."""

    def __init__(self, cert, client_ca, address=("127.0.0.1", 0)):
        self.tokens = {"good-token": "system:serviceaccount:brumate:node", "other-token": "system:serviceaccount:x:y"}
        self.allowed = {"system:serviceaccount:brumate:node", "checkpointer"}
        self.gate = True
        self.pods = {}  # (namespace, pod): {container: None, (status, text), "late", "cut" or "reset"}
        self.log = []  # (path with query, bytes of the body)
        self.pod_list = '{"kind": "PodList", "items": null}'
        self.asked = 0
        self.over = threading.Event()
        self.http = Quiet(address, Handler)
        self.http.kubelet = self
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert)
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_OPTIONAL
        # Each connection shakes hands in a thread of its own.
        self.http.socket = context.wrap_socket(self.http.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over.set()
        self.http.shutdown()
        self.http.server_close()

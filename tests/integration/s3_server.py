# SPDX-License-Identifier: MIT
"""A stand-in for an object store: in memory, strict where it matters. It computes every signature anew,
from what came over the wire; refuses bodies, checksums, parts and dates that are not right; and does
the harm it is told to do. It shares no code with what it tests."""

import base64
import calendar
import hashlib
import hmac
import http.server
import re
import ssl
import threading
import time
import urllib.parse as url
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

PART_BYTES_MIN = 5 << 20
SKEW_S = 15 * 60


@dataclass
class Fault:
    """What happens to requests that match, this many times. kind: "status" (answer @status, @code), "cut-in"
    (close in the middle of the body that comes), "cut-out" (of the body that goes), "flip" (a byte of it),
    "half-xml" (half of it, as if it were all), "reset" (no answer at all), "hold" (wait for @event)."""

    method: str
    pattern: str
    kind: str
    times: int = 1
    status: int = 500
    code: str = "InternalError"
    event: threading.Event = None
    reached: threading.Event = field(default_factory=threading.Event)


class Refused(Exception):
    def __init__(self, status, code, text=""):
        super().__init__(code)
        self.status, self.code, self.text = status, code, text


@dataclass
class Object:
    data: bytes
    meta: dict
    etag: str


class Store:
    """What the server holds and how it is to behave. All under one lock."""

    def __init__(self):
        self.lock = threading.Lock()
        self.keys = {"AKIDTEST": "se/cret+KEY0123456789"}
        self.tokens = {}  # session token: is it valid
        self.needs_token = False
        self.region = "eu-test-1"
        self.page = 3  # entries of a listing
        self.clock_ahead_s = 0
        self.denied = set()  # methods that are not allowed
        self.buckets = {"bkt": {}}
        self.uploads = {}  # id: (bucket, key, meta, {number: (data, checksum)})
        self.n_uploads = 0
        self.faults = []
        self.log = []  # (method, path, query, status, bytes in)
        self.metadata = None  # credentials that the metadata service gives
        self.keeps_checksums = True

    def take_fault(self, method, target, kinds):
        with self.lock:
            for fault in self.faults:
                if (fault.kind in kinds and fault.times and fault.method in (method, "*") and
                        re.search(fault.pattern, target)):
                    fault.times -= 1
                    fault.reached.set()
                    return fault
        return None


def quote(text, safe="-_.~"):
    return url.quote(text, safe=safe)


def pairs(query):
    """[(name, value)] of a raw query, decoded."""
    return [tuple(url.unquote(part) for part in (item + "=").split("=")[:2]) for item in query.split("&") if item]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "stand-in"

    def log_message(self, *_):
        pass

    def date_time_string(self, timestamp=None):
        return super().date_time_string((timestamp or time.time()) + self.server.store.clock_ahead_s)

    # Signatures.
    def check_signature(self, raw_path, query, body):
        store = self.server.store
        found = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request, "
                             r"SignedHeaders=([a-z0-9;-]+), Signature=([0-9a-f]{64})",
                             self.headers.get("Authorization", ""))
        if not found:
            raise Refused(403, "AccessDenied", "no signature")
        key, day, region, names, signature = found.groups()
        date = self.headers.get("x-amz-date", "")
        payload = self.headers.get("x-amz-content-sha256", "")
        signed = names.split(";")
        must = ["host"] + sorted(name.lower() for name in self.headers if name.lower().startswith("x-amz-"))
        if signed != sorted(signed) or not set(must) <= set(signed):
            raise Refused(403, "AccessDenied", f"not all is signed: {must}, {signed}")
        if not re.fullmatch(r"\d{8}T\d{6}Z", date) or date[:8] != day:
            raise Refused(403, "AccessDenied", "date")
        when = calendar.timegm(time.strptime(date, "%Y%m%dT%H%M%SZ"))
        if abs(when - time.time() - store.clock_ahead_s) > SKEW_S:
            raise Refused(403, "RequestTimeTooSkewed", "The difference between the request time is too large")
        if key not in store.keys:
            raise Refused(403, "InvalidAccessKeyId")
        if region != store.region:
            raise Refused(400, "AuthorizationHeaderMalformed", f"the region is {store.region}")
        canonical = "\n".join([
            self.command, quote(url.unquote(raw_path), "/-_.~"),
            "&".join(sorted(f"{quote(name)}={quote(value)}" for name, value in pairs(query))),
            *[f"{name}:{' '.join(self.headers.get(name, '').split())}" for name in signed], "", names, payload])
        scope = f"{day}/{region}/s3/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        mac = ("AWS4" + store.keys[key]).encode()
        for word in (day, region, "s3", "aws4_request", text):
            mac = hmac.new(mac, word.encode(), hashlib.sha256).digest()
        if mac.hex() != signature:
            raise Refused(403, "SignatureDoesNotMatch")
        if payload != hashlib.sha256(body).hexdigest():
            raise Refused(400, "XAmzContentSHA256Mismatch")
        token = self.headers.get("x-amz-security-token")
        if (token or store.needs_token) and not store.tokens.get(token):
            raise Refused(400, "ExpiredToken" if token in store.tokens else "InvalidToken")
        if self.command in store.denied:
            raise Refused(403, "AccessDenied")

    # The way in and out.
    def handle_request(self):
        store = self.server.store
        raw_path, _, query = self.path.partition("?")
        length = int(self.headers.get("Content-Length") or 0)
        if store.take_fault(self.command, self.path, ("reset",)):
            self.close_connection = True
            return
        if store.take_fault(self.command, self.path, ("cut-in",)):
            self.rfile.read(length // 2)
            self.close_connection = True
            return
        body = self.rfile.read(length)
        hold = store.take_fault(self.command, self.path, ("hold",))
        if hold:
            hold.event.wait(60)
        try:
            fault = store.take_fault(self.command, self.path, ("status",))
            if fault:
                raise Refused(fault.status, fault.code)
            if raw_path.startswith("/latest/") or raw_path.startswith("/container/"):
                status, headers, data = self.metadata(raw_path)
            else:
                self.check_signature(raw_path, query, body)
                status, headers, data = self.serve(raw_path, dict(pairs(query)), body)
        except Refused as refused:
            status, headers = refused.status, {}
            data = (f"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{refused.code}</Code>"
                    f"<Message>{escape(refused.text)}</Message></Error>").encode()
        with store.lock:
            store.log.append((self.command, url.unquote(raw_path), query, status, length))
        self.answer(status, headers, data)

    def answer(self, status, headers, data):
        store = self.server.store
        cut = store.take_fault(self.command, self.path, ("cut-out",))
        if data and store.take_fault(self.command, self.path, ("flip",)):
            data = data[:len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1:]
        if data and store.take_fault(self.command, self.path, ("half-xml",)):
            data = data[:len(data) // 2]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if cut:
            self.wfile.write(data[:len(data) // 2])
            self.close_connection = True
            return
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_request

    # What can be asked.
    def place(self, raw_path):
        host = self.headers.get("Host", "").split(":")[0]
        path = url.unquote(raw_path)
        if host.endswith(".localhost"):
            bucket, key = host[:-len(".localhost")], path[1:]
        else:
            bucket, _, key = path[1:].partition("/")
        if bucket not in self.server.store.buckets:
            raise Refused(404, "NoSuchBucket")
        return bucket, key

    def serve(self, raw_path, query, body):
        bucket, key = self.place(raw_path)
        with self.server.store.lock:
            if not key:
                return self.list_uploads(bucket, query) if "uploads" in query else self.list(bucket, query)
            if "uploads" in query:
                return self.create_upload(bucket, key)
            if "uploadId" in query:
                return self.upload(bucket, key, query, body)
            return getattr(self, "object_" + self.command.lower())(bucket, key, body)

    def check_checksum(self, body):
        want = self.headers.get("x-amz-checksum-sha256")
        if want and base64.b64decode(want) != hashlib.sha256(body).digest():
            raise Refused(400, "BadDigest")
        return want

    def own_metadata(self):
        return {name.lower(): value for name, value in self.headers.items() if name.lower().startswith("x-amz-meta-")}

    def object_put(self, bucket, key, body):
        self.check_checksum(body)
        etag = '"' + hashlib.md5(body).hexdigest() + '"'
        self.server.store.buckets[bucket][key] = Object(body, self.own_metadata(), etag)
        return 200, {"ETag": etag}, b""

    def find(self, bucket, key):
        found = self.server.store.buckets[bucket].get(key)
        if not found:
            raise Refused(404, "NoSuchKey")
        return found

    def object_head(self, bucket, key, _):
        found = self.find(bucket, key)
        return 200, {"ETag": found.etag, "Content-Length": str(len(found.data)), **found.meta}, b""

    def object_get(self, bucket, key, _):
        found = self.find(bucket, key)
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not span:
            return 200, {"ETag": found.etag, **found.meta}, found.data
        first, last = int(span.group(1)), int(span.group(2))
        if first >= len(found.data):
            raise Refused(416, "InvalidRange")
        data = found.data[first:last + 1]
        return 206, {"ETag": found.etag, "Content-Range": f"bytes {first}-{first + len(data) - 1}/{len(found.data)}"}, data

    def object_delete(self, bucket, key, _):
        self.server.store.buckets[bucket].pop(key, None)
        return 204, {}, b""

    def list(self, bucket, query):
        if query.get("list-type") != "2":
            raise Refused(400, "InvalidArgument")
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        entries = {}
        for key, found in sorted(self.server.store.buckets[bucket].items()):
            if not key.startswith(prefix):
                continue
            head, mark, _ = key[len(prefix):].partition(delimiter) if delimiter else ("", "", "")
            if mark:
                entries[prefix + head + mark] = f"<CommonPrefixes><Prefix>{escape(prefix + head + mark)}</Prefix></CommonPrefixes>"
            else:
                entries[key] = (f"<Contents><Key>{escape(key)}</Key><Size>{len(found.data)}</Size>"
                                f"<ETag>{escape(found.etag)}</ETag></Contents>")
        after = base64.b64decode(query.get("continuation-token", "")).decode()
        names = sorted(name for name in entries if name > after)
        page, rest = names[:self.server.store.page], names[self.server.store.page:]
        more = ""
        if rest:
            token = base64.b64encode(page[-1].encode()).decode()
            more = f"<NextContinuationToken>{token}</NextContinuationToken>"
        text = (f'<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
                f"<Name>{bucket}</Name><IsTruncated>{'true' if rest else 'false'}</IsTruncated>{more}"
                + "".join(entries[name] for name in page) + "</ListBucketResult>")
        return 200, {"Content-Type": "application/xml"}, text.encode()

    # Uploads in parts.
    def create_upload(self, bucket, key):
        store = self.server.store
        if self.command != "POST":
            raise Refused(405, "MethodNotAllowed")
        store.n_uploads += 1
        upload = f"up+{store.n_uploads}/=&"  # such as must be quoted
        store.uploads[upload] = (bucket, key, self.own_metadata(), {})
        return 200, {}, (f"<InitiateMultipartUploadResult><Bucket>{bucket}</Bucket><Key>{escape(key)}</Key>"
                         f"<UploadId>{escape(upload)}</UploadId></InitiateMultipartUploadResult>").encode()

    def list_uploads(self, bucket, query):
        rows = "".join(f"<Upload><Key>{escape(key)}</Key><UploadId>{escape(upload)}</UploadId></Upload>"
                       for upload, (of, key, _, _) in self.server.store.uploads.items()
                       if of == bucket and key.startswith(query.get("prefix", "")))
        return 200, {}, f"<ListMultipartUploadsResult>{rows}</ListMultipartUploadsResult>".encode()

    def upload(self, bucket, key, query, body):
        store = self.server.store
        upload = query["uploadId"]
        if store.uploads.get(upload, (None, None))[:2] != (bucket, key):
            raise Refused(404, "NoSuchUpload")
        parts = store.uploads[upload][3]
        if self.command == "PUT":
            checksum = self.check_checksum(body)
            if not checksum:
                raise Refused(400, "InvalidRequest", "a part without its checksum")
            parts[int(query["partNumber"])] = (body, checksum)
            return 200, {"ETag": '"' + hashlib.md5(body).hexdigest() + '"'}, b""
        if self.command == "GET":
            return self.list_parts(parts, int(query.get("part-number-marker", "0")))
        if self.command == "DELETE":
            del store.uploads[upload]
            return 204, {}, b""
        return self.complete(upload, body.decode())

    def list_parts(self, parts, after):
        store = self.server.store
        numbers = sorted(n for n in parts if n > after)
        rows = "".join(
            f"<Part><PartNumber>{n}</PartNumber><ETag>&quot;{hashlib.md5(parts[n][0]).hexdigest()}&quot;</ETag>"
            f"<Size>{len(parts[n][0])}</Size>"
            + (f"<ChecksumSHA256>{parts[n][1]}</ChecksumSHA256>" if store.keeps_checksums else "") + "</Part>"
            for n in numbers[:store.page])
        cut = "true" if len(numbers) > store.page else "false"
        return 200, {}, f"<ListPartsResult><IsTruncated>{cut}</IsTruncated>{rows}</ListPartsResult>".encode()

    def complete(self, upload, text):
        store = self.server.store
        bucket, key, meta, parts = store.uploads[upload]
        listed = re.findall(r"<Part><ChecksumSHA256>([^<]*)</ChecksumSHA256><ETag>([^<]*)</ETag>"
                            r"<PartNumber>(\d+)</PartNumber></Part>", text)
        data = b""
        for i, (checksum, etag, number) in enumerate(listed):
            body, want = parts.get(int(number), (b"", ""))
            if int(number) != i + 1 or checksum != want or etag != '"' + hashlib.md5(body).hexdigest() + '"':
                raise Refused(400, "InvalidPart")
            if i + 1 < len(listed) and len(body) < PART_BYTES_MIN:
                raise Refused(400, "EntityTooSmall")
            data += body
        store.buckets[bucket][key] = Object(data, meta, f'"{len(listed)}-parts"')
        del store.uploads[upload]
        return 200, {}, b"<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>"

    # The service that gives credentials to machines and containers.
    def metadata(self, path):
        given = self.server.store.metadata
        if not given:
            raise Refused(404, "NotFound")
        if path == "/latest/api/token" and self.command == "PUT":
            return 200, {}, b"metadata-token"
        if path.startswith("/latest/") and self.headers.get("x-aws-ec2-metadata-token") != "metadata-token":
            raise Refused(401, "Unauthorized")
        if path.startswith("/container/") and self.headers.get("authorization") != "container-token":
            raise Refused(401, "Unauthorized")
        if path.endswith("/security-credentials/"):
            return 200, {}, b"role\n"
        return 200, {}, given.encode()


class Quiet(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_):
        pass  # clients that hang up are what is tested


class Server:
    """The stand-in on a port of its own, until closed; by TLS where it has a certificate."""

    def __init__(self, cert=None):
        self.store = Store()
        self.http = Quiet(("127.0.0.1", 0), Handler)
        if cert:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(cert)
            # Each connection shakes hands in a thread of its own.
            self.http.socket = context.wrap_socket(self.http.socket, server_side=True, do_handshake_on_connect=False)
        self.http.store = self.store
        self.port = self.http.server_address[1]
        self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()

    def fault(self, method, pattern, kind, **more):
        fault = Fault(method, pattern, kind, **more)
        with self.store.lock:
            self.store.faults.append(fault)
        return fault

    def taken(self):
        """The requests so far; counting begins anew."""
        with self.store.lock:
            log, self.store.log = self.store.log, []
        return log

    def objects(self, bucket="bkt"):
        with self.store.lock:
            return {key: found.data for key, found in self.store.buckets[bucket].items()}

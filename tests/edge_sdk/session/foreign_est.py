"""An EST server of its own: openssl signs and packs, and nothing of gridfed is used."""

from __future__ import annotations

import base64
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def openssl(*words, data=None):
    return subprocess.run(
        ["openssl", *map(str, words)], input=data, capture_output=True, check=True
    ).stdout


class ForeignEst:
    """Signs what it is asked, for one user and password; ``answers`` lists status and reason."""

    def __init__(self, folder: Path, user: str, password: str, *, days: int = 30):
        self.folder, self.days = folder, days
        self.wanted = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        self.requests: list[str] = []
        self.drop_answers = 0
        self.ca, self.ca_key = folder / "ca.pem", folder / "ca.key"
        how = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        openssl("req", "-x509", *how, "-keyout", self.ca_key, "-out", self.ca, "-days", 30,
                "-subj", "/CN=foreign")  # fmt: skip
        openssl("req", *how, "-keyout", folder / "s.key", "-out", folder / "s.csr",
                "-subj", "/CN=localhost")  # fmt: skip
        (folder / "s.ext").write_text("subjectAltName=DNS:localhost\n")
        openssl("x509", "-req", "-in", folder / "s.csr", "-CA", self.ca, "-CAkey", self.ca_key,
                "-set_serial", 2, "-days", 30, "-extfile", folder / "s.ext",
                "-out", folder / "s.pem")  # fmt: skip

    def __enter__(self):
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.requests.append(self.path)
                if self.path == "/.well-known/est/site/cacerts":
                    return outer.send(self, outer.packed(outer.ca))
                return self.send_error(404)

            def do_POST(self):
                outer.requests.append(self.path)
                shown = self.connection.getpeercert()
                is_known = bool(shown) and self.path.endswith("simplereenroll")
                if self.headers.get("Authorization") != outer.wanted and not is_known:
                    return self.send_error(401)
                body = self.rfile.read(int(self.headers["Content-Length"]))
                made = outer.signed(base64.b64decode(body))
                if outer.drop_answers:
                    outer.drop_answers -= 1
                    self.connection.close()  # the certificate exists; its answer is lost
                    return None
                return outer.send(self, made)

            def log_message(self, *_):
                pass

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "s.pem", self.folder / "s.key")
        context.load_verify_locations(self.ca)
        context.verify_mode = ssl.CERT_OPTIONAL
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()
        self.url = f"https://localhost:{self.server.server_address[1]}/site"
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def send(self, handler, der: bytes):
        content = base64.encodebytes(der)  # with line ends, unlike gridfed's
        handler.send_response(200)
        handler.send_header("Content-Type", "application/pkcs7-mime")
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    def packed(self, file: Path) -> bytes:
        return openssl("crl2pkcs7", "-nocrl", "-certfile", file, "-outform", "DER")

    def signed(self, der: bytes) -> bytes:
        request, made = self.folder / "d.csr", self.folder / "d.pem"
        request.write_bytes(openssl("req", "-inform", "DER", data=der))
        openssl("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self.ca_key,
                "-set_serial", 10 + len(self.requests), "-days", self.days, "-out", made)  # fmt: skip
        return self.packed(made)

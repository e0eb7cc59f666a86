"""An issuer of OpenID Connect over real HTTP, which can be told to misbehave."""

import base64
import hashlib
import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

CLIENT, SECRET = "console", "s3cret-of-the-console"


def unsigned(part):
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


class Issuer:
    """The issuer at ``url``; ``person`` signs in without a page.

    Attributes:
        person: Claims of the person who signs in.
        changes: Claims of the token that differ from what they must be; None leaves one out.
        end: Path of the sign-out; empty for an issuer without one.
        ended: Queries of the sign-outs.
        sign: How the token is signed: ``key``, ``other``, ``none`` or ``secret`` (HS256 by the client's secret).
    """

    def __init__(self):
        self.key = RSAKey.generate_key(2048, {"kid": "one"})
        self.person = {"sub": "1", "preferred_username": "olga", "groups": ["grid-operators"]}
        self.changes, self.sign, self.codes, self.tokens = {}, "key", {}, 0
        self.end, self.ended = "/end?theme=plain", []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def metadata(self):
        paths = {"authorization": "authorize", "token": "token"}
        found = {f"{name}_endpoint": f"{self.url}/{path}" for name, path in paths.items()}
        if self.end:
            found["end_session_endpoint"] = self.url + self.end
        return {"issuer": self.url, "jwks_uri": f"{self.url}/jwks", **found}

    def authorize(self, query):
        """Return the address to which the browser is sent back."""
        assert (query["response_type"], query["client_id"]) == ("code", CLIENT)
        assert query["code_challenge_method"] == "S256"
        assert "openid" in query["scope"].split()
        code = secrets.token_urlsafe(16)
        self.codes[code] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def token(self, form, authorization):
        """Return the status and the answer to a request for a token; a code is good once."""
        basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if authorization != f"Basic {basic}":
            return 401, {"error": "invalid_client"}
        asked = self.codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if asked is None or asked["code_challenge"] != challenge:
            return 400, {"error": "invalid_grant"}
        assert form["redirect_uri"] == asked["redirect_uri"]
        self.tokens += 1
        now = int(time.time())
        claims = {"iss": self.url, "aud": CLIENT, "iat": now, "exp": now + 300}
        claims |= {"nonce": asked["nonce"], **self.person, **self.changes}
        claims = {name: value for name, value in claims.items() if value is not None}
        token = {"access_token": "opaque-access-token", "token_type": "Bearer"}
        return 200, token | {"id_token": self._signed(claims)}

    def _signed(self, claims):
        if self.sign == "none":
            return f"{unsigned({'alg': 'none', 'kid': 'one'})}.{unsigned(claims)}."
        if self.sign == "secret":
            head = {"alg": "HS256", "kid": "one"}
            return jwt.encode(head, claims, OctKey.import_key(SECRET), algorithms=["HS256"])
        key = self.key if self.sign == "key" else RSAKey.generate_key(2048, {"kid": "one"})
        return jwt.encode({"alg": "RS256", "kid": key.kid}, claims, key)

    def _handler(issuer):  # noqa: N805 - the handler's own self is inside
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                at = urlsplit(self.path)
                if at.path == "/authorize":
                    query = {name: one[0] for name, one in parse_qs(at.query).items()}
                    self.send_response(302)
                    self.send_header("Location", issuer.authorize(query))
                    self.end_headers()
                elif at.path == "/end":
                    query = {name: one[0] for name, one in parse_qs(at.query).items()}
                    issuer.ended.append(query)
                    self.send_response(302)
                    self.send_header("Location", query["post_logout_redirect_uri"])
                    self.end_headers()
                elif at.path == "/jwks":
                    self._json(200, {"keys": [issuer.key.as_dict(private=False)]})
                else:
                    self._json(200, issuer.metadata())

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = {name: one[0] for name, one in parse_qs(body).items()}
                self._json(*issuer.token(form, self.headers.get("Authorization", "")))

            def _json(self, status, value):
                body = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        return Handler

"""A browser of sixty lines for an ASGI application: requests, cookies, no redirects."""

import asyncio
import re
from dataclasses import dataclass, field
from urllib.parse import urlencode, urlsplit

HOST = "127.0.0.1:9470"


@dataclass
class Answer:
    """Status, headers (lower case) and body of a response."""

    status_code: int
    headers: dict
    content: bytes

    @property
    def text(self):
        return self.content.decode("utf-8")


@dataclass
class Browser:
    """Sends requests to an application, each in an event loop of its own.

    Attributes:
        app: The ASGI application.
        console: The console behind it.
        cookies: Cookies by name.
        address: Address that requests come from.
    """

    app: object
    console: object
    cookies: dict = field(default_factory=dict)
    address: str = "127.0.0.1"

    def get(self, address, headers=None):
        return self._send("GET", address, headers or {}, b"")

    def post(self, address, data, headers=None):
        form = {"content-type": "application/x-www-form-urlencoded"}
        return self._send("POST", address, form | (headers or {}), urlencode(data).encode())

    def _send(self, method, address, headers, body):
        at = urlsplit(address)
        sent = {"host": HOST, **headers}
        if self.cookies:
            sent["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": at.path,
            "raw_path": at.path.encode(),
            "query_string": at.query.encode(),
            "root_path": "",
            "headers": [(k.encode(), v.encode("utf-8")) for k, v in sent.items()],
            "client": (self.address, 50_000),
            "server": ("127.0.0.1", 9470),
        }
        parts = asyncio.run(_answered(self.app, scope, body))
        begun = next(one for one in parts if one["type"] == "http.response.start")
        found = [(k.decode().lower(), v.decode()) for k, v in begun["headers"]]
        for name, value in found:
            if name == "set-cookie":
                key, _, rest = value.partition("=")
                self.cookies[key] = rest.partition(";")[0].strip('"')
        content = b"".join(one.get("body", b"") for one in parts)
        return Answer(begun["status"], dict(found), content)


async def _answered(app, scope, body):
    """Run the application on one request; return everything that it sends."""
    parts, asked = [], [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        return asked.pop(0) if asked else {"type": "http.disconnect"}

    async def send(message):
        parts.append(message)

    await app(scope, receive, send)
    return parts


def token_in(text):
    """Return the form token of a page."""
    return re.search(r'name="token" value="([0-9a-f]+)"', text)[1]

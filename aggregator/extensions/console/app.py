"""Serve the console's pages: routes, security headers, forms and the stream of changes."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from aggregator.config import AggregatorConfig
from aggregator.extensions.console.access import (
    COOKIE,
    Access,
    RefusedRequestError,
    Viewer,
    address_of,
    log_refusal,
    network_of,
    read_form,
)
from aggregator.extensions.console.audit_page import audit_page
from aggregator.extensions.console.live_status import LiveStatus
from aggregator.extensions.console.order_log import give_order, order_of
from aggregator.extensions.console.pages import ConsolePages, NotFoundError, Values
from aggregator.extensions.console.rendering import PAGES, render
from aggregator.extensions.console.users import Role
from aggregator.store.errors import DatabaseError
from edge_sdk.app.cli import installed_version
from edge_sdk.errors import Failure
from edge_sdk.protocol.statements import COMMANDS

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
VIEWERS = 64  # streams of changes at a time
POLL = 2.0  # s between two looks for changes
LONGEST = 600.0  # s of one stream; the browser opens another one
SECURITY_ACTS = frozenset(("revoke", "unlearn", *(op for op, root in COMMANDS.items() if root)))

Endpoint = Callable[[Request], Awaitable[Response]]
Page = Callable[[Mapping[str, str]], Values]


@dataclass(slots=True)
class ConsoleApp:
    """The console of one fleet."""

    config: AggregatorConfig
    access: Access
    pages: ConsolePages
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep  # waits some seconds
    _waiting: set[str] = field(default_factory=set)
    _viewers: int = 0
    _print: str = ""
    _printed: float = float("-inf")
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    def of(cls, config: AggregatorConfig) -> ConsoleApp:
        """Return the console of a configuration."""
        access = Access(config, users_file(config))
        pages = ConsolePages(config, LiveStatus(config))
        return cls(config, access, pages)

    def starlette(self) -> Starlette:
        shown: dict[str, tuple[str, str, Page]] = {
            "/": ("fleet", "Fleet", self.pages.fleet),
            "/runs": ("runs", "Runs and rounds", self.pages.runs),
            "/run": ("run", "Run", self.pages.run),
            "/round": ("round", "Round", self.pages.round),
            "/devices": ("devices", "Devices", self.pages.devices),
            "/device": ("device", "Device", self.pages.device),
            "/budgets": ("budgets", "Privacy budgets", self.pages.budgets),
            "/refusals": ("refusals", "Refusals", self.pages.refusals),
            "/suspects": ("suspects", "Suspects", self.pages.suspects),
            "/keys": ("keys", "Keys and expiry", self.pages.keys),
            "/orders": ("orders", "Orders", self.pages.orders),
            "/audit-log": ("audit_log", "Audit log", lambda query: audit_page(self.config, query)),
        }
        shown |= {f"/{x}": (x, x.capitalize(), page) for x, page in self.pages.brought().items()}
        routes: list[Route | Mount] = [
            Route(path, self._guarded(self._shown(*page)), methods=["GET"])
            for path, page in shown.items()
        ]
        posts: dict[str, Endpoint] = {
            "/sign-in": self._sign_in,
            "/sign-out": self._sign_out,
            "/order": self._order,
        }
        routes += [
            Route(path, self._guarded(post), methods=["POST"]) for path, post in posts.items()
        ]
        routes += [
            Route("/sign-in", self._guarded(self._sign_in_page), methods=["GET"]),
            Route("/events", self._guarded(self._events), methods=["GET"]),
            Mount("/static", StaticFiles(packages=[("aggregator.extensions.console", "static")])),
        ]
        routes.append(Route("/{path:path}", self._guarded(self._missing)))
        return Starlette(routes=routes)

    # --- every request

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        async def answer(request: Request) -> Response:
            try:
                self.access.require_host(request)
                if request.method == "POST":
                    self.access.require_origin(request)
                response = await endpoint(request)
            except RefusedRequestError as error:
                response = self._message(request, error.status, str(error))
                log_refusal(request, error)
            except NotFoundError as error:
                response = self._message(request, 404, str(error))
            except (Failure, DatabaseError) as error:
                hint = getattr(error, "hint", "")
                response = self._message(request, 409, f"{error}{f' ({hint})' if hint else ''}")
            response.headers["Content-Security-Policy"] = POLICY
            response.headers["X-Content-Type-Options"] = "nosniff"
            response.headers["Referrer-Policy"] = "same-origin"
            response.headers.setdefault("Cache-Control", "no-store")
            return response

        return answer

    async def _missing(self, request: Request) -> Response:
        raise NotFoundError(f"There is no page {request.url.path}.")

    def _shown(self, template: str, title: str, page: Page) -> Endpoint:
        async def answer(request: Request) -> Response:
            viewer = self.access.viewer(request)
            if viewer is None:
                return RedirectResponse("/sign-in", 303)
            mark = (
                await self._fingerprint()
            )  # before the values: a change between them is not missed
            values = await run_in_threadpool(page, dict(request.query_params))
            return self._page(request, viewer, template, {"title": title, "mark": mark, **values})

        return answer

    def _page(
        self,
        request: Request,
        viewer: Viewer | None,
        template: str,
        values: Values,
        status: int = 200,
    ) -> Response:
        common = {
            "fleet": self.config.fleet,
            "viewer": viewer,
            "token": self.access.token(viewer) if viewer is not None else "",
            "path": request.url.path,
            "pages": self._navigation,
            "may_act": viewer is not None and viewer.role >= Role.OPERATOR,
            "may_revoke": viewer is not None and viewer.role >= Role.SECURITY,
            "software": installed_version(),
            "mark": "",
        }
        response = HTMLResponse(render(self.pages.packages, template, {**common, **values}), status)
        if viewer is not None and viewer.is_local and COOKIE not in request.cookies:
            self._set_cookie(response, viewer.session)
        return response

    @property
    def _navigation(self) -> list[tuple[str, str]]:
        return [*PAGES, *((f"/{name}", name.capitalize()) for name in self.pages.brought())]

    def _message(self, request: Request, status: int, text: str) -> Response:
        values = {"title": "Not done" if request.method == "POST" else "Not found", "text": text}
        try:
            viewer = self.access.viewer(request)
        except Failure:  # the file of users is damaged
            viewer = None
        return self._page(request, viewer, "message", values, status)

    def _set_cookie(self, response: Response, key: str) -> None:
        response.set_cookie(
            COOKIE, key, httponly=True, samesite="strict", secure=self.access.is_https, path="/"
        )

    # --- sessions

    async def _sign_in_page(self, request: Request) -> Response:
        return self._sign_in_form(request, "", 200)

    def _sign_in_form(self, request: Request, failure: str, status: int) -> Response:
        values = {"title": "Sign in", "failure": failure}
        return self._page(request, None, "sign_in", values, status)

    async def _sign_in(self, request: Request) -> Response:
        form = await read_form(request)
        address = address_of(request)
        name, password = form.get("name", ""), form.get("password", "")
        try:
            self.access.require_unlocked(name, address)
            if delay := self.access.delay:
                await self._wait(network_of(address), delay)
            key = await run_in_threadpool(self.access.sign_in, name, password, address)
        except RefusedRequestError as error:
            log_refusal(request, error)
            return self._sign_in_form(request, str(error), error.status)
        response = RedirectResponse("/", 303)
        self._set_cookie(response, key)
        return response

    async def _wait(self, network: str, delay: float) -> None:
        if network in self._waiting:
            raise RefusedRequestError(429, "Another attempt of this address waits: try it again.")
        self._waiting.add(network)
        try:
            await self.sleep(delay)
        finally:
            self._waiting.discard(network)

    async def _sign_out(self, request: Request) -> Response:
        viewer, form = await self._actor(request, Role.VIEWER)
        del form
        self.access.sessions.end(viewer.session)
        response = RedirectResponse("/sign-in", 303)
        response.delete_cookie(COOKIE, path="/")
        return response

    async def _actor(self, request: Request, least: Role) -> tuple[Viewer, dict[str, str]]:
        viewer, form = self.access.viewer(request), await read_form(request)
        if viewer is None:
            raise RefusedRequestError(401, "Sign in first.")
        wanted = {form.get("do", ""), form.get("op", "")}
        self.access.require_act(viewer, form, Role.SECURITY if wanted & SECURITY_ACTS else least)
        return viewer, form

    # --- acts

    async def _order(self, request: Request) -> Response:
        viewer, form = await self._actor(request, Role.OPERATOR)
        order = order_of(form, viewer.name, self.pages.acts)
        log, now = order_file(self.config), int(time.time() * 1000)
        await run_in_threadpool(give_order, self.config, order, log, now)
        return RedirectResponse("/orders", 303)

    # --- changes

    async def _events(self, request: Request) -> Response:
        if self.access.viewer(request) is None:
            raise RefusedRequestError(401, "Sign in first.")
        if self._viewers >= VIEWERS:
            return Response("too many viewers\n", 503, {"Retry-After": "30"})
        return StreamingResponse(
            self._changes(request),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store"},
        )

    async def _changes(self, request: Request) -> AsyncIterator[str]:
        """Yield an event after every change, until the viewer leaves or the stream is old."""
        self._viewers += 1
        try:
            ends = time.monotonic() + LONGEST
            before = request.query_params.get("since") or await self._fingerprint()
            yield "retry: 5000\n\n"
            while time.monotonic() < ends and not await request.is_disconnected():
                now = await self._fingerprint()
                yield "event: changed\ndata: 1\n\n" if now != before else ": \n\n"
                before = now
                await asyncio.sleep(POLL)
        finally:
            self._viewers -= 1

    async def _fingerprint(self) -> str:
        async with self._lock:
            if time.monotonic() - self._printed >= POLL / 2:
                try:
                    text = await run_in_threadpool(self.pages.fingerprint)
                    self._print = hashlib.sha256(text.encode()).hexdigest()[:16]
                except DatabaseError:
                    self._print = ""
                self._printed = time.monotonic()
            return self._print


def users_file(config: AggregatorConfig) -> Path:
    return config.state / "console" / "users.json"


def order_file(config: AggregatorConfig) -> Path:
    return config.state / "console" / "orders.jsonl"

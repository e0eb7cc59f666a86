"""Serve the two addresses of a sign-in by OpenID Connect: to the issuer, and back from it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from aggregator.config import AggregatorConfig
from aggregator.extensions.console.access import (
    Access,
    RefusedRequestError,
    address_of,
    log_refusal,
)
from aggregator.extensions.console.oidc import (
    RETURN,
    WAITS,
    IssuerError,
    OidcClient,
    OidcRefusedError,
    client_of,
)
from aggregator.extensions.console.users import Role, SignedIn
from edge_sdk.app.cli import fields

__all__ = ["BEGIN", "RETURN", "OidcPages"]

logger = logging.getLogger(__name__)

BEGIN = "/sign-in/oidc"
COOKIE = "gridfed_console_oidc"


@dataclass(frozen=True, slots=True)
class OidcPages:
    """Sign-in at an issuer."""

    client: OidcClient  # the console as a client of the issuer
    access: Access
    # makes the sign-in page with a failure and a status
    form: Callable[[Request, str, int], Response]
    # begins a session, and makes the page that says so
    signed_in: Callable[[Request, str, Role, str], Response]

    @classmethod
    def of(
        cls,
        config: AggregatorConfig,
        access: Access,
        form: Callable[[Request, str, int], Response],
        signed_in: Callable[[Request, str, Role, str], Response],
    ) -> OidcPages:
        """Return the sign-in of a configuration with ``console.oidc``."""
        return cls(client_of(config), access, form, signed_in)

    async def begin(self, request: Request) -> Response:
        """Send the browser to the issuer."""
        self.access.require_free(address_of(request))
        try:
            key, address = await run_in_threadpool(self.client.begin)
        except IssuerError as error:
            return self._failed(request, error)
        response = RedirectResponse(address, 303)
        response.set_cookie(
            COOKIE,
            key,
            httponly=True,
            samesite="lax",  # the issuer sends the browser back from another site
            secure=self.access.is_https,
            path="/sign-in",
            max_age=int(WAITS),
        )
        return response

    async def finish(self, request: Request) -> Response:
        """Begin a session of the person whom the issuer has identified."""
        key, address = request.cookies.get(COOKIE, ""), address_of(request)
        self.access.require_free(address)
        try:
            person = await run_in_threadpool(self.client.finish, key, dict(request.query_params))
        except IssuerError as error:
            return self._failed(request, error)
        except OidcRefusedError as error:
            self.access.record_failure(address)
            log_refusal(request, RefusedRequestError(403, str(error)))
            return self.form(request, f"The sign-in was refused. {error}.", 403)
        logger.info("console signed in %s", fields(name=person.name, address=address))
        response = self.signed_in(request, person.name, person.role, person.id_token)
        response.delete_cookie(COOKIE, path="/sign-in")
        return response

    async def sign_out_address(self, session: SignedIn) -> str:
        """Return the issuer's address that ends its session too; empty if there is none, or it fails."""
        if session.role is None:
            return ""
        try:
            return await run_in_threadpool(self.client.sign_out_address, session.id_token)
        except IssuerError as error:
            logger.warning("console issuer failed %s", fields(why=str(error)))
            return ""

    def _failed(self, request: Request, error: IssuerError) -> Response:
        logger.warning("console issuer failed %s", fields(why=str(error)))
        failure = f"The issuer cannot be used now: {error}. Local users can sign in."
        return self.form(request, failure, 502)

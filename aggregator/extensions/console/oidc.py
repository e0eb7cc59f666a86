"""Sign in by OpenID Connect: authorization code with PKCE, and a role from a claim of the ID token.

Protocol: OpenID Connect Core 1.0, RFC 7636 (PKCE, S256) and RFC 9207 (``iss`` in the answer). Authlib sends the
requests, joserfc verifies the token. The session keeps the name, the role and the ID token, which
OpenID Connect RP-Initiated Logout 1.0 sends back to the issuer as ``id_token_hint``.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import requests
from authlib.common.urls import add_params_to_uri
from authlib.integrations.base_client import OAuthError
from authlib.integrations.requests_client import OAuth2Session
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from aggregator.config import AggregatorConfig
from aggregator.extensions.console.access import BindError, is_secure
from aggregator.extensions.console.settings import OidcSection
from aggregator.extensions.console.users import Role

# path to which the issuer sends the browser back; part of ``redirect_uri``
RETURN = "/sign-in/return"
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
SIGNED_OUT = "/sign-in"  # path to which the issuer sends the browser back after a sign-out
PENDING = 1024  # sign-ins that have begun; above it the oldest is forgotten
WAITS = 600.0  # s that a sign-in may take at the issuer
FRESH = 600.0  # s for which the issuer's metadata and keys are used again
AGAIN = 10.0  # s between two looks for new keys
LONGEST_HINT = 6000  # characters of an ID token that fit into an address
PATIENCE = 10.0  # s for an answer of the issuer
LEEWAY = 60  # s by which the clocks may differ


class IssuerError(Exception):
    """The issuer does not answer, or its answer is invalid."""


class OidcRefusedError(Exception):
    """A sign-in that is refused."""


@dataclass(frozen=True, slots=True)
class OidcPerson:
    """Person that the issuer has identified."""

    name: str  # name in the order log, ``oidc:`` and the name of the claim
    role: Role  # highest role that a value of the claim is mapped to
    # ID token, for the sign-out at the issuer; empty if it is longer than ``LONGEST_HINT``
    id_token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class PendingSignIn:
    """A sign-in that has begun at the issuer: three secrets, and the clock's time of its begin."""

    state: str
    nonce: str
    verifier: str
    begun: float


@dataclass(slots=True)
class OidcClient:
    """The console as a client of one issuer."""

    section: OidcSection  # section ``console.oidc``
    redirect: str  # address to which the issuer sends the browser back
    # secret of the client; None for a public one
    secret: str | None = field(default=None, repr=False)
    clock: Callable[[], float] = time.monotonic  # monotonic seconds
    _pending: OrderedDict[str, PendingSignIn] = field(default_factory=OrderedDict)
    _metadata: Mapping[str, Any] = field(default_factory=dict)
    _keys: KeySet | None = None
    _metadata_read: float = float("-inf")
    _keys_read: float = float("-inf")
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __len__(self) -> int:
        return len(self._pending)

    def begin(self) -> tuple[str, str]:
        """Begin a sign-in; return its secret id for the browser's cookie, and the issuer's address."""
        metadata = self._discovered()
        key, now = secrets.token_urlsafe(32), self.clock()
        state, nonce, verifier = (secrets.token_urlsafe(48) for _ in range(3))
        one = PendingSignIn(state, nonce, verifier, now)
        with self._session() as session:
            address, _ = session.create_authorization_url(
                metadata["authorization_endpoint"],
                state=one.state,
                nonce=one.nonce,
                code_verifier=one.verifier,
            )
        with self._lock:
            self._pending[key] = one
            while len(self._pending) > PENDING:
                self._pending.popitem(last=False)
        return key, str(address)

    def finish(self, key: str, answer: Mapping[str, str]) -> OidcPerson:
        """Return the person that the issuer's answer identifies; an id is good for one call.

        Args:
            key: Secret id of the sign-in, from the browser's cookie.
            answer: Query with which the issuer has sent the browser back.

        Raises:
            OidcRefusedError: The answer belongs to no sign-in of this browser, the token is not valid,
                or the person has no role here.
        """
        with self._lock:
            one = self._pending.pop(key, None)
        if one is None or self.clock() - one.begun > WAITS:
            raise OidcRefusedError("no sign-in of this browser is open: begin again")
        if not hmac.compare_digest(answer.get("state", "").encode(), one.state.encode()):
            raise OidcRefusedError("state: the answer belongs to another sign-in")
        metadata = self._discovered()
        named = answer.get("iss", "")
        needs = metadata.get("authorization_response_iss_parameter_supported") is True
        if (named or needs) and named != self.section.issuer:
            raise OidcRefusedError(f"iss: expected {self.section.issuer}, got {named[:200]!r}")
        if "error" in answer:
            raise OidcRefusedError(f"the issuer refuses: {answer['error'][:100]}")
        token = self._token(answer.get("code", ""), one, metadata)
        person = self._person(self._claims(token, one))
        return replace(person, id_token=token if len(token) <= LONGEST_HINT else "")

    def sign_out_address(self, id_token: str) -> str:
        """Return the issuer's address that ends its session; empty if it has none.

        The browser goes there with ``id_token_hint``, and comes back to the sign-in page.

        Args:
            id_token: ID token of the session; empty sends none.
        """
        endpoint = str(self._discovered().get("end_session_endpoint", ""))
        if not is_secure(endpoint):
            return ""
        back = self.redirect.removesuffix(RETURN) + SIGNED_OUT
        values = [("client_id", self.section.client_id), ("post_logout_redirect_uri", back)]
        if id_token:
            values.append(("id_token_hint", id_token))
        return str(add_params_to_uri(endpoint, values))

    def _session(self) -> OAuth2Session:
        section = self.section
        session = OAuth2Session(
            section.client_id,
            self.secret,
            token_endpoint_auth_method="client_secret_basic" if self.secret else "none",
            scope=" ".join(section.scopes),
            redirect_uri=self.redirect,
            code_challenge_method="S256",
        )
        session.trust_env = False  # neither ~/.netrc nor a proxy of the environment
        if section.ca_file is not None:
            session.verify = str(section.ca_file)
        return session

    def _token(self, code: str, one: PendingSignIn, metadata: Mapping[str, Any]) -> str:
        try:
            with self._session() as session:
                answer = session.fetch_token(
                    metadata["token_endpoint"],
                    grant_type="authorization_code",
                    code=code,
                    code_verifier=one.verifier,
                    timeout=PATIENCE,
                    allow_redirects=False,
                )
        except OAuthError as error:
            raise OidcRefusedError(f"code: the issuer refuses it: {error.error}") from error
        except (requests.RequestException, ValueError, OSError) as error:
            raise IssuerError(f"{self.section.issuer}: no token: {type(error).__name__}") from error
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise IssuerError(f"{self.section.issuer}: the answer has no id_token")
        return token

    def _claims(self, token: str, one: PendingSignIn) -> Mapping[str, Any]:
        """Return the claims of an ID token after all checks of OpenID Connect Core, 3.1.3.7."""
        section, algorithms = self.section, list(ALGORITHMS)
        try:
            try:
                decoded = jwt.decode(token, self._key_set(), algorithms=algorithms)
            except (JoseError, ValueError):  # perhaps by a key that the issuer has since added
                decoded = jwt.decode(token, self._key_set(anew=True), algorithms=algorithms)
            rules = jwt.JWTClaimsRegistry(
                leeway=LEEWAY,
                iss={"essential": True, "value": section.issuer},
                aud={"essential": True, "value": section.client_id},
                sub={"essential": True},
                exp={"essential": True},
                iat={"essential": True},
                nonce={"essential": True, "value": one.nonce},
            )
            rules.validate(decoded.claims)
        except (JoseError, ValueError, TypeError) as error:
            raise OidcRefusedError(f"token: {type(error).__name__}: {str(error)[:200]}") from error
        claims = decoded.claims
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if (several or "azp" in claims) and claims.get("azp") != section.client_id:
            raise OidcRefusedError(f"token: azp: expected {section.client_id}")
        return claims

    def _person(self, claims: Mapping[str, Any]) -> OidcPerson:
        section = self.section
        name = claims.get(section.name_claim) or claims["sub"]
        if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name) <= 58:
            raise OidcRefusedError(f"{section.name_claim}: expected 1 to 58 printable characters")
        given = claim_values(claims, section.role_claim)
        wanted = {
            Role.VIEWER: section.viewer,
            Role.OPERATOR: section.operator,
            Role.SECURITY: section.security,
        }
        roles = [role for role, values in wanted.items() if given & set(values)]
        if not roles:
            raise OidcRefusedError(f"{name} has no role here: {section.role_claim} names none")
        return OidcPerson(f"oidc:{name}", max(roles))

    def _discovered(self) -> Mapping[str, Any]:
        """Return the issuer's metadata, at most ``FRESH`` seconds old."""
        now, issuer = self.clock(), self.section.issuer
        if now - self._metadata_read < FRESH:
            return self._metadata
        found = self._fetched(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if found.get("issuer") != issuer:
            raise IssuerError(f"{issuer}: its metadata name another issuer")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            if not is_secure(str(found.get(name, ""))):
                raise IssuerError(f"{issuer}: {name}: expected an address with https")
        self._metadata, self._metadata_read = found, now
        return found

    def _key_set(self, *, anew: bool = False) -> KeySet:
        now = self.clock()
        age = now - self._keys_read
        if self._keys is None or age >= FRESH or (anew and age >= AGAIN):
            try:
                self._keys = KeySet.import_key_set(self._fetched(self._discovered()["jwks_uri"]))  # type: ignore[arg-type]
            except (JoseError, ValueError, TypeError, KeyError) as error:
                raise IssuerError(f"{self.section.issuer}: its keys cannot be read") from error
            self._keys_read = now
        return self._keys

    def _fetched(self, address: str) -> Mapping[str, Any]:
        try:
            with requests.Session() as session:
                session.trust_env = False
                verify = str(self.section.ca_file) if self.section.ca_file is not None else True
                answer = session.get(
                    address, timeout=PATIENCE, allow_redirects=False, verify=verify
                )
                answer.raise_for_status()
                found = answer.json()
        except (requests.RequestException, ValueError, OSError) as error:
            raise IssuerError(f"{self.section.issuer}: {type(error).__name__}") from error
        if not isinstance(found, dict):
            raise IssuerError(f"{self.section.issuer}: {address} is no JSON object")
        return found


def client_of(config: AggregatorConfig) -> OidcClient:
    """Return the client of a configuration with ``console.oidc``; raise BindError if its secret cannot be read."""
    console = config.section("console")
    section = console.oidc
    assert section is not None
    path = section.client_secret_file
    try:
        secret = path.read_text("utf-8").strip() if path is not None else None
    except (OSError, ValueError) as error:
        raise BindError(f"console.oidc.client_secret_file: {path}: {error}") from error
    scheme = "https" if console.cert_file is not None else "http"
    base = section.url.rstrip("/") or f"{scheme}://{console.listen}"
    return OidcClient(section, base + RETURN, secret)


def claim_values(claims: Mapping[str, Any], name: str) -> frozenset[str]:
    """Return the texts of a claim: one, a list, or behind dots.

    >>> sorted(claim_values({"realm_access": {"roles": ["a", "b"]}}, "realm_access.roles"))
    ['a', 'b']
    >>> sorted(claim_values({"https://a.b/role": "c"}, "https://a.b/role"))
    ['c']
    """
    found: object = claims.get(name)
    if found is None:
        found = claims
        for part in name.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    values = found if isinstance(found, list) else [found]
    return frozenset(one for one in values if isinstance(one, str))

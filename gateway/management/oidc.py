"""An OpenID provider, as a client that trusts little of it: authorization code with PKCE, and the id token's claims.

Where to ask is what the issuer's own document says, and the document must be the configured issuer's. An id token is
believed if it was signed for us with a key of the issuer's that was fetched from there, by an algorithm of ours: its
header can choose neither. Knows no sessions and no roles.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core import CodeIDToken
from authlib.oidc.discovery import get_well_known_url
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import Key, import_key
from joserfc.util import urlsafe_b64decode
from msgspec import Struct

from telemetry.clock import Clock

log = logging.getLogger(__name__)

ALGORITHMS = {"RS256": "RSA", "PS256": "RSA", "ES256": "EC", "EdDSA": "OKP", "Ed25519": "OKP"}
TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 256 * 1024
MAX_ID_TOKEN_BYTES = 16 * 1024
LEEWAY_S = 60
DOCUMENT_KEPT_S = 3600.0
KEYS_ASKED_EACH_S = 30.0  # at most, however many unknown key ids come
_REFUSED_HEADERS = frozenset({"crit", "jku", "jwk", "x5u", "x5c"})


class ProviderAway(Exception):
    """The provider did not answer, or not as one."""


class SignInFailed(Exception):
    """The provider's answer proves nobody. The text is ours, for the log and for the person: no value, no token."""


class Document(Struct, frozen=True):
    """What is used of the provider's own description."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    end_session_endpoint: str = ""


@dataclass(frozen=True)
class Attempt:
    """What one sign-in must come back with. Kept by the browser, encrypted."""

    state: str
    nonce: str
    verifier: str

    @classmethod
    def fresh(cls) -> Attempt:
        return cls(secrets.token_urlsafe(32), secrets.token_urlsafe(32), secrets.token_urlsafe(48))


class Provider:
    def __init__(
        self, *, issuer: str, client_id: str, client_secret: str, redirect_url: str, scopes: str, clock: Clock
    ) -> None:
        """Without a `client_secret` PKCE alone proves the client."""
        self._issuer = issuer
        self._client_id, self._client_secret = client_id, client_secret
        self._redirect_url, self._scopes = redirect_url, scopes
        self._clock = clock
        self._http = httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False)
        self._document: Document | None = None
        self._document_s = self._keys_s = -DOCUMENT_KEPT_S
        self._keys: dict[str, Key] = {}

    async def authorization_url(self, attempt: Attempt) -> str:
        """Where the browser goes. Raises ProviderAway."""
        document = await self._described()
        url: str = prepare_grant_uri(
            document.authorization_endpoint,
            client_id=self._client_id,
            response_type="code",
            redirect_uri=self._redirect_url,
            scope=self._scopes,
            state=attempt.state,
            nonce=attempt.nonce,
            code_challenge=create_s256_code_challenge(attempt.verifier),
            code_challenge_method="S256",
        )
        return url

    async def end_session_url(self) -> str:
        """Where the person may sign out of the provider too; "" where there is none. Raises ProviderAway."""
        return (await self._described()).end_session_endpoint

    async def claims(self, attempt: Attempt, query: Mapping[str, str]) -> dict[str, Any]:
        """The id token's claims, from what the browser brought back. Raises SignInFailed, ProviderAway."""
        document = await self._described()
        if not secrets.compare_digest(query.get("state", "").encode(), attempt.state.encode()):
            raise SignInFailed("the state is not the one that was sent")
        if query.get("iss", document.issuer) != document.issuer:
            raise SignInFailed("another issuer answered")
        if "error" in query:
            raise SignInFailed("the provider refused")
        if not query.get("code"):
            raise SignInFailed("there is no code")
        answer = await self._redeem(document, query["code"], attempt)
        id_token, access_token = answer.get("id_token"), answer.get("access_token")
        if not isinstance(id_token, str) or len(id_token) > MAX_ID_TOKEN_BYTES or not id_token.isascii():
            raise SignInFailed("there is no id token")
        return await self._judge(document, id_token, access_token, attempt)

    async def close(self) -> None:
        await self._http.aclose()

    async def _redeem(self, document: Document, code: str, attempt: Attempt) -> dict[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect_url,
            "code_verifier": attempt.verifier,
            "client_id": self._client_id,
        }
        if self._client_secret:
            form["client_secret"] = self._client_secret
        status, answer = await self._ask("POST", document.token_endpoint, form)
        if status >= 500:
            raise ProviderAway(f"the token endpoint answered {status}")
        if status != 200:
            raise SignInFailed("the provider did not take the code")
        return answer

    async def _judge(self, document: Document, id_token: str, access_token: object, attempt: Attempt) -> dict[str, Any]:
        header = _header_of(id_token)
        key = await self._key_for(document, header)
        now_s = int(self._clock.now().timestamp())
        try:
            token = jwt.decode(id_token, key, algorithms=[header["alg"]])
            claims = CodeIDToken(
                token.claims,
                token.header,
                {
                    "iss": {"essential": True, "value": document.issuer},
                    "aud": {"essential": True, "value": self._client_id},
                    "sub": {"essential": True},
                    "nonce": {"essential": True, "value": attempt.nonce},
                },
                {
                    "nonce": attempt.nonce,
                    "client_id": self._client_id,
                    "access_token": access_token if isinstance(access_token, str) else None,
                },
            )
            claims.validate(now_s, LEEWAY_S)
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise SignInFailed(f"the id token does not hold: {type(error).__name__}") from None
        others = [name for name in _listed(claims["aud"]) if name != self._client_id]
        if others and claims.get("azp") != self._client_id:
            raise SignInFailed("the id token is for others too")
        subject = claims["sub"]
        if not isinstance(subject, str) or not 0 < len(subject) <= 255 or type(claims["exp"]) is bool:
            raise SignInFailed("the id token has no subject")
        return dict(claims)

    async def _key_for(self, document: Document, header: Mapping[str, Any]) -> Key:
        """The issuer's key of this id, asked for again where it is new."""
        kid = header.get("kid", "")
        if not isinstance(kid, str):
            raise SignInFailed("the id token names no key")
        now_s = self._clock.monotonic_s()
        if self._found(kid) is None and now_s - self._keys_s >= KEYS_ASKED_EACH_S:
            self._keys_s = now_s
            self._keys = await self._fetch_keys(document.jwks_uri)
        found = self._found(kid)
        if found is None:
            raise SignInFailed("the id token's key is not the issuer's")
        declared = found.as_dict(private=False).get("alg", header["alg"])
        if found.key_type != ALGORITHMS[header["alg"]] or declared != header["alg"]:
            raise SignInFailed("the id token's algorithm is not its key's")
        return found

    def _found(self, kid: str) -> Key | None:
        if not kid and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    async def _fetch_keys(self, url: str) -> dict[str, Key]:
        status, answer = await self._ask("GET", url)
        rows = answer.get("keys")
        if status != 200 or not isinstance(rows, list):
            raise ProviderAway("the keys cannot be read")
        found: dict[str, Key] = {}
        for row in rows[:100]:
            if not isinstance(row, dict) or row.get("kty") not in ALGORITHMS.values() or row.get("use", "sig") != "sig":
                continue  # among others "oct": a secret that everybody knows
            try:
                found[str(row.get("kid", ""))] = import_key({n: v for n, v in row.items() if n not in ("d", "key_ops")})
            except (JoseError, ValueError, TypeError, KeyError):
                log.warning("a key of the OpenID provider cannot be read")
        return found

    async def _described(self) -> Document:
        now_s = self._clock.monotonic_s()
        if self._document is None or now_s - self._document_s >= DOCUMENT_KEPT_S:
            url: str = get_well_known_url(self._issuer, external=True)
            status, answer = await self._ask("GET", url)
            try:
                document = msgspec.convert(answer, Document)
            except msgspec.ValidationError as error:
                raise ProviderAway(f"its description: {error}") from None
            if status != 200 or document.issuer != self._issuer:
                raise ProviderAway("its description is not that of HEARTH_OIDC_ISSUER")
            urls = (document.authorization_endpoint, document.token_endpoint, document.jwks_uri)
            if any(not is_safe_url(url) for url in (*urls, *filter(None, [document.end_session_endpoint]))):
                raise ProviderAway("its description names an address without TLS")
            self._document, self._document_s = document, now_s
        return self._document

    async def _ask(self, method: str, url: str, form: Mapping[str, str] | None = None) -> tuple[int, dict[str, Any]]:
        """Status and JSON object. Redirects are not followed. Raises ProviderAway."""
        body = bytearray()
        try:
            async with self._http.stream(method, url, data=form, headers={"accept": "application/json"}) as answer:
                async for piece in answer.aiter_bytes():
                    body += piece
                    if len(body) > MAX_ANSWER_BYTES:
                        raise ProviderAway("its answer is too large")
            found = json.loads(body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ProviderAway(type(error).__name__) from None
        except (ValueError, RecursionError):
            if answer.status_code >= 400:
                return answer.status_code, {}
            raise ProviderAway("its answer is no JSON") from None
        return answer.status_code, found if isinstance(found, dict) else {}


def is_safe_url(url: str) -> bool:
    """Whether an address has TLS, or is on this very machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    is_local = parts.scheme == "http" and host in ("localhost", "127.0.0.1", "::1")
    return bool(host) and not parts.username and not parts.fragment and (parts.scheme == "https" or is_local)


def _header_of(id_token: str) -> dict[str, Any]:
    """An id token's header, if it asks for nothing that we do not decide ourselves. Raises SignInFailed."""
    try:
        header = json.loads(urlsafe_b64decode(id_token.partition(".")[0].encode()))
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or not isinstance(header.get("alg"), str) or header["alg"] not in ALGORITHMS:
        raise SignInFailed("the id token's algorithm is not taken")
    if not _REFUSED_HEADERS.isdisjoint(header):
        raise SignInFailed("the id token brings a key of its own")
    return header


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]

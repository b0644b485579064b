"""OpenID Connect client: authorization code flow with PKCE, and verification of id tokens.

Endpoints come from the provider's discovery document, whose issuer must be the configured one. An id token is accepted
only if it is signed with a key from the provider's key set and an algorithm from ALGORITHMS; the token's header can
select neither a key outside the set nor another algorithm.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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

from gateway.management.operator_settings import is_safe_url
from telemetry.clock import Clock

log = logging.getLogger(__name__)

ALGORITHMS = {"RS256": "RSA", "PS256": "RSA", "ES256": "EC", "EdDSA": "OKP", "Ed25519": "OKP"}
TIMEOUT_S = 5.0
MAX_RESPONSE_BYTES = 256 * 1024
MAX_ID_TOKEN_BYTES = 16 * 1024
LEEWAY_S = 60
METADATA_TTL_S = 3600.0
MIN_KEY_REFRESH_S = 30.0  # limits requests when tokens name unknown keys
_REJECTED_HEADERS = frozenset({"crit", "jku", "jwk", "x5u", "x5c"})


class ProviderUnavailable(Exception):
    """The provider did not respond, or its response is not a valid OpenID Connect response."""


class SignInFailed(Exception):
    """The provider's response does not authenticate anyone. The message is safe to log and to show to the user: it
    contains no values and no tokens."""


class ProviderMetadata(Struct, frozen=True):
    """The used fields of the provider's discovery document."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    end_session_endpoint: str = ""


@dataclass(frozen=True)
class AuthorizationRequest:
    """The secrets of one sign-in, stored in the browser in an encrypted cookie until the provider redirects back."""

    state: str
    nonce: str
    verifier: str

    @classmethod
    def create(cls) -> AuthorizationRequest:
        """Return a request with new random secrets."""
        return cls(secrets.token_urlsafe(32), secrets.token_urlsafe(32), secrets.token_urlsafe(48))


class Provider:
    """An OpenID provider."""

    def __init__(
        self, *, issuer: str, client_id: str, client_secret: str, redirect_url: str, scopes: str, clock: Clock
    ) -> None:
        """Create a client of the provider. Without a `client_secret`, only PKCE protects the authorization code."""
        self._issuer = issuer
        self._client_id, self._client_secret = client_id, client_secret
        self._redirect_url, self._scopes = redirect_url, scopes
        self._clock = clock
        self._http = httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False)
        self._metadata: ProviderMetadata | None = None
        self._metadata_s = self._keys_s = -METADATA_TTL_S
        self._keys: dict[str, Key] = {}

    async def authorization_url(self, request: AuthorizationRequest) -> str:
        """Return the URL to redirect the browser to. Raises ProviderUnavailable."""
        metadata = await self._fetch_metadata()
        url: str = prepare_grant_uri(
            metadata.authorization_endpoint,
            client_id=self._client_id,
            response_type="code",
            redirect_uri=self._redirect_url,
            scope=self._scopes,
            state=request.state,
            nonce=request.nonce,
            code_challenge=create_s256_code_challenge(request.verifier),
            code_challenge_method="S256",
        )
        return url

    async def end_session_url(self) -> str:
        """Return the URL at which the user can sign out of the provider, or "". Raises ProviderUnavailable."""
        return (await self._fetch_metadata()).end_session_endpoint

    async def claims(self, request: AuthorizationRequest, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the claims of the id token for the `query` of the provider's redirect.

        Raises SignInFailed and ProviderUnavailable.
        """
        metadata = await self._fetch_metadata()
        if not secrets.compare_digest(query.get("state", "").encode(), request.state.encode()):
            raise SignInFailed("the state does not match the authorization request")
        if query.get("iss", metadata.issuer) != metadata.issuer:
            raise SignInFailed("the response is from another issuer")
        if "error" in query:
            raise SignInFailed("the provider denied the authorization")
        if not query.get("code"):
            raise SignInFailed("the response has no authorization code")
        tokens = await self._exchange_code(metadata, query["code"], request)
        id_token, access_token = tokens.get("id_token"), tokens.get("access_token")
        if not isinstance(id_token, str) or len(id_token) > MAX_ID_TOKEN_BYTES or not id_token.isascii():
            raise SignInFailed("the token response has no valid id token")
        return await self._verify_id_token(metadata, id_token, access_token, request)

    async def close(self) -> None:
        await self._http.aclose()

    async def _exchange_code(
        self, metadata: ProviderMetadata, code: str, request: AuthorizationRequest
    ) -> dict[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect_url,
            "code_verifier": request.verifier,
            "client_id": self._client_id,
        }
        if self._client_secret:
            form["client_secret"] = self._client_secret
        status, response = await self._request("POST", metadata.token_endpoint, form)
        if status >= 500:
            raise ProviderUnavailable(f"the token endpoint responded with {status}")
        if status != 200:
            raise SignInFailed("the provider rejected the authorization code")
        return response

    async def _verify_id_token(
        self, metadata: ProviderMetadata, id_token: str, access_token: object, request: AuthorizationRequest
    ) -> dict[str, Any]:
        header = _header_of(id_token)
        key = await self._key_for(metadata, header)
        now_s = int(self._clock.now().timestamp())
        try:
            token = jwt.decode(id_token, key, algorithms=[header["alg"]])
            claims = CodeIDToken(
                token.claims,
                token.header,
                {
                    "iss": {"essential": True, "value": metadata.issuer},
                    "aud": {"essential": True, "value": self._client_id},
                    "sub": {"essential": True},
                    "nonce": {"essential": True, "value": request.nonce},
                },
                {
                    "nonce": request.nonce,
                    "client_id": self._client_id,
                    "access_token": access_token if isinstance(access_token, str) else None,
                },
            )
            claims.validate(now_s, LEEWAY_S)
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise SignInFailed(f"the id token is invalid: {type(error).__name__}") from None
        others = [name for name in _as_list(claims["aud"]) if name != self._client_id]
        if others and claims.get("azp") != self._client_id:
            raise SignInFailed("the id token has other audiences")
        subject = claims["sub"]
        if not isinstance(subject, str) or not 0 < len(subject) <= 255 or type(claims["exp"]) is bool:
            raise SignInFailed("the id token has no valid subject")
        return dict(claims)

    async def _key_for(self, metadata: ProviderMetadata, header: Mapping[str, Any]) -> Key:
        """Return the provider's key that signed the token. The key set is fetched again for an unknown key id, at most
        every MIN_KEY_REFRESH_S."""
        kid = header.get("kid", "")
        if not isinstance(kid, str):
            raise SignInFailed("the id token's key id is invalid")
        now_s = self._clock.monotonic_s()
        if self._known_key(kid) is None and now_s - self._keys_s >= MIN_KEY_REFRESH_S:
            self._keys_s = now_s
            self._keys = await self._fetch_keys(metadata.jwks_uri)
        found = self._known_key(kid)
        if found is None:
            raise SignInFailed("the id token's key is not in the provider's key set")
        declared = found.as_dict(private=False).get("alg", header["alg"])
        if found.key_type != ALGORITHMS[header["alg"]] or declared != header["alg"]:
            raise SignInFailed("the id token's algorithm does not match its key")
        return found

    def _known_key(self, kid: str) -> Key | None:
        if not kid and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    async def _fetch_keys(self, url: str) -> dict[str, Key]:
        status, response = await self._request("GET", url)
        rows = response.get("keys")
        if status != 200 or not isinstance(rows, list):
            raise ProviderUnavailable("the key set is not valid")
        found: dict[str, Key] = {}
        for row in rows[:100]:
            if not isinstance(row, dict) or row.get("kty") not in ALGORITHMS.values() or row.get("use", "sig") != "sig":
                continue  # a symmetric key ("oct") in a public key set is no secret
            try:
                found[str(row.get("kid", ""))] = import_key({n: v for n, v in row.items() if n not in ("d", "key_ops")})
            except (JoseError, ValueError, TypeError, KeyError):
                log.warning("OpenID provider key ignored")
        return found

    async def _fetch_metadata(self) -> ProviderMetadata:
        now_s = self._clock.monotonic_s()
        if self._metadata is None or now_s - self._metadata_s >= METADATA_TTL_S:
            url: str = get_well_known_url(self._issuer, external=True)
            status, response = await self._request("GET", url)
            try:
                metadata = msgspec.convert(response, ProviderMetadata)
            except msgspec.ValidationError as error:
                raise ProviderUnavailable(f"the discovery document is invalid: {error}") from None
            if status != 200 or metadata.issuer != self._issuer:
                raise ProviderUnavailable("the discovery document has another issuer than HEARTH_OIDC_ISSUER")
            urls = (metadata.authorization_endpoint, metadata.token_endpoint, metadata.jwks_uri)
            if any(not is_safe_url(url) for url in (*urls, *filter(None, [metadata.end_session_endpoint]))):
                raise ProviderUnavailable("the discovery document has a URL without TLS")
            self._metadata, self._metadata_s = metadata, now_s
        return self._metadata

    async def _request(
        self, method: str, url: str, form: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Return status and JSON object; {} for an error response without JSON. Redirects are not followed.

        Raises ProviderUnavailable.
        """
        try:
            async with self._http.stream(method, url, data=form, headers={"accept": "application/json"}) as response:
                body = await _read_limited(response)
            found = json.loads(body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ProviderUnavailable(type(error).__name__) from None
        except (ValueError, RecursionError):
            if response.status_code >= 400:
                return response.status_code, {}
            raise ProviderUnavailable("the response is not JSON") from None
        return response.status_code, found if isinstance(found, dict) else {}


async def _read_limited(response: httpx.Response) -> bytes:
    """Return the body. Raises ProviderUnavailable if it is longer than MAX_RESPONSE_BYTES."""
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > MAX_RESPONSE_BYTES:
            raise ProviderUnavailable("the response is too large")
    return bytes(body)


def _header_of(id_token: str) -> dict[str, Any]:
    """Return the header of an id token. Raises SignInFailed if it selects its own key or another algorithm."""
    try:
        header = json.loads(urlsafe_b64decode(id_token.partition(".")[0].encode()))
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or not isinstance(header.get("alg"), str) or header["alg"] not in ALGORITHMS:
        raise SignInFailed("the id token's algorithm is not supported")
    if not _REJECTED_HEADERS.isdisjoint(header):
        raise SignInFailed("the id token's header contains a key")
    return header


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]

"""A small OpenID provider over real HTTP. The test selects the user who signs in, and can make the provider send false
data.

Implements the authorization code flow with PKCE. A code can be used once. `forge` replaces the id token; `describe`
changes the provider's metadata.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import ECKey

CLIENT_ID, CLIENT_SECRET = "hearth", "a secret of the tests"
# a symmetric key among the published keys, which verifiers must ignore
PUBLISHED_SECRET = "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0"

Claims = dict[str, Any]


class OidcProvider:
    def __init__(self) -> None:
        self.key = ECKey.generate_key("P-256", {"kid": "key-1", "use": "sig", "alg": "ES256"})
        self.person: Claims = {"sub": "ann-1", "name": "Ann", "groups": ["platform"]}
        self.forge: Callable[[Claims], str] | None = None
        self.describe: Claims = {}
        self.num_key_requests = 0
        self.authorization_requests: list[dict[str, str]] = []
        self._codes: dict[str, dict[str, str]] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                if url.path == "/.well-known/openid-configuration":
                    self._answer(200, provider.description())
                elif url.path == "/keys":
                    provider.num_key_requests += 1
                    self._answer(
                        200, {"keys": [provider.key.as_dict(private=False), {"kty": "oct", "k": PUBLISHED_SECRET}]}
                    )
                elif url.path == "/authorize":
                    self.send_response(302)
                    self.send_header("location", provider.authorize(query))
                    self.send_header("content-length", "0")
                    self.end_headers()
                else:
                    self._answer(404, {})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"])).decode()
                form = {name: values[0] for name, values in parse_qs(body).items()}
                response = provider.redeem(form) if self.path == "/token" else None
                self._answer(400 if response is None else 200, response or {"error": "invalid_grant"})

            def _answer(self, status: int, body: Claims) -> None:
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_arguments: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def start(self) -> OidcProvider:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()

    def description(self) -> Claims:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "end_session_endpoint": f"{self.issuer}/bye",
            **self.describe,
        }

    def authorize(self, query: dict[str, str]) -> str:
        """Return the URL to which the authorization endpoint redirects the browser."""
        self.authorization_requests.append(query)
        code = secrets.token_urlsafe(16)
        self._codes[code] = query
        response = {"code": code, "state": query["state"], "iss": self.issuer}
        return f"{query['redirect_uri']}?{urlencode(response)}"

    def redeem(self, form: dict[str, str]) -> Claims | None:
        """Return the tokens for a code, or None if the request is invalid."""
        request = self._codes.pop(form.get("code", ""), None)
        if request is None:
            return None
        challenge = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        is_same = base64.urlsafe_b64encode(challenge).rstrip(b"=").decode() == request["code_challenge"]
        is_client = (form.get("client_id"), form.get("client_secret")) == (CLIENT_ID, CLIENT_SECRET)
        if not is_same or not is_client or form.get("redirect_uri") != request["redirect_uri"]:
            return None
        claims = self.claims(request["nonce"])
        return {
            "access_token": "an access token",
            "token_type": "Bearer",
            "id_token": self.forge(claims) if self.forge is not None else self.signed(claims),
        }

    def claims(self, nonce: str) -> Claims:
        now_s = int(time.time())
        return {"iss": self.issuer, "aud": CLIENT_ID, "nonce": nonce, "iat": now_s, "exp": now_s + 300, **self.person}

    def signed(self, claims: Claims, **header: Any) -> str:
        return jwt.encode({"alg": "ES256", "kid": "key-1", **header}, claims, self.key)

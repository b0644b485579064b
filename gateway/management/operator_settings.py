"""What a gateway is told about the sign-in of operators: the OpenID provider, and who of its people has which role."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from telemetry.settings import SettingError, parsed_by, setting
from tenants.credentials.roles import OPERATOR_ROLES, Role, parse_role

SIGN_IN_PATH = "/admin/callback"


def operator_roles_in(text: str) -> dict[str, Role]:
    """Claim value -> role, of a comma separated list of value=role. Raises ValueError."""
    found: dict[str, Role] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        value, _, name = part.rpartition("=")
        if not value or name not in OPERATOR_ROLES:
            raise ValueError(f"must be value=role with commas between, and a role {' or '.join(OPERATOR_ROLES)}")
        found[value] = parse_role(name)
    return found


def origin_of(url: str) -> str:
    """Scheme, host and port, as browsers write an origin."""
    parts = urlsplit(url)
    port = "" if parts.port in (None, {"https": 443, "http": 80}.get(parts.scheme)) else f":{parts.port}"
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}{port}"


def _web_address(value: str) -> str | None:
    """With TLS, or on this machine."""
    try:
        parts = urlsplit(value)
        is_local = parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")
        is_good = bool(parts.hostname) and (parts.scheme == "https" or is_local) and parts.port != 0
        has_more = bool(parts.username or parts.query or parts.fragment)
    except ValueError:
        is_good = has_more = False
    return None if is_good and not has_more else "must be an https:// address (http:// on localhost), and nothing more"


def _redirect_address(value: str) -> str | None:
    return _web_address(value) or (
        None if urlsplit(value).path == SIGN_IN_PATH else f"must end in {SIGN_IN_PATH}, on this gateway's public name"
    )


@dataclass(frozen=True)
class SignInSettings:
    """Nobody signs in where `issuer` is empty; then the others are too."""

    issuer: str = setting(
        "HEARTH_OIDC_ISSUER",
        "OpenID provider with which operators sign in at /admin/sign-in, as it names itself; empty for none",
        default="",
        check=_web_address,
    )
    client_id: str = setting("HEARTH_OIDC_CLIENT_ID", "what the provider knows this platform as", default="")
    client_secret: str = setting(
        "HEARTH_OIDC_CLIENT_SECRET",
        "what proves that to the provider; empty for a public client, which PKCE alone proves",
        default="",
        secret=True,
    )
    redirect_url: str = setting(
        "HEARTH_OIDC_REDIRECT_URL",
        "where the provider sends browsers back to: this platform's public address with /admin/callback",
        default="",
        check=_redirect_address,
    )
    scopes: str = setting("HEARTH_OIDC_SCOPES", "scopes asked of the provider", default="openid profile email")
    roles_claim: str = setting(
        "HEARTH_OIDC_ROLES_CLAIM",
        "the id token's claim that gives roles; one inside another with a dot between them",
        default="groups",
    )
    roles: str = setting(
        "HEARTH_OIDC_ROLES",
        "which of its values give which role (administrator, viewer), as platform=administrator,audit=viewer; nobody "
        "else is let in",
        default="",
        check=parsed_by(operator_roles_in),
    )

    def __post_init__(self) -> None:
        needed = {
            "HEARTH_OIDC_CLIENT_ID": self.client_id,
            "HEARTH_OIDC_REDIRECT_URL": self.redirect_url,
            "HEARTH_OIDC_ROLES": self.roles,
        }
        missing = [env for env, value in needed.items() if not value]
        if self.issuer and missing:
            raise SettingError(f"{missing[0]} is not set, and HEARTH_OIDC_ISSUER is")
        if not self.issuer and (len(missing) < len(needed) or self.client_secret):
            raise SettingError("HEARTH_OIDC_ISSUER is not set, and other settings of HEARTH_OIDC are")
        if "openid" not in self.scopes.split():
            raise SettingError("HEARTH_OIDC_SCOPES: must hold openid")

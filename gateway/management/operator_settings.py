"""Settings for the sign-in of operators: the OpenID provider, and which claim values give which role."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from telemetry.settings import SettingError, parsed_by, setting
from tenants.credentials.roles import OPERATOR_ROLES, Role, parse_role

CALLBACK_PATH = "/admin/callback"


def operator_roles_in(text: str) -> dict[str, Role]:
    """Parse a comma-separated list of value=role into roles by claim value. Raises ValueError."""
    found: dict[str, Role] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        value, _, name = part.rpartition("=")
        if not value or name not in OPERATOR_ROLES:
            raise ValueError(f"must be a comma-separated list of value=role, with role {' or '.join(OPERATOR_ROLES)}")
        found[value] = parse_role(name)
    return found


def origin_of(url: str) -> str:
    """Return scheme, host and port as browsers write an origin."""
    parts = urlsplit(url)
    port = "" if parts.port in (None, {"https": 443, "http": 80}.get(parts.scheme)) else f":{parts.port}"
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}{port}"


def is_safe_url(url: str) -> bool:
    """Return True if the URL uses TLS or is on this machine, and has neither a user nor a fragment."""
    try:
        parts = urlsplit(url)
        is_local = parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")
        is_valid = bool(parts.hostname) and (parts.scheme == "https" or is_local) and parts.port != 0
    except ValueError:
        return False
    return is_valid and not parts.username and not parts.fragment


def _check_url(value: str) -> str | None:
    """Return the reason why a URL is invalid, or None."""
    if is_safe_url(value) and not urlsplit(value).query:
        return None
    return "must be an https:// URL (http:// on localhost) without user, query or fragment"


def _check_redirect_url(value: str) -> str | None:
    wrong_path = f"must be the public URL of this gateway with the path {CALLBACK_PATH}"
    return _check_url(value) or (None if urlsplit(value).path == CALLBACK_PATH else wrong_path)


@dataclass(frozen=True)
class SignInSettings:
    """OpenID Connect settings. With an empty `issuer`, no provider is used and the other settings must be empty."""

    issuer: str = setting(
        "HEARTH_OIDC_ISSUER",
        "Issuer URL of the OpenID provider with which operators sign in at /admin/sign-in. Empty disables this way to "
        "sign in.",
        default="",
        check=_check_url,
    )
    client_id: str = setting("HEARTH_OIDC_CLIENT_ID", "Client id at the OpenID provider.", default="")
    client_secret: str = setting(
        "HEARTH_OIDC_CLIENT_SECRET",
        "Client secret at the OpenID provider. Empty for a public client with PKCE only.",
        default="",
        secret=True,
    )
    redirect_url: str = setting(
        "HEARTH_OIDC_REDIRECT_URL",
        "Redirect URL registered at the OpenID provider: this platform's public URL with the path /admin/callback.",
        default="",
        check=_check_redirect_url,
    )
    scopes: str = setting(
        "HEARTH_OIDC_SCOPES",
        "Space-separated scopes to request from the OpenID provider; must include openid.",
        default="openid profile email",
    )
    roles_claim: str = setting(
        "HEARTH_OIDC_ROLES_CLAIM",
        "Claim of the id token that gives roles. Write a nested claim with dots, such as realm.roles.",
        default="groups",
    )
    roles: str = setting(
        "HEARTH_OIDC_ROLES",
        "Roles by value of the roles claim (administrator or viewer), such as platform=administrator,audit=viewer. "
        "Users without a role cannot sign in.",
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
            raise SettingError(f"{missing[0]} must be set because HEARTH_OIDC_ISSUER is set")
        if not self.issuer and (len(missing) < len(needed) or self.client_secret):
            raise SettingError("HEARTH_OIDC_ISSUER must be set because other HEARTH_OIDC settings are set")
        if "openid" not in self.scopes.split():
            raise SettingError("HEARTH_OIDC_SCOPES must include openid")

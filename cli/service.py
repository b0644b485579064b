"""`hearth service`: service keys, with which gateways and nodes authenticate each other.

Private keys are written to files with mode 0600 and never printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.output import CommandFailed, JsonOption, print_record, print_rows
from cli.target import DataOption, Target
from cli.token import parse_period
from local_platform.errors import PlatformError
from local_platform.service_keys import LIFE_DAYS, create_key, ensure_key, keys_path

if TYPE_CHECKING:
    from service_identity.service_tokens import PublicKey, Ring

app = typer.Typer(help="Service keys of gateways and nodes: make, add, rotate, revoke, list.", no_args_is_help=True)
COLUMNS = ("kid", "subject", "pop", "status", "not_before", "not_after", "public")

SubjectArgument = Annotated[
    str, typer.Argument(help="gateway/NAME, node/NODE_ID or operator/NAME.", show_default=False)
]
RingOption = Annotated[
    Path | None, typer.Option("--ring", help="Key ring file. Default: HEARTH_SERVICE_RING, or the platform's.")
]
DaysOption = Annotated[int, typer.Option("--days", min=1, max=3650, help="Days until the key expires.")]
PopOption = Annotated[str, typer.Option("--pop", help="PoP of the node. The key is valid in this PoP only.")]


@app.command()
def make(
    subject: SubjectArgument,
    pop: PopOption = "",
    days: DaysOption = LIFE_DAYS,
    ring: RingOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Create a key pair. The private key is stored in a folder beside the ring, the public key in the ring."""
    from service_identity import key_ring as service_ring

    path = ring_path(ring, data)
    with service_failures(path):
        private, row = create_key(path, subject, pop, days, start_s=time.time())
    change_ring_and_audit(path, data, "service_key.make", row.kid, subject, lambda old: service_ring.with_key(old, row))
    print_record({**_shown(row), "private_key": str(private)}, is_json=json)


@app.command()
def ensure(
    services: Annotated[
        list[str],
        typer.Argument(help="gateway/NAME, node/NODE_ID or node/NODE_ID@POP.", show_default=False),
    ],
    ring: RingOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Create keys that are missing or expire within 30 days. Existing keys are left unchanged."""
    path = ring_path(ring, data)
    rows = []
    for service in services:
        subject, _, pop = service.partition("@")
        new: list[str] = []

        def change(kid: str, edit: Callable[[Ring], Ring], subject: str = subject, new: list[str] = new) -> None:
            change_ring_and_audit(path, data, "service_key.make", kid, subject, edit)
            new.append(kid)

        with service_failures(path):
            folder = ensure_key(path, subject, pop, change)
        rows.append({"subject": subject, "pop": pop, "keys": str(folder), "is_new": bool(new)})
    print_rows(rows, ("subject", "pop", "keys", "is_new"), is_json=json, empty="no services given")


@app.command()
def add(
    subject: SubjectArgument,
    public: Annotated[str, typer.Argument(help="Public key, as printed by `make`.")],
    pop: PopOption = "",
    days: DaysOption = LIFE_DAYS,
    ring: RingOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Add the public key of a key pair that was created on another machine."""
    from service_identity import key_ring as service_ring

    path = ring_path(ring, data)
    with service_failures(path):
        row = service_ring.public_key(public, subject, start_s=time.time(), life_days=days, pop=pop)
    change_ring_and_audit(path, data, "service_key.add", row.kid, subject, lambda old: service_ring.with_key(old, row))
    print_record(_shown(row), is_json=json)


@app.command()
def rotate(
    subject: SubjectArgument,
    overlap: Annotated[str, typer.Option(help="How long the old keys stay valid.")] = "1h",
    starts: Annotated[str, typer.Option(help="Delay before the new key is used, to copy the ring.")] = "0s",
    days: DaysOption = LIFE_DAYS,
    ring: RingOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Create a new key for a service, for the same PoP. Running processes load it within a second."""
    from service_identity import key_ring as service_ring

    path = ring_path(ring, data)
    known = [key for key in _read(path).keys if key.subject == subject]
    if not known:
        raise CommandFailed(f"{path} has no key of {subject}")
    pop = service_ring.newest_key(known).pop
    with service_failures(path):
        private, row = create_key(path, subject, pop, days, start_s=time.time() + _seconds("starts", starts))
    overlap_s = _seconds("overlap", overlap)
    rotated: Callable[[Ring], Ring] = lambda old: service_ring.rotated(old, row, overlap_s=overlap_s)  # noqa: E731
    change_ring_and_audit(path, data, "service_key.rotate", row.kid, subject, rotated)
    print_record({**_shown(row), "private_key": str(private)}, is_json=json)


@app.command()
def issue(
    subject: SubjectArgument,
    to: Annotated[str, typer.Option("--to", help="Audience of the token: node/NODE_ID.")],
    life: Annotated[str, typer.Option(help="Lifetime, at most 10m. A node accepts the token once.")] = "60s",
    ring: RingOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Print a service token, for `curl -H "authorization: Bearer TOKEN"` to a node. Needs the service's private key."""
    from service_identity import key_ring as service_ring
    from service_identity import service_tokens
    from service_identity.service_identity import ServiceIdentity

    path, life_s = ring_path(ring, data), _seconds("life", life)
    if not 0 < life_s <= service_tokens.MAX_LIFE_S:
        raise CommandFailed(f"--life must be at most {service_tokens.MAX_LIFE_S} s (got {life})", 2)
    with service_failures(path):
        kind, _ = service_tokens.parse_subject(subject)
        service_tokens.parse_subject(to)
        identity = ServiceIdentity(path, service_ring.folder_of(keys_path(path), subject), kind)
    token = identity.sign(to, life_s=life_s)
    if not token:
        raise CommandFailed(f"{subject} has no valid private key on this machine")
    if json:
        print_record({"token": token, "subject": subject, "audience": to, "life_s": life_s}, is_json=True)
    else:
        typer.echo(token)


@app.command("list")
def list_(ring: RingOption = None, data: DataOption = None, json: JsonOption = False) -> None:
    """List all keys of the ring."""
    path = ring_path(ring, data)
    print_rows(inventory(path), COLUMNS, is_json=json, empty=f"no keys in {path}")


@app.command()
def revoke(
    key: Annotated[str, typer.Option("--key", help="Key id. Tokens signed with this key are rejected.")] = "",
    subject: Annotated[str, typer.Option("--subject", help="Service. All its keys are rejected.")] = "",
    token: Annotated[str, typer.Option("--token", help="Token id (jti). Only this token is rejected.")] = "",
    ring: RingOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Revoke a key, a service or one token. Their connections are closed within seconds."""
    from service_identity import key_ring as service_ring

    if sum(map(bool, (key, subject, token))) != 1:
        raise CommandFailed("pass exactly one of --key, --subject and --token", 2)
    now_s = time.time()
    path = ring_path(ring, data)
    if token and not re.fullmatch("[0-9a-f]{32}", token):
        raise CommandFailed("--token must have 32 hexadecimal digits", 2)

    def revoked(old: Ring) -> Ring:
        if key:
            return service_ring.with_key_revoked(old, key, now_s=now_s)
        if subject:
            return service_ring.with_subject_revoked(old, subject, now_s=now_s)
        return service_ring.with_token_revoked(old, token, now_s=now_s)

    kind = "key" if key else "subject" if subject else "token"
    _read(path)
    change_ring_and_audit(path, data, f"service_{kind}.revoke", key or subject or token, subject, revoked)
    print_record({"revoked": kind, "id": key or subject or token}, is_json=json)


@app.command()
def reinstate(
    subject: SubjectArgument, ring: RingOption = None, data: DataOption = None, json: JsonOption = False
) -> None:
    """Allow a revoked service again. Its old keys stay revoked: create a new key for it."""
    from service_identity import key_ring as service_ring

    path = ring_path(ring, data)
    edit: Callable[[Ring], Ring] = lambda old: service_ring.with_subject_reinstated(old, subject)  # noqa: E731
    _read(path)
    change_ring_and_audit(path, data, "service_subject.reinstate", subject, subject, edit)
    print_record({"reinstated": subject}, is_json=json)


def ring_path(ring: Path | None, data: Path | None) -> Path:
    """Return the key ring's file: `ring`, or that of the environment or of a data directory. Raises CommandFailed."""
    if ring is not None:
        return ring
    from_environment = os.environ.get("HEARTH_SERVICE_RING", "")
    if from_environment and data is None:
        return Path(from_environment)
    return Path(Target.find(data).require("HEARTH_SERVICE_RING"))


def inventory(path: Path) -> list[dict[str, Any]]:
    """Return all keys of a ring as rows with COLUMNS. Raises CommandFailed."""
    from service_identity.key_ring import status_of

    found = _read(path)
    return [{**_shown(key), "status": status_of(key, found, time.time())} for key in found.keys]


def change_ring_and_audit(
    path: Path, data: Path | None, action: str, id_: str, detail: str, change: Callable[[Ring], Ring]
) -> None:
    """Change the ring, and append an audit entry if the platform's database is known. Raises CommandFailed."""
    with service_failures(path):
        asyncio.run(_change_and_audit(path, data, action, id_, detail, change))


@contextlib.contextmanager
def service_failures(ring: Path) -> Iterator[None]:
    """Convert errors of service keys to CommandFailed."""
    from service_identity.key_ring import UnsafeKeyFile

    try:
        yield
    except (UnsafeKeyFile, PlatformError) as error:
        raise CommandFailed(str(error)) from None
    except ValueError as error:
        raise CommandFailed(str(error), 2) from None
    except OSError as error:
        raise CommandFailed(f"{ring}: {error.strerror}") from None


async def _change_and_audit(
    path: Path, data: Path | None, action: str, id_: str, detail: str, change: Callable[[Ring], Ring]
) -> None:
    from cli.audit_entries import audit_entry
    from service_identity import key_ring as service_ring

    async with contextlib.AsyncExitStack() as stack:
        target = _platform_of(path, data)
        if target is not None:
            database = await stack.enter_async_context(target.database())
            connection = await stack.enter_async_context(database.transaction())
            await audit_entry(action, id_, detail)(connection)
        service_ring.change_ring(path, change, now_s=time.time())


def _platform_of(path: Path, data: Path | None) -> Target | None:
    """Return the platform that uses this ring, or None if this machine (a node's) does not know its database."""
    if data is None and not os.environ.get("DATABASE_URL"):
        with contextlib.suppress(CommandFailed):
            found = Target.find(None)
            return found if found.environ.get("HEARTH_SERVICE_RING") == str(path.resolve()) else None
        return None
    return Target.find(data)


def _read(path: Path) -> Ring:
    from service_identity.key_ring import read_ring

    with service_failures(path):
        return read_ring(path).ring


def _shown(key: PublicKey) -> dict[str, Any]:
    def shown_time(at_s: int) -> str:
        return datetime.fromtimestamp(at_s, UTC).isoformat()

    times = {"not_before": shown_time(key.not_before), "not_after": shown_time(key.not_after)}
    return {"kid": key.kid, "subject": key.subject, "pop": key.pop, **times, "public": key.public}


def _seconds(option: str, text: str) -> int:
    period_s = parse_period(text)
    if period_s is None:
        raise CommandFailed(f"--{option} must be a period such as 60s, 1h or 7d (got {text!r})", 2)
    return period_s

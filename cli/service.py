"""`hearth service`: the keys by which gateways and nodes prove themselves. Asks `service_identity.key_ring` and prints.

What is secret of a key never leaves its file: no command prints one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.output import CommandFailed, JsonOption, print_record, print_rows
from cli.target import DataOption, Target
from local_platform.errors import PlatformError
from local_platform.service_keys import LIFE_DAYS, ensure_key, keys_path

if TYPE_CHECKING:
    from service_identity.service_tokens import PublicKey, Ring

app = typer.Typer(help="Keys and tokens of gateways and nodes.", no_args_is_help=True)
COLUMNS = ("kid", "subject", "place", "status", "not_before", "not_after", "public")
_PERIOD = re.compile(r"(\d{1,5})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

SubjectArgument = Annotated[
    str, typer.Argument(help="gateway/NAME, node/NODE_ID or operator/NAME.", show_default=False)
]
RingOption = Annotated[
    Path | None, typer.Option("--ring", help="The ring's file; HEARTH_SERVICE_RING or the platform's unless given.")
]
DaysOption = Annotated[int, typer.Option("--days", min=1, max=3650, help="Days that the key is good for.")]
PlaceOption = Annotated[str, typer.Option("--place", help="The PoP that a node with this key is in, and no other.")]


@app.command()
def make(
    subject: SubjectArgument,
    place: PlaceOption = "",
    days: DaysOption = LIFE_DAYS,
    ring: RingOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Make a key pair: the private half into a folder beside the ring, the public one into the ring."""
    from service_identity import key_ring as service_ring

    path = ring_path(ring, data)
    made, row = _made(path, subject, place, days, start_s=time.time())
    _change(path, data, "service_key.make", row.kid, subject, lambda old: service_ring.with_key(old, row))
    print_record({**_shown(row), "private_key": str(made)}, is_json=json)


@app.command()
def ensure(
    services: Annotated[
        list[str],
        typer.Argument(help="gateway/NAME or node/NODE_ID; node/NODE_ID@POP for one of that PoP.", show_default=False),
    ],
    ring: RingOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Make the keys that are not there yet or end within a month, and leave the others: for a start, any number of
    times."""
    path = ring_path(ring, data)
    rows = []
    for service in services:
        subject, _, place = service.partition("@")
        made: list[str] = []

        def change(kid: str, how: Callable[[Ring], Ring], subject: str = subject, made: list[str] = made) -> None:
            _change(path, data, "service_key.make", kid, subject, how)
            made.append(kid)

        try:
            folder = ensure_key(path, subject, place, change)
        except PlatformError as error:
            raise CommandFailed(str(error)) from None
        rows.append({"subject": subject, "place": place, "keys": str(folder), "is_new": bool(made)})
    print_rows(rows, ("subject", "place", "keys", "is_new"), is_json=json, empty="nothing asked")


@app.command()
def add(
    subject: SubjectArgument,
    public: Annotated[str, typer.Argument(help="The public half, as `make` shows it where the key was made.")],
    place: PlaceOption = "",
    days: DaysOption = LIFE_DAYS,
    ring: RingOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Take a key into the ring whose private half was made on another machine, and stays there."""
    from service_identity import key_ring as service_ring

    try:
        row = service_ring.public_key(public, subject, start_s=time.time(), life_days=days, place=place)
    except ValueError as error:
        raise CommandFailed(str(error), 2) from None
    path = ring_path(ring, data)
    _change(path, data, "service_key.add", row.kid, subject, lambda old: service_ring.with_key(old, row))
    print_record(_shown(row), is_json=json)


@app.command()
def rotate(
    subject: SubjectArgument,
    overlap: Annotated[str, typer.Option(help="How long the keys it has go on beside the new one.")] = "1h",
    starts: Annotated[str, typer.Option(help="When the new one is first used: time for the ring to be copied.")] = "0s",
    days: DaysOption = LIFE_DAYS,
    ring: RingOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Make a new key for a service, of the place it has; the process finds it by itself within a second."""
    from service_identity import key_ring as service_ring

    path = ring_path(ring, data)
    known = [key for key in _read(path).keys if key.subject == subject]
    if not known:
        raise CommandFailed(f"no key of {subject} in {path}")
    place = service_ring.newest_key(known).place
    made, row = _made(path, subject, place, days, start_s=time.time() + _seconds("starts", starts))
    overlap_s = _seconds("overlap", overlap)
    rotated: Callable[[Ring], Ring] = lambda old: service_ring.rotated(old, row, overlap_s=overlap_s)  # noqa: E731
    _change(path, data, "service_key.rotate", row.kid, subject, rotated)
    print_record({**_shown(row), "private_key": str(made)}, is_json=json)


@app.command()
def issue(
    subject: SubjectArgument,
    to: Annotated[str, typer.Option("--to", help="Who is to believe it, as node/NODE_ID.")],
    life: Annotated[str, typer.Option(help="How long it is good, at most 10m; a node takes it once.")] = "60s",
    ring: RingOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Print a token of a service whose private key is here, for `curl -H "authorization: Bearer TOKEN"` to a node."""
    from service_identity import key_ring as service_ring
    from service_identity import service_tokens
    from service_identity.service_identity import ServiceIdentity

    path, life_s = ring_path(ring, data), _seconds("life", life)
    if not 0 < life_s <= service_tokens.MAX_LIFE_S:
        raise CommandFailed(f"--life: at most {service_tokens.MAX_LIFE_S} s", 2)
    try:
        kind, _ = service_tokens.parse_subject(subject)
        service_tokens.parse_subject(to)
        identity = ServiceIdentity(path, service_ring.folder_of(keys_path(path), subject), kind)
    except ValueError as error:
        raise CommandFailed(str(error), 2) from None
    except service_ring.UnsafeKeyFile as error:
        raise CommandFailed(str(error)) from None
    token = identity.sign(to, life_s=life_s)
    if not token:
        raise CommandFailed(f"{subject} has no key here that is good now")
    if json:
        print_record({"token": token, "subject": subject, "audience": to, "life_s": life_s}, is_json=True)
    else:
        typer.echo(token)


@app.command("list")
def list_(ring: RingOption = None, data: DataOption = None, json: JsonOption = False) -> None:
    """Every key of the ring, with what it may speak for."""
    path = ring_path(ring, data)
    print_rows(inventory(path), COLUMNS, is_json=json, empty=f"no keys in {path}")


@app.command()
def revoke(
    key: Annotated[str, typer.Option("--key", help="A key's id: nothing that it signed counts any more.")] = "",
    subject: Annotated[str, typer.Option("--subject", help="A service: no key of its counts, now or later.")] = "",
    token: Annotated[str, typer.Option("--token", help="A token's id (jti): it alone does not count any more.")] = "",
    ring: RingOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Take a key, a service or one token out of use; connections that it opened are closed within seconds."""
    from service_identity import key_ring as service_ring

    if sum(map(bool, (key, subject, token))) != 1:
        raise CommandFailed("one of --key, --subject and --token is needed", 2)
    now_s = time.time()
    path = ring_path(ring, data)
    if token and not re.fullmatch("[0-9a-f]{32}", token):
        raise CommandFailed("--token: a token's id has 32 hexadecimal digits", 2)

    def revoked(old: Ring) -> Ring:
        if key:
            return service_ring.with_key_revoked(old, key, now_s=now_s)
        if subject:
            return service_ring.with_subject_revoked(old, subject, now_s=now_s)
        return service_ring.with_token_revoked(old, token, now_s=now_s)

    what = "key" if key else "subject" if subject else "token"
    _read(path)
    _change(path, data, f"service_{what}.revoke", key or subject or token, subject, revoked)
    print_record({"revoked": what, "id": key or subject or token}, is_json=json)


@app.command()
def reinstate(
    subject: SubjectArgument, ring: RingOption = None, data: DataOption = None, json: JsonOption = False
) -> None:
    """Let a revoked service back in. Its old keys stay revoked: make it a new one."""
    from service_identity import key_ring as service_ring

    path = ring_path(ring, data)
    back: Callable[[Ring], Ring] = lambda old: service_ring.with_subject_reinstated(old, subject)  # noqa: E731
    _read(path)
    _change(path, data, "service_subject.reinstate", subject, subject, back)
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
    """Every key of a ring as people see it, by COLUMNS. Raises CommandFailed."""
    found = _read(path)
    return [{**_shown(key), "status": status_of(key, found, time.time())} for key in found.keys]


def status_of(key: PublicKey, ring: Ring, now_s: float) -> str:
    """In a word."""
    if key.revoked_at or key.subject in ring.revoked_subjects:
        return "revoked"
    if now_s >= key.not_after:
        return "expired"
    return "active" if now_s >= key.not_before else "not yet"


def _made(ring: Path, subject: str, place: str, days: int, *, start_s: float) -> tuple[Path, PublicKey]:
    """A fresh private key's file, and its public row. Raises CommandFailed."""
    from service_identity import key_ring as service_ring

    try:
        private = service_ring.generate()
        public = service_ring.public_half(private)
        row = service_ring.public_key(public, subject, start_s=start_s, life_days=days, place=place)
        if ring.exists() and subject in _read(ring).revoked_subjects:
            raise ValueError(f"{subject} is revoked; `hearth service reinstate` lets it back in first")
        return service_ring.write_private_key(service_ring.folder_of(keys_path(ring), subject), private), row
    except ValueError as error:
        raise CommandFailed(str(error), 2) from None
    except OSError as error:
        raise CommandFailed(f"{ring.parent}: {error.strerror}") from None


def _change(path: Path, data: Path | None, action: str, id_: str, detail: str, change: Callable[[Ring], Ring]) -> None:
    """Change the ring; where the ledger is known, the audit tells of it: both or neither. Raises CommandFailed."""
    from service_identity import key_ring as service_ring

    try:
        asyncio.run(_change_and_tell(path, data, action, id_, detail, change))
    except service_ring.UnsafeKeyFile as error:
        raise CommandFailed(str(error)) from None
    except ValueError as error:
        raise CommandFailed(str(error), 2) from None
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror}") from None


async def _change_and_tell(
    path: Path, data: Path | None, action: str, id_: str, detail: str, change: Callable[[Ring], Ring]
) -> None:
    from cli.audit_entries import audit_entry
    from service_identity import key_ring as service_ring

    async with contextlib.AsyncExitStack() as stack:
        target = _ledger_of(path, data)
        if target is not None:
            database = await stack.enter_async_context(target.database())
            connection = await stack.enter_async_context(database.transaction())
            await audit_entry(action, id_, detail)(connection)
        service_ring.change_ring(path, change, now_s=time.time())


def _ledger_of(path: Path, data: Path | None) -> Target | None:
    """The platform whose ring this is; None where this machine knows no ledger, as a node's does not."""
    if data is None and not os.environ.get("DATABASE_URL"):
        with contextlib.suppress(CommandFailed):
            found = Target.find(None)
            return found if found.environ.get("HEARTH_SERVICE_RING") == str(path.resolve()) else None
        return None
    return Target.find(data)


def _read(path: Path) -> Ring:
    from service_identity import key_ring as service_ring

    try:
        return service_ring.read_ring(path).ring
    except service_ring.UnsafeKeyFile as error:
        raise CommandFailed(str(error)) from None


def _shown(key: PublicKey) -> dict[str, Any]:
    def shown_time(at_s: int) -> str:
        return datetime.fromtimestamp(at_s, UTC).isoformat()

    times = {"not_before": shown_time(key.not_before), "not_after": shown_time(key.not_after)}
    return {"kid": key.kid, "subject": key.subject, "place": key.place, **times, "public": key.public}


def _seconds(option: str, text: str) -> int:
    match = _PERIOD.fullmatch(text)
    if match is None:
        raise CommandFailed(f"--{option}: expected a period such as 60s, 1h or 7d", 2)
    return int(match[1]) * _SECONDS[match[2]]

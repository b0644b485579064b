"""`hearth service`: keys are created, rotated, listed and revoked; no secret is printed."""

from __future__ import annotations

import csv
import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli import main
from cli.target import Target
from scripts.evidence import service_keys
from service_identity.key_ring import read_ring
from service_identity.service_identity import ServiceIdentity

Hearth = Callable[..., Any]


@pytest.fixture
def ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a key ring on a machine without a database."""
    for env in ("DATABASE_URL", "HEARTH_SERVICE_RING"):
        monkeypatch.delenv(env, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "far" / "ring.json"


@pytest.fixture
def service(ring: Path, capsys: pytest.CaptureFixture[str]) -> Hearth:
    """Run `hearth service` on the ring. Return its standard output, or its standard error if it fails with `status`."""

    def run(*arguments: str, status: int = 0) -> Any:
        assert main.run(["service", *arguments, "--ring", str(ring), "--json"]) == status
        captured = capsys.readouterr()
        return json.loads(captured.err)["error"]["message"] if status else json.loads(captured.out)

    return run


def identity(ring: Path, subject: str) -> ServiceIdentity:
    folder = ring.parent / "keys" / subject.replace("/", "-")
    return ServiceIdentity(ring, folder, subject.split("/")[0])  # type: ignore[arg-type]


def test_service_key_is_created_used_rotated_revoked_and_reinstated(service: Hearth, ring: Path):
    """Create, use, rotate, revoke and reinstate a key. `test_audited_commands.py` tests the audit entries."""
    made = service("make", "node/n1", "--pop", "fra")
    private = Path(made["private_key"])
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    service("make", "operator/ann")
    node = identity(ring, "node/n1")
    first = service("issue", "operator/ann", "--to", "node/n1")["token"]
    assert node.verify_once(first, {"operator"}) is not None
    rotated = service("rotate", "node/n1", "--overlap", "10m")
    rows = {row["kid"]: row for row in service("list")}
    assert {rows[made["kid"]]["status"], rows[rotated["kid"]]["status"]} == {"active"}
    assert rows[rotated["kid"]]["pop"] == "fra"
    assert rows[made["kid"]]["not_after"] < rows[rotated["kid"]]["not_after"]
    second = service("issue", "operator/ann", "--to", "node/n1", "--life", "10m")["token"]
    service("revoke", "--subject", "operator/ann")
    assert identity(ring, "node/n1").verify_once(second, {"operator"}) is None
    assert "revoked" in service("make", "operator/ann", status=2)
    service("reinstate", "operator/ann")
    assert "no valid private key" in service("issue", "operator/ann", "--to", "node/n1", status=1)
    service("make", "operator/ann")
    third = service("issue", "operator/ann", "--to", "node/n1")["token"]
    assert identity(ring, "node/n1").verify_once(third, {"operator"}) is not None
    service("revoke", "--key", rotated["kid"])
    service("revoke", "--token", "ab" * 16)
    assert "ab" * 16 in read_ring(ring).ring.revoked_tokens
    assert {row["kid"]: row["status"] for row in service("list")}[rotated["kid"]] == "revoked"


def test_ensure_creates_missing_keys_and_leaves_existing_ones(service: Hearth, ring: Path):
    first = service("ensure", "gateway/g", "node/n1@fra")
    assert [row["is_new"] for row in first] == [True, True]
    assert [row["is_new"] for row in service("ensure", "gateway/g", "node/n1@fra")] == [False, False]
    assert identity(ring, "node/n1").pop == "fra"
    for pop in ("iad", "fra", "lhr", "iad"):  # several rotations within one second
        (moved,) = service("ensure", f"node/n1@{pop}")
        assert moved["is_new"]
        assert identity(ring, "node/n1").pop == pop
    for path in Path(moved["keys"]).iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    service("revoke", "--subject", "node/n1")
    assert "reinstate" in service("ensure", "node/n1@iad", status=1)
    assert "node/NAME" in service("ensure", "n1", status=1)


def test_key_that_expires_within_a_month_is_renewed(service: Hearth):
    service("make", "node/n1", "--days", "29")
    assert service("ensure", "node/n1")[0]["is_new"]
    service("make", "node/n2", "--days", "31")
    assert not service("ensure", "node/n2")[0]["is_new"]


def test_key_of_another_machine_is_added_by_its_public_key(service: Hearth, ring: Path, tmp_path: Path):
    made = service("make", "gateway/g2")
    near = tmp_path / "near.json"
    assert main.run(["service", "add", "gateway/g2", made["public"], "--ring", str(near), "--json"]) == 0
    assert ServiceIdentity(near, Path(made["private_key"]).parent, "gateway").sign("node/n1")


def test_no_command_prints_a_private_key(service: Hearth, ring: Path, capsys: Any):
    for command in (["make", "node/n1"], ["rotate", "node/n1"], ["list"], ["revoke", "--subject", "node/n1"]):
        for how in ([], ["--json"]):
            main.run(["service", *command, "--ring", str(ring), *how])
    said = "".join(capsys.readouterr())
    secrets = ["".join(path.read_text().splitlines()[1:-1]) for path in ring.parent.rglob("*.pem")]
    assert len(secrets) >= 3
    assert not [secret for secret in secrets if secret in said]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["make", "n1"], "node/NAME"),
        (["make", "gateway/g", "--pop", "fra"], "only the key of a node"),
        (["make", "node/../../x"], "node/NAME"),
        (["add", "node/n1", "abc"], "64 hexadecimal"),
        (["add", "node/n1", "zz" * 32], "64 hexadecimal"),
        (["issue", "node/n1", "--to", "everybody"], "node/NAME"),
        (["issue", "node/n1", "--to", "node/n2", "--life", "11m"], "at most 600 s"),
        (["rotate", "node/n1", "--overlap", "soon"], "--overlap"),
        (["revoke"], "one of --key"),
        (["revoke", "--key", "nothing"], "no key nothing"),
        (["revoke", "--token", "nothing"], "32 hexadecimal"),
        (["reinstate", "node/n9"], "not revoked"),
    ],
)
def test_invalid_arguments_are_rejected(service: Hearth, arguments: list[str], says: str):
    if arguments[0] != "make":
        service("make", "node/n1")
    assert says in service(*arguments, status=2)


def test_evidence_pack_has_the_inventory_of_service_keys(service: Hearth, ring: Path):
    assert service_keys(Target({"HEARTH_SERVICE_RING": str(ring)}, None)) == {}
    made = service("make", "node/n1", "--pop", "fra")
    service("revoke", "--key", made["kid"])
    text = service_keys(Target({"HEARTH_SERVICE_RING": str(ring)}, None))["service_keys.csv"]
    (row,) = csv.DictReader(text.splitlines())
    assert (row["kid"], row["subject"], row["pop"], row["status"]) == (made["kid"], "node/n1", "fra", "revoked")


def test_damaged_ring_is_not_changed(service: Hearth, ring: Path):
    service("make", "node/n1")
    ring.write_text("{}")
    assert "not a valid ring" in service("make", "node/n2", status=1)
    assert ring.read_text() == "{}"
    ring.unlink()
    service("make", "node/n2")
    assert len(read_ring(ring).ring.keys) == 1

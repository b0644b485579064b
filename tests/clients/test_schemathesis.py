"""schemathesis on `/openapi.json` with valid and invalid data: no response is a 5xx error, every error has the
envelope, and responses match the document. The seed is fixed.

Models and finetunes are called with an API token; tokens, accounts and users with a global key on an account for this
test, which is never deleted.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.process import HANDY
from tests.gateway.site import Running, Site

SEED, MAX_EXAMPLES = "20261122", "6"
CHECKS = (
    "not_a_server_error",
    "content_type_conformance",
    "response_schema_conformance",
    "allow_header_conformance",
    "refusals_have_the_envelope",
)
OF_TENANTS = "/(tokens|memberships|user|audit_logs)|/accounts(/\\{account_id\\})?$"
CONFIG = """
[parameters]
"path.account_id" = "{account_id}"
"path.model" = "{model}"
"""


@pytest.fixture(scope="module")
def running(migrated_sqlite_file: Path) -> Iterator[Running]:
    """A gateway with a fake node that responds immediately."""
    site = Site(migrated_sqlite_file)
    site.add_node("n1")
    yield Running(site, site.gateway(OBJECTS_URL=f"file://{site.folder / 'objects'}").start())
    site.close()


@pytest.mark.full
@pytest.mark.timeout(600)  # takes a minute on an idle machine
@pytest.mark.parametrize("of_tenants", [False, True], ids=["models", "tenants"])
def test_generated_requests_cause_no_internal_error(
    clients_env: Path, running: Running, tmp_path: Path, of_tenants: bool
):
    config = tmp_path / "schemathesis.toml"
    tenants = running.tenants
    account_id = tenants.other_account_id if of_tenants else tenants.account_id
    config.write_text(CONFIG.format(account_id=account_id, model=HANDY))
    headers = running.headers("global key" if of_tenants else "write")
    chosen = ["--include-path-regex", OF_TENANTS, "--exclude-operation-id", "delete_accounts_account_id"]
    if not of_tenants:
        chosen = ["--exclude-path-regex", f"^/(metrics|readyz)$|{OF_TENANTS}"]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "SCHEMATHESIS_HOOKS": "schemathesis_hooks",
        "PYTHONPATH": str(Path(__file__).parent / "python"),
        "HEARTH_CHAT_MODEL": HANDY,
    }
    command = [clients_env / "bin/schemathesis", "--config-file", config, "run", f"{running.gateway.url}/openapi.json",
               "--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing", "--mode", "all", "--no-shrink",
               "--seed", SEED, "--max-examples", MAX_EXAMPLES, "--suppress-health-check", "all", "--warnings", "off",
               *(word for name, value in headers.items() for word in ("--header", f"{name}: {value}")),
               *chosen, "--request-timeout", "30", "--continue-on-failure"]  # fmt: skip
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    print(done.stdout[-1500:])  # noqa: T201 - its own counts
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-2000:]
    assert running.gateway.metric("hearth_internal_errors_total") == 0

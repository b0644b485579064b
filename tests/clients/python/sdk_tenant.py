"""A pytest plugin beside the Cloudflare SDK's own test files (`tests/clients/sdk_suite.py`): the account that they
delete many times over is there before each time, and the name of the finetune that they make is free. Runs in the
clients' environment, which has nothing of ours."""

import os
import urllib.request

import pytest

USED_UP = {"test_accounts.py": "_delete", "test_finetunes.py": "_create"}


@pytest.fixture(autouse=True)
def _what_was_used_up_is_there(request: pytest.FixtureRequest) -> None:
    if USED_UP.get(request.node.path.name, "no test") in request.node.name:
        urllib.request.urlopen(os.environ["SDK_TENANT_URL"], timeout=30).read()

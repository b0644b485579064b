"""A pytest plugin for the Cloudflare SDK's own test suite (`tests/clients/sdk_suite.py`): before each test that needs
it, restores the account that the suite deletes and frees the name of the finetune that it creates. Runs in the
clients' environment, which has no module of the project.
"""

import os
import urllib.request

import pytest

USED_UP = {"test_accounts.py": "_delete", "test_finetunes.py": "_create"}


@pytest.fixture(autouse=True)
def _what_was_used_up_is_there(request: pytest.FixtureRequest) -> None:
    if USED_UP.get(request.node.path.name, "no test") in request.node.name:
        urllib.request.urlopen(os.environ["SDK_TENANT_URL"], timeout=30).read()

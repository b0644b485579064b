"""A pytest plugin beside the Cloudflare SDK's own test files (`sdk_suite.py`): the account that they delete many times
over is there before each time. Runs in the clients' environment, which has nothing of ours."""

import os
import urllib.request

import pytest


@pytest.fixture(autouse=True)
def _the_account_is_there(request: pytest.FixtureRequest) -> None:
    if request.node.path.name == "test_accounts.py" and "_delete" in request.node.name:
        urllib.request.urlopen(os.environ["SDK_TENANT_URL"], timeout=30).read()

"""The plan of a local platform."""

import pytest

from local_platform.plan import Plan, plan_nodes


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", "http://127.0.0.1:9000,http://localhost:9000"),
        ("0.0.0.0", "http://127.0.0.1:9000,http://localhost:9000"),
        ("192.0.2.1", "http://127.0.0.1:9000,http://192.0.2.1:9000,http://localhost:9000"),
        ("::1", "http://127.0.0.1:9000,http://[::1]:9000,http://localhost:9000"),
    ],
)
def test_own_origins_are_those_that_browsers_on_this_machine_use(host: str, expected: str):
    assert Plan(host, 9000, {}).browser_origins == expected


def test_nodes_of_one_machine_share_its_memory():
    assert Plan("127.0.0.1", 9000, plan_nodes("lis,fra", 2)).memory_share == 0.25

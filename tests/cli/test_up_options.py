import socket

import pytest

from cli.embedded import Plan
from cli.output import CommandFailed
from cli.progress import Progress
from cli.ready_text import ready_text
from cli.up import free_port, plan_nodes, why_not_listen

DEV = {
    "base_url": "http://127.0.0.1:8787/client/v4",
    "account_id": "a" * 32,
    "api_token": "cfut_secret",
    "chat_model": "@cf/hearth/spark",
    "embed_model": "@cf/hearth/minilm",
}


def test_each_pop_gets_a_node_unless_told_otherwise():
    assert plan_nodes("lis,fra", None) == {"lis-1": "lis", "fra-1": "fra"}


def test_nodes_are_dealt_out_to_the_pops_in_turn():
    assert plan_nodes("lis, fra", 3) == {"lis-1": "lis", "fra-1": "fra", "lis-2": "lis"}


@pytest.mark.parametrize(
    ("pops", "nodes", "problem"),
    [
        ("lis,fra", 1, "--nodes"),
        ("local", 65, "--nodes"),
        ("lis,lis", None, "twice"),
        ("", None, "--pops"),
        ("lis,", None, "--pops"),
        ("LIS", None, "--pops"),
        ("../x", None, "--pops"),
        ("x" * 17, None, "--pops"),
    ],
)
def test_a_plan_that_cannot_work_is_refused_naming_its_option(pops: str, nodes: int | None, problem: str):
    with pytest.raises(CommandFailed, match=problem) as caught:
        plan_nodes(pops, nodes)
    assert caught.value.exit_code == 2


def test_a_port_in_use_is_known_before_anything_starts():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "in use" in str(why_not_listen("127.0.0.1", taken.getsockname()[1]))
    assert why_not_listen("127.0.0.1", free_port("127.0.0.1")) is None


def test_an_address_that_is_not_this_machine_s_is_known_too():
    assert why_not_listen("192.0.2.1", 8787) is not None


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1", "http://127.0.0.1:9000"),
        ("0.0.0.0", "http://127.0.0.1:9000"),
        ("::", "http://[::1]:9000"),
        ("localhost", "http://localhost:9000"),
    ],
)
def test_clients_on_this_machine_are_told_an_address_that_they_can_reach(host: str, origin: str):
    assert Plan(host, 9000, {"local-1": "local"}).origin == origin


def test_the_ready_text_holds_calls_that_can_be_copied():
    text = ready_text(DEV, "/data")
    url = f"http://127.0.0.1:8787/client/v4/accounts/{'a' * 32}/ai/run/@cf/hearth/spark"
    assert text.count(f"curl {url}") == 1
    assert text.count(f"curl -N {url}") == 1
    assert text.count("Authorization: Bearer cfut_secret") == 2
    assert '"stream": true' in text
    assert "http://127.0.0.1:8787/docs\n" in text


def test_the_time_that_stopping_took_is_told_and_not_the_platform_s_age(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    now = iter([100.0, 104.3, 5000.0, 5000.5])
    monkeypatch.setattr("cli.progress.time.monotonic", lambda: next(now))
    with Progress() as progress:
        progress.done("ready")
        progress.begin_anew()
        progress.done("drained and stopped")
    assert capsys.readouterr().err == "hearth: ready (4.3 s)\nhearth: drained and stopped (0.5 s)\n"

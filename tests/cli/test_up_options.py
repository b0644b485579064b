import socket
from pathlib import Path

import pytest

from catalog.builtin import STARTER
from cli.progress import Progress
from cli.ready_text import ready_text
from local_platform.plan import MINILM, SPARK, Plan, free_port, listen_error, plan_models, plan_nodes

DEV = {
    "base_url": "http://127.0.0.1:8787/client/v4",
    "account_id": "a" * 32,
    "api_token": "cfut_secret",
    "chat_model": "@cf/hearth/spark",
    "embed_model": "@cf/hearth/minilm",
}


def test_each_pop_gets_one_node_by_default():
    assert plan_nodes("lis,fra", None) == {"lis-1": "lis", "fra-1": "fra"}


def test_each_pop_gets_the_number_of_nodes():
    assert plan_nodes("lis, fra", 2) == {"lis-1": "lis", "fra-1": "fra", "lis-2": "lis", "fra-2": "fra"}


@pytest.mark.parametrize(
    ("pops", "nodes", "problem"),
    [
        ("lis,fra", 0, "--nodes"),
        ("lis,fra", 33, "--nodes"),
        ("local", 65, "--nodes"),
        ("lis,lis", None, "twice"),
        ("", None, "--pops"),
        ("lis,", None, "--pops"),
        ("LIS", None, "--pops"),
        ("../x", None, "--pops"),
        ("x" * 17, None, "--pops"),
    ],
)
def test_invalid_plan_is_rejected_naming_the_option(pops: str, nodes: int | None, problem: str):
    with pytest.raises(ValueError, match=problem):
        plan_nodes(pops, nodes)


def test_port_in_use_is_detected():
    with socket.socket() as blocker:
        blocker.bind(("127.0.0.1", 0))
        blocker.listen()
        assert "in use" in str(listen_error("127.0.0.1", blocker.getsockname()[1]))
    assert listen_error("127.0.0.1", free_port("127.0.0.1")) is None


def test_address_of_another_machine_is_detected():
    assert listen_error("192.0.2.1", 8787) is not None


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1", "http://127.0.0.1:9000"),
        ("0.0.0.0", "http://127.0.0.1:9000"),
        ("::", "http://[::1]:9000"),
        ("localhost", "http://localhost:9000"),
    ],
)
def test_origin_is_reachable_from_this_machine(host: str, origin: str):
    assert Plan(host, 9000, {"local-1": "local"}).origin == origin


def test_ready_text_has_commands_that_can_be_copied():
    text = ready_text(DEV, Path("/data"))
    url = f"http://127.0.0.1:8787/client/v4/accounts/{'a' * 32}/ai/run/@cf/hearth/spark"
    assert text.count(f"curl {url}") == 1
    assert text.count(f"curl -N {url}") == 1
    assert text.count("Authorization: Bearer cfut_secret") == 2
    assert '"stream": true' in text
    assert "http://127.0.0.1:8787/docs\n" in text
    assert "hearth token create --admin --data /data\n" in text
    assert "hearth token create --admin\n" in ready_text(DEV, Path(".hearth").resolve())


def test_progress_measures_the_drain_from_its_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    now = iter([100.0, 104.3, 5000.0, 5000.5])
    monkeypatch.setattr("cli.progress.time.monotonic", lambda: next(now))
    with Progress() as progress:
        progress.done("ready")
        progress.restart_clock()
        progress.done("drained and stopped")
    assert capsys.readouterr().err == "hearth: ready (4.3 s)\nhearth: drained and stopped (0.5 s)\n"


def test_nodes_load_the_starter_model_if_it_is_wanted_and_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("catalog.builtin.find_folder", lambda name: Path("/somewhere"))
    assert plan_models({}, has_starter=True) == (STARTER, MINILM)
    assert plan_models({}, has_starter=False) == (SPARK, MINILM)
    monkeypatch.setattr("catalog.builtin.find_folder", lambda name: None)
    assert plan_models({}, has_starter=True) == (SPARK, MINILM)


def test_models_of_the_setting_take_precedence_over_the_starter_model():
    assert plan_models({"HEARTH_NODE_MODELS": "@cf/a/b, @cf/c/d"}, has_starter=True) == ("@cf/a/b", "@cf/c/d")

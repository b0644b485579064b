import contextlib
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli import main
from cli.settings import settings_lines
from engine.kernels.native.library import find_library_path
from local_platform.data_dir import DataDir
from local_platform.process_settings import ProcessName, settings_class
from telemetry.settings import describe

HEAVY = ("sqlalchemy", "alembic", "redis", "torch", "numpy", "boto3", "httpx", "jsonschema_rs", "starlette", "pydantic")


def test_importing_the_command_imports_no_heavy_library():
    """Heavy imports would make `hearth --help` slow. The test checks imports because seconds depend on the machine."""
    script = f"import sys, cli.main; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]):
    assert main.run(["--help"]) == 0
    out = capsys.readouterr().out
    for name in ("up", "account", "token", "model", "usage", "doctor", "settings", "migrate"):
        assert f" {name} " in out


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["account", "nonsense"], ["account", "create"], ["up", "--port", "70000"], ["--nope"]]
)
def test_invalid_command_line_prints_one_line_and_exits_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
):
    assert main.run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("hearth: ")
    assert len(captured.err.splitlines()) == 1


@pytest.mark.parametrize("arguments", [[], ["account"]])
def test_command_group_without_a_command_prints_its_help(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert main.run(arguments) == 2
    assert "Usage: hearth" in "".join(capsys.readouterr())


def test_without_a_platform_the_error_names_hearth_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("DATABASE_URL", raising=False)
    assert main.run(["account", "list", "--data", str(tmp_path)]) == 1
    assert "hearth up" in capsys.readouterr().err


def test_database_without_tables_is_an_error_naming_hearth_migrate(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    data_dir = DataDir(tmp_path / "x")
    data_dir.create()
    data_dir.ensure_secrets()
    assert main.run(["account", "list", "--data", str(data_dir.path)]) == 1
    assert "hearth migrate" in capsys.readouterr().err
    assert main.run(["migrate", "--data", str(data_dir.path)]) == 0
    assert main.run(["account", "list", "--data", str(data_dir.path)]) == 0


@pytest.mark.parametrize("url", ["nonsense://x", "sqlite://relative", "postgresql://u:hunter2@127.0.0.1:1/x"])
def test_unreachable_database_is_one_line_without_its_password(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DATABASE_URL", url)
    assert main.run(["account", "list"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("hearth: ")
    assert len(err.splitlines()) == 1
    assert "hunter2" not in err


def test_data_option_takes_precedence_over_the_environment(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("DATABASE_URL", f"sqlite://{tmp_path}/other.db")
    assert main.run(["migrate"]) == 0
    assert main.run(["account", "create", "there"]) == 0
    assert main.run(["account", "create", "here", "--data", str(data)]) == 0
    capsys.readouterr()
    assert main.run(["account", "list"]) == 0
    listed = capsys.readouterr().out
    assert "there" in listed
    assert "here " not in listed.replace("there", "")


def test_second_migration_changes_nothing(hearth: Callable[..., Any]):
    done = hearth("migrate")
    assert done["before"] == done["revision"]


def test_settings_without_a_running_platform_are_those_of_the_environment(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("HEARTH_PORT", "9000")
    monkeypatch.setenv("HEARTH_TOKEN_PEPPER", "01" * 32)
    for folder, note in ((tmp_path / "none", "no platform in"), (data, "is not running")):
        assert main.run(["settings", "gateway", "--data", str(folder)]) == 0
        captured = capsys.readouterr()
        lines = {line[2:].split()[0]: line for line in captured.out.splitlines()[1:]}
        assert (lines["HEARTH_PORT"][0], lines["HEARTH_PORT"].split()[2]) == ("*", "9000")
        assert lines["HEARTH_MAX_CALLS"][0] == " "
        assert (lines["REDIS_URL"][0], lines["REDIS_URL"].split()[2]) == ("!", "-")
        assert "0101" not in captured.out
        assert captured.err.startswith("hearth: ")
        assert note in captured.err
    assert main.run(["settings", "--data", str(tmp_path / "none"), "--json"]) == 0
    rows = {row["setting"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["DATABASE_URL"]["source"], rows["DATABASE_URL"]["value"]) == ("missing", "")
    monkeypatch.setenv("HEARTH_PORT", "many")
    assert main.run(["settings", "--data", str(tmp_path / "none")]) == 1
    assert "HEARTH_PORT='many'" in capsys.readouterr().err


def test_settings_of_a_running_platform_are_listed_by_process(hearth: Callable[..., Any], data: Path):
    keys = {"HEARTH_SERVICE_KEYS": str(data / "keys")}
    environs = {
        "gateway": {"HEARTH_PORT": "9000", **keys},
        "lis-1": {"HEARTH_NODE_LISTEN": "unix:///x", "HEARTH_POP": "lis", **keys},
    }
    DataDir(data).write_dev({"redis_url": "unix:///redis", "settings": environs})
    rows = {(row["process"], row["setting"]): row for row in hearth("settings")}
    assert rows["gateway", "HEARTH_PORT"]["value"] == "9000"
    assert rows["gateway", "HEARTH_PORT"]["source"] == "set"
    assert rows["gateway", "HEARTH_MAX_CALLS"]["source"] == "default"
    assert rows["gateway", "HEARTH_TOKEN_PEPPER"]["value"] == "********"
    assert rows["lis-1", "HEARTH_POP"]["value"] == "lis"


def test_settings_of_a_deployment_are_read_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    environ = {
        "DATABASE_URL": "postgresql://hearth:hunter2@db/hearth",
        "REDIS_URL": "redis://redis:6379/0",
        "HEARTH_TOKEN_PEPPER": "01" * 32,
        "HEARTH_CACHE_SECRET": "02" * 32,
        "HEARTH_SERVICE_RING": str(tmp_path / "ring.json"),
        "HEARTH_SERVICE_KEYS": str(tmp_path / "keys"),
        "HEARTH_SPOOL_DIR": str(tmp_path),
        "HEARTH_NODE_LISTEN": "tcp://127.0.0.1:8789",
        "HEARTH_PORT": "9000",
    }
    for env, value in environ.items():
        monkeypatch.setenv(env, value)
    assert main.run(["settings"]) == 0
    out = capsys.readouterr().out
    assert "hunter2" not in out
    assert "0101" not in out
    assert "9000" in out
    assert_readable_at_80_columns()
    monkeypatch.setenv("HEARTH_PORT", "many")
    assert main.run(["settings", "gateway"]) == 1
    assert "HEARTH_PORT='many'" in capsys.readouterr().err


def assert_readable_at_80_columns() -> None:
    """Run `hearth settings` on a terminal of 80 columns: one complete line for each setting."""
    terminal, device = pty.openpty()
    environ = {**os.environ, "COLUMNS": "80"}
    process = subprocess.Popen([sys.executable, "-m", "cli.main", "settings"], stdout=device, env=environ)
    os.close(device)
    output = bytearray()
    with contextlib.suppress(OSError):  # reading fails with EIO after the process has closed the terminal
        while piece := os.read(terminal, 1 << 16):
            output += piece
    os.close(terminal)
    assert process.wait(60) == 0
    lines = output.decode().splitlines()
    assert max(map(len, lines)) <= 80
    infos = [info for process in ProcessName for info in describe(settings_class(process))]
    names = [line[2:].split()[0] for line in lines if line[:2] in ("* ", "  ")]
    assert names == [info.env for info in infos]
    assert "* HEARTH_PORT" in output.decode()
    (port,) = [line for line in lines if "HEARTH_PORT " in line]
    assert port.split()[2] == "9000"


def test_settings_lines_are_cut_to_the_width_and_complete_without_one():
    row = {"process": "node", "setting": "HEARTH_X", "value": 1, "source": "default", "help": "word " * 40}
    heading, line = settings_lines([row], 80)
    assert heading.startswith("node")
    assert len(line) == 80
    assert line.endswith("…")
    assert settings_lines([row], None)[1].endswith(row["help"].rstrip())
    long_value = settings_lines([row | {"value": "v" * 60}], 80)[1]
    assert long_value.endswith("v" * 60)


def test_doctor_fails_only_for_broken_parts(hearth: Callable[..., Any], data: Path, capsys: pytest.CaptureFixture[str]):
    checks = {check["name"]: check for check in hearth("doctor")}
    assert checks["kernels"]["result"] == ("absent" if find_library_path() is None else "ok")
    assert checks["database"]["result"] == "ok"
    assert checks["objects"]["result"] == "ok"
    assert checks["redis"]["result"] == "absent"
    assert "cores" in checks["cpu"]["detail"]
    (data / "hearth.db").write_bytes(b"this is not a database, but it is long enough to be read as one" * 100)
    assert main.run(["doctor", "--data", str(data), "--json"]) == 1
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert checks["database"]["result"] == "failed"


def test_closed_output_pipe_causes_no_traceback(data: Path):
    script = "import sys; from cli.main import run; sys.exit(run(sys.argv[1:]))"
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", script, "account", "list", "--data", str(data), "--json"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert "Traceback" not in done.stderr

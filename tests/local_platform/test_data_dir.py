import json
import os
from pathlib import Path

import pytest

from local_platform.data_dir import DataDir, DataDirInUse, Secrets
from storage.database_url import parse_database_url


@pytest.fixture
def data_dir(tmp_path: Path) -> DataDir:
    found = DataDir(tmp_path / "platform")
    found.create()
    return found


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_secrets_are_generated_once_with_mode_0600(data_dir: DataDir):
    first = data_dir.ensure_secrets()
    assert data_dir.ensure_secrets() == first
    assert len(set(first.keys.values())) == 2
    assert all(len(bytes.fromhex(key)) == 32 for key in first.keys.values())
    assert mode(data_dir.path / "secrets.json") == 0o600
    assert mode(data_dir.path) == 0o700


def test_first_account_is_stored_with_the_secrets(data_dir: DataDir):
    keys = data_dir.ensure_secrets().keys
    data_dir.write_secrets(Secrets(keys, "a" * 32, "cfut_x"))
    assert data_dir.read_secrets() == Secrets(keys, "a" * 32, "cfut_x")


@pytest.mark.parametrize("content", ['{"HEARTH_TOKEN_PEPPER": "00"}', "{", "[]", ""])
def test_damaged_secrets_file_is_an_error_and_is_not_replaced(data_dir: DataDir, content: str):
    (data_dir.path / "secrets.json").write_text(content)
    with pytest.raises(ValueError, match=r"secrets\.json is damaged"):
        data_dir.ensure_secrets()


def test_dev_json_has_mode_0600_and_is_read_back(data_dir: DataDir):
    data_dir.write_dev({"pid": 1, "api_token": "cfut_x"})
    assert mode(data_dir.path / "dev.json") == 0o600
    assert data_dir.read_dev() == {"pid": 1, "api_token": "cfut_x"}


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_unreadable_dev_json_is_treated_as_missing(data_dir: DataDir, content: str):
    (data_dir.path / "dev.json").write_text(content)
    assert data_dir.read_dev() is None


def test_second_lock_fails_with_pid_and_url_of_the_first(data_dir: DataDir):
    second = DataDir(data_dir.path).locked("http://127.0.0.1:2")
    with data_dir.locked("http://127.0.0.1:1"), pytest.raises(DataDirInUse) as caught, second:
        pass
    assert (caught.value.pid, caught.value.url) == (os.getpid(), "http://127.0.0.1:1")
    with data_dir.locked("http://127.0.0.1:3"):
        pass


def test_dev_json_of_a_killed_platform_is_deleted_by_the_next_lock(data_dir: DataDir):
    data_dir.write_dev({"pid": 999999})
    (data_dir.path / "lock").write_text(json.dumps({"pid": 999999, "url": "http://old"}))
    with data_dir.locked("http://new"):
        assert data_dir.read_dev() is None


def test_dev_json_is_deleted_when_the_lock_is_released(data_dir: DataDir):
    with data_dir.locked("http://new"):
        data_dir.write_dev({"pid": 1})
    assert data_dir.read_dev() is None


@pytest.mark.parametrize("name", ["x" * 120, "with space", "with%25", "ünïcode"])
def test_socket_folder_has_a_short_and_plain_path(tmp_path: Path, name: str):
    data_dir = DataDir(tmp_path / name)
    data_dir.create()
    folder = data_dir.run_dir()
    try:
        assert len(os.fsencode(folder / "node-abcdefghijklmnop-64.http.sock")) <= 107
        assert " " not in str(folder)
        assert mode(folder) == 0o700
        assert DataDir(tmp_path / name).run_dir() == folder
    finally:
        folder.rmdir()


def test_socket_folder_that_others_can_enter_is_rejected(data_dir: DataDir):
    data_dir.run_dir().chmod(0o755)
    with pytest.raises(PermissionError):
        data_dir.run_dir()


@pytest.mark.parametrize("name", ["plain", "with space", "100%25", "a#b?c"])
def test_store_urls_are_valid_for_any_directory_name(tmp_path: Path, name: str):
    data_dir = DataDir(tmp_path / name)
    assert parse_database_url(data_dir.environ()["DATABASE_URL"]).path == data_dir.path / "hearth.db"

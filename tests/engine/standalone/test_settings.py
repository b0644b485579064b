"""Flags of the standalone server: each is read, or rejected in one line that names the flag."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.standalone.model_folder import FolderUnusable, dtype_of, sampling_defaults
from engine.standalone.settings import read_flags
from telemetry.settings import SettingError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "torch_dtype": "float32"}')
    return tmp_path / "model"


def test_defaults_are_a_local_server_under_the_folder_s_name(folder: Path):
    settings = read_flags([str(folder)])
    assert (settings.host, settings.port, settings.kv_memory_bytes) == ("127.0.0.1", 8000, 1 << 30)
    assert settings.model_names == ("model", str(folder))
    assert (settings.api_key, settings.dtype, settings.max_model_len) == ("", "auto", 0)


def test_defaults_of_memory_and_sequences_depend_on_the_device(folder: Path):
    on_cpu, on_gpu = (read_flags([str(folder), "--device", device]) for device in ("cpu", "cuda"))
    assert (on_cpu.kv_memory_bytes, on_cpu.max_sequences) == (1 << 30, 64)
    assert (on_gpu.kv_memory_bytes, on_gpu.max_sequences) == (0, 256)
    given = read_flags([str(folder), "--device", "cuda", "--kv-memory", "2GiB", "--max-sequences", "9"])
    assert (given.kv_memory_bytes, given.max_sequences) == (2 << 30, 9)
    assert read_flags([str(folder), "--kv-memory", "auto"]).kv_memory_bytes == 1 << 30


def test_missing_attention_package_is_named(folder: Path):
    with pytest.raises(SettingError, match="--attention: cudnn: needs the package nvidia-cudnn-frontend"):
        read_flags([str(folder), "--attention", "cudnn"])


def test_flags_may_stand_before_the_folder_and_names_be_several(folder: Path):
    settings = read_flags(["--served-model-name", "a", "--served-model-name", "b/c", str(folder)])
    assert settings.model_names == ("a", "b/c")


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("2GiB", 2 << 30),
        ("512MiB", 512 << 20),
        ("1.5GB", 1_500_000_000),
        ("1048576", 1 << 20),
        ("2 gib", 2 << 30),
        ("4096KiB", 4 << 20),
    ],
)
def test_sizes_accept_common_units(folder: Path, text: str, size_bytes: int):
    assert read_flags([str(folder), "--kv-memory", text]).kv_memory_bytes == size_bytes


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--kv-memory", "2XB"),
        ("--kv-memory", "lots"),
        ("--kv-memory", "-1GiB"),
        ("--kv-memory", "1KiB"),
        ("--kv-memory", "9999999TiB"),
        ("--kv-memory", ""),
        ("--port", "65536"),
        ("--port", "http"),
        ("--port", "８０"),
        ("--host", "http://localhost"),
        ("--host", ""),
        ("--dtype", "float8"),
        ("--device", "tpu"),
        ("--max-model-len", "-1"),
        ("--max-model-len", "1e3"),
        ("--max-sequences", "0"),
        ("--threads", "many"),
        ("--api-key", ""),
        ("--api-key", "two words"),
        ("--api-key", "@/nowhere"),
        ("--served-model-name", ""),
        ("--speculation", "always"),
        ("--speculation", "draft:/nowhere"),
        ("--drain-timeout", "-1"),
        ("--drain-timeout", "nan"),
        ("--log-level", "loud"),
    ],
)
def test_invalid_value_is_rejected_by_its_flag(folder: Path, flag: str, value: str):
    with pytest.raises(SettingError, match=flag) as caught:
        read_flags([str(folder), f"{flag}={value}"])
    assert "\n" not in str(caught.value)
    assert "two words" not in str(caught.value)


def test_unknown_flags_and_missing_folder_are_rejected(folder: Path, tmp_path: Path):
    with pytest.raises(SettingError, match="--kv-memroy"):
        read_flags([str(folder), "--kv-memroy", "1GiB"])
    with pytest.raises(SettingError, match="--max-model-le"):
        read_flags([str(folder), "--max-model-le", "5"])  # abbreviated flags are rejected
    with pytest.raises(SettingError, match="MODEL_DIR"):
        read_flags([])
    with pytest.raises(SettingError, match=r"has no config\.json"):
        read_flags([str(tmp_path)])
    with pytest.raises(SettingError, match="neither a folder nor"):
        read_flags([str(folder / "config.json")])


def test_gguf_file_needs_no_hugging_face_folder(tmp_path: Path):
    (tmp_path / "small.gguf").write_bytes(b"GGUF")
    for path in (tmp_path, tmp_path / "small.gguf"):
        settings = read_flags([str(path)])
        assert settings.model_dir == path
        assert dtype_of(path) == "auto"
    assert settings.model_names[0] == "small"


def test_settings_never_show_the_key(folder: Path):
    settings = read_flags([str(folder), "--api-key", "sesame"])
    assert settings.api_key == "sesame"
    assert "sesame" not in repr(settings)


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ('{"torch_dtype": "bfloat16"}', "bfloat16"),
        ('{"dtype": "float32"}', "float32"),
        ('{"torch_dtype": "torch.bfloat16"}', "bfloat16"),
        ('{"torch_dtype": "float16"}', "auto"),
        ('{"text_config": {"dtype": "bfloat16"}}', "bfloat16"),
        ("{}", "auto"),
    ],
)
def test_dtype_is_that_of_the_config(folder: Path, config: str, dtype: str):
    (folder / "config.json").write_text(config)
    assert dtype_of(folder) == dtype


@pytest.mark.parametrize(
    ("said", "defaults"),
    [
        (None, {"temperature": 1.0}),
        ('{"do_sample": false, "temperature": 0.7}', {"temperature": 0.0}),
        ('{"do_sample": true, "temperature": 0.6, "top_p": 0.9}', {"temperature": 0.6, "top_p": 0.9}),
        ('{"top_k": -1, "eos_token_id": 3}', {"temperature": 1.0, "top_k": 0}),
    ],
)
def test_sampling_defaults_come_from_the_model(folder: Path, said: str | None, defaults: dict[str, float]):
    if said is not None:
        (folder / "generation_config.json").write_text(said)
    assert sampling_defaults(folder) == defaults


@pytest.mark.parametrize("said", ["[]", "{", '{"top_p": 7}', '{"temperature": []}'])
def test_invalid_generation_config_is_rejected_naming_the_file(folder: Path, said: str):
    (folder / "generation_config.json").write_text(said)
    with pytest.raises(FolderUnusable, match=r"generation_config\.json"):
        sampling_defaults(folder)

"""The flags of `python -m engine serve`: read once, validated, frozen.

An invalid value raises SettingError with one line that names the flag. The model's files are not checked here.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from engine.config import AUTO, DEFAULT_SPECULATION, DRAFT, KV_DTYPES, default_sequences
from engine.processes.child_link import HANG_TIMEOUT_S
from engine.serving.cuda_check import attention_fault
from engine.tasks.token_coalescer import DEFAULT_COALESCE_MS, MAX_COALESCE_MS
from telemetry.settings import SettingError

DESCRIPTION = """\
Serve one model from a folder in the Hugging Face layout over OpenAI's routes: no gateway, no account, no database.
SIGTERM or Ctrl-C lets running requests finish; a second signal stops at once."""

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]i?B)?", re.IGNORECASE)
_MAX_KEY_FILE_BYTES = 4096
_MAX_NAME_CHARACTERS = 256
_CPU_KV_BYTES = 1 << 30


@dataclass(frozen=True)
class ServeSettings:
    """Settings of a standalone server. Callers may use any of `model_names`; the first is the canonical one.

    `dtype` "config" is the precision in `config.json`; `max_model_len` 0 is the model's own context, `kv_memory_bytes`
    0 what is free.
    """

    model_dir: Path
    model_names: tuple[str, ...]
    host: str
    port: int
    device: str
    attention: str
    dtype: str
    kv_dtype: str
    max_model_len: int
    kv_memory_bytes: int
    max_sequences: int
    max_waiting: int
    max_step_tokens: int
    num_threads: int
    tensor_parallel: int
    speculation: str
    api_key: str
    drain_timeout_s: float
    coalesce_ms: int
    log_level: str
    adapter_memory_bytes: int = 0  # this server has no adapters
    has_graphs: bool = True
    step_timeout_s: float = HANG_TIMEOUT_S

    def __repr__(self) -> str:
        return f"ServeSettings({self.model_dir}, {self.host}:{self.port})"  # without the API key


def read_flags(arguments: Sequence[str]) -> ServeSettings:
    """Raises SettingError; `--help` prints and exits."""
    flags = _parser().parse_args(arguments)
    model_dir = _model_dir(flags.model_dir)
    return ServeSettings(
        model_dir=model_dir,
        model_names=tuple(getattr(flags, "served_model_name", ()) or _default_names(flags.model_dir, model_dir)),
        host=flags.host,
        port=flags.port,
        device=flags.device,
        attention=flags.attention,
        dtype=flags.dtype,
        kv_dtype=flags.kv_dtype,
        max_model_len=flags.max_model_len,
        kv_memory_bytes=_CPU_KV_BYTES if not flags.kv_memory and flags.device != "cuda" else flags.kv_memory,
        max_sequences=flags.max_sequences or default_sequences(flags.device),
        max_waiting=flags.max_waiting,
        max_step_tokens=flags.max_step_tokens,
        num_threads=flags.threads,
        tensor_parallel=flags.tensor_parallel,
        speculation=flags.speculation,
        api_key=getattr(flags, "api_key", ""),
        drain_timeout_s=flags.drain_timeout,
        coalesce_ms=flags.coalesce_ms,
        log_level=flags.log_level,
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingError(message.replace("argument ", "", 1))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m engine serve",
        description=DESCRIPTION,
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_model(parser.add_argument)
    _add_limits(parser.add_argument)
    _add_server_flags(parser.add_argument)
    return parser


def _add_model(add: Callable[..., object]) -> None:
    """Add the flags of the model and its computation."""
    add("model_dir", metavar="MODEL_DIR", help="folder with config.json, tokenizer.json and weights, or a GGUF file")
    add("--device", default="cpu", choices=("cpu", "cuda"), help="device on which the model runs")
    add(
        "--attention",
        default=AUTO,
        type=_attention,
        metavar="KERNELS",
        help="attention kernels on a GPU: auto, triton or torch",
    )
    add(
        "--dtype",
        default="auto",
        choices=("auto", "config", "bfloat16", "float32"),
        help="precision of weights and KV cache: the fastest on this machine, as in config.json, or the given one",
    )
    add(
        "--kv-dtype",
        "--kv-cache-dtype",
        default=AUTO,
        choices=KV_DTYPES,
        help="number format of the KV cache: auto (that of the model) or fp8, which holds twice as many tokens",
    )
    add("--threads", default=0, type=_integer(0, 4096), metavar="N", help="number of threads; 0 uses all cores but one")
    add(
        "--tensor-parallel",
        "--tensor-parallel-size",
        default=1,
        type=_integer(1, 64),
        metavar="RANKS",
        help="processes that share the model; must divide the number of its heads",
    )
    add(
        "--speculation",
        default=DEFAULT_SPECULATION,
        type=_speculation,
        metavar="WHAT",
        help="speculative decoding: off, prompt_lookup, or draft:FOLDER (a smaller model, same tokenizer)",
    )


def _add_limits(add: Callable[..., object]) -> None:
    """Add the flags of limits."""
    add(
        "--max-model-len",
        default=0,
        type=_integer(0, 1 << 26),
        metavar="TOKENS",
        help="largest context; 0 is the model's own",
    )
    add(
        "--kv-memory",
        default=AUTO,
        type=_auto_or(_size),
        metavar="SIZE",
        help="memory for the KV cache, such as 2GiB; auto is what is free on a GPU, elsewhere 1GiB",
    )
    add(
        "--max-sequences",
        "--max-num-seqs",
        default=AUTO,
        type=_auto_or(_integer(1, 1 << 16)),
        metavar="N",
        help="largest number of sequences generated at once; auto is 256 on a GPU, elsewhere 64",
    )
    add(
        "--max-waiting",
        default=1024,
        type=_integer(0, 1 << 20),
        metavar="N",
        help="largest number of waiting sequences",
    )
    add(
        "--max-step-tokens",
        "--max-num-batched-tokens",
        default=512,
        type=_integer(16, 1 << 20),
        metavar="TOKENS",
        help="largest number of tokens in one step",
    )


def _add_server_flags(add: Callable[..., object]) -> None:
    """Add the flags of address, names and access."""
    add(
        "--host",
        default="127.0.0.1",
        type=_host,
        help="address to listen on; 0.0.0.0 for all addresses of this machine",
    )
    add("--port", default=8000, type=_integer(0, 65535), help="port to listen on; 0 selects a free port")
    add(
        "--served-model-name",
        action="append",
        default=argparse.SUPPRESS,
        type=_name,
        metavar="NAME",
        help="name of the model in requests; can be repeated (default: the folder's name and its path)",
    )
    add(
        "--api-key",
        default=argparse.SUPPRESS,
        type=_key,
        metavar="KEY",
        help="API key that requests must have; @FILE reads the key from a file",
    )
    add(
        "--drain-timeout",
        default=30.0,
        type=_seconds,
        metavar="SECONDS",
        help="time for running requests to finish when the server stops",
    )
    add(
        "--coalesce-ms",
        default=DEFAULT_COALESCE_MS,
        type=_integer(0, MAX_COALESCE_MS),
        metavar="MS",
        help="milliseconds for which tokens of a stream are held so that several are sent together; 0 sends every "
        "token at once",
    )
    add("--log-level", default="warning", type=str.lower, choices=("debug", "info", "warning", "error"))


def _speculation(text: str) -> str:
    folder = text.removeprefix(DRAFT)
    if folder == text and text not in ("off", "prompt_lookup"):
        raise argparse.ArgumentTypeError("must be off, prompt_lookup or draft:FOLDER")
    if folder != text and not (Path(folder).expanduser() / "config.json").is_file():
        raise argparse.ArgumentTypeError("draft: needs a folder with a config.json")
    return text if folder == text else f"{DRAFT}{Path(folder).expanduser().resolve()}"


def _model_dir(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.exists():
        raise SettingError(f"MODEL_DIR: {text} does not exist")
    if path.is_file() and path.suffix == ".gguf":
        return path.resolve()
    if not path.is_dir():
        raise SettingError(f"MODEL_DIR: {text} is neither a folder nor a .gguf file")
    if not (path / "config.json").is_file() and not any(path.glob("*.gguf")):
        raise SettingError(f"MODEL_DIR: {text} has no config.json: expected a model in the Hugging Face layout")
    return path.resolve()


def _default_names(text: str, model_dir: Path) -> dict[str, None]:
    """Return the folder's name and the path as given, which load generators use as the model's name."""
    return dict.fromkeys((model_dir.name.removesuffix(".gguf"), text, str(model_dir)))


def _host(text: str) -> str:
    if not text or any(character.isspace() or character in "/@" for character in text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected an IP address or a host name, without a port")
    return text.strip("[]")


def _integer(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,20}", text) or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from {low} to {high}")
        return int(text)

    return parse


def _attention(text: str) -> str:
    fault = attention_fault(text)
    if fault is not None:
        raise argparse.ArgumentTypeError(f"{text}: {fault}")
    return text


def _auto_or(parse: Callable[[str], int]) -> Callable[[str], int]:
    """Return a parser that returns 0 for "auto"."""
    return lambda text: 0 if text == AUTO else parse(text)


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a size such as 512MiB, 2GiB, 1.5GB or a number of bytes")
    size_bytes = int(float(match[1]) * _UNITS[(match[2] or "").upper()])
    if not 1 << 20 <= size_bytes <= 1 << 50:
        raise argparse.ArgumentTypeError(f"{text!r}: expected 1MiB to 1024TiB")
    return size_bytes


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds from 0 to 86400")
    return seconds


def _name(text: str) -> str:
    if not 1 <= len(text) <= _MAX_NAME_CHARACTERS or not text.isprintable():
        raise argparse.ArgumentTypeError(f"expected 1 to {_MAX_NAME_CHARACTERS} printable characters")
    return text


def _key(text: str) -> str:
    """Read the API key; errors never show it."""
    if text.startswith("@"):
        try:
            with Path(text[1:]).open(encoding="utf-8") as file:
                text = file.read(_MAX_KEY_FILE_BYTES).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise argparse.ArgumentTypeError("the file after @ cannot be read") from error
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise argparse.ArgumentTypeError("expected a key of printable ASCII characters, without spaces")
    return text

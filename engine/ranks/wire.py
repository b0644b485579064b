"""Messages between a replica and its rank over a Unix socket: one frame per step each way, arrays as raw bytes.

Each frame (`processes/frames.py`) is one MessagePack message:

| sender | message |
|---|---|
| rank | `Loaded` or `LoadFailed`, once |
| replica | `Work`: sequences to add and ids to abort |
| rank | `Stepped`: entries of a step and the engine's status |

Both ends run the same version. Closing the socket ends the connection. Imports no torch.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Raw, Struct

from engine.adapters.local_adapter import LocalAdapter
from engine.arrays import Floats
from engine.config import EngineConfig
from engine.processes.frames import framed
from engine.protocol.output_format import Constraint
from engine.protocol.sampling import Sampling
from engine.report import EngineInfo, EngineStatus, PromptLogprobs, StepReport
from engine.scheduling.sequence import SequenceRequest


class Loaded(Struct, frozen=True, tag="loaded"):
    """`follower_pids` are the other processes of a model with several ranks."""

    info: EngineInfo
    status: EngineStatus
    follower_pids: tuple[int, ...] = ()


class LoadFailed(Struct, frozen=True, tag="load_failed"):
    message: str


class Work(Struct, frozen=True, tag="work"):
    """Each of `adds` is encoded separately, so that one that cannot be decoded does not affect the others."""

    adds: list[Raw] = []
    aborts: list[int] = []


class _PromptLogprobs(Struct, frozen=True, array_like=True):
    """The arrays of a PromptLogprobs, little-endian."""

    sequence_id: int
    logprobs: bytes
    top_ids: bytes
    top_logprobs: bytes


class Stepped(Struct, frozen=True, tag="stepped", omit_defaults=True):
    """Columns of a StepReport, little-endian, and the engine's status. `num_top` is the width of the top columns."""

    status: EngineStatus
    sequence_ids: bytes = b""
    token_ids: bytes = b""
    finishes: bytes = b""
    num_cached: bytes = b""
    logprobs: bytes | None = None
    num_top: int = 0
    top_ids: bytes | None = None
    top_logprobs: bytes | None = None
    device_us: bytes = b""
    prompt_logprobs: tuple[_PromptLogprobs, ...] = ()


class _Add(Struct, frozen=True, array_like=True):
    sequence_id: int
    prompt: bytes
    sampling: Sampling
    namespace: bytes
    tenant: int
    stop_token_ids: tuple[int, ...]
    constraint: Constraint | None = None
    adapter: LocalAdapter | None = None
    is_ephemeral: bool = False


_encoder = msgspec.msgpack.Encoder()
_add_decoder = msgspec.msgpack.Decoder(_Add)
_to_rank: msgspec.msgpack.Decoder[Work] = msgspec.msgpack.Decoder(Work)
_to_replica: msgspec.msgpack.Decoder[Loaded | LoadFailed | Stepped] = msgspec.msgpack.Decoder(
    Loaded | LoadFailed | Stepped
)


def encode_arguments(config: EngineConfig, revision: str) -> bytes:
    """Encode the arguments of a rank process. `revision` is the manifest digest that block hashes are derived from."""
    settings = dataclasses.asdict(config) | {"model_dir": str(config.model_dir)}
    return _encoder.encode((settings, revision))


def decode_arguments(data: bytes) -> tuple[EngineConfig, str]:
    settings, revision = msgspec.msgpack.decode(data)
    settings["model_dir"] = Path(settings["model_dir"])
    return EngineConfig(**settings), revision


def encode_frame(message: Loaded | LoadFailed | Work) -> bytes:
    """Return the message as a frame, length included."""
    return framed(_encoder.encode(message))


def decode_work(payload: bytes) -> Work:
    """Decode a message to a rank. Raises msgspec.DecodeError."""
    return _to_rank.decode(payload)


def decode_rank_message(payload: bytes) -> Loaded | LoadFailed | Stepped:
    """Decode a message to a replica. Raises msgspec.DecodeError."""
    return _to_replica.decode(payload)


def encode_request(request: SequenceRequest) -> Raw:
    """Encode one request. Raises TypeError, ValueError or OverflowError for values that cannot be encoded."""
    prompt = np.ascontiguousarray(request.prompt, dtype="<i4").tobytes()
    add = _Add(
        request.sequence_id,
        prompt,
        request.sampling,
        request.namespace,
        request.tenant,
        request.stop_token_ids,
        request.constraint,
        request.adapter,
        request.is_ephemeral,
    )
    return Raw(_encoder.encode(add))


def decode_request(raw: Raw) -> SequenceRequest:
    """Raises msgspec.DecodeError or ValueError."""
    add = _add_decoder.decode(raw)
    return SequenceRequest(
        sequence_id=add.sequence_id,
        prompt=np.frombuffer(add.prompt, dtype=np.int32),
        sampling=add.sampling,
        namespace=add.namespace,
        tenant=add.tenant,
        stop_token_ids=add.stop_token_ids,
        constraint=add.constraint,
        adapter=add.adapter,
        is_ephemeral=add.is_ephemeral,
    )


def sequence_id_of(raw: Raw) -> int:
    """Return the sequence id of a request that `decode_request` cannot decode."""
    sequence_id: int = msgspec.msgpack.decode(raw)[0]
    return sequence_id


def encode_report(report: StepReport, status: EngineStatus) -> bytes:
    """Return the frame of a step."""
    prompt_logprobs = tuple(
        _PromptLogprobs(each.sequence_id, each.logprobs.tobytes(), each.top_ids.tobytes(), each.top_logprobs.tobytes())
        for each in report.prompt_logprobs
    )
    if not report.num_entries:
        return framed(_encoder.encode(Stepped(status, prompt_logprobs=prompt_logprobs)))
    top_ids, top_logprobs = report.top_ids, report.top_logprobs
    stepped = Stepped(
        status=status,
        sequence_ids=report.sequence_ids.tobytes(),
        token_ids=report.token_ids.tobytes(),
        finishes=report.finishes.tobytes(),
        num_cached=report.num_cached.tobytes(),
        logprobs=None if report.logprobs is None else report.logprobs.tobytes(),
        num_top=0 if top_ids is None else top_ids.shape[1],
        top_ids=None if top_ids is None else top_ids.tobytes(),
        top_logprobs=None if top_logprobs is None else top_logprobs.tobytes(),
        device_us=b"" if report.device_us is None else report.device_us.tobytes(),
        prompt_logprobs=prompt_logprobs,
    )
    return framed(_encoder.encode(stepped))


def decode_report(message: Stepped) -> StepReport:
    """Return the report of a step. Its columns are views of the message's memory."""

    def floats(data: bytes | None) -> Floats | None:
        return None if data is None else np.frombuffer(data, dtype=np.float32)

    sequence_ids = np.frombuffer(message.sequence_ids, dtype=np.int64)
    shape = (len(sequence_ids), message.num_top)
    top_logprobs = floats(message.top_logprobs)
    return StepReport(
        sequence_ids=sequence_ids,
        token_ids=np.frombuffer(message.token_ids, dtype=np.int32),
        finishes=np.frombuffer(message.finishes, dtype=np.uint8),
        num_cached=np.frombuffer(message.num_cached, dtype=np.int32),
        logprobs=floats(message.logprobs),
        top_ids=None if message.top_ids is None else np.frombuffer(message.top_ids, dtype=np.int32).reshape(shape),
        top_logprobs=None if top_logprobs is None else top_logprobs.reshape(shape),
        device_us=np.frombuffer(message.device_us, dtype=np.int64) if message.device_us else None,
        prompt_logprobs=tuple(_decode_prompt_logprobs(each) for each in message.prompt_logprobs),
    )


def _decode_prompt_logprobs(message: _PromptLogprobs) -> PromptLogprobs:
    logprobs = np.frombuffer(message.logprobs, dtype=np.float32)
    shape = (len(logprobs), -1 if message.top_ids else 0)
    return PromptLogprobs(
        message.sequence_id,
        logprobs,
        np.frombuffer(message.top_ids, dtype=np.int32).reshape(shape),
        np.frombuffer(message.top_logprobs, dtype=np.float32).reshape(shape),
    )

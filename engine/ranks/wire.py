"""Messages between a replica and its rank over a Unix socket: one frame per step each way, arrays as raw bytes.

Each frame (`processes/frames.py`) is one MessagePack message:

| sender | message |
|---|---|
| rank | `Loaded` or `LoadFailed`, once |
| replica | `Work`: sequences to add and ids to abort |
| rank | `Stepped`: entries of a step and the engine's status |
| replica | `Sleep` or `Wake`, while no sequence is open |
| rank | `SleepDone` |

Both ends run the same version. Closing the socket ends the connection. Imports no torch.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
from msgspec import Raw, Struct
from numpy.typing import NDArray

from engine.config import EngineConfig
from engine.processes.frames import framed
from engine.report import EngineInfo, EngineStatus, SleepReport, StepReport
from engine.scheduling.sequence import SequenceRequest


class Loaded(Struct, frozen=True, tag="loaded"):
    """`follower_pids` are the other processes of a model with several ranks."""

    info: EngineInfo
    status: EngineStatus
    follower_pids: tuple[int, ...] = ()


class LoadFailed(Struct, frozen=True, tag="load_failed"):
    """`is_device_lost`: the model's device cannot create a context, so that loading again is useless."""

    message: str
    is_device_lost: bool = False


class Work(Struct, frozen=True, tag="work"):
    """Each of `adds` is encoded separately, so that one that cannot be decoded does not affect the others."""

    adds: list[Raw] = []
    aborts: list[int] = []


class Sleep(Struct, frozen=True, tag="sleep"):
    """Give the memory of weights and KV back. `snapshot` is the memory file for the weights."""

    snapshot: str


class Wake(Struct, frozen=True, tag="wake"):
    """Get the memory back."""


class SleepDone(Struct, frozen=True, tag="sleep_done"):
    """The response to `Sleep` or `Wake`: a report, or why nothing has changed."""

    report: SleepReport | None = None
    failure: str = ""


class Stepped(Struct, frozen=True, tag="stepped"):
    """`report` is None if the step has nothing to report but the engine's status."""

    status: EngineStatus
    report: StepReport | None = None


def encode_array(array: object) -> tuple[tuple[int, ...], bytes]:
    """Return an array as its shape and its bytes."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"a value of type {type(array).__name__} cannot be sent to a rank")
    return array.shape, array.tobytes()


def _decode_array(array_type: Any, shape_and_bytes: tuple[list[int], bytes]) -> NDArray[Any]:
    """Return a view of the message's memory."""
    shape, data = shape_and_bytes
    return np.frombuffer(data, dtype_of(array_type)).reshape(shape)


@cache
def dtype_of(array_type: Any) -> Any:
    """Return the element type of an array type such as NDArray[np.int32]."""
    return get_args(get_args(array_type)[1])[0]


_encoder = msgspec.msgpack.Encoder(enc_hook=encode_array)
_request_decoder = msgspec.msgpack.Decoder(SequenceRequest, dec_hook=_decode_array)
ToRank = Work | Sleep | Wake
ToReplica = Loaded | LoadFailed | Stepped | SleepDone
_to_rank: msgspec.msgpack.Decoder[ToRank] = msgspec.msgpack.Decoder(ToRank)
_to_replica: msgspec.msgpack.Decoder[ToReplica] = msgspec.msgpack.Decoder(ToReplica, dec_hook=_decode_array)


def encode_arguments(config: EngineConfig, revision: str) -> bytes:
    """Encode the arguments of a rank process. `revision` is the manifest digest that block hashes are derived from."""
    settings = dataclasses.asdict(config) | {"model_dir": str(config.model_dir)}
    return _encoder.encode((settings, revision))


def decode_arguments(data: bytes) -> tuple[EngineConfig, str]:
    settings, revision = msgspec.msgpack.decode(data)
    settings["model_dir"] = Path(settings["model_dir"])
    return EngineConfig(**settings), revision


def encode_frame(message: Loaded | LoadFailed | SleepDone | ToRank) -> bytes:
    """Return the message as a frame, length included."""
    return framed(_encoder.encode(message))


def decode_to_rank(payload: bytes) -> ToRank:
    """Decode a message to a rank. Raises msgspec.DecodeError."""
    return _to_rank.decode(payload)


def decode_rank_message(payload: bytes) -> ToReplica:
    """Decode a message to a replica. Raises msgspec.DecodeError."""
    return _to_replica.decode(payload)


def encode_request(request: SequenceRequest) -> Raw:
    """Encode one request. Raises TypeError, ValueError or OverflowError for values that cannot be encoded."""
    return Raw(_encoder.encode(request))


def decode_request(raw: Raw) -> SequenceRequest:
    """Decode one request. Raises msgspec.DecodeError or ValueError."""
    return _request_decoder.decode(raw)


def sequence_id_of(raw: Raw) -> int:
    """Return the sequence id of a request that `decode_request` cannot decode."""
    sequence_id: int = msgspec.msgpack.decode(raw)[0]
    return sequence_id


def encode_report(report: StepReport, status: EngineStatus) -> bytes:
    """Return the frame of a step."""
    is_empty = not (report.num_entries or report.prompt_logprobs)
    return framed(_encoder.encode(Stepped(status, None if is_empty else report)))

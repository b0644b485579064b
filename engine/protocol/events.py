"""Events of one call, sent by a node in this order: Started, then pieces (Token, ToolCallDelta, Data) or one Result,
then exactly one Finished or Failed. Progress may come anywhere between the first and the last event. In a call with
several choices each piece names its choice, and each choice ends with its own ChoiceEnded before the call ends.

Started is sent together with the first piece of output, not when the call arrives: until the first event a gateway may
send the call to another node. Events contain no HTTP and do not depend on the format of responses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

FinishReason = Literal["stop", "length", "tool_calls"]

FailureReason = Literal[
    "invalid_input",  # only the node could detect that the input cannot be served; the message names the field
    "context_too_long",  # the prompt is longer than the model's context
    "out_of_capacity",  # queue or KV cache full, or the model cannot be loaded on this node
    "model_unavailable",  # weights missing, damaged, or of an unknown architecture
    "timeout",  # the deadline passed
    "aborted",  # cancelled by the caller
    "draining",  # the node is shutting down
    "constraint_failed",  # the output could not be completed in the requested format within the token limit
    "internal",  # a crash; the node logged the cause
]


class Usage(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Resources that a call consumed. `cached_tokens` is the part of `prompt_tokens` served from the prefix cache,
    `reasoning_tokens` the part of `completion_tokens` spent on reasoning. `device_us` is the call's share of device
    time in microseconds, summed over devices. `audio_ms` is the length of the audio in milliseconds, `num_image_tiles`
    the number of image tiles of 512 by 512 pixels, `num_steps` the number of denoising steps of all images, and
    `num_characters` the length of a text that was spoken.

    `queue_us`, `prefill_us` and `decode_us` add up to the time of the call on the node: until the first token without
    the device time of the prompt, that device time, and from the first token to the end. They are 0 if unknown."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    device_us: int = 0
    audio_ms: int = 0
    num_image_tiles: int = 0
    num_steps: int = 0
    num_characters: int = 0
    queue_us: int = 0
    prefill_us: int = 0
    decode_us: int = 0


def total_usage(usages: Sequence[Usage]) -> Usage:
    """Return the sum of several usages, field by field."""
    return Usage(**{name: sum(getattr(usage, name) for usage in usages) for name in Usage.__struct_fields__})


class TokenLogprob(Struct, frozen=True, array_like=True):
    """Natural-log probability of one token, and of the most likely alternatives as (text, logprob).

    The first token of a prompt has no probability: its `logprob` is NaN. `token_bytes` holds the bytes of the token and
    of each alternative if one of them is part of a multi-byte character; otherwise it is empty.
    """

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()
    token_bytes: tuple[bytes, ...] = ()


class Started(Struct, frozen=True, tag="started", omit_defaults=True):
    """The first output exists. Token counts are those of the prompt."""

    prompt_tokens: int = 0
    cached_tokens: int = 0


class Token(Struct, frozen=True, tag="token", omit_defaults=True):
    """Text of one or more new tokens; may be empty, and never ends inside a character. An echoed prompt comes first and
    has `num_tokens` 0."""

    text: str
    num_tokens: int = 1
    logprobs: tuple[TokenLogprob, ...] = ()
    choice: int = 0
    is_reasoning: bool = False


class ToolCallDelta(Struct, frozen=True, tag="tool_call", omit_defaults=True, kw_only=True):
    """A piece of tool call number `index`. The first piece has the `id` and the whole `name`; the `arguments` of all
    pieces, joined, are JSON text. `num_tokens` counts the completion tokens of this piece."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    num_tokens: int = 0
    choice: int = 0


class ChoiceEnded(Struct, frozen=True, tag="choice_ended"):
    """The end of one of several choices."""

    choice: int
    reason: FinishReason


class Result(Struct, frozen=True, tag="result", omit_defaults=True):
    """The whole output of a task that does not stream: JSON-like `fields` and binary `data`, both defined by the task
    (`engine/protocol/tasks/`)."""

    fields: dict[str, Any] = {}
    data: bytes = b""


class Data(Struct, frozen=True, tag="data"):
    """A piece of binary output, such as encoded audio. The pieces of a call, joined, are its output."""

    data: bytes


class Progress(Struct, frozen=True, tag="progress"):
    """Long work goes on: `num_done` of `num_total` steps are done. Clients do not receive this event; for the gateway,
    it shows that the node works on the call."""

    num_done: int
    num_total: int


class Finished(Struct, frozen=True, tag="finished", omit_defaults=True):
    """The end of a successful call. With several choices `reason` is that of the first; `usage` counts the prompt once
    and the completion tokens of all choices. `stop` is the stop string that ended the text, if any."""

    reason: FinishReason
    usage: Usage = Usage()
    stop: str | None = None


class Failed(Struct, frozen=True, tag="failed", omit_defaults=True):
    """The end of a failed call. `usage` is what the call consumed until then. `is_retryable` permits a retry on another
    node, if no other event was sent. `num_crashes` counts the model processes that crashed while they worked on this
    call, on earlier nodes included. `retry_after_s` is when a client may try again, 0 if unknown."""

    reason: FailureReason
    message: str = ""
    is_retryable: bool = False
    usage: Usage = Usage()
    num_crashes: int = 0
    retry_after_s: int = 0

    @property
    def is_blocked(self) -> bool:
        """True if this input crashed so many processes that nodes no longer run it."""
        return self.num_crashes > 0 and not self.is_retryable


Event = Started | Token | ToolCallDelta | ChoiceEnded | Result | Data | Progress | Finished | Failed

"""What a node says about one call, in order: Started, then pieces (Token, ToolCallDelta) or one Result, then exactly
one Finished or Failed. Of a call for several choices each piece says whose it is, and each choice ends with a
ChoiceEnded of its own before the call does.

Started is sent together with the first piece of output, not at arrival: until the first event a gateway may give the
call to another node. Knows nothing of HTTP status or of how a reply is rendered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

FinishReason = Literal["stop", "length", "tool_calls"]

FailureReason = Literal[
    "invalid_input",  # only the node could see that the input cannot be served; the message names the field
    "context_too_long",  # prompt longer than the model's context
    "out_of_capacity",  # queue or KV cache full, or the model cannot be loaded here
    "model_unavailable",  # weights missing, damaged, or of an unknown architecture
    "timeout",  # the deadline passed
    "aborted",  # cancelled by the caller
    "draining",  # the node is leaving
    "constraint_failed",  # the output could not be brought to the asked format within the token limit
    "internal",  # a crash; the node logged it
]


class Usage(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a call really consumed. `cached_tokens` is the part of `prompt_tokens` served from the prefix cache,
    `reasoning_tokens` that of `completion_tokens` which the model thought before it answered. `device_us` is the call's
    share of the time of the devices that worked on it, in microseconds."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    device_us: int = 0


def total_usage(usages: Sequence[Usage]) -> Usage:
    """Of several calls: the sum, field by field."""
    return Usage(**{name: sum(getattr(usage, name) for usage in usages) for name in Usage.__struct_fields__})


class TokenLogprob(Struct, frozen=True, array_like=True):
    """One token's text, natural-log probability, and the likeliest alternatives as (text, logprob). The first token
    of a prompt has none: its `logprob` is NaN. `spelled`: the bytes of it and of each alternative, where one of them is
    no whole text."""

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()
    spelled: tuple[bytes, ...] = ()


class Started(Struct, frozen=True, tag="started", omit_defaults=True):
    """The first output exists. Token counts are those of the prompt."""

    prompt_tokens: int = 0
    cached_tokens: int = 0


class Token(Struct, frozen=True, tag="token", omit_defaults=True):
    """Text of one or more newly generated tokens; never ends inside a character. May be empty. `is_reasoning`: what the
    model thought, not what it answered. The prompt, where it is echoed, comes first and counts no tokens."""

    text: str
    num_tokens: int = 1
    logprobs: tuple[TokenLogprob, ...] = ()
    choice: int = 0
    is_reasoning: bool = False


class ToolCallDelta(Struct, frozen=True, tag="tool_call", omit_defaults=True, kw_only=True):
    """A piece of the call number `index`. The first piece of a call has its `id` and whole `name`; `arguments` of all
    its pieces, joined, are JSON text. `num_tokens` counts the completion tokens that came with this piece."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    num_tokens: int = 0
    choice: int = 0


class ChoiceEnded(Struct, frozen=True, tag="choice_ended"):
    """One of several choices has said all it has to say."""

    choice: int
    reason: FinishReason


class Embeddings(Struct, frozen=True, tag="embeddings", omit_defaults=True):
    """Vectors as little-endian float32, row after row; `shape` is (texts, dimensions)."""

    shape: tuple[int, int]
    data: bytes
    pooling: str = "mean"


class Result(Struct, frozen=True, tag="result"):
    """The whole output of a task that does not stream."""

    value: Embeddings


class Finished(Struct, frozen=True, tag="finished", omit_defaults=True):
    """The end of a call that went well. Of several choices, `reason` is the first one's; `usage` counts the prompt once
    and what was generated for all of them. `stop` is the stop string that ended an answer, if one did."""

    reason: FinishReason
    usage: Usage = Usage()
    stop: str | None = None


class Failed(Struct, frozen=True, tag="failed", omit_defaults=True):
    """The end of a call that did not. `usage` is what had been done until then; `is_retryable` means another node may
    be tried (only meaningful before any other event). `num_deaths` counts the processes of its model that ended while
    they worked on this call: on a retry it goes with it."""

    reason: FailureReason
    message: str = ""
    is_retryable: bool = False
    usage: Usage = Usage()
    num_deaths: int = 0

    @property
    def is_blocked(self) -> bool:
        """Whether this input ended so many processes that it is not run any more."""
        return self.num_deaths > 0 and not self.is_retryable


Event = Started | Token | ToolCallDelta | ChoiceEnded | Result | Finished | Failed

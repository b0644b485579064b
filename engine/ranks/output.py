"""Outputs of sequences, made from the reports of steps. Token ids only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec import Struct

from engine.report import FINISHES, Finish, PromptLogprobs, StepReport


class TokenIdLogprob(Struct, frozen=True, gc=False):
    """The natural-log probability of a token, and the most likely tokens as (id, logprob)."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class SequenceOutput(Struct, frozen=True, gc=False):
    """Output of one sequence in one step. An output with a `finish` is the last of its sequence.

    "stop" follows an end token, which is among `token_ids`, or comes without tokens if a constraint allows no further
    text. "unclosed" means that the token limit cut a constrained text short. `prompt_logprobs` are those of the next
    prompt tokens, from the second token of the prompt on; all of them precede the first generated token.
    """

    token_ids: tuple[int, ...]
    finish: Finish | None = None
    num_cached_tokens: int = 0  # prompt tokens from the prefix cache
    logprobs: tuple[TokenIdLogprob, ...] = ()  # one for each of token_ids; empty unless requested
    device_us: int = 0  # device time of the sequence so far, in microseconds
    prompt_logprobs: tuple[TokenIdLogprob, ...] = ()


def join_outputs(outputs: Sequence[SequenceOutput]) -> SequenceOutput:
    """Return successive outputs of a sequence as one. Only the last may have a finish; none has `prompt_logprobs`."""
    last = outputs[-1]
    if len(outputs) == 1:
        return last
    token_ids = tuple([token_id for output in outputs for token_id in output.token_ids])
    logprobs = tuple([logprob for output in outputs for logprob in output.logprobs])
    return SequenceOutput(token_ids, last.finish, last.num_cached_tokens, logprobs, last.device_us)


def outputs_of(report: StepReport) -> Iterator[tuple[int, SequenceOutput]]:
    """Yield (sequence id, output) for each sequence of a report. Successive tokens of a sequence are one output."""
    for prompt in report.prompt_logprobs:
        yield prompt.sequence_id, SequenceOutput((), prompt_logprobs=_prompt_logprobs(prompt))
    has_logprobs, num_entries = report.logprobs is not None, report.num_entries
    has_runs = num_entries > 1 and bool((report.sequence_ids[1:] == report.sequence_ids[:-1]).any())
    columns = zip(
        report.sequence_ids.tolist(),
        report.token_ids.tolist(),
        report.finishes.tolist(),
        report.num_cached.tolist(),
        [0] * num_entries if report.device_us is None else report.device_us.tolist(),
        strict=True,
    )
    earlier: list[int] = []  # tokens of the same sequence in the entries before
    for row, (sequence_id, token_id, code, num_cached, device_us) in enumerate(columns):
        if has_runs and not code and row + 1 < num_entries and _continues(report, row):
            earlier.append(token_id)
            continue
        token_ids = (*earlier, token_id) if token_id >= 0 else ()
        earlier = []
        logprobs: tuple[TokenIdLogprob, ...] = ()
        if has_logprobs:
            for each in range(row + 1 - len(token_ids), row + 1):
                logprobs += _logprobs(report, each)
        yield sequence_id, SequenceOutput(token_ids, FINISHES[code], num_cached, logprobs, device_us)


def _continues(report: StepReport, row: int) -> bool:
    """Return True if the entry after `row` has another token of the same sequence."""
    return bool(report.sequence_ids[row + 1] == report.sequence_ids[row]) and bool(report.token_ids[row + 1] >= 0)


def _prompt_logprobs(prompt: PromptLogprobs) -> tuple[TokenIdLogprob, ...]:
    columns = zip(prompt.logprobs.tolist(), prompt.top_ids.tolist(), prompt.top_logprobs.tolist(), strict=True)
    return tuple(TokenIdLogprob(logprob, tuple(zip(ids, tops, strict=True))) for logprob, ids, tops in columns)


def _logprobs(report: StepReport, row: int) -> tuple[TokenIdLogprob, ...]:
    """Return the log-probability of an entry's token; empty if its sequence wants none."""
    assert report.logprobs is not None
    logprob = float(report.logprobs[row])
    if math.isnan(logprob):
        return ()
    if report.top_ids is None or report.top_logprobs is None:
        return (TokenIdLogprob(logprob),)
    pairs = zip(report.top_ids[row].tolist(), report.top_logprobs[row].tolist(), strict=True)
    return (TokenIdLogprob(logprob, tuple(pair for pair in pairs if pair[0] >= 0)),)

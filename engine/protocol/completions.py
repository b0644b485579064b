"""OpenAI's text completions <-> typed tasks and events: `/v1/completions`, as load generators speak it. Pure.

Reading raises `BadInput`. What they share with chat is in `openai.py`. Knows nothing of HTTP or of SSE framing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.protocol import alone, openai, vllm_fields
from engine.protocol.events import FinishReason, TokenLogprob, Usage
from engine.protocol.fields import BadInput, boolean, integer
from engine.protocol.outcome import Choice
from engine.protocol.output_format import output_constraint
from engine.protocol.tasks import Constraint, Sampling, TextGeneration

MAX_PROMPTS = 1024
MAX_SEQUENCES = 2048  # of one body: prompts × best_of
DEFAULT_MAX_TOKENS = 16  # OpenAI's
_MAX_SKIPPED = 8  # characters of a prompt that tokens before may not have told

Prompt = str | tuple[int, ...]

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Completions:
    """What a body asks for: for each prompt `num_choices` texts, the best of `num_tries`. `has_echo`: each begins with
    its prompt, which the tasks see to where they `echo`, and whoever shows the answers where not."""

    prompts: tuple[Prompt, ...]
    sampling: Sampling
    num_choices: int
    num_tries: int
    has_echo: bool
    constraint: Constraint | None

    @property
    def tasks_echo(self) -> bool:
        """Only who has the model can tell a prompt's tokens, or the text of token ids."""
        is_known = self.sampling.logprobs is None and all(isinstance(prompt, str) for prompt in self.prompts)
        return self.has_echo and (not is_known or not self.sampling.max_tokens)

    def tasks(self) -> list[TextGeneration]:
        """One for each prompt, with all its tries."""
        return [self._task(prompt) for prompt in self.prompts]

    def _task(self, prompt: Prompt) -> TextGeneration:
        sampling, tries = self.sampling, self.num_tries
        if self.num_tries > self.num_choices and sampling.logprobs is None:
            sampling = msgspec.structs.replace(sampling, logprobs=0)  # what the best is chosen by
        is_text = isinstance(prompt, str)
        return TextGeneration(
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=None if isinstance(prompt, str) else prompt,
            raw=is_text,
            sampling=sampling,
            constraint=self.constraint,
            num_choices=tries,
            echoes=self.tasks_echo,
        )


def completions(body: Mapping[str, Any], *, context_window: int, vocab_size: int) -> Completions:
    """Raises BadInput."""
    openai.refuse_unsafe_fields(body)
    vllm_fields.refuse_unsupported(body, "completions")
    prompts = _prompts(body.get("prompt"))
    if not all(isinstance(prompt, str) or _are_known(prompt, vocab_size) for prompt in prompts):
        raise BadInput(f"'/prompt' must hold token ids from 0 to {vocab_size - 1}")
    num_choices = alone.num_choices(body)
    num_tries = integer(body, "best_of", num_choices, minimum=num_choices, maximum=alone.MAX_CHOICES)
    if len(prompts) * num_tries > MAX_SEQUENCES:
        raise BadInput(f"'/prompt' and '/best_of' ask for more than {MAX_SEQUENCES} answers")
    if num_tries > num_choices and boolean(body, "stream", False):
        raise BadInput("'/best_of' must be '/n' where '/stream' is true")
    num_tops = integer(body, "logprobs", None, minimum=0, maximum=openai.MAX_TOP_LOGPROBS)
    has_echo = boolean(body, "echo", False)
    if has_echo and num_tries > num_choices:
        raise BadInput("'/best_of' must be '/n' where '/echo' is true")
    words = dict(body) | {"logprobs": num_tops is not None, "top_logprobs": num_tops}
    sampling = openai.sampling(
        words,
        default_max_tokens=DEFAULT_MAX_TOKENS,
        context_window=context_window,
        min_max_tokens=0 if has_echo else 1,
    )
    constraint = output_constraint(body)
    sampling = vllm_fields.with_min_tokens(body, sampling, is_held=constraint is not None)
    return Completions(
        prompts=prompts,
        sampling=sampling,
        num_choices=num_choices,
        num_tries=num_tries,
        has_echo=has_echo,
        constraint=constraint,
    )


def _prompts(value: Any) -> tuple[Prompt, ...]:
    """A text, a list of texts, token ids, or a list of lists of token ids."""
    if value is None:
        raise BadInput("required properties at '/' are 'prompt'")
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise BadInput("Type mismatch of '/prompt', expected 'string' or 'array'")
    if not value:
        raise BadInput("'/prompt' must not be empty")
    if _are_token_ids(value):
        return (tuple(value),)
    if len(value) > MAX_PROMPTS:
        raise BadInput(f"'/prompt' must have <= {MAX_PROMPTS} items")
    if all(isinstance(prompt, str) for prompt in value):
        return tuple(value)
    if all(isinstance(prompt, list) and _are_token_ids(prompt) for prompt in value):
        return tuple(tuple(prompt) for prompt in value)
    raise BadInput("'/prompt' must hold texts only, token ids only, or lists of token ids only")


def _are_token_ids(values: list[Any]) -> bool:
    return all(type(value) is int for value in values)


def _are_known(token_ids: Sequence[int], vocab_size: int) -> bool:
    return not token_ids or (min(token_ids) >= 0 and max(token_ids) < vocab_size)


def whole(
    completion_id: str,
    created: int,
    model: str,
    asked: Completions,
    echoes: Sequence[str],
    tries: Sequence[Sequence[Choice]],
    usage: Usage,
) -> dict[str, Any]:
    """The `text_completion` of what was asked. For each prompt `echoes` has the text that its choices begin with,
    `tries` all its choices, of which the best are told."""
    choices: list[dict[str, Any]] = []
    for echo, of_prompt in zip(echoes, tries, strict=True):
        for choice in best_of(of_prompt, asked.num_choices):
            logprobs = None if asked.sampling.logprobs is None else choice.logprobs
            choices.append(choice_object(len(choices), echo + choice.text, choice.why, logprobs))
    return completion_object(completion_id, created, model, choices, usage)


def completion_object(
    completion_id: str, created: int, model: str, choices: Sequence[dict[str, Any]], usage: Usage
) -> dict[str, Any]:
    """A whole `text_completion`; `choices` are made by `choice_object`."""
    return {
        "id": completion_id,
        "object": "text_completion",
        "created": created,
        "model": model,
        "choices": list(choices),
        "usage": openai.usage_object(usage),
    }


def best_of(tries: Sequence[Choice], num_choices: int) -> Sequence[Choice]:
    """Of a prompt's tries, those whose tokens were likeliest on average, the best first; all of them, in their order,
    where all are asked for."""
    if len(tries) <= num_choices:
        return tries
    return sorted(tries, key=_mean_logprob, reverse=True)[:num_choices]


def _mean_logprob(choice: Choice) -> float:
    return sum(entry.logprob for entry in choice.logprobs) / max(1, len(choice.logprobs))


def choice_object(
    index: int, text: str, reason: FinishReason | None, logprobs: Sequence[TokenLogprob] | None
) -> dict[str, Any]:
    """One choice of a whole `text_completion`."""
    shown = None if logprobs is None else logprobs_object(logprobs, text=text)
    return {"index": index, "text": text, "logprobs": shown, "finish_reason": reason}


def logprobs_object(logprobs: Sequence[TokenLogprob], offset: int = 0, text: str = "") -> dict[str, Any]:
    """`logprobs` of a text in the older form, columns; `offset` characters of its choice came before. Among a token's
    likeliest is always the token itself. A prompt's first token has null for both."""
    has_one = [not math.isnan(entry.logprob) for entry in logprobs]
    return {
        "text_offset": _text_offsets(text, logprobs, offset),
        "token_logprobs": [entry.logprob if has else None for entry, has in zip(logprobs, has_one, strict=True)],
        "tokens": [entry.text for entry in logprobs],
        "top_logprobs": [
            {entry.text: entry.logprob} | dict(entry.top) if has else None
            for entry, has in zip(logprobs, has_one, strict=True)
        ],
    }


def _text_offsets(text: str, logprobs: Sequence[TokenLogprob], offset: int) -> list[int]:
    """Where each token's text begins. A prompt's first tokens may have more text than is seen of them (a mark of the
    beginning, a space that the tokenizer puts there), and so may a character that is several tokens: there they are
    looked for."""
    offsets, at = [], 0
    is_of_prompt = bool(logprobs) and math.isnan(logprobs[0].logprob)
    for entry in logprobs:
        length = len(entry.text)
        if is_of_prompt and not text.startswith(entry.text, at):
            seen = entry.text if at else entry.text.lstrip()
            place = text.find(seen, at, at + len(seen) + _MAX_SKIPPED) if seen else -1
            at, length = (at, 0) if place < 0 else (place, len(seen))
        offsets.append(offset + at)
        at += length
    return offsets


class CompletionChunks:
    """The documents of one stream of text completions, as JSON bytes; what is constant is rendered once."""

    def __init__(self, completion_id: str, created: int, model: str, *, has_usage_chunk: bool) -> None:
        head = {"id": completion_id, "object": "text_completion", "created": created, "model": model}
        self._open = _encode(head)[:-1]
        self._before = self._open + b',"choices":[{"index":'
        self._tail = b"}]" + (b',"usage":null}' if has_usage_chunk else b"}")
        self._after_text = b',"logprobs":null,"finish_reason":null' + self._tail

    def text(self, index: int, text: str) -> bytes:
        """More of a choice's text."""
        return self._before + b"%d" % index + b',"text":' + _encode(text) + self._after_text

    def choice(
        self, index: int, text: str, reason: FinishReason | None, logprobs: Sequence[TokenLogprob] | None, offset: int
    ) -> bytes:
        """A piece with log-probabilities, or the last one of a choice."""
        shown = _encode(None if logprobs is None else logprobs_object(logprobs, offset, text))
        before = self._before + b"%d" % index + b',"text":' + _encode(text)
        return before + b',"logprobs":' + shown + b',"finish_reason":' + _encode(reason) + self._tail

    def usage(self, usage: Usage) -> bytes:
        """The chunk without choices that `include_usage` asks for."""
        return self._open + b',"choices":[],"usage":' + _encode(openai.usage_object(usage)) + b"}"

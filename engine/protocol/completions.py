"""OpenAI's text completions: read a request body, and render `text_completion` whole or as chunks. Pure.

The gateway and the standalone server share this module. Readers raise `BadInput`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.protocol.chat_completions import reject_unsafe_fields
from engine.protocol.events import ChoiceEnded, Finished, FinishReason, Started, TokenLogprob
from engine.protocol.fields import BadInput, boolean, integer
from engine.protocol.outcome import Choice, Outcome
from engine.protocol.output_format import Constraint, read_constraint
from engine.protocol.rendering import DONE, Renderer, data_frame, encode, usage_object
from engine.protocol.sampling import (
    MAX_CHOICES,
    MAX_TOP_LOGPROBS,
    Sampling,
    read_num_choices,
    read_sampling,
    with_min_tokens,
)
from engine.protocol.tasks.text_generation import TextGeneration
from engine.protocol.vllm_fields import reject_unsupported

MAX_PROMPTS = 1024
MAX_SEQUENCES = 2048  # per request: prompts × best_of
DEFAULT_MAX_TOKENS = 16  # OpenAI's default
_MAX_SKIPPED = 8  # characters of a prompt that earlier tokens may not have covered

Prompt = str | tuple[int, ...]


@dataclass(frozen=True)
class CompletionRequest:
    """A text completion request: `num_choices` texts for each prompt, the best of `num_candidates` generated ones. With
    `echoes_prompt` each text begins with its prompt."""

    prompts: tuple[Prompt, ...]
    sampling: Sampling
    num_choices: int
    num_candidates: int
    echoes_prompt: bool
    constraint: Constraint | None

    @property
    def tasks_echo(self) -> bool:
        """True if the node must echo the prompts, because only the node knows the prompt's tokens, or the text of
        token ids."""
        is_known = self.sampling.logprobs is None and all(isinstance(prompt, str) for prompt in self.prompts)
        return self.echoes_prompt and (not is_known or not self.sampling.max_tokens)

    @property
    def rendered_echoes(self) -> list[str]:
        """The text that the renderer puts in front of the choices of each prompt."""
        if not self.echoes_prompt or self.tasks_echo:
            return [""] * len(self.prompts)
        return [str(prompt) for prompt in self.prompts]

    def tasks(self) -> list[TextGeneration]:
        """Return one task for each prompt."""
        return [self._task(prompt) for prompt in self.prompts]

    def _task(self, prompt: Prompt) -> TextGeneration:
        sampling = self.sampling
        if self.num_candidates > self.num_choices and sampling.logprobs is None:
            sampling = msgspec.structs.replace(sampling, logprobs=0)  # the best candidates are chosen by them
        is_text = isinstance(prompt, str)
        return TextGeneration(
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=None if isinstance(prompt, str) else prompt,
            raw=is_text,
            sampling=sampling,
            constraint=self.constraint,
            num_choices=self.num_candidates,
            echoes_prompt=self.tasks_echo,
        )


def read_completion_request(body: Mapping[str, Any], *, context_window: int, vocab_size: int) -> CompletionRequest:
    """Read a text completion body. Token ids must be below `vocab_size`. Raises BadInput."""
    reject_unsafe_fields(body)
    reject_unsupported(body, "completions")
    prompts = _prompts(body.get("prompt"))
    if not all(isinstance(prompt, str) or _are_known(prompt, vocab_size) for prompt in prompts):
        raise BadInput(f"'/prompt' must hold token ids from 0 to {vocab_size - 1}")
    num_choices = read_num_choices(body)
    num_candidates = integer(body, "best_of", num_choices, minimum=num_choices, maximum=MAX_CHOICES)
    if len(prompts) * num_candidates > MAX_SEQUENCES:
        raise BadInput(f"'/prompt' and '/best_of' request more than {MAX_SEQUENCES} choices")
    if num_candidates > num_choices and boolean(body, "stream", False):
        raise BadInput("'/best_of' must be '/n' where '/stream' is true")
    num_top_logprobs = integer(body, "logprobs", None, minimum=0, maximum=MAX_TOP_LOGPROBS)
    echoes_prompt = boolean(body, "echo", False)
    if echoes_prompt and num_candidates > num_choices:
        raise BadInput("'/best_of' must be '/n' where '/echo' is true")
    sampling = read_sampling(
        dict(body) | {"logprobs": num_top_logprobs is not None, "top_logprobs": num_top_logprobs},
        default_max_tokens=DEFAULT_MAX_TOKENS,
        context_window=context_window,
        min_max_tokens=0 if echoes_prompt else 1,
    )
    constraint = read_constraint(body)
    return CompletionRequest(
        prompts=prompts,
        sampling=with_min_tokens(body, sampling, is_constrained=constraint is not None),
        num_choices=num_choices,
        num_candidates=num_candidates,
        echoes_prompt=echoes_prompt,
        constraint=constraint,
    )


def _prompts(value: Any) -> tuple[Prompt, ...]:
    """Read a text, a list of texts, a list of token ids, or a list of lists of token ids."""
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


class CompletionRenderer(Renderer):
    """`text_completion`, whole or as chunks: the choices of every prompt in turn."""

    def __init__(
        self, completion_id: str, created: int, model: str, request: CompletionRequest, *, has_usage_chunk: bool
    ) -> None:
        self._head = {"id": completion_id, "object": "text_completion", "created": created, "model": model}
        self._request = request
        self._echoes = request.rendered_echoes
        self._has_usage_chunk = has_usage_chunk
        self._has_logprobs = request.sampling.logprobs is not None
        self._open = encode(self._head)[:-1]
        self._before = self._open + b',"choices":[{"index":'
        self._tail = b"}]" + (b',"usage":null}' if has_usage_chunk else b"}")
        self._after_text = b',"logprobs":null,"finish_reason":null' + self._tail
        self._offsets = [0] * (len(request.prompts) * request.num_candidates)

    def whole(self, outcome: Outcome) -> bytes:
        num_candidates = self._request.num_candidates
        choices: list[dict[str, Any]] = []
        for number, echo in enumerate(self._echoes):
            candidates = outcome.choices[number * num_candidates : (number + 1) * num_candidates]
            for choice in best_candidates(candidates, self._request.num_choices):
                text = echo + choice.text
                logprobs = logprobs_object(choice.logprobs, text=text) if self._has_logprobs else None
                choices.append(
                    {
                        "index": len(choices),
                        "text": text,
                        "logprobs": logprobs,
                        "finish_reason": choice.finish_reason,
                    }
                )
        return encode(self._head | {"choices": choices, "usage": usage_object(outcome.finished.usage)})

    def begin(self, _started: Started) -> bytes:
        echoes = [echo for echo in self._echoes for _ in range(self._request.num_candidates)]
        return b"".join(self._text_frame(choice, echo) for choice, echo in enumerate(echoes) if echo)

    def text(self, text: str, logprobs: Sequence[TokenLogprob], choice: int = 0) -> bytes:
        if not self._has_logprobs:
            return self._text_frame(choice, text)
        offset = self._offsets[choice]
        self._offsets[choice] += len(text)
        return self._frame(choice, text, None, logprobs_object(logprobs, offset, text))

    def choice_end(self, ended: ChoiceEnded) -> bytes:
        return self._frame(ended.choice, "", ended.reason, None)

    def end(self, finished: Finished) -> bytes:
        frames = self._frame(0, "", finished.reason, None) if len(self._offsets) == 1 else b""
        if self._has_usage_chunk:
            frames += data_frame(self._open + b',"choices":[],"usage":' + encode(usage_object(finished.usage)) + b"}")
        return frames + DONE

    def _text_frame(self, choice: int, text: str) -> bytes:
        return data_frame(self._before + b"%d" % choice + b',"text":' + encode(text) + self._after_text)

    def _frame(self, choice: int, text: str, reason: FinishReason | None, logprobs: dict[str, Any] | None) -> bytes:
        """Return a frame with log probabilities, or the last frame of a choice."""
        chunk = self._before + b"%d" % choice + b',"text":' + encode(text)
        chunk += b',"logprobs":' + encode(logprobs) + b',"finish_reason":' + encode(reason) + self._tail
        return data_frame(chunk)


def best_candidates(candidates: Sequence[Choice], num_choices: int) -> Sequence[Choice]:
    """Return the candidates with the highest mean log probability, best first; all of them in their order if all are
    requested."""
    if len(candidates) <= num_choices:
        return candidates
    return sorted(candidates, key=_mean_logprob, reverse=True)[:num_choices]


def _mean_logprob(choice: Choice) -> float:
    return sum(entry.logprob for entry in choice.logprobs) / max(1, len(choice.logprobs))


def logprobs_object(logprobs: Sequence[TokenLogprob], offset: int = 0, text: str = "") -> dict[str, Any]:
    """Return the `logprobs` of a text as columns. `offset` characters of the choice came before `text`. The top
    entries of a token include the token itself; the first token of a prompt has null entries."""
    has_value = [not math.isnan(entry.logprob) for entry in logprobs]
    return {
        "text_offset": _text_offsets(text, logprobs, offset),
        "token_logprobs": [entry.logprob if has else None for entry, has in zip(logprobs, has_value, strict=True)],
        "tokens": [entry.text for entry in logprobs],
        "top_logprobs": [
            {entry.text: entry.logprob} | dict(entry.top) if has else None
            for entry, has in zip(logprobs, has_value, strict=True)
        ],
    }


def _text_offsets(text: str, logprobs: Sequence[TokenLogprob], offset: int) -> list[int]:
    """Return the offset at which each token's text begins.

    The text of a prompt's first tokens can differ from the prompt (a begin-of-text token, a space that the tokenizer
    inserts), and so can that of a character made of several tokens: those are searched for in the text.
    """
    offsets, at = [], 0
    is_prompt = bool(logprobs) and math.isnan(logprobs[0].logprob)
    for entry in logprobs:
        length = len(entry.text)
        if is_prompt and not text.startswith(entry.text, at):
            visible = entry.text if at else entry.text.lstrip()
            found = text.find(visible, at, at + len(visible) + _MAX_SKIPPED) if visible else -1
            at, length = (at, 0) if found < 0 else (found, len(visible))
        offsets.append(offset + at)
        at += length
    return offsets

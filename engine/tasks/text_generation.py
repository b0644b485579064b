"""Text generation: typed input -> prompt ids, output format, one sequence; `generation.py` tells what comes of it.

Prompts are the template's and the tokenizer's work, tools and constraints that of `engine/tool_calls/` and
`engine/constraints/`. Knows nothing of devices, of other models or of who is calling.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from engine.chat_templates.template import TemplateRefused
from engine.config import EngineConfig
from engine.constraints.checker import ConstraintChecker
from engine.constraints.compile import ConstraintRefused
from engine.processes.zygote import Zygote
from engine.protocol.events import Finished, Started, Usage
from engine.protocol.tasks import Constraint, TextGeneration
from engine.replica import Replica
from engine.report import EngineInfo, EngineStatus
from engine.sequence import SequenceRequest
from engine.tasks.adapter_check import AdapterCheck
from engine.tasks.answer import Answer
from engine.tasks.choices import Choices, of_choice
from engine.tasks.generation import Generation
from engine.tasks.prompt_echo import PromptEcho
from engine.tasks.work import Emit, Refused, Run, Work
from engine.tokenization.detokenizer import Detokenizer, StopFinder
from engine.tokenization.tokenizer import Tokenizer
from engine.tool_calls.families import FAMILIES
from engine.tool_calls.form import find_form, template_messages, template_tools
from engine.tool_calls.grammar import Controls, Thinking
from engine.tool_calls.plan import Plan, ToolsUnusable, make_plan, shown_tools
from engine.tool_calls.reasoning import REASONINGS, find_reasoning

_LONG_TEXT_CHARS = 20_000  # longer ones are tokenised in a thread, where they hold up nobody
_MANY_TOKENS = 10_000  # likewise, the other way
_CHARS_PER_MESSAGE = 100  # what a turn costs beside its text, in characters of text
_NAMESPACE_BYTES = 32
_PROMPT_END_TOKENS = 16  # of which may be marks of a thought
_MAX_LOGPROBS = 20
_MAX_STOPS = 16
_MAX_BIASES = 1024
_MAX_CHOICES = 128
_MAX_FLOAT = 1e30  # what stays finite as float32 in the sampler


class Checker(Protocol):
    """Says which constraints sequences can be held to."""

    async def check(self, constraint: Constraint, namespace: bytes) -> None:
        """Raises ConstraintRefused."""
        ...

    async def close(self) -> None: ...


class _Counted:
    """A run that was over when it had begun."""

    def cancel(self) -> Usage:
        return Usage()


class TextGenerator:
    """One text model on this node: its tokenizer, its replica, and the checker of its constraints."""

    def __init__(
        self, replica: Replica, tokenizer: Tokenizer, checker: Checker, *, tool_parser: str | None = None
    ) -> None:
        """`tool_parser` names the family of the model's tool calls, where its template does not show it."""
        self._replica = replica
        self._tokenizer = tokenizer
        self._checker = checker
        self._sequence_ids = itertools.count(1)
        self._adapters = AdapterCheck(replica.info.adapter_sites, replica.info.architecture)
        template = tokenizer.chat_template
        words = frozenset() if template is None else template.words | template.written
        hints = words if template is not None and template.reads_tools else ()
        self._form = None if template is None else find_form(template.render, tool_parser, hints)
        self._reasoning = find_reasoning(words)
        self._controls = _controls(tokenizer)

    @classmethod
    async def load(
        cls,
        zygote: Zygote,
        config: EngineConfig,
        revision: str,
        on_exit: Callable[[str], None],
        tool_parser: str | None = None,
    ) -> TextGenerator:
        """Load the model and its tokenizer side by side. Raises TokenizerUnusable, ReplicaLoadError, ZygoteError."""
        tokenizer_ready = asyncio.create_task(asyncio.to_thread(Tokenizer, config.model_dir))
        try:
            replica = await Replica.start(zygote, config, revision, on_exit)
        except BaseException:
            tokenizer_ready.cancel()
            await asyncio.gather(tokenizer_ready, return_exceptions=True)
            raise
        try:
            checker = ConstraintChecker(config.model_dir, replica.info.vocab_size, replica.info.eos_token_ids)
            # In a thread: finding out how a template writes calls is to render it, which may take a while.
            return await asyncio.to_thread(cls, replica, await tokenizer_ready, checker, tool_parser=tool_parser)
        except BaseException:
            await replica.close()
            raise

    @property
    def is_alive(self) -> bool:
        return self._replica.is_alive

    @property
    def info(self) -> EngineInfo:
        return self._replica.info

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def status(self) -> EngineStatus:
        return self._replica.status()

    async def close(self) -> None:
        await self._replica.close()
        await self._checker.close()

    async def start(self, work: Work, emit: Emit) -> Run:
        """Tokenise, check the length and the output format, and hand the sequences to the engine. Raises Refused."""
        assert isinstance(work.task, TextGeneration)
        task, info = work.task, self._replica.info
        _refuse_unsound(work, task)
        self._refuse_strange_tokens(task)
        prompt = await self.prompt_ids(task)
        if task.only_counts:
            emit(Started(prompt_tokens=len(prompt)))
            emit(Finished("stop"))
            return _Counted()
        try:
            is_turn = self._is_turn(task)
            plan = make_plan(task, self._form, self._controls, self._thinking(task, prompt), is_turn=is_turn)
        except ToolsUnusable as error:
            raise Refused("invalid_input", str(error)) from error
        if work.adapter is not None:
            await self._adapters.check(work.adapter)
        room = info.max_model_len - len(prompt)
        if task.sampling.must_fit and task.sampling.max_tokens > room:
            raise Refused("invalid_input", f"'/max_tokens' must be <= {room}: the prompt takes the rest of the context")
        field = task.constraint.field if task.constraint is not None else ""
        constraint = await self._first_sound(plan, work.namespace, field)
        stops = task.sampling.stop
        controls = [token_id for stop in stops if (token_id := self._tokenizer.control_id(stop)) is not None]
        request = SequenceRequest(
            sequence_id=next(self._sequence_ids),
            prompt=np.asarray(prompt, dtype=np.int32),
            sampling=msgspec.structs.replace(
                task.sampling,
                max_tokens=max(1, min(task.sampling.max_tokens, room)),
                scores_prompt=task.echoes and task.sampling.logprobs is not None,
            ),
            namespace=work.namespace,
            tenant=work.tenant,
            stop_token_ids=(*controls, *task.sampling.stop_token_ids),
            constraint=constraint,
            adapter=work.adapter,
            is_ephemeral=work.is_ephemeral,
        )

        echo = await self._echo(task, prompt) if task.echoes else None

        def begin(request: SequenceRequest, emit: Emit, choice: int) -> Generation:
            generation = Generation(
                self._replica,
                self._tokenizer,
                request,
                self._detokenizer(task, plan, prompt),
                Answer(StopFinder(stops), plan.parser(constraint)),
                emit,
                may_be_cut=task.constraint is None,
                choice=choice,
                echo=echo,
                is_silent=not task.sampling.max_tokens,
            )
            self._replica.add(request, generation.on_output)
            return generation

        if task.num_choices == 1:
            return begin(request, emit, 0)
        choices = Choices(emit)
        for choice in range(task.num_choices):
            choices.runs.append(begin(self._of_choice(request, choice), choices.emitter(choice), choice))
        return choices

    def _of_choice(self, request: SequenceRequest, choice: int) -> SequenceRequest:
        """The sequence of one of several answers, of which `request` is the first."""
        if not choice:
            return request
        return dataclasses.replace(
            request,
            sequence_id=next(self._sequence_ids),
            sampling=msgspec.structs.replace(of_choice(request.sampling, choice), scores_prompt=False),
            twin_of=request.sequence_id,
        )

    async def _echo(self, task: TextGeneration, prompt: Sequence[int]) -> PromptEcho:
        say = self._tokenizer.token_text

        def decode() -> tuple[str, list[str]]:
            text = self._tokenizer.decode(prompt) if task.prompt is None else task.prompt
            return text, [say(token_id) for token_id in prompt]

        is_short = len(prompt) < _MANY_TOKENS
        text, token_texts = decode() if is_short else await asyncio.to_thread(decode)
        return PromptEcho(text, token_texts, task.sampling.logprobs, say)

    async def _first_sound(self, plan: Plan, namespace: bytes, field: str) -> Constraint | None:
        """The first of the constraints that sequences can be held to; `field` is where the caller's own is. Raises
        Refused when it is none of them."""
        for constraint in plan.constraints:
            if constraint is None:
                return None
            try:
                await self._checker.check(constraint, namespace)
                return constraint
            except ConstraintRefused as error:
                refusal = error
        place = "/tools" if plan.tools else field
        message = f"'{place}' cannot be held to: {refusal}" if place else str(refusal)
        raise Refused("timeout" if refusal.is_timeout else "invalid_input", message) from refusal

    def _detokenizer(self, task: TextGeneration, plan: Plan, prompt: Sequence[int]) -> Detokenizer:
        return self._tokenizer.detokenizer(is_own_text=self._is_own_text(task, prompt), keep=plan.marks)

    def _thinking(self, task: TextGeneration, prompt: Sequence[int]) -> Thinking | None:
        """Where the prompt leaves a model that thinks first; None if there is nothing to be told of it."""
        is_told = task.tells_reasoning or task.constraint is not None or shown_tools(task)
        if self._reasoning is None or not is_told or not self._is_turn(task):
            return None
        end = self._tokenizer.detokenizer(keep=self._reasoning.marks).push(prompt[-_PROMPT_END_TOKENS:])
        phase = self._reasoning.phase_after(end)
        return None if phase == "answers" and not self._reasoning.answer_opening else Thinking(self._reasoning, phase)

    def _is_turn(self, task: TextGeneration) -> bool:
        """Whether the prompt is the template's, so that what follows is the assistant's whole turn."""
        if task.messages is not None:
            return True
        return task.prompt is not None and self._tokenizer.has_chat_template and not task.raw

    async def prompt_ids(self, task: TextGeneration) -> Sequence[int]:
        """The ids of the prompt: at least one, and fewer than the context. Raises Refused."""
        if task.prompt_token_ids is not None:
            self._refuse_long(task.prompt_token_ids)
            vocab_size = self._replica.info.vocab_size
            if not all(0 <= token_id < vocab_size for token_id in task.prompt_token_ids):
                raise Refused("invalid_input", f"token ids must be from 0 to {vocab_size - 1}")
            prompt: Sequence[int] = task.prompt_token_ids
        else:
            self._refuse_hopeless(task)
            messages = task.messages or ()
            size = len(task.prompt or "") + sum(len(message.content) + _CHARS_PER_MESSAGE for message in messages)
            size += sum(len(call.arguments) for message in messages for call in message.tool_calls)
            size += sum(len(message.reasoning) for message in messages)
            size += len(msgspec.json.encode(shown_tools(task)))
            encode = self._encode
            try:
                is_short = size < _LONG_TEXT_CHARS and not self._tokenizer.is_slow
                prompt = encode(task) if is_short else await asyncio.to_thread(encode, task)
            except TemplateRefused as error:
                raise Refused("invalid_input", str(error)) from error
            self._refuse_long(prompt)
        if not prompt:
            raise Refused("invalid_input", "the prompt is empty, and this model needs at least one token")
        return prompt

    def _encode(self, task: TextGeneration) -> list[int]:
        switches: dict[str, Any] = dict(task.template_kwargs)
        if task.messages is not None:
            turns = template_messages(task.messages, self._form)
            tools = template_tools(shown_tools(task)) or None
            return self._tokenizer.encode_conversation(turns, tools=tools, **switches)
        assert task.prompt is not None
        if task.raw or not self._tokenizer.has_chat_template:
            return self._tokenizer.encode(task.prompt, is_raw=task.raw)
        turns = [{"role": "user", "content": task.prompt}]
        return self._tokenizer.encode_conversation(turns, **switches)

    def _refuse_strange_tokens(self, task: TextGeneration) -> None:
        """Raises Refused for a bias on, or an end at, tokens that the model does not have."""
        vocab_size = self._replica.info.vocab_size
        biased = [token_id for token_id, _ in task.sampling.logit_bias]
        for field, token_ids in (("logit_bias", biased), ("stop_token_ids", task.sampling.stop_token_ids)):
            if not all(0 <= token_id < vocab_size for token_id in token_ids):
                raise Refused("invalid_input", f"'/{field}' must be of token ids from 0 to {vocab_size - 1}")

    def _refuse_long(self, prompt: Sequence[int]) -> None:
        max_model_len = self._replica.info.max_model_len
        if len(prompt) >= max_model_len:
            raise _too_long(f"the prompt has {len(prompt)} tokens", max_model_len)

    def _refuse_hopeless(self, task: TextGeneration) -> None:
        """Texts whose very size rules them out are not tokenised."""
        texts = [task.prompt or "", *(message.content for message in task.messages or ())]
        at_least = sum(self._tokenizer.min_tokens(text) for text in texts)
        if at_least >= self._replica.info.max_model_len:
            raise _too_long(f"the prompt has at least {at_least} tokens", self._replica.info.max_model_len)

    def _is_own_text(self, task: TextGeneration, prompt: Sequence[int]) -> bool:
        """Whether the answer is a text of its own, rather than going on with one that the caller knows."""
        is_conversation = task.messages is not None or (self._tokenizer.has_chat_template and not task.raw)
        return is_conversation or len(prompt) <= 1


def _refuse_unsound(work: Work, task: TextGeneration) -> None:
    """What a gateway's schemas let nobody ask is not asked of the engine either. Raises Refused."""
    sampling = task.sampling
    floats = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty, sampling.temperature)
    is_sound = {
        "messages, prompt or prompt_token_ids": [task.messages, task.prompt, task.prompt_token_ids].count(None) == 2,
        "namespace": len(work.namespace) == _NAMESPACE_BYTES,
        "tenant": 0 <= work.tenant < 1 << 63,
        "max_tokens": sampling.max_tokens >= (0 if task.echoes else 1),
        "echoes": not task.echoes or task.messages is None,
        "min_tokens": 0 <= sampling.min_tokens <= sampling.max_tokens,
        "temperature": sampling.temperature >= 0,
        "top_p": 0 < sampling.top_p <= 1,
        "top_k": 0 <= sampling.top_k < 1 << 31,
        "min_p": 0 <= sampling.min_p <= 1,
        "repetition_penalty": sampling.repetition_penalty > 0,
        "logprobs": sampling.logprobs is None or 0 <= sampling.logprobs <= _MAX_LOGPROBS,
        "stop": len(sampling.stop) + len(sampling.stop_token_ids) <= _MAX_STOPS,
        "stop_token_ids": all(0 <= token_id < 1 << 31 for token_id in sampling.stop_token_ids),
        "temperature and penalties": all(abs(value) <= _MAX_FLOAT for value in floats),
        "logit_bias": len(sampling.logit_bias) <= _MAX_BIASES
        and all(abs(value) <= _MAX_FLOAT for _, value in sampling.logit_bias),
        "n": 1 <= task.num_choices <= _MAX_CHOICES,
    }
    for name, is_fine in is_sound.items():
        if not is_fine:
            raise Refused("invalid_input", f"{name} cannot be used as given")


def _too_long(what: str, max_model_len: int) -> Refused:
    return Refused("context_too_long", f"{what}, and this model's context is {max_model_len} with the answer included")


def _controls(tokenizer: Tokenizer) -> Controls:
    """What grammars need to know of a model's control tokens. Marks of calls have no place in text."""
    of_calls = {mark for family in FAMILIES.values() for mark in family.marks}
    of_thoughts = {mark for reasoning in REASONINGS for mark in reasoning.marks}
    marks = {text: token_id for text in of_calls | of_thoughts if (token_id := tokenizer.control_id(text)) is not None}
    of_calls_ids = {token_id for text, token_id in marks.items() if text in of_calls}
    return Controls(marks, frozenset(tokenizer.shown_control_ids) - of_calls_ids)

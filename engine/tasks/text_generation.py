"""Text generation: turn an input into prompt ids, an output format and sequences. `generation.py` turns their outputs
into events.

`prompt.py` reads prompts, `engine/tool_calls/` and `engine/structured/` handle tools and constraints. Knows nothing of
devices, other models or callers.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from engine.config import DEFAULT_SPECULATION, DRAFT, EngineConfig
from engine.processes.zygote import ZygoteError
from engine.protocol.events import Event, Failed, Finished, Started, Usage
from engine.protocol.output_format import Constraint
from engine.protocol.tasks.text_generation import TextGeneration
from engine.ranks.replica import Replica, ReplicaDeviceLost, ReplicaLoadError
from engine.report import EngineInfo, EngineStatus, SleepReport
from engine.scheduling.sequence import PromptImage, SequenceRequest
from engine.structured.checker import ConstraintChecker
from engine.structured.refusal import ConstraintRefused
from engine.tasks.adapter_check import AdapterCheck
from engine.tasks.choices import Choices, of_choice
from engine.tasks.generated_text import GeneratedText
from engine.tasks.generation import Generation
from engine.tasks.input_check import check_input
from engine.tasks.loading import LoadRequest, ModelDeviceLost, ModelLoadError
from engine.tasks.prompt import PromptReader
from engine.tasks.prompt_echo import PromptEcho
from engine.tasks.token_coalescer import TokenCoalescer
from engine.tasks.vision import Vision, load_vision
from engine.tasks.work import Emit, ModelDescription, Refused, Run, Work
from engine.text.detokenizer import StopStringFinder
from engine.text.files import TokenizerUnusable
from engine.text.tokenizer import Tokenizer
from engine.tool_calls.families import FAMILIES
from engine.tool_calls.grammar import Controls, ReasoningState
from engine.tool_calls.output_plan import OutputPlan, ToolsRefused, make_output_plan, shown_tools
from engine.tool_calls.reasoning import REASONINGS, find_reasoning
from engine.tool_calls.tool_format import find_tool_format

_MANY_TOKENS = 10_000  # longer prompts are detokenized for their echo in a thread
_PROMPT_END_TOKENS = 16  # tokens at the prompt's end that may contain a reasoning mark


async def load(request: LoadRequest) -> TextGenerator:
    """Load a text model and its tokenizer in parallel. Raises ModelLoadError."""
    tokenizer_ready = asyncio.create_task(asyncio.to_thread(Tokenizer, request.folder))
    try:
        async with _speculation(request) as speculation:
            config = _engine_config(request, speculation)
            replica = await Replica.start(request.zygote, config, request.revision, request.on_exit)
        try:
            vision = await load_vision(request)
        except BaseException:
            await replica.close()
            raise
        try:
            checker = ConstraintChecker(config.model_dir, replica.info.vocab_size, replica.info.eos_token_ids)
            # Detecting the tool call syntax renders the template, which may take a while, so it runs in a thread.
            return await asyncio.to_thread(
                TextGenerator,
                replica,
                await tokenizer_ready,
                checker,
                tool_parser=request.tool_parser,
                vision=vision,
                coalescer=TokenCoalescer(request.settings.coalesce_ms / 1000),
            )
        except BaseException:
            await replica.close()
            if vision is not None:
                await vision.close()
            raise
    except ReplicaDeviceLost as error:
        raise ModelDeviceLost(str(error)) from error
    except (TokenizerUnusable, ReplicaLoadError, ZygoteError) as error:
        raise ModelLoadError(str(error)) from error
    finally:
        tokenizer_ready.cancel()
        await asyncio.gather(tokenizer_ready, return_exceptions=True)


def _engine_config(request: LoadRequest, speculation: str) -> EngineConfig:
    settings = request.settings
    return EngineConfig(
        model_dir=request.folder,
        dtype=settings.dtype,
        kv_dtype=settings.kv_dtype,
        device=settings.device,
        has_graphs=settings.has_graphs,
        attention=settings.attention,
        kv_memory_bytes=request.kv_bytes or settings.kv_memory_bytes,
        is_kv_auto=not settings.kv_memory_bytes,
        adapter_memory_bytes=settings.adapter_memory_bytes,
        max_sequences=settings.max_sequences,
        max_waiting=settings.max_waiting,
        max_step_tokens=settings.max_step_tokens,
        step_timeout_s=settings.step_timeout_s,
        max_model_len=request.context_window,
        num_threads=request.num_threads,
        tensor_parallel=settings.tensor_parallel,
        speculation=speculation,
        sleeps=request.sleeps,
    )


@contextlib.asynccontextmanager
async def _speculation(request: LoadRequest) -> AsyncIterator[str]:
    """Provide the speculation method; the files of a draft model are available within the context. Without its draft
    model, the model is loaded with the default method."""
    if request.settings.speculation != "card":
        yield request.settings.speculation
    elif request.speculation is None or not request.speculation.startswith(DRAFT):
        yield request.speculation or DEFAULT_SPECULATION
    else:
        async with request.open_model(request.speculation.removeprefix(DRAFT)) as folder:
            yield DEFAULT_SPECULATION if folder is None else f"{DRAFT}{folder}"


class Checker(Protocol):
    """Checks whether sequences can be constrained as requested."""

    async def check(self, constraint: Constraint, namespace: bytes) -> None:
        """Raises ConstraintRefused."""
        ...

    async def close(self) -> None: ...


class _Counted:
    """The run of a call that only counts tokens, which is over when it starts."""

    def cancel(self) -> Usage:
        return Usage()


class TextGenerator:
    """One text model of this node: its tokenizer, its replica, and the checker of its constraints."""

    def __init__(
        self,
        replica: Replica,
        tokenizer: Tokenizer,
        checker: Checker,
        *,
        tool_parser: str | None = None,
        vision: Vision | None = None,
        coalescer: TokenCoalescer | None = None,
    ) -> None:
        """`tool_parser` names the tool call syntax if the chat template does not show it. Without a coalescer, every
        token is emitted at once."""
        self._replica = replica
        self._coalescer = coalescer or TokenCoalescer(0.0)
        self._vision = vision
        self._tokenizer = tokenizer
        self._checker = checker
        self._sequence_ids = itertools.count(1)
        self._adapters = AdapterCheck(replica.info.adapter_sites, replica.info.architecture)
        template = tokenizer.chat_template
        words = frozenset() if template is None else template.words | template.written
        hints = words if template is not None and template.reads_tools else ()
        self._form = None if template is None else find_tool_format(template.render, tool_parser, hints)
        self._prompts = PromptReader(tokenizer, self._form, replica.info, None if vision is None else vision.markup)
        self._reasoning = find_reasoning(words)
        self._controls = _controls(tokenizer)

    @property
    def is_alive(self) -> bool:
        return self._replica.is_alive and (self._vision is None or self._vision.is_alive)

    @property
    def info(self) -> EngineInfo:
        return self._replica.info

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def status(self) -> EngineStatus:
        return self._replica.status()

    def describe(self) -> ModelDescription:
        info = self.info
        path: str = "completions"
        body: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 32}
        if self._tokenizer.has_chat_template:
            path, body = "chat/completions", {"messages": [{"role": "user", "content": "Hello!"}]}
        layout = info.layout_tag.partition("-")[0]
        details = f"{layout}, context {info.max_model_len}, {info.num_blocks} KV blocks"
        return ModelDescription(info.max_model_len, path, body, details)

    @property
    def can_sleep(self) -> bool:
        return self.info.can_sleep and self._vision is None  # a vision encoder keeps its memory

    async def sleep(self, snapshot: str) -> SleepReport:
        return await self._change(self._replica.sleep(snapshot))

    async def wake(self) -> SleepReport:
        return await self._change(self._replica.wake())

    @staticmethod
    async def _change(change: Awaitable[SleepReport]) -> SleepReport:
        try:
            return await change
        except ReplicaLoadError as error:
            raise ModelLoadError(str(error)) from error

    async def close(self) -> None:
        await self._replica.close()
        if self._vision is not None:
            await self._vision.close()
        await self._checker.close()

    async def prompt_ids(self, task: TextGeneration) -> Sequence[int]:
        """Return the ids of the prompt: at least one, and fewer than the context. Raises Refused."""
        prompt, _, _ = await self._read(task)
        return prompt

    async def _read(self, task: TextGeneration) -> tuple[Sequence[int], tuple[PromptImage, ...], int]:
        """Return the ids of the prompt, its images, and the device time of the images in microseconds. Raises
        Refused."""
        images = task.images
        if not images:
            return await self._prompts.read(task), (), 0
        if self._vision is None or not all(image.is_decoded for image in images):
            raise Refused("invalid_input", "'/messages' must not have images: this model takes text only")
        prompt, found, device_us = await self._vision.insert(await self._prompts.read(task), images)
        self._prompts.refuse_long(prompt)
        return prompt, found, device_us

    async def start(self, work: Work[TextGeneration], emit: Emit) -> Run:
        """Tokenize, check the length and the output format, and add the sequences to the engine. Raises Refused."""
        check_input(work, self.info.vocab_size)
        task = _without_stops_in_json(work.task)
        prompt, images, device_us = await self._read(task)
        if images:
            emit = _adding_device_time(emit, device_us)
        if task.only_counts:
            emit(Started(prompt_tokens=len(prompt)))
            emit(Finished("stop"))
            return _Counted()
        plan = self._plan(task, prompt)
        if work.adapter is not None:
            await self._adapters.check(work.adapter)
        room = self._room(task, prompt)
        constraint = await self._enforceable(plan, work.namespace, task.constraint)
        request = msgspec.structs.replace(self._request(work, task, prompt, room, constraint), images=images)
        echo = await self._echo(task, prompt) if task.echoes_prompt else None
        return self._begin(task, plan, request, echo, emit)

    def _plan(self, task: TextGeneration, prompt: Sequence[int]) -> OutputPlan:
        """Return the plan for the task's tools and output format. Raises Refused."""
        is_turn = self._prompts.uses_template(task)
        try:
            return make_output_plan(
                task, self._form, self._controls, self._reasoning_state(task, prompt), is_turn=is_turn
            )
        except ToolsRefused as error:
            raise Refused("invalid_input", str(error)) from error

    def _room(self, task: TextGeneration, prompt: Sequence[int]) -> int:
        """Return the number of tokens that the context has left for the output. Raises Refused."""
        room = self.info.max_model_len - len(prompt)
        if task.sampling.has_explicit_max_tokens and task.sampling.max_tokens > room:
            raise Refused("invalid_input", f"'/max_tokens' must be <= {room}: the prompt takes the rest of the context")
        return room

    def _request(
        self,
        work: Work[TextGeneration],
        task: TextGeneration,
        prompt: Sequence[int],
        room: int,
        constraint: Constraint | None,
    ) -> SequenceRequest:
        """Return the sequence request of the first choice."""
        sampling = task.sampling
        controls = [token_id for stop in sampling.stop if (token_id := self._tokenizer.control_id(stop)) is not None]
        return SequenceRequest(
            sequence_id=next(self._sequence_ids),
            prompt=np.asarray(prompt, dtype=np.int32),
            sampling=msgspec.structs.replace(
                sampling,
                max_tokens=max(1, min(sampling.max_tokens, room)),
                wants_prompt_logprobs=task.echoes_prompt and sampling.logprobs is not None,
            ),
            namespace=work.namespace,
            tenant=work.tenant,
            stop_token_ids=(*controls, *sampling.stop_token_ids),
            constraint=constraint,
            adapter=work.adapter,
            is_ephemeral=work.is_ephemeral,
        )

    def _begin(
        self, task: TextGeneration, plan: OutputPlan, request: SequenceRequest, echo: PromptEcho | None, emit: Emit
    ) -> Run:
        """Add the sequences of all choices to the engine; `request` is the first choice's."""

        def begin(request: SequenceRequest, emit: Emit, choice: int) -> Generation:
            starts_text = self._prompts.starts_text(task, len(request.prompt))
            generation = Generation(
                self._replica,
                self._tokenizer,
                request,
                self._tokenizer.detokenizer(starts_text=starts_text, show=plan.marks),
                GeneratedText(StopStringFinder(task.sampling.stop), plan.parser(request.constraint)),
                emit,
                self._coalescer,
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
        """Return the sequence request of another choice; `request` is the first choice's."""
        if not choice:
            return request
        return msgspec.structs.replace(
            request,
            sequence_id=next(self._sequence_ids),
            sampling=msgspec.structs.replace(of_choice(request.sampling, choice), wants_prompt_logprobs=False),
        )

    async def _echo(self, task: TextGeneration, prompt: Sequence[int]) -> PromptEcho:
        token_text = self._tokenizer.token_text

        def decode() -> tuple[str, list[str]]:
            text = self._tokenizer.decode(prompt) if task.prompt is None else task.prompt
            return text, [token_text(token_id) for token_id in prompt]

        is_short = len(prompt) < _MANY_TOKENS
        text, token_texts = decode() if is_short else await asyncio.to_thread(decode)
        return PromptEcho(text, token_texts, task.sampling.logprobs, token_text)

    async def _enforceable(self, plan: OutputPlan, namespace: bytes, own: Constraint | None) -> Constraint | None:
        """Return the first of the plan's constraints that can be enforced; `own` is the caller's. Raises Refused if
        none can be enforced."""
        for constraint in plan.constraints:
            if constraint is None:
                return None
            try:
                await self._checker.check(constraint, namespace)
                return constraint
            except ConstraintRefused as error:
                refusal = error
        field = "/tools" if plan.tools else own.field if own is not None else ""
        message = f"'{field}' cannot be enforced: {refusal}" if field else str(refusal)
        raise Refused("timeout" if refusal.is_timeout else "invalid_input", message) from refusal

    def _reasoning_state(self, task: TextGeneration, prompt: Sequence[int]) -> ReasoningState | None:
        """Return the reasoning state at the end of the prompt; None if reasoning is not separated."""
        is_separated = task.separates_reasoning or task.constraint is not None or shown_tools(task)
        if self._reasoning is None or not is_separated or not self._prompts.uses_template(task):
            return None
        end = self._tokenizer.detokenizer(show=self._reasoning.marks).push(prompt[-_PROMPT_END_TOKENS:])
        phase = self._reasoning.phase_after(end)
        return (
            None
            if phase == "content" and not self._reasoning.content_opening
            else ReasoningState(self._reasoning, phase)
        )


def _adding_device_time(emit: Emit, device_us: int) -> Emit:
    """Return a function that emits events with this device time added to the usage."""

    def emit_with(event: Event) -> None:
        if isinstance(event, Finished | Failed):
            usage = msgspec.structs.replace(event.usage, device_us=event.usage.device_us + device_us)
            event = msgspec.structs.replace(event, usage=usage)
        emit(event)

    return emit_with


def _without_stops_in_json(task: TextGeneration) -> TextGeneration:
    """Remove stop conditions from JSON output, which ends where its value ends so that it can be parsed."""
    if task.constraint is None or task.constraint.kind not in ("json_schema", "json_object"):
        return task
    return msgspec.structs.replace(task, sampling=msgspec.structs.replace(task.sampling, stop=(), stop_token_ids=()))


def _controls(tokenizer: Tokenizer) -> Controls:
    """Return the control tokens that grammars need to know. Marks of calls must not occur in text."""
    of_calls = {mark for family in FAMILIES.values() for mark in family.marks}
    of_reasoning = {mark for reasoning in REASONINGS for mark in reasoning.marks}
    marks = {text: token_id for text in of_calls | of_reasoning if (token_id := tokenizer.control_id(text)) is not None}
    of_calls_ids = {token_id for text, token_id in marks.items() if text in of_calls}
    return Controls(marks, frozenset(tokenizer.visible_control_ids) - of_calls_ids)

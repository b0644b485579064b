"""Text generation: typed input -> prompt ids -> one sequence -> text, a few tokens at a time, until it ends.

The text side of the engine: prompts, stop strings, log-probabilities by text, usage. What is one step of the engine
becomes at most one Token event of a run. Knows nothing of devices, of other models or of who is calling.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from engine.chat_template import TemplateRefused
from engine.config import EngineConfig
from engine.detokenizer import StopFinder
from engine.protocol.events import Failed, Finished, Started, Token, TokenLogprob, Usage
from engine.protocol.tasks import TextGeneration
from engine.replica import Output, Replica, TokenIdLogprob
from engine.report import EngineStatus
from engine.sequence import SequenceRequest
from engine.tasks.work import Emit, Refused, Work
from engine.tokenizer import Tokenizer
from engine.zygote import Zygote

logger = logging.getLogger(__name__)

_LONG_TEXT_CHARS = 20_000  # longer ones are tokenised in a thread, where they hold up nobody
_CHARS_PER_MESSAGE = 100  # what a turn costs beside its text, in characters of text
_NAMESPACE_BYTES = 32
_MAX_LOGPROBS = 20
_MAX_STOPS = 16
_MAX_FLOAT = 1e30  # what stays finite as float32 in the sampler

_FAILURES: dict[str, Failed] = {
    "out_of_capacity": Failed("out_of_capacity", "the model has no room for this now", is_retryable=True),
    "context_too_long": Failed("context_too_long", "the prompt does not fit the memory of this model's replica"),
    "crashed": Failed("internal", "the process that ran the model ended", is_retryable=True),
    "error": Failed("internal", "the engine could not run this sequence"),
    "aborted": Failed("internal", "the model was unloaded", is_retryable=True),
}


class TextGenerator:
    """One text model on this node: its tokenizer and its replica."""

    def __init__(self, replica: Replica, tokenizer: Tokenizer) -> None:
        self._replica = replica
        self._tokenizer = tokenizer
        self._sequence_ids = itertools.count(1)

    @classmethod
    async def load(
        cls, zygote: Zygote, config: EngineConfig, revision: str, on_exit: Callable[[str], None]
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
            return cls(replica, await tokenizer_ready)
        except BaseException:
            await replica.close()
            raise

    @property
    def is_alive(self) -> bool:
        return self._replica.is_alive

    def status(self) -> EngineStatus:
        return self._replica.status()

    async def close(self) -> None:
        await self._replica.close()

    async def start(self, work: Work, emit: Emit) -> Generation:
        """Tokenise, check the length, and hand the sequence to the engine. Raises Refused."""
        assert isinstance(work.task, TextGeneration)
        task, info = work.task, self._replica.info
        _refuse_unsound(work, task)
        prompt = await self._prompt(task)
        room = info.max_model_len - len(prompt)
        if task.sampling.must_fit and task.sampling.max_tokens > room:
            raise Refused("invalid_input", f"'/max_tokens' must be <= {room}: the prompt takes the rest of the context")
        stops = task.sampling.stop
        controls = [token_id for stop in stops if (token_id := self._tokenizer.control_id(stop)) is not None]
        request = SequenceRequest(
            sequence_id=next(self._sequence_ids),
            prompt=np.asarray(prompt, dtype=np.int32),
            sampling=msgspec.structs.replace(task.sampling, max_tokens=min(task.sampling.max_tokens, room)),
            namespace=work.namespace,
            tenant=work.tenant,
            stop_token_ids=tuple(controls),
        )
        generation = Generation(
            self._replica, self._tokenizer, request, emit, is_own_text=self._is_own_text(task, prompt)
        )
        self._replica.add(request, generation.on_output)
        return generation

    async def _prompt(self, task: TextGeneration) -> Sequence[int]:
        """The ids of the prompt: at least one, and fewer than the context."""
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
            encode = self._encode
            try:
                prompt = encode(task) if size < _LONG_TEXT_CHARS else await asyncio.to_thread(encode, task)
            except TemplateRefused as error:
                raise Refused("invalid_input", str(error)) from error
            self._refuse_long(prompt)
        if not prompt:
            raise Refused("invalid_input", "the prompt is empty, and this model needs at least one token")
        return prompt

    def _encode(self, task: TextGeneration) -> list[int]:
        if task.messages is not None:
            turns = [{"role": message.role, "content": message.content} for message in task.messages]
            for turn, message in zip(turns, task.messages, strict=True):
                if message.name is not None:
                    turn["name"] = message.name
            return self._tokenizer.encode_conversation(turns)
        assert task.prompt is not None
        if task.raw or not self._tokenizer.has_chat_template:
            return self._tokenizer.encode(task.prompt, is_raw=task.raw)
        return self._tokenizer.encode_conversation([{"role": "user", "content": task.prompt}])

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


class Generation:
    """One sequence on its way; made by `TextGenerator.start`."""

    def __init__(
        self, replica: Replica, tokenizer: Tokenizer, request: SequenceRequest, emit: Emit, *, is_own_text: bool
    ) -> None:
        self._replica = replica
        self._tokenizer = tokenizer
        self._sequence_id = request.sequence_id
        self._num_prompt = len(request.prompt)
        self._num_tops = request.sampling.logprobs or 0
        self._emit = emit
        self._detokenizer = tokenizer.detokenizer(is_own_text=is_own_text)
        self._stops = StopFinder(request.sampling.stop)
        self._num_cached = 0
        self._num_tokens = 0
        self._num_unsaid = 0  # tokens whose text is still held back
        self._logprobs: list[TokenLogprob] = []
        self._is_started = False
        self._is_over = False

    def cancel(self) -> Usage:
        """Free the sequence's blocks within one step."""
        if not self._is_over:
            self._is_over = True
            self._replica.abort(self._sequence_id)
        return self._usage()

    def on_output(self, output: Output) -> None:
        """One step's news of the sequence. Whatever goes wrong with telling it, the call has its end."""
        if self._is_over:
            return
        try:
            self._tell(output)
        except Exception as error:
            logger.exception("an answer could not be told: %s", type(error).__name__)
            self._replica.abort(self._sequence_id)
            self._end(msgspec.structs.replace(_FAILURES["error"], usage=self._usage()))

    def _tell(self, output: Output) -> None:
        self._num_cached = output.num_cached_tokens or self._num_cached
        if output.token_ids:
            self._start()
            text = self._take(output)
            if text or self._logprobs:
                self._say(text)
        if self._stops.is_stopped:
            self._end(Finished("stop", self._usage()))
            self._replica.abort(self._sequence_id)
        elif output.finish == "stop" or output.finish == "length":
            self._start()
            rest = self._stops.flush()
            if rest:
                self._say(rest)
            self._end(Finished(output.finish, self._usage()))
        elif output.finish is not None:
            self._end(msgspec.structs.replace(_FAILURES[output.finish], usage=self._usage()))

    def _take(self, output: Output) -> str:
        """Count the tokens up to the end of a stop string; return the text that can be said."""
        text = ""
        last = len(output.token_ids) - 1
        for index, token_id in enumerate(output.token_ids):
            self._num_tokens += 1
            self._num_unsaid += 1
            is_end_token = index == last and output.finish == "stop"
            text += self._stops.push("" if is_end_token else self._detokenizer.push((token_id,)))
            if output.logprobs and not is_end_token:
                self._logprobs.append(self._logprob(token_id, output.logprobs[index]))
            if self._stops.is_stopped:
                break
        return text

    def _logprob(self, token_id: int, drawn: TokenIdLogprob) -> TokenLogprob:
        top = tuple((self._tokenizer.token_text(other), logprob) for other, logprob in drawn.top[: self._num_tops])
        return TokenLogprob(self._tokenizer.token_text(token_id), drawn.logprob, top)

    def _start(self) -> None:
        if not self._is_started:
            self._is_started = True
            self._emit(Started(self._num_prompt, self._num_cached))

    def _say(self, text: str) -> None:
        self._emit(Token(text, self._num_unsaid, tuple(self._logprobs)))
        self._num_unsaid = 0
        self._logprobs.clear()

    def _end(self, event: Finished | Failed) -> None:
        self._is_over = True
        self._emit(event)

    def _usage(self) -> Usage:
        return Usage(prompt_tokens=self._num_prompt, cached_tokens=self._num_cached, completion_tokens=self._num_tokens)


def _refuse_unsound(work: Work, task: TextGeneration) -> None:
    """What a gateway's schemas let nobody ask is not asked of the engine either. Raises Refused."""
    sampling = task.sampling
    floats = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty, sampling.temperature)
    is_sound = {
        "messages, prompt or prompt_token_ids": [task.messages, task.prompt, task.prompt_token_ids].count(None) == 2,
        "namespace": len(work.namespace) == _NAMESPACE_BYTES,
        "tenant": 0 <= work.tenant < 1 << 63,
        "max_tokens": sampling.max_tokens >= 1,
        "temperature": sampling.temperature >= 0,
        "top_p": 0 < sampling.top_p <= 1,
        "top_k": 0 <= sampling.top_k < 1 << 31,
        "min_p": 0 <= sampling.min_p <= 1,
        "repetition_penalty": sampling.repetition_penalty > 0,
        "logprobs": sampling.logprobs is None or 0 <= sampling.logprobs <= _MAX_LOGPROBS,
        "stop": len(sampling.stop) <= _MAX_STOPS,
        "temperature and penalties": all(abs(value) <= _MAX_FLOAT for value in floats),
    }
    for name, is_fine in is_sound.items():
        if not is_fine:
            raise Refused("invalid_input", f"{name} cannot be used as given")


def _too_long(what: str, max_model_len: int) -> Refused:
    return Refused("context_too_long", f"{what}, and this model's context is {max_model_len} with the answer included")

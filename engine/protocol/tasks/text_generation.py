"""The task text generation: continue a prompt or a conversation. Native bodies and responses are Workers AI's older
format (`response`, `tool_calls`, `usage`)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import msgspec
from msgspec import Struct, field

from engine.protocol.events import Finished, TokenLogprob, ToolCallDelta
from engine.protocol.fields import BadInput, boolean, media
from engine.protocol.images import Image, MediaFile
from engine.protocol.messages import ChatMessage, read_messages, with_image
from engine.protocol.outcome import Outcome
from engine.protocol.output_format import Constraint, read_constraint
from engine.protocol.rendering import DONE, OutputNotJson, Renderer, encode, tool_call_delta_object, usage_object
from engine.protocol.sampling import Sampling, read_sampling
from engine.protocol.tasks.task import CHARACTERS_PER_TOKEN, ModelLimits, Task
from engine.protocol.tools import Tool, ToolCall, ToolChoice, read_tool_options

_OPENING_TOKENS = 64  # length of the opening of a prompt given as token ids
_OPENING_MESSAGES = 4
_TOKENS_PER_IMAGE = 576  # estimate
_CHARACTERS_PER_TOOL = 200  # estimate for name and parameters

_PADDING = "abcdefghijklmnopqrstuvwxyz0123456789" * 2
_PADDED_ENDS = [f',"p":"{_PADDING[:size]}"}}\n\n'.encode() for size in range(1, 65)]


class Adapter(Struct, frozen=True):
    """A LoRA adapter. `name` is the name of its manifest, `digest` the manifest's digest: equal digests are equal
    adapters."""

    name: str
    digest: str


class TextGeneration(Task, frozen=True, tag="text-generation", omit_defaults=True, kw_only=True):
    """Exactly one of `messages`, `prompt` and `prompt_token_ids` is given.

    `messages` are rendered by the model's chat template. `prompt` is one user message for the template, unless `raw`
    is true or the model has no template: then `prompt` is the exact text.

    With `tool_choice` "required" the model must call a tool, and `named_tool` if that is set. `constraint` is the
    output format; with tools it binds only a response that calls no tool.

    `num_choices` responses are generated for the one prompt. The first equals the response to a request for one; with
    a seed, each further choice uses the next seed.

    `echoes_prompt`: each choice begins with the prompt's text, and its log probabilities, if requested, with those of
    the prompt; `max_tokens` may then be 0. With `only_counts` nothing is generated; Started has the number of prompt
    tokens.

    `template_kwargs` are chat template variables that a caller may set (`enable_thinking`). With `separates_reasoning`
    reasoning is marked as such; otherwise it is ordinary text unless tools or a format are requested.
    """

    slug: ClassVar[str] = "text-generation"
    native_schemas: ClassVar[tuple[str, ...]] = (
        "text_generation_legacy",
        "text_generation_responses",
        "openai_chat",
    )
    can_stream: ClassVar[bool] = True
    text_field: ClassVar[str] = "prompt"

    messages: tuple[ChatMessage, ...] | None = None
    prompt: str | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    raw: bool = False
    sampling: Sampling = Sampling()
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    named_tool: str | None = None
    is_parallel_tool_calls: bool = True
    constraint: Constraint | None = None
    num_choices: int = 1
    adapter: Adapter | None = None
    template_kwargs: dict[str, bool | str] = field(default_factory=dict)
    separates_reasoning: bool = False
    only_counts: bool = False
    echoes_prompt: bool = False

    @property
    def opening_text(self) -> str:
        adapter = self.adapter.digest[:16] if self.adapter is not None else ""
        if self.messages is not None:
            return adapter + "\n".join([message.content for message in self.messages[:_OPENING_MESSAGES]])
        if self.prompt_token_ids:
            return adapter + str(self.prompt_token_ids[:_OPENING_TOKENS])
        return adapter + (self.prompt or "")

    @property
    def num_estimated_tokens(self) -> int:
        num_characters = len(self.prompt or "") + sum([len(message.content) for message in self.messages or ()])
        num_characters += sum([len(tool.description) + _CHARACTERS_PER_TOOL for tool in self.tools])
        num_tokens = len(self.prompt_token_ids or ()) + self.max_completion_tokens
        num_tokens += _TOKENS_PER_IMAGE * len(self.images)
        return num_characters // CHARACTERS_PER_TOKEN + num_tokens

    @property
    def images(self) -> list[Image]:
        """The images of all messages, in order."""
        return [image for message in self.messages or () for image in message.images]

    def media_files(self) -> Iterator[MediaFile]:
        for number, message in enumerate(self.messages or ()):
            for image in message.images:
                field = f"messages/{number}/content"
                yield MediaFile(field, "image", image.pixels, self.max_image_pixels, image.url)

    def with_media(self, decoded: Iterator[bytes | Image]) -> Self:
        if not self.images:
            return self
        messages = [_with_images(message, decoded) for message in self.messages or ()]
        return msgspec.structs.replace(self, messages=tuple(messages))

    @property
    def max_completion_tokens(self) -> int:
        return self.sampling.max_tokens * self.num_choices

    @classmethod
    def estimate_completion_tokens(cls, body: Mapping[str, Any], model: ModelLimits) -> int:
        limits = [body.get(name) for name in ("max_tokens", "max_completion_tokens")]
        return next((n for n in limits if type(n) is int and 0 < n <= model.context_window), model.default_max_tokens)

    @classmethod
    def read_native(cls, body: Mapping[str, Any], model: ModelLimits) -> Self:
        sampling = read_sampling(body, default_max_tokens=model.default_max_tokens, context_window=model.context_window)
        has_image = body.get("image") is not None
        if body.get("messages") is not None:
            task = cls.of_messages(body, sampling)
            if not has_image:
                return task
            messages = with_image(task.messages or (), Image.of_file(media(body, "image")))
            return msgspec.structs.replace(task, messages=messages)
        prompt = body.get("prompt")
        if not isinstance(prompt, str) or not prompt:
            raise BadInput("required properties at '/' are 'prompt'")
        is_raw = boolean(body, "raw", False)
        if has_image:
            if is_raw:
                raise BadInput("'/image' is not supported with 'raw'")
            message = with_image((ChatMessage("user", prompt),), Image.of_file(media(body, "image")))
            return cls(messages=message, sampling=sampling, constraint=read_constraint(body))
        return cls(prompt=prompt, raw=is_raw, sampling=sampling, constraint=read_constraint(body))

    @classmethod
    def of_messages(cls, body: Mapping[str, Any], sampling: Sampling) -> Self:
        """Read `messages`, tools and output format, which the native and OpenAI formats share. Raises BadInput."""
        options = read_tool_options(body)
        return cls(
            messages=read_messages(body),
            sampling=sampling,
            tools=options.tools,
            tool_choice=options.choice,
            named_tool=options.named_tool,
            is_parallel_tool_calls=options.is_parallel,
            constraint=read_constraint(body),
        )

    def native_renderer(self) -> NativeText:
        is_json = self.constraint is not None and self.constraint.kind in ("json_schema", "json_object")
        return NativeText(has_tools=bool(self.tools), is_json=is_json)


def _with_images(message: ChatMessage, decoded: Iterator[bytes | Image]) -> ChatMessage:
    images = [image for _ in message.images if isinstance(image := next(decoded), Image)]
    return msgspec.structs.replace(message, images=tuple(images)) if images else message


class NativeText(Renderer):
    """The native response: `response`, `tool_calls` if the request had tools, and `usage`.

    With `is_json` the `response` of an unstreamed call is the JSON value itself. Frames carry random padding, so that
    their sizes do not reveal the text.
    """

    def __init__(self, *, has_tools: bool = False, is_json: bool = False) -> None:
        self._has_tools = has_tools
        self._is_json = is_json
        self._open_call: int | None = None  # index of the tool call in the latest frame

    def whole(self, outcome: Outcome) -> bytes:
        result: dict[str, Any] = {"response": self._response(outcome)}
        if self._has_tools:
            result["tool_calls"] = [_tool_call(call) for call in outcome.tool_calls]
        return encode(result | {"usage": usage_object(outcome.finished.usage)})

    def _response(self, outcome: Outcome) -> Any:
        if outcome.tool_calls:
            return outcome.text or None
        if not self._is_json:
            return outcome.text
        value = _raw_json(outcome.text)
        if value is None:
            raise OutputNotJson
        return value

    def text(self, text: str, _logprobs: Sequence[TokenLogprob], _choice: int = 0) -> bytes:
        return b'data: {"response":' + encode(text) + _padded_end()

    def reasoning(self, _text: str, _choice: int = 0) -> bytes:
        return b""  # the native format has no field for reasoning

    def tool_call(self, delta: ToolCallDelta) -> bytes:
        frames = self._close_call() if self._open_call != delta.index else b""
        self._open_call = delta.index
        return frames + self._call_frame(tool_call_delta_object(delta))

    def _close_call(self) -> bytes:
        """Return the all-null entry that ends the open tool call; b"" if none is open."""
        if self._open_call is None:
            return b""
        entry = {"index": self._open_call, "id": None, "type": None, "function": {"name": None, "arguments": None}}
        return self._call_frame(entry)

    def _call_frame(self, entry: dict[str, Any]) -> bytes:
        return b'data: {"response":"","tool_calls":[' + encode(entry) + b"]" + _padded_end()

    def end(self, finished: Finished) -> bytes:
        usage = encode(usage_object(finished.usage))
        return self._close_call() + b'data: {"response":"","usage":' + usage + b"}\n\n" + DONE


def _padded_end() -> bytes:
    return _PADDED_ENDS[int(random.random() * len(_PADDED_ENDS))]  # noqa: S311 - not used for security


def _tool_call(call: ToolCall) -> dict[str, Any]:
    """Return a call with its arguments as an object; unreadable arguments (cut off, or nested too deeply) stay text."""
    value = _raw_json(call.arguments)
    return {"name": call.name, "arguments": call.arguments if value is None else value}


def _raw_json(text: str) -> msgspec.Raw | None:
    """Return JSON text for insertion into a document; None if clients could not read it."""
    try:
        msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return msgspec.Raw(text)

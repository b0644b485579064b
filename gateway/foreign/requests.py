"""Turn a task into the request body of an OpenAI-compatible server. Pure.

Servers differ in the fields that they understand beyond OpenAI's. A field that would change the output and that a
server ignores or does not know is rejected here by name, so that no response silently differs from the request.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from catalog.foreign_engines import EngineKind
from engine.protocol.messages import ChatMessage
from engine.protocol.output_format import Constraint
from engine.protocol.tasks.registry import TaskInput
from engine.protocol.tasks.text_embeddings import TextEmbeddings
from engine.protocol.tasks.text_generation import TextGeneration
from engine.protocol.tools import Tool, ToolCall

_SAMPLING = frozenset({"top_k", "min_p", "repetition_penalty"})
_VLLM = _SAMPLING | {
    "stop_token_ids", "ignore_eos", "min_tokens", "chat_template_kwargs", "prompt token ids", "structured_outputs",
}  # fmt: skip
# Fields beyond OpenAI's that each kind of server understands.
_UNDERSTOOD: dict[EngineKind, frozenset[str]] = {
    "vllm": _VLLM | {"cache_salt"},
    "sglang": (_VLLM - {"structured_outputs"}) | {"cache_salt"},
    "hearth": _VLLM,
    "llama.cpp": _SAMPLING,
    "ollama": frozenset(),
    "openai": frozenset(),
}


class NotOffered(Exception):
    """The engine cannot run this call. The message names the field."""


class EngineRequest(NamedTuple):
    """One HTTP request: the path below the engine's base URL, and the JSON body."""

    path: str
    body: dict[str, Any]


def requests_for(task: TaskInput, model: str, kind: EngineKind, cache_salt: str) -> list[EngineRequest]:
    """Return the requests of a call: one for each choice, because not all servers support `n`. Raises NotOffered."""
    if isinstance(task, TextEmbeddings):
        return [_embeddings_request(task, model)]
    if not isinstance(task, TextGeneration):
        raise NotOffered(f"the task {type(task).slug} is not offered by foreign engines")
    _reject_unsupported(task)
    path, body = _prompt_of(task, kind)
    body |= {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    body |= _sampling_fields(task, kind) | _tool_fields(task) | _format_fields(task, kind)
    if task.template_kwargs:
        body |= _extension(kind, "chat_template_kwargs", task.template_kwargs)
    if "cache_salt" in _UNDERSTOOD[kind]:
        body["cache_salt"] = cache_salt
    seed = task.sampling.seed
    return [
        EngineRequest(path, body if seed is None else body | {"seed": (seed + number) % 2**63})
        for number in range(task.num_choices)
    ]


def _reject_unsupported(task: TextGeneration) -> None:
    unsupported = {
        "counting the tokens of a prompt": task.only_counts,
        "fine-tunes ('/lora')": task.adapter is not None,
        "'/echo'": task.echoes_prompt,
        "log probabilities of the prompt": task.sampling.wants_prompt_logprobs,
    }
    for name, is_used in unsupported.items():
        if is_used:
            raise NotOffered(f"{name}: not offered for models on a foreign engine")


def _prompt_of(task: TextGeneration, kind: EngineKind) -> tuple[str, dict[str, Any]]:
    if task.messages is not None:
        return "/chat/completions", {"messages": [_message(message) for message in task.messages]}
    if task.prompt_token_ids is not None:
        if "prompt token ids" not in _UNDERSTOOD[kind]:
            raise NotOffered("'/prompt' as token ids: not offered by the engine that serves this model")
        return "/completions", {"prompt": list(task.prompt_token_ids)}
    if task.raw:
        return "/completions", {"prompt": task.prompt}
    return "/chat/completions", {"messages": [{"role": "user", "content": task.prompt}]}


def _message(message: ChatMessage) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name is not None:
        found["name"] = message.name
    if message.tool_calls:
        found["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        found["tool_call_id"] = message.tool_call_id
    if message.reasoning:
        found["reasoning_content"] = message.reasoning
    return found


def _tool_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _sampling_fields(task: TextGeneration, kind: EngineKind) -> dict[str, Any]:
    sampling = task.sampling
    fields: dict[str, Any] = {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    for name in ("presence_penalty", "frequency_penalty"):
        if getattr(sampling, name):
            fields[name] = getattr(sampling, name)
    if sampling.stop:
        fields["stop"] = list(sampling.stop)
    if sampling.logit_bias:
        fields["logit_bias"] = {str(token_id): bias for token_id, bias in sampling.logit_bias}
    is_chat = task.messages is not None or (task.prompt is not None and not task.raw)
    if sampling.logprobs is not None:
        fields |= {"logprobs": True, "top_logprobs": sampling.logprobs} if is_chat else {"logprobs": sampling.logprobs}
    extensions = {
        "top_k": (sampling.top_k, 0),
        "min_p": (sampling.min_p, 0.0),
        "repetition_penalty": (sampling.repetition_penalty, 1.0),
        "stop_token_ids": (list(sampling.stop_token_ids), []),
        "ignore_eos": (sampling.ignore_eos, False),
        "min_tokens": (sampling.min_tokens, 0),
    }
    for name, (value, default) in extensions.items():
        if value != default:
            fields |= _extension(kind, name, value)
    if kind == "llama.cpp" and "repetition_penalty" in fields:
        fields["repeat_penalty"] = fields.pop("repetition_penalty")
    return fields


def _extension(kind: EngineKind, name: str, value: Any) -> dict[str, Any]:
    """Return a field beyond OpenAI's. Raises NotOffered if the engine does not understand it."""
    if name not in _UNDERSTOOD[kind]:
        raise NotOffered(f"'/{name}': not offered by the engine that serves this model")
    return {name: value}


def _tool_fields(task: TextGeneration) -> dict[str, Any]:
    if not task.tools:
        return {}
    named = {"type": "function", "function": {"name": task.named_tool}}
    fields: dict[str, Any] = {
        "tools": [_tool(tool) for tool in task.tools],
        "tool_choice": task.tool_choice if task.named_tool is None else named,
    }
    return fields if task.is_parallel_tool_calls else fields | {"parallel_tool_calls": False}


def _tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function | ({"strict": True} if tool.is_strict else {})}


def _format_fields(task: TextGeneration, kind: EngineKind) -> dict[str, Any]:
    constraint: Constraint | None = task.constraint
    if constraint is None:
        return {}
    if constraint.kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    if constraint.kind == "json_schema":
        schema = msgspec.json.decode(constraint.text)
        if kind == "llama.cpp":
            return {"response_format": {"type": "json_object", "schema": schema}}
        wrapped = {"name": "response", "schema": schema, "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": wrapped}}
    value = msgspec.json.decode(constraint.text) if constraint.kind == "choice" else constraint.text
    if "structured_outputs" not in _UNDERSTOOD[kind]:
        raise NotOffered(f"output format {constraint.kind}: not offered by the engine that serves this model")
    return {"structured_outputs": {constraint.kind: value}}


def _embeddings_request(task: TextEmbeddings, model: str) -> EngineRequest:
    if task.pooling is not None:
        raise NotOffered("'/pooling': not offered for models on a foreign engine")
    return EngineRequest("/embeddings", {"model": model, "input": list(task.texts), "encoding_format": "float"})

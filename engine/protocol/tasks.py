"""The typed input of each task: what a gateway asks of a node once a body has been admitted.

The JSON schemas that admit bodies are the catalog's data; here is only what a node needs to do the work. Values are
already validated and defaulted: a node may refuse what only it can know (a prompt longer than the context), nothing
else. Knows nothing of HTTP, accounts or prices.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct


class Sampling(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How completion tokens are chosen.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1, `min_p` 0 switch those filters off. `repetition_penalty` divides
    (positive) or multiplies (negative) the logits of every token seen in prompt or completion; `presence_penalty` and
    `frequency_penalty` are subtracted for completion tokens only. `seed` None draws one per call. `logprobs` None
    gives none, k >= 0 gives that of the sampled token and of the k likeliest. `must_fit` says that `max_tokens` is the
    caller's own word: it is refused when the prompt leaves less of the context, where a default would be shortened.
    A token of `stop_token_ids` ends the text as the model's own end tokens do, and shows in it no more than they.
    With `wants_prompt_logprobs`, `logprobs` are given of the prompt's tokens as well, each after those before it.
    `logit_bias` has (token id, what is added to its logit) pairs, each id once. Before `min_tokens`, no such token and
    no end token is drawn; a constraint that has nothing left to say ends a text all the same.
    """

    max_tokens: int = 256
    must_fit: bool = False
    temperature: float = 0.6
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    wants_prompt_logprobs: bool = False


class ToolCall(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A call an assistant made in an earlier turn. `arguments` is JSON text, an object."""

    id: str = ""
    name: str
    arguments: str


class ChatMessage(Struct, frozen=True, omit_defaults=True):
    """One turn. `content` is plain text; control tokens inside it stay text. `tool_calls` are an assistant's own, as is
    the `reasoning` before its answer; `tool_call_id` names the call that a tool's turn answers."""

    role: str
    content: str = ""
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str = ""


class Tool(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A function the model may call. `parameters` is a JSON schema of type object; `is_strict` holds the arguments to
    it even where the caller left the choice to the model."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    is_strict: bool = False


class Constraint(Struct, frozen=True, omit_defaults=True):
    """What the completion must match from its first token to its last, as text in the language of `kind`.

    json_schema: a JSON schema; json_object: any JSON object, no text; regex: a Rust regular expression; choice: a JSON
    array of strings; grammar: Lark in llguidance's dialect, where `<name>` is a control token of the model, or what
    llama.cpp calls GBNF. `field` is where the caller has it, a JSON pointer; messages name it, and nothing else is made
    of it.
    """

    kind: Literal["json_schema", "json_object", "regex", "choice", "grammar"]
    text: str = ""
    field: str = ""


class Adapter(Struct, frozen=True):
    """A LoRA adapter that a completion's every token goes through. `name` is what its manifest is called, `digest` that
    of the manifest: equal digests are equal adapters."""

    name: str
    digest: str


class TextGeneration(Struct, frozen=True, tag="text-generation", omit_defaults=True, kw_only=True):
    """Continue a prompt. Exactly one of `messages`, `prompt` and `prompt_token_ids` is given.

    `messages` go through the model's chat template. `prompt` is one user turn through the template, unless `raw` is
    true or the model has no template: then it is the text itself.

    `tools` are shown to the model by its template; `tool_choice` required makes it call one, `named_tool` that one.
    `constraint` is the caller's own output format; with tools it holds only for an answer that calls none.

    `num_choices` answers are given to the one prompt. The first is what a call for one would get; with a seed, the
    others have seeds that follow it.

    `echoes`: each answer begins with the prompt's text, and its log-probabilities, if asked for, with those of the
    prompt's tokens; `max_tokens` may then be 0.

    `only_counts`: nothing is generated; the Started of such a call has the number of the prompt's tokens.

    `template_kwargs` are variables of the template that a caller may set (`enable_thinking`). `tells_reasoning`: what
    the model thinks first is to be told apart; otherwise it is text like any other, unless tools or a format are asked.
    """

    messages: tuple[ChatMessage, ...] | None = None
    prompt: str | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    raw: bool = False
    sampling: Sampling = Sampling()
    tools: tuple[Tool, ...] = ()
    tool_choice: Literal["auto", "none", "required"] = "auto"
    named_tool: str | None = None
    is_parallel_tool_calls: bool = True
    constraint: Constraint | None = None
    num_choices: int = 1
    adapter: Adapter | None = None
    template_kwargs: dict[str, bool | str] = {}
    tells_reasoning: bool = False
    only_counts: bool = False
    echoes: bool = False


class TextEmbeddings(Struct, frozen=True, tag="text-embeddings", omit_defaults=True, kw_only=True):
    """Embed each text. `pooling` None is the model's own."""

    texts: tuple[str, ...]
    pooling: Literal["mean", "cls"] | None = None


TaskInput = TextGeneration | TextEmbeddings

"""The typed input of each task: what a gateway asks of a node once a body has been admitted.

The JSON schemas that admit bodies are the catalog's data; here is only what a node needs to do the work. Values are
already validated and defaulted: a node may refuse what only it can know (a prompt longer than the context), nothing
else. Knows nothing of HTTP, accounts or prices.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Sampling(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How completion tokens are chosen.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1, `min_p` 0 switch those filters off. `repetition_penalty` divides
    (positive) or multiplies (negative) the logits of every token seen in prompt or completion; `presence_penalty` and
    `frequency_penalty` are subtracted for completion tokens only. `seed` None draws one per call. `logprobs` None
    gives none, k >= 0 gives that of the sampled token and of the k likeliest. `must_fit` says that `max_tokens` is the
    caller's own word: it is refused when the prompt leaves less of the context, where a default would be shortened.
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
    ignore_eos: bool = False
    logprobs: int | None = None


class ChatMessage(Struct, frozen=True, omit_defaults=True):
    """One turn. `content` is plain text; control tokens inside it stay text."""

    role: str
    content: str = ""
    name: str | None = None


class TextGeneration(Struct, frozen=True, tag="text-generation", omit_defaults=True, kw_only=True):
    """Continue a prompt. Exactly one of `messages`, `prompt` and `prompt_token_ids` is given.

    `messages` go through the model's chat template. `prompt` is one user turn through the template, unless `raw` is
    true or the model has no template: then it is the text itself.
    """

    messages: tuple[ChatMessage, ...] | None = None
    prompt: str | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    raw: bool = False
    sampling: Sampling = Sampling()


class TextEmbeddings(Struct, frozen=True, tag="text-embeddings", omit_defaults=True, kw_only=True):
    """Embed each text. `pooling` None is the model's own."""

    texts: tuple[str, ...]
    pooling: Literal["mean", "cls"] | None = None


TaskInput = TextGeneration | TextEmbeddings

"""Sampling parameters: how the next token is chosen, and the one declaration of their bounds.

`BOUNDS` serves three readers: the functions here that read request bodies, the JSON schemas of the catalog (marker
`x-sampling`), and the checks of the engine (`invalid_fields`). `engine/sampling_columns.py` passes the parameters on to
the sampler.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from engine.protocol.fields import BadInput, boolean, integer, items, mapping, number


class Bound(NamedTuple):
    """Bounds of a numeric parameter, both inclusive, and the value used when a request omits the parameter."""

    kind: Literal["number", "integer"]
    minimum: float
    maximum: float
    default: float | None = None


BOUNDS: dict[str, Bound] = {
    "temperature": Bound("number", 0, 5, 0.6),
    "top_p": Bound("number", 0, 1, 1.0),
    "top_k": Bound("integer", -1, 1000, 0),  # -1 also disables the filter, as in vLLM
    "min_p": Bound("number", 0, 1, 0.0),
    "seed": Bound("integer", -(2**63), 2**64 - 1),
    "repetition_penalty": Bound("number", 0, 2, 1.0),
    "presence_penalty": Bound("number", -2, 2, 0.0),
    "frequency_penalty": Bound("number", -2, 2, 0.0),
    "top_logprobs": Bound("integer", 0, 20, 0),
}
SHARED_PARAMETERS = tuple(name for name in BOUNDS if name != "top_logprobs")  # in every format of OpenAI's family
MAX_TOP_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 256
MAX_STOP_TOKENS = 16  # stop strings included
MAX_BIASES = 1024
MAX_BIAS = 100
MAX_CHOICES = 128  # per prompt; models in the catalog allow fewer

_MIN_TOP_P = 0.001
_MIN_REPETITION_PENALTY = 0.01
_MAX_FLOAT = 1e30  # remains finite as float32 in the sampler
_MAX_TOKEN_ID = (1 << 31) - 1


class Sampling(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Parameters by which completion tokens are chosen.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 disable those filters. `repetition_penalty` divides
    positive logits and multiplies negative ones, for every token that the prompt or the completion contains;
    `presence_penalty` and `frequency_penalty` are subtracted for completion tokens only. `seed` None draws a seed for
    each call. `logit_bias` has (token id, value added to the logit) pairs, each id once.

    `logprobs` None returns no log probabilities; k >= 0 returns those of the sampled token and of the k most likely
    tokens. With `wants_prompt_logprobs` they are returned for the prompt's tokens as well.

    `has_explicit_max_tokens` is True if the caller set `max_tokens`: such a call is rejected if its prompt leaves less
    room in the context, whereas the default is shortened. `stop_token_ids` end the text like the model's own end
    tokens. Before `min_tokens`, no end token and no stop token is sampled; a constraint that allows no further token
    still ends the text.
    """

    max_tokens: int = 256
    has_explicit_max_tokens: bool = False
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


def read_sampling(
    body: Mapping[str, Any],
    limit_name: str = "max_tokens",
    *,
    default_max_tokens: int,
    context_window: int,
    min_max_tokens: int = 1,
) -> Sampling:
    """Read the sampling parameters of a request body. `limit_name` is the field that limits the completion's length.

    Raises BadInput.
    """
    logprobs = None
    if boolean(body, "logprobs", False):
        logprobs = _bounded(body, "top_logprobs")
    elif body.get("top_logprobs"):
        _bounded(body, "top_logprobs")
        raise BadInput("'/top_logprobs' needs '/logprobs' to be true")
    stop = _stop_strings(body.get("stop"))
    seed = _bounded(body, "seed")
    return Sampling(
        max_tokens=integer(
            body, limit_name, min(default_max_tokens, context_window), minimum=min_max_tokens, maximum=context_window
        ),
        has_explicit_max_tokens=body.get(limit_name) is not None,
        temperature=_bounded(body, "temperature"),
        top_p=max(_MIN_TOP_P, _bounded(body, "top_p")),
        top_k=max(0, _bounded(body, "top_k")),
        min_p=_bounded(body, "min_p"),
        seed=None if seed is None else seed % 2**63,
        repetition_penalty=max(_MIN_REPETITION_PENALTY, _bounded(body, "repetition_penalty")),
        presence_penalty=_bounded(body, "presence_penalty"),
        frequency_penalty=_bounded(body, "frequency_penalty"),
        stop=stop,
        stop_token_ids=_stop_tokens(body.get("stop_token_ids"), MAX_STOP_TOKENS - len(stop)),
        ignore_eos=boolean(body, "ignore_eos", False),
        logprobs=logprobs,
        logit_bias=_logit_bias(body.get("logit_bias")),
    )


def with_min_tokens(body: Mapping[str, Any], sampling: Sampling, *, is_constrained: bool) -> Sampling:
    """Return `sampling` with the `min_tokens` of the body.

    `is_constrained` is True if the output is bound to a format or to tool calls, which can end the text before
    `min_tokens`, as stop strings can: these combinations are rejected. Raises BadInput.
    """
    min_tokens = integer(body, "min_tokens", 0, minimum=0, maximum=sampling.max_tokens)
    if min_tokens and (is_constrained or sampling.stop):
        raise BadInput("'/min_tokens' cannot be combined with '/stop', an output format or tools")
    return msgspec.structs.replace(sampling, min_tokens=min_tokens)


def read_num_choices(body: Mapping[str, Any], maximum: int = MAX_CHOICES) -> int:
    """Return `n`, the number of choices for each prompt. Raises BadInput."""
    count: int = integer(body, "n", 1, minimum=1, maximum=maximum)
    return count


def with_defaults(body: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return `body` with the model's own sampling defaults for the fields that the body omits."""
    return {**defaults, **{name: value for name, value in body.items() if value is not None}}


def bounds_schema(name: str) -> dict[str, Any]:
    """Return the JSON schema of a parameter in `BOUNDS`."""
    kind, minimum, maximum, _ = BOUNDS[name]
    return {"type": kind, "minimum": minimum, "maximum": min(maximum, 2**63 - 1) if name == "seed" else maximum}


def invalid_fields(sampling: Sampling, *, min_max_tokens: int = 1) -> list[str]:
    """Return the names of parameters that the sampler cannot use. Callers inside the cluster bypass the schemas, so
    the engine checks again before a request can reach a step."""
    floats = (
        sampling.temperature, sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty,
    )  # fmt: skip
    is_valid = {
        "max_tokens": sampling.max_tokens >= min_max_tokens,
        "min_tokens": 0 <= sampling.min_tokens <= sampling.max_tokens,
        "temperature": sampling.temperature >= 0,
        "top_p": 0 < sampling.top_p <= 1,
        "top_k": 0 <= sampling.top_k <= _MAX_TOKEN_ID,
        "min_p": 0 <= sampling.min_p <= 1,
        "repetition_penalty": sampling.repetition_penalty > 0,
        "logprobs": sampling.logprobs is None or 0 <= sampling.logprobs <= MAX_TOP_LOGPROBS,
        "stop": len(sampling.stop) + len(sampling.stop_token_ids) <= MAX_STOP_TOKENS,
        "stop_token_ids": all(0 <= token_id <= _MAX_TOKEN_ID for token_id in sampling.stop_token_ids),
        "temperature and penalties": all(abs(value) <= _MAX_FLOAT for value in floats),
        "logit_bias": len(sampling.logit_bias) <= MAX_BIASES
        and all(math.isfinite(value) and abs(value) <= _MAX_FLOAT for _, value in sampling.logit_bias),
    }
    return [name for name, is_ok in is_valid.items() if not is_ok]


def _bounded(body: Mapping[str, Any], name: str) -> Any:
    """Return a parameter of `BOUNDS`, or its default. Raises BadInput."""
    kind, minimum, maximum, default = BOUNDS[name]
    if kind == "integer":
        return integer(body, name, default, minimum=int(minimum), maximum=int(maximum))
    return number(body, name, default or 0.0, minimum=minimum, maximum=maximum)


def _stop_tokens(value: Any, maximum: int) -> tuple[int, ...]:
    token_ids = items(value, "/stop_token_ids", maximum=maximum)
    if not all(type(token_id) is int and 0 <= token_id <= _MAX_TOKEN_ID for token_id in token_ids):
        raise BadInput("'/stop_token_ids' must hold token ids")
    return tuple(token_ids)


def _logit_bias(value: Any) -> tuple[tuple[int, float], ...]:
    """Read an object whose keys are token ids in decimal."""
    if value is None:
        return ()
    biases = mapping(value, "/logit_bias")
    if len(biases) > MAX_BIASES:
        raise BadInput(f"'/logit_bias' must have <= {MAX_BIASES} members")
    found: dict[int, float] = {}
    for key, bias in biases.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= _MAX_TOKEN_ID):
            raise BadInput("'/logit_bias' must have token ids as its keys")
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise BadInput("Type mismatch of a value in '/logit_bias', expected 'number'")
        if not -MAX_BIAS <= bias <= MAX_BIAS:
            raise BadInput(f"values in '/logit_bias' must be >= {-MAX_BIAS} and <= {MAX_BIAS}")
        found[int(key)] = float(bias)
    return tuple(found.items())


def _stop_strings(stop: Any) -> tuple[str, ...]:
    if stop is None:
        return ()
    texts = [stop] if isinstance(stop, str) else stop
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise BadInput("Type mismatch of '/stop', expected 'string' or an 'array' of them")
    if len(texts) > MAX_STOP_STRINGS or any(not 1 <= len(text.encode()) <= MAX_STOP_BYTES for text in texts):
        raise BadInput(f"'/stop' must have at most {MAX_STOP_STRINGS} strings of 1 to {MAX_STOP_BYTES} bytes")
    return tuple(texts)

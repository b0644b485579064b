"""Bounds that protect the engine from inputs the gateway's schemas reject, for callers that bypass a gateway.

Knows the bounds of sampling; nothing of prompts, tools or constraints.
"""

from __future__ import annotations

from engine.protocol.tasks.text_generation import TextGeneration
from engine.tasks.work import Refused, Work

_NAMESPACE_BYTES = 32
_MAX_LOGPROBS = 20
_MAX_STOPS = 16
_MAX_BIASES = 1024
_MAX_CHOICES = 128
_MAX_FLOAT = 1e30  # finite as float32 in the sampler


def refuse_unsound(work: Work, task: TextGeneration, vocab_size: int) -> None:
    """Reject values that a gateway's schemas do not allow. Raises Refused."""
    sampling = task.sampling
    floats = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty, sampling.temperature)
    is_sound = {
        "messages, prompt or prompt_token_ids": [task.messages, task.prompt, task.prompt_token_ids].count(None) == 2,
        "namespace": len(work.namespace) == _NAMESPACE_BYTES,
        "tenant": 0 <= work.tenant < 1 << 63,
        "max_tokens": sampling.max_tokens >= (0 if task.echoes_prompt else 1),
        "echoes": not task.echoes_prompt or task.messages is None,
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
    biased = [token_id for token_id, _ in sampling.logit_bias]
    for field, token_ids in (("logit_bias", biased), ("stop_token_ids", sampling.stop_token_ids)):
        if not all(0 <= token_id < vocab_size for token_id in token_ids):
            raise Refused("invalid_input", f"'/{field}' must be of token ids from 0 to {vocab_size - 1}")

"""Validation of sequence requests before they are queued, so that no request can make a step fail.

`engine/tasks/soundness.py` rejects invalid requests with a message that names the field. This check repeats the bounds
that the engine depends on and returns only a finish code.
"""

from __future__ import annotations

import math

import numpy as np

from engine.report import BAD_ADAPTER, CONTEXT_TOO_LONG, ERROR, RUNNING, EngineInfo
from engine.scheduling.sequence import SequenceRequest

_MAX_NAMESPACE_BYTES = 64
_MAX_LOGPROBS = 20
_MAX_STOP_TOKENS = 16
_MAX_BIASES = 1024


def check_request(request: SequenceRequest, info: EngineInfo, *, has_adapters: bool) -> int:
    """Return RUNNING for a request that can be served, otherwise its finish code."""
    prompt, sampling = request.prompt, request.sampling
    if len(prompt) >= info.max_model_len:
        return CONTEXT_TOO_LONG
    if request.adapter is not None and not has_adapters:
        return BAD_ADAPTER
    floats = [sampling.temperature, sampling.top_p, sampling.min_p, sampling.repetition_penalty]
    floats += [sampling.presence_penalty, sampling.frequency_penalty]
    limit = np.iinfo(np.int32).max
    is_valid = (
        0 < len(request.namespace) <= _MAX_NAMESPACE_BYTES
        and len(prompt) > 0
        and int(prompt.min()) >= 0
        and int(prompt.max()) < info.vocab_size
        and 0 <= sampling.min_tokens <= sampling.max_tokens > 0
        and sampling.temperature >= 0
        and all(math.isfinite(value) for value in floats)
        and 0 <= sampling.top_k <= limit
        and (sampling.logprobs is None or 0 <= sampling.logprobs <= _MAX_LOGPROBS)
        and len(request.stop_token_ids) <= _MAX_STOP_TOKENS
        and all(0 <= token_id <= limit for token_id in request.stop_token_ids)
        and len(sampling.logit_bias) <= _MAX_BIASES
        and all(0 <= token_id < info.vocab_size for token_id, _ in sampling.logit_bias)
        and all(math.isfinite(value) for _, value in sampling.logit_bias)
    )
    return RUNNING if is_valid else ERROR

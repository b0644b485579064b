"""Validation of sequence requests before they are queued, so that no request can make a step fail.

`engine/tasks/input_check.py` rejects invalid requests with a message that names the field. This check repeats the
bounds that the engine depends on and returns only a finish code.
"""

from __future__ import annotations

import numpy as np

from engine.protocol.sampling import MAX_STOP_TOKENS, invalid_fields
from engine.report import BAD_ADAPTER, CONTEXT_TOO_LONG, ERROR, RUNNING, EngineInfo
from engine.scheduling.sequence import PromptImage, SequenceRequest

_MAX_NAMESPACE_BYTES = 64


def check_request(request: SequenceRequest, info: EngineInfo, *, has_adapters: bool) -> int:
    """Return RUNNING for a request that can be served, otherwise its finish code."""
    prompt, sampling = request.prompt, request.sampling
    if len(prompt) >= info.max_model_len:
        return CONTEXT_TOO_LONG
    if request.adapter is not None and not has_adapters:
        return BAD_ADAPTER
    limit = np.iinfo(np.int32).max
    is_valid = (
        0 < len(request.namespace) <= _MAX_NAMESPACE_BYTES
        and len(prompt) > 0
        and int(prompt.min()) >= 0
        and int(prompt.max()) < info.vocab_size
        and not invalid_fields(sampling)
        and _are_valid(request.images, len(prompt))
        and len(request.stop_token_ids) <= MAX_STOP_TOKENS
        and all(0 <= token_id <= limit for token_id in request.stop_token_ids)
        and all(0 <= token_id < info.vocab_size for token_id, _ in sampling.logit_bias)
    )
    return RUNNING if is_valid else ERROR


def _are_valid(images: tuple[PromptImage, ...], num_prompt: int) -> bool:
    end = 0
    for image in images:
        if image.start < end or image.embeddings.ndim != 2:
            return False
        end = image.end
    return end <= num_prompt

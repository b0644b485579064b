"""Checks of inputs from callers that bypass the gateway's schemas, before they reach the engine."""

from __future__ import annotations

from engine.protocol.sampling import MAX_CHOICES, invalid_fields
from engine.protocol.tasks.text_generation import TextGeneration
from engine.tasks.work import Refused, Work

_NAMESPACE_BYTES = 32


def check_input(work: Work[TextGeneration], vocab_size: int) -> None:
    """Reject values that a gateway's schemas do not allow. Raises Refused."""
    task, sampling = work.task, work.task.sampling
    is_valid = {
        "messages, prompt or prompt_token_ids": [task.messages, task.prompt, task.prompt_token_ids].count(None) == 2,
        "namespace": len(work.namespace) == _NAMESPACE_BYTES,
        "tenant": 0 <= work.tenant < 1 << 63,
        "echoes_prompt": not task.echoes_prompt or task.messages is None,
        "n": 1 <= task.num_choices <= MAX_CHOICES,
    }
    invalid = [name for name, is_ok in is_valid.items() if not is_ok]
    invalid += invalid_fields(sampling, min_max_tokens=0 if task.echoes_prompt else 1)
    if invalid:
        raise Refused("invalid_input", f"{invalid[0]} cannot be used as given")
    biased = [token_id for token_id, _ in sampling.logit_bias]
    for field, token_ids in (("logit_bias", biased), ("stop_token_ids", sampling.stop_token_ids)):
        if not all(0 <= token_id < vocab_size for token_id in token_ids):
            raise Refused("invalid_input", f"'/{field}' must contain token ids from 0 to {vocab_size - 1}")

"""Log-probabilities of sampled tokens and of prompt tokens, from the model's own distribution."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from engine.arrays import Floats, Ints
from engine.inputs import PromptLogprobRows, TokenLogprobs

_ROWS_AT_ONCE = 64  # bounds the memory of prompt log-probabilities


def compute_prompt_logprobs(logits: torch.Tensor, wanted: PromptLogprobRows) -> TokenLogprobs:
    """Return the log-probabilities of the P wanted tokens from float32 logits [L, V]."""
    num_wanted, num_tops = len(wanted.rows), min(wanted.num_tops, logits.shape[1])
    found = TokenLogprobs(
        np.empty(num_wanted, np.float32),
        np.empty((num_wanted, num_tops), np.int32),
        np.empty((num_wanted, num_tops), np.float32),
    )
    for first in range(0, num_wanted, _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        rows, token_ids = torch.from_numpy(wanted.rows[part]), torch.from_numpy(wanted.token_ids[part]).long()
        logprobs = torch.log_softmax(logits[rows.to(logits.device)], -1)  # [≤ 64, V]
        own = logprobs.gather(1, token_ids.to(logits.device).unsqueeze(1))  # [≤ 64, 1]
        found.logprobs[part] = own.squeeze(1).cpu().numpy()
        if num_tops:
            values, ids = logprobs.topk(num_tops)
            found.top_logprobs[part], found.top_ids[part] = values.cpu().numpy(), ids.cpu().numpy()
    return found


def select_logprobs(
    logprobs: torch.Tensor, token_ids: Ints, rows: NDArray[np.intp], num_logprobs: Ints
) -> tuple[Floats, Ints, Floats]:
    """Return the log-probability of each sampled token [K], and ids and log-probabilities of the top ones [K, most].

    `logprobs` are those of `rows` among the K, [rows, V]. `num_logprobs` [K] tops are wanted.
    """
    num_rows, most = len(token_ids), min(int(num_logprobs.max()), logprobs.shape[1])
    own = np.full(num_rows, np.nan, np.float32)
    own[rows] = logprobs.numpy()[np.arange(len(rows)), token_ids[rows]]
    top_ids = np.full((num_rows, most), -1, np.int32)
    top_logprobs = np.full((num_rows, most), np.nan, np.float32)
    if most:
        values, ids = logprobs.topk(most)  # [rows, most]
        is_wanted = np.arange(most) < num_logprobs[rows][:, None]
        top_ids[rows] = np.where(is_wanted, ids.numpy(), -1)
        top_logprobs[rows] = np.where(is_wanted, values.numpy(), np.nan)
    return own, top_ids, top_logprobs

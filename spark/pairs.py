"""Variants of one word as tokens: "lamp", " lamp", "Lamp", " Lamp".

A word at the start of an answer or in quotation marks is a different token than the same word after a space. With
little training data, copying fails there. The variants of a word therefore start from one embedding (plus the mean
offset of the variant) and share their gradients, while each can still diverge. Knows token ids and embeddings.
"""

import torch
from tokenizers import Tokenizer
from torch import Tensor

from spark import words

_BLANK = "Ġ"


def find_families(tokenizer: Tokenizer) -> Tensor:
    """Return [V, 4]: for each word the ids of " word", "word", " Word", "Word"; -1 where that is not a single token."""
    ids = tokenizer.get_vocab()
    rows: list[list[int]] = []
    for word in dict.fromkeys(
        words.LEXICON + words.NAMES + words.CITIES + words.WEEKDAYS + words.MONTHS + words.COMMON
    ):
        forms = [_BLANK + word, word]
        if word[0].islower():
            forms += [_BLANK + word.capitalize(), word.capitalize()]
        row = [ids.get(form, -1) for form in forms] + [-1] * (4 - len(forms))
        if row[0] >= 0 and max(row[1:]) >= 0:
            rows.append(row)
    return torch.tensor(rows)


@torch.no_grad()
def align_embeddings(weight: Tensor, families: Tensor) -> None:
    """Set every variant's embedding to that of " word" plus the mean offset of the variant, in place."""
    leaders = families[:, 0]
    for dress in range(1, families.shape[1]):
        has = families[:, dress] >= 0
        own, leading = families[has, dress], leaders[has]
        offset = (weight[own] - weight[leading]).mean(dim=0)
        weight[own] = weight[leading] + offset


@torch.no_grad()
def share_gradients(gradient: Tensor, families: Tensor) -> None:
    """Add the sum over its family to the gradient of each variant, in place."""
    has = families >= 0  # words, 4
    members = families.clamp(min=0)
    total = (gradient[members] * has[:, :, None]).sum(dim=1, keepdim=True)  # words, 1, C
    gradient.index_add_(0, members[has], total.expand(-1, families.shape[1], -1)[has])

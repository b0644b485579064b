"""Training steps: dialogues as token ids, several packed into one row, with loss weights and document masks.

A step has rows of two lengths, so that short dialogues do not pay for the attention of long ones. Knows the corpus and
the tokenizer; not the network or the optimizer.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from spark.generator.corpus import generate_training
from spark.generator.dialogue import Dialogue, Message
from spark.tokenizer import END_OF_TEXT_ID, render

OTHER_WEIGHT = 0.1
"""What a token not written by the assistant weighs in the loss. Weights are met by drawing: one such token in ten
counts, so that the scores of the others need not be computed."""
FULL_LENGTH, MAX_WEIGHT = 10, 4.0
"""Tokens of shorter answers weigh more, up to this: a label of one token must not drown among written-out sums."""
CALL_WEIGHT, NAME_WEIGHT = 1.5, 4.0
"""What a token of a tool call weighs, and one up to the end of the first name: to choose the tool is the hard part, and
its prompt is long, so that there are few calls in a step."""
SHORT_ROW, ROUND = 128, 64
"""Tokens of a row of short dialogues; longer ones share rows as long as the longest of them, rounded up. Few different
shapes keep few prepared products, which are made and kept for each shape."""
UNCOUNTED = -100
TOOL, MEMORY = 0, 1
"""Tasks in which it is known where a token should look."""

Span = tuple[int, int]
"""First place and end."""
Encoded = tuple[list[int], list[float], list[tuple[int, ...]]]
"""Token ids, their weights, and looks: see `Batch.looks`, without the row."""
_CALL, _NAMED = '<tool_call>\n{"name": "', '", "arguments"'


@dataclass(frozen=True)
class Batch:
    """B rows of T tokens. `positions` count within a dialogue; `mask` is true where a token may attend."""

    ids: Tensor  # B T
    positions: Tensor  # B T
    mask: Tensor  # B T T
    counted: Tensor  # N, indices in the flat B*T whose next token counts, padded with ones that do not
    targets: Tensor  # N, the next token there, UNCOUNTED where it does not count
    looks: Tensor
    """[K, 7]: row, task (TOOL or MEMORY) and position of a token that copies earlier text; first position and end
    of the attention target (the tool's schema or the statement); first position and end of all candidates."""
    num_tokens: int
    num_counted: int

    def to(self, device: str) -> "Batch":
        names = ("ids", "positions", "mask", "counted", "targets", "looks")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


def encode(tokenizer: Tokenizer, dialogue: Dialogue) -> Encoded:
    """Return a dialogue's token ids, the loss weight of each, and the attention targets of tokens that choose a tool
    or repeat a statement."""
    ids: list[int] = []
    weights: list[float] = []
    looks: list[tuple[int, ...]] = []
    shown: dict[str, Span] = {}
    said: list[_Part] = []
    answers = (message for message in dialogue.messages if message["role"] == "assistant")
    for text, by_assistant in render(dialogue.messages, dialogue.tools):
        encoding = tokenizer.encode(text, add_special_tokens=False)
        part = _Part(text, encoding.offsets, len(ids))
        if not by_assistant:
            weights += [OTHER_WEIGHT] * len(encoding.ids)
            said.append(part)
            if dialogue.tools and not ids:
                shown = find_schemas(text, encoding.offsets, dialogue.tools)
        else:
            weights += _weigh(part)
            looks += _look(part, next(answers), shown, said)
        ids += encoding.ids
    return ids, weights, looks


@dataclass(frozen=True)
class _Part:
    """A part of a rendered dialogue, the offsets of its tokens, and the position of the first one."""

    text: str
    offsets: list[tuple[int, int]]
    start: int

    def find(self, wanted: str) -> Span | None:
        """Return the first and end position of the tokens of `wanted` at its last occurrence, or None."""
        begin = self.text.rfind(wanted)
        has_blank = begin > 0 and self.text[begin - 1] == " "  # a token may start with the space
        return self.cut(begin - has_blank, begin + len(wanted)) if begin >= 0 else None

    def cut(self, begin: int, end: int) -> Span | None:
        """Return the positions of the tokens that start between these characters."""
        found = [i for i, (at, _) in enumerate(self.offsets) if begin <= at < end]
        return (self.start + found[0], self.start + found[-1] + 1) if found else None


def _weigh(part: _Part) -> list[float]:
    """Return the loss weights of the assistant's tokens."""
    if part.text.startswith("<tool_call>"):
        end = part.text.index(_NAMED)
        return [NAME_WEIGHT if start < end else CALL_WEIGHT for start, _ in part.offsets]
    count = len(part.offsets)
    return [min(MAX_WEIGHT, max(1.0, FULL_LENGTH / count))] * count


def _look(part: _Part, answer: Message, shown: dict[str, Span], said: list[_Part]) -> list[tuple[int, ...]]:
    """Return the attention targets of one answer's tokens: `Batch.looks` without the row."""
    if part.text.startswith("<tool_call>"):
        end = part.text.index(_NAMED)
        schema = shown[part.text[len(_CALL) : end]]
        return _look_from(part.cut(len(_CALL), end), TOOL, schema, list(shown.values()))
    recall = answer.get("recall")
    if recall is None:
        return []
    spans = [_find_last(said, statement) for statement in recall["statements"]]
    right = _find_last(said, recall["statement"])
    return _look_from(part.find(recall["sought"]), MEMORY, right, [span for span in spans if span])


def _find_last(said: list[_Part], wanted: str) -> Span | None:
    return next((span for part in reversed(said) if (span := part.find(wanted))), None)


def _look_from(places: Span | None, task: int, right: Span | None, shown: list[Span]) -> list[tuple[int, ...]]:
    """Targets for `places`; each token is predicted at the position before it. A single choice gives no target."""
    if places is None or right is None or len(shown) < 2:
        return []
    everything = (min(start for start, _ in shown), max(end for _, end in shown))
    return [(task, place - 1, *right, *everything) for place in range(*places)]


def find_schemas(text: str, offsets: list[tuple[int, int]], tools: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """Return the first token and the end of each tool's schema in the rendered `text`, by tool name."""
    found = {}
    for tool in tools:
        written = json.dumps(tool, ensure_ascii=False)
        start = text.index(written)
        places = [i for i, (begin, _) in enumerate(offsets) if start <= begin < start + len(written)]
        found[tool["function"]["name"]] = (places[0], places[-1] + 1)
    return found


def make_steps(tokenizer: Tokenizer, seed: int, phase: str, num_tokens: int, max_length: int) -> Iterator[list[Batch]]:
    """Yield steps of about `num_tokens` tokens. Dialogues longer than `max_length` are skipped, never cut."""
    random = np.random.default_rng(seed)
    stream = generate_training(seed, phase)
    while True:
        drawn: list[Encoded] = []
        total = 0
        while total < num_tokens:
            encoded = encode(tokenizer, next(stream))
            if len(encoded[0]) <= max_length:
                drawn.append(encoded)
                total += len(encoded[0])
        short = [entry for entry in drawn if len(entry[0]) <= SHORT_ROW]
        long = [entry for entry in drawn if len(entry[0]) > SHORT_ROW]
        longest = _round_up(max((len(ids) for ids, *_ in long), default=0), ROUND)
        groups = ((short, SHORT_ROW), (long, longest))
        yield [_build(_pack(entries, length), length, random) for entries, length in groups if entries]


def _pack(entries: list[Encoded], length: int) -> list[list[Encoded]]:
    """Pack entries, longest first, into rows of at most `length` tokens: each into the first row with room."""
    rows: list[list[Encoded]] = []
    free: list[int] = []
    for entry in sorted(entries, key=lambda entry: -len(entry[0])):
        size = len(entry[0])
        for i, room in enumerate(free):
            if room >= size:
                rows[i].append(entry)
                free[i] -= size
                break
        else:
            rows.append([entry])
            free.append(length - size)
    return rows


def _build(rows: list[list[Encoded]], length: int, random: np.random.Generator) -> Batch:
    num_rows = len(rows)
    ids = np.full((num_rows, length), END_OF_TEXT_ID, dtype=np.int64)
    positions = np.zeros((num_rows, length), dtype=np.int64)
    document = np.zeros((num_rows, length), dtype=np.int64)
    weight = np.zeros((num_rows, length))  # weight of each position's next token
    looks: list[tuple[int, ...]] = []
    for r, row in enumerate(rows):
        start = 0
        for number, (tokens, weights, places) in enumerate(row, 1):
            end = start + len(tokens)
            ids[r, start:end] = tokens
            positions[r, start:end] = np.arange(len(tokens))
            document[r, start:end] = number
            weight[r, start : end - 1] = weights[1:]
            looks += [(r, task, *(start + place for place in look)) for task, *look in places]
            start = end
    times = np.floor(weight + random.random(weight.shape)).astype(np.int64).ravel()
    counted = np.repeat(np.arange(times.size), times)
    documents = torch.from_numpy(document)
    mask = (documents[:, :, None] == documents[:, None, :]) & torch.ones(length, length, dtype=torch.bool).tril()
    flat = torch.from_numpy(ids).reshape(-1)
    chosen = torch.zeros(_round_up(len(counted), ROUND), dtype=torch.int64)
    targets = torch.full_like(chosen, UNCOUNTED)
    chosen[: len(counted)] = torch.from_numpy(counted)
    targets[: len(counted)] = flat[chosen[: len(counted)] + 1]
    num_tokens = int((document > 0).sum())
    return Batch(
        torch.from_numpy(ids), torch.from_numpy(positions), mask, chosen, targets,
        torch.tensor(looks, dtype=torch.int64).reshape(-1, 7), num_tokens, len(counted),
    )  # fmt: skip


def _round_up(count: int, step: int) -> int:
    return -(-count // step) * step

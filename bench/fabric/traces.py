"""Traces of HEARTH_TEST_DATA/traces: calls of the Mooncake conversations with block hashes, and lengths of Azure's
calls."""

from __future__ import annotations

import csv
import gzip
import json
import os
from pathlib import Path
from typing import NamedTuple

BLOCK_TOKENS = 512  # tokens per block hash of the Mooncake traces


class TracedCall(NamedTuple):
    """One call: arrival in seconds, prompt and output tokens, and the hashes of the prompt's blocks."""

    at_s: float
    num_prompt: int
    num_output: int
    blocks: list[int]


def traces_folder() -> Path:
    """Return the folder of the traces. Raises SystemExit if it is not set."""
    root = os.environ.get("HEARTH_TEST_DATA", "")
    folder = Path(root) / "traces"
    if not root or not folder.is_dir():
        raise SystemExit("set HEARTH_TEST_DATA to the folder that contains traces/mooncake_conversation.jsonl.gz")
    return folder


def mooncake_conversation() -> list[TracedCall]:
    """Return the calls of the conversation trace in the order of arrival."""
    with gzip.open(traces_folder() / "mooncake_conversation.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    return [
        TracedCall(row["timestamp"] / 1000, row["input_length"], row["output_length"], row["hash_ids"]) for row in rows
    ]


def azure_lengths() -> list[tuple[int, int]]:
    """Return prompt and output tokens of Azure's conversations and code completions of 2023."""
    found = []
    for name in ("azure_2023_conv.csv.gz", "azure_2023_code.csv.gz"):
        with gzip.open(traces_folder() / name, "rt") as file:
            found += [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(file)]
    return found

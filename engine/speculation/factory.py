"""Make the drafter that a replica's `speculation` setting names, and load its draft model if it has one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from engine.config import DRAFT, EngineConfig
from engine.runner import Runner
from engine.speculation.draft_model import DraftModel, blocks_for
from engine.speculation.prompt_lookup import PromptLookup
from engine.speculation.speculator import Drafter, max_rows_for


def make_drafter(config: EngineConfig, max_model_len: int) -> Drafter | None:
    """Return the configured drafter, or None for "off".

    Raises ValueError for an invalid setting, and whatever loading the draft model raises.
    """
    if config.speculation == "off":
        return None
    if config.speculation == "prompt_lookup":
        return PromptLookup()
    if not config.speculation.startswith(DRAFT):
        raise ValueError(f"speculation={config.speculation!r}: expected off, prompt_lookup or draft:FOLDER")
    folder = Path(config.speculation.removeprefix(DRAFT))
    if _vocabulary(folder) != _vocabulary(config.model_dir):
        raise ValueError(f"speculation: the draft model in {folder} must have the same tokenizer as the model")
    max_sequences = max_rows_for(config.free_step_tokens)
    draft_config = dataclasses.replace(
        config,
        model_dir=folder,
        num_blocks=blocks_for(max_sequences, max_model_len, config.block_size),
        max_model_len=0,
        speculation="off",
        sleeps=False,
        tensor_parallel=1,  # the leading rank runs the whole draft model with its own threads
        num_threads=max(config.num_threads // config.tensor_parallel, 1),
    )
    runner = Runner(draft_config)
    runner.max_model_len = min(max_model_len, runner.max_model_len)
    runner.warm_up()
    return DraftModel(runner, max_sequences)


def _vocabulary(folder: Path) -> Any:
    """Return the parts of a tokenizer that assign text to token ids."""
    try:
        document = json.loads((folder / "tokenizer.json").read_bytes())
        return document["model"], document.get("added_tokens")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"tokenizer.json of {folder} cannot be read: {type(error).__name__}") from error

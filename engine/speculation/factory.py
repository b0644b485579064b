"""What guesses for a model, as its configuration says. Loads the draft model where there is one."""

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
    """None for "off". Raises ValueError for what cannot be, and whatever loading a draft model raises."""
    if config.speculation == "off":
        return None
    if config.speculation == "prompt_lookup":
        return PromptLookup()
    if not config.speculation.startswith(DRAFT):
        raise ValueError(f"speculation={config.speculation!r}: expected off, prompt_lookup or draft:FOLDER")
    folder = Path(config.speculation.removeprefix(DRAFT))
    if _vocabulary(folder) != _vocabulary(config.model_dir):
        raise ValueError(f"the draft model in {folder} has another tokenizer than the model that it is to guess for")
    num_places = max_rows_for(config.free_step_tokens)
    num_blocks = blocks_for(num_places, max_model_len, config.block_size)
    draft = dataclasses.replace(
        config,
        model_dir=folder,
        num_blocks=num_blocks,
        max_model_len=0,
        speculation="off",
        tensor_parallel=1,  # the rank that plans has it whole, and computes it with the threads that are its own
        num_threads=max(config.num_threads // config.tensor_parallel, 1),
    )
    return DraftModel(_fitting(draft, max_model_len), num_places)


def _fitting(config: EngineConfig, max_model_len: int) -> Runner:
    """A runner whose sequences fit their places: as long as the big model's, or as its own context allows."""
    runner = Runner(config)
    runner.max_model_len = min(max_model_len, runner.max_model_len)
    runner.warm()
    return runner


def _vocabulary(folder: Path) -> Any:
    """What decides which text a token stands for."""
    try:
        document = json.loads((folder / "tokenizer.json").read_bytes())
        return document["model"], document.get("added_tokens")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"tokenizer.json of {folder} cannot be read: {type(error).__name__}") from error

"""A model of one forward pass without torch: doubles numbers, waits or fails as its items specify."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from msgspec import Struct

from engine.processes.zygote import Zygote
from engine.tasks.loading import LoadRequest


class Number(Struct, frozen=True):
    """An input item whose computation takes `seconds`."""

    value: int
    cost: int = 1
    seconds: float = 0.0


class Info(Struct, frozen=True):
    name: str


class Doubler:
    """Loads from a folder with a file `model.json`, such as `{"name": "double"}`."""

    item_type = Number

    def __init__(self, model_dir: Path, device: str) -> None:
        self.info = Info(json.loads((model_dir / "model.json").read_text())["name"] + " on " + device)

    def warm_up(self) -> None:
        self.run([Number(0)])

    def run(self, items: list[Number]) -> list[int]:
        time.sleep(sum(item.seconds for item in items))
        return [2 * item.value for item in items]


def load_request(zygote: Zygote, folder: Path, on_exit: Callable[[str], None] = lambda _: None) -> LoadRequest:
    """A request to load a model of any task on one thread of the CPU."""
    settings: Any = SimpleNamespace(device="cpu", speculation="card")
    return LoadRequest(
        folder=folder,
        revision="r",
        context_window=512,
        tool_parser=None,
        speculation=None,
        settings=settings,
        num_threads=1,
        zygote=zygote,
        on_exit=on_exit,
        open_model=lambda _: nullcontext(),
    )

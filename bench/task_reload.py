"""Measure how fast a task's model responds again after it was evicted.

    python -m bench.task_reload

"first_s" is from the request for a model that this process has not loaded yet to its first response; "again_s" is the
same after the model's process has ended, as after an eviction. The models are MiniLM with its sentiment head, and a
random ViT-Base. "mb" is the memory of all engine processes while a model is loaded, and "idle_mb" after the last one
has ended; shared pages are counted once. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from catalog.builtin import find_folder
from catalog.package_models import package_models
from engine.processes.zygote import Zygote
from engine.protocol.events import Event, Failed, Finished
from engine.protocol.images import Image
from engine.protocol.tasks.image_classification import ImageClassification
from engine.protocol.tasks.task import Task
from engine.protocol.tasks.text_classification import TextClassification
from engine.tasks.registry import LOADERS
from engine.tasks.work import Work
from tests.fakes.one_pass import load_request
from tests.processes import children_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hearth-reload-") as folder:
        print(json.dumps(asyncio.run(measure(Path(folder), arguments.rounds)), indent=2))


async def measure(folder: Path, num_rounds: int) -> dict[str, object]:
    models: dict[str, tuple[Path, Task]] = {
        "minilm-sentiment": (sentiment_folder(folder / "minilm"), TextClassification(texts=("a warm place",))),
        "vit-base": (vit_folder(folder / "vit"), ImageClassification(image=Image(64, 64, bytes(64 * 64 * 3), 64, 64))),
    }
    zygote = Zygote()
    await zygote.start()
    await (await zygote.fork("tests.fakes.child:nothing_of_that_name")).wait()  # torch is imported
    found: dict[str, object] = {"load_average": os.getloadavg()[0], "zygote_mb": memory_mb()}
    for name, (path, task) in models.items():
        first_s, mb = await respond(zygote, path, task)
        again_s = [(await respond(zygote, path, task))[0] for _ in range(num_rounds)]
        found[name] = {
            "first_s": round(first_s, 2),
            "again_s": round(statistics.median(again_s), 2),
            "again_worst_s": round(max(again_s), 2),
            "mb": mb,
            "idle_mb": memory_mb(),
        }
    await zygote.close()
    return found


async def respond(zygote: Zygote, folder: Path, task: Task) -> tuple[float, int]:
    """Load a model, run one call and end the model. Return the seconds to the response, and the memory in MB."""
    started_s = time.perf_counter()
    model = await LOADERS[task.slug](load_request(zygote, folder))
    ended: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
    await model.start(
        Work(task, bytes(32), 1),
        lambda event: ended.set_result(event) if isinstance(event, Finished | Failed) else None,
    )
    assert isinstance(await ended, Finished)
    seconds, mb = time.perf_counter() - started_s, memory_mb()
    await model.close()
    return seconds, mb


def memory_mb() -> int:
    """Return the memory of this process's descendants, with each shared page counted once."""
    return sum(_pss_kb(pid) for pid in _descendants(os.getpid())) >> 10


def _descendants(pid: int) -> list[int]:
    return [each for child in children_of(pid) for each in (child, *_descendants(child))]


def _pss_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def sentiment_folder(folder: Path) -> Path:
    """Write the built-in embedding model with the sentiment head."""
    minilm = find_folder("@cf/hearth/minilm")
    assert minilm is not None, "python -m scripts.fetch_models fetches the built-in models"
    shutil.copytree(minilm, folder)
    config = package_models()["@cf/hearth/minilm-sentiment"].config
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def vit_folder(folder: Path) -> Path:
    """Write a ViT-Base of random weights (86 million parameters)."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    ViTForImageClassification(ViTConfig(num_labels=1000)).save_pretrained(folder)
    ViTImageProcessor().save_pretrained(folder)
    return folder


if __name__ == "__main__":
    main()

"""Image classification: the worker's model against `transformers` alone, on one thread, with equal images.

    python -m bench.image_classification FOLDER IMAGE...

FOLDER has a classifier with safetensors. Prints the best of five rounds as images per second of processor time, of
`transformers` with one image per call, and of the worker's model with one image and with 16 images per call.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image as Pillow
from transformers import AutoImageProcessor, AutoModelForImageClassification

from engine.protocol.images import Image
from engine.tasks.one_pass.image_classification import load
from engine.tasks.one_pass.image_item import ImageItem

_BATCH = 16
_ROUNDS = 5


def main(folder: Path, files: list[Path]) -> None:
    torch.set_num_threads(1)
    shown = [Pillow.open(file).convert("RGB") for file in files]
    pictures = [shown[number % len(shown)] for number in range(_BATCH)]
    items = [ImageItem(Image(each.width, each.height, each.tobytes(), each.width, each.height)) for each in pictures]
    processor = AutoImageProcessor.from_pretrained(folder)
    reference = AutoModelForImageClassification.from_pretrained(folder, dtype=torch.float32).eval()
    model = load(folder, "cpu")

    def run_reference() -> list[str]:
        return [_label(reference, processor, each) for each in pictures]

    runs: dict[str, Callable[[], Any]] = {
        "transformers": run_reference,
        "worker, one image": lambda: [model.run([item])[0][0][0] for item in items],
        f"worker, {_BATCH} images": lambda: [labels[0][0] for labels in model.run(items)],
    }
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    results = {name: run() for name, run in runs.items()}  # also warms up
    for _ in range(_ROUNDS):
        for name, run in runs.items():
            started_s = time.process_time()
            run()
            speeds[name].append(_BATCH / (time.process_time() - started_s))
    for name, found in speeds.items():
        is_equal = results[name] == results["transformers"]
        print(f"{name}: {max(found):.1f} images/s, labels equal: {is_equal}")


def _label(model: Any, processor: Any, picture: Pillow.Image) -> str:
    with torch.inference_mode():
        logits = model(**processor(picture, return_tensors="pt")).logits[0]
    return str(model.config.id2label[int(logits.argmax())])


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(each) for each in sys.argv[2:]])

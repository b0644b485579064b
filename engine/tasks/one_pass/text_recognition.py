"""Recognition of printed text in images with PP-OCR (ONNX) and the library `rapidocr`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from engine.tasks.image_to_text import DescriberInfo, DescriptionRequest
from engine.tasks.one_pass.image_item import blank_image, pixels_of
from engine.tasks.one_pass.transformers_models import UnsupportedModel

_CHARACTERS_PER_TOKEN = 4


class TextRecognizer:
    """Finds and reads lines of text, a `WorkerModel`. Prompts and sampling options have no effect."""

    item_type = DescriptionRequest

    def __init__(self, model_dir: Path) -> None:
        """Raises UnsupportedModel, OSError or ValueError."""
        try:
            from rapidocr import RapidOCR
        except ImportError:
            raise UnsupportedModel("text recognition needs the package rapidocr: pip install 'hearth[ocr]'") from None
        files: dict[str, str] = json.loads((model_dir / "config.json").read_text())["files"]
        options: dict[str, Any] = {f"{part}.model_path": str(model_dir / name) for part, name in files.items()} | {
            "Global.log_level": "error",
            "EngineConfig.onnxruntime.intra_op_num_threads": torch.get_num_threads(),
        }
        self._read = RapidOCR(params=options)
        self.info = DescriberInfo(1)

    def warm_up(self) -> None:
        self.run([DescriptionRequest(blank_image(), "", False, 1, 0.0, 1.0, 50, 1.0, None)])

    def run(self, items: list[DescriptionRequest]) -> list[tuple[str, int, int]]:
        """Return the text of each image in reading order, with its estimated number of tokens."""
        texts = [self._text_of(item) for item in items]
        return [(text, 0, -(-len(text) // _CHARACTERS_PER_TOKEN)) for text in texts]

    def _text_of(self, item: DescriptionRequest) -> str:
        found: Any = self._read(pixels_of(item.image)[:, :, ::-1].copy())  # the library expects blue, green, red
        return str(found.to_markdown()).strip() if found.txts else ""

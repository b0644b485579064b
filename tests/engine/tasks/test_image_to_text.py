"""Descriptions of images: equality with `transformers` on small random models, batches, sampling, limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from PIL import ImageDraw, ImageFont
from transformers import AutoModelForImageTextToText, AutoProcessor

from engine.processes.zygote import Zygote
from engine.protocol.events import Event, Finished
from engine.protocol.images import Image
from engine.protocol.tasks.image_to_text import ImageToText
from engine.tasks.image_to_text import DescriptionRequest
from engine.tasks.image_to_text import load as load_in_process
from engine.tasks.one_pass.image_to_text import load
from engine.tasks.work import Work
from tests.fakes.one_pass import load_request
from tests.fakes.tiny_models import tiny_describer
from tests.waiting import wait_until


def noise(width: int, height: int, seed: int = 0) -> Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image(width, height, pixels.tobytes(), width, height)


def request(image: Image, prompt: str = "", **options: Any) -> DescriptionRequest:
    fields: dict[str, Any] = {"is_raw": False, "max_tokens": 12, "temperature": 0.0, "top_p": 1.0, "top_k": 50}
    return DescriptionRequest(
        image=image, prompt=prompt, **(fields | {"repetition_penalty": 1.0, "seed": None} | options)
    )


@pytest.fixture(scope="module", params=["blip", "llava"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_describer(tmp_path_factory.mktemp(request.param), request.param)


def expected_text(folder: Path, image: Image, prompt: str) -> str:
    processor = AutoProcessor.from_pretrained(folder)
    model = AutoModelForImageTextToText.from_pretrained(folder).eval()
    shown = Pillow.frombytes("RGB", (image.width, image.height), image.pixels)
    if model.config.model_type == "llava":
        inputs = processor(images=shown, text=f"USER: <image>\n{prompt} ASSISTANT:", return_tensors="pt")
    else:
        inputs = processor(images=shown, **({"text": prompt} if prompt else {}), return_tensors="pt")
    with torch.inference_mode():
        output = model.generate(**inputs, max_new_tokens=12, do_sample=False)[0]
    start = inputs["input_ids"].shape[1] if model.config.model_type == "llava" else 0
    return str(processor.tokenizer.decode(output[start:], skip_special_tokens=True)).strip()


@pytest.mark.parametrize("prompt", ["what is the man eating", "a"])
def test_model_of_random_weights_describes_as_transformers_does_alone_and_in_a_batch(folder: Path, prompt: str):
    images = [noise(80, 60, 1), noise(50, 70, 2), noise(80, 60, 3)]
    model = load(folder, "cpu")
    outputs = model.run([request(image, prompt) for image in images])
    for image, (text, num_prompt_tokens, num_tokens) in zip(images, outputs, strict=True):
        assert text == expected_text(folder, image, prompt)
        assert num_prompt_tokens >= 1
        assert 1 <= num_tokens <= 24
    assert outputs[0][0]


def test_samples_with_one_seed_are_equal_and_with_others_differ(folder: Path):
    model = load(folder, "cpu")
    texts = [model.run([request(noise(40, 40), "a", temperature=2.0, seed=seed)])[0][0] for seed in (1, 1, 2, 3, 4)]
    assert texts[0] == texts[1]
    assert len(set(texts)) > 1


def test_long_prompt_and_special_tokens_leave_the_worker_alive(folder: Path):
    model = load(folder, "cpu")
    for prompt in ("rain " * 800, "<image> <image> what is it", "[SEP] [PAD]", "🙂"):
        [(_, num_prompt_tokens, _)] = model.run([request(noise(40, 40), prompt, max_tokens=4096)])
        assert num_prompt_tokens < 128


def test_raw_prompt_has_no_template(folder: Path):
    model = load(folder, "cpu")
    [(_, templated, _)] = model.run([request(noise(40, 40), "what is it")])
    [(_, raw, _)] = model.run([request(noise(40, 40), "what is it", is_raw=True)])
    assert raw <= templated


@pytest.mark.full
def test_recognizer_reads_the_lines_of_a_scan_in_order(tmp_path: Path):
    models = Path(pytest.importorskip("rapidocr").__file__).parent / "models"
    files = {"Det": "*det*.onnx", "Rec": "*rec*.onnx", "Cls": "*cls*.onnx"}
    found = {part: next(models.glob(pattern)).name for part, pattern in files.items()}
    for name in found.values():
        (tmp_path / name).symlink_to(models / name)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "pp_ocr", "files": found}))
    scan = Pillow.new("RGB", (800, 300), "white")
    draw, font = ImageDraw.Draw(scan), ImageFont.load_default(28)
    draw.text((40, 40), "Hearth runs models on your machines.", fill="black", font=font)
    draw.text((40, 140), "Invoice 4711: total 35.90 EUR", fill="black", font=font)
    model = load(tmp_path, "cpu")
    blank = Image(64, 64, bytes(3 * 64 * 64), 64, 64)
    outputs = model.run([request(Image(800, 300, scan.tobytes(), 800, 300)), request(blank)])
    (text, _, num_tokens), empty = outputs
    assert [line for line in text.splitlines() if line] == [
        "Hearth runs models on your machines.",
        "Invoice 4711: total 35.90 EUR",
    ]
    assert num_tokens > 10
    assert empty == ("", 0, 0)


@pytest.mark.full
async def test_model_in_its_worker_process_describes_and_counts_tiles_and_tokens(tmp_path: Path):
    zygote = Zygote()
    await zygote.start()
    model = await load_in_process(load_request(zygote, tiny_describer(tmp_path, "blip")))
    events: list[Event] = []
    task = ImageToText(image=noise(600, 400), prompt="a", max_tokens=5)
    await model.start(Work(task, bytes(32), 1), events.append)
    await wait_until(lambda: bool(events) and isinstance(events[-1], Finished))
    _, result, finished = events
    assert result.fields["description"].startswith("a")  # type: ignore[union-attr]
    assert finished.usage.num_image_tiles == 2  # type: ignore[union-attr]
    assert 1 <= finished.usage.completion_tokens <= 10  # type: ignore[union-attr]
    await model.close()
    await zygote.close()

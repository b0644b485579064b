"""Image classification and object detection: equality with `transformers` on small random models, batches, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    AutoModelForObjectDetection,
    ConvNextConfig,
    ConvNextForImageClassification,
    ConvNextImageProcessor,
    DetrConfig,
    DetrForObjectDetection,
    DetrImageProcessor,
    ResNetConfig,
    ResNetForImageClassification,
    RTDetrConfig,
    RTDetrForObjectDetection,
    RTDetrImageProcessor,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
    YolosConfig,
    YolosForObjectDetection,
    YolosImageProcessor,
)

from engine.processes.zygote import Zygote
from engine.protocol.events import Event, Finished
from engine.protocol.images import Image
from engine.protocol.tasks.image_classification import ImageClassification, Labels
from engine.protocol.tasks.object_detection import DetectedObjects, ObjectDetection
from engine.protocol.tasks.task import Task
from engine.tasks import image_classification, object_detection
from engine.tasks.loading import ModelLoadError
from engine.tasks.object_detection import DetectionItem
from engine.tasks.one_pass import image_classification as image_classification_worker
from engine.tasks.one_pass import object_detection as object_detection_worker
from engine.tasks.one_pass.image_item import ImageItem
from engine.tasks.work import Work
from tests.fakes.one_pass import load_request
from tests.waiting import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")


def noise(width: int, height: int, seed: int = 0) -> Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image(width, height, pixels.tobytes(), width, height)


def pillow_of(image: Image) -> Pillow.Image:
    return Pillow.frombytes("RGB", (image.width, image.height), image.pixels)


def save(folder: Path, model: Any, processor: Any) -> Path:
    model.eval().save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def classifier(kind: str, folder: Path) -> Path:
    """Write a classifier with random weights and four classes."""
    torch.manual_seed(0)
    labels: dict[str, Any] = {"num_labels": 4, "id2label": {0: "cat", 1: "dog", 2: "bird", 3: "fish"}}
    side = {"height": 32, "width": 32}
    if kind == "vit":
        vit = ViTConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=32,
            patch_size=8, **labels,
        )  # fmt: skip
        return save(folder, ViTForImageClassification(vit), ViTImageProcessor(size=side))
    if kind == "resnet":
        resnet = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", **labels)
        return save(folder, ResNetForImageClassification(resnet), ConvNextImageProcessor(size={"shortest_edge": 32}))
    convnext = ConvNextConfig(hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], **labels)
    return save(folder, ConvNextForImageClassification(convnext), ConvNextImageProcessor(size={"shortest_edge": 32}))


def detector(kind: str, folder: Path) -> Path:
    """Write a detector with random weights, ten queries and three classes."""
    torch.manual_seed(0)
    labels: dict[str, Any] = {"num_labels": 3, "id2label": {0: "horse", 1: "cat", 2: "dog"}}
    size = {"shortest_edge": 64, "longest_edge": 96}
    backbone = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage4"],
    )  # fmt: skip
    if kind == "detr":
        detr = DetrConfig(
            backbone_config=backbone, use_timm_backbone=False, use_pretrained_backbone=False, num_queries=10,
            d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
            encoder_ffn_dim=32, decoder_ffn_dim=32, **labels,
        )  # fmt: skip
        return save(folder, DetrForObjectDetection(detr), DetrImageProcessor(size=size))
    if kind == "yolos":
        yolos = YolosConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=[64, 64],
            patch_size=16, num_detection_tokens=10, **labels,
        )  # fmt: skip
        return save(folder, YolosForObjectDetection(yolos), YolosImageProcessor(size={"height": 64, "width": 64}))
    rt_detr = RTDetrConfig(
        encoder_hidden_dim=16, encoder_in_channels=[8, 16, 16], feat_strides=[8, 16, 32], encoder_ffn_dim=32,
        encoder_attention_heads=2, d_model=16, num_queries=10, decoder_in_channels=[16, 16, 16], decoder_ffn_dim=32,
        decoder_layers=1, decoder_attention_heads=2, num_denoising=0, **labels,
    )  # fmt: skip
    rt_detr.backbone_config.update(
        {"embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "layer_type": "basic"}
    )
    return save(folder, RTDetrForObjectDetection(rt_detr), RTDetrImageProcessor(size={"height": 64, "width": 64}))


async def run(model: Any, task: Task) -> list[Event]:
    events: list[Event] = []
    await model.start(Work(task, bytes(32), 1), events.append)
    await wait_until(lambda: bool(events) and isinstance(events[-1], Finished))
    return events


@pytest.mark.parametrize("kind", ["vit", "resnet", "convnext"])
async def test_classifier_of_random_weights_equals_transformers_alone_and_in_a_batch(kind: str, tmp_path: Path):
    folder = classifier(kind, tmp_path)
    images = [noise(80, 60, 1), noise(40, 70, 2), noise(64, 64, 3)]
    processor = AutoImageProcessor.from_pretrained(folder)
    reference = AutoModelForImageClassification.from_pretrained(folder).eval()
    model = image_classification_worker.load(folder, "cpu")
    outputs = model.run([ImageItem(image) for image in images])
    for image, output in zip(images, outputs, strict=True):
        logits = reference(**processor(pillow_of(image), return_tensors="pt")).logits[0]
        expected = {reference.config.id2label[i]: score for i, score in enumerate(logits.softmax(-1).tolist())}
        assert dict(output) == pytest.approx(expected, abs=1e-5)
        assert [score for _, score in output] == sorted((score for _, score in output), reverse=True)


@pytest.mark.parametrize("kind", ["detr", "yolos", "rt_detr"])
async def test_detector_of_random_weights_equals_transformers_alone_and_in_a_batch(kind: str, tmp_path: Path):
    folder = detector(kind, tmp_path)
    images = [noise(80, 60, 1), noise(50, 70, 2), noise(80, 60, 3)]
    processor = AutoImageProcessor.from_pretrained(folder)
    reference = AutoModelForObjectDetection.from_pretrained(folder).eval()
    model = object_detection_worker.load(folder, "cpu")
    outputs = model.run([DetectionItem(image, 0.0) for image in images])
    for image, output in zip(images, outputs, strict=True):
        raw = reference(**processor(pillow_of(image), return_tensors="pt"))
        [expected] = processor.post_process_object_detection(raw, threshold=0.0, target_sizes=[(1, 1)])
        assert len(output) == len(expected["scores"])
        assert [score for _, score, _ in output] == pytest.approx(expected["scores"].tolist(), abs=1e-4)
        np.testing.assert_allclose(
            [edges for _, _, edges in output], expected["boxes"].detach().numpy().reshape(-1, 4), atol=1e-4
        )


@pytest.mark.full
async def test_classifier_in_its_worker_process_labels_an_image_and_counts_one_tile(zygote: Zygote, tmp_path: Path):
    model = await image_classification.load(load_request(zygote, classifier("vit", tmp_path)))
    _, result, finished = await run(model, ImageClassification(image=noise(900, 700)))
    labels = Labels.of_result(result).labels
    assert {each.label for each in labels} == {"cat", "dog", "bird", "fish"}
    assert sum(each.score for each in labels) == pytest.approx(1)
    assert (finished.usage.num_image_tiles, finished.usage.prompt_tokens) == (1, 0)
    assert finished.usage.device_us > 0
    await model.close()


@pytest.mark.full
async def test_detector_in_its_worker_process_returns_boxes_of_the_original_image(zygote: Zygote, tmp_path: Path):
    model = await object_detection.load(load_request(zygote, detector("yolos", tmp_path)))
    shown = noise(80, 60)
    image = Image(80, 60, shown.pixels, 1600, 1200)  # scaled down by the gateway
    _, result, finished = await run(model, ObjectDetection(image=image, threshold=0))
    objects = DetectedObjects.of_result(result).objects
    assert len(objects) == 10
    assert [each.score for each in objects] == sorted((each.score for each in objects), reverse=True)
    assert max(each.box.xmax for each in objects) > 80
    assert all(0 <= each.box.xmin <= each.box.xmax <= 1600 for each in objects)
    assert finished.usage.num_image_tiles == 1
    await model.close()


@pytest.mark.parametrize(
    ("load", "config", "message"),
    [
        (image_classification.load, {"model_type": "llama"}, "image classifiers are beit, "),
        (object_detection.load, {"model_type": "detr", "auto_map": {}}, "without code of their own"),
    ],
)
async def test_folder_of_another_model_type_or_with_code_does_not_load(
    zygote: Zygote, tmp_path: Path, load: Any, config: dict, message: str
):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=message):
        await load(load_request(zygote, tmp_path))


async def test_trained_mobilenet_names_the_test_images(test_data: Path):
    model = image_classification_worker.load(test_data / "models" / "mobilenet_v2_imagenet", "cpu")
    expected = {
        "chelsea.png": ("Egyptian cat", 0.75),
        "coffee.png": ("espresso", 0.99),
        "camera.png": ("tripod", 0.98),
        "rocket.jpg": ("missile", 0.34),
    }
    for name, (label, score) in expected.items():
        with Pillow.open(test_data / "images" / name) as opened:
            shown = opened.convert("RGB")
        image = Image(shown.width, shown.height, shown.tobytes(), shown.width, shown.height)
        [[(found, probability), *_]] = model.run([ImageItem(image)])
        assert (found, round(probability, 2)) == (label, score)

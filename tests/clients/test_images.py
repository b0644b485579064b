"""Image tasks with real models, added as docs/tasks.md says, and listed models with weights of small random models."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from cloudflare import Cloudflare

from tests.clients.added_models import add_model
from tests.engine.tasks.test_image_tasks import classifier, detector
from tests.platform import Platform

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

DETECTOR, MODERATOR = "@cf/tensorflow/coco-ssd", "@cf/infinitered/nsfw-mobilenet-v2"
RESNET, DETR = "@cf/microsoft/resnet-50", "@cf/facebook/detr-resnet-50"


@pytest.fixture(scope="module")
def with_models(platform: Platform) -> Platform:
    for name in (DETECTOR, MODERATOR):
        add_model(platform, name)
    return platform


@pytest.mark.parametrize(
    ("name", "label", "score"),
    [("horse.png", "horse", 0.93), ("chelsea.png", "cat", 0.93), ("coffee.png", "cup", 0.96)],
)
def test_trained_detector_finds_the_object_of_each_photo(
    with_models: Platform, cloudflare: Cloudflare, test_data: Path, name: str, label: str, score: float
):
    image = list((test_data / "images" / name).read_bytes())
    found = cloudflare.with_options(timeout=120).ai.run(DETECTOR, account_id=with_models.account_id, image=image)
    best = found[0]  # type: ignore[index]
    assert (best.label, best.score) == (label, pytest.approx(score, abs=0.02))
    assert best.box.xmax > best.box.xmin


def test_trained_moderation_model_tells_photos_and_drawings_apart(with_models: Platform, test_data: Path):
    for name, label in (("coffee.png", "neutral"), ("horse.png", "drawing")):
        with with_models.client() as client:
            content = (test_data / "images" / name).read_bytes()
            response = client.post(f"{with_models.ai_url()}/run/{MODERATOR}", content=content)
        assert response.status_code == 200, response.text
        assert response.json()["result"][0]["label"] == label


def test_listed_models_run_once_weights_are_published_under_their_names(
    platform: Platform, cloudflare: Cloudflare, test_data: Path, tmp_path: Path
):
    for name, write in ((RESNET, classifier), (DETR, detector)):
        folder = write(name.rpartition("/")[2].partition("-")[0], tmp_path / name.rpartition("/")[2])
        platform.hearth("model", "publish", str(folder), "--name", name)
    image = base64.b64encode((test_data / "images" / "chelsea.png").read_bytes()).decode()
    with platform.client() as client:
        labels = client.post(f"{platform.ai_url()}/run/{RESNET}", json={"image": image}).json()["result"]
        objects = client.post(f"{platform.ai_url()}/run/{DETR}", json={"image": image, "threshold": 0}).json()["result"]
        listed = client.get(f"{platform.ai_url()}/models/search", params={"search": RESNET}).json()["result"]
    assert {each["label"] for each in labels} == {"cat", "dog", "bird", "fish"}
    assert len(objects) == 10
    assert listed[0]["name"] == RESNET

"""Image classification, object detection and descriptions through the gateway: bodies, decoding, prices, bad images."""

import base64

import httpx
import pytest
from cloudflare import Cloudflare

from tests.fakes.pictures import picture, png_header
from tests.gateway.process import CLASSIFIER, DESCRIBER, DETECTOR, PARROT
from tests.gateway.site import Running

FILE = picture(64, 32)


def run(client: httpx.Client, running: Running, model: str = CLASSIFIER, **options) -> httpx.Response:
    return client.post(f"{running.account_url}/ai/run/{model}", **options)


@pytest.mark.parametrize(
    "body",
    [
        {"content": FILE, "headers": {"content-type": "image/png"}},
        {"content": FILE, "headers": {"content-type": "application/octet-stream"}},
        {"content": FILE},  # as `curl --data-binary` sends it
        {"json": {"image": base64.b64encode(FILE).decode()}},
        {"json": {"image": "data:image/png;base64," + base64.b64encode(FILE).decode()}},
        {"json": {"image": list(FILE)}},
    ],
)
def test_image_is_accepted_as_bytes_base64_and_array(client: httpx.Client, running: Running, body: dict):
    response = run(client, running, **body)
    assert response.status_code == 200, response.text
    assert response.json()["result"] == [{"label": "64 x 32", "score": 0.75}, {"label": "other", "score": 0.25}]


@pytest.mark.parametrize("format_", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_node_receives_pixels_and_never_the_file(client: httpx.Client, running: Running, format_: str):
    response = run(client, running, content=picture(64, 32, format_))
    image = running.site.execute_of(response).task.image
    assert (image.width, image.height, len(image.pixels)) == (64, 32, 64 * 32 * 3)


def test_boxes_are_in_pixels_of_the_image_that_the_client_sent(client: httpx.Client, running: Running):
    response = run(client, running, DETECTOR, content=picture(4000, 2000, "JPEG"))
    [found] = response.json()["result"]
    assert found["box"] == {"xmin": 0, "ymin": 0, "xmax": 4000, "ymax": 2000}
    assert running.site.execute_of(response).task.image.width == 2000


def test_official_client_detects_objects_above_a_threshold(running: Running):
    with Cloudflare(base_url=running.gateway.base_url, api_token=running.tenants.secrets["good"], timeout=60) as client:
        result = client.ai.run(
            DETECTOR,
            account_id=running.tenants.account_id,
            image=list(FILE),
            extra_body={"threshold": 0.95},
        )
    [found] = result  # type: ignore[misc]
    assert (found.label, found.score, found.box.xmax, found.box.ymax) == ("image", 0.95, 64, 32)


@pytest.mark.parametrize(
    ("model", "size", "num_tiles", "neurons"),
    [(CLASSIFIER, (1500, 600), 1, "0.50"), (DETECTOR, (512, 512), 1, "2.00"), (DETECTOR, (1500, 600), 6, "12.00")],
)
def test_image_tiles_are_charged_and_shown_in_the_usage(
    client: httpx.Client, running: Running, model: str, size: tuple[int, int], num_tiles: int, neurons: str
):
    response = run(client, running, model, content=picture(*size))
    assert response.headers["cf-ai-neurons"] == neurons
    row = running.site.usage_row(response.headers["cf-ai-req-id"])
    assert row["num_image_tiles"] == num_tiles


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"content": b"this is no image"}, "'/image': the image is damaged, or neither PNG"),
        ({"content": FILE[:50]}, "the image is damaged"),
        ({"content": png_header(60_000, 60_000)}, "the image has 60000 x 60000 pixels"),
        ({"content": b"%PDF-1.4\n" + FILE}, "the image is damaged"),
        ({"json": {"image": "https://example.com/cat.png"}}, "URLs are not fetched"),
        ({"json": {"image": "HTTP://169.254.169.254/"}}, "URLs are not fetched"),
        ({"json": {"image": "file:///etc/passwd"}}, "must be base64"),
        ({"json": {"image": "%%%"}}, "must be base64"),
        ({"json": {"image": [1, 2, 300]}}, "image"),
        ({"json": {"image": ""}}, "image"),
        ({"json": {}}, "image"),
    ],
)
def test_bad_image_gets_a_400_that_names_the_field(client: httpx.Client, running: Running, options: dict, message: str):
    response = run(client, running, **options)
    assert response.status_code == 400
    assert message in response.json()["errors"][0]["message"]
    assert run(client, running, content=FILE).status_code == 200


def test_text_model_takes_no_image_as_its_body(client: httpx.Client, running: Running):
    response = run(client, running, PARROT, content=FILE)
    assert (response.status_code, response.json()["errors"][0]["code"]) == (400, 5004)


def test_official_client_gets_a_description_charged_by_tiles_and_tokens(client: httpx.Client, running: Running):
    with Cloudflare(base_url=running.gateway.base_url, api_token=running.tenants.secrets["good"], timeout=60) as sdk:
        result = sdk.ai.run(
            DESCRIBER,
            account_id=running.tenants.account_id,
            image=list(FILE),
            prompt="What is red?",
            max_tokens=100,
            temperature=0.5,
            seed=7,
        )
    assert result == {"description": "64 x 32: What is red?"} or result.description == "64 x 32: What is red?"  # type: ignore[union-attr]
    response = run(client, running, DESCRIBER, content=FILE)
    assert response.json()["result"] == {"description": "64 x 32: "}
    assert response.headers["cf-ai-neurons"] == "4.00"  # one tile and three words
    task = running.site.execute_of(response).task
    assert (task.max_tokens, task.temperature, task.seed) == (512, 0.0, None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 513}, "max_tokens"),
        ({"temperature": 6}, "temperature"),
        ({"prompt": 3}, "prompt"),
        ({"presence_penalty": 1}, "'/presence_penalty' must be 0"),
    ],
)
def test_bad_field_of_a_description_gets_a_400_that_names_the_field(
    client: httpx.Client, running: Running, fields: dict, message: str
):
    body = {"image": base64.b64encode(FILE).decode()} | fields
    response = run(client, running, DESCRIBER, json=body)
    assert response.status_code == 400
    assert message in response.json()["errors"][0]["message"]

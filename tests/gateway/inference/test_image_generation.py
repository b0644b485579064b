"""Image generation through the gateway: native forms, OpenAI's routes, decoded inputs, prices, batches, refusals."""

import base64
import io

import httpx
import pytest
from PIL import Image

from tests.gateway.process import FLUX, FLUX_2, PAINTER, PARROT
from tests.gateway.site import Running


def png(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(file, "PNG")
    return file.getvalue()


def encoded(file: bytes) -> str:
    return base64.b64encode(file).decode()


def run(client: httpx.Client, running: Running, model: str = PAINTER, **body) -> httpx.Response:
    return client.post(f"{running.account_url}/ai/run/{model}", json=body)


def generate(client: httpx.Client, running: Running, **body) -> httpx.Response:
    return client.post(f"{running.account_url}/ai/v1/images/generations", json={"model": PAINTER, "prompt": "x"} | body)


def test_native_image_is_bytes_with_their_type_and_is_charged_by_steps_and_tiles(
    client: httpx.Client, running: Running
):
    response = run(client, running, prompt="a boat", width=1024, height=512, num_steps=5, seed=3)
    assert (response.status_code, response.headers["content-type"]) == (200, "image/png")
    assert response.content == b"a boat 1024x512 5 steps seed 3"
    assert response.headers["cf-ai-neurons"] == "12.00"


def test_flux_image_is_base64_in_json(client: httpx.Client, running: Running):
    result = run(client, running, FLUX, prompt="a boat", seed=3).json()["result"]
    assert base64.b64decode(result["image"]) == b"a boat 0x0 4 steps seed 3"


def test_image_and_mask_reach_the_node_decoded(client: httpx.Client, running: Running):
    response = run(client, running, prompt="p", image=list(png(64, 32)), mask=list(png(64, 32)), seed=1)
    assert response.content == b"p 0x0 20 steps 64x32 64x32 seed 1"
    response = run(client, running, prompt="p", image_b64=encoded(png(40, 20)), seed=1)
    assert response.content == b"p 0x0 20 steps 40x20 seed 1"
    assert running.site.execute_of(response).task.image.is_decoded


def test_form_has_images_to_refer_to(client: httpx.Client, running: Running):
    response = client.post(
        f"{running.account_url}/ai/run/{FLUX_2}",
        data={"prompt": "both", "width": "512", "height": "512", "steps": "6", "seed": "2"},
        files={"input_image_0": png(30, 20), "input_image_1": png(10, 20)},
    )
    image = base64.b64decode(response.json()["result"]["image"])
    assert image == b"both 512x512 6 steps 30x20 10x20 seed 2"


def test_openai_images_have_consecutive_seeds_and_the_requested_size(client: httpx.Client, running: Running):
    body = generate(client, running, n=2, size="512x256", seed=5, prompt="two").json()
    images = [base64.b64decode(each["b64_json"]) for each in body["data"]]
    assert images == [b"two 512x256 20 steps seed 5", b"two 512x256 20 steps seed 6"]
    assert body["created"] > 1_700_000_000


def test_openai_edit_takes_an_image_and_a_mask(client: httpx.Client, running: Running):
    response = client.post(
        f"{running.account_url}/ai/v1/images/edits",
        data={"model": PAINTER, "prompt": "edit", "seed": "1"},
        files={"image": png(32, 32), "mask": png(32, 32)},
    )
    [image] = response.json()["data"]
    assert base64.b64decode(image["b64_json"]) == b"edit 0x0 20 steps 32x32 32x32 seed 1"


def test_batch_has_images_in_base64(client: httpx.Client, running: Running):
    requests = [{"prompt": "one", "seed": 1}, {"prompt": "two", "seed": 2}]
    response = client.post(f"{running.account_url}/ai/run/{PAINTER}", json={"requests": requests})
    results = [item["result"]["image"] for item in response.json()["result"]["responses"]]
    assert [base64.b64decode(each)[:3] for each in results] == [b"one", b"two"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": " "}, "must not be blank"),
        ({"prompt": "x", "width": 100}, "width"),
        ({"prompt": "x", "width": 257}, "must be a multiple of 8"),
        ({"prompt": "x", "height": 4096}, "height"),
        ({"prompt": "x", "num_steps": 21}, "num_steps"),
        ({"prompt": "x", "mask": encoded(png(8, 8))}, "'/mask' needs an '/image'"),
        ({"prompt": "x", "image_b64": encoded(b"no image")}, "the image is damaged"),
        ({"prompt": "x", "seed": -1}, "seed"),
        ({}, "prompt"),
    ],
)
def test_bad_native_input_gets_a_400_that_names_it(client: httpx.Client, running: Running, body: dict, message: str):
    response = run(client, running, **body)
    assert response.status_code == 400
    assert message in response.json()["errors"][0]["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"response_format": "url"}, "url is not supported"),
        ({"output_format": "webp"}, "webp is not supported"),
        ({"size": "big"}, "size"),
        ({"size": "100x100"}, "width"),
        ({"n": 5}, "n"),
        ({"stream": True}, "stream"),
        ({"model": PARROT}, PARROT),
    ],
)
def test_bad_openai_input_gets_a_400_that_names_it(client: httpx.Client, running: Running, body: dict, message: str):
    response = generate(client, running, **body)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]

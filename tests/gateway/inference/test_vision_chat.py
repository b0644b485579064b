"""Images in chats: every form in which clients send them, decoding, estimates, and models that take text only."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI

from engine.protocol.messages import MAX_IMAGES
from tests.fakes.pictures import picture
from tests.gateway.process import CHATTY, PARROT, SEER
from tests.gateway.site import Running

FILE = picture(64, 32)
URL = "data:image/png;base64," + base64.b64encode(FILE).decode()


def part(url: str = URL) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def chat(client: httpx.Client, running: Running, *content: Any, model: str = SEER) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": list(content)}]}
    return client.post(f"{running.account_url}/ai/v1/chat/completions", json=body)


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


def test_official_client_sends_an_image_and_the_node_receives_pixels(running: Running):
    url = f"{running.account_url}/ai/v1"
    content: Any = [text("What is"), part(), text("this?")]
    with OpenAI(base_url=url, api_key=running.tenants.secrets["good"], timeout=60) as client:
        response = client.chat.completions.with_raw_response.create(
            model=SEER, messages=[{"role": "user", "content": content}]
        )
    (message,) = running.site.execute_of(response.http_response).task.messages
    (image,) = message.images
    assert (image.width, image.height, len(image.pixels)) == (64, 32, 64 * 32 * 3)
    assert (message.content, message.image_offsets) == ("What is\nthis?", (7,))


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "What is this?", "image": base64.b64encode(FILE).decode()},
        {"prompt": "What is this?", "image": list(FILE)},
        {"messages": [{"role": "user", "content": "What is this?"}], "image": URL},
        {"messages": [{"role": "user", "content": [part(), text("What is this?")]}]},
    ],
)
def test_native_bodies_have_an_image_beside_or_in_the_messages(client: httpx.Client, running: Running, body: Any):
    response = client.post(f"{running.account_url}/ai/run/{SEER}", json=body)
    assert response.status_code == 200, response.text
    (message,) = running.site.execute_of(response).task.messages
    assert (message.content, message.image_offsets) == ("What is this?", (0,))
    assert message.images[0].width == 64


@pytest.mark.parametrize("model", [PARROT, CHATTY])
def test_models_without_vision_refuse_images(client: httpx.Client, running: Running, model: str):
    response = chat(client, running, text("What is this?"), part(), model=model)
    assert response.status_code == 400
    assert "'/messages/0/content/1/type' must be one of 'text'" in response.json()["error"]["message"]
    response = client.post(f"{running.account_url}/ai/run/{PARROT}", json={"prompt": "x", "image": URL})
    assert response.status_code == 400
    assert "image" in response.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([part("https://example.com/cat.png")], "image_url"),
        ([part("data:image/png;base64,!")], "base64"),
        ([part("data:image/png;base64," + base64.b64encode(b"no picture").decode())], "messages/0/content"),
        ([part()] * (MAX_IMAGES + 1), f"at most {MAX_IMAGES} images"),
        ([{"type": "image_url"}], "image_url"),
    ],
)
def test_unusable_images_are_refused_by_name(client: httpx.Client, running: Running, content: Any, message: str):
    response = chat(client, running, *content)
    assert response.status_code == 400, response.text
    assert message in response.text


def test_official_client_gets_an_error_for_a_model_without_vision(running: Running):
    url = f"{running.account_url}/ai/v1"
    content: Any = [part()]
    with (
        OpenAI(base_url=url, api_key=running.tenants.secrets["good"], timeout=60) as client,
        pytest.raises(BadRequestError),
    ):
        client.chat.completions.create(model=CHATTY, messages=[{"role": "user", "content": content}])

"""Images in chats: every form in which clients send them, decoding, estimates, and models that take text only."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI

from engine.protocol.images import MediaFile
from engine.protocol.messages import MAX_IMAGES
from gateway.errors import Refusal
from gateway.inference.image_urls import ImageUrls
from tests.fakes.pictures import picture
from tests.fakes.receiver import Receiver
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
        ([part("http://example.com/cat.png")], "must be an https URL"),
        ([part("https://user@example.com/cat.png")], "must be an https URL"),
        ([part("https://169.254.169.254/latest/meta-data")], "its address is not public"),
        ([part("https://[::1]/cat.png")], "its address is not public"),
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


def test_image_is_fetched_from_its_url_and_through_redirects(
    client: httpx.Client, running: Running, receiver: Receiver
):
    receiver.files |= {"/picture": FILE, "/old?size=1": "/picture", "/older": f"{receiver.origin}/old?size=1"}
    response = chat(client, running, part(f"{receiver.origin}/older"), part(f"{receiver.origin}/picture"))
    assert response.status_code == 200, response.text
    (message,) = running.site.execute_of(response).task.messages
    assert [(image.width, image.height, image.url) for image in message.images] == [(64, 32, "")] * 2
    assert receiver.origin == f"https://{receiver.asked[-1]['host']}"
    assert "authorization" not in {name.lower() for name in receiver.asked[-1]}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/missing", "status 404"),
        ("/large", "more than 100000 bytes"),
        ("/circle", "redirects more than 3 times"),
        ("/inside", "its address is not public"),
        ("/plain", "must be an https URL"),
        ("/page", "neither PNG"),
    ],
)
def test_url_that_cannot_be_fetched_is_refused_with_the_reason(
    client: httpx.Client, running: Running, receiver: Receiver, path: str, message: str
):
    receiver.files |= {
        "/large": bytes(200_000), "/circle": "/circle", "/inside": "https://10.0.0.1/", "/page": b"<html>",
        "/plain": "http://127.0.0.1/",
    }  # fmt: skip
    response = chat(client, running, part(receiver.origin + path))
    assert response.status_code == 400, response.text
    assert message in response.text
    assert "messages/0/content" in response.text


async def test_no_url_is_fetched_unless_the_operator_allows_it():
    image_urls = ImageUrls(max_bytes=0)
    with pytest.raises(Refusal) as refused:
        await image_urls.fetcher("account")(MediaFile("image", "image", b"", url="https://example.com/cat.png"))
    assert "fetches no URLs" in refused.value.detail
    image_urls.close()


def test_official_client_gets_an_error_for_a_model_without_vision(running: Running):
    url = f"{running.account_url}/ai/v1"
    content: Any = [part()]
    with (
        OpenAI(base_url=url, api_key=running.tenants.secrets["good"], timeout=60) as client,
        pytest.raises(BadRequestError),
    ):
        client.chat.completions.create(model=CHATTY, messages=[{"role": "user", "content": content}])

"""`hearth worker dev` with the examples, unmodified tutorials, and a Worker with npm packages and local stores."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from scripts.fetch_node_clients import PACKAGES
from tests.clients.worker_dev import worker_dev
from tests.gateway.inference.test_text_generation import events_of
from tests.platform import Platform
from worker_runtime.node_js import Node

pytestmark = [pytest.mark.full, pytest.mark.timeout(240), pytest.mark.usefixtures("node")]

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "worker"
QUESTION = "What is the capital of France?"


def post(url: str, **more) -> httpx.Response:
    return httpx.post(url, timeout=120, **more)


def streamed_text(response: httpx.Response) -> str:
    *frames, done = events_of(response)
    assert done == "[DONE]"
    return "".join(json.loads(frame)["response"] for frame in frames)


def test_chat_example_worker_streams(platform: Platform):
    with worker_dev(platform, EXAMPLES / "chat.js") as worker:
        assert "Paris" in streamed_text(post(worker.url, json={"question": QUESTION}))
        assert post(worker.url, content=b"no json").status_code == 400
        assert post(worker.url, json={"question": ""}).status_code == 400
        assert httpx.get(worker.url, timeout=60).status_code == 405


def test_image_example_worker_describes_a_picture(platform: Platform, tmp_path: Path):
    with worker_dev(platform, EXAMPLES / "image.js") as worker:
        response = post(worker.url, content=PIXEL, headers={"content-type": "image/png"})
        assert response.status_code == 200, response.text
        body = response.json()
        assert (body["type"], body["width"], body["height"]) == ("image/png", 1, 1)
        assert body["response"].strip()
        assert post(worker.url, content=b"GIF").status_code == 415
        assert httpx.get(worker.url, timeout=60).status_code == 405


def test_tutorial_streaming_worker_runs_unmodified(platform_of_tutorials: Platform, test_data: Path):
    with worker_dev(platform_of_tutorials, test_data / "scripts" / "streaming_worker.js") as worker:
        assert "Paris" in streamed_text(post(worker.url, json={"question": QUESTION}))


def test_tutorial_image_worker_runs_unmodified(platform_of_tutorials: Platform, test_data: Path):
    image = (test_data / "images" / "horse.png").read_bytes()
    with worker_dev(platform_of_tutorials, test_data / "scripts" / "image_worker.js") as worker:
        response = post(worker.url, content=image, headers={"content-type": "image/png"})
        assert response.headers["content-type"] == "application/json"
        assert response.json()["response"].strip()
        assert httpx.get(worker.url, timeout=60).status_code == 405


def test_tutorial_python_script_runs_with_another_base_url(platform_of_tutorials: Platform, test_data: Path):
    source = (test_data / "scripts" / "query_assistant.py").read_text()
    assert source.count("https://api.cloudflare.com") == 1
    script: dict = {}
    origin = platform_of_tutorials.base_url.removesuffix("/client/v4")
    exec(compile(source.replace("https://api.cloudflare.com", origin), "query_assistant.py", "exec"), script)
    request = script["query_assistant"](QUESTION, platform_of_tutorials.account_id, platform_of_tutorials.api_token)
    assert "Paris" in asyncio.run(request)


def test_worker_with_packages_and_local_stores_persists_its_data(platform: Platform, node: Node):
    request = {"model": platform.chat_model, "question": QUESTION}
    script = PACKAGES / "ai_worker.js"
    with worker_dev(platform, script) as worker:
        first = post(worker.url, json=request).json()
        second = post(worker.url, json=request).json()
    with worker_dev(platform, script) as worker:
        third = post(worker.url, json=request).json()
    assert "Paris" in first["text"]
    assert [each["answered"] for each in (first, second, third)] == [1, 2, 3]
    assert [each["count"] for each in (first, second, third)] == [1, 2, 3]


def test_changed_worker_restarts_and_errors_are_reported(platform: Platform, tmp_path: Path):
    script = tmp_path / "worker.js"
    script.write_text('export default { fetch: () => new Response("one") };')
    (tmp_path / "wrangler.jsonc").write_text('{ "name": "own", "vars": { "X": "y" }, /* none */ "queues": {}, }')
    with worker_dev(platform, script) as worker:
        assert httpx.get(worker.url, timeout=60).text == "one"
        script.write_text("export default {")
        assert worker.next_event()["event"] == "broken"
        script.write_text("export default { fetch: (request, env) => new Response(env.X) };")
        assert worker.next_event() == {"event": "ready", "url": worker.url}
        assert httpx.get(worker.url, timeout=60).text == "y"


PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000000000200015e23b2a4"
    "0000000049454e44ae426082"
)

"""Batches, idempotency keys and disconnects with the official clients."""

from __future__ import annotations

from typing import Any

import cloudflare as cloudflare_sdk
import pytest
from cloudflare import Cloudflare
from openai import OpenAI

from tests.faults.test_platform_faults import num_held_blocks, num_running
from tests.platform import Platform, wait_for

pytestmark = pytest.mark.full


def post(cloudflare: Cloudflare, platform: Platform, body: dict, model: str, **options: Any) -> Any:
    """Send an `ai/run` request as the SDK does."""
    path = f"/accounts/{platform.account_id}/ai/run/{model}"
    return cloudflare.post(path, cast_to=object, body=body, options={"params": {"queueRequest": "true"}, **options})


def test_batch_of_embeddings_equals_single_calls(platform: Platform, cloudflare: Cloudflare):
    texts = [f"lamp number {number} of the old mill" for number in range(70)]
    body = {"requests": [{"text": text, "external_reference": text} for text in texts]}
    queued = post(cloudflare, platform, body, platform.embed_model)["result"]
    assert queued["status"] == "queued"

    def responses() -> Any:
        poll = {"request_id": queued["request_id"]}
        return post(cloudflare, platform, poll, platform.embed_model)["result"].get("responses")

    found = wait_for("the batch", responses)
    assert [item["external_reference"] for item in found] == texts
    direct = cloudflare.ai.run(platform.embed_model, account_id=platform.account_id, text=texts[3])
    assert found[3]["result"]["data"][0] == pytest.approx(direct["data"][0], abs=1e-4)  # type: ignore[index]


def test_idempotency_key_gives_one_response_for_two_requests(platform: Platform, openai: OpenAI):
    def ask() -> Any:
        return openai.chat.completions.with_raw_response.create(
            model=platform.chat_model,
            messages=[{"role": "user", "content": "Say something nobody said before."}],
            temperature=1.5,
            extra_headers={"idempotency-key": "a test of two requests"},
        )

    first, again = ask(), ask()
    assert first.content == again.content
    assert again.headers["idempotent-replayed"] == "true"
    assert len(wait_for("the entry", lambda: platform.usage_rows(first.headers["cf-ai-req-id"]))) == 1


def test_sdk_client_that_disconnects_frees_the_device(platform: Platform):
    body = {"prompt": "Count.", "max_tokens": 1500, "ignore_eos": True}
    path = f"/accounts/{platform.account_id}/ai/run/{platform.chat_model}"
    sdk = Cloudflare(base_url=platform.base_url, api_token=platform.api_token, timeout=0.5, max_retries=0)
    with sdk as client, pytest.raises(cloudflare_sdk.APITimeoutError):
        client.post(path, cast_to=object, body=body)
    wait_for("every block is free", lambda: num_held_blocks(platform) == 0 and num_running(platform) == 0)

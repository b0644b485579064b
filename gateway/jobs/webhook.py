"""Webhooks of background runs: the options of a request, and the body and signature that are sent. Pure.

A body is the response to the run together with the run's id. In the format `chat` each response of a text model is a
`chat.completion`, whatever the model's native format. Signatures have the format of Standard Webhooks: one for each
active key, over message id, timestamp and body. Sending is done by `webhook_sender.py`.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from engine.protocol.tasks.text_generation import TextGeneration
from gateway.envelope import encode
from gateway.errors import Reason, Refusal
from gateway.http.address_guard import MAX_URL_CHARACTERS, is_unambiguous
from gateway.jobs.webhook_http import WebhookClient

KEY_PREFIX = "whsec_"


class Webhook(Struct, frozen=True):
    """Target and format of a webhook. `is_single`: the run is one request instead of a list of requests."""

    url: str
    format: Literal["raw", "chat"]
    is_single: bool


def read_webhook(options: Mapping[str, Any], *, is_background: bool, is_single: bool) -> Webhook | None:
    """Return the webhook in the options of a run, if any. Raises Refusal."""
    url, form = options.get("webhookUrl"), options.get("webhookFormat")
    for name, value in (("webhookUrl", url), ("webhookFormat", form)):
        if value is not None and not is_background:
            raise Refusal(Reason.INPUT_INVALID, f"'/options/{name}' needs '/options/background'")
    if form not in (None, "raw", "chat"):
        raise Refusal(Reason.INPUT_INVALID, "'/options/webhookFormat' must be one of 'raw', 'chat'")
    if url is None:
        if form is not None:
            raise Refusal(Reason.INPUT_INVALID, "'/options/webhookFormat' needs '/options/webhookUrl'")
        return None
    return Webhook(_check_url(url), form or "raw", is_single)


def _check_url(url: Any) -> str:
    """Return an https URL whose host may be public. A host name is resolved and checked when the webhook is sent.

    Raises Refusal.
    """
    if not isinstance(url, str):
        raise Refusal(Reason.INPUT_INVALID, "Type mismatch of '/options/webhookUrl', expected 'string'")
    if len(url) > MAX_URL_CHARACTERS:
        raise Refusal(Reason.INPUT_INVALID, f"'/options/webhookUrl' must have <= {MAX_URL_CHARACTERS} characters")
    if not is_unambiguous(url):
        raise Refusal(Reason.INPUT_INVALID, "'/options/webhookUrl' must be an https URL of a public host")
    return url


def check_deliverable(webhook: Webhook, task_slug: str, client: WebhookClient) -> None:
    """Raise Refusal if the format does not suit the task, or the URL's address is not allowed."""
    if webhook.format == "chat" and task_slug != TextGeneration.slug:
        raise Refusal(Reason.INPUT_INVALID, "'/options/webhookFormat' must be 'raw' for this model's task")
    if not client.may_reach_host(webhook.url):
        raise Refusal(Reason.INPUT_INVALID, "'/options/webhookUrl' must be an https URL of a public host")


def webhook_body(
    webhook: Webhook, batch_id: str, model: str, created: int, items: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the body for a finished batch. `items` are its stored results, `created` is in Unix seconds."""
    results = [dict(item) for item in items]
    if webhook.format == "chat":
        results = [item | {"result": _as_chat(item["result"], batch_id, model, created)} for item in results]
    if webhook.is_single:
        (item,) = results
        result, success, errors = item["result"], item["success"], item.get("errors", [])
    else:
        result, success, errors = {"responses": results}, True, []
    head = {"request_id": batch_id, "model": model}
    return head | {"result": result, "success": success, "errors": errors, "messages": []}


def _as_chat(result: Any, batch_id: str, model: str, created: int) -> Any:
    """Return a native text response as a `chat.completion`; other results are returned as is. The native format has no
    finish reason, except that tool calls imply one."""
    if not isinstance(result, dict) or "response" not in result:
        return result
    response, calls = result["response"], result.get("tool_calls") or []
    content = response if isinstance(response, str | None) else _text(response)
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{batch_id.replace('-', '')}{number}",
                "type": "function",
                "function": {"name": call["name"], "arguments": _text(call["arguments"])},
            }
            for number, call in enumerate(calls)
        ]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls" if calls else None}
    head = {"id": f"chatcmpl-{batch_id}", "object": "chat.completion", "created": created, "model": model}
    return head | {"choices": [choice], "usage": result.get("usage")}


def secret_text(secret: bytes) -> str:
    """Return a key's secret in the form that receivers' libraries expect."""
    return KEY_PREFIX + base64.b64encode(secret).decode()


def signature_headers(message_id: str, at_s: int, body: bytes, secrets: Sequence[bytes]) -> list[tuple[str, str]]:
    """Return the headers of a delivery at `at_s` (Unix seconds); without secrets there is no signature."""
    headers = [("webhook-id", message_id), ("webhook-timestamp", str(at_s))]
    if secrets:
        signed = f"{message_id}.{at_s}.".encode() + body
        signatures = ["v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode() for key in secrets]
        headers.append(("webhook-signature", " ".join(signatures)))
    return headers


def _text(value: Any) -> str:
    return value if isinstance(value, str) else encode(value).decode()

"""Webhooks of runs in the background: what a request may ask for, and the body that is sent. Pure.

A body is what asking for the run would give, with the run's id; in the format `chat` each answer of a text model is a
`chat.completion`, whatever the model's own shape. Sends nothing: `sender.py` does.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

from msgspec import Struct

from gateway.envelope import encode
from gateway.errors import Reason, Refusal
from gateway.jobs.webhook_http import Outgoing

MAX_URL_CHARACTERS = 2048
_HOST = re.compile(r"(?=.{4,253}$)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z][a-z0-9-]{0,61}[a-z0-9]", re.IGNORECASE)
_PRINTABLE = re.compile(r"[!-~]+")


class Webhook(Struct, frozen=True):
    """Where answers go, and how. `is_single`: of a request that is no list of requests."""

    url: str
    format: Literal["raw", "chat"]
    is_single: bool


def webhook_in(options: Mapping[str, Any], *, is_background: bool, is_single: bool) -> Webhook | None:
    """What the options of a run ask for. Raises Refusal."""
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
    return Webhook(_checked(url), form or "raw", is_single)


def _checked(url: Any) -> str:
    """Raises Refusal for what is no address that could be public; what a name means is looked at when it is used."""
    if not isinstance(url, str):
        raise Refusal(Reason.INPUT_INVALID, "Type mismatch of '/options/webhookUrl', expected 'string'")
    if len(url) > MAX_URL_CHARACTERS:
        raise Refusal(Reason.INPUT_INVALID, f"'/options/webhookUrl' must have <= {MAX_URL_CHARACTERS} characters")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if (
        not _PRINTABLE.fullmatch(url)
        or not url.lower().startswith("https://")
        or "\\" in url
        or "@" in url.split("/", 3)[2]
        or port == 0
        or not (_HOST.fullmatch(host) or is_address(host))
    ):
        raise Refusal(Reason.INPUT_INVALID, "'/options/webhookUrl' must be an https URL of a public host")
    return url


def check_can_be_sent(webhook: Webhook, task_slug: str, outgoing: Outgoing) -> None:
    """Raises Refusal for a webhook that could not be sent of this task's answers, as far as that is known now."""
    if webhook.format == "chat" and task_slug != "text-generation":
        raise Refusal(Reason.INPUT_INVALID, "'/options/webhookFormat' must be 'raw' for this model's task")
    if not outgoing.may_reach_host(webhook.url):
        raise Refusal(Reason.INPUT_INVALID, "'/options/webhookUrl' must be an https URL of a public host")


def is_address(host: str) -> bool:
    """Whether a URL's host is an address and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def body_of(
    webhook: Webhook, batch_id: str, model: str, created: int, items: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What is sent of a finished batch. `items` are its answers as they are kept, `created` is in Unix seconds."""
    told = [dict(item) for item in items]
    if webhook.format == "chat":
        told = [item | {"result": _as_chat(item["result"], batch_id, model, created)} for item in told]
    if webhook.is_single:
        (item,) = told
        result, success, errors = item["result"], item["success"], item.get("errors", [])
    else:
        result, success, errors = {"responses": told}, True, []
    head = {"request_id": batch_id, "model": model}
    return head | {"result": result, "success": success, "errors": errors, "messages": []}


def _as_chat(result: Any, batch_id: str, model: str, created: int) -> Any:
    """A text model's own answer as a `chat.completion`; what is one already, or is no text, as it is. The own shape
    does not say why an answer ended, unless with calls."""
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


def _text(value: Any) -> str:
    return value if isinstance(value, str) else encode(value).decode()

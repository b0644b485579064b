"""Stream chat completions from a gateway's OpenAI route, with httpx and without the OpenAI SDK."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

_CONNECT_TIMEOUT_S = 10.0


class ChatRefused(Exception):
    """The gateway rejected the call, or ended the stream with an error. The message is the gateway's."""


class GatewayUnavailable(Exception):
    """The gateway does not respond, or the connection broke."""


@dataclass(frozen=True)
class Piece:
    """A part of a streamed response. `finish_reason` is set in the last part that has a choice."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str = ""


class ChatClient:
    """Calls one model of one account. Use as a context manager."""

    def __init__(self, base_url: str, account_id: str, api_token: str, options: Mapping[str, Any]) -> None:
        """`options` are the fields of each request besides the messages: `model` and sampling parameters."""
        self._options = options
        self._base_url = base_url
        self._client = httpx.Client(
            base_url=f"{base_url.rstrip('/')}/accounts/{account_id}/ai/v1",
            headers={"authorization": f"Bearer {api_token}"},
            timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S),
        )

    def __enter__(self) -> ChatClient:
        return self

    def __exit__(self, *_error: object) -> None:
        self._client.close()

    def stream(self, messages: Sequence[Mapping[str, str]]) -> Generator[Piece, None, None]:
        """Yield the response in parts. Closing the generator cancels the call.

        Raises ChatRefused, GatewayUnavailable.
        """
        body = {**self._options, "messages": list(messages), "stream": True}
        try:
            with self._client.stream("POST", "/chat/completions", json=body) as response:
                if response.status_code != 200:
                    raise ChatRefused(_message(response.read(), response.status_code))
                yield from _pieces(response.iter_lines())
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise GatewayUnavailable(f"the gateway at {self._base_url} does not respond: {error}") from None


def _pieces(lines: Iterator[str]) -> Iterator[Piece]:
    """Parse server-sent events. Raises ChatRefused for an error event and for a stream without an end."""
    for line in lines:
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        event = json.loads(data)
        if event.get("error"):
            raise ChatRefused(_message(data.encode(), 500))
        for choice in event.get("choices", ()):
            delta = choice.get("delta") or {}
            reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
            yield Piece(delta.get("content") or "", reasoning, choice.get("finish_reason") or "")
    raise ChatRefused("the response ended early")


def _message(body: bytes, status: int) -> str:
    """Return the message of an error in OpenAI's or Cloudflare's format."""
    try:
        parsed = json.loads(body)
        error = parsed.get("error") or parsed["errors"][0]
        return str(error["message"])
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return f"HTTP status {status}"

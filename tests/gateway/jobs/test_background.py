"""Background runs: queued at once, stored for polling, and sent to webhooks on public or allowed addresses."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import httpx
import pytest
from openai import InvalidWebhookSignatureError, OpenAI

from gateway.errors import Refusal
from gateway.jobs.webhook import Webhook, read_webhook, webhook_body
from gateway.jobs.webhook_http import WebhookClient
from tests.fakes.node import WORDS
from tests.fakes.receiver import Receiver
from tests.gateway.process import CHATTY, PARROT, VECTORS
from tests.gateway.site import Running
from tests.waiting import wait_until_blocking

TEXT = "".join(WORDS)


def ask(client: httpx.Client, running: Running, model: str, given: dict[str, Any], **options: Any) -> httpx.Response:
    body = {"model": model, "input": given, "options": {"background": True} | options}
    return client.post(f"{running.account_url}/ai/run", json=body)


def start_run(client: httpx.Client, running: Running, model: str, given: dict[str, Any], **options: Any) -> str:
    """Start a background run and return its id."""
    response = ask(client, running, model, given, **options)
    assert response.status_code == 200, response.text
    result = response.json()["result"]
    assert result == {"status": "queued", "request_id": response.headers["cf-ai-req-id"], "model": model}
    return str(result["request_id"])


def sent(receiver: Receiver, request_id: str) -> dict[str, Any]:
    (body,) = wait_until_blocking(lambda: receiver.about(request_id))
    return body


def delivered_result(
    client: httpx.Client, running: Running, receiver: Receiver, model: str, given: dict[str, Any], **options: Any
) -> dict[str, Any]:
    """Return the webhook of a successful run. A run that fails on a busy machine is repeated."""
    for _ in range(5):
        body = sent(receiver, start_run(client, running, model, given, webhookUrl=receiver.url, **options))
        if body["success"] or body["errors"][0]["code"] not in (3007, 3008, 3040):
            return body
    raise AssertionError(body)


def test_background_run_can_be_polled(client: httpx.Client, running: Running):
    request_id = start_run(client, running, PARROT, {"prompt": "one two", "stream": True})
    url = f"{running.account_url}/ai/run/{PARROT}"

    def responses() -> Any:
        return client.post(url, json={"request_id": request_id}).json()["result"].get("responses")

    (item,) = wait_until_blocking(responses)
    assert item["result"]["response"] == TEXT
    assert running.site.usage_row(f"{request_id}-0")["prompt_tokens"] == 2


def test_webhook_has_the_native_result_or_a_chat_completion(client: httpx.Client, running: Running, receiver: Receiver):
    body = delivered_result(client, running, receiver, PARROT, {"prompt": "one two"})
    request_id = body["request_id"]
    assert body["result"]["response"] == TEXT
    assert (body["model"], body["success"], body["errors"], body["messages"]) == (PARROT, True, [], [])
    headers = next(headers for headers, outcome in receiver.came if outcome["request_id"] == request_id)
    assert (headers["path"], headers["content-type"]) == ("/hook?key=1", "application/json")

    chat = {"webhookFormat": "chat"}
    messages = {"messages": [{"role": "user", "content": "x"}]}
    for model, given in ((PARROT, {"prompt": "one two"}), (CHATTY, messages)):
        result = delivered_result(client, running, receiver, model, given, **chat)["result"]
        assert (result["object"], result["choices"][0]["message"]["content"]) == ("chat.completion", TEXT)

    wrong = sent(receiver, start_run(client, running, PARROT, {"prompt": ""}, webhookUrl=receiver.url))
    assert (wrong["success"], wrong["result"], wrong["errors"][0]["code"]) == (False, {}, 5006)
    requests = {"requests": [{"prompt": "a"}, {"prompt": ""}]}
    both = sent(receiver, start_run(client, running, PARROT, requests, webhookUrl=receiver.url))["result"]["responses"]
    assert [item["id"] for item in both] == [0, 1]
    assert both[1]["errors"][0]["code"] == 5006


def test_failed_webhook_is_retried_and_redirects_are_not_followed(
    client: httpx.Client, running: Running, receiver: Receiver
):
    receiver.statuses = [307]
    request_id = start_run(client, running, PARROT, {"prompt": "x"}, webhookUrl=receiver.url)
    first, again = wait_until_blocking(lambda: len(receiver.about(request_id)) == 2 and receiver.about(request_id))
    assert first == again
    assert not receiver.statuses


def test_unresponsive_webhook_target_does_not_delay_others(client: httpx.Client, running: Running, receiver: Receiver):
    def is_delivered_meanwhile() -> bool:
        """Return True if another webhook is delivered while an unresponsive target is waited for."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            silent.settimeout(60)
            url = f"https://127.0.0.1:{silent.getsockname()[1]}/"
            start_run(client, running, PARROT, {"prompt": "x"}, webhookUrl=url)
            with silent.accept()[0] as held:
                sent(receiver, start_run(client, running, PARROT, {"prompt": "x"}, webhookUrl=receiver.url))
                held.settimeout(0)
                try:
                    while held.recv(4096):
                        pass
                except BlockingIOError:
                    return True
                return False

    assert any(is_delivered_meanwhile() for _ in range(3))  # repeated because the machine may be suspended


def test_webhook_signature_is_verified_by_the_standard_library(running: Running, receiver: Receiver):
    """No signature without a key, two signatures during a rotation, then one by the new key."""
    with httpx.Client(headers=running.headers("write"), timeout=60) as client:
        url = f"{running.account_url}/ai/webhooks/key"
        client.delete(url)  # removes the key of another test
        assert client.get(url).status_code == 404

        def made(**body: Any) -> str:
            response = client.put(url, json=body or None).json()["result"]
            assert client.get(url).json()["result"]["id"] == response["id"]
            assert "secret" not in client.get(url).json()["result"]
            return str(response["secret"])

        def delivered() -> tuple[bytes, dict[str, str]]:
            request_id = start_run(client, running, PARROT, {"prompt": "one"}, webhookUrl=receiver.url)
            sent(receiver, request_id)
            index = next(i for i, (_, body) in enumerate(receiver.came) if body["request_id"] == request_id)
            headers = receiver.came[index][0]
            assert headers["webhook-id"] == f"msg_{request_id}"
            return receiver.bodies[index], headers

        assert "webhook-signature" not in delivered()[1]
        first, second = made(), made(overlap_s=60)
        body, headers = delivered()
        verifier = OpenAI(base_url="http://x", api_key="x").webhooks
        for secret in (first, second):
            verifier.verify_signature(body, headers, secret=secret)
        with pytest.raises(InvalidWebhookSignatureError):
            verifier.verify_signature(body + b" ", headers, secret=second)
        third = made(overlap_s=0)
        body, headers = delivered()
        event: Any = verifier.unwrap(body, headers, secret=third)
        assert event.request_id == headers["webhook-id"].removeprefix("msg_")
        for secret in (first, second):
            with pytest.raises(InvalidWebhookSignatureError):
                verifier.verify_signature(body, headers, secret=secret)
        assert client.put(url, json={"overlap_s": -1}).status_code == 400
        assert client.delete(url).status_code == 200
        assert "webhook-signature" not in delivered()[1]


def test_webhooks_are_not_sent_to_private_addresses(client: httpx.Client, running: Running):
    with socket.create_server(("127.0.0.2", 0)) as canary:
        port = canary.getsockname()[1]
        for host in ("127.0.0.2", "[::ffff:127.0.0.2]", "[::1]", "10.0.0.1", "169.254.169.254", "0.0.0.0"):
            response = ask(client, running, PARROT, {"prompt": "x"}, webhookUrl=f"https://{host}:{port}/")
            assert (response.status_code, response.json()["errors"][0]["code"]) == (400, 5006)
        # The lookup fails if the name server does not know the name or does not respond.
        outcomes = ("address not allowed", "unreachable", "timeout")
        before = sum(running.gateway.metric(f'hearth_webhooks_total{{outcome="{why}"}}') for why in outcomes)
        # A public name of a private address, which is found only by the lookup.
        start_run(client, running, PARROT, {"prompt": "x"}, webhookUrl=f"https://localhost.localdomain:{port}/")
        wait_until_blocking(
            lambda: (
                sum(running.gateway.metric(f'hearth_webhooks_total{{outcome="{why}"}}') for why in outcomes) > before
            ),
            60,
        )
        canary.settimeout(0)
        with pytest.raises(BlockingIOError):
            canary.accept()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"background": False, "webhookUrl": "https://x.example"}, "webhookUrl"),
        ({"background": False, "webhookFormat": "raw"}, "webhookFormat"),
        ({"webhookFormat": "chat"}, "webhookFormat"),
        ({"webhookUrl": "https://x.example", "webhookFormat": "xml"}, "webhookFormat"),
        ({"webhookUrl": 5}, "webhookUrl"),
        ({"webhookUrl": "http://x.example/"}, "webhookUrl"),
        ({"webhookUrl": "https://x.example/" + "y" * 2048}, "webhookUrl"),
        ({"webhookUrl": "https://localhost/"}, "webhookUrl"),
        ({"webhookUrl": "https://u:p@x.example/"}, "webhookUrl"),
    ],
)
def test_invalid_options_are_named(client: httpx.Client, running: Running, options: dict[str, Any], field: str):
    response = ask(client, running, PARROT, {"prompt": "x"}, **options)
    (error,) = response.json()["errors"]
    assert (response.status_code, error["code"]) == (400, 5006)
    assert f"'/options/{field}'" in error["message"]


def test_webhook_chat_format_requires_a_text_model(client: httpx.Client, running: Running):
    response = ask(client, running, VECTORS, {"text": "x"}, webhookUrl="https://x.example/", webhookFormat="chat")
    assert "'/options/webhookFormat'" in response.json()["errors"][0]["message"]


@pytest.mark.parametrize(
    "url",
    ["https://x.example\\@y.example/", "https://x.example:0/", "https://x.example:99999/", "https://x..example/",
     "https://[::1/", "https://x.example/\r\nHost: y", "https://x.example/é", "https:///", "https://1234/",
     "//x.example/", "ftp://x.example/", "https://2130706433/", "https://0x7f.1/", "https://x.example%00/"],
)  # fmt: skip
def test_url_with_an_ambiguous_host_is_rejected(url: str):
    with pytest.raises(Refusal):
        read_webhook({"webhookUrl": url}, is_background=True, is_single=True)


def test_translated_and_tunneled_internal_addresses_are_refused():
    outgoing = WebhookClient()
    inside = "127.0.0.1 10.1.2.3 172.16.0.1 192.168.0.1 169.254.0.1 100.64.0.1 0.0.0.0 224.0.0.1 255.255.255.255 :: ::1"
    inside += " ::127.0.0.1 ::10.0.0.1 fec0::1 64:ff9b:1::10.0.0.1 fe80::1 fc00::1 ff02::1 ::ffff:10.0.0.1 2002:a00:1::"
    inside += " 64:ff9b::10.0.0.1 64:ff9b::7f00:1"
    for text in inside.split():
        assert not outgoing.may_reach(ipaddress.ip_address(text)), text
    for text in ("1.1.1.1", "2606:4700::1111", "64:ff9b::1.1.1.1"):
        assert outgoing.may_reach(ipaddress.ip_address(text)), text
    assert WebhookClient(["10.0.0.0/8"]).may_reach(ipaddress.ip_address("10.1.2.3"))
    outgoing.close()


def test_tool_calls_are_rendered_as_in_chat_completions():
    result = {"response": None, "tool_calls": [{"name": "f", "arguments": {"a": 1}}], "usage": {"total_tokens": 3}}
    items = [{"id": 0, "success": True, "result": result}]
    outcome = webhook_body(Webhook("https://x.example/", "chat", True), "1-2", "@cf/a/b", 7, items)["result"]
    (choice,) = outcome["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a":1}'}

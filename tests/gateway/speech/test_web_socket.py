"""Live speech over WebSockets: events, limits, revocation, close codes, and what is charged."""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import socket
import struct
from typing import Any

import httpx
import pytest

from storage.database import Database
from tenants.credentials import api_tokens
from tests.gateway.process import CHATTY, LISTENER, PARROT, READER, VAD
from tests.gateway.site import Running
from tests.waiting import wait_until_blocking
from tests.web_socket import Rejected, WebSocketClient

SECOND = 16_000


def loud(seconds: float) -> bytes:
    return array.array("h", [8000, -8000] * int(seconds * SECOND / 2)).tobytes()


def quiet(seconds: float) -> bytes:
    return bytes(2 * int(seconds * SECOND))


def open_socket(
    running: Running, *, token: str = "good", url: str = "", model: str = LISTENER, **query: Any
) -> WebSocketClient:
    base = f"{url}/client/v4/accounts/{running.tenants.account_id}" if url else running.account_url
    secret = running.tenants.secrets.get(token, token)
    return WebSocketClient(f"{base}/ai/run/{model}", secret, query)


def test_utterances_have_partial_and_final_transcripts_and_one_usage_entry_each(running: Running):
    with open_socket(running, language="en") as client:
        assert client.receive_until("session.started")[0]["model"] == LISTENER
        client.send(quiet(0.5) + loud(1.5))
        partial = client.receive_until("transcript.partial")
        assert partial[0]["type"] == "speech.started"
        assert 0.1 <= partial[0]["time"] <= 0.5
        client.send(quiet(1))
        events = client.receive_until("usage")
        final = next(event for event in events if event["type"] == "transcript.final")
        assert final["text"].endswith("samples in en.")
        assert final["start"] <= 0.5
        assert 2.0 <= final["end"] <= 2.3
        assert final["segments"][0]["words"][0]["start"] == pytest.approx(final["start"], abs=0.02)
        usage = events[-1]
        assert 1500 <= usage["audio_ms"] <= 2200
        assert usage["neurons"] == pytest.approx(2 * usage["audio_ms"] / 1000)
        client.send(loud(1) + quiet(1))
        second = client.receive_until("usage")[-1]
        assert (second["utterance"], second["request_id"] == usage["request_id"]) == (2, False)
        client.send({"type": "close"})
        client.receive_all()
        assert client.closed == (1000, "closed as requested")
    for event in (usage, second):
        row = running.site.usage_row(event["request_id"])
        assert (row["status"], row["model"], row["micro_neurons"]) == ("stop", LISTENER, 2000 * event["audio_ms"])
        assert row["account_id"] == running.tenants.account_id


@pytest.mark.full
def test_speech_after_the_response_began_ends_the_response(running: Running):
    options = {"chat_model": CHATTY, "instructions": json_script(gap_s=0.2, repeat=40)}
    with open_socket(running, **options) as client:
        client.send(loud(1) + quiet(0.8))
        client.receive_until("response.text")
        client.send(loud(0.5))
        events = client.receive_until("response.ended")
        assert events[-1]["reason"] == "interrupted"
        assert "speech.started" not in [event["type"] for event in events[:-1] if event.get("utterance") == 1]
        client.receive_until("speech.started")


def json_script(**fields: Any) -> str:
    return "!" + json.dumps(fields)


def test_chat_model_responds_to_each_utterance_and_remembers_the_conversation(running: Running):
    with open_socket(running, chat_model=CHATTY, instructions="Be brief.") as client:
        client.send(loud(1) + quiet(0.8))
        events = client.receive_until("response.ended")
        assert next(e["type"] for e in events if e["type"].startswith("response")) == "response.started"
        assert "".join(e["text"] for e in events if e["type"] == "response.text") == "Hello from the fake node ✓"
        usage = [e for e in events if e["type"] == "usage"]
        assert [e["model"] for e in usage] == [LISTENER, CHATTY]
        assert usage[1]["completion_tokens"] == 6
        client.send(loud(1) + quiet(0.8))
        client.receive_until("response.ended")
    assert running.site.usage_row(usage[1]["request_id"])["model"] == CHATTY
    chats = [e.task for node in running.site.nodes.values() for e in node.executes if e.model == CHATTY]
    roles = [message.role for message in max(chats, key=lambda task: len(task.messages or ())).messages]
    assert roles == ["system", "user", "assistant", "user"]


def test_speech_model_speaks_the_response_and_is_charged(running: Running):
    with open_socket(running, chat_model=CHATTY, speech_model=READER) as client:
        client.send(loud(1) + quiet(0.8))
        started = client.receive_until("response.started")[-1]
        assert started["sample_rate"] == 24_000
        audio, usages = b"", []
        while (event := client.receive()) is not None:
            if isinstance(event, bytes):
                audio += event
            elif event["type"] == "usage":
                usages.append(event)
            elif event["type"] == "response.ended":
                assert event["reason"] == "completed"
                break
    assert len(audio) == 48_000  # a second
    assert [usage["model"] for usage in usages] == [READER, CHATTY]
    assert running.site.usage_row(usages[0]["request_id"])["model"] == READER


@pytest.mark.full
def test_speech_of_the_user_stops_the_speech_of_the_response(running: Running):
    options = {"chat_model": CHATTY, "speech_model": READER, "instructions": json_script(tokens=["One. "], repeat=9)}
    with open_socket(running, **options) as client:
        client.send(loud(1) + quiet(0.8))
        client.receive_until("response.started")
        while not isinstance(client.receive(), bytes):
            continue
        client.send(loud(0.5))
        assert client.receive_until("response.ended")[-1]["reason"] == "interrupted"
        assert client.receive_until("speech.started")[-1]["utterance"] == 2


def test_client_can_end_an_utterance_early(running: Running):
    with open_socket(running, interim_results="false") as client:
        client.send(loud(1))
        client.receive_until("speech.started")
        client.send({"type": "finalize"})
        events = client.receive_until("usage")
        assert [event["type"] for event in events] == ["transcript.final", "speech.ended", "usage"]


def test_audio_of_another_sample_rate_is_announced_to_the_node(running: Running):
    with open_socket(running, sample_rate=48_000) as client:
        client.send(bytes(2 * 4800))
        wait_until_blocking(
            lambda: any(
                getattr(e.task, "sample_rate", 0) == 48_000 and len(e.task.audio) == 9600
                for node in running.site.nodes.values()
                for e in node.executes
            )
        )


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ({"sample_rate": 4000}, 400, "sample_rate"),
        ({"sample_rate": 96_000}, 400, "sample_rate"),
        ({"sample_rate": "fast"}, 400, "sample_rate"),
        ({"encoding": "opus"}, 400, "encoding"),
        ({"colour": "red"}, 400, "colour"),
        ({"silence_ms": 10}, 400, "silence_ms"),
        ({"speech_model": PARROT}, 400, "needs 'chat_model'"),
        ({"chat_model": "@cf/test/none"}, 400, "No such model"),
        ({"chat_model": LISTENER}, 400, "task"),
    ],
)
def test_invalid_options_are_refused_before_the_upgrade(
    running: Running, query: dict[str, Any], status: int, message: str
):
    with pytest.raises(Rejected) as rejected:
        open_socket(running, **query)
    assert rejected.value.status == status
    assert message in rejected.value.errors[0]["message"]


@pytest.mark.parametrize(
    ("token", "status"),
    [("revoked", 401), ("expired", 401), ("scopeless", 403), ("other", 403), ("x", 400), ("", 400)],
)
def test_callers_without_permission_are_refused_as_on_other_routes(running: Running, token: str, status: int):
    with pytest.raises(Rejected) as rejected:
        open_socket(running, token=token)
    assert rejected.value.status == status


def test_models_of_other_tasks_are_refused(running: Running):
    with pytest.raises(Rejected, match="The task of this model is Text Generation"):
        open_socket(running, model=PARROT)


def test_request_without_an_upgrade_is_refused(running: Running, client: httpx.Client):
    response = client.get(f"{running.account_url}/ai/run/{LISTENER}")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    "changes", [{"sec-websocket-version": "12"}, {"sec-websocket-key": None}, {"connection": "keep-alive"}]
)
def test_malformed_handshakes_are_refused(running: Running, client: httpx.Client, changes: dict[str, Any]):
    headers = {
        "upgrade": "websocket",
        "connection": "Upgrade",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    } | changes
    headers = {name: value for name, value in headers.items() if value is not None}
    response = client.get(f"{running.account_url}/ai/run/{LISTENER}", headers=headers)
    assert response.status_code == 400


@pytest.mark.full
def test_missing_voice_activity_model_is_named_with_the_remedy(running: Running):
    with (
        running.beside(HEARTH_VOICE_ACTIVITY_MODEL="@cf/test/none") as gateway,
        pytest.raises(Rejected, match="hearth model add @cf/test/none"),
    ):
        open_socket(running, url=gateway.url)


@pytest.mark.parametrize("message", ["not json", '{"type": "other"}', b"123"])
def test_unknown_messages_close_with_unsupported_data(running: Running, message: str | bytes):
    with open_socket(running) as client:
        client.receive_until("session.started")
        client.send(message)
        client.receive_all()
        assert client.closed is not None
        assert client.closed[0] == 1003


def test_huge_messages_close_with_too_big(running: Running):
    with open_socket(running) as client:
        client.receive_until("session.started")
        client.send(bytes(300_000))
        client.receive_all()
        assert client.closed is not None
        assert client.closed[0] == 1009


def test_unmasked_frames_close_with_a_protocol_error(running: Running):
    with open_socket(running) as client:
        client.receive_until("session.started")
        client.send_raw(b"\x82\x02ab")
        client.receive_all()
        assert client.closed is not None
        assert client.closed[0] == 1002


def test_pings_are_answered(running: Running):
    with open_socket(running) as client:
        client.receive_until("session.started")
        assert client.ping(b"are you there") == b"are you there"


@pytest.mark.full
def test_idle_and_long_sessions_are_closed(running: Running):
    with running.beside(HEARTH_WEB_SOCKET_IDLE_S="0.5") as gateway, open_socket(running, url=gateway.url) as client:
        client.receive_all()
        assert client.closed == (1001, "no message for 0.5 seconds")
    with running.beside(HEARTH_WEB_SOCKET_MAX_S="0.5") as gateway, open_socket(running, url=gateway.url) as client:
        client.receive_all()
        assert client.closed == (1001, "the session lasted 0.5 seconds")


@pytest.mark.full
def test_draining_gateway_closes_idle_sessions(running: Running):
    with running.beside() as gateway, open_socket(running, url=gateway.url) as client:
        client.receive_until("session.started")
        gateway.terminate()
        client.receive_all()
        assert client.closed == (1012, "this gateway is shutting down")


@pytest.mark.full
def test_revoked_token_ends_its_sessions(running: Running):
    async def create() -> Any:
        from tests.gateway.process import PEPPER

        database = Database.connect(running.site.database_url)
        try:
            return await api_tokens.create(
                database, PEPPER, running.tenants.account_id, "short", ["Workers AI Read"], None, "account"
            )
        finally:
            await database.close()

    created = asyncio.run(create())
    with open_socket(running, token=created.secret) as client:
        client.receive_until("session.started")
        url = f"{running.account_url}/tokens/{created.token.api_token_id}"
        assert httpx.delete(url, headers=running.headers("keeper"), timeout=60).status_code == 200
        client.receive_all()
        assert client.closed is not None
        assert client.closed[0] == 1008


def test_disconnected_client_is_charged_for_its_audio_so_far_and_frees_its_slot(running: Running):
    with open_socket(running) as client:
        client.send(loud(2))
        partial = client.receive_until("transcript.partial")
        assert partial
    wait_until_blocking(lambda: running.gateway.metric("hearth_web_sockets") == 0)
    wait_until_blocking(lambda: running.gateway.metric("hearth_calls_in_flight") == 0)


@pytest.mark.full
def test_sessions_count_as_concurrent_calls_of_the_gateway(running: Running):
    with running.beside(HEARTH_MAX_CALLS="2") as gateway, contextlib.ExitStack() as sockets:
        for _ in range(2):
            sockets.enter_context(open_socket(running, url=gateway.url))
        with pytest.raises(Rejected) as rejected:
            sockets.enter_context(open_socket(running, url=gateway.url))
        assert rejected.value.status == 429
        assert "retry-after" in rejected.value.headers


@pytest.mark.full
def test_utterance_over_a_rate_limit_is_an_error_and_the_session_goes_on(running: Running):
    limits = "automatic-speech-recognition=1/3600"
    with running.beside(HEARTH_RATE_LIMITS=limits) as gateway, open_socket(running, url=gateway.url) as client:
        client.send(loud(1) + quiet(0.8))
        client.receive_until("usage")
        client.send(loud(1) + quiet(0.8))
        error = client.receive_until("error")[-1]
        assert (error["status"], error["code"], error["utterance"]) == (429, 3040, 2)
        assert error["retry_after_s"] > 0


@pytest.mark.full
def test_slow_reader_is_disconnected(running: Running):
    options = {"chat_model": CHATTY, "instructions": "none"}
    with (
        running.beside(HEARTH_CLIENT_STALL_TIMEOUT_S="1") as gateway,
        open_socket(running, url=gateway.url, **options) as client,
    ):
        client.receive_until("session.started")
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        # Pings of the largest size: every pong must be read.
        mask = b"\0\0\0\0"
        ping = b"\x89\xfd" + mask + bytes(125)
        try:
            for _ in range(2000):
                client.send_raw(ping * 400)
        except (ConnectionError, TimeoutError):
            pass
        wait_until_blocking(lambda: gateway.metric("hearth_web_sockets") == 0)


def test_binding_opens_a_socket_with_its_inputs_in_the_query(running: Running):
    body = json.dumps({"inputs": {"sample_rate": 16000, "language": "en"}, "options": {"websocket": True}})
    headers = {
        "host": "workers-binding.ai",
        "cf-consn-model-id": LISTENER,
        "x-hearth-account": running.tenants.account_id,
        "cf-consn-sdk-version": "2.0.0",
    }
    headers.pop("host")
    url = f"{running.gateway.url}/run"
    query = {"version": 3, "body": body}
    with WebSocketClient(url, running.tenants.secrets["good"], query, headers) as client:
        client.send(loud(1) + quiet(0.8))
        events = client.receive_until("transcript.final")
        assert events[-1]["text"].endswith("in en.")


def test_voice_activity_model_also_runs_by_itself(running: Running, client: httpx.Client):
    header = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + 64000, b"WAVE", b"fmt ", 16, 1, 1, 16000, 32000, 2, 16,
                         b"data", 64000)  # fmt: skip
    response = client.post(f"{running.account_url}/ai/run/{VAD}", content=header + loud(2))
    assert response.json()["result"] == {"speech": [{"start": 0.0, "end": 1.984}], "duration": 2.0}

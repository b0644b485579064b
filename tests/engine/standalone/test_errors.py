"""Every failure of a call has a status, and names its field as OpenAI does."""

from __future__ import annotations

import json
import typing

import pytest

from engine.protocol.events import Failed, FailureReason
from engine.standalone.errors import HttpError, error_frame, of_failure, unknown_model


@pytest.mark.parametrize("reason", typing.get_args(FailureReason))
def test_every_reason_has_a_status_and_a_text(reason: FailureReason):
    for message in ("", "what went wrong"):
        error = of_failure(Failed(reason, message))
        assert 400 <= error.status < 600
        assert error.message
        assert json.loads(error.body())["error"]["message"] == error.message


def test_a_process_that_ended_is_no_defect_of_the_request():
    assert of_failure(Failed("internal", "it ended", is_retryable=True)).status == 503
    assert of_failure(Failed("internal", "a defect")).status == 500


def test_an_input_that_ends_processes_is_the_requests_own_fault():
    assert of_failure(Failed("internal", "it ended", is_retryable=True, num_crashes=1)).status == 503
    assert of_failure(Failed("internal", "refused", num_crashes=2)).status == 400


@pytest.mark.parametrize("reason", ["out_of_capacity", "draining", "model_unavailable", "aborted"])
def test_who_may_come_back_is_told_when(reason: FailureReason):
    headers = dict(of_failure(Failed(reason)).headers())
    assert int(headers[b"retry-after"]) >= 1


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("'/messages/0/role' must be one of system, user", "messages[0].role"),
        ("Type mismatch of '/max_tokens', expected 'integer'", "max_tokens"),
        ("required properties at '/' are 'messages'", "messages"),
        ("Type mismatch of '/tools/3/function', expected 'object'", "tools[3].function"),
        ("the prompt is empty", None),
    ],
)
def test_the_field_at_fault_is_named_as_openai_does(message: str, param: str | None):
    assert HttpError(400, message).param == param


def test_a_model_that_is_not_here_is_openai_s_error():
    error = unknown_model("gpt-x")
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
    assert error_frame(error).startswith(b'data: {"error":{"message":"The model \'gpt-x\' does not exist."')

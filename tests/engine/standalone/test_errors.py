"""Every failure of a call has an HTTP status, and an invalid field is named in OpenAI's notation."""

from __future__ import annotations

import json
import typing

import pytest

from engine.protocol.events import Failed, FailureReason
from engine.standalone.errors import HttpError, error_frame, of_failure, unknown_model


@pytest.mark.parametrize("reason", typing.get_args(FailureReason))
def test_every_failure_reason_has_a_status_and_a_message(reason: FailureReason):
    for message in ("", "what went wrong"):
        error = of_failure(Failed(reason, message))
        assert 400 <= error.status < 600
        assert error.message
        assert json.loads(error.body())["error"]["message"] == error.message


def test_a_process_that_ended_is_reported_as_503_and_a_defect_as_500():
    assert of_failure(Failed("internal", "it ended", is_retryable=True)).status == 503
    assert of_failure(Failed("internal", "a defect")).status == 500


def test_an_input_that_repeatedly_crashes_processes_is_reported_as_400():
    assert of_failure(Failed("internal", "it ended", is_retryable=True, num_crashes=1)).status == 503
    assert of_failure(Failed("internal", "refused", num_crashes=2)).status == 400


@pytest.mark.parametrize("reason", ["out_of_capacity", "draining", "model_unavailable", "aborted"])
def test_retryable_failures_have_a_retry_after_header(reason: FailureReason):
    assert int(of_failure(Failed(reason)).response().headers["retry-after"]) >= 1


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
def test_the_invalid_field_is_named_in_openai_s_notation(message: str, param: str | None):
    assert HttpError(400, message).param == param


def test_an_unknown_model_is_openai_s_not_found_error():
    error = unknown_model("gpt-x")
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
    assert error_frame(error).startswith(b'data: {"error":{"message":"The model \'gpt-x\' does not exist."')

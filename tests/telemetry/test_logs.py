import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest

from telemetry.logs import configure_logs, redact


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Return the stream of the root logger during a test, and restore its handlers and level afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    written = io.StringIO()
    configure_logs("gateway", "debug", written)
    yield written
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_record_is_one_json_line_with_its_extra_fields(stream: io.StringIO):
    logging.getLogger("gateway.app").info("call %s ended", "r1", extra={"duration_ms": 12, "model": "m"})
    (line,) = lines(stream)
    assert line["process"] == "gateway"
    assert line["message"] == "call r1 ended"
    assert (line["duration_ms"], line["model"]) == (12, "m")


def test_control_characters_cannot_start_a_new_line(stream: io.StringIO):
    logging.getLogger("x").warning('name\n{"level": "error"}\r\x1b[31m\u2028')
    assert len(stream.getvalue().splitlines()) == 1
    assert stream.getvalue().isascii()


def test_credentials_are_redacted_in_messages_fields_and_exceptions(stream: io.StringIO):
    secret = "cfut_" + "a1B2" * 11
    log = logging.getLogger("x")
    log.info("no answer from redis://:hunter2@store:6379/0 or postgresql://ann:hunter2@db/x")
    log.info("header was Bearer abc.def", extra={"authorization": "whatever", "note": f"token {secret}"})
    try:
        raise ValueError(secret)
    except ValueError:
        log.exception("refused")
    text = stream.getvalue()
    assert secret not in text
    assert "abc.def" not in text
    assert "whatever" not in text
    assert "hunter2" not in text
    assert "@db/x" in text
    assert "ValueError" in text


def test_redact_leaves_ordinary_text_alone():
    text = "a file cfut_abc, a model @cf/hearth/spark at http://[::1]:8787/client/v4/@cf and 128 tokens"
    assert redact(text) == text


def test_logs_go_to_standard_error_by_default(stream: io.StringIO, capsys: pytest.CaptureFixture[str]):
    configure_logs("node", stream=sys.stderr)
    logging.getLogger("x").info("hello")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err)["process"] == "node"

"""Structured logs: one JSON object per line, with secrets redacted and control characters escaped.

Prompts and responses are never logged, only lengths and ids. Pass extra fields as `extra={...}`.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

_TOKEN_PATTERN = re.compile(r"\b(cfut|cfat|cfk|cfoat)_[A-Za-z0-9]{8,}\b|(?i:bearer\s+)\S+")
_URL_PASSWORD = re.compile(r"(?<=://)[^\s/@]*:[^\s/@]+(?=@)")
_SECRET_KEYS = ("secret", "password", "authorization", "api_token", "pepper")
# Attributes of every log record, and `color_message`, which uvicorn adds.
_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


def redact(text: str) -> str:
    """Return `text` with everything that looks like a credential replaced by [redacted]."""
    if "://" in text:
        text = _URL_PASSWORD.sub("[redacted]", text)
    return _TOKEN_PATTERN.sub("[redacted]", text)


class JsonFormatter(logging.Formatter):
    """Format a record as one line of JSON: time, level, process, logger, message, then the extra fields."""

    def __init__(self, process_name: str) -> None:
        super().__init__()
        self._process_name = process_name

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._process_name,
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        for key, value in vars(record).items():
            if key in _STANDARD:
                continue
            entry[key] = "[redacted]" if any(word in key.lower() for word in _SECRET_KEYS) else _plain(value)
        if record.exc_info:
            entry["exception"] = redact(self.formatException(record.exc_info))
        return json.dumps(entry, ensure_ascii=True)


def _plain(value: Any) -> Any:
    if isinstance(value, int | float | bool) or value is None:
        return value
    return redact(str(value))


def configure_logs(process_name: str, level: str = "info", stream: TextIO | None = None) -> None:
    """Send all logs of this process as JSON lines to `stream` (default: standard error)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(process_name))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("uvicorn.access", "botocore", "boto3", "urllib3", "httpx", "aiosqlite"):
        logging.getLogger(noisy).setLevel(logging.WARNING)

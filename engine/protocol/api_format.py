"""The API families that a client can speak. Decides the form of request bodies, responses and errors."""

from __future__ import annotations

import enum


class ApiFormat(enum.Enum):
    """`NATIVE` is Workers AI, whose responses are wrapped in `{result, success, errors, messages}`."""

    NATIVE = "native"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"

"""The load generator for gateways finds the end of a response and counts its events wherever its bytes are split."""

from __future__ import annotations

import pytest

from bench.gateway import _FIRST, _HEAD, _LAST, _NEXT, _WHOLE, ResponseReader


@pytest.mark.parametrize("size", [1, 3, 7, 100, 10_000])
def test_responses_and_events_are_found_at_any_split(size: int):
    reader = ResponseReader()
    for response, num_events in ((_WHOLE, 0), (_HEAD + _FIRST + 3 * _NEXT + _LAST, 6), (_WHOLE, 6)):
        pieces = [response[at : at + size] for at in range(0, len(response), size)]
        assert [reader.feed(piece) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        assert (reader.status, reader.num_events) == (200, num_events)

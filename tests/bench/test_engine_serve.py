"""The load generator for servers counts the chunks of a stream wherever its bytes are split."""

from __future__ import annotations

import pytest

from bench.engine_serve import StreamReader, StreamResult, figures, percentiles

STREAM = (
    b'8c\r\ndata: {"id":"1","choices":[{"index":0,"text":"a \\"error\\" data: {"}],"usage":null}\n\n\r\n'
    b'1\r\ndata: {"id":"1","choices":[{"index":0,"text":"b"}],"usage":null}\n\n\r\n'
    b'2\r\ndata: {"id":"1","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
    b"data: [DONE]\n\n\r\n0\r\n\r\n"
)


@pytest.mark.parametrize("size", [1, 2, 7, 50, 1000])
def test_chunks_are_counted_at_any_split(size: int):
    stream = StreamReader()
    count = sum(stream.feed(STREAM[at : at + size]) for at in range(0, len(STREAM), size))
    assert count == 2
    assert stream.is_done
    assert stream.usage == {"prompt_tokens": 3, "completion_tokens": 2}


def test_stream_with_an_error_is_not_a_result():
    with pytest.raises(ValueError, match="broke"):
        StreamReader().feed(b'data: {"error":{"message":"broke"}}\n\n')


def test_figures_cover_all_streams():
    responses = [StreamResult([0.1, 0.2, 0.4], 10, 3, 0.4), StreamResult([0.3, 0.4, 0.5], 20, 3, 0.5)]
    found = figures(responses, 2.0)
    assert (found["output_tokens_per_s"], found["total_tokens_per_s"], found["requests_per_s"]) == (3.0, 18.0, 1.0)
    assert found["ttft_ms"]["max"] == 300.0
    assert found["itl_ms"]["max"] == 200.0
    assert found["tpot_ms"]["p99"] == 150.0


def test_percentiles_are_observed_values():
    found = percentiles([number / 1000 for number in range(1, 101)])
    assert found == {"p50": 51.0, "p90": 91.0, "p99": 100.0, "max": 100.0}
    assert percentiles([]) == {"p50": 0.0, "p90": 0.0, "p99": 0.0, "max": 0.0}

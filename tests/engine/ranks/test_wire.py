"""Messages between replica and rank survive the encoding."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine.config import EngineConfig
from engine.protocol.output_format import Constraint
from engine.protocol.sampling import Sampling
from engine.ranks import wire
from engine.report import EngineStatus, StepReport
from engine.scheduling.sequence import SequenceRequest


def request(**change: object) -> SequenceRequest:
    values = {
        "sequence_id": 7,
        "prompt": np.arange(100, dtype=np.int32),
        "sampling": Sampling(max_tokens=9, temperature=0.0, seed=2**63, logprobs=3),
        "namespace": b"n" * 32,
        "tenant": 2**62,
        "stop_token_ids": (5, 6),
        "constraint": Constraint("regex", "a+"),
    }
    return SequenceRequest(**(values | change))


def report(num_rows: int, *, has_logprobs: bool) -> StepReport:
    ids = np.arange(num_rows, dtype=np.int64) + 2**40
    tokens, finishes = ids.astype(np.int32), (ids % 3).astype(np.uint8)
    if not has_logprobs:
        return StepReport(ids, tokens, finishes, tokens)
    floats, tops = tokens.astype(np.float32), np.stack([tokens, tokens + 1], axis=1)
    return StepReport(ids, tokens, finishes, tokens, floats, tops, tops.astype(np.float32))


def test_request_survives_the_encoding():
    sent = request()
    came = wire.decode_request(wire.encode_request(sent))
    assert np.array_equal(came.prompt, sent.prompt)
    assert came.prompt.dtype == np.int32
    assert (came.sampling, came.namespace, came.tenant) == (sent.sampling, sent.namespace, sent.tenant)
    assert (came.sequence_id, came.stop_token_ids) == (7, (5, 6))
    assert came.constraint == Constraint("regex", "a+")
    assert wire.decode_request(wire.encode_request(request(constraint=None))).constraint is None


def test_undecodable_request_keeps_its_id_and_does_not_affect_others():
    raws = [wire.encode_request(request(sampling="warm")), wire.encode_request(request(sequence_id=8))]
    work = wire.decode_to_rank(wire.encode_frame(wire.Work(raws, [3]))[4:])
    with pytest.raises(msgspec.DecodeError):
        wire.decode_request(work.adds[0])
    assert wire.sequence_id_of(work.adds[0]) == 7
    assert wire.decode_request(work.adds[1]).sequence_id == 8
    assert work.aborts == [3]


@pytest.mark.parametrize("has_logprobs", [False, True])
@pytest.mark.parametrize("num_rows", [0, 1, 200])
def test_report_survives_the_encoding(num_rows: int, has_logprobs: bool):
    sent, status = report(num_rows, has_logprobs=has_logprobs), EngineStatus(num_running=3, queued_tokens=10**12)
    message = wire.decode_rank_message(wire.encode_report(sent, status)[4:])
    assert isinstance(message, wire.Stepped)
    assert message.status == status
    if not num_rows:
        assert message.report is None
        return
    assert message.report is not None
    for column in ("sequence_ids", "token_ids", "finishes", "num_cached"):
        assert np.array_equal(getattr(message.report, column), getattr(sent, column))
    if has_logprobs:
        assert np.array_equal(message.report.top_ids, sent.top_ids)
        assert np.array_equal(message.report.top_logprobs, sent.top_logprobs)
        assert np.array_equal(message.report.logprobs, sent.logprobs)
    else:
        assert message.report.logprobs is None


def test_rank_arguments_survive_the_encoding():
    config = EngineConfig(model_dir=Path("/models/x"), dtype="float32", num_blocks=9)
    assert wire.decode_arguments(wire.encode_arguments(config, "rev")) == (config, "rev")

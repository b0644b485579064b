"""Tests of OpenAI's embeddings: bodies are read or rejected, and both encodings contain the same numbers."""

import base64
import json
import struct

import pytest

from engine.protocol.embeddings import EmbeddingsRenderer, read_embeddings_request
from engine.protocol.events import Finished, Usage
from engine.protocol.fields import BadInput
from engine.protocol.outcome import Outcome
from engine.protocol.tasks.text_embeddings import Embeddings


def test_float_and_base64_encode_the_same_numbers():
    outcome = Outcome()
    outcome.add(Embeddings((2, 3), struct.pack("<6f", 1, 2, 3, -0.5, 0.25, 8)).to_result())
    outcome.add(Finished("stop", Usage(prompt_tokens=4)))
    plain = json.loads(EmbeddingsRenderer("m", "float").whole(outcome))
    packed = json.loads(EmbeddingsRenderer("m", "base64").whole(outcome))
    unpacked = [list(struct.unpack("<3f", base64.b64decode(row["embedding"]))) for row in packed["data"]]
    assert unpacked == [row["embedding"] for row in plain["data"]] == [[1, 2, 3], [-0.5, 0.25, 8]]
    assert [row["index"] for row in packed["data"]] == [0, 1]
    assert plain["usage"] == {"prompt_tokens": 4, "total_tokens": 4}


@pytest.mark.parametrize("value", [None, [], "", [""], ["a", 1], [[1, 2]], 7])
def test_input_that_is_not_text_is_rejected(value):
    with pytest.raises(BadInput, match="input"):
        read_embeddings_request({"input": value})


def test_unknown_encoding_is_rejected():
    with pytest.raises(BadInput, match="/encoding_format"):
        read_embeddings_request({"input": "x", "encoding_format": "pickle"})

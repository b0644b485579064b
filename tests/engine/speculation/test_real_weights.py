"""Speculative decoding over real weights (stories260K, float32) generates the same tokens as without."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.models.config import UnsupportedModel
from engine.protocol.output_format import Constraint
from engine.runner import Runner
from engine.speculation.draft_model import DraftModel, blocks_for
from engine.speculation.factory import make_drafter
from engine.speculation.prompt_lookup import PromptLookup
from engine.speculation.speculator import Drafter, DraftRequest
from tests.engine.driver import Driver

MAX_LEN = 200


@pytest.fixture(scope="module")
def model_dir(test_data: Path) -> Path:
    return test_data / "models" / "stories260K"


def config_of(model_dir: Path, **settings: object) -> EngineConfig:
    values = {"dtype": "float32", "num_blocks": 64, "max_model_len": MAX_LEN} | settings
    return EngineConfig(model_dir=model_dir, **values)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def runner(model_dir: Path) -> Runner:
    return Runner(config_of(model_dir))


@pytest.fixture(scope="module")
def draft_runner(model_dir: Path) -> Runner:
    return Runner(config_of(model_dir, num_blocks=blocks_for(2, MAX_LEN, 16)))


@pytest.fixture(params=["prompt_lookup", "draft"])
def drafter(request: pytest.FixtureRequest, draft_runner: Runner) -> Drafter:
    return PromptLookup() if request.param == "prompt_lookup" else DraftModel(draft_runner, 2)


REQUESTS: list[dict[str, object]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.2},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 0.5, "logit_bias": ((300, 2.0),), "frequency_penalty": 0.1},
    {"temperature": 1.0, "constraint": Constraint("regex", "(one|two) [a-z ]{10,30}")},
]
PROMPT = [1, 403, 407, 261, 378, 432, 383, 286, 261, 403, 407, 261, 378]


def generate_all(runner: Runner, model_dir: Path, drafter: Drafter | None) -> tuple[list[list[int]], int]:
    """Run all requests, one at a time and two at once. Return tokens and the number of accepted drafts."""
    runner.poison_kv()
    driver = Driver(runner, drafter=drafter, model_dir=model_dir, max_sequences=2)
    ids: list[int] = []
    for number, request in enumerate(REQUESTS):
        ids.append(driver.add(PROMPT[number:], max_tokens=60, seed=number, ignore_eos=True, **request))
        if number in (0, 3):  # the others meet the one that follows
            driver.run()
    driver.run()
    return [driver.tokens[each] for each in ids], driver.engine.status().num_accepted


def test_tokens_equal_those_without_speculation(runner: Runner, model_dir: Path, drafter: Drafter) -> None:
    expected, _ = generate_all(runner, model_dir, None)
    found, num_accepted = generate_all(runner, model_dir, drafter)
    assert found == expected
    assert num_accepted > 2


def test_draft_model_proposals_do_not_depend_on_earlier_requests(draft_runner: Runner) -> None:
    """A draft model with growing and changing sequences proposes the same as a fresh one each time."""
    rng = np.random.default_rng(0)
    lasting = DraftModel(draft_runner, 2)
    texts = {number: rng.integers(3, 500, rng.integers(1, 40)).tolist() for number in range(1, 5)}
    requests: list[Sequence[DraftRequest]] = []
    found: list[list[list[int]]] = []
    for _ in range(25):
        chosen = rng.choice(list(texts), size=rng.integers(1, 3), replace=False).tolist()
        ask = [
            DraftRequest(number, np.array(texts[number], dtype=np.int32), int(rng.integers(1, 6))) for number in chosen
        ]
        requests.append(ask)
        found.append([guess.tolist() for guess in lasting.propose(ask)])
        for number, guess in zip(chosen, found[-1], strict=True):
            texts[number] += [*guess[: rng.integers(0, len(guess) + 1)], int(rng.integers(3, 500))]
    for ask, guessed in zip(requests, found, strict=True):
        assert [guess.tolist() for guess in DraftModel(draft_runner, 2).propose(ask)] == guessed
    assert any(len(guess) > 1 for guessed in found for guess in guessed)


def test_draft_model_reads_long_text_in_parts_within_its_context(draft_runner: Runner) -> None:
    draft = DraftModel(draft_runner, 2)
    long = np.array(PROMPT * 20, dtype=np.int32)
    assert draft.propose([DraftRequest(1, long[: MAX_LEN - 2], 5)])[0].size <= 2
    assert draft.propose([DraftRequest(1, long[:MAX_LEN], 5)])[0].size == 0


def test_make_drafter_returns_a_drafter_or_names_the_invalid_setting(model_dir: Path, tmp_path: Path) -> None:
    assert make_drafter(config_of(model_dir), MAX_LEN) is None
    assert isinstance(make_drafter(config_of(model_dir, speculation="prompt_lookup"), MAX_LEN), PromptLookup)
    assert isinstance(make_drafter(config_of(model_dir, speculation=f"draft:{model_dir}"), MAX_LEN), DraftModel)
    with pytest.raises(ValueError, match="expected off, prompt_lookup or draft:FOLDER"):
        make_drafter(config_of(model_dir, speculation="magic"), MAX_LEN)
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        make_drafter(config_of(model_dir, speculation=f"draft:{tmp_path}"), MAX_LEN)
    (tmp_path / "tokenizer.json").write_text('{"model": {}}')
    with pytest.raises(ValueError, match="same tokenizer"):
        make_drafter(config_of(model_dir, speculation=f"draft:{tmp_path}"), MAX_LEN)
    shutil.copy(model_dir / "tokenizer.json", tmp_path)
    with pytest.raises((OSError, ValueError, UnsupportedModel)):
        make_drafter(config_of(model_dir, speculation=f"draft:{tmp_path}"), MAX_LEN)

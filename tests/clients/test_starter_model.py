"""The starter model on a platform as a newcomer starts it: `hearth up` without options."""

from __future__ import annotations

from pathlib import Path

import pytest
from openai import OpenAI

from catalog.builtin import STARTER, find_folder
from tests.platform import Platform


class DefaultPlatform(Platform):
    """`hearth up` that may serve the starter model."""

    @property
    def _up(self) -> list[str]:
        return [argument for argument in super()._up if argument != "--no-starter"]


@pytest.mark.skipif(find_folder(STARTER) is None, reason="the starter model is not installed (STARTER=0)")
def test_starter_model_is_the_chat_model_and_responds(tmp_path: Path) -> None:
    platform = DefaultPlatform(tmp_path / "data", nodes=1).start()
    try:
        assert platform.chat_model == STARTER
        with OpenAI(base_url=f"{platform.ai_url()}/v1", api_key=platform.api_token) as client:
            completion = client.chat.completions.create(
                model=STARTER,
                messages=[{"role": "user", "content": "Repeat this sentence: The capital of France is Paris."}],
                temperature=0,
                max_tokens=40,
            )
        assert "Paris" in (completion.choices[0].message.content or "")
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}
        with platform.client() as http:
            unnamed = http.post(f"{platform.ai_url()}/v1/chat/completions", json=body).json()
        assert unnamed["model"] == STARTER
    finally:
        platform.stop()

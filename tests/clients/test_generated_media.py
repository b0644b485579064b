"""Images and speech with models added as docs/tasks.md says, by the official clients."""

from __future__ import annotations

import base64
import io
import os
import shutil
import subprocess
import sys
import wave
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import OpenAI
from PIL import Image

from tests.fakes.pipelines import make_pipeline
from tests.platform import Platform

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

STABLE_DIFFUSION_XL = "@cf/stabilityai/stable-diffusion-xl-base-1.0"
COMMAND_TIMEOUT_S = 300


def run_command(platform: Platform, *arguments: str) -> None:
    command = [sys.executable, "-m", "cli.main", "model", *arguments, "--data", str(platform.data)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def openai_client(platform: Platform) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{platform.ai_url()}/v1", api_key=platform.api_token, timeout=300) as client:
        yield client


@pytest.fixture(scope="module")
def painting(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Platform:
    """The platform with a pipeline of random weights under the name of a listed model."""
    folder = make_pipeline("sdxl", tmp_path_factory.mktemp("sdxl"))
    run_command(platform, "publish", str(folder), "--name", STABLE_DIFFUSION_XL)
    return platform


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_listed_image_model_runs_once_weights_are_published_under_its_name(painting: Platform, openai_client: OpenAI):
    url = f"{painting.ai_url()}/run/{STABLE_DIFFUSION_XL}"
    body = {"prompt": "a boat", "width": 256, "height": 256, "num_steps": 2, "seed": 1}
    with painting.client() as client:
        client.timeout = httpx.Timeout(300)
        first, second = (client.post(url, json=body) for _ in range(2))
    assert (first.status_code, first.headers["content-type"]) == (200, "image/png")
    assert first.content == second.content
    options = {"seed": 1, "steps": 2}
    images = openai_client.images.generate(
        model=STABLE_DIFFUSION_XL, prompt="a boat", size="256x256", extra_body=options
    )
    assert images.data is not None
    assert base64.b64decode(images.data[0].b64_json or "") == first.content
    assert Image.open(io.BytesIO(first.content)).size == (256, 256)


@pytest.mark.skipif(shutil.which("flite") is None, reason="the program flite is not installed")
def test_openai_client_gets_speech(platform: Platform, openai_client: OpenAI, tmp_path: Path):
    run_command(platform, "add", "@cf/hearth/flite")
    file = tmp_path / "speech.wav"
    with openai_client.audio.speech.with_streaming_response.create(
        model="@cf/hearth/flite", voice="alloy", input="Good morning. How are you?", response_format="wav"
    ) as response:
        response.stream_to_file(file)
    with wave.open(str(file)) as recording:
        assert recording.getframerate() == 24_000
    assert file.stat().st_size > 24_000 * 2

"""One platform with two nodes for the tests that only read it; fresh ones for those that break things;
the official clients that speak to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cloudflare import Cloudflare
from openai import OpenAI

from tests.end_to_end.platform import Platform


@pytest.fixture(scope="package")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    running = Platform(tmp_path_factory.mktemp("hearth")).start()
    yield running
    running.stop()


@pytest.fixture
def openai(platform: Platform) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{platform.ai_url()}/v1", api_key=platform.api_token) as client:
        yield client


@pytest.fixture
def cloudflare(platform: Platform) -> Iterator[Cloudflare]:
    with Cloudflare(base_url=platform.base_url, api_token=platform.api_token) as client:
        yield client

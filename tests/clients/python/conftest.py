"""Address and token of the platform. No module of the project is imported here."""

import os
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Hearth:
    """A platform, and an API token for one of its accounts."""

    base_url: str = os.environ.get("HEARTH_BASE_URL", "")
    account_id: str = os.environ.get("HEARTH_ACCOUNT_ID", "")
    api_token: str = os.environ.get("HEARTH_API_TOKEN", "")
    chat_model: str = os.environ.get("HEARTH_CHAT_MODEL", "")
    embed_model: str = os.environ.get("HEARTH_EMBED_MODEL", "")

    @property
    def ai_url(self) -> str:
        return f"{self.base_url}/accounts/{self.account_id}/ai"


@pytest.fixture(scope="session")
def hearth() -> Hearth:
    return Hearth()

"""The official SDKs against a gateway with fake nodes: errors, broken streams, the catalog, tokens and finetunes.

The tests of whole calls run on a platform with real models (`test_official_clients.py`).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai as openai_sdk
import pytest
from cloudflare import APIStatusError, AsyncCloudflare, Cloudflare
from openai import AsyncOpenAI, OpenAI

from tests.catalog.adapters import config_bytes, weights_bytes
from tests.fakes.node import WORDS
from tests.gateway.management.test_api_tokens import AI_READ, policy
from tests.gateway.management.test_finetunes import LISTED
from tests.gateway.process import ALIAS, HANDY, PARROT, VECTORS
from tests.gateway.site import USER_EMAIL, Running, Site
from tests.waiting import wait_until_blocking

TEXT = "".join(WORDS)
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def running(migrated_sqlite_file: Path) -> Iterator[Running]:
    """A gateway with two fake nodes."""
    site = Site(migrated_sqlite_file)
    site.add_node("n1")
    site.add_node("n2")
    yield Running(site, site.gateway(OBJECTS_URL=f"file://{site.folder / 'objects'}").start())
    site.close()


@pytest.fixture
def cloudflare(running: Running):
    with Cloudflare(base_url=running.gateway.base_url, api_token=running.tenants.secrets["good"]) as client:
        yield client


@pytest.fixture
def openai(running: Running):
    with OpenAI(base_url=f"{running.account_url}/ai/v1", api_key=running.tenants.secrets["good"]) as client:
        yield client


def test_cloudflare_models(running: Running, cloudflare: Cloudflare):
    account_id = running.tenants.account_id
    names = [row["name"] for row in cloudflare.ai.models.list(account_id=account_id, per_page=2)]
    assert {PARROT, VECTORS} <= set(names)
    assert len(names) == len(set(names))
    schema = cloudflare.ai.models.schema.get(account_id=account_id, model=PARROT)
    assert schema.input.description
    assert schema.output.description


def test_cloudflare_authors_and_tasks(running: Running, cloudflare: Cloudflare):
    account_id = running.tenants.account_id
    assert "Meta" in {author["name"] for author in cloudflare.ai.authors.list(account_id=account_id)}  # type: ignore[index]
    assert "Translation" in {task["name"] for task in cloudflare.ai.tasks.list(account_id=account_id)}  # type: ignore[index]
    listed = [model["name"] for model in cloudflare.ai.models.list(account_id=account_id, task="Translation")]  # type: ignore[index]
    assert "@cf/meta/m2m100-1.2b" in listed
    routed = cloudflare.ai.models.list(account_id=account_id, format="openrouter", per_page=50)
    assert "@cf/meta/m2m100-1.2b" in [model["id"] for model in routed]  # type: ignore[index]


def test_cloudflare_client_with_a_global_key_gets_an_authentication_error(running: Running):
    with (
        Cloudflare(base_url=running.gateway.base_url, api_email="user@example.com", api_key="1" * 32) as client,
        pytest.raises(APIStatusError) as caught,
    ):
        client.ai.run(PARROT, account_id=running.tenants.account_id, prompt="Hello")
    assert caught.value.status_code == 401
    assert caught.value.errors[0].code == 10000


def test_openai_chat(openai: OpenAI):
    completion = openai.chat.completions.create(model=PARROT, messages=HELLO, max_tokens=3)
    assert completion.choices[0].message.content == "".join(WORDS[:3])
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 3
    assert completion.usage.prompt_tokens_details is not None
    assert completion.usage.prompt_tokens_details.cached_tokens == 0


async def test_openai_stream_async(running: Running):
    secret = running.tenants.secrets["good"]
    async with AsyncOpenAI(base_url=f"{running.account_url}/ai/v1", api_key=secret) as client:
        stream = await client.chat.completions.create(model=ALIAS, messages=HELLO, stream=True)
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    assert {chunk.model for chunk in chunks} == {ALIAS}


def test_broken_openai_stream_raises_in_the_client(running: Running, openai: OpenAI):
    broken = [{"role": "user", "content": '!{"then_after": 2, "then": "die", "gap_s": 0.03}'}]
    stream = openai.chat.completions.create(model=PARROT, messages=broken, stream=True)
    with pytest.raises(openai_sdk.APIError):
        list(stream)
    wait_until_blocking(lambda: running.gateway.metric("hearth_nodes_alive") == 2)


def test_openai_errors_raise_the_matching_client_exceptions(running: Running, openai: OpenAI):
    with pytest.raises(openai_sdk.BadRequestError) as caught:
        openai.chat.completions.create(model=PARROT, messages=HELLO, temperature=9)
    assert str(caught.value.code) == "5006"
    wrong = OpenAI(base_url=f"{running.account_url}/ai/v1", api_key="cfut_" + "a" * 46)
    with wrong, pytest.raises(openai_sdk.AuthenticationError):
        wrong.models.list()


def test_cloudflare_manages_tokens_and_reads_accounts(running: Running):
    account_id = running.tenants.account_id
    url, key = running.gateway.base_url, running.tenants.secrets["global key"]
    with Cloudflare(base_url=url, api_email=USER_EMAIL, api_key=key, _strict_response_validation=True) as client:
        policies: Any = [policy(AI_READ)]
        created = client.user.tokens.create(name="sdk", policies=policies, expires_on="2099-01-01T00:00:00Z")
        assert created is not None
        assert created.id is not None
        assert created.value is not None
        with Cloudflare(base_url=url, api_token=created.value, _strict_response_validation=True) as holder:
            verified = holder.user.tokens.verify()
            assert verified is not None
            assert (verified.id, verified.status) == (created.id, "active")
        assert created.id in {token.id for token in client.user.tokens.list(per_page=5)}
        assert client.user.tokens.get(created.id).name == "sdk"  # type: ignore[union-attr]
        assert client.user.tokens.update(created.id, name="sdk 2", policies=policies).name == "sdk 2"  # type: ignore[union-attr]
        assert client.user.tokens.value.update(created.id).startswith("cfut_")
        assert client.user.tokens.delete(created.id).id == created.id  # type: ignore[union-attr]
        tokens = client.accounts.tokens
        of_account = tokens.create(account_id=account_id, name="sdk", policies=policies)
        assert of_account is not None
        assert of_account.id is not None
        assert tokens.get(of_account.id, account_id=account_id).id == of_account.id  # type: ignore[union-attr]
        assert of_account.id in {token.id for token in tokens.list(account_id=account_id, per_page=5)}
        assert tokens.value.update(of_account.id, account_id=account_id).startswith("cfat_")
        assert tokens.delete(of_account.id, account_id=account_id).id == of_account.id  # type: ignore[union-attr]
        assert AI_READ in {group.id for group in client.user.tokens.permission_groups.list()}
        assert AI_READ in {group.id for group in tokens.permission_groups.list(account_id=account_id)}
        assert account_id in {account.id for account in client.accounts.list(per_page=1)}
        assert client.accounts.get(account_id=account_id).name == "main"  # type: ignore[union-attr]
        assert account_id in {row.account.id for row in client.memberships.list(per_page=1) if row.account}
        assert client.user.get().email == USER_EMAIL  # type: ignore[union-attr]


async def test_cloudflare_async_manages_accounts(running: Running):
    url, key = running.gateway.base_url, running.tenants.secrets["global key"]
    client = AsyncCloudflare(base_url=url, api_email=USER_EMAIL, api_key=key, _strict_response_validation=True)
    async with client:
        created = await client.accounts.create(name="SDK", type="standard")
        assert created is not None
        changed = await client.accounts.update(account_id=created.id, id=created.id, name="SDK 2", type="standard")
        assert changed is not None
        assert changed.name == "SDK 2"
        assert created.id in [account.id async for account in client.accounts.list(per_page=2)]
        deleted = await client.accounts.delete(account_id=created.id)
        assert deleted is not None
        assert deleted.id == created.id


def test_cloudflare_uploads_and_uses_a_finetune(running: Running):
    account_id = running.tenants.account_id
    with Cloudflare(base_url=running.gateway.base_url, api_token=running.tenants.secrets["write"]) as cloudflare:
        finetunes = cloudflare.ai.finetunes
        created = finetunes.create(account_id=account_id, model=HANDY, name="sdk", description="by the client")
        assert (created.name, created.model, created.public, created.description) == (
            "sdk",
            HANDY,
            False,
            "by the client",
        )
        for name, content in (("adapter_config.json", config_bytes()), ("adapter_model.safetensors", weights_bytes())):
            done = finetunes.assets.create(created.id, account_id=account_id, file=(name, content), file_name=name)
            assert done.success
        assert created.id in [row.id for row in finetunes.list(account_id=account_id)]
        listed = list(finetunes.public.list(account_id=account_id, limit=0, order_by="orderBy"))
        assert [row.name for row in listed] == LISTED
        assert all(row.public and row.model.startswith("@cf/mistral/") for row in listed)
        result = cloudflare.ai.run(HANDY, account_id=account_id, prompt="x", lora="sdk")
        assert result["response"]

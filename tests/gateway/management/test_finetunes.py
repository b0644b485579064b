"""Finetunes at the gateway: create, upload, list, and select with `lora`. Fake nodes do not apply adapters."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from catalog.manifest import blob_key, decode_manifest, manifest_key
from engine.protocol.tasks.text_generation import Adapter
from tests.catalog.adapters import config_bytes, spark_modules, weights_bytes
from tests.gateway.process import CHATTY, HANDY, PARROT, POCKET, VECTORS
from tests.gateway.site import Running, Site
from tests.gateway.test_shared_resources import make_token
from tests.waiting import wait_until_blocking

SPARK = "@cf/hearth/spark"  # built in, so its files are available
LISTED = ["cf-public-cnn-summarization", "cf-public-jigsaw-classification", "cf-public-magicoder"]


@pytest.fixture(scope="module")
def running(new_site: Callable[..., Site]) -> Running:
    site = new_site()
    site.add_node("n1")
    objects = {"OBJECTS_URL": f"file://{site.folder / 'objects'}", "HEARTH_FINETUNE_MAX_BYTES": "20000",
               "HEARTH_FINETUNE_MAX_RANK": "8", "HEARTH_FINETUNES_PER_ACCOUNT": "40"}  # fmt: skip
    return Running(site, site.gateway(**objects).start())


@pytest.fixture
def client(running: Running) -> Iterator[httpx.Client]:
    with httpx.Client(headers=running.headers("write"), timeout=60) as client:
        yield client


def url(running: Running, path: str = "") -> str:
    return f"{running.account_url}/ai/finetunes{path}"


def create(running: Running, client: httpx.Client, name: str, **fields: Any) -> dict[str, Any]:
    response = client.post(url(running), json={"model": HANDY, "name": name} | fields)
    assert response.status_code == 200, response.text
    return response.json()["result"]


def upload(running: Running, client: httpx.Client, finetune_id: str, file_name: str, content: bytes) -> httpx.Response:
    where = url(running, f"/{finetune_id}/finetune-assets/")
    return client.post(where, data={"file_name": file_name}, files={"file": (file_name, content)})


def complete(running: Running, client: httpx.Client, name: str, seed: int = 0, **fields: Any) -> dict[str, Any]:
    created = create(running, client, name, **fields)
    files = {"adapter_config.json": config_bytes(), "adapter_model.safetensors": weights_bytes(seed=seed)}
    for file_name, content in files.items():
        response = upload(running, client, created["id"], file_name, content)
        assert (response.status_code, response.json()["result"]) == (200, None), response.text
    return created


def code_of(response: httpx.Response) -> tuple[int, int]:
    return response.status_code, response.json()["errors"][0]["code"]


def requested_adapter(running: Running, client: httpx.Client, lora: str, model: str = HANDY, **body: Any) -> Adapter:
    response = client.post(f"{running.account_url}/ai/run/{model}", json={"prompt": "x", "lora": lora} | body)
    assert response.status_code == 200, response.text
    adapter = running.site.execute_of(response).task.adapter
    assert adapter is not None
    return adapter


def test_adapter_is_selected_by_name_and_id_in_every_api_format(running: Running, client: httpx.Client):
    created = complete(running, client, "tuned")
    adapter = requested_adapter(running, client, "tuned")
    assert adapter == requested_adapter(running, client, created["id"])
    assert adapter == requested_adapter(
        running, client, "tuned", prompt=None, messages=[{"role": "user", "content": "x"}]
    )
    body = {"model": HANDY, "messages": [{"role": "user", "content": "x"}], "lora": "tuned"}
    shapes = {"chat/completions": body, "completions": body | {"prompt": "x"}, "messages": body | {"max_tokens": 9},
              "responses": body | {"input": "x"}}  # fmt: skip
    for route, request in shapes.items():
        response = client.post(f"{running.account_url}/ai/v1/{route}", json=request)
        assert response.status_code == 200, response.text
        assert running.site.execute_of(response).task.adapter == adapter, route
    objects = running.site.folder / "objects"
    manifest = decode_manifest((objects / manifest_key(adapter.digest)).read_bytes(), adapter.digest)
    assert manifest.name == adapter.name == f"finetune/{created['id']}"
    for entry, content in zip(manifest.files, (config_bytes(), weights_bytes()), strict=True):
        assert entry.sha256 == hashlib.sha256(content).hexdigest()
        assert (objects / blob_key(entry.sha256)).read_bytes() == content


def test_uploading_a_file_again_replaces_the_adapter(running: Running, client: httpx.Client):
    created = complete(running, client, "again")
    first = requested_adapter(running, client, created["id"])
    assert upload(running, client, created["id"], "adapter_model.safetensors", weights_bytes(seed=9)).status_code == 200
    assert requested_adapter(running, client, created["id"]).digest != first.digest


def test_files_may_be_uploaded_in_any_order_and_must_match(running: Running, client: httpx.Client):
    created = create(running, client, "order")
    assert upload(running, client, created["id"], "adapter_model.safetensors", weights_bytes()).status_code == 200
    wrong = upload(running, client, created["id"], "adapter_config.json", config_bytes(r=5))
    assert code_of(wrong) == (400, 5006)
    assert "has rank 4, but adapter_config.json has rank 5" in wrong.json()["errors"][0]["message"]
    assert upload(running, client, created["id"], "adapter_config.json", config_bytes()).status_code == 200
    assert requested_adapter(running, client, "order")


@pytest.mark.parametrize(
    ("file_name", "content", "says"),
    [
        ("adapter_config.json", config_bytes(use_dora=True), "'use_dora'"),
        ("adapter_config.json", config_bytes(r=9), "'r' must be >= 1 and <= 8"),
        ("adapter_config.json", config_bytes(model_type=None), "'model_type' is missing"),
        ("adapter_config.json", b"{", "not JSON"),
        ("adapter_model.safetensors", weights_bytes(rank=9), "at most 8"),
        ("adapter_model.safetensors", b"\xff" * 100, "header of"),
        ("adapter_model.safetensors", b"", "header of"),
        ("adapter_model.bin", b"x", "'/file_name' must be one of adapter_config.json, adapter_model.safetensors"),
        ("adapter_model.bin", b"PK", "adapter_model.safetensors: pickle files are not supported"),
        ("../adapter_config.json", b"x", "'/file_name'"),
    ],
)
def test_unsupported_file_is_rejected_naming_the_field(
    running: Running, client: httpx.Client, file_name: str, content: bytes, says: str
):
    name = f"bad-{hashlib.sha256(content + file_name.encode()).hexdigest()[:8]}"
    response = upload(running, client, create(running, client, name)["id"], file_name, content)
    assert code_of(response) == (400, 5006)
    assert says in response.json()["errors"][0]["message"]


def test_file_for_another_model_is_rejected_at_upload(running: Running, client: httpx.Client):
    """Checked against the model's files. The finetune accepts a valid file afterwards."""
    created = create(running, client, "not-for-spark", model=SPARK)
    other = weights_bytes(modules={"layers.99.self_attn.q_proj": (256, 256)})
    wrong = {
        "'model_type' is 'mistral', but the model is of another family (LlamaForCausalLM)": config_bytes(
            model_type="mistral"
        ),
        "'layers.0.self_attn.q_proj' maps 16 to 16, the model's maps 256 to 256": weights_bytes(),
        "the model has no module 'layers.99.self_attn.q_proj' that an adapter can change": other,
    }
    for says, content in wrong.items():
        file_name = "adapter_config.json" if content.startswith(b"{") else "adapter_model.safetensors"
        response = upload(running, client, created["id"], file_name, content)
        assert code_of(response) == (400, 5006)
        (error,) = response.json()["errors"]
        assert f"'/file' is not accepted: {file_name}: " in error["message"]
        assert says in error["message"]
        assert error["source"] == {"pointer": "/file"}
    right = {"adapter_config.json": config_bytes(), "adapter_model.safetensors": weights_bytes(modules=spark_modules())}
    assert [upload(running, client, created["id"], *each).status_code for each in right.items()] == [200, 200]


def test_file_over_the_size_limit_is_rejected(running: Running, client: httpx.Client):
    created = create(running, client, "large")
    response = upload(running, client, created["id"], "adapter_model.safetensors", b"x" * 20_001)
    assert "at most 20000" in response.json()["errors"][0]["message"]
    assert code_of(upload(running, client, created["id"], "adapter_model.safetensors", b"x" * 400_000)) == (413, 3006)
    assert client.post(url(running, f"/{created['id']}/finetune-assets"), content=b"x").status_code == 400


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"name": "a"}, (400, 5006)), ({"model": HANDY}, (400, 5006)), ({"model": HANDY, "name": ""}, (400, 5006)),
        ({"model": HANDY, "name": "cf-public-x"}, (400, 5006)), ({"model": HANDY, "name": "a/../b"}, (400, 5006)),
        ({"model": HANDY, "name": "a..b"}, (400, 5006)), ({"model": HANDY, "name": 5}, (400, 5006)),
        ({"model": HANDY, "name": "00000000-0000-0000-0000-000000000000"}, (400, 5006)),
        ({"model": HANDY, "name": "d", "description": "x" * 1025}, (400, 5006)),
        ({"model": HANDY, "name": "d", "description": "a\0b"}, (400, 5006)),
        ({"model": HANDY, "name": "d", "public": "maybe"}, (400, 5006)),
        ({"model": HANDY, "name": "d", "public": []}, (400, 5006)),
        ({"model": "nonsense", "name": "d"}, (404, 3042)), ({"model": "@cf/no/such", "name": "d"}, (400, 5007)),
        ({"model": PARROT, "name": "d"}, (405, 5005)),
    ],
)  # fmt: skip
def test_invalid_finetune_is_rejected(running: Running, client: httpx.Client, body: Any, expected: tuple[int, int]):
    assert code_of(client.post(url(running), json=body)) == expected


def test_names_are_unique_within_an_account(running: Running, client: httpx.Client):
    create(running, client, "unique")
    assert code_of(client.post(url(running, "/"), json={"model": HANDY, "name": "unique"})) == (400, 5006)


def test_private_finetune_of_another_account_is_unknown(running: Running, client: httpx.Client):
    """Only the owner can use or change a private finetune; other accounts get 404."""
    created = complete(running, client, "secret-style")
    tenants = running.tenants
    theirs = f"{running.gateway.base_url}/accounts/{tenants.other_account_id}/ai"
    with httpx.Client(headers=running.headers("other"), timeout=60) as other:
        assert other.get(f"{theirs}/finetunes").json()["result"] == []
        for reference in (created["id"], "secret-style"):
            body = {"prompt": "x", "lora": reference}
            assert code_of(other.post(f"{theirs}/run/{HANDY}", json=body)) == (404, 3042)
        assert code_of(other.get(url(running))) == (403, 10000)
    assert code_of(client.post(f"{theirs}/finetunes", json={"model": HANDY, "name": "x"})) == (403, 10000)
    response = upload(running, client, "00000000-0000-0000-0000-000000000000", "adapter_config.json", config_bytes())
    assert code_of(response) == (404, 3042)


def test_public_finetune_is_listed_for_and_usable_by_all_accounts(running: Running, client: httpx.Client):
    created = complete(running, client, "for-all", public=True)
    later = create(running, client, "for-all-later", public="true")  # has no files, so it cannot be used
    theirs = f"{running.gateway.base_url}/accounts/{running.tenants.other_account_id}/ai"
    with httpx.Client(headers=running.headers("other"), timeout=60) as other:

        def page(query: str) -> list[str]:
            return [row["name"] for row in other.get(f"{theirs}/finetunes/public?{query}").json()["result"]]

        listed = other.get(f"{theirs}/finetunes/public?limit=1.0&offset=0&orderBy=name").json()["result"]
        assert [(row["id"], row["public"]) for row in listed] == [(created["id"], True)]
        assert (page(""), page("limit=2")) == (["for-all", *LISTED], ["for-all", LISTED[0]])
        assert (page("offset=1&limit=2"), page("offset=3"), page("offset=4")) == (LISTED[:2], LISTED[2:], [])
        assert code_of(other.get(f"{theirs}/finetunes/public?limit=x")) == (400, 3003)
        assert listed[0]["owner"] == running.tenants.account_id
        for reference in (created["id"], f"{listed[0]['owner']}/for-all"):
            response = other.post(f"{theirs}/run/{HANDY}", json={"prompt": "x", "lora": reference})
            assert running.site.execute_of(response).task.adapter.name == f"finetune/{created['id']}"
        for invisible in ("for-all", later["id"], f"{listed[0]['owner']}/for-all-later"):
            response = other.post(f"{theirs}/run/{HANDY}", json={"prompt": "x", "lora": invisible})
            assert code_of(response) == (404, 3042), invisible


def test_name_of_a_deleted_finetune_is_not_taken_over_by_another_account(running: Running, client: httpx.Client):
    complete(running, client, "house-style", public=True)
    theirs = f"{running.gateway.base_url}/accounts/{running.tenants.other_account_id}/ai"
    owner = running.tenants.secrets.setdefault(
        "other write", asyncio.run(make_token(running.site, running.tenants.other_account_id))
    )
    with httpx.Client(headers={"Authorization": f"Bearer {owner}"}, timeout=60) as other:
        own = other.post(f"{theirs}/finetunes", json={"model": HANDY, "name": "house-style"}).json()["result"]
        run = {"prompt": "x", "lora": "house-style"}
        assert code_of(other.post(f"{theirs}/run/{HANDY}", json=run)) == (400, 3039), "the own one, without files"
        assert other.delete(f"{theirs}/finetunes/{own['id']}").status_code == 200
        assert code_of(other.post(f"{theirs}/run/{HANDY}", json=run)) == (404, 3042)


def test_adapter_works_on_quantized_variants_of_its_base_model_only(running: Running, client: httpx.Client):
    complete(running, client, "for-variants")
    adapter = requested_adapter(running, client, "for-variants")
    assert requested_adapter(running, client, "for-variants", model=POCKET) == adapter
    of_another = create(running, client, "of-another", model=SPARK)["id"]
    refused = client.post(f"{running.account_url}/ai/run/{POCKET}", json={"prompt": "x", "lora": of_another})
    assert code_of(refused) == (400, 5006)
    assert f"'/lora' is a finetune of {SPARK}" in refused.text


def test_call_with_an_unavailable_adapter_is_rejected(running: Running, client: httpx.Client):
    run = f"{running.account_url}/ai/run/"
    created = create(running, client, "half")
    response = client.post(run + HANDY, json={"prompt": "x", "lora": "half"})
    assert code_of(response) == (400, 3039)
    assert "adapter_config.json, adapter_model.safetensors" in response.json()["errors"][0]["message"]
    assert code_of(client.post(run + HANDY, json={"prompt": "x", "lora": "nobody"})) == (404, 3042)
    response = client.post(run + HANDY, json={"prompt": "x", "lora": LISTED[0]})
    assert code_of(response) == (400, 5006)
    assert "a finetune of @cf/mistral/mistral-7b-instruct-v0.1" in response.json()["errors"][0]["message"]
    assert code_of(client.post(run + PARROT, json={"prompt": "x", "lora": created["id"]})) == (405, 5005)
    messages = [{"role": "user", "content": "x"}]
    assert code_of(client.post(run + CHATTY, json={"messages": messages, "lora": "half"})) == (405, 5005)
    embeddings = f"{running.account_url}/ai/v1/embeddings"
    assert code_of(client.post(run + VECTORS, json={"text": "x", "lora": "half"})) == (405, 5005)
    assert code_of(client.post(run + VECTORS, json={"text": "x", "lora": "../half"})) == (400, 5006)
    refused = client.post(embeddings, json={"model": VECTORS, "input": "x", "lora": "half"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (405, 5005), refused.text
    assert client.post(run + VECTORS, json={"text": "x", "lora": None}).status_code == 200


def test_read_permission_allows_listing_and_running_only(running: Running, client: httpx.Client):
    created = complete(running, client, "readable")
    with httpx.Client(headers=running.headers("good"), timeout=60) as reader:
        assert created["id"] in [row["id"] for row in reader.get(url(running, "/")).json()["result"]]
        assert requested_adapter(running, reader, "readable")
        assert code_of(reader.post(url(running), json={"model": HANDY, "name": "x"})) == (403, 10000)
        assert code_of(upload(running, reader, created["id"], "adapter_config.json", config_bytes())) == (403, 10000)


def test_only_the_owner_deletes_a_finetune_and_every_change_is_audited(running: Running, client: httpx.Client):
    created = complete(running, client, "short-lived")
    assert requested_adapter(running, client, "short-lived")
    one = url(running, f"/{created['id']}")
    assert client.get(one).json()["result"]["name"] == "short-lived"
    with httpx.Client(headers=running.headers("good"), timeout=60) as reader:
        assert reader.get(one + "/").status_code == 200
        assert code_of(reader.delete(one)) == (403, 10000)
    theirs = f"{running.gateway.base_url}/accounts/{running.tenants.other_account_id}/ai/finetunes/{created['id']}"
    with httpx.Client(headers=running.headers("other"), timeout=60) as other:
        assert code_of(other.get(theirs)) == (404, 3042)
    assert client.delete(one).json()["result"] == {"id": created["id"]}
    assert code_of(client.delete(one)) == (404, 3042)
    called = client.post(f"{running.account_url}/ai/run/{HANDY}", json={"prompt": "x", "lora": "short-lived"})
    assert code_of(called) == (404, 3042)
    path = running.site.database_url.removeprefix("sqlite://")
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        query = "SELECT action, actor, detail FROM audit_entries WHERE subject_id = ? ORDER BY sequence"
        entries = connection.execute(query, (created["id"],)).fetchall()
    actor = running.tenants.token_ids["write"]
    uploads = [("finetune.upload", actor, name) for name in ("adapter_config.json", "adapter_model.safetensors")]
    assert entries == [("finetune.create", actor, ""), *uploads, ("finetune.delete", actor, "")]


def test_draining_gateway_waits_for_an_upload(running: Running, client: httpx.Client):
    created = create(running, client, "late")
    objects = {"OBJECTS_URL": f"file://{running.site.folder / 'objects'}"}
    leaving = Running(running.site, running.site.gateway(**objects).start())
    is_draining = threading.Event()
    head = b'--b\r\nContent-Disposition: form-data; name="file_name"\r\n\r\nadapter_config.json\r\n'
    head += b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'

    def form() -> Iterator[bytes]:
        yield head
        assert is_draining.wait(20)
        yield config_bytes() + b"\r\n--b--\r\n"

    with ThreadPoolExecutor(1) as pool:
        headers = {"content-type": "multipart/form-data; boundary=b"}
        where = url(leaving, f"/{created['id']}/finetune-assets")
        response = pool.submit(client.post, where, content=form(), headers=headers)
        wait_until_blocking(lambda: leaving.gateway.metric("hearth_calls_in_flight") == 1)
        leaving.gateway.terminate()
        wait_until_blocking(lambda: not leaving.gateway.is_ready())
        is_draining.set()
        assert response.result().status_code == 200
    assert leaving.gateway.wait() == 0

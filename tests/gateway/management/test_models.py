"""The catalog's routes: search with pages, schemas, and OpenAI's list of models."""

import asyncio

import httpx
import pytest

from catalog.aliases import set_alias
from storage.database import Database
from tests.gateway.process import ALIAS, CHATTY, PARROT, VECTORS
from tests.gateway.site import Running


def get(client: httpx.Client, running: Running, path: str) -> httpx.Response:
    return client.get(f"{running.account_url}/ai{path}")


def test_search_lists_rows_with_the_model_id_in_name(client: httpx.Client, running: Running):
    body = get(client, running, "/models/search").json()
    rows = {row["name"]: row for row in body["result"]}
    assert {PARROT, CHATTY, VECTORS} <= set(rows)
    assert rows[PARROT]["created_at"] == "2026-01-02 03:04:05.000"
    assert rows[PARROT]["task"]["name"] == "Text Generation"
    assert {"property_id": "context_window", "value": "2048"} in rows[PARROT]["properties"]
    assert body["result_info"]["total_count"] == len(rows)


def test_pages_have_the_requested_size_and_end_with_an_empty_page(client: httpx.Client, running: Running):
    everything = [row["name"] for row in get(client, running, "/models/search").json()["result"]]
    paged = []
    for page in range(1, 100):
        body = get(client, running, f"/models/search?per_page=2&page={page}").json()
        if not body["result"]:
            break
        assert body["result_info"]["count"] == len(body["result"]) <= 2
        paged += [row["name"] for row in body["result"]]
    assert paged == everything


def test_search_filters(client: httpx.Client, running: Running):
    def names(query: str) -> list[str]:
        return [row["name"] for row in get(client, running, f"/models/search?{query}").json()["result"]]

    assert names("search=parrot") == [PARROT]
    assert VECTORS in names("task=Text%20Embeddings")
    assert PARROT not in names("task=Text%20Embeddings")
    assert set(names("author=test")) >= {PARROT, CHATTY, VECTORS}
    assert names("source=2") == [VECTORS]


def test_openrouter_format_is_bare_and_priced_per_token(client: httpx.Client, running: Running):
    rows = get(client, running, "/models/search?format=openrouter&search=parrot").json()["data"]
    assert [row["id"] for row in rows] == [PARROT]
    assert float(rows[0]["pricing"]["prompt"]) == pytest.approx(100 / 1e6 * 0.011 / 1000, rel=0.1)
    assert rows[0]["context_length"] == 2048
    (row,) = get(client, running, "/models/search?format=openrouter&search=handy").json()["data"]
    assert row["supported_features"] == ["json_mode", "lora", "tools"]


async def alias(database_url: str, name: str) -> None:
    database = Database.connect(database_url)
    try:
        await set_alias(database, name, PARROT)
    finally:
        await database.close()


def test_new_name_can_be_called_immediately(client: httpx.Client, running: Running):
    for number in range(5):
        name = f"@cf/test/just-made-{number}"
        assert client.post(f"{running.account_url}/ai/run/{name}", json={"prompt": "a"}).status_code == 400
        asyncio.run(alias(running.site.database_url, name))
        if number % 2:
            response = client.post(f"{running.account_url}/ai/run/{name}", json={"prompt": "a"})
        else:
            response = get(client, running, f"/models/schema?model={name}")
        assert response.status_code == 200, response.text


@pytest.mark.parametrize("query", ["page=x", "per_page=-1", "page=9999999999999", "source=cf"])
def test_query_that_is_not_a_number_is_rejected(client: httpx.Client, running: Running, query: str):
    response = get(client, running, f"/models/search?{query}")
    assert (response.status_code, response.json()["errors"][0]["code"]) == (400, 3003)


def test_schema_has_the_fields_that_strict_clients_require(client: httpx.Client, running: Running):
    for model in (PARROT, CHATTY, VECTORS, ALIAS):
        result = get(client, running, f"/models/schema?model={model}").json()["result"]
        for half in ("input", "output"):
            assert isinstance(result[half]["type"], str)
            assert isinstance(result[half]["description"], str)
            assert isinstance(result[half]["additionalProperties"], bool)


@pytest.mark.parametrize(
    ("query", "expected"),
    [("", (400, 3003)), ("?model=@cf/no/thing", (400, 5007)), ("?model=../x", (404, 3042))],
)
def test_schema_of_an_unknown_model_is_rejected(client: httpx.Client, running: Running, query: str, expected: tuple):
    response = get(client, running, f"/models/schema{query}")
    assert (response.status_code, response.json()["errors"][0]["code"]) == expected


def test_every_public_model_is_listed_with_its_properties(client: httpx.Client, running: Running):
    rows = {row["name"]: row for row in get(client, running, "/models/search").json()["result"]}
    properties = {item["property_id"]: item["value"] for item in rows["@cf/zai-org/glm-5.3"]["properties"]}
    assert properties["price"][0] == {"unit": "per M input tokens", "price": 1.4, "currency": "USD"}
    assert (properties["context_window"], properties["function_calling"]) == ("1310720", "true")
    assert rows["@cf/openai/whisper"]["task"]["name"] == "Automatic Speech Recognition"
    assert RETIRED not in rows
    result = get(client, running, "/models/schema?model=@cf/openai/whisper").json()["result"]
    assert result["input"]["oneOf"][1]["required"] == ["audio"]
    (row,) = get(client, running, "/models/search?format=openrouter&search=qwen3.8-27b").json()["data"]
    assert (row["context_length"], row["input_modalities"]) == (262144, ["text", "image"])
    assert float(row["pricing"]["prompt"]) == pytest.approx(0.45e-6)
    (row,) = get(client, running, "/models/search?format=openrouter&search=melotts").json()["data"]
    assert (float(row["pricing"]["prompt"]), row["output_modalities"]) == (0, ["audio"])


def test_openrouter_prices_are_decimal_strings_in_dollars(client: httpx.Client, running: Running):
    rows = get(client, running, "/models/search?format=openrouter&include_deprecated=true").json()["data"]
    assert len(rows) > 50
    for row in rows:
        assert row["pricing"].keys() == {"prompt", "completion", "input_cache_read"}
        assert all(isinstance(price, str) and 0 <= float(price) < 1e-3 for price in row["pricing"].values()), row


RETIRED, LISTED = "@cf/microsoft/phi-2", "@cf/meta/llama-3.2-1b-instruct"


@pytest.mark.parametrize(
    ("model", "expected", "words"),
    [
        (RETIRED, (410, 5028), "deprecated on 2026-05-30. Please use @cf/meta/llama-3.2-3b-instruct instead"),
        (LISTED, (400, 5007), f"`hearth model pull {LISTED}`"),
        ("@cf/test/over", (410, 5028), "deprecated on 2026-02-03. Please use @cf/test/parrot instead"),
    ],
)
def test_error_of_a_model_without_weights_names_the_remedy(
    client: httpx.Client, running: Running, model: str, expected: tuple, words: str
):
    responses = [
        client.post(f"{running.account_url}/ai/run/{model}", json={"prompt": "x"}),
        client.post(f"{running.account_url}/ai/v1/chat/completions", json={"model": model, "messages": []}),
        get(client, running, f"/v1/models/{model}"),
    ]
    for response in responses:
        (error,) = response.json()["errors"]
        assert (response.status_code, error["code"]) == expected
        assert words in error["message"]
        assert response.headers["x-should-retry"] == "false"
    assert get(client, running, f"/models/schema?model={model}").status_code == 200


def test_authors_and_tasks_are_searched_and_paged(client: httpx.Client, running: Running):
    for what, words, name in (("authors", "meta", "Meta"), ("tasks", "embeddings", "Text Embeddings")):
        rows = get(client, running, f"/{what}/search").json()["result"]
        assert name in {row["name"] for row in rows}
        found = get(client, running, f"/{what}/search?search={words}").json()["result"]
        assert name in {row["name"] for row in found}
        assert len(found) < len(rows)
        paged = [get(client, running, f"/{what}/search?per_page=7&page={page}").json()["result"] for page in (1, 2, 99)]
        assert paged[0] + paged[1] == rows[:14]
        assert paged[2] == []


def test_openai_model_list_and_single_model(client: httpx.Client, running: Running):
    listed = get(client, running, "/v1/models").json()
    assert listed["object"] == "list"
    assert {PARROT, VECTORS} <= {row["id"] for row in listed["data"]}
    for written in (PARROT, PARROT.replace("/", "%2F"), PARROT.replace("@", "%40")):
        assert get(client, running, f"/v1/models/{written}").json()["owned_by"] == "test"
    assert get(client, running, f"/v1/models/{ALIAS}").json()["id"] == ALIAS
    missing = get(client, running, "/v1/models/@cf/no/thing")
    assert (missing.status_code, missing.json()["error"]["code"]) == (400, 5007)

"""Routes are matched on the raw path; only parameters are decoded, once."""

import pytest

from gateway.errors import Reason, Refusal
from gateway.routing import Access, Route, Router

ACCOUNT = "0123456789abcdef0123456789abcdef"
ROUTER = Router(
    [
        Route("POST", "/v/accounts/{account_id}/ai/run/{model...}", Access.RUN_MODELS, "run"),
        Route("GET", "/v/accounts/{account_id}/ai/models/search", Access.RUN_MODELS, "search"),
        Route("GET", "/v/accounts/{account_id}/ai/v1/models", Access.RUN_MODELS, "list"),
        Route("GET", "/v/accounts/{account_id}/ai/v1/models/{model...}", Access.RUN_MODELS, "get"),
        Route("GET", "/healthz", Access.PUBLIC, "health"),
    ]
)


def match(method: str, path: str):
    route, parameters = ROUTER.match(method, path.encode())
    return route.endpoint, parameters


def refusal_of(method: str, path: str) -> Refusal:
    with pytest.raises(Refusal) as caught:
        ROUTER.match(method, path.encode())
    return caught.value


@pytest.mark.parametrize(
    "written",
    ["@cf/meta/llama", "@cf%2Fmeta%2Fllama", "%40cf/meta/llama", "%40cf%2fmeta%2Fllama", "%40cf%2Fmeta/llama"],
)
def test_all_encodings_of_a_model_id_match_the_same_model(written: str):
    assert match("POST", f"/v/accounts/{ACCOUNT}/ai/run/{written}") == (
        "run",
        {"account_id": ACCOUNT, "model": "@cf/meta/llama"},
    )


def test_double_encoding_is_decoded_once():
    assert match("POST", f"/v/accounts/{ACCOUNT}/ai/run/%2540cf%252Fx%252Fy")[1]["model"] == "%40cf%2Fx%2Fy"


def test_invalid_utf8_matches_no_model():
    assert match("POST", f"/v/accounts/{ACCOUNT}/ai/run/@cf/%ff/x")[1]["model"] == "@cf/�/x"


def test_literal_segment_takes_precedence_over_the_rest_parameter():
    assert match("GET", f"/v/accounts/{ACCOUNT}/ai/v1/models")[0] == "list"
    assert match("GET", f"/v/accounts/{ACCOUNT}/ai/v1/models/@cf%2Fx%2Fy")[0] == "get"


@pytest.mark.parametrize("path", ["/", "", "/nothing", "/v", f"/v/accounts/{ACCOUNT}", f"/v/accounts/{ACCOUNT}/ai/run",
                                  f"/v/accounts/{ACCOUNT}/ai/run/", "/healthz/", "//healthz", "/v/accounts//ai/run/x",
                                  f"/v/accounts/{ACCOUNT}%2Fai/run/x", "/%68ealthz"])  # fmt: skip
def test_unknown_path_has_no_route(path: str):
    assert refusal_of("POST", path).reason is Reason.NO_ROUTE


@pytest.mark.parametrize(
    "account", ["x", ACCOUNT.upper(), ACCOUNT[:-1], ACCOUNT + "0", "%30" + ACCOUNT[1:], "..", "'--"]
)
def test_account_id_is_32_lowercase_hex_digits(account: str):
    assert refusal_of("GET", f"/v/accounts/{account}/ai/models/search").reason is Reason.ACCOUNT_ID_MALFORMED


def test_wrong_method_gets_all_allowed_methods():
    refusal = refusal_of("DELETE", "/healthz")
    assert refusal.reason is Reason.METHOD_NOT_ALLOWED
    assert (b"allow", b"GET, HEAD") in refusal.headers()


def test_head_is_supported_wherever_get_is():
    assert match("HEAD", "/healthz")[0] == "health"

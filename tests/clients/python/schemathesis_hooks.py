"""Additional schemathesis checks: every error has the envelope of its API format.

Loaded by `test_schemathesis.py`. Most generated bodies name an existing model.
"""

import os

import schemathesis


@schemathesis.check
def refusals_have_the_envelope(_ctx, response, case):
    if response.status_code < 400 or case.method.upper() == "HEAD":
        return
    body = response.json()
    assert body["success"] is False, body
    assert body["messages"] == [], body
    assert all(error["code"] >= 971 and error["message"] for error in body["errors"]), body
    assert body["errors"], body
    assert body["result"] in (None, {}), body
    if "/ai/v1/" in case.path:
        assert body["error"]["message"] == body["errors"][0]["message"], body
    assert "Traceback" not in response.text


@schemathesis.hook
def map_body(_ctx, body):
    if isinstance(body, dict) and isinstance(body.get("model"), str) and len(body["model"]) % 8:
        body["model"] = os.environ["HEARTH_CHAT_MODEL"]
    return body

"""What schemathesis looks at beside its own checks: every refusal has the envelope, and that of its family.

Loaded by the run of `test_schemathesis.py`. A body's model is one that is there, most of the time.
"""

import os

import schemathesis


@schemathesis.check
def refusals_have_the_envelope(_ctx, response, case):
    if response.status_code < 400 or case.method.upper() == "HEAD":
        return
    told = response.json()
    assert told["success"] is False, told
    assert told["messages"] == [], told
    assert all(error["code"] >= 971 and error["message"] for error in told["errors"]), told
    assert told["errors"], told
    assert told["result"] in (None, {}), told
    if "/ai/v1/" in case.path:
        assert told["error"]["message"] == told["errors"][0]["message"], told
    assert "Traceback" not in response.text


@schemathesis.hook
def map_body(_ctx, body):
    if isinstance(body, dict) and isinstance(body.get("model"), str) and len(body["model"]) % 8:
        body["model"] = os.environ["HEARTH_CHAT_MODEL"]
    return body

"""What `hearth up` prints when it is ready: calls that answer, to be copied as they are. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def ready_text(dev: Mapping[str, Any], data: str) -> str:
    """`dev` is what dev.json holds; `data` is where it lies."""
    url = f"{dev['base_url']}/accounts/{dev['account_id']}/ai"
    header = f"-H 'Authorization: Bearer {dev['api_token']}'"
    question = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
    run = f"{url}/run/{dev['chat_model']}"
    return f"""
Hearth is ready at {dev["base_url"]}

  account  {dev["account_id"]}
  token    {dev["api_token"]}   (both are also in {data}/dev.json)

Ask, and get the whole answer:

  curl {run} \\
    {header} \\
    -d '{json.dumps(question)}'

Ask, and get it as it is written:

  curl -N {run} \\
    {header} \\
    -d '{json.dumps({**question, "stream": True})}'

Every route, to read and to try: {dev["base_url"].removesuffix("/client/v4")}/docs
OpenAI clients: base URL {url}/v1, the token as key, model {dev["chat_model"]} or {dev["embed_model"]}.
Ctrl-C drains and stops everything.
"""

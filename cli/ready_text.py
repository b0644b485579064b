"""The text that `hearth up` prints when the platform is ready: commands that can be copied as they are."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from local_platform.data_dir import DEFAULT_DATA
from local_platform.plan import SPARK


def ready_text(dev: Mapping[str, Any], data: Path, sign_in_link: str = "") -> str:
    """Return the text for a platform with this `dev.json` in the data directory `data`."""
    url = f"{dev['base_url']}/accounts/{dev['account_id']}/ai"
    header = f"-H 'Authorization: Bearer {dev['api_token']}'"
    content = "What is the capital of France?" if dev["chat_model"] == SPARK else "What is machine learning?"
    question = {"messages": [{"role": "user", "content": content}]}
    run = f"{url}/run/{dev['chat_model']}"
    origin = dev["base_url"].removesuffix("/client/v4")
    option = "" if data == DEFAULT_DATA.resolve() else f" --data {shlex.quote(str(data))}"
    if sign_in_link:
        dashboard = f"""\
Open the dashboard. This link signs you in once, within 10 minutes; `hearth dashboard{option}` prints a new one:

  {sign_in_link}
"""
    else:
        dashboard = f"Dashboard: {origin}/dashboard\n"
    return f"""
Hearth is ready at {dev["base_url"]}

{dashboard}
  account  {dev["account_id"]}
  token    {dev["api_token"]}   (both are also in {data}/dev.json)

Get the whole response:

  curl {run} \\
    {header} \\
    -d '{json.dumps(question)}'

Stream the response:

  curl -N {run} \\
    {header} \\
    -d '{json.dumps({**question, "stream": True})}'

Chat in another terminal, and see the chat models that one command can add:

  hearth chat{option}
  hearth model list --available

The token runs models and reads the account. To create a token that may change everything in the account:

  hearth token create --admin{option}

API reference: {origin}/docs
OpenAI clients: base URL {url}/v1, the token as API key, model {dev["chat_model"]} or {dev["embed_model"]}.
Press Ctrl-C to drain and stop.
"""

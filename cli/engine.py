"""`hearth engine`: register, list and remove foreign engines, which are OpenAI-compatible servers that serve models of
the catalog."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.gateway_request import UrlOption, request_gateway
from cli.output import CommandFailed, JsonOption, print_json, print_record, print_rows
from cli.target import DataOption

app = typer.Typer(
    help="Foreign engines: models on vLLM, SGLang, llama.cpp, Ollama and other OpenAI-compatible servers.",
    no_args_is_help=True,
)
COLUMNS = ("engine", "url", "kind", "pop", "state", "calls", "models")
_MODEL_FIELDS = {
    "input_usd": float,
    "output_usd": float,
    "context_window": int,
    "output_dimensions": int,
    "task": str,
}

NameArgument = Annotated[str, typer.Argument(help="Name of the engine.", show_default=False)]
GatewayOption = UrlOption


@app.command()
def register(
    name: NameArgument,
    base_url: Annotated[
        str, typer.Argument(help="Base URL of the OpenAI routes, such as http://10.0.0.5:8000/v1.", show_default=False)
    ],
    model: Annotated[
        list[str],
        typer.Option(
            "--model",
            help="MODEL=NAME[,input_usd=X][,output_usd=Y][,context_window=N]: a model id and the engine's name for the "
            "model, its prices per million tokens, and the context window if the catalog does not have the model. Can "
            "be repeated.",
        ),
    ],
    key_file: Annotated[
        str, typer.Option("--key-file", help="File with the engine's API key; - reads standard input.")
    ] = "",
    kind: Annotated[
        str,
        typer.Option("--kind", help="vllm, sglang, llama.cpp, ollama, hearth or openai. Default: detected."),
    ] = "",
    pop: Annotated[str, typer.Option("--pop", help="PoP of the engine, for residency rules and distances.")] = "",
    max_calls: Annotated[int, typer.Option("--max-calls", help="Concurrent calls of each gateway.")] = 64,
    keeps_no_content: Annotated[
        bool,
        typer.Option(
            "--keeps-no-content", help="The engine stores nothing, so calls with zero data retention may run."
        ),
    ] = False,
    url: GatewayOption = "",
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Register an engine, or replace one of the same name. Calls of its models can run there within seconds."""
    body: dict[str, Any] = {
        "url": base_url,
        "models": dict(_model_of(text) for text in model),
        "pop": pop,
        "max_calls": max_calls,
        "keeps_no_content": keeps_no_content,
    }
    body |= {"key": _read_key(key_file)} if key_file else {}
    body |= {"kind": kind} if kind else {}
    made = asyncio.run(request_gateway(url, data, "PUT", f"/engines/{name}", body=body))
    if json:
        print_json(made)
        return
    print_record({"engine": made["name"], "node": made["node_id"], "models": ", ".join(made["models"])}, is_json=False)


@app.command("list")
def list_(url: GatewayOption = "", data: DataOption = None, json: JsonOption = False) -> None:
    """List the engines, and whether the gateway reaches them."""
    engines = asyncio.run(request_gateway(url, data, "GET", "/engines", {"per_page": "1000"}))
    if json:
        print_json(engines)
        return
    rows = [
        {
            "engine": each["name"],
            "url": each["url"],
            "kind": each["kind"],
            "pop": each["pop"],
            "state": "reachable" if each["is_reachable"] else each["detail"],
            "calls": each["num_calls"],
            "models": ", ".join(each["models"]),
        }
        for each in engines
    ]
    print_rows(rows, COLUMNS, is_json=False, empty="no engine is registered")


@app.command()
def remove(name: NameArgument, url: GatewayOption = "", data: DataOption = None, json: JsonOption = False) -> None:
    """Remove an engine. Running calls finish."""
    removed = asyncio.run(request_gateway(url, data, "DELETE", f"/engines/{name}"))
    print_record({"engine": removed["name"], "changed": "removed"}, is_json=json)


def _model_of(text: str) -> tuple[str, dict[str, Any]]:
    """Return model id and body of one --model. Raises CommandFailed."""
    head, *options = text.split(",")
    model_id, separator, name = head.partition("=")
    if not separator or not model_id or not name:
        raise CommandFailed(f"--model must be MODEL=NAME (got {text!r})", exit_code=2)
    body: dict[str, Any] = {"name": name}
    for option in options:
        field, _, value = option.partition("=")
        if field not in _MODEL_FIELDS:
            raise CommandFailed(f"--model knows {', '.join(_MODEL_FIELDS)} (got {field!r})", exit_code=2)
        try:
            body[field] = _MODEL_FIELDS[field](value)
        except ValueError:
            raise CommandFailed(f"--model: {field} must be a number (got {value!r})", exit_code=2) from None
    return model_id, body


def _read_key(path: str) -> str:
    try:
        key = sys.stdin.read() if path == "-" else Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"--key-file {path}: {error}", exit_code=2) from None
    return key.strip()

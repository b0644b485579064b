"""`hearth chat`: a conversation in the terminal, or one question, over the platform's OpenAI route."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.output import CommandFailed, JsonOption, print_json
from cli.target import DataOption
from cli.worker import check_gateway, local_gateway
from local_platform.data_dir import DEFAULT_DATA, DataDir

if TYPE_CHECKING:
    from cli.chat_client import ChatClient

_HELP = """\
/bye            leave (also Ctrl-D)
/clear          forget the conversation
/system TEXT    set the system prompt; without TEXT, remove it
Ctrl-C          stop the response
"""


def chat(
    model: Annotated[
        str, typer.Argument(help="Model id or alias. Default: the platform's chat model.", show_default=False)
    ] = "",
    question: Annotated[
        str, typer.Argument(help="Answer this question and exit. Piped standard input is added.", show_default=False)
    ] = "",
    system: Annotated[str, typer.Option(help="System prompt.")] = "",
    max_tokens: Annotated[int | None, typer.Option(help="Token limit of each response.", min=1)] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature.", min=0, max=5)] = None,
    url: Annotated[str, typer.Option(help="Base URL of another Hearth, ending in /client/v4.")] = "",
    account: Annotated[str, typer.Option(help="Account id, with --url.", envvar="CLOUDFLARE_ACCOUNT_ID")] = "",
    token: Annotated[str, typer.Option(help="API token, with --url.", envvar="CLOUDFLARE_API_TOKEN")] = "",
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Chat with a model in the terminal."""
    from cli.chat_client import ChatClient, ChatRefused, GatewayUnavailable
    from worker_runtime.dev_server import GatewayTarget

    gateway = GatewayTarget(url, account, token) if url else local_gateway(data)
    check_gateway(gateway)
    if not gateway.account_id:
        raise CommandFailed("--url needs --account or CLOUDFLARE_ACCOUNT_ID", exit_code=2)
    model = model or _chat_model(url, data)
    options = {"model": model, "max_tokens": max_tokens, "temperature": temperature}
    options = {name: value for name, value in options.items() if value is not None}
    if not sys.stdin.isatty():
        question = "\n\n".join(filter(None, (question, sys.stdin.read().strip())))
    elif json and not question:
        raise CommandFailed("--json needs a QUESTION, or a question on standard input", exit_code=2)
    try:
        with ChatClient(gateway.url, gateway.account_id, gateway.api_token, options) as client:
            _run(Conversation(client, system), question, model, json)
    except (ChatRefused, GatewayUnavailable) as error:
        raise CommandFailed(str(error)) from None


class Conversation:
    """The messages of a conversation so far."""

    def __init__(self, client: ChatClient, system: str) -> None:
        self.system = system
        self._client = client
        self._turns: list[dict[str, str]] = []

    def clear(self) -> None:
        """Forget all messages except the system prompt."""
        self._turns.clear()

    def ask(self, question: str, *, prints: bool) -> tuple[str, str]:
        """Return the response to a question, and its finish reason. With `prints`, print the response as it comes.

        Ctrl-C stops the response; the part that was received stays in the conversation. A question without a response
        is forgotten.
        """
        messages = [{"role": "system", "content": self.system}] if self.system else []
        messages += [*self._turns, {"role": "user", "content": question}]
        text, finish_reason, is_dim = "", "", False
        pieces = self._client.stream(messages)
        try:
            with contextlib.closing(pieces):
                for piece in pieces:
                    text += piece.text
                    finish_reason = piece.finish_reason or finish_reason
                    is_dim = _print_piece(piece.text, piece.reasoning, is_dim) if prints else False
        except KeyboardInterrupt:
            finish_reason = "interrupted"
        finally:
            if prints:
                sys.stdout.write("\x1b[0m\n" if is_dim else "\n")
                sys.stdout.flush()
        if text:
            self._turns += [messages[-1], {"role": "assistant", "content": text}]
        return text, finish_reason


def _chat_model(url: str, data: Path | None) -> str:
    """Return the chat model of the platform on this machine."""
    if url:
        raise CommandFailed("give a MODEL together with --url", exit_code=2)
    running: dict[str, Any] = DataDir(data or DEFAULT_DATA).read_dev() or {}
    return str(running["chat_model"])


def _run(conversation: Conversation, question: str, model: str, is_json: bool) -> None:
    if question:
        _answer_once(conversation, question, model, is_json)
    elif sys.stdin.isatty():
        _talk(conversation, model)
    else:
        raise CommandFailed("standard input is empty: pipe a question, or pass one", exit_code=2)


def _answer_once(conversation: Conversation, question: str, model: str, is_json: bool) -> None:
    text, finish_reason = conversation.ask(question, prints=not is_json)
    if finish_reason == "interrupted":
        raise KeyboardInterrupt
    if is_json:
        print_json({"model": model, "content": text, "finish_reason": finish_reason})
    else:
        _note_limit(finish_reason)


def _talk(conversation: Conversation, model: str) -> None:
    """Read questions and commands from the terminal until /bye or Ctrl-D."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives `input` line editing and history
    sys.stdout.write(f"Chatting with {model}. /help lists the commands.\n")
    while True:
        try:
            line = input(">>> ").strip()
        except KeyboardInterrupt:
            sys.stdout.write("\nType /bye to leave.\n")
            continue
        except EOFError:
            sys.stdout.write("\n")
            return
        if line == "/bye":
            return
        if line.startswith("/"):
            _run_command(conversation, line)
        elif line:
            _answer(conversation, line)


def _run_command(conversation: Conversation, line: str) -> None:
    command, _, text = line.partition(" ")
    if command == "/clear":
        conversation.clear()
    elif command == "/system":
        conversation.system = text.strip()
    else:
        sys.stdout.write(_HELP if command in ("/help", "/?") else f"unknown command {command}\n{_HELP}")


def _answer(conversation: Conversation, question: str) -> None:
    from cli.chat_client import ChatRefused

    try:
        _note_limit(conversation.ask(question, prints=True)[1])
    except ChatRefused as error:
        sys.stderr.write(f"hearth: {error}\n")


def _note_limit(finish_reason: str) -> None:
    if finish_reason == "length":
        sys.stderr.write("hearth: the response ended at its token limit; --max-tokens raises the limit\n")


def _print_piece(text: str, reasoning: str, is_dim: bool) -> bool:
    """Print a part of a response; the model's reasoning is dim, on terminals only. Return True while text is dim."""
    if reasoning and sys.stdout.isatty():
        sys.stdout.write(("" if is_dim else "\x1b[2m") + reasoning)
        is_dim = True
    if text:
        sys.stdout.write(("\x1b[0m\n" if is_dim else "") + text)
        is_dim = False
    sys.stdout.flush()
    return is_dim

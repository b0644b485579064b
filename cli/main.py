"""The `hearth` command: the list of its subcommands, and the conversion of every failure to one line.

Subcommands import what they need when they run, so that `hearth --help` is fast.
"""

from __future__ import annotations

import os
import sys

import typer

from cli.account import app as account
from cli.audit import app as audit
from cli.budget import app as budget
from cli.chat import chat
from cli.dashboard import dashboard
from cli.doctor import doctor
from cli.engine import app as engine
from cli.finetune import app as finetune
from cli.migrate import migrate
from cli.model import app as model
from cli.node import app as node
from cli.operator import app as operator
from cli.output import CommandFailed, print_failure
from cli.pilot import pilot
from cli.pop import app as pop
from cli.scale import app as scale
from cli.service import app as service
from cli.settings import settings
from cli.token import app as token
from cli.up import up
from cli.usage import usage
from cli.user import app as user
from cli.worker import app as worker

app = typer.Typer(
    name="hearth",
    help="Hearth: a self-hosted, multi-tenant AI inference platform.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(up)
app.command()(dashboard)
app.command()(chat)
app.add_typer(account, name="account")
app.add_typer(token, name="token")
app.add_typer(user, name="user")
app.add_typer(operator, name="operator")
app.add_typer(audit, name="audit")
app.add_typer(budget, name="budget")
app.add_typer(model, name="model")
app.add_typer(node, name="node")
app.add_typer(pop, name="pop")
app.add_typer(engine, name="engine")
app.add_typer(scale, name="scale")
app.add_typer(finetune, name="finetune")
app.add_typer(worker, name="worker")
app.add_typer(service, name="service")
app.command()(usage)
app.command()(pilot)
app.command()(doctor)
app.command()(settings)
app.command()(migrate)

# The exception for an invalid command line. Typer exports only this subclass of it.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def main() -> None:
    """Run one command and exit: 0 success, 1 wrong state, 2 invalid request, 130 interrupted."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit status."""
    is_json = "--json" in arguments
    try:
        status = app(arguments, prog_name="hearth", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except CommandFailed as error:
        print_failure(str(error), error.exit_code, is_json=is_json)
        return error.exit_code
    except _UsageError as error:
        message = error.format_message()  # type: ignore[attr-defined]
        if message or is_json:  # an empty message means that the help text has been printed
            print_failure(f"{message or 'no command given'} (see `hearth --help`)", 2, is_json=is_json)
        return 2
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # The reader of standard output has closed it. Without this, the interpreter would fail again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    main()

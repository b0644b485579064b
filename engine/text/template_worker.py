"""The process that compiles and renders chat templates: `python -m engine.text.template_worker`.

A template comes from the publisher of a model, so it runs in Jinja's immutable sandbox, in a process that holds no
secrets, has bounded memory, and cannot open files or start processes. A CPU timer ends the process during a render
that takes too long; `template_pool.py` then starts another one. The connection is standard input, a socket; frames in
both directions have 4 bytes of little-endian length.
"""

from __future__ import annotations

import json
import pickle
import resource
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2.debug  # noqa: F401 - imported by Jinja after the first error, when files can no longer be opened
import msgspec
from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from msgspec import Struct

from engine.processes.frames import framed, receive_frame
from telemetry.bounded_cache import BoundedCache

MAX_TEXT_CHARS = 32 * 1024 * 1024  # limit for a rendered prompt
MAX_RENDER_CPU_S = 2.0
MEMORY_BYTES = 512 * 1024 * 1024  # beyond what the process uses at its start
MAX_TEMPLATES = 64  # compiled templates cached

# Errors that a template causes with the values it is given.
_VALUE_ERRORS = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    NotImplementedError,
    OSError,  # the sandbox forbids opening files
    ImportError,
)
# Uses what Jinja and Python load from files on first use, before files can no longer be opened.
_WARM_UP = """{%- set n = namespace(x='a\\n') -%}{{ ['b', 'a']|sort|unique|map('upper')|join(', ') }}
{{ n.x|indent(2)|wordwrap(5)|title|trim }}{{ {'a': 1.5}|tojson }}{{ [1]|pprint }}{{ '%s'|format(n) }}
{{ 'a b'|urlize }}{{ 'a b'|urlencode }}{{ strftime_now('%d %b %Y') }}{{ 'x'.encode('utf-8') }}
{% for x in [1, 2]|batch(1) recursive %}{{ loop.cycle('a', 'b') }}{% break %}{% endfor %}
{% macro m() %}{{ raise_exception('x') }}{% endmacro %}{{ m() }}"""


@dataclass(frozen=True)
class Request:
    """Compile a template, and render it if `values` is given.

    `digest` identifies the template; `source` may be None if the worker has probably compiled it before. `max_cpu_s`
    is the CPU time after which the worker is killed.
    """

    digest: bytes
    source: str | None
    values: dict[str, Any] | None
    now: datetime
    max_cpu_s: float


class Rendered(Struct, frozen=True, tag="rendered"):
    """The text, in UTF-8 with lone surrogates allowed."""

    text: bytes


class Compiled(Struct, frozen=True, tag="compiled"):
    """The strings and attribute names in the template's expressions, the text between them, and its variables."""

    words: frozenset[str]
    written: frozenset[str]
    variables: frozenset[str]


class Rejected(Struct, frozen=True, tag="rejected"):
    """The template cannot be compiled or rendered. After `is_exhausted` the worker exits."""

    message: str
    is_exhausted: bool = False


class SourceMissing(Struct, frozen=True, tag="source_missing"):
    """The template is not in the cache: send the request again with its source."""


Response = Rendered | Compiled | Rejected | SourceMissing
_TOO_LARGE = Rejected("the chat template uses too much memory", is_exhausted=True)


class _GenerationBlocks(Extension):
    """Supports `{% generation %}…{% endgeneration %}`, which marks the assistant's turns for training: renders the
    body, in a scope of its own."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Environment(ImmutableSandboxedEnvironment):
    """Allows `append` and `pop` of lists, which the templates of some models use. All values are copies, so nothing
    that a template changes outlives its render."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return (type(obj) is list and attr in ("append", "pop")) or super().is_safe_attribute(obj, attr, value)


class TemplateRenderer:
    """Compiles, caches and renders templates with what `transformers` provides to them."""

    def __init__(self) -> None:
        self._environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols]
        )
        self._environment.filters["tojson"] = _to_json
        self._environment.globals["raise_exception"] = _raise_exception
        self._templates: BoundedCache[bytes, tuple[Template, Compiled]] = BoundedCache(MAX_TEMPLATES)

    def handle(self, request: Request) -> Response:
        """Serve one request. Never raises an error that a template can cause."""
        try:
            found = self._templates.get(request.digest)
            if found is None:
                if request.source is None:
                    return SourceMissing()
                found = self._compile(request.digest, request.source)
            if request.values is None:
                return found[1]
            return _render(found[0], request.values, request.now)
        except TemplateError as error:
            return Rejected(f"the chat template cannot be read: {error}")
        except (SyntaxError, *_VALUE_ERRORS):
            return Rejected("the chat template cannot be read: it is too large or nested too deep")
        except MemoryError:
            return _TOO_LARGE

    def _compile(self, digest: bytes, source: str) -> tuple[Template, Compiled]:
        tree = self._environment.parse(source)
        words = {constant.value for constant in tree.find_all(nodes.Const) if isinstance(constant.value, str)}
        words |= {attribute.attr for attribute in tree.find_all(nodes.Getattr)}
        written = {data.data for data in tree.find_all(nodes.TemplateData)}
        variables = {variable.name for variable in tree.find_all(nodes.Name)}
        compiled = Compiled(frozenset(words), frozenset(written), frozenset(variables))
        found = self._environment.from_string(tree), compiled
        self._templates.put(digest, found)
        return found


def _render(template: Template, values: dict[str, Any], now: datetime) -> Response:
    pieces: list[str] = []
    size = 0
    try:
        for piece in template.generate({**values, "strftime_now": now.strftime}):
            size += len(piece)
            if size > MAX_TEXT_CHARS:
                return Rejected("the chat template renders too much text")
            pieces.append(piece)
        return Rendered("".join(pieces).encode(errors="surrogatepass"))
    except TemplateError as error:
        return Rejected(f"the model's chat template refused the messages: {error.message}")
    except _VALUE_ERRORS:
        return Rejected("the model's chat template cannot render these messages")
    except MemoryError:
        return _TOO_LARGE


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Replace Jinja's `tojson`, which escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _limit_resources() -> None:
    """Bound the memory of this process and forbid new files and processes, irrevocably."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES,) * 2)
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_CORE):
        resource.setrlimit(limit, (0, 0))


def serve(connection: socket.socket, handle: Callable[[Request], Response]) -> None:
    """Serve requests until the connection closes or memory is exhausted."""
    encode = msgspec.msgpack.encode
    while (payload := receive_frame(connection)) is not None:
        request: Request = pickle.loads(payload)  # noqa: S301 - from the parent process only
        signal.setitimer(signal.ITIMER_PROF, request.max_cpu_s)  # SIGPROF ends the process
        response = handle(request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.sendall(framed(encode(response)))
        if isinstance(response, Rejected) and response.is_exhausted:
            return


def main() -> None:
    """Serve the socket that is standard input."""
    # Under `-m` this module is called __main__: requests are pickled with its real name.
    from engine.text import template_worker

    sys.setrecursionlimit(1000)
    renderer = template_worker.TemplateRenderer()
    renderer.handle(template_worker.Request(b"", _WARM_UP, {}, datetime.now(), 0.0))
    _limit_resources()
    with socket.socket(fileno=0) as connection:
        template_worker.serve(connection, renderer.handle)


if __name__ == "__main__":
    main()

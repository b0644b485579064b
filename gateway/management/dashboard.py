"""`/dashboard`: the built single-page app, its assets, and a help page if the app is not built.

Assets have the hash of their content in their names, so browsers may keep them forever. `index.html` is sent with a new
nonce in every response, so it is never kept. The build puts `.gz` and `.br` files beside the assets; nothing is
compressed while the gateway serves.
"""

from __future__ import annotations

import hashlib
import mimetypes
import secrets
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import Reason, Refusal
from gateway.services import Services

FOLDER = Path(__file__).parent.parent / "static"
PAGE = "index.html"

_NONCE_PLACEHOLDER = b"__CSP_NONCE__"
_ENCODINGS = (("br", ".br"), ("gzip", ".gz"))  # encoding and file suffix, the preferred encoding first
_FOREVER, _ALWAYS_CHECKED = "public, max-age=31536000, immutable", "no-cache"
_COMMON = {"referrer-policy": "no-referrer"}
_POLICY = (
    "default-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data: blob:; media-src 'self' blob:; "
    "object-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
_NOT_BUILT = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Hearth</title></head><body>
<h1>The dashboard is not built</h1>
<p>The platform works without it: the <a href="/docs">API reference</a> lists all routes.</p>
<p>To build the dashboard, run <code>make dashboard</code> in the folder of Hearth and load this page again. The command
needs Node.js 22.12 or later, or access to a Python package index, from which it installs Node.js into the folder.</p>
</body></html>
"""


@dataclass(frozen=True)
class _File:
    """One file of the build. `variants` are the contents by content coding; `identity` is the file itself."""

    media_type: str
    etag: str
    cache_control: str
    variants: dict[str, bytes]


class Dashboard:
    """Serves the files of a folder, which are read again when a new build replaces `index.html`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, _File] = {}
        self._built_ns = -1

    async def redirect(self, _services: Services, _request: Request) -> Response:
        """Redirect to the dashboard."""
        return Response(status_code=307, headers={**_COMMON, "location": "/dashboard"})

    async def page(self, _services: Services, _request: Request) -> Response:
        """Get the dashboard."""
        self._reload()
        page = self._files.get(PAGE)
        nonce = secrets.token_urlsafe(18)
        content = _NOT_BUILT if page is None else page.variants["identity"]
        headers = {
            **_COMMON,
            "cache-control": _ALWAYS_CHECKED,
            "content-security-policy": _POLICY.format(nonce=nonce),
        }
        return Response(
            content.replace(_NONCE_PLACEHOLDER, nonce.encode()),
            headers=headers,
            media_type="text/html",
        )

    async def file(self, services: Services, request: Request) -> Response:
        """Get a file of the dashboard, or the dashboard itself for the path of a screen."""
        self._reload()
        path: str = request.path_params["path"]
        found = self._files.get(path)
        if path == PAGE or (found is None and not path.startswith("assets/")):
            return await self.page(services, request)
        if found is None:
            raise Refusal(Reason.OBJECT_UNKNOWN)
        headers = {**_COMMON, "cache-control": found.cache_control, "vary": "accept-encoding", "etag": found.etag}
        if found.etag in _listed(request.headers.get("if-none-match", "")):
            return Response(status_code=304, headers=headers)
        coding = _coding(request.headers.get("accept-encoding", ""), found)
        if coding != "identity":
            headers["content-encoding"] = coding
        return Response(found.variants[coding], headers=headers, media_type=found.media_type)

    def _reload(self) -> None:
        """Read the folder, unless its build has been read already."""
        try:
            built_ns = (self._folder / PAGE).stat().st_mtime_ns
        except OSError:
            built_ns = 0
        if built_ns != self._built_ns:
            self._files = _read(self._folder) if built_ns else {}
            self._built_ns = built_ns


def _read(folder: Path) -> dict[str, _File]:
    """Return the files of a build by their paths, without hidden ones."""
    files = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    contents = {
        path.as_posix(): file.read_bytes()
        for path, file in files.items()
        if not any(part.startswith(".") for part in path.parts)
    }
    suffixes = tuple(suffix for _, suffix in _ENCODINGS)
    found: dict[str, _File] = {}
    for path, content in contents.items():
        if path.endswith(suffixes) and path[: path.rindex(".")] in contents:
            continue
        variants = {coding: contents[path + suffix] for coding, suffix in _ENCODINGS if path + suffix in contents}
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        cache_control = _FOREVER if path.startswith("assets/") else _ALWAYS_CHECKED
        media_type = mimetypes.guess_type(path)[0] or "application/octet-stream"
        found[path] = _File(media_type, etag, cache_control, {**variants, "identity": content})
    return found


def _coding(accepted: str, file: _File) -> str:
    """Return the best content coding of a file that an `accept-encoding` header allows."""
    names = {part.partition(";")[0].strip().lower() for part in _listed(accepted) if not _is_refused(part)}
    return next((coding for coding, _ in _ENCODINGS if coding in names and coding in file.variants), "identity")


def _is_refused(part: str) -> bool:
    weight = part.replace(" ", "").partition(";q=")[2]
    return bool(weight) and not weight.strip("0.")


def _listed(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]

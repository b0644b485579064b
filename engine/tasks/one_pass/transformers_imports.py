"""Import the parts of `transformers` that every model needs. This takes seconds, so workers are forked from a process
that has done so; see `libraries.py`. Starts no thread and does not initialize CUDA.
"""

from __future__ import annotations

import importlib
import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read once, when `huggingface_hub` is imported
# torch then asks NVML whether there are GPUs. Asking CUDA would make it unusable in forked processes.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

import transformers
from transformers.utils import logging

for _name in ("generation.utils", "modeling_utils", "models.auto.modeling_auto", "models.auto.processing_auto"):
    importlib.import_module(f"transformers.{_name}")
logging.set_verbosity_error()
logging.disable_progress_bar()

__all__ = ["transformers"]

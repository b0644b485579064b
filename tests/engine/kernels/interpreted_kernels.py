"""Compare Triton kernels with their definitions: run with TRITON_INTERPRET=1 and a module of bench/device/kernel_cases.

Prints the largest relative error of each case as JSON. Runs in a process of its own, because Triton reads the variable
when it is imported.
"""

from __future__ import annotations

import importlib
import json
import sys

import torch

if __name__ == "__main__":
    torch.set_num_threads(1)
    cases = importlib.import_module(f"bench.device.kernel_cases.{sys.argv[1]}")
    json.dump(cases.check(torch.device("cpu")), sys.stdout)

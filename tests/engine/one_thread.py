"""Import to keep torch on one thread: with other processes busy, its barriers cost more than threads give."""

from __future__ import annotations

import torch

torch.set_num_threads(1)

"""Train the model of handwritten digits from the data set `digits.csv.gz` of scikit-learn: 1797 images of 8 x 8 pixels.

Class-conditional diffusion with a small U-Net in the layout of diffusers, in about a minute of processor time. For
guidance, every tenth digit is shown to the model without its class.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from catalog.errors import PullError

SOURCE = "digits.csv.gz"
SIDE = 8
NUM_CLASSES = 10
_NO_CLASS = NUM_CLASSES
_NUM_STEPS = 1000
_BATCH = 64
_TOP_RATE = 4e-3
_WITHOUT_CLASS = 0.1
_AVERAGE_DECAY = 0.99
_NOISE_STEPS = 200
_BRIGHTEST = 16
_UNET: dict[str, Any] = {
    "sample_size": SIDE,
    "in_channels": 1,
    "out_channels": 1,
    "layers_per_block": 1,
    "block_out_channels": (16, 32),
    "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
    "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    "attention_head_dim": 16,
    "norm_num_groups": 8,
    "num_class_embeds": NUM_CLASSES + 1,
}


def convert(sources: Path, model_dir: Path) -> None:
    """Train the model and write its folder. Raises PullError."""
    try:
        import torch
        from diffusers import DDIMScheduler, UNet2DModel
    except ImportError:
        raise PullError("training needs the packages torch and diffusers: pip install 'hearth[images]'") from None
    images, classes = read_digits(sources / SOURCE)
    torch.manual_seed(0)
    unet = UNet2DModel(**_UNET)
    scheduler = DDIMScheduler(num_train_timesteps=_NOISE_STEPS, beta_schedule="squaredcos_cap_v2", clip_sample=True)
    _train(unet, scheduler, torch.from_numpy(images), torch.from_numpy(classes))
    unet.save_pretrained(model_dir / "unet", safe_serialization=True)
    scheduler.save_pretrained(model_dir / "scheduler")
    index = {
        "_class_name": "DigitPipeline",
        "unet": ["diffusers", "UNet2DModel"],
        "scheduler": ["diffusers", "DDIMScheduler"],
    }
    (model_dir / "model_index.json").write_text(json.dumps(index, indent=2))


def read_digits(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the images as float32 between -1 and 1, [N, 1, SIDE, SIDE], and their classes, [N]."""
    with gzip.open(file, "rt") as lines:
        rows = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    pixels = rows[:, :-1].reshape(-1, 1, SIDE, SIDE)
    return pixels / (_BRIGHTEST / 2) - 1, rows[:, -1].astype(np.int64)


def _train(unet: Any, scheduler: Any, images: Any, classes: Any) -> None:
    """Train the U-Net to predict the noise, and leave it with the average of its latest weights."""
    import torch

    optimizer = torch.optim.AdamW(unet.parameters(), lr=_TOP_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _TOP_RATE, total_steps=_NUM_STEPS)
    average = [each.detach().clone() for each in unet.parameters()]
    for _ in range(_NUM_STEPS):
        rows = torch.randint(len(images), (_BATCH,))
        is_hidden = torch.rand(_BATCH) < _WITHOUT_CLASS
        labels = torch.where(is_hidden, torch.tensor(_NO_CLASS), classes[rows])
        times = torch.randint(_NOISE_STEPS, (_BATCH,))
        noise = torch.randn_like(images[rows])
        predicted = unet(scheduler.add_noise(images[rows], noise, times), times, labels).sample
        loss: Any = torch.nn.functional.mse_loss(predicted, noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        for mean, latest in zip(average, unet.parameters(), strict=True):
            mean.lerp_(latest.detach(), 1 - _AVERAGE_DECAY)
    with torch.no_grad():
        for mean, latest in zip(average, unet.parameters(), strict=True):
            latest.copy_(mean)

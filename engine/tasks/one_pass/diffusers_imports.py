"""Import `transformers` and the parts of `diffusers` that pipelines need, for the same reason as
`transformers_imports.py`. Raises ImportError if `diffusers` is not installed.
"""

from __future__ import annotations

import logging

from engine.tasks.one_pass.transformers_imports import transformers  # sets the environment

# isort: split
import diffusers

for _name in ("AutoPipelineForImage2Image", "DDIMScheduler", "UNet2DModel"):
    getattr(diffusers, _name)  # imports its module
diffusers.utils.logging.set_verbosity_error()
diffusers.utils.logging.disable_progress_bar()
logging.getLogger(transformers.__name__).setLevel(logging.ERROR)

__all__ = ["diffusers"]

"""Small pipelines of `diffusers` with random weights: Stable Diffusion, Stable Diffusion XL and FLUX."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    PNDMScheduler,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
)

SIDE = 32  # pixels of the images that the pipelines make by default


def make_pipeline(kind: str, folder: Path) -> Path:
    """Write a pipeline of this kind (`sd`, `sdxl` or `flux`) to `folder`."""
    torch.manual_seed(0)
    make = {"sd": _stable_diffusion, "sdxl": _stable_diffusion_xl, "flux": _flux}[kind]
    make(folder).save_pretrained(folder, safe_serialization=True)
    return folder


def _clip(folder: Path, with_projection: bool = False) -> tuple[Any, CLIPTokenizer]:
    """Return a text encoder whose tokens are letters, and its tokenizer."""
    letters = [f"{letter}{end}" for letter in "abcdefghijklmnopqrstuvwxyz" for end in ("", "</w>")]
    vocabulary = {token: number for number, token in enumerate([*letters, "<|startoftext|>", "<|endoftext|>"])}
    source = folder / "clip"
    source.mkdir(parents=True, exist_ok=True)
    (source / "vocab.json").write_text(json.dumps(vocabulary))
    (source / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = CLIPTokenizer(str(source / "vocab.json"), str(source / "merges.txt"), model_max_length=16)
    for file in source.iterdir():
        file.unlink()
    source.rmdir()
    config = CLIPTextConfig(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=37, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=16, projection_dim=32, bos_token_id=len(vocabulary) - 2,
        eos_token_id=len(vocabulary) - 1, pad_token_id=len(vocabulary) - 1,
    )  # fmt: skip
    encoder = (CLIPTextModelWithProjection if with_projection else CLIPTextModel)(config)
    return encoder.eval(), tokenizer


def _vae(channels: int = 4) -> AutoencoderKL:
    return AutoencoderKL(
        block_out_channels=(8, 8), down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=channels, norm_num_groups=4, sample_size=SIDE,
        shift_factor=0.0, scaling_factor=0.2,
    ).eval()  # fmt: skip


def _unet(**options: Any) -> UNet2DConditionModel:
    return UNet2DConditionModel(
        block_out_channels=(8, 16), layers_per_block=1, sample_size=SIDE // 2, in_channels=4, out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=2, norm_num_groups=4, **options,
    ).eval()  # fmt: skip


def _stable_diffusion(folder: Path) -> StableDiffusionPipeline:
    encoder, tokenizer = _clip(folder)
    return StableDiffusionPipeline(
        vae=_vae(), text_encoder=encoder, tokenizer=tokenizer, unet=_unet(cross_attention_dim=32),
        scheduler=PNDMScheduler(skip_prk_steps=True, steps_offset=1), safety_checker=None, feature_extractor=None,
        requires_safety_checker=False,
    )  # fmt: skip


def _stable_diffusion_xl(folder: Path) -> StableDiffusionXLPipeline:
    (first, tokenizer), (second, _) = _clip(folder), _clip(folder, with_projection=True)
    unet = _unet(
        cross_attention_dim=64, addition_embed_type="text_time", addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=32 + 6 * 8, transformer_layers_per_block=1,
    )  # fmt: skip
    return StableDiffusionXLPipeline(
        vae=_vae(), text_encoder=first, text_encoder_2=second, tokenizer=tokenizer, tokenizer_2=tokenizer, unet=unet,
        scheduler=EulerDiscreteScheduler(),
    )  # fmt: skip


def _flux(folder: Path) -> FluxPipeline:
    encoder, tokenizer = _clip(folder)
    words = Tokenizer(models.WordLevel({"<pad>": 0, "</s>": 1, "<unk>": 2, "boat": 3}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    second = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=16
    )
    transformer = FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8), guidance_embeds=False,
    )  # fmt: skip
    t5 = T5EncoderModel(T5Config(vocab_size=8, d_model=32, d_kv=8, d_ff=37, num_layers=1, num_heads=4))
    return FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(), vae=_vae(), text_encoder=encoder, tokenizer=tokenizer,
        text_encoder_2=t5.eval(), tokenizer_2=second, transformer=transformer.eval(),
    )  # fmt: skip

"""The quantized types of GGUF that the engine computes with in their own levels, scales and offsets.

A row consists of blocks of 32 inputs, or of 256 in the K types, which divide into groups. See `quantize_row_*` in
llama.cpp for the layouts.

| type | levels | groups | a block holds |
|---|---|---|---|
| Q8_0 | 8 bits | 32 | scale, 32 signed levels |
| Q4_0, Q5_0 | 4, 5 bits | 32 | scale, for Q5_0 the fifth bits, 32 half bytes |
| Q4_1, Q5_1 | 4, 5 bits | 32 | as above, with an offset after the scale |
| Q4_K, Q5_K | 4, 5 bits | 32 | scale and offset of 12 packed 6-bit scales and offsets, fifth bits, 256 half bytes |
| Q6_K | 6 bits | 16 | 256 half bytes, 256 pairs of high bits, 16 signed scales, their scale |

Levels of 5 and 6 bits are stored in 8 bits.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from engine.checkpoints.quantized import PackedForm, QuantizedTensor, quantized

PACKED_TYPES = {
    "Q8_0": PackedForm(8, 32, is_symmetric=True),
    "Q4_0": PackedForm(4, 32, is_symmetric=True),
    "Q5_0": PackedForm(8, 32, is_symmetric=True),
    "Q4_1": PackedForm(4, 32, is_symmetric=False, has_offsets=True),
    "Q5_1": PackedForm(8, 32, is_symmetric=False, has_offsets=True),
    "Q4_K": PackedForm(4, 32, is_symmetric=False, has_offsets=True),
    "Q5_K": PackedForm(8, 32, is_symmetric=False, has_offsets=True),
    "Q6_K": PackedForm(8, 16, is_symmetric=True),
}
_BLOCK_BYTES = {"Q8_0": 34, "Q4_0": 18, "Q5_0": 22, "Q4_1": 20, "Q5_1": 24, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210}
_NUM_BITS = {"Q4_0": 4, "Q5_0": 5, "Q4_1": 4, "Q5_1": 5, "Q4_K": 4, "Q5_K": 5}


def unpack_blocks(name: str, rows: torch.Tensor) -> QuantizedTensor:
    """Return the matrix of a type in `PACKED_TYPES` from its bytes, uint8 [out, bytes of a row]."""
    blocks = rows.unflatten(1, (-1, _BLOCK_BYTES[name]))  # [out, blocks, bytes]
    if name == "Q8_0":
        return _matrix(name, blocks[..., 2:] ^ 128, _halves(blocks[..., :2]), None)
    if name == "Q6_K":
        return _unpack_q6_k(blocks)
    if name in ("Q4_K", "Q5_K"):
        return _unpack_k(name, blocks)
    return _unpack_plain(name, blocks)


def round_to_8_bits(values: torch.Tensor) -> QuantizedTensor:
    """Round float32 [out, in] to 255 levels per group of 32 inputs."""
    groups = values.unflatten(1, (-1, 32))  # [out, groups, 32]
    scales = groups.abs().amax(-1, keepdim=True) / 127
    levels = torch.round(groups / torch.where(scales == 0, 1.0, scales)) + 128
    return quantized(levels.to(torch.uint8).flatten(1), 8, scales.squeeze(-1), None, 32, None)


def _matrix(name: str, levels: torch.Tensor, scales: torch.Tensor, offsets: torch.Tensor | None) -> QuantizedTensor:
    """Return the matrix of levels [out, blocks, …], and of scales and offsets that the groups have in the same order.

    `offsets` are those of levels counted from 0.
    """
    form, num_bits = PACKED_TYPES[name], _NUM_BITS.get(name, 8)
    scales, levels = scales.flatten(1).float(), levels.flatten(1)
    if offsets is not None:
        offsets = offsets.flatten(1).float() + scales * (1 << (num_bits - 1))
    if form.bits == 8 and num_bits < 8:
        levels = levels + (128 - (1 << (num_bits - 1)))  # moves the middle of the levels to that of 8 bits
    matrix = quantized(levels, form.bits, scales, None, form.group_size, None)
    return replace(matrix, offsets=offsets)


def _unpack_plain(name: str, blocks: torch.Tensor) -> QuantizedTensor:
    """Q4_0, Q4_1, Q5_0 and Q5_1: of a byte's two levels, the low half is input i, the high half input i + 16."""
    has_offset = name.endswith("1")
    header = 4 if has_offset else 2
    levels = torch.cat((blocks[..., -16:] & 15, blocks[..., -16:] >> 4), -1)  # [out, blocks, 32]
    if name.startswith("Q5"):
        fifth = blocks[..., header : header + 4].unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8) & 1
        levels = levels | fifth.flatten(-2) << 4
    offsets = _halves(blocks[..., 2:4]) if has_offset else None
    return _matrix(name, levels, _halves(blocks[..., :2]), offsets)


def _unpack_k(name: str, blocks: torch.Tensor) -> QuantizedTensor:
    """Q4_K and Q5_K: 32 bytes hold the low halves of one group and the high halves of the next."""
    packed = blocks[..., 4:16].unflatten(-1, (3, 4))  # low six bits of scales 0-3 and offsets 0-3, then the rest
    first, second, rest = packed.unbind(-2)  # [out, blocks, 4]
    scales = torch.cat((first & 63, rest & 15 | first >> 6 << 4), -1)  # [out, blocks, 8]
    offsets = torch.cat((second & 63, rest >> 4 | second >> 6 << 4), -1)
    halves = blocks[..., -128:].unflatten(-1, (4, 1, 32))
    levels = torch.cat((halves & 15, halves >> 4), -2).flatten(-3, -2)  # [out, blocks, 8, 32]
    if name == "Q5_K":
        fifth = blocks[..., 16:48].unsqueeze(-2) >> torch.arange(8, dtype=torch.uint8).unsqueeze(-1) & 1
        levels = levels | fifth << 4
    scale, least = _halves(blocks[..., :2]), _halves(blocks[..., 2:4])  # [out, blocks, 1]
    return _matrix(name, levels, scales * scale, offsets * -least)


def _unpack_q6_k(blocks: torch.Tensor) -> QuantizedTensor:
    """Q6_K: each half of a block has 64 bytes of low bits and 32 bytes of high bits for 4 × 32 levels."""
    low = blocks[..., :128].unflatten(-1, (2, 64))
    low = torch.cat((low & 15, low >> 4), -1).unflatten(-1, (4, 32))  # [out, blocks, 2, 4, 32]
    high = blocks[..., 128:192].unflatten(-1, (2, 1, 32))
    high = high >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8).unsqueeze(-1) & 3
    levels = (low | high << 4) + (128 - 32)
    scales = blocks[..., 192:208].contiguous().view(torch.int8) * _halves(blocks[..., 208:210])
    return _matrix("Q6_K", levels, scales, None)


def _halves(data: torch.Tensor) -> torch.Tensor:
    """Return bytes [..., 2] as float32 [..., 1]."""
    return data.contiguous().view(torch.float16).float()

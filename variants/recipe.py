"""The recipe of a variant in another number format. Rejects impossible recipes."""

from __future__ import annotations

from dataclasses import dataclass

METHOD = 1  # version of the rounding: the same version gives the same bytes
FORMATS = ("fp8", "int8", "int4")
GROUP_SIZES = (32, 64, 128, 256)
DEFAULT_GROUP_SIZE = 32


class RecipeError(Exception):
    """A variant cannot be made; the text names the field or the matrix."""


@dataclass(frozen=True)
class Recipe:
    """`format` int8 and fp8 (e4m3): scales per output, activations quantized per token at run time. int4: scales per
    `group_size` inputs.

    If `is_group_size_forced`, a matrix that the group size does not divide is an error; otherwise it stays unquantized.
    """

    format: str
    group_size: int | None = None
    is_group_size_forced: bool = False

    @property
    def bits(self) -> int:
        return 4 if self.format == "int4" else 8

    @property
    def unit(self) -> tuple[int, int]:
        """Return the numbers that must divide a matrix's outputs and inputs. Matrix units need multiples of 16."""
        return {"fp8": (16, 16), "int8": (1, 1), "int4": (16, self.group_size or 1)}[self.format]


def make_recipe(number_format: str, group_size: int | None) -> Recipe:
    """Raises RecipeError."""
    if number_format not in FORMATS:
        raise RecipeError(f"--format: {number_format[:50]!r} is not known (known: {', '.join(FORMATS)})")
    if number_format != "int4":
        if group_size is not None:
            raise RecipeError(f"--group-size is for int4; {number_format} has one scale for each output")
        return Recipe(number_format)
    if group_size is None:
        return Recipe(number_format, DEFAULT_GROUP_SIZE)
    if group_size not in GROUP_SIZES:
        known = ", ".join(str(size) for size in GROUP_SIZES)
        raise RecipeError(f"--group-size: {group_size} is not one of {known}")
    return Recipe(number_format, group_size, is_group_size_forced=True)

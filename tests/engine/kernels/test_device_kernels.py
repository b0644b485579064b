"""The Triton kernels beside attention equal their definitions in Triton's interpreter.

The interpreter truncates where a device rounds to nearest, hence the tolerances of the narrow types.
"""

from __future__ import annotations

import pytest

from tests.engine.kernels.test_device import interpreted

TOLERANCES = {"float8": 0.2, "8-bit": 0.2, "float32": 1e-5}


def faults(errors: dict[str, float]) -> dict[str, float]:
    """Return the cases whose error exceeds the tolerance of the type in their name."""
    return {
        case: error
        for case, error in errors.items()
        if error > next((limit for kind, limit in TOLERANCES.items() if kind in case), 0.02)
    }


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("family", "num_cases"), [("fused", 40), ("experts", 20), ("low_rank", 16), ("packed", 40), ("sampler", 11)]
)
def test_kernels_equal_their_definitions(family: str, num_cases: int) -> None:
    errors = interpreted("tests.engine.kernels.interpreted_kernels", family)
    assert len(errors) >= num_cases
    assert faults(errors) == {}

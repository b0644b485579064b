"""A fake constraint checker that refuses what a test selects."""

from __future__ import annotations

from engine.protocol.output_format import Constraint
from engine.structured.refusal import ConstraintRefused


class FakeChecker:
    """Accepts every constraint except those whose text contains one of `refused`, and records the checked
    constraints."""

    def __init__(self, *refused: str, is_timeout: bool = False) -> None:
        self.refused = refused
        self.is_timeout = is_timeout
        self.checked: list[Constraint] = []
        self.is_closed = False

    async def check(self, constraint: Constraint, namespace: bytes) -> None:
        assert len(namespace) == 32
        self.checked.append(constraint)
        found = [text for text in self.refused if text in constraint.text]
        if found:
            raise ConstraintRefused(f"it uses '{found[0]}'", is_timeout=self.is_timeout)

    async def close(self) -> None:
        self.is_closed = True

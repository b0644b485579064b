"""tenants/cache_namespace.py: namespaces of different accounts differ and cannot be forged."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tenants.cache_namespace import cache_namespace, fairness_id

_names = st.text(max_size=40)
_parts = st.tuples(st.binary(min_size=16, max_size=40), _names, _names)


@given(one=_parts, other=_parts)
def test_namespace_depends_on_secret_account_and_sub_namespace(
    one: tuple[bytes, str, str], other: tuple[bytes, str, str]
) -> None:
    assert (cache_namespace(*one) == cache_namespace(*other)) == (one == other)
    assert len(cache_namespace(*one)) == 32


@given(account=_names, name=_names)
def test_parts_with_another_boundary_give_another_namespace(account: str, name: str) -> None:
    if name:
        assert cache_namespace(b"k" * 32, account, name) != cache_namespace(b"k" * 32, account + name[0], name[1:])


def test_fairness_id_is_stable_keyed_and_positive() -> None:
    numbers = {fairness_id(b"k" * 32, f"{number:032x}") for number in range(1000)}
    assert len(numbers) == 1000
    assert all(0 <= number < 1 << 63 for number in numbers)
    assert fairness_id(b"k" * 32, "a") == fairness_id(b"k" * 32, "a") != fairness_id(b"x" * 32, "a")

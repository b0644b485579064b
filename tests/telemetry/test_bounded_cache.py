"""telemetry/bounded_cache.py: eviction by use and by age."""

from __future__ import annotations

from telemetry.bounded_cache import BoundedCache


def test_least_recently_used_entry_is_evicted():
    cache: BoundedCache[str, int] = BoundedCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c"), len(cache)) == (1, None, 3, 2)
    cache.put("a", 4)
    assert cache.pop("a") == 4
    assert "a" not in cache
    cache.remove_if(lambda key, value: value == 3)
    assert len(cache) == 0


def test_entries_expire_after_their_time_to_live():
    now_s = 0.0
    cache: BoundedCache[str, int] = BoundedCache(2, ttl_s=10, now_s=lambda: now_s)
    cache.put("a", 1)
    now_s = 6.0
    cache.put("b", 2)
    assert cache.get("a") == 1
    now_s = 10.0
    assert (cache.get("a"), cache.get("b"), len(cache)) == (None, 2, 1)
    cache.put("b", 3)
    now_s = 19.0
    assert cache.pop("b") == 3
    assert cache.pop("b") is None


def test_oldest_entry_is_evicted_first_with_a_time_to_live():
    cache: BoundedCache[str, int] = BoundedCache(2, ttl_s=10)
    for key in ("a", "b"):
        cache.put(key, 1)
    cache.get("a")
    cache.put("c", 1)
    assert ("a" in cache, "b" in cache, "c" in cache) == (False, True, True)
    cache.clear()
    assert len(cache) == 0

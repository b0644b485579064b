from datetime import UTC

from telemetry.clock import SYSTEM_CLOCK, Clock


def test_monotonic_clock_never_goes_back_and_wall_time_is_aware_utc():
    clock: Clock = SYSTEM_CLOCK
    first = clock.monotonic_s()
    assert clock.monotonic_s() >= first
    assert clock.now().tzinfo is UTC

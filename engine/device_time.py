"""Device time: charge the time of each step to its sequences, in proportion to their tokens."""

from __future__ import annotations

import time

from engine.scheduling.sequence import SlotTable
from engine.scheduling.step_budget import ScheduledStep


class DeviceTime:
    """Belongs to one engine. While the clock runs, all time is charged to some step."""

    def __init__(self, table: SlotTable, num_devices: int) -> None:
        self.busy_us = 0.0  # total of all devices
        self._table = table
        self._num_devices = num_devices
        self._charged_until_s = 0.0  # 0 while paused

    def resume(self) -> None:
        """Start the clock unless it runs: there is work."""
        if not self._charged_until_s:
            self._charged_until_s = time.perf_counter()

    def pause(self) -> None:
        """Stop the clock: there is no work."""
        self._charged_until_s = 0.0

    def charge(self, step: ScheduledStep, num_tokens: int) -> None:
        """Charge the time since the last charge to the rows of `step`, which have `num_tokens` in all."""
        now_s = time.perf_counter()
        elapsed_us = (now_s - self._charged_until_s) * 1e6 * self._num_devices
        self._charged_until_s = now_s
        self.busy_us += elapsed_us
        self._table.device_us[step.slots] += step.num_tokens * (elapsed_us / num_tokens)

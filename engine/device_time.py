"""Device time: charge the time of each step to its sequences, in proportion to their tokens."""

from __future__ import annotations

import time

from engine.launched_step import LaunchedStep
from engine.scheduling.sequence import SlotTable


class DeviceTime:
    """Belongs to one engine. While the clock runs, all time is charged to some step."""

    def __init__(self, table: SlotTable, num_devices: int) -> None:
        self.busy_us = 0.0  # total of all devices
        self.wasted_us = 0.0  # part of `busy_us` that no sequence was charged for
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

    def charge(self, step: LaunchedStep, num_tokens: int, device_us: float | None = None) -> None:
        """Charge a step to its rows, which have `num_tokens` in all.

        The step took `device_us` on each device, by default the time since the last charge. The part of rows whose
        sequence has ended or was preempted since the launch is waste: it counts in `busy_us` and
        `wasted_us`, and no sequence is charged.
        """
        now_s = time.perf_counter()
        if device_us is None:
            device_us = (now_s - self._charged_until_s) * 1e6
        self._charged_until_s = now_s
        device_us *= self._num_devices
        self.busy_us += device_us
        charges = step.scheduled.num_tokens * (device_us / num_tokens)  # [R]
        slots, is_current = step.scheduled.slots, step.is_current(self._table.epoch)
        if not is_current.all():
            self.wasted_us += float(charges[~is_current].sum())
            slots, charges = slots[is_current], charges[is_current]
        self._table.device_us[slots] += charges

"""The busy ratio of a replica over the last second."""

from engine.serving.busy_meter import BusyMeter


def test_ratio_is_that_of_the_last_complete_window():
    meter = BusyMeter()
    assert meter.ratio(0, 1, 0.0) == 0.0
    assert meter.ratio(400_000, 1, 0.5) == 0.0  # the window is not complete
    assert meter.ratio(500_000, 1, 1.0) == 0.5
    assert meter.ratio(500_000, 1, 1.5) == 0.5
    assert meter.ratio(500_000, 1, 2.0) == 0.0


def test_ratio_counts_each_rank_and_is_at_most_one():
    meter = BusyMeter()
    meter.ratio(0, 2, 0.0)
    assert meter.ratio(1_000_000, 2, 1.0) == 0.5
    assert meter.ratio(9_000_000, 2, 2.0) == 1.0


def test_ratio_starts_again_with_a_new_process():
    meter = BusyMeter()
    meter.ratio(5_000_000, 1, 0.0)
    assert meter.ratio(100, 1, 1.0) == 0.0
    assert meter.ratio(500_100, 1, 2.0) == 0.5

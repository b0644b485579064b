import re

from telemetry import metrics

FORBIDDEN_LABELS = {"account", "account_id", "api_token", "api_token_id", "request_id", "user", "prompt"}


def test_metrics_have_valid_names_help_and_bounded_labels():
    table = metrics.all_metrics()
    assert len(table) >= 20
    for name, (help_text, labels) in table.items():
        assert re.fullmatch(r"hearth_[a-z0-9_]+", name)
        assert help_text
        assert not FORBIDDEN_LABELS & set(labels), f"{name} has an unbounded label"


def test_counts_are_rendered_in_the_text_format():
    metrics.CALLS.labels("@cf/test/metrics", "finished").inc(3)
    lines = metrics.render().decode().splitlines()
    assert 'hearth_calls_total{model="@cf/test/metrics",outcome="finished"} 3.0' in lines


def test_buffered_counter_is_flushed_when_metrics_are_rendered():
    counter = metrics.BufferedCounter(metrics.CALLS.labels("@cf/test/tally", "finished"))
    line = 'hearth_calls_total{model="@cf/test/tally",outcome="finished"} '
    for value in ("0.0", "3.0", "3.0"):
        assert f"{line}{value}" in metrics.render().decode().splitlines()
        if value == "0.0":
            counter.add()
            counter.add(2)


def test_only_hearth_metrics_are_exported():
    families = {line.split()[2] for line in metrics.render().decode().splitlines() if line.startswith("# TYPE")}
    assert all(family.startswith("hearth_") for family in families)

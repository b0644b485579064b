"""The scaling plan: replicas by demand, hysteresis, scale to zero, rules, room on nodes, and what-if plans."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.nodes.geography import distance_km
from gateway.scaling.distances import find_neighbors
from gateway.scaling.inputs import Demand, Inputs, Level, ModelFacts, NodeFacts, Plan, Policy
from gateway.scaling.plan import make_plan
from gateway.scaling.what_if import NewPop, add_pop, compare, lose_pop
from tenants.scaling_rules import Override, Reservation

GB = 10**9
TASK = "text-generation"
CHAT = ModelFacts("@cf/x/chat", TASK, 16 * GB, 1000.0)
SMALL = ModelFacts("@cf/x/small", TASK, 2 * GB, 1000.0)
POINTS = {"lis": (38.7, -9.1), "mad": (40.4, -3.7), "nrt": (35.7, 139.7)}


def node(name: str, pop: str = "lis", *models: ModelFacts, memory_gb: int = 80, pinned: str = "") -> NodeFacts:
    loaded = {model.name: model.memory_bytes for model in models}
    return NodeFacts(
        name, pop, memory_gb * GB, frozenset({TASK}), loaded, frozenset({pinned} - {""}), can_pin=True
    )  # fmt: skip


def inputs_of(nodes: list[NodeFacts], *demand: Demand, now_s: float = 1000.0, **others: object) -> Inputs:
    names = {each.pop for each in demand} | {each.pop for each in nodes}
    return Inputs(
        now_s=now_s,
        demand=demand,
        nodes=nodes,
        models={CHAT.name: CHAT, SMALL.name: SMALL},
        neighbors=find_neighbors({pop: POINTS.get(pop) for pop in names}, {each.pop for each in nodes}),
        **others,  # type: ignore[arg-type]
    )


def changes(plan: Plan) -> list[tuple[str, str, str]]:
    return [(each.action, each.model, each.node_id) for each in plan.changes]


def applied(inputs: Inputs, plan: Plan, seconds: float) -> Inputs:
    """Return the inputs after the plan's changes and some time."""
    nodes = []
    for each in inputs.nodes:
        mine = [change for change in plan.changes if change.node_id == each.node_id]
        loaded = dict(each.loaded) | {
            change.model: inputs.models[change.model].memory_bytes for change in mine if change.action == "load"
        }
        for change in mine:
            if change.action == "unload":
                del loaded[change.model]
        nodes.append(replace(each, loaded=loaded))
    return replace(inputs, nodes=nodes, levels=plan.levels, now_s=inputs.now_s + seconds)


def test_replicas_are_added_for_demand_with_the_reason():
    plan = make_plan(inputs_of([node("n1"), node("n2"), node("n3")], Demand(CHAT.name, "lis", 1300.0)))
    assert [(each.model, each.pop, each.num_replicas) for each in plan.targets] == [(CHAT.name, "lis", 2)]
    assert [each.action for each in plan.changes] == ["load", "load"]
    assert len({each.node_id for each in plan.changes}) == 2
    assert plan.changes[0].reason == "1300 tokens/s; a replica is planned for 700"


def test_equal_inputs_give_equal_plans_whatever_their_order():
    nodes = [node(f"n{number}") for number in range(6)]
    demand = [Demand(CHAT.name, "lis", 900.0), Demand(SMALL.name, "lis", 1500.0)]
    assert changes(make_plan(inputs_of(nodes, *demand))) == changes(make_plan(inputs_of(nodes[::-1], *demand[::-1])))


def test_lower_demand_unloads_only_after_the_delay():
    inputs = inputs_of([node("n1", "lis", CHAT), node("n2", "lis", CHAT)], Demand(CHAT.name, "lis", 300.0))
    for _ in range(30):
        plan = make_plan(inputs)
        assert not plan.changes
        inputs = applied(inputs, plan, 10.0)
    plan = make_plan(inputs)
    assert [each.action for each in plan.changes] == ["unload"]


def test_demand_that_swings_around_a_limit_does_not_flap():
    inputs, num_changes = inputs_of([node(f"n{each}") for each in range(4)], Demand(CHAT.name, "lis", 690.0)), 0
    for step in range(200):
        demand = [Demand(CHAT.name, "lis", 690.0 + 200.0 * (step % 2))]
        plan = make_plan(replace(inputs, demand=demand))
        num_changes += len(plan.changes)
        inputs = applied(inputs, plan, 10.0)
    assert num_changes == 2  # the first replica and the second


def test_idle_model_is_scaled_to_zero_and_back():
    nodes = [node("n1", "lis", CHAT), node("n2")]
    assert not make_plan(inputs_of(nodes, Demand(CHAT.name, "lis", 0.0, idle_s=899.0))).changes
    idle = inputs_of(nodes, Demand(CHAT.name, "lis", 0.0, idle_s=901.0))
    plan = make_plan(idle)
    assert changes(plan) == [("unload", CHAT.name, "n1")]
    assert plan.changes[0].reason == "no call for 901 s"
    called = replace(applied(idle, plan, 10.0), demand=[Demand(CHAT.name, "lis", 1.0, idle_s=0.0)])
    assert [each.action for each in make_plan(called).changes] == ["load"]


def test_models_are_kept_while_no_gateway_knows_earlier_calls():
    inputs = inputs_of([node("n1", "lis", CHAT)])
    plan = make_plan(inputs)
    assert not plan.changes
    assert not make_plan(applied(inputs, plan, 800.0)).changes
    assert changes(make_plan(applied(inputs, plan, 901.0))) == [("unload", CHAT.name, "n1")]


def test_small_demand_is_served_by_the_nearest_pop_that_hosts_the_model():
    nodes = [node("l1", "lis"), node("m1", "mad"), node("t1", "nrt")]
    demand = [
        Demand(CHAT.name, "lis", 400.0), Demand(CHAT.name, "mad", 10.0), Demand(CHAT.name, "nrt", 60.0),
    ]  # fmt: skip
    plan = make_plan(inputs_of(nodes, *demand))
    assert {(each.pop, each.num_replicas, each.tokens_per_s) for each in plan.targets} == {
        ("lis", 1, 410.0), ("nrt", 1, 60.0),
    }  # fmt: skip


def test_full_pop_overflows_to_the_nearest_with_room_and_the_rest_is_reported():
    nodes = [node("l1", "lis", memory_gb=20), node("m1", "mad", memory_gb=20), node("t1", "nrt", memory_gb=10)]
    plan = make_plan(inputs_of(nodes, Demand(CHAT.name, "lis", 1500.0)))
    assert [each.node_id for each in plan.changes] == ["l1", "m1"]
    assert "lis is full" in plan.changes[1].reason
    after = applied(inputs_of(nodes, Demand(CHAT.name, "lis", 1500.0)), plan, 10.0)
    for _ in range(50):
        assert not make_plan(after).changes  # guests of a full PoP stay where they are
        after = applied(after, make_plan(after), 10.0)
    (unplaced,) = plan.unplaced
    assert (unplaced.num_replicas, unplaced.reason) == (
        1, "no node near lis has 16.0 GB free for another @cf/x/chat",
    )  # fmt: skip


def test_overrides_limit_the_replicas_of_a_pop_and_of_all_pops():
    nodes = [node("l1", "lis"), node("l2", "lis"), node("m1", "mad")]
    demand = Demand(CHAT.name, "lis", 2000.0)
    at_most = make_plan(inputs_of(nodes, demand, overrides=[Override(CHAT.name, "lis", max_replicas=1)]))
    assert [each.num_replicas for each in at_most.targets] == [1]
    assert at_most.targets[0].reason.startswith("at most 1 by override")
    at_least = make_plan(inputs_of(nodes, overrides=[Override(CHAT.name, min_replicas=2)]))
    assert sum(each.num_replicas for each in at_least.targets) == 2
    in_pop = make_plan(inputs_of(nodes, overrides=[Override(CHAT.name, "mad", min_replicas=1)]))
    assert changes(in_pop) == [("load", CHAT.name, "m1")]


def test_override_that_limits_replicas_applies_at_once():
    nodes = [node("l1", "lis", CHAT), node("l2", "lis", CHAT)]
    rule = Override(CHAT.name, "lis", max_replicas=0)
    plan = make_plan(inputs_of(nodes, Demand(CHAT.name, "lis", 900.0), overrides=[rule]))
    assert [each.action for each in plan.changes] == ["unload", "unload"]


def test_pinned_override_keeps_an_idle_model_and_pins_its_replica():
    rule = Override(CHAT.name, "lis", is_pinned=True)
    inputs = inputs_of([node("n1", "lis", CHAT)], Demand(CHAT.name, "lis", 0.0, idle_s=5000.0), overrides=[rule])
    assert changes(make_plan(inputs)) == [("pin", CHAT.name, "n1")]
    unpinned = replace(
        inputs, nodes=[node("n1", "lis", CHAT, pinned=CHAT.name)], overrides=[replace(rule, is_pinned=False)]
    )
    assert changes(make_plan(unpinned)) == [("unpin", CHAT.name, "n1")]


def test_reserved_capacity_is_added_to_the_demand_and_survives_idleness():
    reservation = Reservation("a1", CHAT.name, "lis", 1000.0)
    nodes = [node(f"n{each}") for each in range(4)]
    idle = make_plan(inputs_of(nodes, reservations=[reservation]))
    assert [each.num_replicas for each in idle.targets] == [2]
    busy = make_plan(inputs_of(nodes, Demand(CHAT.name, "lis", 600.0), reservations=[reservation]))
    assert [each.num_replicas for each in busy.targets] == [3]
    assert "1000 of them reserved" in busy.targets[0].reason


def test_reserved_capacity_is_placed_before_other_demand():
    nodes = [node("n1", memory_gb=20)]
    demand = Demand(SMALL.name, "lis", 50_000.0)
    plan = make_plan(inputs_of(nodes, demand, reservations=[Reservation("a1", CHAT.name, "lis", 10.0)]))
    assert ("load", CHAT.name, "n1") in changes(plan)


def test_clock_that_is_set_back_does_not_extend_the_delay():
    levels = {(CHAT.name, "lis"): Level(2, lower_since_s=5000.0, lower_max=1)}
    nodes = [node("n1", "lis", CHAT), node("n2", "lis", CHAT)]
    inputs = inputs_of(nodes, Demand(CHAT.name, "lis", 10.0), now_s=1000.0, levels=levels)
    plan = make_plan(inputs)
    assert not plan.changes
    assert [each.action for each in make_plan(applied(inputs, plan, 300.0)).changes] == ["unload"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["lis", "mad", "nrt"]), st.floats(0, 20_000), st.floats(0, 2000)), max_size=6),
    st.lists(st.tuples(st.sampled_from(["lis", "mad", "nrt"]), st.integers(1, 100)), min_size=1, max_size=8),
)
def test_plan_never_overfills_a_node_and_is_stable_once_applied(
    rates: list[tuple[str, float, float]], machines: list[tuple[str, int]]
):
    nodes = [node(f"n{number}", pop, memory_gb=size) for number, (pop, size) in enumerate(machines)]
    demand = [
        Demand((CHAT, SMALL)[number % 2].name, pop, rate, idle_s) for number, (pop, rate, idle_s) in enumerate(rates)
    ]
    inputs = inputs_of(nodes, *demand)
    after = applied(inputs, make_plan(inputs), 10.0)
    for each in after.nodes:
        assert sum(each.loaded.values()) <= each.memory_bytes * Policy().usable_memory
    for _ in range(3):
        again = make_plan(after)
        assert not [change for change in again.changes if change.action == "load"]
        after = applied(after, again, 10.0)


def test_lost_pop_moves_its_replicas_and_an_added_pop_takes_the_demand_nearby():
    nodes = [node("l1", "lis", CHAT), node("m1", "mad"), node("t1", "nrt")]
    inputs = inputs_of(nodes, Demand(CHAT.name, "lis", 300.0), Demand(SMALL.name, "ber", 300.0))
    moved = compare(inputs, lose_pop(inputs, "lis")).differences
    assert (CHAT.name, "mad", 0, 1) in [(each.model, each.pop, each.num_before, each.num_after) for each in moved]
    points = {**POINTS, "ber": (52.5, 13.4)}
    inputs = replace(inputs, neighbors=find_neighbors({pop: points[pop] for pop in points}, {"lis", "mad", "nrt"}))
    added = compare(inputs, add_pop(inputs, NewPop("fra", 2, (50.1, 8.7)), dict(points))).differences
    assert (SMALL.name, "fra", 0, 1) in [(each.model, each.pop, each.num_before, each.num_after) for each in added]


def test_distances_are_great_circles_and_pops_without_coordinates_come_last():
    assert 1800 < distance_km((38.7, -9.1), (50.1, 8.7)) < 1950
    found = find_neighbors({**POINTS, "lab": None}, [*POINTS, "lab"])
    assert found["lis"] == ["lis", "mad", "nrt", "lab"]
    assert found["lab"][0] == "lab"


def test_plan_ignores_models_that_are_not_in_the_catalog():
    loaded = replace(node("n1"), loaded={"@cf/gone/gone": GB})
    assert make_plan(inputs_of([loaded], Demand("@cf/gone/gone", "lis", 9.0))).changes == ()


def test_busy_replicas_are_spread_over_nodes_and_moved_when_their_node_has_no_time_left():
    nodes = [node("n1"), node("n2")]
    demand = [Demand(CHAT.name, "lis", 650.0), Demand(SMALL.name, "lis", 650.0)]
    spread = make_plan(inputs_of(nodes, *demand))
    assert {each.node_id for each in spread.changes} == {"n1", "n2"}
    crowded = make_plan(inputs_of([node("n1", "lis", CHAT, SMALL), node("n2")], *demand))
    assert sorted(each.action for each in crowded.changes) == ["load", "unload"]
    quiet = [Demand(CHAT.name, "lis", 400.0), Demand(SMALL.name, "lis", 400.0)]
    assert not make_plan(inputs_of([node("n1", "lis", CHAT, SMALL), node("n2")], *quiet)).changes

"""Entry points that tests fork to look at several ranks from inside: two ranks that stay joined between models."""

from __future__ import annotations

import os
import signal
import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from msgspec import Struct

from engine.adapters.local_adapter import LocalAdapter
from engine.adapters.updates import AdapterUpdate
from engine.checkpoints.weights import WeightsError
from engine.config import EngineConfig
from engine.inputs import StepInputs
from engine.kernels.collectives import Group, Meeting
from engine.layers.shard import Shard
from engine.ranks import group as rank_group
from engine.ranks import rank
from engine.ranks.step_wire import encode_adapter_update, encode_step, encode_wipe, receive_step
from engine.runner import Runner
from telemetry.child_process import die_with_parent
from tests.engine.driver import Driver
from tests.engine.pusher import Pusher

NUM_GREEDY = 12


class Parity(Struct):
    """Results of one model on two ranks and on one."""

    error: str = ""
    largest_difference: float = 0.0
    largest_logit: float = 0.0
    shared_tokens: list[list[int]] = []
    whole_tokens: list[list[int]] = []
    num_packed: list[int] = []  # matrices that stayed packed, in a rank's part and in the whole


def main(connection: socket.socket, _arguments: bytes) -> None:
    """Entry point: reads settings of EngineConfig as JSON lines and writes a Parity for each."""
    ours, theirs = socket.socketpair()
    meeting, leader_pid = Meeting(0, 2), os.getpid()
    if os.fork() == 0:
        die_with_parent(leader_pid)
        _follow(theirs, Meeting(1, 2, meeting.port).join(torch.device("cpu")))
        os._exit(0)
    theirs.close()
    group = meeting.join(torch.device("cpu"))
    file = connection.makefile("rwb")
    for line in file:
        ours.sendall(len(line).to_bytes(4, "little") + line)
        try:
            config, folders = _config(line), msgspec.json.decode(line).get("adapters", [])
            updates: deque[AdapterUpdate] = deque()
            shared = Runner(config, shard=Shard(0, 2, group), broadcast_step=_broadcast_to(ours, config, updates))
            assert shared.adapters is not None
            shared.adapters.updates = updates
            parity = _compare(shared, Runner(config), [LocalAdapter(each, each) for each in folders])
        except Exception as error:
            parity = Parity(f"{type(error).__name__}: {error}")
        ours.sendall(encode_wipe(np.empty(0, np.int32)))  # no blocks to wipe: the end of this model
        file.write(msgspec.json.encode(parity) + b"\n")
        file.flush()


def with_a_poor_follower(connection: socket.socket, arguments: bytes) -> None:
    """Entry point of a rank whose followers cannot read their weights."""

    def load(config: EngineConfig, shard: Shard, **settings: Any) -> Runner:
        if shard.rank:
            raise WeightsError("not mine")
        return Runner(config, shard=shard, **settings)

    vars(rank_group)["Runner"] = load
    rank.main(connection, arguments)


def with_a_follower_that_dies(connection: socket.socket, arguments: bytes) -> None:
    """Entry point of a rank whose follower never joins it."""

    def meet(number: int, size: int, port: int = 0) -> Meeting:
        if number:
            os.kill(os.getpid(), signal.SIGKILL)
        return Meeting(number, size, port)

    vars(rank_group)["Meeting"] = meet
    rank.main(connection, arguments)


def _config(line: bytes) -> EngineConfig:
    settings: dict[str, Any] = {"dtype": "float32", "num_blocks": 24, **msgspec.json.decode(line)}
    settings.pop("adapters", None)
    return EngineConfig(**{**settings, "model_dir": Path(settings["model_dir"])})


def _broadcast_to(
    channel: socket.socket, config: EngineConfig, updates: deque[AdapterUpdate]
) -> Callable[[StepInputs], None]:
    def broadcast(step: StepInputs) -> None:
        while updates:
            channel.sendall(encode_adapter_update(updates.popleft()))
        channel.sendall(encode_step(step, config.block_size))

    return broadcast


def _follow(channel: socket.socket, group: Group) -> None:
    while header := channel.recv(4, socket.MSG_WAITALL):
        line = channel.recv(int.from_bytes(header, "little"), socket.MSG_WAITALL)
        runner = Runner(_config(line), shard=Shard(1, 2, group))
        while (message := receive_step(channel)) is not None:
            if isinstance(message, np.ndarray) and not len(message):
                break
            rank_group.apply_message(runner, message)


def _compare(shared: Runner, whole: Runner, adapters: list[LocalAdapter]) -> Parity:
    """Compare logits of a prompt in chunks, and greedy completions with a pool so small that some are preempted."""
    parity, rng = Parity(num_packed=[_num_packed(shared), _num_packed(whole)]), np.random.default_rng(7)
    prompt = rng.integers(0, shared.vocab_size, 45).tolist()
    one, other = Pusher(shared), Pusher(whole)
    for chunk in (prompt[:20], prompt[20:37], *([token_id] for token_id in prompt[37:])):
        logits, expected = one.push(chunk), other.push(chunk)
        parity.largest_difference = max(parity.largest_difference, float((logits - expected).abs().max()))
        parity.largest_logit = max(parity.largest_logit, float(expected.abs().max()))
    prompts = [rng.integers(0, shared.vocab_size, length).tolist() for length in (70, 30, 90, 50, 40)]
    parity.shared_tokens, parity.whole_tokens = (_greedy(each, prompts, adapters) for each in (shared, whole))
    return parity


def _num_packed(runner: Runner) -> int:
    return sum(linear.is_packed for linear in runner._model.linears)


def _greedy(runner: Runner, prompts: list[list[int]], adapters: list[LocalAdapter]) -> list[list[int]]:
    """Return completions of all prompts at once, each with the next adapter or none, then one after the other in the
    opposite order of adapters."""
    driver, through, responses = Driver(runner, max_step_tokens=40), [*adapters, None], []
    for number, prompt in enumerate(prompts):
        adapter = through[number % len(through)]
        responses.append(_ask(driver, prompt, adapter))
    driver.run()
    for prompt, adapter in zip(prompts, reversed(adapters), strict=False):
        responses.append(_ask(driver, prompt, adapter))
        driver.run()
    return [driver.tokens[each] for each in responses]


def _ask(driver: Driver, prompt: list[int], adapter: LocalAdapter | None) -> int:
    return driver.add(prompt, max_tokens=NUM_GREEDY, temperature=0.0, ignore_eos=True, adapter=adapter)

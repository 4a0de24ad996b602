"""Writes LEVEL.json: steps of three of MiniGrid 3.2.0's levels, to compare with.

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install minigrid==3.2.0
    for level in empty door_key multi_room; do
        /tmp/golden/bin/python rl-envs/tests/recorders/grid_world.py $level > rl-envs/tests/golden/minigrid/$level.json
    done

Each row: the state before the step, the action, and what followed. `obs_nonzero` lists the [index, value] pairs that
are not zero in the four planes of 7 x 7.

A player that knows the grid fetches the key, opens the door and walks to the goal; some of its actions are random, and it drops
the key at random. The first 12 rows of each kind of event are kept, and 1 in 100 of the others.
"""

import json
import sys
from collections import Counter, deque
from importlib.metadata import version

import gymnasium
import minigrid
import numpy as np

assert version("minigrid") == "3.2.0"
LEVEL = sys.argv[1]
ROWS = 120 if LEVEL == "multi_room" else 320
LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)
STEPS = [(1, 0), (0, 1), (-1, 0), (0, -1)]
rng = np.random.default_rng(0)
LEVELS = {
    "empty": ("MiniGrid-Empty-8x8-v0", {"agent_start_pos": None}),
    "door_key": ("MiniGrid-DoorKey-8x8-v0", {}),
    "multi_room": ("MiniGrid-MultiRoom-N2-S4-v0", {}),
}
NAME, SETTINGS = LEVELS[LEVEL]
env = gymnasium.make(NAME, **SETTINGS).unwrapped


def number(cell):
    """An object, its colour and state."""
    if cell is None:
        return 1
    kind, color, state = cell.encode()
    return int(kind) + 16 * int(color) + 256 * int(state)


def state():
    return {
        "cells": [number(cell) for cell in env.grid.grid],
        "agent_pos": [int(x) for x in env.agent_pos],
        "agent_dir": int(env.agent_dir),
        "carrying": 0 if env.carrying is None else number(env.carrying),
        "elapsed": env.step_count,
    }


def planes(obs):
    """Objects, colours, states and the direction; planes come first, rows before columns."""
    image = np.moveaxis(obs["image"], -1, 0).transpose(0, 2, 1)
    return np.concatenate([image, np.full((1, 7, 7), obs["direction"])])


def path(is_aim):
    """The first action on a shortest way to a cell ahead of the agent."""
    start = (tuple(int(x) for x in env.agent_pos), int(env.agent_dir))
    first = {start: None}
    queue = deque([start])
    while queue:
        at, direction = queue.popleft()
        dx, dy = STEPS[direction]
        front = (at[0] + dx, at[1] + dy)
        cell = env.grid.get(*front)
        if is_aim(cell):
            return first[(at, direction)]
        following = [(LEFT, (at, (direction - 1) % 4)), (RIGHT, (at, (direction + 1) % 4))]
        if cell is None or cell.can_overlap():
            following.append((FORWARD, (front, direction)))
        for action, to in following:
            if to not in first:
                first[to] = action if first[(at, direction)] is None else first[(at, direction)]
                queue.append(to)
    return DONE


def play():
    """The next action of a player that knows the grid."""
    kind = lambda name: lambda cell: cell is not None and cell.type == name
    doors = [cell for cell in env.grid.grid if kind("door")(cell) and not cell.is_open]
    key = [cell for cell in env.grid.grid if kind("key")(cell)]
    if doors and key and doors[0].is_locked:
        action = path(kind("key"))
        return PICKUP if action is None else action
    if doors:
        action = path(lambda cell: kind("door")(cell) and not cell.is_open)
        return TOGGLE if action is None else action
    action = path(kind("goal"))
    return FORWARD if action is None else action


rows, kept = [], Counter()
while len(rows) < ROWS:
    env.reset(seed=int(rng.integers(1 << 30)))
    slip = rng.choice([0.05, 0.2, 1.0])
    over = False
    while not over and len(rows) < ROWS:
        action = int(rng.integers(7)) if rng.random() < slip else play()
        if env.carrying is not None and rng.random() < 0.05:
            action = DROP
        init = state()
        obs, reward, terminated, truncated, _ = env.step(action)
        over = terminated or truncated
        after = state()
        changed = [init["cells"] != after["cells"], init["agent_pos"] != after["agent_pos"], init["carrying"] != after["carrying"]]
        event = (action, *changed, terminated, truncated, init["carrying"] > 0)
        kept[event] += 1
        if kept[event] <= 12 or rng.random() < 0.01:
            seen = planes(obs).ravel()
            rows.append({
                "init": init,
                "action": action,
                "obs_nonzero": [[int(i), int(seen[i])] for i in np.flatnonzero(seen)],
                "reward": float(reward),
                "terminated": bool(terminated),
                "truncated": bool(truncated),
            })
print("[" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "]")

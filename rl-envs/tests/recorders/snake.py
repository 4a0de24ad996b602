"""Writes snake.json: steps of EnvPool 1.2.5's Jumanji/Snake-v1, to compare with.

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install envpool==1.2.5
    /tmp/golden/bin/python rl-envs/tests/recorders/snake.py > rl-envs/tests/golden/snake.json

Each row: the state before the step (read from the observation, for EnvPool cannot set it), the action, and what
followed, with the flags as EnvPool gave them. `obs_nonzero` lists the [index, value] pairs that are not zero in the five
planes of 12 x 12 (body, head, tail, fruit, order), as u8; `mask` is the one after the step.

Environments that follow a cycle through all cells until the board is full, that circle until the time limit, that head
for the fruit until they are trapped, and that move at random, at times into a wall or their own body. The rows are a
sample of all steps; the rare ones come first.
"""

import json
from collections import Counter

import envpool
import numpy as np

assert envpool.__version__ == "1.2.5"
N_ENVS, SIZE, N_STEPS = 16, 12, 4100
MOVES = [(-1, 0), (0, 1), (1, 0), (0, -1)]  # up, right, down, left
rng = np.random.default_rng(0)
env = envpool.make("Jumanji/Snake-v1", env_type="gymnasium", num_envs=N_ENVS, num_threads=1, seed=0)
rows = []
kept = Counter()

# A cycle through all cells: down the first column, then back up through the others in rows of 11.
cycle = [(row, 0) for row in range(SIZE)]
for row in reversed(range(SIZE)):
    columns = range(1, SIZE) if row % 2 == 1 else range(SIZE - 1, 0, -1)
    cycle += [(row, column) for column in columns]
place = {cell: i for i, cell in enumerate(cycle)}
assert len(place) == SIZE * SIZE


def move(cell, action):
    """The cell next to another."""
    return cell[0] + MOVES[action][0], cell[1] + MOVES[action][1]


def ahead(a, b):
    """Steps along the cycle from one cell to another."""
    return (place[b] - place[a]) % len(cycle)


def read(grid):
    """The body, head first, and the fruit, from an observation."""
    cells = [tuple(map(int, cell)) for cell in np.argwhere(grid[:, :, 0] == 1.0)]
    ticks = {cell: round(float(grid[cell][4]) * len(cells)) for cell in cells}
    body = sorted(cells, key=ticks.get, reverse=True)
    assert [ticks[cell] for cell in body] == list(range(len(body), 0, -1))
    [head], [tail], [fruit] = (np.argwhere(grid[:, :, plane] == 1.0).tolist() for plane in (1, 2, 3))
    assert (tuple(head), tuple(tail)) == (body[0], body[-1])
    return body, tuple(fruit)


def as_u8(grid, length):
    """The [index, value] pairs of the observation as u8 planes; the order is taken from the ticks, in f32."""
    planes = np.moveaxis(grid, -1, 0)
    out = np.where(planes == 1.0, 255, 0)
    ticks = np.rint(planes[4] * length).astype(np.float32)
    out[4] = np.floor(ticks * (np.float32(255) / np.float32(length)) + np.float32(0.5))
    return [[int(i), int(out.flat[i])] for i in np.flatnonzero(out)]


def follow_cycle(body, fruit, legal):
    """Along the cycle, with short cuts that pass neither the fruit nor the tail."""
    head, room = body[0], ahead(body[0], body[-1]) or len(cycle)
    limit = 1 if len(body) > 80 else min(ahead(head, fruit), max(room - 4, 1))
    return max((a for a in legal if ahead(head, move(head, a)) <= limit), key=lambda a: ahead(head, move(head, a)))


def circle(body, fruit, legal, length):
    """Grows to a length, then goes round a block of 2 x 2 cells, in the end into the cell that the tail leaves."""
    head = body[0]
    if len(body) < length:
        return towards(head, fruit, legal)
    for rows_of, columns_of in [(r, c) for r in (-1, 0) for c in (-1, 0)]:
        corner = (head[0] + rows_of, head[1] + columns_of)
        block = [(corner[0] + r, corner[1] + c) for r, c in [(0, 0), (0, 1), (1, 1), (1, 0)]]
        if not all(cell in place for cell in block) or fruit in block:
            continue
        for ring in (block, block[::-1]):
            following = ring[(ring.index(head) + 1) % 4]
            action = next(a for a in range(4) if move(head, a) == following)
            inside = sum(cell in block for cell in body)
            if action in legal and (inside == len(body) or following not in body):
                return action
    return towards(head, fruit, legal, away=True)


def towards(head, fruit, legal, away=False):
    """The legal action that ends nearest to the fruit (or farthest)."""
    distance = {a: abs(move(head, a)[0] - fruit[0]) + abs(move(head, a)[1] - fruit[1]) for a in legal}
    return (max if away else min)(distance, key=distance.get)


def choose(i, body, fruit, mask):
    """The action of one environment."""
    legal = [a for a in range(4) if mask[a]]
    head = body[0]
    into_tail = [a for a in legal if len(body) > 1 and move(head, a) == body[-1]]
    if i < 3:
        return follow_cycle(body, fruit, legal)
    if i < 6:
        return circle(body, fruit, legal, length=[1, 2, 4][i - 3])
    if i >= 10 and rng.random() < (0.03 if i < 13 else 0.1):
        return int(rng.integers(4))
    if into_tail and rng.random() < 0.2:
        return into_tail[0]
    if i < 13 and rng.random() < 0.95:
        return towards(head, fruit, legal)
    return int(rng.choice(legal))


def kind(body, fruit, action, mask_before, mask, length, elapsed, done):
    """What a step is an example of, and how many of these to keep."""
    target = move(body[0], action)
    if done and not mask_before[action]:
        if target not in place:
            return "wall", 25
        return ("back", 15) if target == body[1] else ("body", 20)
    if done and length == SIZE * SIZE:
        return "full", 3
    if done and elapsed == 3999:
        return "limit", 9
    if done:
        return "trapped", 12
    if elapsed >= 3996:
        return "before the limit", 9
    if target == body[-1] and len(body) > 1:
        return f"tail, length {min(len(body), 6)}", 15
    if target == fruit:
        return f"fruit, length {len(body) // 10}0", 6
    return f"length {len(body) // 10}0", 60 if len(body) < 10 else 12 if len(body) < 50 else 3


obs, _ = env.reset()
over = np.zeros(N_ENVS, dtype=bool)  # the next step resets, whatever the action
elapsed = np.zeros(N_ENVS, dtype=int)
for _ in range(N_STEPS):
    before = [read(grid) for grid in obs["grid"]]
    actions = [0 if over[i] else choose(i, *before[i], obs["action_mask"][i]) for i in range(N_ENVS)]
    following, rewards, terminated, truncated, info = env.step(np.array(actions, dtype=np.int32))
    assert list(info["env_id"]) == list(range(N_ENVS))
    for i in range(N_ENVS):
        if over[i]:
            over[i], elapsed[i] = False, 0
            continue
        body, fruit = before[i]
        over[i] = terminated[i] or truncated[i]
        length = int(following["grid"][i, :, :, 0].sum())
        masks = obs["action_mask"][i], following["action_mask"][i]
        name, most = kind(body, fruit, actions[i], *masks, length, elapsed[i], over[i])
        # The commoner kinds are thinned out, so that they come from many episodes.
        if kept[name] < most and (over[i] or elapsed[i] >= 3996 or rng.random() < 0.2):
            kept[name] += 1
            rows.append((over[i], {
                "init": {"body": [list(cell) for cell in body], "fruit": list(fruit), "elapsed": int(elapsed[i])},
                "action": actions[i],
                "obs_nonzero": as_u8(following["grid"][i], length),
                "mask": [bool(m) for m in masks[1]],
                "reward": float(rewards[i]),
                "terminated": bool(terminated[i]),
                "truncated": bool(truncated[i]),
            }))
        elapsed[i] += 1
        assert following["step_count"][i] == elapsed[i]
    obs = following

rows = [row for _, row in sorted(rows, key=lambda entry: not entry[0])]
print("[" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "]")

"""Writes breakout.json: steps of MinAtar 1.0.15's Breakout, to compare with.

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install MinAtar==1.0.15
    /tmp/golden/bin/python rl-envs/tests/recorders/breakout.py > rl-envs/tests/golden/breakout.json

Each row: the state before the step, the action (an index into MinAtar's minimal set: nothing, left, right), and what
followed. Sticky actions are off; `last_action` is the action, so that it makes no difference whether one sticks.
`obs_nonzero` lists the [index, 1] pairs of the four planes of 10 x 10 (paddle, ball, trail, brick) that are not zero.

Random actions, a policy that follows the ball until the bricks are gone and come back, and states drawn at random, with
few bricks or none, before the corners and before both kinds of hit.
"""

import json
from importlib.metadata import version

import numpy as np
from minatar import Environment

assert version("MinAtar") == "1.0.15"
ACTIONS = [0, 1, 3]  # nothing, left, right
rng = np.random.default_rng(0)
env = Environment("breakout", sticky_action_prob=0.0)
assert env.minimal_action_set() == ACTIONS
env.seed(0)
game = env.env
rows = []


def step(elapsed, action, keep=True):
    """One step from the game's state as it is."""
    init = {name: int(getattr(game, name)) for name in ["ball_x", "ball_y", "ball_dir", "pos", "last_x", "last_y"]}
    init |= {"brick_map": game.brick_map[1:4].astype(int).tolist(), "strike": bool(game.strike)}
    init |= {"last_action": action, "elapsed": elapsed}
    assert game.brick_map.sum() == game.brick_map[1:4].sum()
    reward, terminated = env.act(ACTIONS[action])
    if keep or reward or terminated:
        planes = np.moveaxis(env.state(), -1, 0)
        rows.append({
            "init": init,
            "action": action,
            "obs_nonzero": [[int(i), 1] for i in np.flatnonzero(planes)],
            "reward": float(reward),
            "terminated": bool(terminated),
            "truncated": False,
        })
    return reward, terminated


def follow(aim):
    """Towards a column."""
    return 0 if aim == game.pos else 1 if aim < game.pos else 2


for _ in range(6):  # random
    env.reset()
    done, elapsed = False, 0
    while not done:
        _, done = step(elapsed, int(rng.integers(3)))
        elapsed += 1
env.reset()
done, elapsed, refills = False, 0, 0
while not done:  # under the ball, or under where it will be; lets it go after the third set of bricks
    bricks = game.brick_map.sum()
    aim = game.ball_x
    if game.ball_y == 8 and rng.random() < 0.5:
        aim = int(np.clip(game.ball_x + (1 if game.ball_dir in (1, 2) else -1), 0, 9))
    if refills == 2:
        aim = (game.ball_x + 5) % 10
    _, done = step(elapsed, follow(aim), keep=elapsed < 60 or bricks == 0 or game.ball_y == 8 and elapsed < 300)
    refills += int(game.brick_map.sum() > bricks)
    elapsed += 1
for i in range(240):  # drawn at random
    env.reset()
    game.ball_x, game.ball_y = int(rng.integers(10)), int(rng.integers(9))
    if i % 4 == 0:  # in a column by the wall
        game.ball_x = int(rng.choice([0, 9]))
    if i % 4 == 1:  # above the paddle's row
        game.ball_y = 8
    game.ball_dir = int(rng.integers(4))
    game.last_x = int(np.clip(game.ball_x + rng.choice([-1, 1]), 0, 9))
    game.last_y = int(np.clip(game.ball_y + rng.choice([-1, 1]), 0, 8))
    game.pos = int(np.clip(game.ball_x + rng.integers(-2, 3), 0, 9))
    game.strike = bool(rng.integers(2))
    game.brick_map[1:4] = rng.random((3, 10)) < rng.choice([0.0, 0.1, 0.5])
    step(int(rng.integers(1000)), int(rng.integers(3)))

print("[" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "]")

"""Writes repeat_first.json: steps of POPGym 1.0.7's RepeatFirst with two decks, to compare with.

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install popgym==1.0.7
    /tmp/golden/bin/python rl-envs/tests/recorders/repeat_first.py > rl-envs/tests/golden/repeat_first.json

Each row: the state before the step, the action, and what followed. Half of the actions name the first suit. The next card is
random, so it isn't compared.
"""

import json
from importlib.metadata import version

import numpy as np
from popgym.envs.repeat_first import RepeatFirst

assert version("popgym") == "1.0.7"
rng = np.random.default_rng(0)
env = RepeatFirst(num_decks=2)
rows = []
for seed in range(3):
    card, _ = env.reset(seed=seed)
    first, left, terminated = int(env.card), np.full(4, 26), False
    left[card] -= 1
    while not terminated:
        init = {"first": first, "card": int(card), "left": left.tolist()}
        action = first if rng.random() < 0.5 else int(rng.integers(4))
        card, reward, terminated, truncated, _ = env.step(action)
        left[card] -= 1
        rows.append({
            "init": init,
            "action": action,
            "obs": [int(card)],
            "reward": float(reward),
            "terminated": bool(terminated),
            "truncated": bool(truncated),
        })
    assert not left.any()

print("[" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "]")

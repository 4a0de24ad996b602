"""Writes GAME.json: steps of four games of MinAtar 1.0.15, to compare with.

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install MinAtar==1.0.15
    for game in asterix freeway seaquest space_invaders; do
        /tmp/golden/bin/python rl-envs/tests/recorders/minatar_games.py $game > rl-envs/tests/golden/$game.json
    done

Each row: the state before the step, the action (an index into MinAtar's minimal set), what followed, and the next state. Sticky actions are
off; `last_action` is the action, so that it makes no difference whether one sticks. `obs_nonzero` lists the [index, 1] pairs of
the cells that are not zero. Steps with a random outcome (what enters, new velocities) are left out: the environments' files
test them.

Random actions that are mostly repeated, players that aim, and states drawn at random. Rows of every kind of event are kept, of
all others one in several.
"""

import json
import sys
from importlib.metadata import version

import numpy as np
from minatar import Environment

assert version("MinAtar") == "1.0.15"
NAME = sys.argv[1]
rng = np.random.default_rng(0)
env = Environment(NAME, sticky_action_prob=0.0)
ACTIONS = env.minimal_action_set()
env.seed(0)
game = env.env
rows = []


def bits(board):
    """Rows of bits, the lowest is column 0."""
    return [int(sum(1 << x for x in range(10) if row[x])) for row in board]


def plain(*names):
    return {name: int(getattr(game, name)) for name in names}


def swimmers(rows):
    """Columns, rows and directions, and the timers that there are."""
    padded = [list(row) + [0, 0] for row in rows]
    keys = ["x", "y", "right", "move_timer", "shot_timer"]
    return [dict(zip(keys, [int(row[0]), int(row[1]), bool(row[2]), int(row[3]), int(row[4])])) for row in padded]


def state():
    if NAME == "asterix":
        of = lambda it: it and {"x": int(it[0]), "right": bool(it[2]), "gold": bool(it[3])}
        names = ["player_x", "player_y", "spawn_speed", "spawn_timer", "move_speed", "move_timer", "ramp_timer", "ramp_index"]
        return plain(*names) | {"entities": [of(it) for it in game.entities]}
    if NAME == "freeway":
        columns = zip(*game.cars)
        x, _, timer, speed = [[int(i) for i in column] for column in columns]
        return plain("pos", "move_timer") | {"car_x": x, "car_timer": timer, "car_speed": speed}
    if NAME == "seaquest":
        names = ["oxygen", "diver_count", "sub_x", "sub_y", "e_spawn_speed", "e_spawn_timer", "d_spawn_timer", "move_speed"]
        lists = {name: swimmers(getattr(game, name)) for name in ["f_bullets", "e_bullets", "e_fish", "e_subs", "divers"]}
        booleans = {"sub_or": bool(game.sub_or), "surface": bool(game.surface)}
        return plain(*names, "ramp_index", "shot_timer") | lists | booleans
    maps = {name: bits(getattr(game, name)) for name in ["alien_map", "f_bullet_map", "e_bullet_map"]}
    names = ["pos", "alien_dir", "enemy_move_interval", "alien_move_timer", "alien_shot_timer", "shot_timer"]
    return plain(*names) | maps


def is_random(action):
    """True if the step has a random outcome."""
    if NAME == "asterix":
        return game.spawn_timer == 0
    if NAME == "freeway":
        return game.pos == 1 and game.move_timer == 0 and action == 1
    return NAME == "seaquest" and 0 in (game.e_spawn_timer, game.d_spawn_timer)


def step(elapsed, action, keep):
    """One step from the game's state as it is."""
    init, random = state() | {"last_action": action, "elapsed": min(elapsed, 900)}, is_random(action)
    reward, terminated = env.act(ACTIONS[action])
    if (keep or reward or terminated) and not random:
        planes = np.moveaxis(env.state(), -1, 0)
        rows.append({
            "init": init,
            "action": action,
            "obs_nonzero": [[int(i), 1] for i in np.flatnonzero(planes)],
            "reward": float(reward),
            "terminated": bool(terminated),
            "truncated": False,
            "next": state(),
        })
    return terminated


def aim():
    """An action that finds more of the game than chance does."""
    if NAME == "freeway":
        return 1
    if NAME == "asterix":
        gold = [it for it in game.entities if it and it[3]]
        if not gold:
            return 0
        x, y = gold[0][:2]
        return 2 if y < game.player_y else 4 if y > game.player_y else 1 if x < game.player_x else 3
    if NAME == "space_invaders":
        below = game.e_bullet_map[:, game.pos].sum() > 0
        return int(rng.choice([1, 2])) if below else 3 if game.shot_timer == 0 else int(rng.choice([0, 1, 2]))
    if game.oxygen < 30 and game.diver_count != 0 or game.diver_count == 6:
        return 2
    if not game.divers or rng.random() < 0.4:
        return int(rng.choice([1, 3, 4, 5, 5]))
    x, y = game.divers[0][:2]
    return 2 if y < game.sub_y and game.sub_y > 1 else 4 if y > game.sub_y else 1 if x < game.sub_x else 3


for episode in range({"freeway": 3, "seaquest": 110}.get(NAME, 40)):
    env.reset()
    done, elapsed, action = False, 0, 0
    if NAME == "seaquest" and episode % 2:  # many enemies, fast ones, divers on board
        game.e_spawn_speed, game.move_speed = int(rng.integers(1, 12)), int(rng.integers(2, 6))
        game.diver_count, game.oxygen, game.sub_y = int(rng.integers(-2, 7)), int(rng.integers(1, 201)), 4
        game.e_spawn_timer, game.surface = 1, False
    if NAME == "space_invaders" and episode % 2:  # a few aliens near the ground
        game.alien_map[:] = rng.random((10, 10)) < rng.choice([0.02, 0.1])
        game.alien_map[0, 3] = 1
        game.alien_map[9, game.pos] = 0
        game.enemy_move_interval = int(rng.integers(6, 13))
    if NAME == "asterix" and episode % 2:
        game.spawn_speed, game.move_speed = int(rng.integers(1, 11)), int(rng.integers(1, 6))
    while not done and elapsed < 2400:
        if rng.random() < 0.4:
            action = int(rng.integers(len(ACTIONS)))
        chosen = aim() if episode % 3 else action
        done = step(elapsed, chosen, keep=rng.random() < {"freeway": 0.08, "seaquest": 0.07}.get(NAME, 0.12))
        elapsed += 1

print("[" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "]")

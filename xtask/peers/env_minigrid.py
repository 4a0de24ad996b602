"""Environment steps per second of MiniGrid with random actions: bare loops, one in each process.

    python env_minigrid.py LEVEL PROCESSES SECONDS

Each loop steps one environment, whose observation is the image, and restarts it where it ends. Prints the sum over the processes.
"""

import multiprocessing
import sys
import time

import gymnasium
import minigrid
import numpy as np
from minigrid.wrappers import ImgObsWrapper

N_STEPS = 1000
LEVELS = {
    "empty": ("MiniGrid-Empty-8x8-v0", {"agent_start_pos": None}),
    "door_key": ("MiniGrid-DoorKey-8x8-v0", {}),
    "multi_room": ("MiniGrid-MultiRoom-N2-S4-v0", {}),
}


def rate(level, seed, seconds):
    """Environment steps per second of one environment."""
    name, settings = LEVELS[level]
    env, rng = ImgObsWrapper(gymnasium.make(name, **settings).unwrapped), np.random.default_rng(seed)
    begin, steps = None, 0
    env.reset(seed=seed)
    while begin is None or time.perf_counter() - begin < seconds:
        for action in rng.integers(7, size=N_STEPS):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        steps += N_STEPS
        if begin is None:  # warm
            begin, steps = time.perf_counter(), 0
    return steps / (time.perf_counter() - begin)


if __name__ == "__main__":
    level, n, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    with multiprocessing.Pool(n) as pool:
        print(sum(pool.starmap(rate, [(level, seed, seconds) for seed in range(n)])))

"""Environment steps per second of MinAtar with random actions: bare loops, one in each process.

    python env_minatar.py GAME PROCESSES SECONDS

Each loop steps one game, takes its observation, and restarts it where it ends. Prints the sum over the processes.
"""

import multiprocessing
import sys
import time

import numpy as np
from minatar import Environment

N_STEPS = 1000


def rate(game, seed, seconds):
    """Environment steps per second of one game."""
    env, rng = Environment(game), np.random.default_rng(seed)
    env.seed(seed)
    n_actions, begin, steps = len(env.minimal_action_set()), None, 0
    legal = env.minimal_action_set()
    env.reset()
    while begin is None or time.perf_counter() - begin < seconds:
        for action in rng.integers(n_actions, size=N_STEPS):
            _, is_over = env.act(legal[action])
            if is_over:
                env.reset()
            env.state()
        steps += N_STEPS
        if begin is None:  # warm
            begin, steps = time.perf_counter(), 0
    return steps / (time.perf_counter() - begin)


if __name__ == "__main__":
    game, n, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    with multiprocessing.Pool(n) as pool:
        print(sum(pool.starmap(rate, [(game, seed, seconds) for seed in range(n)])))

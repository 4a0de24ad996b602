"""Environment steps per second of EnvPool with random actions: the best of several sizes.

    python env_envpool.py TASK THREADS SECONDS SIZE..
"""

import sys
import time

import envpool
import numpy as np

task, threads, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])


def rate(n_envs):
    """Environment steps per second with n_envs environments."""
    env = envpool.make(task, env_type="gymnasium", num_envs=n_envs, num_threads=threads, seed=0)
    env.reset()
    rng = np.random.default_rng(0)
    n_actions = int(env.action_space.n)
    begin, steps = None, 0
    while begin is None or time.perf_counter() - begin < seconds:
        if steps >= 10 * n_envs and begin is None:  # warm
            begin, steps = time.perf_counter(), 0
        env.step(rng.integers(n_actions, size=n_envs, dtype=np.int32))
        steps += n_envs
    return steps / (time.perf_counter() - begin)


print(max(rate(int(size)) for size in sys.argv[4:]))

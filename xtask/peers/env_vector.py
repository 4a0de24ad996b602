"""Environment steps per second of Gymnasium's and Stable-Baselines3's vector environments with random actions, drawn before.

    python env_vector.py ENV ENVS SECONDS [sync|async|vector|dummy|subproc]

Prints a JSON object: the best of SyncVectorEnv, AsyncVectorEnv, DummyVecEnv and SubprocVecEnv; the last of them alone; the sum of two
processes that each step one environment without the wrappers that check it, and exchange nothing. With a kind, prints its rate; `vector` is the environment's own vector form.
ENV may be a maker of `pictures`: the others are then AsyncVectorEnv, whose processes share memory, and SubprocVecEnv; and the two processes copy each
observation twice, which is the least for one that another process reads.
"""

import json
import multiprocessing
import sys
import time

import gymnasium
import numpy as np
import pictures
from gymnasium.wrappers import OrderEnforcing, TimeLimit

DRAWN = 512


def made(name, **kwargs):
    return getattr(pictures, name)() if hasattr(pictures, name) else gymnasium.make(name, **kwargs)


def single(name, seconds, queue):
    env = made(name, disable_env_checker=True)
    env = env.env if isinstance(env, OrderEnforcing) else env
    if isinstance(env, TimeLimit) and isinstance(env.env, OrderEnforcing):
        env.env = env.env.env
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(DRAWN)]
    if hasattr(env.action_space, "n"):
        actions = [int(action) for action in actions]
    env.reset(seed=0)
    copies = hasattr(pictures, name)
    rows = np.zeros((2, 8 if copies else 0, *env.observation_space.shape), env.observation_space.dtype)
    steps, begin = 0, time.perf_counter()
    end = begin + seconds
    while time.perf_counter() < end:
        for i, action in enumerate(actions):
            obs, _, terminated, truncated, _ = env.step(action)
            if copies:
                rows[0, i % 8] = obs
                rows[1, i % 8] = rows[0, i % 8]
            if terminated or truncated:
                env.reset()
        steps += DRAWN
    queue.put(steps / (time.perf_counter() - begin))


def bare(name, seconds):
    queue = multiprocessing.Queue()
    processes = [multiprocessing.Process(target=single, args=(name, seconds, queue)) for _ in range(2)]
    for process in processes:
        process.start()
    return sum(queue.get() for _ in processes)


def vector(envs, sample, n, seconds):
    actions = [sample() for _ in range(64)]
    envs.reset()
    envs.step(actions[0])
    steps, begin = 0, time.perf_counter()
    end = begin + seconds
    while time.perf_counter() < end:
        for action in actions:
            envs.step(action)
        steps += n * len(actions)
    rate = steps / (time.perf_counter() - begin)
    envs.close()
    return rate


def gymnasium_rate(kind, make, n, seconds):
    envs = kind([make] * n)
    return vector(envs, envs.action_space.sample, n, seconds)


def sb3_rate(kind, make, n, seconds):
    envs = kind([make] * n)
    return vector(envs, lambda: np.stack([envs.action_space.sample() for _ in range(n)]), n, seconds)


def vector_form_rate(name, n, seconds):
    envs = gymnasium.make_vec(name, num_envs=n, vectorization_mode="vector_entry_point")
    return vector(envs, envs.action_space.sample, n, seconds)


def main():
    name, n, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    make = lambda: made(name)
    from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    ways = {
        "subproc": ("SubprocVecEnv", lambda: sb3_rate(SubprocVecEnv, make, n, seconds)),
        "sync": ("SyncVectorEnv", lambda: gymnasium_rate(SyncVectorEnv, make, n, seconds)),
        "async": ("AsyncVectorEnv", lambda: gymnasium_rate(AsyncVectorEnv, make, n, seconds)),
        "dummy": ("DummyVecEnv", lambda: sb3_rate(DummyVecEnv, make, n, seconds)),
    }
    if len(sys.argv) > 4:
        kind = sys.argv[4]
        print(vector_form_rate(name, n, seconds) if kind == "vector" else ways[kind][1]())
        return
    if hasattr(pictures, name):
        rates = {kind: rate() for kind, rate in (ways["subproc"], ways["async"])}
        print(json.dumps({**rates, "two bare loops with two copies": bare(name, 2 * seconds)}))
        return
    rates = {kind: rate() for kind, rate in ways.values()}
    print({kind: round(rate) for kind, rate in rates.items()}, file=sys.stderr)
    figures = {"the best": max(rates.values()), "SubprocVecEnv": rates["SubprocVecEnv"], "two bare loops": bare(name, 2 * seconds)}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

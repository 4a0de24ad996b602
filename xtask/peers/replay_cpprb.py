"""Transitions per second that a cpprb replay buffer adds or draws: observations of four f32 numbers, one thread.

    python replay_cpprb.py add|sample|update CAPACITY BATCH SECONDS

`update` draws by priorities and sets them anew. Batches of 4,096 are added.
"""

import sys
import time

import numpy as np
from cpprb import PrioritizedReplayBuffer, ReplayBuffer

what, capacity, batch, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
N = 4096
rng = np.random.default_rng(0)
fields = {"obs": {"shape": 4}, "act": {"dtype": np.uint32}, "rew": {}, "next_obs": {"shape": 4}, "done": {}}
buffer = PrioritizedReplayBuffer(capacity, fields, alpha=0.6) if what == "update" else ReplayBuffer(capacity, fields)
obs, act, rew = rng.random((N, 4), dtype=np.float32), np.ones(N, np.uint32), rng.random(N, dtype=np.float32)
done = (rew < 0.05).astype(np.float32)
errors = rng.random(batch) + 1e-6


def add():
    """Adds a batch."""
    buffer.add(obs=obs, act=act, rew=rew, next_obs=obs, done=done)
    return N


def draw():
    """Draws a batch and, with priorities, updates them."""
    if what == "update":
        drawn = buffer.sample(batch, beta=0.4)
        buffer.update_priorities(drawn["indexes"], errors)
    else:
        buffer.sample(batch)
    return batch


while buffer.get_stored_size() < capacity:
    add()
if what == "update":
    for _ in range(2 * capacity // batch):
        draw()
work = add if what == "add" else draw
rates = []
for _ in range(5):
    begin, n = time.perf_counter(), 0
    while n == 0 or time.perf_counter() - begin < seconds / 5:
        n += work()
    rates.append(n / (time.perf_counter() - begin))
print(sorted(rates)[2])

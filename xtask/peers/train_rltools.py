"""Environment steps per second of RLtools' SAC on one Pendulum of Gymnasium, with RLtools' own settings and MKL on one thread.

    python train_rltools.py TOTAL

Its settings: hidden layers of 64-64 with ReLU, an update of 100 transitions for each step after the first 100.
"""

import contextlib
import sys
import time

import gymnasium
from gymnasium.wrappers import RescaleAction
from rltools import SAC

WARMUP = 400
total = int(sys.argv[1])
with contextlib.redirect_stdout(sys.stderr):  # what it says of its compilation
    sac = SAC(lambda: RescaleAction(gymnasium.make("Pendulum-v1"), -1, 1), enable_evaluation=False, STEP_LIMIT=WARMUP + total)
    state = sac.State(0)
    for _ in range(WARMUP):
        state.step()
    begin = time.perf_counter()
    for _ in range(total):
        state.step()
    rate = total / (time.perf_counter() - begin)
print(rate)

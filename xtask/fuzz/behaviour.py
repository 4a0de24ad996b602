"""A walk on a line that misbehaves as `plan.json` of the working directory says; xtask/src/chaos/worker.rs describes plans."""

import ctypes
import json
import os
import signal
import subprocess
import time

import gymnasium as gym
import numpy as np

FORKS = {
    "fork-child": "exec sleep 300",
    "fork-group": "exec sleep 300",
    "fork-session": "exec setsid sleep 300",
    "fork-daemon": "setsid -f sleep 300",
    "fork-deaf": "trap '' HUP INT TERM; exec sleep 300",
    "fork-bare": "exec setsid env -i sleep 300 $RL_MARK",
    "fork-tree": "sleep 300 & setsid sleep 300 & exec sleep 300",
}


def note(file, line):
    with open(file, "a") as out:
        out.write(line + "\n")


def claim():
    """Takes the index of this process."""
    i = 0
    while True:
        try:
            os.close(os.open(f"process-{i}", os.O_CREAT | os.O_EXCL))
            return i
        except FileExistsError:
            i += 1


PLAN = json.load(open("plan.json"))
INDEX = claim()
FROM, TO = PLAN["processes"]
ANSWERS = {}
if PLAN.get("ignores"):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def meet(phase):
    """Misbehaves if a fault of this phase is due."""
    ANSWERS[phase] = ANSWERS.get(phase, 0) + 1
    for fault in PLAN["faults"]:
        if fault["phase"] != phase or fault["nth"] != ANSWERS[phase]:
            continue
        act = fault["act"]
        if act in FORKS:
            pipe = None if fault.get("holds") else subprocess.DEVNULL
            group = {"process_group": 0} if act == "fork-group" else {}
            subprocess.Popen(["sh", "-c", FORKS[act]], stdin=pipe, stderr=pipe, close_fds=pipe is not None, **group)
            continue
        if INDEX < FROM or TO is not None and INDEX >= TO:
            continue
        if act == "none":
            continue
        if act == "late":
            time.sleep(fault["ms"] / 1000)
            continue
        if act == "stderr":
            os.write(2, b"\x1b[2J\x1b]0;title\x07 noise\n" * 5000)
            continue
        note("committed", f"{phase} {act}")
        if act == "hang":
            time.sleep(300)
        elif act == "deaf":  # holds the interpreter's lock, too
            ctypes.PyDLL(None).sleep(300)
        elif act == "exit":
            os._exit(3)
        elif act == "crash":
            os.kill(os.getpid(), (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGSTOP)[fault["seed"] % 4])
            time.sleep(300)
        elif act == "shut":
            os.closerange(0, 64)
            time.sleep(300)
        else:
            raise ValueError("\x1b]0;title\x07 the walker stumbles")


class Walk(gym.Env):
    observation_space = gym.spaces.Box(-5, 5, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self):
        meet("hello")

    def obs(self):
        return np.array([self.place], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = 0, 0
        meet("begin")
        return self.obs(), {}

    def step(self, action):
        meet("step")
        self.place += 1 if action else -1
        self.time += 1
        over = abs(self.place) == 5
        return self.obs(), float(self.place == 5), over, not over and self.time == 20, {}

    def close(self):
        time.sleep(PLAN.get("close_ms", 0) / 1000)
        note("closed", "whole")

"""A walk on a line, in a worker: rl train "exec:python3 rl-runtime/examples/worker/walk.py".

Start near the middle, step left or right, win 1 at the right end. docs/worker-protocol.md describes the messages.
"""

import json
import os
import struct

STEP, STEP_ONE, RESTART, BEGIN, RENDER, CLOSE = range(6)


class Walk:
    def start(self, place):
        self.place, self.t = place, 0

    def step(self, action):
        """Returns reward, terminated, truncated."""
        self.t += 1
        self.place += 1 if action else -1
        over = abs(self.place) == 5
        return float(self.place == 5), over, self.t == 50 and not over


def read(n):
    data = b""
    while len(data) < n:
        part = os.read(0, n - len(data))
        if not part:
            os._exit(0)  # the program has ended
        data += part
    return data


def write(data):
    while data:
        data = data[os.write(0, data) :]


def read_text():
    return json.loads(read(struct.unpack("<I", read(4))[0]))


read_text()
greeting = {
    "protocol": 1,
    "worker": "a walk in Python",
    "observation": {"dtype": "f32", "shape": [1], "low": [-5], "high": [5]},
    "action": {"kind": "discrete", "n": 2},
}
text = json.dumps(greeting).encode()
write(struct.pack("<II", 0xA0000000, len(text)) + text)
walks = []
while True:
    (what,) = struct.unpack("<I", read(4))
    actions = struct.unpack(f"<{len(walks)}I", read(4 * len(walks)))
    kind, i = what & 0xFF, what >> 8
    if kind == CLOSE:
        break
    if kind == RENDER:
        write(struct.pack("<III", 0, 0, 0))  # no picture
        continue
    if kind == BEGIN:
        seeds = read_text()["seeds"]
        walks = [Walk() for _ in seeds]
        for walk, seed in zip(walks, seeds):
            walk.start(seed % 3 - 1)
    elif kind == RESTART:
        walks[i].start(0)
    k = len(walks)
    rewards, terminated, truncated, final = [0.0] * k, [False] * k, [False] * k, []
    for j in range(k) if kind == STEP else [i] if kind == STEP_ONE else []:
        rewards[j], terminated[j], truncated[j] = walks[j].step(actions[j])
        if terminated[j] or truncated[j]:
            final.append(walks[j].place)
            walks[j].start(0)
    reply = struct.pack(f"<I{k}f{k}?{k}?", 0, *rewards, *terminated, *truncated)
    reply += bytes(-len(reply) % 8)
    write(reply + struct.pack(f"<{k + len(final)}f", *(walk.place for walk in walks), *final))

"""A worker with a fault: `python3 hostile_worker.py FAULT ARGUMENT`. Each step counts up; an episode has 50 steps."""

import json
import os
import struct
import subprocess
import sys
import time

STEP, STEP_ONE, RESTART, BEGIN, RENDER, CLOSE = range(6)
FAULT, ARGUMENT = sys.argv[1:3]
SLEEP = ["env", "-i", sys.executable, "-c", "import time; time.sleep(600)", ARGUMENT]


def read(n):
    data = b""
    while len(data) < n:
        part = os.read(0, n - len(data))
        if not part:
            os._exit(0)
        data += part
    return data


def write(data, slow=False):
    while data:
        time.sleep(0.1 if slow else 0)
        data = data[os.write(0, data[: 1 if slow else None]) :]


def text():
    return json.loads(read(struct.unpack("<I", read(4))[0]))


def send_text(tag, value, slow=False):
    body = json.dumps(value).encode()
    write(struct.pack("<II", tag, len(body)) + body, slow)


text()
masked = FAULT == "mask"
action = json.loads(ARGUMENT) if FAULT == "action" else {"kind": "discrete", "n": 2}
if FAULT == "deaf":
    action = {"kind": "box", "low": [-1] * 200000, "high": [1] * 200000}
greeting = {
    "protocol": 1,
    "observation": {"dtype": "f32", "shape": [1], "low": [0], "high": [50], **(json.loads(ARGUMENT) if FAULT == "observation" else {})},
    "action": action,
    "masked": masked,
}
send_text(0xA0000000, greeting, FAULT == "slow_greeting")
if FAULT == "deaf":
    time.sleep(600)
t = []
while True:
    (what,) = struct.unpack("<I", read(4))
    read(4 * len(t))
    kind, i = what & 0xFF, what >> 8
    if kind == CLOSE:
        if FAULT == "close":
            name = f"closed-{os.getpid()}"
            open(name + ".part", "w").close()
            time.sleep(float(ARGUMENT))
            os.rename(name + ".part", name + ".whole")
        break
    if kind == BEGIN:
        t = [0] * len(text()["seeds"])
    elif kind == RESTART:
        t[i] = 0
    k, mask, flag = len(t), [1, 1], 0
    stepped = range(k) if kind == STEP else [i] if kind == STEP_ONE else []
    for j in stepped:
        t[j] += 1
    if kind == STEP and FAULT == "hang":
        subprocess.Popen(SLEEP, start_new_session=True)
        subprocess.run(["sh", "-c", '"$@" &', "sh", *SLEEP])  # an orphan
        time.sleep(600)
    if kind == STEP and FAULT == "raise":
        send_text(0xE0000000, {"at": "step", "env": 0, "kind": "ValueError", "message": "always", "traceback": ""})
        os._exit(1)
    if kind == STEP and FAULT == "mask":
        mask = json.loads(ARGUMENT)
    truncated = [int(time == 50) for time in t]
    if kind == STEP and FAULT == "flag":
        truncated = [int(ARGUMENT)] * k
    if kind == BEGIN and FAULT == "begin":
        truncated = [1] * k
    final = [float(time) for time, cut in zip(t, truncated) if cut]
    t = [0 if cut else time for time, cut in zip(t, truncated)]
    reply = struct.pack(f"<I{k}f{2 * k}B", 0, *[1.0] * k, *[0] * k, *truncated) + (bytes(mask) * k if masked else b"")
    reply += bytes(-len(reply) % 8) + struct.pack(f"<{k + len(final)}f", *t, *final) + (b"\1\1" * len(final) if masked else b"")
    write(reply, FAULT == "slow" and kind == STEP)

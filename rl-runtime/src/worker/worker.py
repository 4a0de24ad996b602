# Worker of `rl`: steps k Gymnasium environments on request. docs/worker-protocol.md describes the messages.
# Runs as `PYTHON -c SCRIPT`; file descriptor 0 is a Unix stream socket, 2 is the log.
import os, sys

SOCKET = os.dup(0)  # not inherited by programs that environments start
GUARDED, GUARD = os.pipe()  # closes when this process dies, however that happens


def release():  # in a forked child, which would otherwise keep both open after this process
    os.close(SOCKET)
    os.close(GUARD)


def guard():
    """Forks a process that kills this process group, with whatever environments have started, after this process."""
    worker = os.getpid()
    if os.fork() == 0:
        release()
        for fd in (0, 1, 2):
            os.close(fd)
        os.read(GUARDED, 1)
        if os.getpgrp() == worker:
            os.killpg(worker, 9)
        os._exit(0)
    os.close(GUARDED)


guard()
os.register_at_fork(after_in_child=release)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(2, 1)  # prints go to the log
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame must not look for a screen
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
import difflib, gc, importlib, json, math, select, signal, socket, struct, threading, time, traceback

signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop

PROTOCOL = 1
STEP, STEP_ONE, RESTART, BEGIN, RENDER, CLOSE = range(6)  # requests
REPLY, HELLO, FAILED = 0, 0xA0000000, 0xE0000000  # answers


def read(n):
    data = b""
    while len(data) < n:
        part = os.read(SOCKET, n - len(data))
        if not part:
            os._exit(0)  # the parent is gone
        data += part
    return data


def write(data):
    data = memoryview(data)
    try:
        while data:
            data = data[os.write(SOCKET, data) :]
    except OSError:
        os._exit(0)


def read_json():
    return json.loads(read(struct.unpack("<I", read(4))[0]))


def write_json(tag, value):
    body = json.dumps(value, allow_nan=False).encode()
    write(struct.pack("<II", tag, len(body)) + body)


def fail(at, error, env=None):
    """Reports an exception and ends the process."""
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    what = {"at": at, "env": env, "kind": type(error).__name__, "message": str(error)[:4000], "traceback": "".join(lines)[-16000:]}
    write_json(FAILED, what)
    os._exit(1)


def watch_parent():  # sees the socket close even in the middle of a step
    poll = select.poll()
    poll.register(SOCKET, 0)
    poll.poll()
    os._exit(0)


def die_with_parent(parent):  # even while C code holds the interpreter's lock
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(0)


# ---- spaces


def bounds(values):
    return [x if -1e300 < x < 1e300 else None for x in (float(x) for x in values.ravel())]


def describe(space):
    """Returns the element type, shape and bounds of observations as they are sent."""
    if isinstance(space, spaces.Box):
        if space.dtype == np.uint8:
            shape = channels_first(space.shape)
            return {"dtype": "u8", "shape": shape, "low": [], "high": []}
        return {"dtype": "f32", "shape": list(space.shape), "low": bounds(space.low), "high": bounds(space.high)}
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        sizes = [int(n) for n in category_bounds(space)[1]]
        low, high = [0.0] * len(sizes), [n - 1.0 for n in sizes]
        return {"dtype": "f32", "shape": [len(sizes)], "low": low, "high": high, "categories": sizes}
    if isinstance(space, spaces.MultiBinary):
        n = int(np.prod(space.shape))
        return {"dtype": "f32", "shape": [n], "low": [0.0] * n, "high": [1.0] * n}
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = [describe(part) for _, part in parts_of(space)]
        for part in parts:
            if part["dtype"] == "u8":
                n = int(np.prod(part["shape"]))
                part["low"], part["high"] = [0.0] * n, [255.0] * n
        for part in parts:
            part.setdefault("categories", [0] * len(part["low"]))
        all_of = lambda key: sum((part[key] for part in parts), [])
        whole = {"dtype": "f32", "low": all_of("low"), "high": all_of("high"), "categories": all_of("categories")}
        return {**whole, "shape": [len(whole["low"])]}
    raise TypeError(f"observations of the space {space} are not supported: wrap the environment, for instance in FlattenObservation")


def describe_action(space):
    if isinstance(space, spaces.Discrete):
        return {"kind": "discrete", "n": int(space.n)}
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        return {"kind": "box", "low": bounds(space.low), "high": bounds(space.high)}
    if isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)):
        sizes = head_sizes(space)
        if math.prod(sizes) < 1 << 32:
            return {"kind": "multi_discrete", "sizes": sizes}
        raise TypeError(f"actions of the space {space} are not supported: they have more than 2^32 - 1 combinations")
    raise TypeError(f"actions of the space {space} are not supported: Discrete, MultiDiscrete, MultiBinary or a Box of floats")


def category_bounds(space):
    """Returns the first number of each category of a Discrete or MultiDiscrete space, and how many follow."""
    if isinstance(space, spaces.Discrete):
        return np.array([space.start]), np.array([space.n])
    return np.broadcast_to(getattr(space, "start", 0), space.nvec.shape).ravel(), space.nvec.ravel()


def head_sizes(space):
    if isinstance(space, spaces.MultiBinary):
        return [2] * int(np.prod(space.shape))
    return [int(n) for n in space.nvec.ravel()]


def channels_first(shape):
    """Returns the shape of an image with its channels in front."""
    return [shape[2], shape[0], shape[1]] if is_channels_last(shape) else list(shape)


def is_channels_last(shape):
    return len(shape) == 3 and shape[2] < min(shape[:2])


def parts_of(space):
    return space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)


def size(space):
    return int(np.prod(describe(space)["shape"]))


def writer(space, row):
    """Returns a function that writes an observation into `row`."""
    if isinstance(space, (spaces.Box, spaces.MultiBinary)):
        shape = tuple(space.shape)
        if isinstance(space, spaces.Box) and space.dtype == np.uint8 and is_channels_last(shape):
            view = row.reshape(channels_first(shape)).transpose(1, 2, 0)
        else:
            view = row.reshape(shape)

        def write_box(obs):
            if getattr(obs, "shape", None) != shape:  # numpy would stretch (1,) to (n,) silently
                obs = np.asarray(obs)
                if obs.shape != shape:
                    raise ValueError(f"observation of shape {obs.shape}, the space has {shape}")
            view[...] = obs

        return write_box
    if isinstance(space, spaces.Discrete):
        n, start = int(space.n), int(space.start)

        def write_category(obs):
            try:
                category = int(obs) - start
                known = 0 <= category < n and category + start == obs
            except (TypeError, ValueError, OverflowError):
                known = False
            if not known:
                raise ValueError(f"observation {obs!r} is not in {space}: it must be a whole number from {start} to {start + n - 1}")
            row[0] = category

        return write_category
    if isinstance(space, spaces.MultiDiscrete):
        starts, sizes = category_bounds(space)

        def write_categories(obs):
            numbers = np.asarray(obs)
            if numbers.shape != space.shape or numbers.dtype.kind not in "biuf":
                raise ValueError(f"observation {obs!r} is not in {space}: it must be whole numbers of the shape {space.shape}")
            categories = numbers.ravel() - starts
            known = (0 <= categories) & (categories < sizes) & (categories == np.floor(categories))
            if not known.all():
                i = int(np.argmin(known))
                bounds = f"from {starts[i]} to {starts[i] + sizes[i] - 1}"
                raise ValueError(f"element {i} of the observation is {numbers.ravel()[i]}, not in {space}: it must be a whole number {bounds}")
            row[...] = categories

        return write_categories
    at, writers = 0, []
    for key, part in parts_of(space):
        writers.append((key, writer(part, row[at : at + size(part)])))
        at += size(part)

    def write_parts(obs):
        for key, write_part in writers:
            write_part(obs[key])

    return write_parts


# ---- environments


def find(ask):
    """Returns a function that makes an environment: of a registered id, or a callable of a module."""
    kwargs = ask["kwargs"]
    module, _, name = ask["id"].rpartition(":")
    own = getattr(importlib.import_module(module), name, None) if module else None
    if name not in gym.registry and callable(own):
        make, render_modes = own, ["rgb_array"]
    else:
        try:
            spec = gym.spec(name)
        except gym.error.Error as error:
            near = difflib.get_close_matches(name, gym.registry, 3)
            raise type(error)(f"{error}" + (f" Near names: {', '.join(near)}." if near else ""))
        make = lambda **kwargs: gym.make(name, disable_env_checker=True, **kwargs)
        entry = gym.envs.registration.load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
        render_modes = (getattr(entry, "metadata", None) or {}).get("render_modes", [])
    if ask["render"] and "rgb_array" in render_modes:
        kwargs = {**kwargs, "render_mode": "rgb_array"}
    return lambda: unguarded(make(**kwargs))


def unguarded(env):  # the order of resets and steps is right without a wrapper that checks it
    from gymnasium.wrappers import OrderEnforcing, TimeLimit

    if isinstance(env, OrderEnforcing):
        return env.env
    if isinstance(env, TimeLimit) and isinstance(env.env, OrderEnforcing):
        env.env = env.env.env
    return env


class Batch:
    """k environments and the memory of their replies."""

    def __init__(self, envs, masked):
        k, (obs_space, action_space) = len(envs), (envs[0].observation_space, envs[0].action_space)
        about, d = describe(obs_space), size(obs_space)
        element = np.uint8 if about["dtype"] == "u8" else np.float32
        a = int(action_space.n) if masked else 0
        self.size = d * element().itemsize
        first_obs = (4 + 6 * k + k * a + 7) // 8 * 8
        self.reply = memoryview(bytearray(first_obs + k * self.size))
        self.last, self.last_masks = memoryview(bytearray(k * self.size)), np.ones((k, a), np.uint8)
        rows = lambda memory, at, n, dtype: list(np.frombuffer(memory, dtype, k * n, at).reshape(k, n))
        self.writers = [writer(obs_space, row) for row in rows(self.reply, first_obs, d, element)]
        self.last_writers = [writer(obs_space, row) for row in rows(self.last, 0, d, element)]
        self.masks = rows(self.reply, 4 + 6 * k, a, np.uint8) if masked else None
        part = lambda start, end, kind: self.reply[4 + start * k : 4 + end * k].cast(kind)
        self.rewards, self.terminated, self.truncated = part(0, 4, "f"), part(4, 5, "?"), part(5, 6, "?")
        self.flags, self.no_flags = self.reply[4 + 4 * k : 4 + 6 * k], bytes(2 * k)
        self.steps, self.resets = [env.step for env in envs], [env.reset for env in envs]
        self.now = None  # the environment that is called

    def step(self, actions):
        """Takes (environment, action) pairs, and returns the reply."""
        ended, masks, rewards, terminated, truncated = [], self.masks, self.rewards, self.terminated, self.truncated
        steps, writers = self.steps, self.writers
        for i, action in actions:
            self.now = i
            obs, reward, ends, cut, info = steps[i](action)
            rewards[i], terminated[i], truncated[i] = reward, ends, cut
            if ends or cut:
                self.last_writers[i](obs)
                ended.append(i)
                if masks:
                    self.last_masks[i] = info.get("action_mask", 1)
                obs, info = self.resets[i]()
            writers[i](obs)
            if masks:
                masks[i][...] = info["action_mask"]
        if not ended:
            return self.reply
        finals = [self.last[i * self.size : (i + 1) * self.size] for i in ended]
        return b"".join([self.reply, *finals, *(self.last_masks[i].tobytes() for i in ended)])

    def start(self, i, seed):
        self.now = i
        obs, info = self.resets[i](seed=seed)
        self.writers[i](obs)
        if self.masks:
            self.masks[i][...] = info["action_mask"]


def picture(env):
    """Returns (height, width, RGB bytes), which are empty for an environment that does not draw itself."""
    frame = env.render() if getattr(env, "render_mode", None) == "rgb_array" else None
    frame = np.asarray([] if frame is None else frame)
    if frame.ndim != 3 or frame.shape[2] != 3:
        return struct.pack("<III", REPLY, 0, 0)
    return struct.pack("<III", REPLY, *frame.shape[:2]) + frame.astype(np.uint8).tobytes()


def serve(make, envs, masked, spin):
    action_space = envs[0].action_space
    discrete = isinstance(action_space, spaces.Discrete)
    multi = isinstance(action_space, (spaces.MultiDiscrete, spaces.MultiBinary))
    words = 1 if discrete or multi else int(np.prod(action_space.shape))
    first_action, dtype = int(action_space.start) if discrete else 0, None if discrete else action_space.dtype
    if multi:
        sizes, starts = head_sizes(action_space), getattr(action_space, "start", 0)
    sock, poller = socket.socket(fileno=SOCKET), select.poll()
    poller.register(SOCKET, select.POLLIN)
    poll, clock, give_way = poller.poll, time.perf_counter, getattr(os, "sched_yield", lambda: None)
    batch = request = what = given = None
    length = 4

    def actions():  # Python's integers are fast; vectors are copies, since environments may keep them
        if discrete:
            return [a + first_action for a in given] if first_action else given.tolist()
        if multi:  # a number in mixed radix, the last head the fastest
            chosen = np.stack(np.unravel_index(given, sizes), 1).reshape(-1, *action_space.shape)
            return (chosen + starts).astype(dtype)
        return given.astype(dtype)

    def begin(k):
        nonlocal batch, request, what, given, length
        while len(envs) < k:
            envs.append(make())
        batch, length = Batch(envs[:k], masked), 4 + 4 * k * words
        request = bytearray(length)
        what = memoryview(request)[:4].cast("I")
        shape = (k, *action_space.shape)
        if discrete:
            given = memoryview(request)[4:].cast("I")
        elif multi:
            given = np.frombuffer(request, np.uint32, k, 4)
        else:
            given = np.frombuffer(request, np.float32, k * words, 4).reshape(shape)

    request = bytearray(length)
    what = memoryview(request).cast("I")
    while True:
        if spin and not poll(0):  # waking up costs more than a step of a small environment
            until = clock() + spin
            while not poll(0) and clock() < until:
                give_way()
        try:
            n = sock.recv_into(request, length, socket.MSG_WAITALL)
        except OSError:
            os._exit(0)
        if n < length:
            os._exit(0)
        kind, i = what[0] & 0xFF, what[0] >> 8
        at = "step"
        try:
            if kind == STEP:
                reply = batch.step(enumerate(actions()))
            elif kind == STEP_ONE:
                batch.flags[:] = batch.no_flags
                reply = batch.step([(i, actions()[i])])
            elif kind == RENDER:
                at = "render"
                reply = picture(envs[i])
            elif kind == CLOSE:
                for env in envs:
                    env.close()
                os._exit(0)
            else:
                at = "reset"
                if kind == BEGIN:
                    seeds = read_json()["seeds"]
                    if batch is None or len(batch.steps) != len(seeds):
                        begin(len(seeds))
                    for j, seed in enumerate(seeds):
                        batch.start(j, seed)
                    gc.collect()
                    gc.freeze()  # no later collection looks at what exists now
                else:
                    batch.start(i, None)
                batch.flags[:] = batch.no_flags
                reply = batch.reply
        except BaseException as error:
            fail(at, error, batch and batch.now)
        try:
            sock.sendall(reply)
        except OSError:
            os._exit(0)


def main():
    ask = read_json()
    die_with_parent(ask["parent"])
    threading.Thread(target=watch_parent, daemon=True).start()
    at = "protocol"
    try:
        if ask["protocol"] != PROTOCOL:
            raise ValueError(f"this worker speaks version {PROTOCOL} of the protocol, not {ask['protocol']}")
        at = "import"
        global np, gym, spaces
        import numpy as np, gymnasium as gym
        from gymnasium import spaces

        at = "find"
        make = find(ask)
        at = "make"
        env = make()
        at = "spaces"
        observation, action = describe(env.observation_space), describe_action(env.action_space)
        at = "reset"
        _, info = env.reset(seed=0)
        masked = action["kind"] == "discrete" and "action_mask" in info
        versions = f"Python {sys.version.split()[0]}, Gymnasium {gym.__version__}"
        write_json(HELLO, {"protocol": PROTOCOL, "worker": versions, "observation": observation, "action": action, "masked": masked})
    except BaseException as error:
        fail(at, error)
    serve(make, [env], masked, ask["spin_us"] * 1e-6)


main()

# Worker of `rl`: steps k Gymnasium environments on request. docs/worker-protocol.md describes the messages.
# Runs as `PYTHON -c SCRIPT`; file descriptor 0 is a Unix stream socket, 2 is the log.
# No line may run pip as a module: pyenv finds that in the arguments of its shim, and forks, so that the keeper is not the parent.
import os, sys

sys.path[:] = filter(None, sys.path)  # "" is the current directory, whose json.py is not the library's
SOCKET = os.dup(0)  # not inherited by programs that environments start
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(2, 1)  # prints go to the log
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
import difflib, gc, importlib.util, inspect, itertools, json, math, mmap, select, signal, socket, struct, threading, time, traceback

signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop

PROTOCOL = 1
STEP, STEP_ONE, RESTART, BEGIN, RENDER, CLOSE = range(6)  # requests
REPLY, HELLO, FAILED = 0, 0xA0000000, 0xE0000000  # answers
LIFE_LOST = 2  # terminated for learning, and the game goes on


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


def read_memory(sock, n):
    """Returns memory of n bytes, whose file comes with the next byte; None of 0 bytes."""
    if not n:
        return None
    _, files, _, _ = socket.recv_fds(sock, 1, 1)
    memory = mmap.mmap(files[0], n)
    os.close(files[0])
    return memory


def write_json(tag, value):
    body = json.dumps(value, allow_nan=False, ensure_ascii=False).encode(errors="replace")  # paths may have no UTF-8
    write(struct.pack("<II", tag, len(body)) + body)


Refused = type("TypeError", (TypeError,), {})  # says all in its message, so that no traceback follows


def shown(value):
    text = " ".join(repr(value).split())
    return f"{text if len(text) < 100 else text[:100] + '..'} ({type(value).__name__})"


def refused(method, value, field, must):
    """Returns the exception for a value that an environment must not return."""
    return Refused(f"{method}() returned {shown(value)} as {field}; it must be {must}")


def fail(at, error, env=None):
    """Reports an exception and ends the process."""
    lines = [] if isinstance(error, Refused) else traceback.format_exception(type(error), error, error.__traceback__)
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


def describe(space, name=""):
    """Returns the element type, shape, bounds and named parts of observations as they are sent."""
    if isinstance(space, spaces.Box):
        if is_picture(space):
            shape = channels_first(space.shape)
            if space.dtype == np.uint8:
                return {"dtype": "u8", "shape": shape, "low": [], "high": [], "scale": 1 / most_of_byte}
            n = math.prod(shape)
            picture = {"name": name or "picture", "shape": shape}
            return {"dtype": "f32", "shape": [n], "low": [0.0] * n, "high": [1.0] * n, "parts": [picture]}
        return {"dtype": "f32", "shape": list(space.shape), "low": bounds(space.low), "high": bounds(space.high)}
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        sizes = [int(n) for n in category_bounds(space)[1]]
        low, high = [0.0] * len(sizes), [n - 1.0 for n in sizes]
        return {"dtype": "f32", "shape": [len(sizes)], "low": low, "high": high, "categories": sizes}
    if isinstance(space, spaces.MultiBinary):
        n = int(np.prod(space.shape))
        return {"dtype": "f32", "shape": [n], "low": [0.0] * n, "high": [1.0] * n}
    if has_vocabulary(space):
        n = len(vocabulary(space))
        return {"dtype": "f32", "shape": [1], "low": [0.0], "high": [n - 1.0], "categories": [n]}
    if isinstance(space, (spaces.Dict, spaces.Tuple)) and is_numeric(space):
        parts = []
        for key, of in parts_of(space):
            part_name = f"{name}.{key}" if name else str(key)
            part = describe(of, part_name)
            n = math.prod(part["shape"])
            if part["dtype"] == "u8":
                part.update(low=[0.0] * n, high=[255 / most_of_byte] * n, parts=[{"name": part_name, "shape": part["shape"]}])
            part.setdefault("categories", [0] * n)
            part.setdefault("parts", [{"name": part_name, "shape": [n]}])
            parts.append(part)
        all_of = lambda key: sum((part[key] for part in parts), [])
        whole = {key: all_of(key) for key in ("low", "high", "categories", "parts")}
        whole["parts"] = [part for part in whole["parts"] if 0 not in part["shape"]]
        for i, part in enumerate(whole["parts"]):  # {"a.b": ..} beside {"a": {"b": ..}}
            while any(part["name"] == other["name"] for other in whole["parts"][:i]):
                part["name"] += "'"
        return {"dtype": "f32", "shape": [len(whole["low"])], **whole}
    advice = "make numbers of them in a gymnasium.ObservationWrapper"
    if isinstance(space, spaces.Dict):
        fit = [key for key, part in parts_of(space) if is_numeric(part)]
        others = ", ".join(repr(key) for key in space.spaces if key not in fit)
        if fit:
            raise TypeError(f"observations of the space {space} are not supported: leave out {others} by --set env.keys={','.join(fit)}")
    raise TypeError(f"observations of the space {space} are not supported: {advice}, in a maker of your own, gym:MODULE:CALLABLE")


def is_numeric(space):
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return all(is_numeric(part) for _, part in parts_of(space))
    return isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)) or has_vocabulary(space)


MAX_TEXTS = 4096


def has_vocabulary(space):
    """True for MiniGrid's missions that are one of some texts; subclasses make others."""
    if type(space).__name__ != "MissionSpace" or not hasattr(space, "ordered_placeholders"):
        return False
    return math.prod(len(words) for words in space.ordered_placeholders or []) <= MAX_TEXTS


def vocabulary(space):
    """Returns all texts of a space with their numbers."""
    texts = (space.mission_func(*words) for words in itertools.product(*space.ordered_placeholders or []))
    return {text: i for i, text in enumerate(dict.fromkeys(texts))}


def is_picture(space):
    """True for 2 or 3 dimensions of bytes that may have any value, or of floats from 0 to 1; other bytes are numbers."""
    if not isinstance(space, spaces.Box) or len(space.shape) not in (2, 3) or 0 in space.shape:
        return False
    is_float = float_images and space.dtype.kind == "f" and len(space.shape) == 3
    most = 255 if space.dtype == np.uint8 else 1 if is_float else None
    return most is not None and bool(np.all(space.low == 0) and np.all(space.high == most))


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
    """Returns the shape of a picture as channels, rows and columns."""
    if len(shape) == 2:
        return [1, *shape]
    return [shape[2], shape[0], shape[1]] if is_channels_last(shape) else list(shape)


def is_channels_last(shape):
    return len(shape) == 3 and shape[2] < min(shape[:2])


def observed(space, keys):
    """Returns the space of the parts with these names, or of all if there are none."""
    if not keys:
        return space
    if not isinstance(space, spaces.Dict):
        raise Refused(f"env.keys names parts of a Dict, but observations are {space}; leave it out")
    for key in keys:
        if key not in space.spaces:
            raise Refused(f"env.keys has {key!r}, which is no part of the observations; there are {', '.join(map(str, space.spaces))}")
    return spaces.Dict({key: part for key, part in parts_of(space) if key in keys})


def parts_of(space):
    return space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)


def size(space):
    return int(np.prod(describe(space)["shape"]))


def writer(space, row):
    """Returns a function that writes an observation into `row`."""
    if isinstance(space, (spaces.Box, spaces.MultiBinary)):
        shape = tuple(space.shape)
        if is_picture(space) and is_channels_last(shape):
            view = row.reshape(channels_first(shape)).transpose(1, 2, 0)
        else:
            view = row.reshape(shape)

        def fitting(obs):
            obs = np.asarray(obs)
            if obs.shape != shape or obs.dtype.kind not in "biuf":
                raise ValueError(f"{obs.dtype} of shape {obs.shape} instead of {shape}")
            return obs

        def write_box(obs):
            if getattr(obs, "shape", None) != shape:  # numpy would stretch (1,) to (n,) silently
                obs = fitting(obs)
            view[...] = obs

        def write_bytes(obs):
            write_box(obs)
            if getattr(obs, "dtype", None) != np.uint8 and not np.array_equal(view, obs):  # 0.5 is cut to 0, and 300 to 44
                raise ValueError(f"{np.asarray(obs).dtype} that are no integers from 0 to 255, instead of uint8")

        def write_scaled(obs):  # a picture among numbers
            np.divide(fitting(obs), np.float32(most_of_byte), out=view)

        if row.dtype == np.uint8:
            return write_bytes
        return write_scaled if is_picture(space) and space.dtype == np.uint8 else write_box
    if has_vocabulary(space):
        texts = vocabulary(space)

        def write_text(obs):
            if obs not in texts:
                raise ValueError(f"text {obs!r} is not one of the {len(texts)} of {space}")
            row[0] = texts[obs]

        return write_text
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


PLUGINS = ["ale_py", "minigrid", "highway_env", "gymnasium_robotics", "miniworld", "panda_gym", "flappy_bird_gymnasium"]


def registration(module, name):
    """Returns the registration of an id, which `module`, or else one of `PLUGINS`, makes when it is imported."""
    plugins, notes = [] if module else list(filter(importlib.util.find_spec, PLUGINS)), ""
    while True:
        try:
            return gym.spec(name)
        except gym.error.Error as error:
            unknown = isinstance(error, (gym.error.NamespaceNotFound, gym.error.NameNotFound))
            if not (unknown and plugins):
                near = difflib.get_close_matches(name, gym.registry, 3)
                advice = f" Near names: {', '.join(near)}." if near else f" The id of a package is gym:MODULE:{name}."
                advice = f" The module {module} has no callable {name}." if module and unknown else advice
                raise type(error)(f"{error}{advice}{notes}")
        plugin = plugins.pop(0)
        try:
            importlib.import_module(plugin)
        except Exception as error:
            notes += f" The package {plugin} cannot be imported: {error}."


def find(ask):
    """Returns a function that makes an environment, of a registered id or by a callable of a module, and the module's directory."""
    kwargs, home, own = ask["kwargs"], "", None
    path = ask["path"] and os.path.abspath(ask["path"])  # as modules name it
    module, _, name = ask["id"].rpartition(":")
    if module:
        package = module.partition(".")[0]
        for place in filter(os.path.isdir, (path, os.getcwd())):
            sys.path.insert(0, place)  # as for a program in that directory; the worker has imported its own modules
            if importlib.util.find_spec(package):
                break
        own = getattr(importlib.import_module(module), name, None)
        package = sys.modules[package]
        home = os.path.dirname([*getattr(package, "__path__", []), getattr(package, "__file__", None) or ""][0])
        home = home if home in (path, os.getcwd()) else ""
    if name not in gym.registry and callable(own):
        make = maker = own
    else:
        spec = registration(module, name)
        make = lambda **kwargs: gym.make(name, disable_env_checker=True, **kwargs)
        maker = gym.envs.registration.load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
    if ask["render"] and is_drawn(maker):
        kwargs = {**kwargs, "render_mode": "rgb_array"}
    wrapped = lambda env: with_wrappers(env, ask)
    if ask["atari_preprocessing"] and name.startswith("ALE/") and kwargs.get("obs_type", "rgb") == "rgb":
        frames = kwargs.get("frameskip", 4)
        if not isinstance(frames, int):
            raise Refused(f"frameskip is {frames}; env.atari_preprocessing takes every nth frame: name n, or turn it off")
        kwargs = {**kwargs, "frameskip": 1}
        return (lambda: wrapped(prepared(unguarded(make(**kwargs)), frames))), home
    return (lambda: wrapped(unguarded(make(**kwargs)))), home


def prepared(env, frames):
    """Returns a game of the Arcade Learning Environment as Machado et al. (2018) prepare it; frames are stacked by the parent."""
    from gymnasium.wrappers import AtariPreprocessing

    try:
        return AtariPreprocessing(env, frame_skip=frames)
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise Refused(f"Gymnasium's AtariPreprocessing needs OpenCV ({error}): install the package opencv-python-headless")


def with_wrappers(env, ask):
    """Returns an environment with the wrappers that settings ask for."""
    asked = [name for name, off in (("time_limit", 0), ("action_repeat", 1), ("grayscale", False), ("resize", 0)) if ask[name] != off]
    if not asked:
        return env
    check_kind(env)
    if not isinstance(env, gym.Env):
        raise Refused(f"env.{asked[0]} wraps a gymnasium.Env, and {type(env).__name__} is none: make it a subclass")
    if ask["time_limit"]:
        env = gym.wrappers.TimeLimit(env, ask["time_limit"])
    if ask["action_repeat"] != 1:
        env = repeated(env, ask["action_repeat"])
    if ask["grayscale"]:
        env = pictured(env, "grayscale", "three colours, bytes from 0 to 255", lambda shape: shape[0] == 3, grey)
    if ask["resize"]:
        env = pictured(env, "resize", "bytes from 0 to 255", lambda shape: True, lambda picture: resized(picture, ask["resize"]))
    return env


def repeated(env, times):
    """Takes each action several times, and adds up the rewards."""

    class Repeated(gym.Wrapper):
        def step(self, action):
            total = 0.0
            for _ in range(times):
                obs, reward, terminated, truncated, info = self.env.step(action)
                total += np.asarray(reward).item()
                if terminated or truncated:
                    break
            return obs, total, terminated, truncated, info

    return Repeated(env)


def pictured(env, name, what, fits, change):
    """Changes the pictures of bytes in observations whose shape fits, as (channels, rows, columns)."""
    space, changed = changing(env.observation_space, fits, change)
    if not changed:
        raise Refused(f"env.{name} is for pictures of {what}, and observations are {env.observation_space}")

    class Pictured(gym.ObservationWrapper):
        def __init__(self):
            super().__init__(env)
            self.observation_space = space

        def observation(self, obs):
            return changed(obs)

    return Pictured()


def changing(space, fits, change):
    """Returns a space with changed pictures, and a function that changes observations; None without such pictures."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = [(key, *changing(part, fits, change)) for key, part in parts_of(space)]
        if not any(changed for _, _, changed in parts):
            return space, None
        seen = lambda obs: [(key, changed(obs[key]) if changed else obs[key]) for key, _, changed in parts]
        if isinstance(space, spaces.Dict):  # pairs keep their order
            return spaces.Dict([(key, part) for key, part, _ in parts]), lambda obs: dict(seen(obs))
        return spaces.Tuple([part for _, part, _ in parts]), lambda obs: tuple(part for _, part in seen(obs))
    if not is_picture(space) or space.dtype != np.uint8 or not fits(channels_first(space.shape)):
        return space, None
    is_last = is_channels_last(space.shape)

    def changed(obs):
        picture = np.asarray(obs)
        return change(picture.transpose(2, 0, 1) if is_last else picture.reshape(channels_first(space.shape)))

    return spaces.Box(0, 255, changed(np.zeros(space.shape, np.uint8)).shape, np.uint8), changed


def grey(picture):
    """Returns the brightness of a picture, (1, rows, columns), with the weights of Gymnasium's GrayscaleObservation."""
    return np.tensordot([0.2125, 0.7154, 0.0721], picture, 1).astype(np.uint8)[None]


def resized(picture, n):
    """Returns a picture with n rows and columns."""
    try:
        import cv2
    except ImportError as error:
        raise Refused(f"env.resize needs OpenCV ({error}): install the package opencv-python-headless")
    return np.stack([cv2.resize(np.ascontiguousarray(plane), (n, n), interpolation=cv2.INTER_AREA) for plane in picture])


def parameters(function):
    """Returns the names of a function's parameters, and True if it takes any others."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C
        return [], False
    return [p.name for p in found], any(p.kind is p.VAR_KEYWORD for p in found)


def is_drawn(maker):
    """True if a function or class takes a render_mode and does not exclude arrays."""
    modes = (getattr(maker, "metadata", None) or {}).get("render_modes")
    names, takes_any = parameters(maker)
    if modes:
        return "rgb_array" in modes and ("render_mode" in names or takes_any)
    return "render_mode" in names or takes_any and not isinstance(maker, type)


OLD_GYM = "environments of the old Gym become Gymnasium's by shimmy.GymV21CompatibilityV0(env=env), by GymV26CompatibilityV0 from 0.26 on"


def check_kind(env):
    """Refuses what is not a single environment of Gymnasium."""
    if isinstance(env, gym.vector.VectorEnv) or hasattr(env, "step_async"):
        advice = "rl makes copies of a single one, as many as --envs says: name what makes one, such as gymnasium.make"
        raise Refused(f"it is a vector of environments ({type(env).__name__}); {advice}")
    if hasattr(env, "possible_agents") and not isinstance(env, gym.Env):
        api = "AEC" if hasattr(env, "agent_iter") else "parallel"
        advice = "wrap it in a gymnasium.Env whose step takes the action of one agent and lets the others act by themselves"
        raise Refused(f"it is an environment of PettingZoo for several agents ({api} API), and rl trains one; {advice}")
    for name in ("observation_space", "action_space", "reset", "step"):
        if not hasattr(env, name):
            raise Refused(f"it makes a {type(env).__name__}, which is no environment of Gymnasium: it has no {name}")
    if type(env.observation_space).__module__.split(".")[0] == "gym":
        raise Refused(f"its spaces are the old Gym's, not Gymnasium's; {OLD_GYM}")


def first_info(env):
    """Starts an episode, and returns its info."""
    try:
        answer = env.reset(seed=0)
    except TypeError:
        names, takes_any = parameters(getattr(env, "unwrapped", env).reset)
        if "seed" in names or takes_any:
            raise
        raise Refused(f"reset() takes no seed; it must be reset(seed=None, options=None); {OLD_GYM}")
    return pair(answer)[1] or {}


def pair(answer):
    """Returns what `reset` has returned, an observation and information."""
    if isinstance(answer, (tuple, list)) and len(answer) == 2 and isinstance(answer[1], (dict, type(None))):
        return answer
    raise Refused(f"reset() returned {shown(answer)}; it must return observation and info, a dict; {OLD_GYM}")


def attribute(env, name):  # of the environment in wrappers, too
    try:
        return env.get_wrapper_attr(name)
    except AttributeError:
        return getattr(env, name, None)


MASK_INFO, MASK_METHOD, MASK_OBS = "info['action_mask']", "action_masks()", "observation['action_mask']"


def masks_of(env, info):
    """Names where an environment tells which actions are legal, if it does."""
    space, kind = env.observation_space, None
    if "action_mask" in info:
        kind = MASK_INFO
    elif callable(attribute(env, "action_masks")):
        kind = MASK_METHOD
    elif isinstance(space, spaces.Dict) and "action_mask" in space.spaces:
        kind = MASK_OBS
    if kind and not isinstance(env.action_space, spaces.Discrete):
        advice = "a wrapper that removes them trains without"
        raise Refused(f"it has masks ({kind}) of {env.action_space}, but only those of Discrete actions are supported; {advice}")
    return kind


def unguarded(env):  # the order of resets and steps is right without a wrapper that checks it
    from gymnasium.wrappers import OrderEnforcing, TimeLimit

    if isinstance(env, OrderEnforcing):
        return env.env
    if isinstance(env, TimeLimit) and isinstance(env.env, OrderEnforcing):
        env.env = env.env.env
    return env


class Batch:
    """k environments and the memory of their replies."""

    def __init__(self, envs, obs_space, mask_kind, episodic_life, memory):
        k, action_space = len(envs), envs[0].action_space
        about, d = describe(obs_space), size(obs_space)
        element = np.uint8 if about["dtype"] == "u8" else np.float32
        a = int(action_space.n) if mask_kind else 0
        self.size = d * element().itemsize
        first_obs = (4 + 6 * k + k * a + 7) // 8 * 8
        self.memory = memory  # of large observations and final ones, which are then not in the reply
        self.reply = memoryview(bytearray(first_obs + (0 if memory else k * self.size)))
        self.last, self.last_masks = memoryview(bytearray(0 if memory else k * self.size)), np.ones((k, a), np.uint8)
        rows = lambda memory, at, n, dtype: list(np.frombuffer(memory, dtype, k * n, at).reshape(k, n))
        of_obs, of_last = ((memory, 0), (memory, k * self.size)) if memory else ((self.reply, first_obs), (self.last, 0))
        self.writers = [writer(obs_space, row) for row in rows(*of_obs, d, element)]
        self.last_writers = [writer(obs_space, row) for row in rows(*of_last, d, element)]
        self.masks = rows(self.reply, 4 + 6 * k, a, np.uint8) if mask_kind else None
        part = lambda start, end, kind: self.reply[4 + start * k : 4 + end * k].cast(kind)
        self.rewards, self.terminated, self.truncated = part(0, 4, "f"), part(4, 5, "?"), part(5, 6, "?")
        self.flags, self.no_flags = self.reply[4 + 4 * k : 4 + 6 * k], bytes(2 * k)
        self.ask_lives = [attribute(env, "ale").lives for env in envs] if episodic_life else None
        self.lives = [0] * k
        self.steps, self.resets = [env.step for env in envs], [env.reset for env in envs]
        self.space, self.mask_kind = envs[0].observation_space, mask_kind
        self.ask_masks = [attribute(env, "action_masks") for env in envs] if mask_kind == MASK_METHOD else None
        self.now = None  # the environment that is called

    def step(self, actions):
        """Takes (environment, action) pairs, and returns the reply."""
        ended, masks, rewards, terminated, truncated = [], self.masks, self.rewards, self.terminated, self.truncated
        steps, writers, info = self.steps, self.writers, None
        for i, action in actions:
            self.now = i
            answer = steps[i](action)
            try:
                obs, reward, ends, cut, info = answer
                rewards[i], terminated[i], truncated[i] = reward, ends, cut
            except (TypeError, ValueError):
                obs, rewards[i], ends, cut, info = usual(answer)
                terminated[i], truncated[i] = ends, cut
            if ends or cut:  # a list of one flag is true, whatever the flag
                ends, cut = flag("terminated", ends), flag("truncated", cut)
                terminated[i], truncated[i] = ends, cut
            lost = self.ask_lives and not (ends or cut) and self.loses_life(i)
            if ends or cut or lost:
                self.write(self.last_writers[i], "step", obs)
                ended.append(i)
                if masks:
                    self.last_masks[i] = self.legal(i, "step", obs, info) if cut and not ends else 1
                if lost:
                    self.flags[i] = LIFE_LOST
                info = self.begin(i, (obs, info) if lost else self.resets[i]())
                continue
            try:
                writers[i](obs)
            except Exception as error:
                raise self.unfit("step", obs, error)
            if masks:
                masks[i][...] = self.legal(i, "step", obs, info)
        if not masks and isinstance(info, dict) and "action_mask" in info:
            raise Refused(f"step() returned {MASK_INFO}, which the first reset() did not: return it from both")
        if not ended:
            return self.reply
        finals = [] if self.memory else [self.last[i * self.size : (i + 1) * self.size] for i in ended]
        return b"".join([self.reply, *finals, *(self.last_masks[i].tobytes() for i in ended)])

    def start(self, i, seed):
        self.now = i
        self.begin(i, self.resets[i](seed=seed))

    def loses_life(self, i):
        """True if a game goes on with fewer lives; games of some kinds have none for a few frames."""
        had, self.lives[i] = self.lives[i], self.ask_lives[i]()
        return 0 < self.lives[i] < had

    def begin(self, i, answer):
        """Writes the first observation of an episode, which `reset` has returned; returns its information."""
        obs, info = pair(answer)
        if self.ask_lives:
            self.lives[i] = self.ask_lives[i]()
        self.write(self.writers[i], "reset", obs)
        if self.masks:
            self.masks[i][...] = self.legal(i, "reset", obs, info)
        return info

    def write(self, write, method, obs):
        try:
            write(obs)
        except Exception as error:
            raise self.unfit(method, obs, error)

    def unfit(self, method, obs, error):
        return refused(method, obs, "observation", f"in {self.space} ({type(error).__name__}: {error})")

    def legal(self, i, method, obs, info):
        """Returns the legal actions at an observation."""
        if self.mask_kind == MASK_INFO:
            mask = (info or {}).get("action_mask")
        else:
            mask = obs["action_mask"] if self.mask_kind == MASK_OBS else self.ask_masks[i]()
        if np.shape(mask) != self.masks[i].shape:
            must = f"{len(self.masks[i])} numbers, 1 for each legal action and 0 for any other"
            raise refused(*((method, mask, self.mask_kind) if self.ask_masks is None else ("action_masks", mask, "a mask")), must)
        return mask


def usual(answer):
    """Returns an unusual but clear answer of `step`, such as a reward of shape (1,), as usual values; refuses any other."""
    if not isinstance(answer, (tuple, list)) or len(answer) != 5:
        what = f"{len(answer)} values" if isinstance(answer, tuple) else shown(answer)
        raise Refused(f"step() returned {what}; it must return 5: observation, reward, terminated, truncated, info; {OLD_GYM}")
    obs, reward, ends, cut, info = answer
    if np.size(reward) != 1 or np.asarray(reward).dtype.kind not in "biuf":
        raise refused("step", reward, "reward", "a number")
    return obs, np.asarray(reward).item(), flag("terminated", ends), flag("truncated", cut), info


def flag(field, value):
    """Returns a flag, which may be a number or an array of one, or None for False."""
    number = np.asarray(False if value is None else value)
    if number.size != 1 or number.dtype.kind not in "biuf" or number.item() not in (0, 1):
        raise refused("step", value, field, "True or False")
    return bool(number.item())


def picture(env):
    """Returns (height, width, RGB bytes), which are empty for an environment that does not draw itself."""
    frame = env.render() if getattr(env, "render_mode", None) == "rgb_array" else None
    frame = np.asarray([] if frame is None else frame)
    if frame.ndim != 3 or frame.shape[2] != 3:
        return struct.pack("<III", REPLY, 0, 0)
    return struct.pack("<III", REPLY, *frame.shape[:2]) + frame.astype(np.uint8).tobytes()


def serve(make, envs, seen, mask_kind, episodic_life):
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
    length, spin = 4, 0

    def actions():  # Python's integers are fast; vectors are copies, since environments may keep them
        if discrete:
            return [a + first_action for a in given] if first_action else given.tolist()
        if multi:  # a number in mixed radix, the last head the fastest
            chosen = np.stack(np.unravel_index(given, sizes), 1).reshape(-1, *action_space.shape)
            return (chosen + starts).astype(dtype)
        values = given.astype(dtype)
        if dtype.itemsize > 4:  # the bounds are sent as f32, which may lie outside those of the space
            np.clip(values, action_space.low, action_space.high, out=values)
        return values if action_space.shape else [values[j, ...] for j in range(len(values))]

    def begin(k, memory):
        nonlocal batch, request, what, given, length
        while len(envs) < k:
            envs.append(make())
        batch, length = Batch(envs[:k], seen, mask_kind, episodic_life, memory), 4 + 4 * k * words
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
                    ask = read_json()
                    seeds, spin, memory = ask["seeds"], ask["spin_us"] * 1e-6, read_memory(sock, ask["memory"])
                    if batch is None or len(batch.steps) != len(seeds) or memory:
                        begin(len(seeds), memory)
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
        global np, gym, spaces, float_images, most_of_byte  # the number that a learner reads as 1
        import numpy as np, gymnasium as gym

        if [int(part) for part in gym.__version__.split(".")[:2]] < [0, 29]:
            raise ImportError(f"Gymnasium {gym.__version__} is too old; 0.29 or later is needed")
        from gymnasium import spaces

        float_images = ask["float_images"]
        most_of_byte = 255 if ask["normalize_images"] else 1
        at = "find"
        make, home = find(ask)
        at = "make"
        env = make()
        check_kind(env)
        if ask["episodic_life"] and not hasattr(attribute(env, "ale"), "lives"):
            raise Refused("env.episodic_life is for games of the Arcade Learning Environment, which count lives")
        at = "spaces"
        action = describe_action(env.action_space)
        at = "reset"
        info = first_info(env)
        at = "spaces"
        mask_kind, seen = masks_of(env, info), observed(env.observation_space, ask["keys"])
        if mask_kind == MASK_OBS:
            seen = spaces.Dict({key: part for key, part in parts_of(seen) if key != "action_mask"})
        versions = f"Python {sys.version.split()[0]}, Gymnasium {gym.__version__}"
        hello = {"protocol": PROTOCOL, "worker": versions, "path": home, "masked": bool(mask_kind)}
        hello["memory"] = sys.platform == "linux" and hasattr(socket, "recv_fds")
        write_json(HELLO, {**hello, "observation": describe(seen), "action": action})
    except BaseException as error:
        fail("spaces" if isinstance(error, Refused) else at, error)
    serve(make, [env], seen, mask_kind, ask["episodic_life"])


main()

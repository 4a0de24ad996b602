"""Training, and the runs that it leaves."""

from __future__ import annotations

import csv
import importlib.util
import inspect
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from samebits import _samebits
from samebits.policy import Policy


def settings(prefix: str = "") -> None:
    """Prints the settings of ``train``, with what each may be; those whose names begin with ``prefix``."""
    for name, allowed, about in _samebits.settings():
        if name.startswith(prefix):
            print(f"{name:28} {about} ({allowed})")


def train(
    env: str | Callable,
    algo: str = "ppo",
    steps: int | None = None,
    *,
    seed: int | None = None,
    num_envs: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    settings: dict[str, Any] | None = None,
    env_kwargs: dict[str, Any] | None = None,
    run_dir: str | os.PathLike | None = None,
    callback: Callable[[dict[str, float]], bool | None] | None = None,
    progress: bool = True,
) -> Run:
    """Trains an agent and returns its :class:`Run`.

    Ctrl-C saves, and raises KeyboardInterrupt: ``Run.open(..).resume()`` continues.

    Args:
        env: an environment of ``catalog()``; ``"gym:ID"`` for one that Gymnasium has registered; or a class or function of an
            importable module that makes a Gymnasium environment, which runs in processes of its own.
        algo: ``"ppo"``, ``"a2c"``, ``"dqn"``, ``"sac"`` or ``"td3"``.
        steps: env steps to train for. This and all that is None is left to the environment's preset.
        seed: seed of all random numbers.
        num_envs: number of environments.
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
        threads: threads; results do not depend on them.
        settings: others by name, such as ``{"ppo.n_steps": 128}`` or ``{"ppo": {"n_steps": 128}}``; ``samebits.settings()``
            prints them all.
        env_kwargs: arguments of the environment's constructor.
        run_dir: directory to write to; None: the first free ``runs/ENV-ALGO-seedS-NUMBER``.
        callback: called with each row of metrics, a dict, while the training waits; ends it by returning False.
        progress: True prints a line each second, or draws a bar in a notebook that has tqdm.

    Raises:
        ValueError: for settings that are not allowed, all of them in one message.
        RuntimeError: if the training fails; what was saved before can be resumed.
    """
    given = {} if settings is None else _by_name(settings)
    given.update(_environment(env))
    if env_kwargs is not None:
        given["env.kwargs"] = json.dumps(env_kwargs)
    named = {"algo": algo, "steps": steps, "seed": seed, "n_envs": num_envs, "device": device, "threads": threads}
    given.update({name: _plain(value) for name, value in named.items() if value is not None})
    listener = _Listener(callback, progress)
    try:
        outcome = _samebits.train(given, None if run_dir is None else os.fspath(run_dir), sys.executable, listener)
    finally:
        listener.close()
    return Run(outcome["path"], outcome)


def _by_name(settings):
    """Settings by their names with a dot, in Python's own numbers."""
    named = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            named.update({f"{key}.{inner}": _plain(each) for inner, each in value.items()})
        else:
            named[key] = _plain(value)
    return named


def _plain(value):
    """A number or array of NumPy as Python's."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def _environment(env):
    """The settings that choose an environment."""
    if isinstance(env, str):
        return {"env": env}
    if not callable(env):
        raise TypeError(f"env is {env!r}; it must be a name, or a class or function that makes an environment")
    name, module = getattr(env, "__qualname__", ""), inspect.getmodule(env)
    how = "put it at the top of a module of its own and import it from there, as its processes do"
    if module is None or not getattr(module, "__file__", None) or module.__name__ == "__main__":
        raise ValueError(f"{name or env!r} was defined in a script or notebook: {how}")
    if not name.isidentifier() or getattr(module, name, None) is not env:
        raise ValueError(f"{name or env!r} cannot be found in {module.__name__} by its name: {how}")
    root = Path(module.__file__).resolve().parent
    parts = module.__name__.split(".")[:-1] if not module.__file__.endswith("__init__.py") else module.__name__.split(".")
    for _ in parts:
        root = root.parent
    return {"env": f"gym:{module.__name__}:{name}", "env.path": str(root)}


class _Listener:
    """Hears a training: prints, draws a bar, and calls the user's function."""

    def __init__(self, callback, progress):
        self.callback, self.progress, self.bar, self.printed, self.ends = callback, progress, None, 0.0, False

    def __call__(self, kind, values):
        if kind == "begun":
            self.steps = values["steps"]
            self._begin(values)
        elif kind == "metrics":
            self._show(values)
            if self.callback is not None and not self.ends:
                self.ends = self.callback(values) is False
                return not self.ends
        elif kind == "evaluation" and self.progress:
            self._say(f"{values['env_steps']} env steps: {values['return_mean']:.2f} over {values['episodes']} episodes")
        elif kind == "warning":
            self._say(f"note: {values['text']}")
        return True

    def _begin(self, values):
        if not self.progress:
            return
        if "ipykernel" in sys.modules and importlib.util.find_spec("tqdm"):
            from tqdm.auto import tqdm

            self.bar = tqdm(total=self.steps, unit=" steps", unit_scale=True)
        self._say(f"training {values['algo']} in {values['env']}: {values['path']}")

    def _show(self, row):
        now, done = time.monotonic(), int(row["time/total_timesteps"])
        if self.bar is not None:
            self.bar.set_postfix(ep_rew_mean=f"{row['rollout/ep_rew_mean']:.1f}", refresh=False)
            self.bar.update(done - self.bar.n)
        elif self.progress and (now - self.printed >= 1 or done >= self.steps):
            self.printed = now
            mean, fps = row["rollout/ep_rew_mean"], row["time/fps"]
            self._say(f"{done:>12} of {self.steps} env steps, {fps:>11.0f} per second, mean return {mean:.2f}")

    def _say(self, text):
        if self.bar is not None:
            self.bar.write(text)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self):
        """Ends the bar."""
        if self.bar is not None:
            self.bar.close()


class Run:
    """A run of ``train`` or of the program ``rl``: a directory with settings, metrics and checkpoints."""

    def __init__(self, path: str | os.PathLike, outcome: dict[str, Any] | None = None):
        self.path = Path(path)
        #: How the latest training of this object has ended: ``end``, ``env_steps``, ``wall_s``, ``evaluation``; None if opened.
        self.outcome = outcome

    @classmethod
    def open(cls, path: str | os.PathLike) -> Run:
        """Opens the directory of a run."""
        if not (Path(path) / "config.toml").is_file():
            raise ValueError(f"{path} is not the directory of a run: it has no config.toml")
        return cls(path)

    def resume(
        self,
        steps: int | None = None,
        *,
        settings: dict[str, Any] | None = None,
        threads: int | None = None,
        device: str | None = None,
        trust: bool = False,
        callback: Callable[[dict[str, float]], bool | None] | None = None,
        progress: bool = True,
    ) -> Run:
        """Continues from the newest checkpoint; returns this run.

        ``steps`` are those of the whole run. ``trust=True`` allows that it executes the environment that the run names, if that
        is code of somebody's choice.
        """
        given = {} if settings is None else _by_name(settings)
        named = {"steps": steps, "threads": threads, "device": device}
        given.update({name: _plain(value) for name, value in named.items() if value is not None})
        listener = _Listener(callback, progress)
        try:
            self.outcome = _samebits.resume(os.fspath(self.path), given, None, trust, sys.executable, listener)
        finally:
            listener.close()
        self.path = Path(self.outcome["path"])  # a run of its own, for a checkpoint with later ones
        return self

    def evaluate(
        self,
        episodes: int = 100,
        *,
        best: bool = False,
        seed: int = 0,
        deterministic: bool = True,
        threads: int | None = None,
        trust: bool = False,
    ) -> dict[str, float]:
        """Plays episodes in fresh environments, as ``rl eval``: a dict of statistics."""
        threads = len(os.sched_getaffinity(0)) if threads is None else threads
        path = os.fspath(self.path)
        return _samebits.evaluate(path, best, episodes, seed, not deterministic, threads, trust, sys.executable)

    def policy(self, best: bool = False, *, trust: bool = False) -> Policy:
        """The policy of the newest checkpoint, or of the one with the best evaluation."""
        return Policy(self.path, best=best, trust=trust)

    def export(
        self, path: str | os.PathLike | None = None, form: str | None = None, *, best: bool = False, trust: bool = False
    ) -> dict[str, Any]:
        """Writes the policy for programs without this package, as ``rl export``: C, a file for Rust, or an ONNX model.

        It does everything between an observation and an action. Before it is written, 64 of its actions are compared with the
        policy's.

        Args:
            path: file to write, for C with a header beside it; None: named by the environment.
            form: ``"onnx"``, ``"c"`` or ``"rust"``; None: that of the path's suffix, ``.onnx``, ``.c`` or ``.policy``.

        Returns:
            a dict: ``files`` with their ``bytes``; ``weights_bytes``, ``memory_bytes``, ``multiply_adds`` of an action; ``checked``
            actions, of which ``differing`` are rounded otherwise.
        """
        if form is None:
            suffix = "" if path is None else Path(path).suffix
            form = {".onnx": "onnx", ".c": "c", ".policy": "rust"}.get(suffix)
            if form is None:
                raise ValueError(f"path is {path!r}; it must end in .onnx, .c or .policy, or name a form: 'onnx', 'c' or 'rust'")
        out = None if path is None else os.fspath(path)
        about, notes = _samebits.export(os.fspath(self.path), best, form, out, trust, sys.executable)
        for note in notes:
            warnings.warn(note, stacklevel=2)
        return about

    def metrics(self) -> dict[str, np.ndarray]:
        """The rows of metrics.csv: an array for each column, NaN where a row has no number.

        ``pandas.DataFrame(run.metrics())`` makes a table of them.
        """
        with open(self.path / "metrics.csv", newline="") as file:
            text = file.read()
        rows = list(csv.reader(text[: text.rfind("\n") + 1].splitlines()))  # the last line may be torn
        if not rows:
            return {}
        columns = zip(*rows[1:]) if len(rows) > 1 else [[] for _ in rows[0]]
        return {name: np.array([float(x or "nan") for x in column]) for name, column in zip(rows[0], columns)}

    def __repr__(self):
        return f"samebits.Run({str(self.path)!r})"

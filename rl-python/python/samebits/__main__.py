"""The program ``rl``: ``rl train cartpole``, or ``python -m samebits train cartpole``."""

import os
import sys

from samebits import _samebits


def main():
    """Runs the program with the arguments of this process; ends it with the program's exit code."""
    # Environments of Gymnasium run in this Python, unless another is chosen.
    os.environ.setdefault("RL_PYTHON", sys.executable)
    sys.exit(_samebits.main([sys.executable, "-m", "samebits"], sys.argv[1:]))


if __name__ == "__main__":
    main()

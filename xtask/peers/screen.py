"""The last picture of a program's full screen, from what it has written to a terminal.

    python screen.py FILE COLUMNS ROWS
"""

import sys

import pyte


def main():
    written = open(sys.argv[1], "rb").read()
    screen = pyte.Screen(int(sys.argv[2]), int(sys.argv[3]))
    end = written.rfind(b"\x1b[?1049l")  # leaves the full screen
    pyte.ByteStream(screen).feed(written[: end if end >= 0 else None])
    print("\n".join(line.rstrip() for line in screen.display).rstrip())


if __name__ == "__main__":
    main()

"""Start of a command of ``ddp_trainer`` from the runtime image, which is mounted where the user's own image runs.

The Dockerfile copies this file beside the package as ``__main__.py``, so that ``python3 DIRECTORY launch`` runs it.
Every Python 3 can read it: it imports the package only after it has checked the version.
"""

import os
import sys

LEAST = (3, 11)
USAGE = 2
"""Value of ``Exit.USAGE``, which an older Python cannot import."""


def start() -> int:
    """Run the command of the command line, and return its exit code."""
    if sys.version_info < LEAST:
        version = ".".join(str(number) for number in sys.version_info[:3])
        print(
            "ddp-launch: " + sys.executable + " of the image is Python " + version + ", and the launcher needs 3.11. "
            "Use another --image, or name another interpreter of it with --python.",
            file=sys.stderr,
        )
        return USAGE
    # After the paths of the user, which come first also without this one.
    paths = os.environ.get("PYTHONPATH"), os.path.dirname(os.path.abspath(__file__))
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    from ddp_trainer.__main__ import main

    return main()


if __name__ == "__main__":
    sys.exit(start())

"""The programs of the package: transferd, the sidecar, and transferctl, the tool that looks into it."""

import signal
import sys
from typing import NoReturn

from . import _native


def transferd() -> NoReturn:
    """Runs the sidecar."""
    # It ends in its own way; Python's would raise at the end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_native._transferd(["transferd", *sys.argv[1:]]))


def transferctl() -> NoReturn:
    """Runs the tool."""
    # It ends as any program does, also where it waits.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_native._transferctl(["transferctl", *sys.argv[1:]]))

"""End an engine's process when the process that started it is gone, however it went.

vLLM's engine core does not notice that its owner was killed: it would run on for good and keep its memory. A tiny
process of its own watches both.
"""

from __future__ import annotations

import os
import subprocess
import sys

GRACE_S = 3.0  # an engine core that is asked to end needs a second or two

_CODE = """
import os, select, signal, sys, time
owner, engine, grace = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
signal.signal(signal.SIGINT, signal.SIG_IGN)
owner_fd, engine_fd = os.pidfd_open(owner), os.pidfd_open(engine)
ready = [owner_fd]
if os.getppid() == owner:
    ready, _, _ = select.select([owner_fd, engine_fd], [], [])
if owner_fd in ready:
    for sig, wait in ((signal.SIGTERM, grace), (signal.SIGKILL, grace)):
        try:
            signal.pidfd_send_signal(engine_fd, sig)
        except ProcessLookupError:
            break
        if select.select([engine_fd], [], [], wait)[0]:
            break
"""


class OrphanGuard:
    """Ends a child of this process when this process is gone.

    Args:
        pid: The child. Needs Linux 5.3 or newer; elsewhere the guard does nothing.
    """

    def __init__(self, pid: int) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own code
            [sys.executable, "-I", "-S", "-c", _CODE, str(os.getpid()), str(pid), str(GRACE_S)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self) -> None:
        """End the guard; the child has ended."""
        self._process.terminate()
        self._process.wait()

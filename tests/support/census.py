"""Find what a program has left behind: processes, listening ports, shared memory."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def processes_in(folder: Path) -> dict[int, str]:
    """List running processes by their working directory, which children inherit and titles do not overwrite."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if Path(os.readlink(entry / "cwd")) != folder.resolve():
                continue
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
        if state not in {"Z", "X"}:
            found[int(entry.name)] = title or (entry / "comm").read_text().strip()
    return found


def shared_memory_of(pids: list[int]) -> set[Path]:
    """List the files of /dev/shm that processes have mapped and that still exist."""
    found = set()
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        except OSError:
            continue
        found |= {Path(line.split(maxsplit=5)[5]) for line in lines if "/dev/shm/" in line}
    return {path for path in found if path.exists()}


def is_listening(port: int) -> bool:
    """Tell whether somebody accepts connections on a port of this machine."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2):
            return True
    except OSError:
        return False

"""Carry out orders in processes of their own, and kill each where the order says: `killed.py`, orders on its input.

An order is a line of JSON: what to do, in which folder, and either the file-system event before which the process kills
itself (perhaps counting those of one kind only), or the seconds after which it is killed from outside, or neither. The
answer is a line, too.
"""

import asyncio
import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import boto3  # noqa: F401 - loaded once, for all processes

import art
from art.checkpoints import delete_checkpoints
from art.local import LocalBackend
from art.unsloth.worker import TrainerWorker
from art.utils.s3 import pull_model_from_s3
from tests.integration.storage.test_kill import BUCKET, model_dir
from tests.support.tiny_checkpoints import write_adapter


class Trainer:
    """Saves what a trainer would, in a moment."""

    def save(self, path: Path, include_optimizer: bool = True) -> None:
        write_adapter(path, value=5, padding_bytes=300_000)


def save(path: Path) -> None:
    worker = TrainerWorker("base", {}, str(model_dir(path, "m")), save_optimizer=True)
    worker._trainer = Trainer()  # type: ignore[assignment]
    worker._save(5, "rl")


def fork(path: Path) -> None:
    model: Any = art.TrainableModel(name="m", project="project", base_model="base")
    backend = LocalBackend(path=str(path))
    asyncio.run(backend._experimental_fork_checkpoint(model, "other"))


def fork_from_bucket(path: Path) -> None:
    model: Any = art.TrainableModel(name="m", project="project", base_model="base")
    backend = LocalBackend(path=str(path))
    asyncio.run(backend._experimental_fork_checkpoint(model, "pushed", from_s3_bucket=BUCKET))


def pull(path: Path) -> None:
    asyncio.run(pull_model_from_s3("pushed", "project", s3_bucket=BUCKET, art_path=str(path)))


def delete(path: Path) -> None:
    delete_checkpoints(model_dir(path, "m"), keep={4})


WORK = {"save": save, "fork": fork, "fork_from_bucket": fork_from_bucket, "pull": pull, "delete": delete}
FILE_EVENTS = ("open", "os.", "shutil.", "tempfile.")


def carry_out(order: dict[str, Any]) -> None:
    """Do it; runs in a process of its own."""
    at_event, counter = order.get("at_event"), itertools.count(1)

    def count(event: str, arguments: Any) -> None:
        if event.startswith(order.get("events", FILE_EVENTS)) and next(counter) == at_event:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    WORK[order["what"]](Path(order["path"]))
    at_event = None
    Path(order["count_file"]).write_text(str(next(counter)))


for line in sys.stdin:
    order = json.loads(line)
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        carry_out(order)
        os._exit(0)
    if order.get("after_s") is not None:
        time.sleep(order["after_s"])
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    answer = {"status": os.waitstatus_to_exitcode(status), "took_s": time.monotonic() - started}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()

"""A real S3 server on the loopback interface, asked over real HTTP by real boto3."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

BUCKET = "checkpoints-bucket"
SECRET = "wJalrXUtnFEMI-secret-of-the-test"


@contextmanager
def s3_server() -> Iterator[str]:
    """Run a server, named by the environment as a user would name it; gives its address."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_ENDPOINT_URL", "BACKUP_BUCKET"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_CONFIG_FILE", "/dev/null")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setenv("AWS_ENDPOINT_URL_S3", url)
        try:
            yield url
        finally:
            server.stop()


def plain_client() -> Any:
    """Return a client of the library, to look at what is in the bucket."""
    return _client(os.environ["AWS_ENDPOINT_URL_S3"])


@functools.cache
def _client(url: str) -> Any:
    import boto3

    return boto3.client("s3", endpoint_url=url, aws_access_key_id="testing", aws_secret_access_key=SECRET)


def keys_in(bucket: str = BUCKET) -> list[str]:
    """List a bucket."""
    answer = plain_client().list_objects_v2(Bucket=bucket)
    return [entry["Key"] for entry in answer.get("Contents", [])]

"""One S3 bucket: list, send, fetch, delete; every file that was moved is compared with the other side. Blocks.

Credentials, region, endpoint and retries come from where every AWS program takes them: `AWS_*` variables (with
`AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL` for another server that speaks the protocol), profiles, the machine's role.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from art.errors import ForbiddenBucketCreationError, MissingDependencyError, S3SyncError

logger = logging.getLogger(__name__)

PART_BYTES = 16 << 20  # files from this size on travel in parts of it
FILES_AT_ONCE = 8
PARTS_AT_ONCE = 4
DIGEST_METADATA = "sha256"
_DELETE_AT_ONCE = 1000  # the protocol's limit
_HINTS = {
    "NoSuchBucket": "there is no such bucket; check its name, and that the endpoint and region are its own",
    "NoSuchKey": "the object is gone; another program may have deleted it meanwhile",
    "AccessDenied": "the credentials in use may not do this; they need s3:ListBucket, s3:GetObject and, to push, "
    "s3:PutObject and s3:DeleteObject",
    "InvalidAccessKeyId": "the credentials are not known there; check AWS_ACCESS_KEY_ID or AWS_PROFILE",
    "SignatureDoesNotMatch": "the credentials do not fit; check AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the credentials have expired; renew them",
}
_HINTS |= {"404": _HINTS["NoSuchBucket"], "403": _HINTS["AccessDenied"], "InvalidToken": _HINTS["ExpiredToken"]}

Progress = Callable[[int], None]


@dataclass(frozen=True)
class RemoteFile:
    """An object in the bucket.

    Attributes:
        etag: Without its quotation marks.
        written_at: When, by the server's clock; in whole seconds on most servers.
    """

    key: str
    size_bytes: int
    etag: str
    written_at: datetime


@dataclass(frozen=True)
class FileDigests:
    """What a file's content is recognised by.

    Attributes:
        sha256: In hexadecimal.
        checksums: Forms in which a server may state its SHA-256 checksum.
        etag: What most servers give it as ETag.
    """

    size_bytes: int
    sha256: str
    checksums: frozenset[str]
    etag: str

    @classmethod
    def of(cls, path: Path) -> FileDigests:
        """Read a file once."""
        whole, shas, md5s, size_bytes = hashlib.sha256(), [], [], 0
        with path.open("rb") as file:
            while part := file.read(PART_BYTES):
                size_bytes += len(part)
                whole.update(part)
                shas.append(hashlib.sha256(part).digest())
                md5s.append(hashlib.md5(part, usedforsecurity=False).digest())
        checksums = {base64.b64encode(whole.digest()).decode()}
        if size_bytes < PART_BYTES:
            etag = md5s[0].hex() if md5s else hashlib.md5(b"", usedforsecurity=False).hexdigest()
        else:
            etag = f"{hashlib.md5(b''.join(md5s), usedforsecurity=False).hexdigest()}-{len(md5s)}"
            of_parts = base64.b64encode(hashlib.sha256(b"".join(shas)).digest()).decode()
            checksums |= {of_parts, f"{of_parts}-{len(shas)}"}
        return cls(size_bytes, whole.hexdigest(), frozenset(checksums), etag)


class Bucket:
    """Files in one bucket; safe to use from several threads.

    Args:
        name: The bucket.
        profile: Profile of the AWS configuration; None for the usual chain.

    Raises:
        MissingDependencyError: boto3 is not installed.
        S3SyncError: The configuration of AWS cannot be used.
    """

    def __init__(self, name: str, *, profile: str | None = None) -> None:
        self.name = name
        try:
            import boto3
            from boto3.s3.transfer import TransferConfig
            from botocore.config import Config
        except ImportError as err:
            raise MissingDependencyError("boto3", needed_for="moving checkpoints to and from S3", extra="s3") from err
        with self._telling("use"):
            config = Config(max_pool_connections=FILES_AT_ONCE * PARTS_AT_ONCE)
            self._client: Any = boto3.Session(profile_name=profile).client("s3", config=config)
        self._transfer = TransferConfig(
            multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=PARTS_AT_ONCE
        )

    def url(self, key: str = "") -> str:
        """Name an object, as `s3://bucket/key`."""
        return f"s3://{self.name}/{key}"

    def list(self, prefix: str) -> list[RemoteFile]:
        """List everything below a prefix."""
        with self._telling("list", prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
            return [
                RemoteFile(entry["Key"], int(entry["Size"]), entry["ETag"].strip('"'), entry["LastModified"])
                for page in pages
                for entry in page.get("Contents", [])
            ]

    def read(self, key: str) -> bytes:
        """Read a small object."""
        with self._telling("read", key):
            content: bytes = self._client.get_object(Bucket=self.name, Key=key)["Body"].read()
            return content

    def stored_digest(self, key: str) -> str | None:
        """Return the SHA-256 digest that was stored with an object; None where there is none."""
        with self._telling("read", key):
            head = self._client.head_object(Bucket=self.name, Key=key)
            digest: str | None = head.get("Metadata", {}).get(DIGEST_METADATA)
            return digest

    def upload(self, path: Path, key: str, digests: FileDigests, progress: Progress | None = None) -> None:
        """Send a file, then make sure that what the bucket holds has these digests.

        Raises:
            S3SyncError: It could not be sent, or what arrived is something else.
        """
        extra: dict[str, Any] = {"Metadata": {DIGEST_METADATA: digests.sha256}}
        if self._client.meta.config.request_checksum_calculation != "when_required":
            extra["ChecksumAlgorithm"] = "SHA256"  # has the server check what it receives
        with self._telling("write", key):
            self._client.upload_file(
                str(path), self.name, key, ExtraArgs=extra, Config=self._transfer, Callback=progress
            )
            if not self._holds(key, digests):
                raise S3SyncError(
                    f"{self.url(key)} does not hold what was sent from {path}: its digest differs; push again",
                    bucket=self.name,
                    key=key,
                )
        logger.debug("sent: %s bytes=%d", self.url(key), digests.size_bytes)

    def download(self, key: str, path: Path, sha256: str | None = None, progress: Progress | None = None) -> None:
        """Fetch an object into a file, then make sure that it is whole.

        Args:
            key: The object.
            path: The file to write; nobody reads it before this returns.
            sha256: Its digest, if known from elsewhere; otherwise the one that was stored with it counts, if any.
            progress: Told how many bytes have come.

        Raises:
            S3SyncError: It could not be fetched, or what arrived is something else.
        """
        with self._telling("read", key):
            head = self._client.head_object(Bucket=self.name, Key=key)
            self._client.download_file(self.name, key, str(path), Config=self._transfer, Callback=progress)
            digests = FileDigests.of(path)
        wanted = sha256 or head.get("Metadata", {}).get(DIGEST_METADATA)
        if digests.size_bytes != head["ContentLength"] or (wanted and wanted != digests.sha256):
            raise S3SyncError(
                f"{self.url(key)} was not fetched whole: it has {digests.size_bytes} bytes and SHA-256 "
                f"{digests.sha256}, expected {head['ContentLength']} and {wanted or 'any'}; pull again, or push anew",
                bucket=self.name,
                key=key,
            )
        logger.debug("fetched: %s bytes=%d", self.url(key), digests.size_bytes)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that are not there are no error."""
        remaining = list(keys)
        while remaining:
            batch, remaining = remaining[:_DELETE_AT_ONCE], remaining[_DELETE_AT_ONCE:]
            with self._telling("delete", batch[0]):
                objects = [{"Key": key} for key in batch]
                answer = self._client.delete_objects(Bucket=self.name, Delete={"Objects": objects, "Quiet": True})
            for failure in answer.get("Errors", []):
                raise self._error("delete", failure["Key"], failure.get("Code", ""), failure.get("Message", ""))

    def copy(self, source_key: str, key: str) -> None:
        """Copy an object within the bucket, on the server."""
        with self._telling("copy", source_key):
            self._client.copy({"Bucket": self.name, "Key": source_key}, self.name, key, Config=self._transfer)

    def presigned_url(self, key: str, valid_s: int) -> str:
        """Return an address from which anybody who has it may fetch the object for a while."""
        with self._telling("sign for", key):
            parameters = {"Bucket": self.name, "Key": key}
            url: str = self._client.generate_presigned_url("get_object", Params=parameters, ExpiresIn=valid_s)
            return url

    def ensure_exists(self) -> None:
        """Create the bucket if there is none of that name.

        Raises:
            ForbiddenBucketCreationError: There is none, and it may not be created.
        """
        from botocore.exceptions import ClientError

        with self._telling("use"):
            try:
                self._client.head_bucket(Bucket=self.name)
                return
            except ClientError as err:
                if err.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
                    return  # it exists; whether it may be written will be seen
        region = self._client.meta.region_name
        place = {} if region in (None, "us-east-1") else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        try:
            self._client.create_bucket(Bucket=self.name, **place)
        except ClientError as err:
            raise ForbiddenBucketCreationError(
                f"bucket {self.name!r} does not exist and could not be created: {err}; create it, or name another"
            ) from err
        logger.info("bucket created: %s", self.name)

    def _holds(self, key: str, digests: FileDigests) -> bool:
        head = self._client.head_object(Bucket=self.name, Key=key, ChecksumMode="ENABLED")
        if head["ContentLength"] != digests.size_bytes:
            return False
        if head.get("ChecksumSHA256") in digests.checksums or head["ETag"].strip('"') == digests.etag:
            return True
        # With keys of their own, or servers that count otherwise, neither tells the content: read it back.
        received = hashlib.sha256()
        for block in self._client.get_object(Bucket=self.name, Key=key)["Body"].iter_chunks(PART_BYTES):
            received.update(block)
        return received.hexdigest() == digests.sha256

    @contextmanager
    def _telling(self, action: str, key: str = "") -> Iterator[None]:
        """Raise what the library raises as an error of ours that names the object and says what to do."""
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

        try:
            yield
        except (Boto3Error, BotoCoreError, ClientError, HTTPClientError) as err:
            raise self._translated(err, action, key) from err

    def _translated(self, err: BaseException, action: str, key: str) -> S3SyncError:
        cause = err
        while not hasattr(cause, "response") and cause.__context__ is not None:
            cause = cause.__context__  # what moves files in parts wraps the server's answer
        details = getattr(cause, "response", {}).get("Error", {})
        return self._error(action, key, details.get("Code", type(err).__name__), details.get("Message", str(err)))

    def _error(self, action: str, key: str, code: str, message: str) -> S3SyncError:
        message = re.sub(r"//[^/@\s]+@", "//", message)  # an endpoint's address may hold a password
        hint = _HINTS.get(code)
        if hint is None and ("Credentials" in code or "Profile" in code):
            hint = "give credentials with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        elif hint is None and ("Endpoint" in code or "Connect" in code or "Timeout" in code):
            hint = "check the network and AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, then try again"
        return S3SyncError(
            f"cannot {action} {self.url(key)}: {code}: {message}; {hint or 'try again when that is mended'}",
            bucket=self.name,
            key=key,
            code=code,
        )

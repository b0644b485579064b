"""Objects in an S3-compatible bucket through boto3, which reads endpoint, region and credentials."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from s3transfer.exceptions import S3UploadFailedError

from storage.errors import Damaged, Missing, StoreUnavailable
from storage.object_backend import CHUNK_BYTES, ObjectStat

_ABSENT = {"404", "NoSuchKey", "NotFound"}
_BEYOND_END = {"416", "InvalidRange"}
_SHA256 = "sha256"  # name of the metadata field


class S3Backend:
    """Objects under `prefix` of `bucket`. S3 makes a put visible only when it is complete."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        has_endpoint = "AWS_ENDPOINT_URL" in os.environ or "AWS_ENDPOINT_URL_S3" in os.environ
        self._client: Any = boto3.client(
            "s3",
            config=Config(
                connect_timeout=2.0,
                read_timeout=20.0,
                retries={"mode": "standard", "max_attempts": 3},
                max_pool_connections=32,
                # Self-hosted servers seldom support bucket.host names.
                s3={"addressing_style": "path" if has_endpoint else "auto"},
            ),
        )
        self._transfer = TransferConfig(multipart_threshold=32 << 20, multipart_chunksize=32 << 20, max_concurrency=4)

    def put_file(self, key: str, path: Path, sha256: str | None) -> str:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if sha256 is not None and found != sha256:
            raise Damaged(f"{key}: the SHA-256 of the file is not {sha256}")
        with _translated(key):
            extra = {"Metadata": {_SHA256: found}}
            self._client.upload_file(
                str(path), self._bucket, self._prefix + key, ExtraArgs=extra, Config=self._transfer
            )
        return found

    def put_bytes(self, key: str, data: bytes, sha256: str) -> None:
        with _translated(key):
            self._client.put_object(
                Bucket=self._bucket,
                Key=self._prefix + key,
                Body=data,
                Metadata={_SHA256: sha256},
                ChecksumSHA256=base64.b64encode(bytes.fromhex(sha256)).decode(),
            )

    def read(self, key: str, start: int, end: int | None) -> Iterator[bytes]:
        if end is not None and end <= start:
            return
        with _translated(key):
            byte_range = f"bytes={start}-{'' if end is None else end - 1}"
            try:
                response = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key, Range=byte_range)
            except ClientError as error:
                if _code(error) in _BEYOND_END:
                    return
                raise
            with contextlib.closing(response["Body"]) as body:
                yield from body.iter_chunks(CHUNK_BYTES)

    def stat(self, key: str) -> ObjectStat:
        with _translated(key):
            head = self._client.head_object(Bucket=self._bucket, Key=self._prefix + key)
        return ObjectStat(head["ContentLength"], head["Metadata"].get(_SHA256))

    def list(self, prefix: str) -> list[str]:
        with _translated(prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix
            )
            keys = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
        return sorted(key.removeprefix(self._prefix) for key in keys)

    def delete(self, key: str) -> None:
        with _translated(key):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)

    def ping(self) -> None:
        try:
            with _translated(""):
                self._client.head_bucket(Bucket=self._bucket)
        except Missing:
            raise StoreUnavailable(f"objects: bucket {self._bucket} does not exist") from None

    def close(self) -> None:
        self._client.close()


@contextlib.contextmanager
def _translated(key: str) -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        if _code(error) in _ABSENT:
            raise Missing(key) from error
        raise StoreUnavailable(f"objects: {_code(error)}") from error
    except (BotoCoreError, S3UploadFailedError, OSError) as error:
        raise StoreUnavailable(f"objects: {type(error).__name__}") from error


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))

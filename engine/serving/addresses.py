"""Parse listen addresses of a node: `unix:///path`, `tcp://host:port`, and `host:port` for HTTP."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

_MAX_SOCKET_PATH_BYTES = 107  # the kernel's limit


@dataclass(frozen=True)
class Address:
    """Either a Unix socket's `path`, or `host` and `port` (0 selects a free port)."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    @property
    def is_local(self) -> bool:
        """Return True if only this machine can reach the address."""
        if self.path is not None or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse `unix:///path` or `tcp://host:port`. Raises ValueError with the reason."""
    scheme, separator, address = text.partition("://")
    if scheme == "unix" and separator:
        if not address.startswith("/"):
            raise ValueError("a Unix socket needs an absolute path: unix:///path")
        if len(address.encode()) > _MAX_SOCKET_PATH_BYTES:
            raise ValueError(f"a Unix socket's path has at most {_MAX_SOCKET_PATH_BYTES} bytes")
        return Address(path=Path(address))
    if scheme == "tcp" and separator:
        return _host_and_port(address)
    raise ValueError("expected unix:///path or tcp://host:port")


def parse_http_address(text: str) -> Address:
    """Parse `unix:///path` or `host:port`. Raises ValueError with the reason."""
    if "://" in text:
        return parse_address(text.replace("http://", "tcp://", 1))
    return _host_and_port(text)


def _host_and_port(text: str) -> Address:
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError("expected host:port with a port from 0 to 65535")
    return Address(host=host.strip("[]"), port=int(port))

"""Flags of servers: the address, and the length of a request."""

import socket
from dataclasses import dataclass

from transformers.hf_argparser import HfArg

MAX_PORT = 65_535


@dataclass(kw_only=True)
class ServerFlags:
    """The address, and the length of a request."""

    host: str = HfArg(
        default="127.0.0.1",
        help="Address to listen on. 127.0.0.1: only this machine can connect. 0.0.0.0: other "
        "machines can connect too.",
    )
    port: int = HfArg(default=5000, help="Port to listen on.")
    max_characters: int = HfArg(default=5000, help="Maximum number of characters in a request.")

    def __post_init__(self) -> None:
        if self.max_characters < 1:
            raise ValueError(f"max_characters must be at least 1, got {self.max_characters}.")
        if not 0 < self.port <= MAX_PORT:
            raise ValueError(f"port must be in [1, {MAX_PORT}], got {self.port}.")

    @property
    def address(self) -> str:
        """The address, as a browser takes it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def open_port(self) -> socket.socket:
        """A socket that listens on the port; an OSError if this is not possible."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family)
        except OSError as error:
            raise OSError(
                f"The server cannot listen on {self.host}:{self.port} ({error.strerror}). Pass "
                "another --port, or as --host an address of this machine."
            ) from error

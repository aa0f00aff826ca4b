"""The keys of a server's clients, and the limits of each client."""

import hmac
import logging
import time
from pathlib import Path
from typing import Any

from limits import RateLimitItem, parse
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter
from starlette.exceptions import HTTPException

from ..data.parsing import parse_mapping

Limits = dict[str, RateLimitItem]  # of requests, and of characters
logger = logging.getLogger(__name__)


def _entry(key: str, requests: Any = None, characters: Any = None) -> tuple[bytes, Limits]:
    limits = {"requests": requests, "characters": characters}
    return key.encode(), {kind: parse(text) for kind, text in limits.items() if text is not None}


class ApiKeys:
    """The keys in a YAML file: {NAME: {key: KEY, requests: 60/minute, characters: 100000/day}}.

    Usage is counted by the client's name, in memory, so a new key does not reset it.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())
        self.read()

    def read(self) -> None:
        """Read the file.

        Raises:
            OSError: The file cannot be read.
            ValueError: The file does not hold keys. After any error, the previous keys stay valid.
        """
        entries = parse_mapping(str(self._path), self._path.read_text("utf-8"))
        try:
            self._entries = {name: _entry(**fields) for name, fields in entries.items()}
        except (TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{self._path}: {error}.") from error
        logger.info("%s has keys of %s clients.", self._path, len(entries))

    def client(self, given: str) -> str:
        """Return the name of the client with a key; the time taken does not reveal the keys."""
        key = given.encode(errors="replace")
        found = [name for name, (own, _) in self._entries.items() if hmac.compare_digest(own, key)]
        if not found or not key:
            raise HTTPException(403, "This server needs a valid key, as api_key or as Bearer.")
        return found[0]

    def use(self, client: str, kind: str, amount: int) -> None:
        """Count requests or characters of a client; reject them if they exceed its limit."""
        limit = self._entries[client][1].get(kind) if client in self._entries else None
        if limit and not self._limiter.hit(limit, client, kind, cost=amount):
            seconds = self._limiter.get_window_stats(limit, client, kind).reset_time - time.time()
            headers = {"Retry-After": f"{max(seconds, 0) + 1:.0f}"}
            raise HTTPException(429, f"Your key allows {limit} ({kind}).", headers)

"""Metrics of the server for Prometheus, and its access log, which holds no texts."""

import json
import logging
import time
from dataclasses import dataclass

from prometheus_client import Counter, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

POWERS_OF_2 = [2**power for power in range(11)]
SECONDS = Histogram("aiayn_request_seconds", "Time until a translation is sent.", ["status"])
WAITING = Gauge("aiayn_waiting_sentences", "Sentences in the queue.", ["direction"])
BATCHES = Histogram("aiayn_batch_sentences", "Batch sizes.", ["direction"], buckets=POWERS_OF_2)
TOKENS = Counter("aiayn_target_tokens", "Tokens of the translations.", ["direction"])


@dataclass(frozen=True)
class Monitor:
    """Measures requests, and logs the "facts" in the state of each request as JSON."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI request."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        facts = {name: scope[name] for name in ("client", "method", "path")} | {"status": 500}
        scope.setdefault("state", {})["facts"] = facts
        started = time.perf_counter()

        async def send_noted(message: Message) -> None:
            facts["status"] = message.get("status", facts["status"])
            await send(message)

        try:
            await self.app(scope, receive, send_noted)
        finally:
            facts["seconds"] = round(time.perf_counter() - started, 4)
            if scope["path"] == "/translate":
                SECONDS.labels(facts["status"]).observe(facts["seconds"])
            logger.info("%s", json.dumps(facts))

"""Compare the server under the load of many clients with the translation of a file.

python benchmarks/benchmark_server.py --file data/multi30k/test_2016_flickr

Each client sends the next request when it has got the last answer. The same translator translates
all sentences at once before, in the same process. At the end clients of many kinds share the
server: 64 send one sentence at a time, two 200, and one as many texts as a request may have.
"""

import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from json import dumps, loads
from threading import local

from transformers.hf_argparser import HfArg

from modeling_aiayn.commands.command_line import parse_arguments, run_command
from modeling_aiayn.data.corpus import read_pairs
from modeling_aiayn.translation import Translator

HOST = "127.0.0.1"
START_SECONDS = 120


@dataclass
class BenchmarkArguments:
    """The model, the sentences and the load."""

    file: str = HfArg(help="Sentence pairs whose sources are translated.")
    model: str = HfArg(default="aiayn-en-de", help="Folder of a trained model.")
    source_lang: str = HfArg(default="en", help="Source language.")
    target_lang: str = HfArg(default="de", help="Target language.")
    dtype: str = HfArg(default="int8", help="Type of the weights.")
    num_beams: int = HfArg(default=4, help="Number of beams.")
    clients: list[int] = HfArg(default_factory=lambda: [1, 16], help="Clients.")
    sentences: list[int] = HfArg(default_factory=lambda: [16, 1], help="Sentences of a request.")
    seconds: int = HfArg(default=30, help="Time for which clients of many kinds share the server.")
    port: int = HfArg(default=5099, help="Port of the server.")


@contextmanager
def server(arguments: BenchmarkArguments) -> Iterator[None]:
    """Run `aiayn serve` in a process of its own, until the block ends.

    Raises:
        OSError: It does not start.
    """
    command = [sys.executable, "-m", "modeling_aiayn", "serve", "--model", arguments.model]
    command += ["--port", str(arguments.port), "--dtype", arguments.dtype]
    command += ["--num_beams", str(arguments.num_beams), "--max_characters", "100000"]
    with socket.socket() as probe:
        if probe.connect_ex((HOST, arguments.port)) == 0:
            raise OSError(f"Another program listens on port {arguments.port}. Pass another --port.")
    with subprocess.Popen(command) as process:
        try:
            for _ in range(START_SECONDS * 10):
                if process.poll() is not None:
                    raise OSError("The server ended. Its error is above.")
                try:
                    urllib.request.urlopen(f"http://{HOST}:{arguments.port}/health")
                    break
                except urllib.error.URLError:
                    time.sleep(0.1)
            else:
                raise OSError(f"The server did not start in {START_SECONDS} s.")
            yield
        finally:
            process.terminate()


def request(connections: local, arguments: BenchmarkArguments, texts: list[str]) -> int:
    """Translate texts by a request on the connection of this thread, and return its status."""
    if not hasattr(connections, "own"):
        connections.own = HTTPConnection(HOST, arguments.port)
    fields = {"q": texts, "source": arguments.source_lang, "target": arguments.target_lang}
    headers = {"Content-Type": "application/json"}
    connections.own.request("POST", "/translate", dumps(fields), headers)
    answer = connections.own.getresponse()
    translations = loads(answer.read()).get("translatedText", [])
    if answer.status == 200 and len(translations) != len(texts):
        raise ValueError(f"Sent {len(texts)} texts and got {len(translations)}.")
    return answer.status


def share(arguments: BenchmarkArguments, kinds: dict[str, tuple[int, list[str]]]) -> None:
    """Let clients of several kinds, with their number and texts, send requests; print a table."""
    end = time.perf_counter() + arguments.seconds

    def client(texts: list[str]) -> list[tuple[int, float]]:
        connections, answers = local(), []
        while (before := time.perf_counter()) < end:
            answers.append((request(connections, arguments, texts), time.perf_counter() - before))
        return answers

    with ThreadPoolExecutor(sum(number for number, _ in kinds.values())) as pool:
        running = {
            kind: [pool.submit(client, texts) for _ in range(number)]
            for kind, (number, texts) in kinds.items()
        }
    sentences = 0
    for kind, clients in running.items():
        answers = [answer for client in clients for answer in client.result()]
        served = [1000 * seconds for status, seconds in answers if status == 200] or [float("nan")]
        p99 = statistics.quantiles([*served, *served], n=100)[98]
        median, refused = statistics.median(served), sum(status != 200 for status, _ in answers)
        sys.stdout.write(
            f"{kind:<40}{len(answers) - refused:>6} served, {refused} refused, "
            f"median {median:.0f} ms, p99 {p99:.0f} ms\n"
        )
        sentences += (len(answers) - refused) * len(kinds[kind][1])
    sys.stdout.write(f"{'together':<40}{sentences / arguments.seconds:>8.0f} sentences/s\n")


def main() -> None:
    """Measure, and print a table."""
    (arguments,) = parse_arguments(__doc__, BenchmarkArguments)
    texts = list(read_pairs(arguments.file, arguments.source_lang, arguments.target_lang)["source"])
    translator = Translator.from_pretrained(arguments.model, dtype=arguments.dtype)
    translate = partial(translator, texts, num_beams=arguments.num_beams)
    seconds = []
    for _ in range(3):
        before = time.perf_counter()
        translate()
        seconds.append(time.perf_counter() - before)
    offline = len(texts) / sorted(seconds)[1]
    sys.stdout.write(f"{'all at once':<40}{offline:>8.0f} sentences/s\n")
    os.environ["TQDM_DISABLE"] = "1"
    with server(arguments):
        for size in arguments.sentences:
            requests = [texts[start : start + size] for start in range(0, len(texts), size)]
            for clients in arguments.clients:
                with ThreadPoolExecutor(clients) as pool:
                    send = partial(request, local(), arguments)
                    list(pool.map(send, requests[:clients]))  # connect
                    before = time.perf_counter()
                    list(pool.map(send, requests))
                    rate = len(texts) / (time.perf_counter() - before)
                name = f"{clients} clients, requests of {size}"
                sys.stdout.write(f"{name:<40}{rate:>8.0f} sentences/s  {rate / offline:.2f}\n")
        one = {"1 client of 1": (1, texts[:1])}
        hostile = {"1 client of 5,000 letters": (1, ["a"] * 5000)}
        share(arguments, one)
        share(arguments, one | hostile)
        share(arguments, one | {"4 clients of 5,000 letters": (4, ["a"] * 5000)})
        many = {"64 clients of 1": (64, texts[:1]), "2 clients of 200": (2, texts[:200])}
        share(arguments, many)
        share(arguments, many | hostile)


if __name__ == "__main__":
    run_command(main)

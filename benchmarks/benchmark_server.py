"""Compare the server under the load of many clients with the translation of a file.

python benchmarks/benchmark_server.py --file data/multi30k/test_2016_flickr

Each client sends the next request when it has got the last answer. The same translator translates
all sentences at once before, in the same process.
"""

import os
import socket
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
    sentences: list[int] = HfArg(default_factory=lambda: [1, 16], help="Sentences of a request.")
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


def request(connections: local, arguments: BenchmarkArguments, texts: list[str]) -> list[str]:
    """Translate texts by a request on the connection of this thread."""
    if not hasattr(connections, "own"):
        connections.own = HTTPConnection(HOST, arguments.port)
    fields = {"q": texts, "source": arguments.source_lang, "target": arguments.target_lang}
    headers = {"Content-Type": "application/json"}
    connections.own.request("POST", "/translate", dumps(fields), headers)
    translations: list[str] = loads(connections.own.getresponse().read())["translatedText"]
    return translations


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


if __name__ == "__main__":
    run_command(main)

"""Translate a corpus on many machines, with Ray Data: pip install 'modeling_aiayn[ray]'.

python examples/translate_with_ray.py corpus.txt translated --format text --actors 2
python examples/translate_with_ray.py s3://bucket/corpus s3://bucket/translated --actors 8 --gpus 1

The input is Parquet or JSON lines with a column "text", or lines of text. The output, in Parquet,
has the same columns, "translation", and "id": the number of the row, unless the input has ids.
--resume skips rows whose ids are in the output. Ray replaces an actor that dies.
"""

import argparse
import os

import numpy as np
import ray
import torch

from modeling_aiayn.translation import Translator

READERS = {"parquet": ray.data.read_parquet, "json": ray.data.read_json}


class Translate:
    """An actor, which loads the model once. Translator sorts the texts of a batch by length."""

    def __init__(self, model: str, threads: int, gpus: float) -> None:
        torch.set_num_threads(threads)
        kind = {"device": "cuda", "dtype": "bfloat16"} if gpus else {"dtype": "int8"}
        self.translator = Translator.from_pretrained(model, **kind)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Add the translations of a batch."""
        return {**batch, "translation": np.array(self.translator(list(batch["text"])), object)}


parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("input")
parser.add_argument("output")
parser.add_argument("--format", choices=["parquet", "json", "text"], default="parquet")
parser.add_argument("--model", default="aiayn-en-de")
parser.add_argument("--actors", type=int, default=2)
parser.add_argument("--threads", type=int, default=1, help="of each actor")
parser.add_argument("--gpus", type=float, default=0, help="of each actor")
parser.add_argument("--resume", action="store_true")
flags = parser.parse_args()
if "RAY_ADDRESS" not in os.environ:  # on this machine alone: reading and writing need a CPU, too
    ray.init(num_cpus=max(os.cpu_count() or 1, flags.actors * flags.threads + 1))
options = {"drop_empty_lines": False} if flags.format == "text" else {}
rows = READERS.get(flags.format, ray.data.read_text)(flags.input, **options)
rows = rows if "id" in rows.columns() else ray.data.range(rows.count()).zip(rows)
if flags.resume:
    ids = ray.data.read_parquet(flags.output, columns=["id"]).iter_batches()
    done = np.concatenate([batch["id"] for batch in ids])
    rows = rows.map_batches(lambda x: {name: x[name][~np.isin(x["id"], done)] for name in x})
pool = {"compute": ray.data.ActorPoolStrategy(size=flags.actors), "batch_size": 2048}
pool |= {"fn_constructor_args": (flags.model, flags.threads, flags.gpus)}
pool |= {"num_cpus": flags.threads, "num_gpus": flags.gpus}
pool |= {"max_restarts": -1, "max_task_retries": -1}
rows = rows.repartition(target_num_rows_per_block=2048).map_batches(Translate, **pool)
rows.write_parquet(flags.output)

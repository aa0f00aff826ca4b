"""Translate a corpus on many machines, with Ray Data: pip install ".[ray]".

python examples/translate_with_ray.py corpus.txt translated --format text --actors 2
python examples/translate_with_ray.py s3://bucket/corpus s3://bucket/translated --actors 8 --gpus 1

The input is Parquet or JSON lines with a column "text", or lines of text. The output has the same
columns, "translation", and "id": the number of the row, unless the input has ids. --resume skips
rows whose ids are in the output. Ray replaces an actor that dies, which translates its batch again.
"""

import argparse
import os

import numpy as np
import ray


class Translate:
    """An actor, which loads the model once. Translator sorts the texts of a batch by length."""

    def __init__(self, model: str, threads: int, gpus: float) -> None:
        import torch  # takes seconds, which the job itself need not wait

        from modeling_aiayn.translation import Translator

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
parser.add_argument("--output_format", choices=["parquet", "json"], default="parquet")
parser.add_argument("--model", default="aiayn-en-de")
parser.add_argument("--actors", type=int, default=2)
parser.add_argument("--threads", type=int, default=1, help="of each actor")
parser.add_argument("--gpus", type=float, default=0, help="of each actor")
parser.add_argument("--batch_size", type=int, default=2048, help="rows")
parser.add_argument("--resume", action="store_true")
flags = parser.parse_args()
if "RAY_ADDRESS" not in os.environ:  # on this machine alone: reading and writing need a CPU, too
    ray.init(num_cpus=max(os.cpu_count() or 1, flags.actors * flags.threads + 1))
options = {"drop_empty_lines": False} if flags.format == "text" else {}
rows = getattr(ray.data, f"read_{flags.format}")(flags.input, **options)
rows = rows if "id" in rows.columns() else ray.data.range(rows.count()).zip(rows)
if flags.resume:
    written = getattr(ray.data, f"read_{flags.output_format}")(flags.output)
    done = np.concatenate([x["id"] for x in written.select_columns(["id"]).iter_batches()])
    rows = rows.map_batches(lambda x: {name: x[name][~np.isin(x["id"], done)] for name in x})
actors = {"compute": ray.data.ActorPoolStrategy(size=flags.actors), "num_cpus": flags.threads}
actors |= {"num_gpus": flags.gpus, "batch_size": flags.batch_size}
actors |= {"fn_constructor_args": (flags.model, flags.threads, flags.gpus)}
rows = rows.repartition(target_num_rows_per_block=flags.batch_size)
getattr(rows.map_batches(Translate, **actors), f"write_{flags.output_format}")(flags.output)

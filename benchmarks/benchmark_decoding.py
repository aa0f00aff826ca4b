"""Compare decoding speed with generate(), MarianMTModel and CTranslate2: target tokens per second.

python benchmarks/benchmark_decoding.py --file data/multi30k/test_2016_flickr --train_file \
    data/multi30k/train --model runs/multi30k

The models have the base size and random weights, and generate 32 tokens per sentence. With --model,
the benchmark also translates the whole file from text to text with that model. Each contender
runs in a process of its own. They take turns, and the tables compare medians.
"""

import sys
from dataclasses import dataclass
from functools import partial

from decoding_speed import (
    decoding_contenders,
    decoding_table,
    floor_line,
    generate_file,
    measure,
    random_model,
    translate_file,
    whole_file,
)
from own_process import OwnProcess
from transformers.hf_argparser import HfArg

from modeling_aiayn import AiaynConfig, AiaynForConditionalGeneration
from modeling_aiayn.commands.command_line import parse_arguments, run_command
from modeling_aiayn.data.corpus import read_pairs
from modeling_aiayn.tokenization import train_bpe_tokenizer


@dataclass
class BenchmarkArguments:
    """Data, sizes and repetitions of the benchmark."""

    file: str = HfArg(help="Sentence pairs to translate, as for train-translation.")
    train_file: str = HfArg(help="Sentence pairs to train the vocabulary on.")
    source_lang: str = HfArg(default="en", help="Source language.")
    target_lang: str = HfArg(default="de", help="Target language.")
    preset: str = HfArg(default="base", help="tiny, base or big.")
    vocab_size: int = HfArg(default=8000, help="Size of the BPE vocabulary.")
    config_overrides: str = HfArg(
        default="", help="Other sizes, such as vocab_size=58101,d_model=256."
    )
    batches: list[int] = HfArg(default_factory=lambda: [32, 1], help="Batch sizes.")
    beams: list[int] = HfArg(default_factory=lambda: [4, 1], help="Numbers of beams.")
    rounds: int = HfArg(default=5, help="Batches to measure, after one to warm up.")
    steady: bool = HfArg(
        default=False,
        help="Decode a batch right before each that is measured, as under steady load.",
    )
    dtypes: list[str] = HfArg(
        default_factory=lambda: ["float32", "float16", "bfloat16", "int8"],
        help="Types of the weights. A CPU computes with float16 weights in float32.",
    )
    shortlisted: int = HfArg(
        default=0,
        help="Run our engine also with a random shortlist of so many target ids for each "
        "source id. 0: no shortlist.",
    )
    model: str | None = HfArg(default=None, help="Trained model to translate the file with.")
    device: str = HfArg(
        default="cpu",
        help="cuda: without --model; give --dtypes float32 bfloat16.",
    )


def main() -> None:
    """Measure, and print tables."""
    (arguments,) = parse_arguments(__doc__, BenchmarkArguments)
    if arguments.model is not None and arguments.device != "cpu":
        raise ValueError("--model is measured on a CPU only: leave out --model or --device.")
    languages = (arguments.source_lang, arguments.target_lang)
    texts = read_pairs(arguments.file, *languages)["source"]
    train = read_pairs(arguments.train_file, *languages)
    tokenizer = train_bpe_tokenizer([*train["source"], *train["target"]], arguments.vocab_size)
    config = AiaynConfig.from_preset(arguments.preset, vocab_size=len(tokenizer))
    config.update_from_string(arguments.config_overrides or f"vocab_size={len(tokenizer)}")
    contenders = decoding_contenders(
        config, tokenizer, arguments.dtypes, arguments.shortlisted, arguments.device
    )
    sources = [tokenizer(text).input_ids for text in texts]
    for batch_size in arguments.batches:
        for num_beams in arguments.beams:
            measure(contenders, sources, batch_size, num_beams, arguments.rounds, arguments.steady)
            sys.stdout.write(f"\nbatch {batch_size}, beam {num_beams}\n")
            sys.stdout.write(f"{decoding_table(contenders, batch_size)}\n")
            if arguments.device == "cpu" and "int8" in arguments.dtypes:
                model = random_model(AiaynForConditionalGeneration, config, "int8")
                sys.stdout.write(f"{floor_line(model, batch_size, num_beams)}\n")
    for contender in contenders:
        contender.decode.close()
    if arguments.model is not None:
        jobs = {
            "Translator float32": partial(translate_file, arguments.model, "float32", 4),
            "Translator int8": partial(translate_file, arguments.model, "int8", 4),
            "generate()": partial(generate_file, arguments.model, "float32", 4),
        }
        running = {name: OwnProcess(job) for name, job in jobs.items()}
        table = whole_file(running, list(texts), arguments.rounds)
        for contender in running.values():
            contender.close()
        sys.stdout.write(f"\n{len(texts)} sentences, text to text, beam 4\n{table}\n")


if __name__ == "__main__":
    run_command(main)

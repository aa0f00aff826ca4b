"""Decoding speed of our engine and of others, at the same sizes and in the same run.

All contenders generate the same number of tokens from the same real sentences, in turn, so that a
machine's drift affects all of them. Each runs in a process of its own.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import ctranslate2
import numpy as np
import torch
from numba import njit
from own_process import OwnProcess, pause, translate_in_turn
from peers import marian
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from modeling_aiayn import AiaynConfig, AiaynForConditionalGeneration
from modeling_aiayn.interop.ctranslate2_export import export_ctranslate2
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.compiled.instructions import BLOCK, ROWS
from modeling_aiayn.translation.compiled.kernels import FIRST, multiply_blocks
from modeling_aiayn.translation.compiled.packing import packed_model, whole
from modeling_aiayn.translation.hypotheses import SourceSentence
from modeling_aiayn.translation.options import SearchOptions
from modeling_aiayn.translation.shortlist import Shortlist
from modeling_aiayn.translation.torch_engine import TorchEngine
from modeling_aiayn.translation.translator import convert_for_cpu

# Target tokens of each sentence, whatever the weights.
NEW_TOKENS = 32

Decode = Callable[[Sequence[Sequence[int]], int], list[list[Any]]]


@dataclass
class DecodingContender:
    """A way to decode.

    Args:
        name: Its name in the table.
        decode: Generates NEW_TOKENS tokens from each source with a number of beams.
        seconds: Time of each round.
    """

    name: str
    decode: Decode
    seconds: list[float] = field(default_factory=list)


def random_model(
    make_model: Callable[[AiaynConfig], Any], config: AiaynConfig, dtype: str, device: str = "cpu"
) -> Any:
    """A model with the same random weights in every process, as Translator would load it.

    Args:
        make_model: Makes our model or a peer.
        config: Sizes.
        dtype: Name of a torch dtype, or "int8", whose products are made of float32.
        device: Where it computes.
    """
    torch.manual_seed(0)
    weights = torch.float32 if dtype == "int8" else getattr(torch, dtype)
    return convert_for_cpu(make_model(config).eval().to(device, weights))


def random_shortlist(vocab_size: int, per_id: int) -> Shortlist:
    """A shortlist with per_id random target ids for each source id, and 100 for all batches."""
    torch.manual_seed(0)
    ids = torch.randint(vocab_size, (vocab_size * per_id,))
    return Shortlist(torch.arange(vocab_size + 1) * per_id, ids, torch.arange(100), ())


def engine_decode(
    config: AiaynConfig, dtype: str, device: str, shortlisted: int = 0, threads: int | None = None
) -> Decode:
    """Decode by our engine.

    Args:
        config: Sizes.
        dtype: As for `random_model`.
        device: Where it computes.
        shortlisted: Target ids for each source id, by a random shortlist; 0: no shortlist.
        threads: Number of threads. None: all.
    """
    torch.set_num_threads(threads or torch.get_num_threads())
    model = random_model(AiaynForConditionalGeneration, config, dtype, device)
    shortlist = random_shortlist(config.vocab_size, shortlisted) if shortlisted else None
    engine = TorchEngine([model], int8=dtype == "int8", shortlist=shortlist)

    def decode(sources: Sequence[Sequence[int]], num_beams: int) -> list[list[Any]]:
        options = SearchOptions(
            num_beams=num_beams,
            min_length=NEW_TOKENS - 1,
            max_length_factor=0.0,
            max_length_offset=NEW_TOKENS,
        )
        hypotheses = engine.search([SourceSentence(ids) for ids in sources], options)
        return [list(best.token_ids) for (best,) in hypotheses]

    return decode


def generate_decode(
    make_model: Callable[[AiaynConfig], Any],
    config: AiaynConfig,
    dtype: str,
    device: str,
    tokenizer: PreTrainedTokenizerBase,
) -> Decode:
    """Decode by the library's generate(); the first arguments are those of `random_model`."""
    model = random_model(make_model, config, dtype, device)

    def decode(sources: Sequence[Sequence[int]], num_beams: int) -> list[list[Any]]:
        batch = tokenizer.pad({"input_ids": list(sources)}, return_tensors="pt")
        with torch.inference_mode():
            output_ids = model.generate(
                **batch.to(model.device),
                num_beams=num_beams,
                min_new_tokens=NEW_TOKENS,
                max_new_tokens=NEW_TOKENS,
            )
        return [ids[1:] for ids in output_ids.tolist()]  # without the start token

    return decode


def ctranslate2_decode(
    folder: str,
    tokenizer: PreTrainedTokenizerBase,
    compute_type: str,
    threads: int,
    device: str = "cpu",
) -> Decode:
    """Decode by CTranslate2, from a folder that `export_ctranslate2` wrote."""
    options = {"compute_type": compute_type, "intra_threads": threads}
    translator = ctranslate2.Translator(folder, device=device, **options)

    def decode(sources: Sequence[Sequence[int]], num_beams: int) -> list[list[Any]]:
        results = translator.translate_batch(
            [tokenizer.convert_ids_to_tokens(list(ids)) for ids in sources],
            beam_size=num_beams,
            min_decoding_length=NEW_TOKENS,
            max_decoding_length=NEW_TOKENS,
        )
        return [result.hypotheses[0] for result in results]

    return decode


def decoding_contenders(
    config: AiaynConfig,
    tokenizer: PreTrainedTokenizerBase,
    dtypes: Sequence[str],
    shortlisted: int = 0,
    device: str = "cpu",
) -> list[DecodingContender]:
    """Our engine, our generate(), Marian's, and CTranslate2 on our weights; ours first.

    Args:
        config: Sizes; weights are random.
        tokenizer: The vocabulary.
        dtypes: Names of torch dtypes of the weights; each has its own torch contenders. "int8" has
            only our engine: generate() has no such products. So has "float16": generate() computes
            such weights in float32 on a CPU.
        shortlisted: As for `engine_decode`; with a shortlist, our engine runs with it and without.
        device: Where models compute. On a GPU, CTranslate2 computes in float16.
    """
    generating = {
        "our generate()": AiaynForConditionalGeneration,
        "Marian generate()": partial(marian, implementation="sdpa"),
    }
    jobs: dict[str, Callable[[], Decode]] = {}
    for dtype in dtypes:
        jobs[f"Translator {dtype}"] = partial(engine_decode, config, dtype, device)
        if dtype == "int8":
            jobs["Translator int8, threads: 1"] = partial(
                engine_decode, config, dtype, device, threads=1
            )
        if shortlisted:
            job = partial(engine_decode, config, dtype, device, shortlisted)
            jobs[f"Translator {dtype}, shortlist"] = job
        if dtype not in ("int8", "float16"):
            for name, make_model in generating.items():
                job = partial(generate_decode, make_model, config, dtype, device, tokenizer)
                jobs[f"{name} {dtype}"] = job
    with tempfile.TemporaryDirectory() as folder:
        model = random_model(AiaynForConditionalGeneration, config, "float32")
        export_ctranslate2(Translator(model, tokenizer), Path(folder) / "model", "float32")
        for kind, threads in _ctranslate2_kinds(dtypes, device):
            jobs[f"CTranslate2 {kind}, threads: {threads}"] = partial(
                ctranslate2_decode, f"{folder}/model", tokenizer, kind, threads, device
            )
        processes = {name: OwnProcess(job) for name, job in jobs.items()}
        for process in processes.values():
            process.wait()  # until it has read the folder
    return [DecodingContender(name, process) for name, process in processes.items()]


def _ctranslate2_kinds(dtypes: Sequence[str], device: str) -> list[tuple[str, int]]:
    if device == "cuda":
        return [("float16", 1)]
    return list(product({"float32", "int8"} & {*dtypes}, {1, torch.get_num_threads()}))


def measure(
    contenders: Sequence[DecodingContender],
    sources: Sequence[Sequence[int]],
    batch_size: int,
    num_beams: int,
    rounds: int,
    steady: bool = False,
) -> None:
    """Let all contenders decode the same batches in turn.

    Args:
        contenders: Their seconds are replaced.
        sources: Sentences in ids; each round takes the next batch of them.
        batch_size: Sentences of a batch.
        num_beams: Number of beams.
        rounds: Measured batches, after one to warm up.
        steady: Whether each decodes a batch right before the one that is measured.

    Raises:
        ValueError: There are fewer sentences than a batch has.
    """
    for contender in contenders:
        contender.seconds = []
    label = f"batch {batch_size}, beam {num_beams}"
    if len(sources) < batch_size:
        raise ValueError(
            f"A batch needs {batch_size} sentences, got {len(sources)}. Pass a longer file."
        )
    for number in tqdm(range(rounds + 1), desc=label, unit="round"):
        start = number * batch_size % (len(sources) - batch_size + 1)
        batch = sources[start : start + batch_size]
        for contender in contenders:
            pause()
            if steady:
                contender.decode(batch, num_beams)
            before = time.perf_counter()
            contender.decode(batch, num_beams)
            if number:
                contender.seconds.append(time.perf_counter() - before)


@njit(fastmath=False)
def multiply(weights, at, inputs, outputs, team, rows, out):  # noqa: ANN001, ANN201
    """Compute a product; Python cannot call the kernel itself."""
    blocks = FIRST, outputs // BLOCK
    multiply_blocks(weights, at, inputs, team, rows, *blocks, out, FIRST, outputs)


def products_seconds(model: AiaynForConditionalGeneration, rows: int, repeats: int = 20) -> float:
    """Seconds for the products in int8 of one decoding step alone, in one thread: the median.

    Args:
        model: The model.
        rows: Hypotheses of the step.
        repeats: Number of measurements.
    """
    arrays = packed_model(model, True, ())
    first = 4 * arrays.encoder_layers
    # The source's keys and values are computed once, not at each step.
    numbers = [n for n in range(first, len(arrays.inputs)) if (n - first) % 7 != 6]
    matrices = [
        (arrays.weights, arrays.weights_at[n], arrays.inputs[n], arrays.outputs[n]) for n in numbers
    ]
    width = whole(len(arrays.output_ids), BLOCK)
    matrices.append((arrays.output_weights, 0, arrays.size, width))
    size = rows + ROWS
    out = np.empty(size * width, np.float32)
    shape = {"codes": size * int(arrays.inputs.max()), "scales": size, "zeros": size}
    team = Codes(*(np.ones(shape[name], kind) for name, kind in Codes.__annotations__.items()))
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        for matrix in matrices:
            multiply(*matrix, team, rows, out)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


class Codes(NamedTuple):
    """What a product needs of a team's memory."""

    codes: np.uint8
    scales: np.float32
    zeros: np.int32


def decoding_table(contenders: Sequence[DecodingContender], batch_size: int) -> str:
    """Target tokens per second of each contender, and its time relative to ours.

    Args:
        contenders: After their rounds.
        batch_size: Sentences of a batch.

    Returns:
        A line for each.
    """
    medians = {each.name: statistics.median(each.seconds) for each in contenders}
    ours = [name for name in medians if name.startswith("Translator")]
    heads = "".join(f"{name.replace('Translator', 'ours'):>16}" for name in ours)
    lines = [f"{'':<30}{'tokens/s':>10}{heads}"]
    for name, seconds in medians.items():
        ratios = "".join(f"{seconds / medians[each]:15.2f}x" for each in ours)
        lines.append(f"{name:<30}{batch_size * NEW_TOKENS / seconds:>10,.0f}{ratios}")
    return "\n".join(lines)


def floor_line(model: AiaynForConditionalGeneration, batch_size: int, num_beams: int) -> str:
    """A line of `decoding_table`: the rate of our products in int8 alone, an upper bound."""
    seconds = products_seconds(model, batch_size * num_beams) / torch.get_num_threads()
    return (
        f"{'products in int8':<30}{batch_size / seconds:>10,.0f}  ({1000 * seconds:.1f} ms a step)"
    )


TranslateFile = Callable[[list[str]], list[str]]


def translate_file(model: str, dtype: str, num_beams: int) -> TranslateFile:
    """Translate texts by Translator with a trained model."""
    translator = Translator.from_pretrained(model, dtype=dtype)
    return partial(
        translator, num_beams=num_beams, length_penalty=1.0, length_normalization="power"
    )


def generate_file(model: str, dtype: str, num_beams: int) -> TranslateFile:
    """Translate texts by generate() with a trained model, by 32, in the order of the texts."""
    translator = Translator.from_pretrained(model, dtype=dtype)
    options: dict[str, Any] = {"num_beams": num_beams}
    if num_beams > 1:
        options["length_penalty"] = 1.0

    def translate(texts: list[str]) -> list[str]:
        translations: list[str] = []
        for start in range(0, len(texts), 32):
            batch = translator.source_tokenizer(
                texts[start : start + 32], padding=True, return_tensors="pt"
            )
            inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
            with torch.inference_mode():
                output = translator.model.generate(**inputs, **options)
            translations += translator.target_tokenizer.batch_decode(
                output, skip_special_tokens=True
            )
        return translations

    return translate


def whole_file(jobs: Mapping[str, TranslateFile], texts: list[str], rounds: int) -> str:
    """Translate a file from text to text.

    Args:
        jobs: Contenders by name; the last is generate().
        texts: The file's sentences.
        rounds: Measured rounds, after one to warm up.

    Returns:
        A line for each: median seconds, how many times as fast as generate() it is, and how many
        translations are identical to those of generate().
    """
    medians, translations = translate_in_turn(jobs, texts, rounds)
    last = list(jobs)[-1]
    lines = []
    for name, median in medians.items():
        identical = sum(a == b for a, b in zip(translations[name], translations[last], strict=True))
        ratio = medians[last] / median
        lines.append(f"{name:<30}{median:>8.1f} s{ratio:>8.2f}x{identical:>8,} identical")
    return "\n".join(lines)

"""Decoding speed of our engine and of others, at the same sizes and in the same run.

All contenders generate the same number of tokens from the same real sentences, in turn, so that a
machine's drift affects all of them. CTranslate2 runs in processes of its own: with more threads of
OpenMP than cores in one process, idle threads sleep at once, and each small product of the others
waits until they are awake.
"""

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import ctranslate2
import torch
from peers import marian
from torch import nn
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from modeling_aiayn import AiaynConfig, AiaynForConditionalGeneration
from modeling_aiayn.interop.ctranslate2_export import export_ctranslate2
from modeling_aiayn.loading import convert_for_cpu
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.engine import SourceSentence
from modeling_aiayn.translation.fast_linear import MakeLinear, int8_linear_function, linear_function
from modeling_aiayn.translation.options import SearchOptions
from modeling_aiayn.translation.torch_engine import TorchEngine

# Target tokens of each sentence, whatever the weights.
NEW_TOKENS = 32
# Idle threads of an engine keep a core busy for a moment, which would slow the next contender.
PAUSE_SECONDS = 0.3
NOT_EACH_STEP = ("encoder_attn.k_proj", "encoder_attn.v_proj")

Decode = Callable[[Sequence[Sequence[int]], int], object]


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


def engine_decode(engine: TorchEngine) -> Decode:
    """Decode by our engine."""

    def decode(sources: Sequence[Sequence[int]], num_beams: int) -> object:
        options = SearchOptions(
            num_beams=num_beams,
            min_length=NEW_TOKENS - 1,
            max_length_factor=0.0,
            max_length_offset=NEW_TOKENS,
        )
        return engine.search([SourceSentence(ids) for ids in sources], options)

    return decode


def generate_decode(model: Any, tokenizer: PreTrainedTokenizerBase) -> Decode:
    """Decode by the library's generate()."""

    def decode(sources: Sequence[Sequence[int]], num_beams: int) -> object:
        batch = tokenizer.pad({"input_ids": list(sources)}, return_tensors="pt")
        with torch.inference_mode():
            return model.generate(
                **batch.to(model.device),
                num_beams=num_beams,
                min_new_tokens=NEW_TOKENS,
                max_new_tokens=NEW_TOKENS,
            )

    return decode


def ctranslate2_decode(
    folder: Path, tokenizer: PreTrainedTokenizerBase, compute_type: str
) -> Decode:
    """Decode by CTranslate2, in a process that ends with this one."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(
        target=serve_ctranslate2,
        args=(theirs, str(folder), compute_type, torch.get_num_threads()),
        daemon=True,
    )
    server.start()
    theirs.close()
    ours.recv()  # the process is ready

    def decode(sources: Sequence[Sequence[int]], num_beams: int) -> object:
        tokens = [tokenizer.convert_ids_to_tokens(list(ids)) for ids in sources]
        ours.send((tokens, num_beams))
        return ours.recv()

    return decode


def serve_ctranslate2(requests: Connection, folder: str, compute_type: str, threads: int) -> None:
    """Translate batches of source tokens until the connection is closed.

    Args:
        requests: Sends sentences and a number of beams each time, and receives the translations.
        folder: A folder that `export_ctranslate2` wrote.
        compute_type: CTranslate2's type of the computation.
        threads: Number of threads.
    """
    translator = ctranslate2.Translator(folder, compute_type=compute_type, intra_threads=threads)
    requests.send("ready")
    while True:
        try:
            sentences, num_beams = requests.recv()
        except EOFError:
            return
        results = translator.translate_batch(
            sentences,
            beam_size=num_beams,
            min_decoding_length=NEW_TOKENS,
            max_decoding_length=NEW_TOKENS,
        )
        requests.send([result.hypotheses[0] for result in results])


def decoding_contenders(
    config: AiaynConfig, tokenizer: PreTrainedTokenizerBase, dtypes: Sequence[str]
) -> list[DecodingContender]:
    """Our engine, our generate(), Marian's, and CTranslate2 on our weights; ours first.

    Args:
        config: Sizes; weights are random.
        tokenizer: The vocabulary.
        dtypes: Names of torch dtypes of the weights; each has its own torch contenders. "int8" has
            only our engine: generate() has no such products.

    Returns:
        The contenders.
    """
    model = AiaynForConditionalGeneration(config).eval()
    peer = marian(config, "sdpa").eval()
    found = []
    for dtype in dtypes:
        if dtype == "int8":
            decode = engine_decode(TorchEngine([model], int8=True))
            found.append(DecodingContender("Translator int8", decode))
            continue
        cast, cast_peer = (cast_copy(each, dtype) for each in (model, peer))
        found += [
            DecodingContender(f"Translator {dtype}", engine_decode(TorchEngine([cast]))),
            DecodingContender(f"our generate() {dtype}", generate_decode(cast, tokenizer)),
            DecodingContender(f"Marian generate() {dtype}", generate_decode(cast_peer, tokenizer)),
        ]
    with tempfile.TemporaryDirectory() as folder:
        export_ctranslate2(Translator(model, tokenizer), Path(folder) / "model", "float32")
        for compute_type in ("float32", "int8"):
            decode = ctranslate2_decode(Path(folder) / "model", tokenizer, compute_type)
            found.append(DecodingContender(f"CTranslate2 {compute_type}", decode))
    return found


def cast_copy(model: Any, dtype: str) -> Any:
    """Copy a model in another dtype, as Translator loads it.

    Args:
        model: A model, ours or a peer.
        dtype: Name of a torch dtype, or "int8", which is made of float32.

    Returns:
        The copy.
    """
    copied = type(model)(model.config).eval()
    copied.load_state_dict(model.state_dict())
    return convert_for_cpu(copied.to(torch.float32 if dtype == "int8" else getattr(torch, dtype)))


def measure(
    contenders: Sequence[DecodingContender],
    sources: Sequence[Sequence[int]],
    batch_size: int,
    num_beams: int,
    rounds: int,
) -> None:
    """Let all contenders decode the same batches in turn.

    Args:
        contenders: Their seconds are replaced.
        sources: Sentences in ids; each round takes the next batch of them.
        batch_size: Sentences of a batch.
        num_beams: Number of beams.
        rounds: Measured batches, after one to warm up.

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
            time.sleep(PAUSE_SECONDS)
            before = time.perf_counter()
            contender.decode(batch, num_beams)
            if number:
                contender.seconds.append(time.perf_counter() - before)


def linear_seconds(
    model: AiaynForConditionalGeneration,
    rows: int,
    repeats: int = 20,
    make_linear: MakeLinear = linear_function,
) -> float:
    """Time of the linear layers of one decoding step alone, plain or packed, whichever is less.

    Args:
        model: The model.
        rows: Hypotheses of the step.
        repeats: Number of measurements; the median counts.
        make_linear: Packs a layer.

    Returns:
        Seconds.
    """
    decoder = nn.ModuleList([model.model.decoder, model.lm_head])
    layers = [
        layer
        for name, layer in decoder.named_modules()
        # The source's keys and values are computed once, not at each step.
        if isinstance(layer, nn.Linear) and not name.endswith(NOT_EACH_STEP)
    ]
    sizes = {layer.in_features for layer in layers}
    states = {size: torch.randn(rows, size, dtype=model.dtype) for size in sizes}
    plain = [(layer, states[layer.in_features]) for layer in layers]
    packed = [
        (make_linear(layer.weight, layer.bias), states[layer.in_features]) for layer in layers
    ]
    medians = []
    for products in (plain, packed):
        times = []
        with torch.inference_mode():
            for _ in range(repeats):
                start = time.perf_counter()
                for product, given in products:
                    product(given)
                times.append(time.perf_counter() - start)
        medians.append(statistics.median(times))
    return min(medians)


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


def floor_line(
    model: AiaynForConditionalGeneration, dtype: str, batch_size: int, num_beams: int
) -> str:
    """The rate of torch's linear layers alone, an upper bound for decoders made of them.

    Args:
        model: The model.
        dtype: The dtype of its weights.
        batch_size: Sentences of a batch.
        num_beams: Number of beams.

    Returns:
        A line of `decoding_table`.
    """
    make_linear = int8_linear_function if dtype == "int8" else linear_function
    seconds = linear_seconds(model, batch_size * num_beams, make_linear=make_linear)
    name = f"linear layers {dtype}"
    return f"{name:<30}{batch_size / seconds:>10,.0f}  ({1000 * seconds:.1f} ms a step)"


def whole_file(
    translators: Mapping[str, Translator], texts: Sequence[str], num_beams: int, rounds: int
) -> str:
    """Translate a file from text to text, by Translator and by generate() in the file's order.

    Args:
        translators: The same trained model in several types, by their names; generate() computes
            in the first.
        texts: The file's sentences.
        num_beams: Number of beams.
        rounds: Rounds of each, in turn.

    Returns:
        A line for each: median seconds, and how many times faster than generate() and how often
        identical it is.
    """
    options: dict[str, Any] = {"num_beams": num_beams, "length_penalty": 1.0}
    options["length_normalization"] = "power"
    first = next(iter(translators.values()))
    jobs = {name: partial(each, texts, **options) for name, each in translators.items()}
    jobs["generate()"] = partial(_generated, first, texts, num_beams)
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    found: dict[str, list[str]] = {}
    for _ in range(rounds):
        for name, job in jobs.items():
            start = time.perf_counter()
            found[name] = job()
            seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    reference = found["generate()"]
    lines = []
    for name, median in medians.items():
        identical = sum(a == b for a, b in zip(found[name], reference, strict=True))
        ratio = medians["generate()"] / median
        lines.append(f"{name:<30}{median:>8.1f} s{ratio:>8.2f}x{identical:>8,} identical")
    return "\n".join(lines)


def _generated(
    translator: Translator, texts: Sequence[str], num_beams: int, batch_size: int = 32
) -> list[str]:
    found: list[str] = []
    for start in range(0, len(texts), batch_size):
        batch = translator.source_tokenizer(
            list(texts[start : start + batch_size]), padding=True, return_tensors="pt"
        )
        penalty: dict[str, Any] = {"length_penalty": 1.0} if num_beams > 1 else {}
        with torch.inference_mode():
            output = translator.model.generate(
                input_ids=batch.input_ids,
                attention_mask=batch.attention_mask,
                num_beams=num_beams,
                **penalty,
            )
        found += translator.target_tokenizer.batch_decode(output, skip_special_tokens=True)
    return found

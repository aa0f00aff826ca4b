"""The compiled search: its functions against plain Python, and what it must bear."""

import json
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import small_model
from llvmlite.binding import get_host_cpu_features

from modeling_aiayn.saved.int8 import rounded_to_int8
from modeling_aiayn.translation import compiled
from modeling_aiayn.translation.compiled.packing import shortlisted, with_small_sums
from modeling_aiayn.translation.hypotheses import SourceSentence
from modeling_aiayn.translation.options import SearchOptions
from modeling_aiayn.translation.torch_engine import TorchEngine

EOS = 2
# What Numba compiles for: its name of a processor, and the instructions that it may use.
PROCESSORS = {
    "avx512vnni": ("cascadelake", "+avx512vnni,+avx512vl,+avx512bw,+avx512dq,+avx512f,+avx2,+fma"),
    "avxvnni": ("haswell", "+avxvnni,+avx2,+fma"),
    "avx2": ("haswell", "+avx2,+fma"),
    "plain": ("nehalem", "+sse4.2"),
}


def random_sentences(count=23, vocab_size=31, longest=40):
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(1, longest, (count,), generator=generator).tolist()
    return [
        SourceSentence([*torch.randint(4, vocab_size, (n,), generator=generator).tolist(), EOS])
        for n in lengths
    ]


def search(engine, sentences, threads=1, **options):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return engine.search(sentences, SearchOptions(**options))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("int8", [True, False])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_translation_depends_on_its_sentence_only(int8, num_beams):
    """Not on others, on threads, or on slots: to the last bit of its score."""
    engine = TorchEngine([small_model(d_model=18, encoder_ffn_dim=37)], int8=int8)
    sentences = random_sentences()
    together = search(engine, sentences, num_beams=num_beams)
    assert len({found[0].score for found in together}) > 15
    for threads in (2, 3):
        assert search(engine, sentences, threads, num_beams=num_beams) == together
        # One sentence, for which the threads are a team; they are slow beside other tests.
        engine._compiled(SearchOptions())._step_weights = 10**9
        for sentence, found in zip(sentences[::8], together[::8], strict=True):
            assert search(engine, [sentence], threads, num_beams=num_beams) == [found]
    compiled_model = engine._compiled(SearchOptions())
    options = SearchOptions(num_beams=num_beams)
    few = dict.fromkeys(range(len(sentences)))
    for numbers, found in compiled_model.searches(sentences, options, engine.rules, batch_size=2):
        few.update(zip(numbers, found, strict=True))
    assert list(few.values()) == together


INSTRUCTIONS = str(Path(compiled.__file__).with_name("instructions.py"))
# Prints what the instructions compute; without Numba's compiler, what their Python does.
PROGRAM = """
import json, sys
from importlib.util import module_from_spec, spec_from_file_location
import numpy as np
from numba import njit

spec = spec_from_file_location("instructions", sys.argv[1])  # without torch, in less time
sys.modules["instructions"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["instructions"])
from instructions import *
random = np.random.default_rng(7)
size, outputs = 3 * LANES, 2 * BLOCK
numbers = random.normal(size=(ROWS, size)).astype(np.float32) * 3
numbers[0], numbers[-1] = 0, np.abs(numbers[-1])
most = 127 if INSTRUCTIONS.summed == 1 else 31
weights = random.integers(-most, most + 1, (outputs, size)).astype(np.int8)
weights[0], weights[1], numbers[1] = most, -most, 5  # the largest sums
if INSTRUCTIONS.summed > 1:
    weights[0, [0, 2]] = 38  # in each sum of 16 bits, with seven other weights: LARGEST_SUM
columns = random.random((outputs, COLUMNS)).astype(np.float32)
columns[:, 1] = weights.sum(1)
places = np.array([0, 4 * LANES, LANES, 3, LANES])

@njit(fastmath=False)
def round_all(numbers, codes, scales, zeros, size):
    for row in range(ROWS):
        round_row(numbers, row * size, size, codes, row * size, scales, zeros, row)

@njit(fastmath=False)
def multiply(rows, depth, codes, size, scales, zeros, weights, width, out):
    for row in range(0, ROWS, rows):
        for block in range(2):
            tile(rows, depth, codes, row * size, size, scales, zeros, row, weights,
                 block * len(weights) // 2, out, row * width + block * BLOCK, width)

@njit(fastmath=False)
def vectors(x, at, size, places, out):
    highest = largest(x, at, size)
    total = exponentials(x, at, size, highest, out)
    mix(out, x, 0, places, 0, 5, size, out, size)
    score(x, at, size, x, 0, places, 0, 5, np.float32(0.3), out)
    return highest, total

@njit(fastmath=False)
def halves(x, size, places, memory, out):
    copy_row(x, 3, 4 * LANES + size, memory, 0)
    score(x, 0, size, memory, 0, places, 0, 5, np.float32(0.3), out)
    mix(x, memory, 0, places, 0, 5, size, out, size)

@njit(fastmath=False)
def above(x, start, count, bound, found):
    index = next_above(x, 2, start, count, bound)
    while index < count:
        found[index] += 1
        index = next_above(x, 2, index + 1, count, bound)

codes, scales = np.zeros(ROWS * size, np.uint8), np.zeros(ROWS, np.float32)
zeros, out = np.zeros(ROWS, np.int32), np.zeros(ROWS * outputs, np.float32)
round_all(numbers.ravel(), codes, scales, zeros, size)
found = {"name": INSTRUCTIONS.name}
found["exact"] = [codes.tolist(), scales.tolist(), zeros.tolist()]
rows = np.concatenate([weights, columns.view(np.int8)], 1)
blocks = rows.reshape(-1, LANES, size // 4 + COLUMNS, 4).transpose(0, 2, 1, 3).ravel()
for rows in [n for n in (1, 2, 4, 8) if n <= ROWS]:
    multiply(rows, size // 4, codes, size, scales, zeros, blocks, outputs, out)
    found["exact"].append(out.tolist())
rows = np.concatenate([weights.astype(np.float32), columns], 1)
blocks = rows.reshape(-1, LANES, size + COLUMNS).transpose(0, 2, 1).ravel()
multiply(1, size, numbers.ravel(), size, scales, zeros, blocks, outputs, out)
more = np.zeros(2 * size, np.float32)
memory, mixed = np.zeros(9 * LANES, np.uint16), np.zeros(2 * size, np.float32)
halves(numbers.ravel()[size:], size, places, memory, mixed)
flags = np.zeros(size, np.int64)
for count, bound in ((size - 1, 0), (size - 3, 1), (LANES, 99)):
    above(numbers.ravel()[2 * size :], 1, count, np.float32(bound), flags)
found["exact"][:0] = [memory.tolist(), flags.tolist()]
found["near"] = [*mixed.tolist(), *vectors(numbers.ravel(), LANES, size, places, more), *out.tolist(), *more.tolist()]
print(json.dumps(found, default=float))
"""


def found_on(processor, program, folder, **variables):
    """The JSON that a program prints whose functions are compiled for a processor."""
    names = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")
    environment = dict(zip(names, PROCESSORS[processor], strict=True)) if processor else {}
    environment |= {"XDG_CACHE_HOME": str(folder), **variables}
    command = [sys.executable, "-c", program, INSTRUCTIONS]
    result = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=True
    )
    return json.loads(result.stdout)


@pytest.mark.parametrize("processor", PROCESSORS)
def test_instructions_compute_what_their_python_says(processor, tmp_path):
    """Products of 8 bits to the last bit, for each number of rows."""
    has = {name for name, has_it in get_host_cpu_features().items() if has_it}
    missing = {name[1:] for name in PROCESSORS[processor][1].split(",")} - has
    if missing:
        pytest.skip(f"this processor has no {', '.join(sorted(missing))}")
    compiled_ones = found_on(processor, PROGRAM, tmp_path)
    plain = found_on(processor, PROGRAM, tmp_path, NUMBA_DISABLE_JIT="1")
    assert compiled_ones["name"] == plain["name"] == processor
    assert compiled_ones["exact"] == plain["exact"]
    assert compiled_ones["exact"][5:] == compiled_ones["exact"][5:6] * (len(plain["exact"]) - 5)
    np.testing.assert_allclose(compiled_ones["near"], plain["near"], rtol=1e-5, atol=1e-3)


PLAIN_SEARCH = """
import json, sys
sys.path.insert(0, {tests!r})
from test_compiled import found_in_plain_python
print(json.dumps(found_in_plain_python()))
"""


def found_in_plain_python():
    """Ids and scores of a small model in both types."""
    found = []
    for int8 in (False, True):
        engine = TorchEngine([small_model()], int8=int8)
        assert engine._compiled(SearchOptions()) is not None
        options = {"num_beams": 2, "no_repeat_ngram_size": 2, "min_length": 2}
        results = search(engine, random_sentences(count=4, longest=6), **options)
        found += [[list(best.token_ids), best.score] for (best,) in results]
    return found


@pytest.mark.long
def test_the_search_runs_in_plain_python(tmp_path):
    program = PLAIN_SEARCH.format(tests=str(Path(__file__).parent))
    plain = found_on(None, program, tmp_path, NUMBA_DISABLE_JIT="1")
    expected = found_in_plain_python()
    assert [ids for ids, _ in plain] == [ids for ids, _ in expected]
    scores = [[score for _, score in found] for found in (plain, expected)]
    np.testing.assert_allclose(*scores, rtol=1e-5)


def test_weights_are_rounded_again_if_their_products_do_not_fit_into_16_bits():
    generator = torch.Generator().manual_seed(3)
    weight = torch.randint(-127, 128, (5, 28), generator=generator, dtype=torch.int8)
    weight[1] //= 5
    scales = torch.rand(5, generator=generator)
    numbers, again = with_small_sums(weight, scales, summed=3)
    assert torch.equal(numbers[1], weight[1]) and again[1] == scales[1]
    bound = again[:, None] / 2 * 1.0001
    assert ((numbers * again[:, None] - weight * scales[:, None]).abs() <= bound).all()
    largest = []
    for row in numbers.tolist():
        sums = [
            sum(max(sign * row[n + i], 0) for n in range(at, min(at + 12, 28), 4) for i in pair)
            for at in (0, 12, 24)
            for pair in ((0, 1), (2, 3))
            for sign in (1, -1)
        ]
        largest.append(max(sums))
    assert max(largest) <= 255
    assert sorted(largest)[1] > 240  # no smaller than needed


def test_vectors_of_weights_do_not_cross_cache_lines():
    engine = TorchEngine([small_model()], int8=True)
    arrays = engine._compiled(SearchOptions()).arrays
    few = shortlisted(arrays, np.array([3, 5, 30]))
    for each in (arrays.weights, arrays.output_weights, few.output_weights):
        assert each.ctypes.data % 64 == 0


def test_rounded_inputs_and_weights_hardly_change_scores():
    model, sentences = small_model(), random_sentences()
    whole, rounded = (
        search(TorchEngine([model], int8=int8), sentences, num_beams=1) for int8 in (False, True)
    )
    pairs = [(a[0], b[0]) for a, b in zip(whole, rounded, strict=True)]
    same = [(a.score, b.score) for a, b in pairs if a.token_ids == b.token_ids]
    assert len(same) > len(pairs) / 2
    np.testing.assert_allclose(*zip(*same, strict=True), rtol=0.05)
    assert all(a != b for a, b in same)


@pytest.mark.parametrize("threads", [1, 2])
def test_an_interrupted_search_disturbs_no_later_one(threads):
    engine, sentences = TorchEngine([small_model()]), random_sentences()
    expected = search(engine, sentences)
    compiled_model = engine._compiled(SearchOptions())
    compiled_model._step_weights = 10**9  # one sentence has a team of threads
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for given in (sentences, sentences[:1]):
            running = compiled_model.searches(given, SearchOptions(), engine.rules, 2)
            next(running)
            running.close()
    finally:
        torch.set_num_threads(before)
    assert search(engine, sentences, threads) == expected


def test_threads_may_search_at_once_with_one_engine():
    """Also searches of other sizes, which need other memory and more positions."""
    engine = TorchEngine([small_model()])
    given = [random_sentences(longest=longest) for longest in (9, 40, 150, 300)]
    expected = [search(TorchEngine([small_model()]), sentences) for sentences in given]
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(engine.search, sentences, SearchOptions()) for sentences in given * 3]
        assert [job.result() for job in jobs] == expected * 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_searches_too():
    engine, sentences = TorchEngine([small_model()]), random_sentences(count=5)
    expected = search(engine, sentences, 2)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(
        target=lambda: queue.put(engine.search(sentences, SearchOptions())), daemon=True
    )
    child.start()
    assert queue.get(timeout=60) == expected
    child.join()


def test_weights_that_change_are_packed_again():
    model, sentences = small_model(), random_sentences(count=5)
    engine = TorchEngine([model])
    before = search(engine, sentences)
    with torch.no_grad():
        model.model.encoder.layers[0].fc1.weight.mul_(-1)
    after = search(engine, sentences)
    assert before != after == search(TorchEngine([model]), sentences)


def test_without_numba_only_weights_are_rounded(monkeypatch, caplog):
    monkeypatch.setattr(compiled, "_engine", lambda: None)
    compiled._warn_of_floats.cache_clear()
    model, sentences = small_model(), random_sentences()
    for _ in range(2):
        found = search(TorchEngine([model], int8=True), sentences)
    assert caplog.text.count("modeling_aiayn[fast]") == 1
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("proj.weight", "fc1.weight", "fc2.weight")):
                numbers, scales = rounded_to_int8(weight)
                weight.copy_(numbers * scales[:, None])
        tied, model.lm_head.weight = model.lm_head.weight, torch.nn.Parameter(weight.clone())
        numbers, scales = rounded_to_int8(tied)
        model.lm_head.weight = torch.nn.Parameter(numbers * scales[:, None])
    expected = search(TorchEngine([model]), sentences)
    assert [a[0].token_ids for a in found] == [a[0].token_ids for a in expected]


def test_machine_code_is_kept_in_a_folder_of_the_user_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = compiled.machine_code_folder.__wrapped__()
    assert folder.parent.parent == tmp_path
    assert folder.stat().st_mode & 0o777 == 0o700
    assert compiled.machine_code_folder.__wrapped__() == folder
    folder.chmod(0o770)
    assert compiled.machine_code_folder.__wrapped__() is None
    folder.rmdir()
    folder.symlink_to(tmp_path)
    assert compiled.machine_code_folder.__wrapped__() is None
    folder.unlink()
    folder.parent.rmdir()
    folder.parent.write_text("")  # no folder can be made there
    assert compiled.machine_code_folder.__wrapped__() is None


TRANSLATE = """
import json, logging, sys
logging.basicConfig(stream=sys.stderr)
from modeling_aiayn.translation import Translator
translator = Translator.from_pretrained("aiayn-en-de", dtype="int8")
print(json.dumps(translator(["The dog runs."])))
"""


@pytest.mark.long
def test_the_cache_may_be_shared_or_damaged(tmp_path):
    """By two processes that write it at once, and by two processors, as in a home folder."""
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: found_on(None, TRANSLATE, tmp_path), range(2)))
    found += [found_on(name, TRANSLATE, tmp_path) for name in ("plain", None, "plain")]
    for suffix in (".nbi", ".nbc"):
        files = list(tmp_path.rglob(f"*{suffix}"))
        assert files
        for path in files:
            path.write_bytes(path.read_bytes()[:-99])
        found.append(found_on(None, TRANSLATE, tmp_path))
    assert found == found[:1] * 7  # 7 bits are 7 bits on all processors

"""Shape comments such as `# [B, H, T, S]` are run: each must fit the tensors that its line makes."""

import ast
import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from conftest import small_model

import modeling_aiayn
from modeling_aiayn import AiaynForCausalLM, AiaynForSequenceClassification
from modeling_aiayn.attention_kernels.blockwise_operation import blockwise_attention_forward
from modeling_aiayn.inspection.alignment import count_links
from modeling_aiayn.inspection.attention_weights import attention_maps, text_attention_maps
from modeling_aiayn.inspection.position_maps import draw_positions
from modeling_aiayn.training.r_drop import r_drop_loss
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.segments.word_attention import word_attention

PACKAGE = Path(modeling_aiayn.__file__).parent
COMMENT = re.compile(r"#\s*((?:\[[^\]]*\](?:,\s*)?)+)(?: or .*)?$")


@dataclass(frozen=True)
class Statement:
    """A statement with a shape comment: its lines, the expressions it assigns, their shapes."""

    first: int
    last: int
    made: tuple[str, ...]
    shapes: tuple[str, ...]


def commented_statements(path):
    """Find the statements of a file whose last line ends in a shape comment."""
    lines = path.read_text().splitlines()
    found = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return):
            continue
        match = COMMENT.search(lines[node.end_lineno - 1])
        if match:
            shapes = tuple(re.findall(r"\[([^\]]*)\]", match.group(1)))
            if isinstance(node, ast.Return):
                made = ("return",)
            else:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                parts = target.elts if isinstance(target, ast.Tuple) else [target]
                made = tuple(ast.unparse(part) for part in parts)
            found[node.lineno] = Statement(node.lineno, node.end_lineno, made, shapes)
    return found


def check_shape(tensor, shape, sizes, where):
    """Bind letters that are new, and compare known ones and products of them to their sizes."""
    dimensions = [part.strip() for part in shape.split(",") if part.strip()]
    actual = list(tensor.shape)
    if dimensions[:1] == ["..."]:
        dimensions = dimensions[1:]
        actual = actual[len(actual) - len(dimensions) :]
    assert len(actual) == len(dimensions), f"{where}: [{shape}] of {tuple(tensor.shape)}"
    for dimension, size in zip(dimensions, actual, strict=True):
        if re.fullmatch("[A-Zk]", dimension) and dimension not in sizes:
            sizes[dimension] = size
        try:
            expected = eval(dimension, {"__builtins__": {}}, sizes)
        except NameError:
            continue
        assert size == expected, f"{where}: {dimension} of [{shape}] is {expected}, got {size}"


def check_statement(statement, frame, returned, sizes):
    """Compare what a statement made with its comment. A lone shape holds for every part."""
    scope = frame.f_globals | frame.f_locals
    values = [returned if made == "return" else eval(made, scope) for made in statement.made]
    if len(values) == 1 and isinstance(values[0], tuple):
        values = list(values[0])
    shapes = statement.shapes * len(values) if len(statement.shapes) == 1 else statement.shapes
    where = f"{frame.f_code.co_filename}:{statement.first}"
    for tensor, shape in zip(values, shapes, strict=True):
        check_shape(torch.as_tensor(tensor), shape, sizes, where)


@pytest.fixture(scope="module")
def statements():
    """All statements with a shape comment, by file and first line."""
    # Numba's functions cannot be traced, and their arrays are flat.
    paths = (path for path in PACKAGE.rglob("*.py") if path.parent.name != "compiled")
    found = {str(path): commented_statements(path) for path in paths}
    return {path: lines for path, lines in found.items() if lines}


@pytest.fixture(scope="module")
def seen(statements, tokenizer, tmp_path_factory):
    """Run models and workshop, and check every statement that has a shape comment."""
    seen = defaultdict(set)

    def global_trace(frame, event, argument):
        watched = statements.get(frame.f_code.co_filename)
        if watched is None:
            return None
        sizes, pending = {}, []

        def local_trace(frame, event, argument):
            line = frame.f_lineno
            if event == "exception":
                pending.clear()
            elif pending and (event == "return" or not pending[0].first <= line <= pending[0].last):
                statement = pending.pop()
                check_statement(statement, frame, argument, sizes)
                seen[frame.f_code.co_filename].add(statement.first)
            if event == "line" and line in watched and not pending:
                pending.append(watched[line])
            return local_trace

        return local_trace

    previous = sys.gettrace()
    sys.settrace(global_trace)
    try:
        run_models()
        run_workshop(tokenizer, tmp_path_factory.mktemp("pictures"))
    finally:
        sys.settrace(previous)
    return seen


def run_models():
    """Reach every statement of the Hub set. Batch, lengths and widths are pairwise different."""
    source = torch.tensor([[5, 6, 7, 8, 2, 1, 1], [9, 10, 11, 12, 13, 14, 2]])
    target = torch.tensor([[15, 16, 17, 2], [18, 19, 2, -100]])
    model = small_model(lm_head_bias=True)
    model(source, labels=target)
    model(source, labels=target, skip_logits=True, label_smoothing_factor=0.1)
    model.generate(source, num_beams=3, max_tokens_beyond_source=2)
    left_padded = {"decoder_attention_mask": torch.tensor([[0, 1, 1], [1, 1, 1]])}
    model(source, decoder_input_ids=torch.tensor([[1, 0, 9], [0, 8, 9]]), **left_padded)
    small_model(AiaynForCausalLM)(source, labels=source)
    for pooling in ("mean", "max"):
        classifier = small_model(AiaynForSequenceClassification, classifier_pooling=pooling)
        classifier(source)
    classifier(inputs_embeds=torch.randn(2, 7, 12))
    query, key = torch.randn(2, 3, 260, 5), torch.randn(2, 3, 270, 5)
    blockwise_attention_forward(classifier, query, key, key, None)


def run_workshop(tokenizer, folder):
    """Reach the statements of the other rooms by what users call."""
    model = small_model(vocab_size=len(tokenizer))
    translator = Translator(model, tokenizer)
    sentences = ["the red car sees a small dog .", "a cat sleeps ."]
    translator(sentences, num_beams=3, coverage_penalty=0.2)  # by torch
    translator(sentences, num_beams=2, do_sample=True, top_p=0.9)
    translator.score(sentences, sentences)
    attention_maps(translator, sentences[0], sentences[1])
    word_attention(translator, sentences[0], sentences[1])
    text_attention_maps(small_model(AiaynForCausalLM, vocab_size=len(tokenizer)), tokenizer, "a")
    count_links(translator, sentences, ["ein Auto .", "die Katze schläft ."])
    draw_positions(12, folder / "positions.png")
    labels = torch.tensor([[5, 6, 2], [4, 2, -100]]).repeat(2, 1)
    r_drop_loss({"logits": torch.randn(4, 3, 7)}, labels, weight=1.0, label_smoothing_factor=0.1)


def test_every_shape_comment_is_run_and_right(statements, seen):
    """A wrong comment fails while the models run."""
    not_run = {
        (Path(path).relative_to(PACKAGE).as_posix(), statement.made[0])
        for path, lines in statements.items()
        for first, statement in lines.items()
        if first not in seen[path]
    }
    assert not_run == set()


def test_every_shape_comment_belongs_to_a_statement(statements):
    for path in map(Path, statements):
        lines = enumerate(path.read_text().splitlines(), 1)
        ends = {statement.last for statement in statements[str(path)].values()}
        assert {number for number, line in lines if COMMENT.search(line)} == ends, path


def test_a_wrong_comment_is_found():
    with pytest.raises(AssertionError, match="S of"):
        check_shape(torch.zeros(2, 3, 5), "B, T, S", {"S": 7}, "here")
    with pytest.raises(AssertionError, match="B, T"):
        check_shape(torch.zeros(2, 3, 5), "B, T", {}, "here")

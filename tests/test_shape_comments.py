"""Comments such as `# [B, H, T, S]` are run: each must fit what its line makes."""

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from conftest import small_config, small_model

import modeling_aiayn
from modeling_aiayn import AiaynForSequenceClassification

PACKAGE = Path(modeling_aiayn.__file__).parent
FILES = ["attention.py", "layers.py", "generation.py", "modeling_aiayn.py"]
COMMENT = re.compile(r"#\s*((?:\[[^\]]*\](?:,\s*)?)+)\s*$")


def commented_statements(path):
    """Line of each statement with a shape comment: the names it makes (or "return"), the shapes."""
    lines = path.read_text().splitlines()
    found = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Assign | ast.Return):
            continue
        match = COMMENT.search(lines[node.end_lineno - 1])
        if match:
            shapes = re.findall(r"\[([^\]]*)\]", match.group(1))
            names = ["return"] if isinstance(node, ast.Return) else [ast.unparse(node.targets[0])]
            found[node.lineno] = (names, shapes, node.end_lineno)
    return found


def check_shape(tensor, shape, sizes, where):
    """Bind letters that are new, and hold known ones and products of them to their sizes."""
    dimensions = [part.strip() for part in shape.split(",")]
    actual = list(tensor.shape)
    if dimensions[0] == "...":
        dimensions = dimensions[1:]
        actual = actual[len(actual) - len(dimensions) :]
    assert len(actual) == len(dimensions), f"{where}: [{shape}] of {tuple(tensor.shape)}"
    for dimension, size in zip(dimensions, actual, strict=True):
        if re.fullmatch("[A-Z]", dimension) and dimension not in sizes:
            sizes[dimension] = size
        try:
            expected = eval(dimension, {"__builtins__": {}}, sizes)
        except NameError:
            continue
        assert size == expected, f"{where}: {dimension} of [{shape}] is {expected}, got {size}"


@pytest.fixture(scope="module")
def visited():
    """Run the models with every statement that has a shape comment watched."""
    statements = {str(PACKAGE / name): commented_statements(PACKAGE / name) for name in FILES}
    seen = defaultdict(set)

    def global_trace(frame, event, argument):
        watched = statements.get(frame.f_code.co_filename)
        if watched is None:
            return None
        sizes = {"B": 2, "D": 12, "V": 31}
        pending = []

        def local_trace(frame, event, argument):
            while pending and event in ("line", "return"):
                names, shapes, line = pending.pop()
                value = argument if names == ["return"] else frame.f_locals[names[0]]
                values = value if isinstance(value, tuple) else (value,)
                for tensor, shape in zip(values, shapes, strict=True):
                    check_shape(tensor, shape, sizes, f"{frame.f_code.co_filename}:{line}")
                seen[frame.f_code.co_filename].add(line)
            if event == "line" and frame.f_lineno in watched:
                names, shapes, _ = watched[frame.f_lineno]
                pending.append((names, shapes, frame.f_lineno))
            return local_trace

        return local_trace

    source = torch.tensor([[5, 6, 7, 8, 2, 1, 1], [9, 10, 11, 12, 13, 14, 2]])
    target = torch.tensor([[15, 16, 17, 2], [18, 19, 2, -100]])
    model = small_model()
    previous = sys.gettrace()
    sys.settrace(global_trace)
    try:
        model(source, labels=target)
        model.generate(source, max_tokens_beyond_source=2)
        for pooling in ("mean", "max"):
            AiaynForSequenceClassification(small_config(classifier_pooling=pooling))(source)
    finally:
        sys.settrace(previous)
    return statements, seen


@pytest.mark.parametrize("name", FILES)
def test_every_shape_comment_is_run_and_right(visited, name):
    statements, seen = visited
    path = str(PACKAGE / name)
    assert statements[path], f"{name} has no shape comment"
    assert set(statements[path]) == seen[path], "a shape comment that no test reaches"


def test_a_wrong_comment_is_found():
    with pytest.raises(AssertionError, match="S of"):
        check_shape(torch.zeros(2, 3, 5), "B, T, S", {"S": 7}, "here")
    with pytest.raises(AssertionError, match="B, T"):
        check_shape(torch.zeros(2, 3, 5), "B, T", {}, "here")

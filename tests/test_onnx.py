"""Export to ONNX: the same logits and greedy ids under onnxruntime, and errors."""

import json
import re
import sys

import numpy as np
import onnxruntime
import pytest
import torch
from conftest import save_folder, small_model
from test_ctranslate2 import CONFIGS, TEXTS
from transformers import AutoTokenizer, MarianConfig

from modeling_aiayn.interop.onnx_export import export_onnx
from modeling_aiayn.tokenization import train_word_tokenizer
from modeling_aiayn.translation import Translator

# Tracing takes ten seconds. make test traces one model, for the pages' command.
pytestmark = pytest.mark.long

NAMES = ("encoder_model", "decoder_model_merged")
ONE_LAYER = {"encoder_layers": 1, "decoder_layers": 1}


def exported(translator, folder, *dtypes):
    export_onnx(translator, folder, dtypes or ("float32",))
    return folder


def sessions(folder, suffix=""):
    return [onnxruntime.InferenceSession(folder / "onnx" / f"{x}{suffix}.onnx") for x in NAMES]


def decode(decoder, mask, states, ids, past):
    given = {"encoder_attention_mask": mask, "encoder_hidden_states": states, "input_ids": ids}
    logits, *present = decoder.run(None, given | past)
    return logits, dict(zip(past, present, strict=True))


@pytest.fixture(scope="module")
def learned(tokenizer, tmp_path_factory):
    """A model that ends no sentence, and its folder: tracing takes seconds."""
    overrides = CONFIGS["learned"] | {"lm_head_bias": True, "position_offset": 0}
    model = small_model(vocab_size=len(tokenizer) + 3, **overrides)
    with torch.no_grad():
        model.lm_head.bias.zero_()[tokenizer.eos_token_id] = -9.0
    model.generation_config.update(num_beams=4, max_tokens_beyond_source=50, max_length=200)
    translator = Translator(model, tokenizer)
    return model, exported(translator, tmp_path_factory.mktemp("a") / "onnx", "float32", "int8")


@pytest.mark.parametrize("padding_side", ["left", "right"])
def test_logits_are_the_same_with_and_without_cache(padding_side, tokenizer, learned):
    """Sources and targets of several lengths, none of which the graphs were traced with."""
    model, folder = learned
    check_logits(model, tokenizer, *sessions(folder), padding_side)


@pytest.mark.parametrize("name", ["pre_norm", "untied"])
def test_logits_of_other_architectures_are_the_same(name, tokenizer, tmp_path):
    model = small_model(vocab_size=len(tokenizer) + 3, **CONFIGS[name] | ONE_LAYER)
    graphs = sessions(exported(Translator(model, tokenizer), tmp_path / "onnx"))
    for padding_side in ("left", "right"):
        check_logits(model, tokenizer, *graphs, padding_side)


def check_logits(model, tokenizer, encoder, decoder, padding_side):
    sources = tokenizer(TEXTS[::2], padding=True, padding_side=padding_side, return_tensors="np")
    ids, mask = sources.input_ids, sources.attention_mask
    targets = np.array([[0, 9, 8, 7, 6, 5], [0, 4, 5, 6, 7, 8]])
    with torch.no_grad():
        expected = model(
            *(torch.tensor(each) for each in (ids, mask)), decoder_input_ids=torch.tensor(targets)
        )
    (states,) = encoder.run(None, {"input_ids": ids, "attention_mask": mask})
    is_real = mask.astype(bool)
    ours = expected.encoder_last_hidden_state.numpy()
    np.testing.assert_allclose(states[is_real], ours[is_real], atol=2e-5)
    # 2 heads of width 6 in the decoder, 3 of width 4 in the encoder.
    past = {x.name: np.zeros((2, 2, 0, 6), "f") for x in decoder.get_inputs()[3:]}
    whole, _ = decode(decoder, mask, states, targets, past)
    np.testing.assert_allclose(whole, expected.logits.numpy(), atol=2e-5)
    for start, end in ((0, 1), (1, 2), (2, 5), (5, 6)):
        logits, past = decode(decoder, mask, states, targets[:, start:end], past)
        np.testing.assert_allclose(logits, whole[:, start:end], atol=2e-5)
    lengths = {name: tensor.shape[2] for name, tensor in past.items()}
    assert lengths[f"past_key_values.{model.config.decoder_layers - 1}.decoder.value"] == 6
    assert lengths["past_key_values.0.encoder.key"] == ids.shape[1]


def greedy(folder, ids, mask, steps):
    """The ids of greedy search by onnxruntime, as the clients compute them, [B, steps]."""
    encoder, decoder = sessions(folder)
    (states,) = encoder.run(None, {"input_ids": ids, "attention_mask": mask})
    past = {
        x.name: np.zeros((len(ids), x.shape[1], 0, x.shape[3]), "f")
        for x in decoder.get_inputs()[3:]
    }
    columns = [np.zeros((len(ids), 1), int)]
    for _ in range(steps):
        logits, past = decode(decoder, mask, states, columns[-1], past)
        columns.append(logits[:, -1:].argmax(-1))
    return np.concatenate(columns[1:], 1)


def test_greedy_ids_are_those_of_generate(tokenizer, learned):
    model, folder = learned
    texts = [f"{text} {word}" for text in TEXTS if text for word in ("", "my", "a red cat")]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    found = greedy(folder, batch.input_ids.numpy(), batch.attention_mask.numpy(), 20)
    expected = model.generate(**batch, num_beams=1, max_new_tokens=20)[:, 1:]
    np.testing.assert_array_equal(found, expected.numpy())
    assert len({*found.flatten().tolist()}) > 2


def test_int8_graphs_are_a_quarter_and_near(tokenizer, tmp_path):
    sizes = {"vocab_size": len(tokenizer), "d_model": 96, "encoder_ffn_dim": 500}
    model = small_model(**CONFIGS["pre_norm"], **sizes, **ONE_LAYER)
    folder = exported(Translator(model, tokenizer), tmp_path / "onnx", "int8", "float32")
    ids = {"input_ids": np.array([[5, 6, 7, 2]]), "attention_mask": np.ones((1, 4), int)}
    exact, rounded = (sessions(folder, x)[0].run(None, ids)[0] for x in ("", "_quantized"))
    distance = np.abs(exact - rounded).max()
    assert 0 < distance < 0.1 * np.abs(exact).max()
    for name in NAMES:
        sizes = [(folder / "onnx" / f"{name}{x}.onnx").stat().st_size for x in ("", "_quantized")]
        assert sizes[1] < 0.45 * sizes[0]


def test_the_folder_is_what_clients_read(tokenizer, learned):
    model, folder = learned
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*"))
    assert files == [
        *("config.json", "generation_config.json"),
        *sorted(f"onnx/{name}{suffix}.onnx" for name in NAMES for suffix in ("", "_quantized")),
        *("tokenizer.json", "tokenizer_config.json"),
    ]
    config = MarianConfig.from_pretrained(folder)
    assert (config.model_type, config.d_model, config.decoder_layers) == ("marian", 12, 3)
    assert (config.decoder_start_token_id, config.eos_token_id, config.pad_token_id) == (0, 2, 1)
    rules = json.loads((folder / "generation_config.json").read_text())
    assert rules["max_length"] == 90 and rules.get("num_beams", 1) == 1
    assert "max_tokens_beyond_source" not in rules
    text = "The dog sees."
    assert AutoTokenizer.from_pretrained(folder)(text).input_ids == tokenizer(text).input_ids
    assert model.generation_config.num_beams == 4  # ours is as it was


def test_a_model_that_clients_cannot_run_is_refused(tokenizer, tmp_path):
    model = small_model(vocab_size=len(tokenizer))
    words = train_word_tokenizer(TEXTS, 1)
    wrong = (
        (Translator([model, model], tokenizer), "needs a translator of one model"),
        (
            Translator(small_model(vocab_size=len(tokenizer), head_dim=5), tokenizer),
            "ONNX export needs head_dim = d_model / encoder_attention_heads, got head_dim=5",
        ),
        (
            Translator(small_model(vocab_size=len(words)), words, train_word_tokenizer(TEXTS, 1)),
            "one tokenizer for both languages",
        ),
    )
    for translator, message in wrong:
        with pytest.raises(ValueError, match=message):
            exported(translator, tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(OSError, match="full"):
        exported(Translator(model, tokenizer), tmp_path / "full")


def test_the_script_exports(run, tokenizer, tmp_path, monkeypatch):
    model = small_model(vocab_size=len(tokenizer), **ONE_LAYER)
    save_folder(model, tokenizer, tmp_path / "model")
    folder = tmp_path / "onnx"
    command = ("export_onnx.py", "--model", tmp_path / "model", "--output", folder)
    code, _, err = run(*command, "--dtypes", "float32")
    assert code == 0, err
    assert not re.search("INFO|WARN|torchvision", err)  # of the exporters: hundreds of lines
    assert not list((folder / "onnx").glob("*_quantized*"))
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    code, out, err = run(*command)
    assert (code, out) == (1, "") and "modeling_aiayn[onnx]" in err and err.count("\n") == 1

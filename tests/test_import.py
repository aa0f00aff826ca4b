"""Each importer against the model of its own system."""

from pathlib import Path

import pytest
import torch
from foreign_peers import (
    VOCAB,
    annotated_state,
    fairseq_checkpoint,
    in_old_style,
    opennmt_checkpoint,
    paper_positions,
    run_annotated,
    run_fairseq,
    run_opennmt,
    tensor2tensor_positions,
)
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import (
    AutoModelForSeq2SeqLM,
    FSMTConfig,
    FSMTForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
)

from modeling_aiayn import AiaynForConditionalGeneration
from modeling_aiayn.interop.annotated import AnnotatedOptions, read_annotated
from modeling_aiayn.interop.fairseq import read_fairseq
from modeling_aiayn.interop.foreign_model import convert
from modeling_aiayn.interop.fsmt import read_fsmt
from modeling_aiayn.interop.importing import import_model
from modeling_aiayn.interop.marian import read_marian
from modeling_aiayn.interop.opennmt import read_opennmt
from modeling_aiayn.interop.parity import Examples
from modeling_aiayn.interop.torch_transformer import TorchOptions, read_torch_transformer

pytestmark = [
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]


def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    """Draw weights, biases and gains so large that each of them changes the output."""
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                drawn = torch.randn(parameter.shape, generator=chance)
                parameter.copy_(drawn * 0.3 if parameter.dim() > 1 else parameter + drawn * 0.2)
    return model.eval()


SIZES = {
    "d_model": 12,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 28,
    "max_position_embeddings": 64,
    "dropout": 0.25,
}


def marian_peer(**fields) -> MarianMTModel:
    config = MarianConfig(
        **{
            **SIZES,
            "vocab_size": VOCAB,
            "pad_token_id": VOCAB - 1,
            "decoder_start_token_id": VOCAB - 1,
            "eos_token_id": 0,
            "forced_eos_token_id": 0,
            "scale_embedding": True,
            "activation_function": "swish",
            **fields,
        }
    )
    model = randomised(MarianMTModel(config))
    model.final_logits_bias.normal_(generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        model.get_input_embeddings().weight[VOCAB - 1] = 0
    model.generation_config.bad_words_ids = [[VOCAB - 1]]
    return model


def fsmt_peer(**fields) -> FSMTForConditionalGeneration:
    sizes = {"src_vocab_size": VOCAB, "tgt_vocab_size": VOCAB, "tie_word_embeddings": True}
    return randomised(FSMTForConditionalGeneration(FSMTConfig(**{**SIZES, **sizes, **fields})))


class TorchTranslator(nn.Module):
    """A typical user's module around torch.nn.Transformer."""

    def __init__(
        self, norm_first: bool = False, learned: bool = False, halves: bool = False, **options
    ):
        super().__init__()
        self.source = nn.Embedding(VOCAB, 12)
        self.target = nn.Embedding(VOCAB + 3, 12)
        self.core = nn.Transformer(
            12, 2, 2, 1, 20, activation="gelu", batch_first=True, norm_first=norm_first, **options
        )
        self.head = nn.Linear(12, VOCAB + 3)
        table = tensor2tensor_positions(40, 12, 1) if halves else paper_positions(40, 12)
        if learned:
            self.places = nn.Parameter(torch.randn(40, 12))
        else:
            self.register_buffer("places", table[None])

    def forward(self, source: Tensor, target: Tensor, pad: int) -> Tensor:
        places = self.places.view(-1, 12)
        length = target.size(1)
        states = self.core(
            self.source(source) * 12**0.5 + places[: source.size(1)],
            self.target(target) * 12**0.5 + places[:length],
            tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(1),
            src_key_padding_mask=source == pad,
            memory_key_padding_mask=source == pad,
        )
        return self.head(states)


HEADS_OF_ANNOTATED = {"encoder_attention_heads": 3, "decoder_attention_heads": 3}
TORCH_NAMES = {
    "transformer": "core",
    "source_embedding": "source",
    "target_embedding": "target",
    "output": "head",
    "positions": "places",
}
NO_POSITIONS = {part: name for part, name in TORCH_NAMES.items() if part != "positions"}
TORCH_FIELDS = {
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "activation_function": "gelu",
    "norm_first": False,
    "scale_embedding": True,
    "layer_norm_eps": 1e-5,
    "decoder_start_token_id": 0,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
}


def read_torch(source, names=TORCH_NAMES, **fields):
    return read_torch_transformer(source, TorchOptions({**TORCH_FIELDS, **fields}, names))


def annotated(source, **fields):
    return read_annotated(source, AnnotatedOptions({**HEADS_OF_ANNOTATED, **fields}))


def padded_batch(pad: int, low: int = 4, high: int = VOCAB - 1) -> tuple[Tensor, Tensor, Tensor]:
    """Return sources of several lengths padded on the right, their mask, and targets."""
    chance = torch.Generator().manual_seed(2)
    lengths = torch.tensor([7, 3, 1, 5])
    source = torch.randint(low, high, (4, 7), generator=chance)
    mask = (torch.arange(7) < lengths[:, None]).long()
    target = torch.randint(low, high, (4, 6), generator=chance)
    return source.masked_fill(mask == 0, pad), mask, target


def moved_left(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Move the padding of all rows to the left."""
    rows = [torch.roll(row, int((real == 0).sum())) for row, real in zip(ids, mask, strict=True)]
    marks = [torch.roll(real, int((real == 0).sum())) for real in mask]
    return torch.stack(rows), torch.stack(marks)


@torch.no_grad()
def assert_same_logits(ours: AiaynForConditionalGeneration, expected_by, low: int = 4) -> None:
    """Compare right-padded, left-padded and single rows with the other system's right-padded rows."""
    pad = ours.config.pad_token_id
    source, mask, target = padded_batch(pad, low)
    expected = expected_by(source, mask, target)
    assert expected.std() > 0.1
    for ids, marks in ((source, mask), moved_left(source, mask)):
        logits = ours(ids, attention_mask=marks, decoder_input_ids=target).logits
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)
    alone = ours(source[1:2, :3], decoder_input_ids=target[1:2]).logits
    torch.testing.assert_close(alone, expected[1:2], atol=1e-5, rtol=0)


def library_logits(peer):
    def run(source: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        return peer(source, attention_mask=mask, decoder_input_ids=target, use_cache=False).logits

    return run


def saved(tmp_path: Path, checkpoint: dict, name: str = "model.pt") -> Path:
    torch.save(checkpoint, tmp_path / name)
    return tmp_path / name


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"activation_function": "relu", "scale_embedding": False},
        {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": VOCAB + 9},
    ],
    ids=["shared", "unscaled", "separate"],
)
def test_imported_marian_model_gives_the_same_logits(fields):
    peer = marian_peer(**fields)
    foreign = read_marian(peer)
    assert_same_logits(convert(foreign), library_logits(peer))
    is_separate = "decoder_vocab_size" in fields
    assert foreign.config.decoder_vocab_size == (VOCAB + 9 if is_separate else None)
    assert foreign.config.tie_word_embeddings
    assert foreign.config.dropout == 0.25


@pytest.mark.parametrize(
    "fields",
    [{}, {"tie_word_embeddings": False, "tgt_vocab_size": VOCAB + 5}],
    ids=["joint", "separate"],
)
def test_imported_fsmt_model_gives_the_same_logits(fields):
    peer = fsmt_peer(**fields)
    foreign = read_fsmt(peer)
    assert_same_logits(convert(foreign), library_logits(peer))
    assert foreign.config.position_offset == 2
    assert foreign.config.position_base == pytest.approx(10000 ** (12 / 10))
    assert foreign.config.tie_word_embeddings is not bool(fields)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pre_norm": True},
        {"learned": True},
        {"target_vocab": VOCAB + 5, "share_output": False},
        {"share_output": False},
    ],
    ids=str,
)
def test_imported_fairseq_model_gives_the_same_logits(options, tmp_path):
    checkpoint = fairseq_checkpoint(**options)
    foreign = read_fairseq(saved(tmp_path, checkpoint))
    assert_same_logits(
        convert(foreign), lambda source, _, target: run_fairseq(checkpoint, source, target)
    )


def test_reference_code_for_fairseq_agrees_with_transformers_fsmt(tmp_path):
    """The tests compute fairseq by code of their own, so that code is tested too."""
    peer = fsmt_peer(encoder_layers=2)
    checkpoint = fairseq_checkpoint()
    names = {name.removeprefix("model."): tensor for name, tensor in peer.state_dict().items()}
    checkpoint["model"] |= {name: names[name] for name in checkpoint["model"] if name in names}
    source, mask, target = padded_batch(1)
    found = run_fairseq(checkpoint, source, target)
    expected = library_logits(peer)(source, mask, target)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_imported_old_fairseq_model_gives_the_same_logits(tmp_path):
    new = fairseq_checkpoint()
    old = in_old_style(new)
    old["args"].relu_dropout = 0.15
    assert "encoder.layers.0.self_attn.in_proj_weight" in old["model"]
    assert "decoder.layers.2.layer_norms.2.bias" in old["model"]
    foreign = read_fairseq(saved(tmp_path, old))
    assert_same_logits(convert(foreign), lambda source, _, target: run_fairseq(new, source, target))
    assert foreign.config.final_norm is False
    assert (foreign.config.dropout, foreign.config.activation_dropout) == (0.3, 0.15)


@pytest.mark.parametrize("options", [{}, {"norm_first": True}, {"learned": True}, {"halves": True}])
def test_imported_torch_transformer_gives_the_same_logits(options):
    peer = randomised(TorchTranslator(**options))
    foreign = read_torch(peer.state_dict(), norm_first="norm_first" in options)
    assert_same_logits(
        convert(foreign),
        lambda source, _, target: peer(source, target, foreign.config.pad_token_id),
    )
    assert foreign.config.final_norm is True
    assert foreign.config.position_type == ("learned" if "learned" in options else "sinusoidal")


def test_imported_torch_transformer_may_lack_biases_and_positions():
    peer = randomised(TorchTranslator(bias=False))
    tensors = {name: tensor for name, tensor in peer.state_dict().items() if name != "places"}
    foreign = read_torch(tensors, NO_POSITIONS)
    pad = foreign.config.pad_token_id
    assert_same_logits(convert(foreign), lambda source, _, target: peer(source, target, pad))
    assert not foreign.config.attention_bias
    assert "model.encoder.layers.1.fc1.bias" in foreign.taken.absent_biases


def test_imported_annotated_transformer_gives_the_same_logits():
    state = annotated_state()
    foreign = annotated(state)
    ours = convert(foreign)
    assert_same_logits(
        ours,
        lambda source, _, target: run_annotated(state, source, target, 3, ours.config.pad_token_id),
    )
    assert ours.config.lm_head_bias
    assert not ours.config.tie_word_embeddings


@pytest.mark.parametrize(
    "options",
    [{}, {"old_norms": True}, {"query_bias": False}, {"halves": True}],
    ids=["version 3", "first years", "no query bias", "halves"],
)
def test_imported_opennmt_model_gives_the_same_logits(options, tmp_path):
    checkpoint = opennmt_checkpoint(**options)
    foreign = read_opennmt(saved(tmp_path, checkpoint))
    assert_same_logits(
        convert(foreign), lambda source, _, target: run_opennmt(checkpoint, source, target)
    )
    assert foreign.source_tokenizer("s3 s5 nowhere").input_ids == [7, 9, 0]
    assert foreign.target_tokenizer("t3 t5").input_ids == [7, 9, 3]
    assert foreign.config.decoder_start_token_id == 2


# Reads one model of each of the six systems.
SYSTEMS = {
    "marian": lambda _: read_marian(marian_peer()),
    "fsmt": lambda _: read_fsmt(fsmt_peer()),
    "fairseq": lambda folder: read_fairseq(saved(folder, fairseq_checkpoint(pre_norm=True))),
    "torch": lambda _: read_torch(randomised(TorchTranslator()).state_dict()),
    "annotated": lambda _: annotated(annotated_state()),
    "opennmt": lambda folder: read_opennmt(saved(folder, opennmt_checkpoint())),
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_imported_folders_match_the_original_and_load_by_auto_class(system, tmp_path):
    foreign = SYSTEMS[system](tmp_path)
    report = import_model(foreign, tmp_path / "imported", license="cc-by-4.0")
    assert report.greedy == report.beam == report.sources == 50
    assert max(report.right_padded, report.left_padded) <= 1e-5 * max(1, report.largest_logit)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "imported")
    assert isinstance(loaded, AiaynForConditionalGeneration)
    expected = convert(foreign).state_dict()
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    card = (tmp_path / "imported" / "README.md").read_text()
    assert "same beam-4 output      50 of 50" in card
    assert "license: cc-by-4.0" in card
    assert (tmp_path / "imported" / "model.safetensors").is_file()


def halved(state):
    return {name: tensor.half() for name, tensor in state.items()}


def test_weights_in_half_precision_are_compared_with_exact_positions(tmp_path):
    """A rounded table of positions differs from the formula by up to 5e-4."""
    checkpoint = opennmt_checkpoint()
    checkpoint |= {name: halved(checkpoint[name]) for name in ("model", "generator")}
    for number, foreign in enumerate(
        (
            read_torch(halved(randomised(TorchTranslator(halves=True)).state_dict())),
            annotated(halved(annotated_state())),
            read_opennmt(saved(tmp_path, checkpoint)),
        )
    ):
        report = import_model(foreign, tmp_path / str(number), sources=5)
        assert report.right_padded < 1e-5


def test_the_module_s_own_outputs_prove_what_no_tensor_shows(tmp_path):
    """norm_first changes no tensor: reference and import share the wrong assumption."""
    module = randomised(TorchTranslator(norm_first=True))
    given = {name: TORCH_FIELDS[name] for name in TORCH_FIELDS.keys() - {"norm_first"}}
    wrong = read_torch_transformer(module.state_dict(), TorchOptions(given, TORCH_NAMES))
    with pytest.raises(ValueError, match=r"inferred from the weights \(norm_first: False would"):
        import_model(wrong, tmp_path / "wrong", sources=10)
    source, mask, target = padded_batch(1)
    given = {"input_ids": source, "attention_mask": mask, "decoder_input_ids": target}
    given["logits"] = module(source, target, 1).detach()
    examples = Examples.read(saved(tmp_path, given))
    with pytest.raises(ValueError, match="One of these assumptions must be wrong: norm_first: Fal"):
        import_model(wrong, tmp_path / "wrong", sources=10, examples=examples)
    assert not (tmp_path / "wrong").exists()
    right = read_torch(module.state_dict(), norm_first=True)
    proven = import_model(right, tmp_path / "right", sources=10, examples=examples)
    assert "original's own outputs  4 examples, difference " in str(proven)
    assert float(str(proven).rpartition(" ")[2]) < 1e-5
    nothing = torch.full_like(given["logits"], torch.nan)
    with pytest.raises(ValueError, match="differ by nan"):
        Examples(**given | {"logits": nothing}).check(convert(right), "")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {"model_state_dict": state, "epoch": 3},
        lambda state: {"state_dict": {f"model.{name}": each for name, each in state.items()}},
        lambda state: {f"module._orig_mod.{name}": each for name, each in state.items()},
    ],
    ids=["training script", "Lightning", "DataParallel and compiled"],
)
def test_wrapped_state_dicts_are_read(tmp_path, wrap):
    """By the names of the module, and by those in the file."""
    state = randomised(TorchTranslator()).state_dict()
    expected = read_torch(state).taken.weights
    in_file = [
        {part: f"{prefix}{name}" for part, name in TORCH_NAMES.items()}
        for prefix in ("model.", "module._orig_mod.")
    ]
    for source in (wrap(state), saved(tmp_path, wrap(state))):
        for names in (TORCH_NAMES, *in_file):
            found = read_torch(source, names).taken.weights
            torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_source_and_target_may_have_learned_positions_of_their_own(tmp_path):
    module = randomised(TorchTranslator(learned=True))
    state = dict(module.state_dict()) | {"other": torch.randn(40, 12)}
    names = TORCH_NAMES | {"target_positions": "other"}
    foreign = read_torch(state, names)
    weights = foreign.taken.weights
    assert torch.equal(weights["model.encoder.embed_positions.weight"], state["places"])
    assert torch.equal(weights["model.decoder.embed_positions.weight"], state["other"])
    import_model(foreign, tmp_path / "model", sources=10)


def test_opennmt_weights_may_lie_beside_the_checkpoint(tmp_path):
    """As OpenNMT-py 3.5 writes them with -save_format safetensors."""
    checkpoint = opennmt_checkpoint()
    expected = read_opennmt(saved(tmp_path, checkpoint)).taken.weights
    generator = {f"generator.{name}": each for name, each in checkpoint.pop("generator").items()}
    tensors = {name: each.clone() for name, each in (checkpoint.pop("model") | generator).items()}
    path = saved(tmp_path, checkpoint, "run_step_5.pt")
    save_file(tensors, tmp_path / "run_step_5.safetensors")
    torch.testing.assert_close(read_opennmt(path).taken.weights, expected, rtol=0, atol=0)

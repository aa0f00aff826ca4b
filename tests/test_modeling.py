"""Section 3 as PreTrainedModels: what goes in, what comes out, what learns."""

import inspect

import pytest
import torch
from conftest import small_config, small_model
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from transformers import AutoModel, AutoModelForSeq2SeqLM, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import find_labels
from transformers.utils.output_capturing import OutputRecorder

from modeling_aiayn import (
    AiaynEncoderModel,
    AiaynForCausalLM,
    AiaynForConditionalGeneration,
    AiaynForSequenceClassification,
    AiaynModel,
)
from modeling_aiayn.losses import label_smoothed_cross_entropy, logger, shift_right

# Every option of the config that changes what the model computes, each switched on.
OPTIONS = [
    {},
    {"decoder_vocab_size": 29},
    {"head_dim": 12},
    {"activation_function": "gelu"},
    {"position_type": "learned", "max_position_embeddings": 19},
    {"position_base": 77.0, "position_offset": 2},
    {"norm_first": True},
    {"norm_first": True, "final_norm": False},
    {"final_norm": True},
    {"layer_norm_eps": 0.1},
    {"attention_bias": True},
    {"lm_head_bias": True},
    {"scale_embedding": False},
    {"tie_word_embeddings": False},
    {"tie_word_embeddings": False, "decoder_vocab_size": 29},
]
UNTIED = [{}, {"tie_word_embeddings": False}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_parameter_learns(batch, options):
    """Seed 000's best regression test: there, keys and values had no gradient at all."""
    model = small_model(**options)
    model(**batch).loss.backward()
    for name, parameter in model.named_parameters():
        # A bias on the keys adds the same to all scores of a query: softmax does not see it.
        if not name.endswith("k_proj.bias"):
            assert parameter.grad.abs().max() > 1e-9, name


@pytest.mark.parametrize(
    "options",
    [options for options in OPTIONS[1:] if options != {"tie_word_embeddings": False}],
    ids=str,
)
def test_every_option_changes_the_output(batch, options):
    changed, plain = small_model(**options), small_model()
    matching = {
        name: weight
        for name, weight in plain.state_dict().items()
        if name in changed.state_dict() and weight.shape == changed.state_dict()[name].shape
    }
    changed.load_state_dict(matching, strict=False)
    outputs = [model(**batch).loss for model in (changed, plain)]
    assert not torch.allclose(*outputs, rtol=1e-6), options


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        *((AiaynForConditionalGeneration, options) for options in OPTIONS),
        *((AiaynForSequenceClassification, options) for options in UNTIED),
        *((AiaynForCausalLM, options) for options in UNTIED),
    ],
)
def test_save_and_load_give_the_same_model(batch, cls, options, tmp_path):
    model = small_model(cls, num_labels=3, **options)
    is_translator = cls is AiaynForConditionalGeneration
    inputs = batch if is_translator else {"input_ids": batch["input_ids"]}
    model.save_pretrained(tmp_path / "first")
    loaded, info = cls.from_pretrained(tmp_path / "first", output_loading_info=True)
    assert not any(info.values())
    torch.testing.assert_close(loaded.eval()(**inputs).logits, model(**inputs).logits)
    loaded.save_pretrained(tmp_path / "second")
    for path in (tmp_path / "first").iterdir():
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes(), path.name


def test_three_way_tie_has_one_matrix(model, tmp_path):
    weight = model.model.encoder.embed_tokens.weight
    assert model.lm_head.weight is weight
    assert model.model.decoder.embed_tokens.weight is weight
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert loaded.lm_head.weight is loaded.model.encoder.embed_tokens.weight
    assert loaded.lm_head.weight is loaded.model.decoder.embed_tokens.weight


def test_notebook_6_has_its_parameters():
    """Seed 002: 9,038,341 parameters."""
    config = small_config(
        vocab_size=7853, decoder_vocab_size=5893, d_model=256, encoder_layers=3, decoder_layers=3,
        encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=512,
        decoder_ffn_dim=512, position_type="learned", max_position_embeddings=100,
        attention_bias=True, lm_head_bias=True, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device("meta"):
        assert AiaynForConditionalGeneration(config).num_parameters() == 9_038_341


def test_base_model_and_encoder_load_from_the_whole_one(model, batch, tmp_path):
    model.save_pretrained(tmp_path)
    expected = model(**batch)
    target = {"decoder_input_ids": batch["labels"][:1].expand(2, -1)}
    for cls, inputs in ((AiaynModel, target), (AiaynEncoderModel, {})):
        part, info = cls.from_pretrained(tmp_path, output_loading_info=True)
        assert not info["missing_keys"]
        states = part.eval()(batch["input_ids"], **inputs)
        source = states.encoder_last_hidden_state if inputs else states[0]
        torch.testing.assert_close(source, expected.encoder_last_hidden_state)
    assert type(AutoModel.from_pretrained(tmp_path)) is AiaynModel
    AiaynEncoderModel.from_pretrained(tmp_path).save_pretrained(tmp_path / "encoder")
    assert type(AutoModel.from_pretrained(tmp_path / "encoder")) is AiaynEncoderModel


def test_future_tokens_are_invisible_and_past_ones_are_not(model, batch):
    ids = torch.tensor([[0, 15, 16, 17, 18], [0, 19, 20, 21, 22]])
    plain = model(batch["input_ids"], decoder_input_ids=ids).logits
    for changed in range(1, 5):
        other = ids.clone()
        other[:, changed] = 30
        logits = model(batch["input_ids"], decoder_input_ids=other).logits
        torch.testing.assert_close(logits[:, :changed], plain[:, :changed])
        assert ((logits - plain)[:, changed:].abs().amax(-1) > 1e-6).all()


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("options", [{}, {"position_type": "learned"}], ids=str)
def test_padding_changes_no_row(implementation, options):
    model = small_model(**options)
    model.set_attn_implementation(implementation)
    source, target = torch.tensor([[5, 6, 7, 2]]), torch.tensor([[15, 16, 2]])
    alone = model(source, labels=target)
    padded_target = functional.pad(target, (0, 4), value=-100)
    for left, right in ((0, 3), (3, 0), (2, 1)):
        padded = functional.pad(source, (left, right), value=1)
        beside = torch.cat([padded, torch.arange(5, 12)[None]])
        labels = torch.cat([padded_target, torch.arange(12, 19)[None]])
        for mask in ((beside != 1).long(), None):
            output = model(beside, attention_mask=mask, labels=labels)
            torch.testing.assert_close(output.logits[0, :3], alone.logits[0], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(
                output.encoder_last_hidden_state[0, left : left + 4],
                alone.encoder_last_hidden_state[0],
                atol=1e-5,
                rtol=1e-5,
            )


def test_a_source_of_padding_alone_is_finite_and_hurts_no_neighbour(model):
    sources = torch.tensor([[5, 6, 2], [1, 1, 1]])
    labels = torch.tensor([[7, 2], [8, 2]])
    both = model(sources, labels=labels)
    assert both.logits.isfinite().all()
    alone = model(sources[:1], labels=labels[:1])
    torch.testing.assert_close(both.logits[0], alone.logits[0], atol=1e-6, rtol=0)


def test_dropout_is_on_the_sum_of_embedding_and_position():
    """Seed 002 dropped before it added positions, so that they were always there."""
    encoder = small_model(dropout=0.99).model.encoder
    embedded = encoder.train().embed(torch.zeros(1, 9, 12), None)
    assert (embedded == 0).float().mean() > 0.8


def test_embeddings_are_scaled_and_positions_are_not(model):
    encoder = model.model.encoder
    nothing = encoder.embed(torch.zeros(1, 3, 12), None)
    something = encoder.embed(torch.ones(1, 3, 12), None)
    torch.testing.assert_close(something - nothing, torch.full((1, 3, 12), 12**0.5))


def large_encoder(**options):
    """A new encoder with enough weights for statistics."""
    torch.manual_seed(0)
    learned = {"position_type": "learned", "max_position_embeddings": 1999}
    config = small_config(vocab_size=2000, d_model=60, **learned, **options)
    return AiaynForConditionalGeneration(config).model.encoder


def test_untied_embeddings_are_initialised_by_xavier():
    encoder = large_encoder(tie_word_embeddings=False)
    for weight in (encoder.embed_tokens.weight, encoder.embed_positions.weight):
        bound = (6 / (len(weight) + 60)) ** 0.5
        assert weight.abs().max().item() == pytest.approx(bound, rel=0.01)


@pytest.mark.parametrize(("scale", "expected"), [(True, 1.0), (False, 60**-0.5)])
def test_initial_positions_have_the_scale_of_the_embeddings(scale, expected):
    encoder = large_encoder(scale_embedding=scale)
    xavier = (2 / (60 + 13)) ** 0.5
    assert encoder.layers[0].fc1.weight.std().item() == pytest.approx(xavier, rel=0.1)
    tokens = encoder.embed_tokens.weight.std().item() * encoder.embed_scale
    assert tokens == pytest.approx(expected, rel=0.02)
    assert encoder.embed_positions.weight.std().item() == pytest.approx(expected, rel=0.02)


def test_inputs_embeds_give_the_same_as_ids(model, batch):
    expected = model(**batch)
    embeds = model.get_input_embeddings()(batch["input_ids"])
    output = model(
        inputs_embeds=embeds,
        attention_mask=(batch["input_ids"] != 1).long(),
        labels=batch["labels"],
    )
    torch.testing.assert_close(output.logits, expected.logits)
    decoder_ids = model.prepare_decoder_input_ids_from_labels(batch["labels"])
    output = model(
        batch["input_ids"], decoder_inputs_embeds=model.get_input_embeddings()(decoder_ids)
    )
    torch.testing.assert_close(output.logits, expected.logits)


def test_input_embeddings_can_be_replaced(model):
    new = torch.nn.Embedding(31, 12)
    model.set_input_embeddings(new)
    assert model.get_input_embeddings() is new
    assert model.model.decoder.embed_tokens is new
    model.tie_weights()
    assert model.lm_head.weight is new.weight
    encoder = AiaynEncoderModel(small_config())
    encoder.set_input_embeddings(new)
    assert encoder.get_input_embeddings() is new
    for options in ({"tie_word_embeddings": False}, {"decoder_vocab_size": 29}):
        separate = small_model(**options)
        decoders = separate.model.decoder.embed_tokens
        separate.set_input_embeddings(new)
        assert separate.get_input_embeddings() is new
        assert separate.model.decoder.embed_tokens is decoders


def test_encoder_outputs_can_be_a_model_output_a_tuple_or_a_list(model, batch):
    expected = model(**batch)
    states = expected.encoder_last_hidden_state
    mask = (batch["input_ids"] != 1).long()
    for given in (BaseModelOutput(last_hidden_state=states), (states,), [states]):
        output = model(encoder_outputs=given, attention_mask=mask, labels=batch["labels"])
        torch.testing.assert_close(output.logits, expected.logits)


def test_declared_outputs_are_recorded(model, batch):
    output = model(**batch, output_attentions=True, output_hidden_states=True)
    assert [w.shape for w in output.encoder_attentions] == [(2, 3, 7, 7)] * 2
    assert [w.shape for w in output.decoder_attentions] == [(2, 2, 4, 4)] * 3
    assert [w.shape for w in output.cross_attentions] == [(2, 2, 4, 7)] * 3
    assert [h.shape for h in output.encoder_hidden_states] == [(2, 7, 12)] * 3
    assert [h.shape for h in output.decoder_hidden_states] == [(2, 4, 12)] * 4
    attentions = output.encoder_attentions + output.decoder_attentions + output.cross_attentions
    for weights in attentions:
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    assert (output.cross_attentions[0][0, ..., 5:] == 0).all()
    assert (output.decoder_attentions[0].triu(1) == 0).all()


def test_logits_to_keep_returns_the_last_positions(model, batch):
    ids = model.prepare_decoder_input_ids_from_labels(batch["labels"])
    logits = model(batch["input_ids"], decoder_input_ids=ids).logits
    kept = model(batch["input_ids"], decoder_input_ids=ids, logits_to_keep=2).logits
    torch.testing.assert_close(kept, logits[:, -2:])


def test_chosen_positions_have_a_loss_of_their_own(model, batch):
    labels = batch["labels"]
    ids = model.prepare_decoder_input_ids_from_labels(labels)
    kept = torch.zeros_like(labels, dtype=torch.bool)
    kept[0, 1:3] = kept[1, 0] = True
    inputs = {"input_ids": batch["input_ids"], "decoder_input_ids": ids}
    output = model(**inputs, labels=labels[kept], logits_to_keep=kept)
    whole = model(**inputs).logits[kept]
    expected = torch.nn.functional.cross_entropy(whole, labels[kept])
    torch.testing.assert_close(output.loss, expected)


def enable_checkpointing(model, options=None):
    # Earlier releases of transformers know the second name only.
    names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
    getattr(model, next(name for name in names if hasattr(model, name)))(options)


def test_gradient_checkpointing_gives_the_same_gradients(batch):
    model = small_model().train()
    for module in model.modules():
        if hasattr(module, "dropout"):
            module.dropout = 0.0
    model.config.dropout = 0.0
    model(**batch).loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    for options in ({"use_reentrant": False}, {"use_reentrant": True}):
        model.zero_grad()
        enable_checkpointing(model, options)
        model(**batch, use_cache=False).loss.backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, expected[name], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_finite_and_near(batch, dtype):
    model = small_model()
    expected = model(**batch).logits
    output = model.to(dtype)(**batch)
    assert output.logits.dtype == dtype
    assert output.loss.isfinite()
    torch.testing.assert_close(output.logits.float(), expected, atol=0.1, rtol=0.1)


def test_positions_do_not_depend_on_the_loaded_dtype(model, tmp_path):
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    positions = loaded.model.encoder.embed_positions(torch.arange(9)[None])
    torch.testing.assert_close(
        positions, model.model.encoder.embed_positions(torch.arange(9)[None])
    )


@pytest.mark.long
@pytest.mark.parametrize("skip_logits", [False, True])
def test_training_steps_of_many_lengths_compile_without_graph_breaks(skip_logits):
    """As the library's Trainer runs them with torch_compile=True, and ours with skip_logits."""
    torch.compiler.reset()
    model = small_model(dropout=0.1, encoder_layers=1, decoder_layers=1).train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for length in (5, 6, 7, 9):
        ids = torch.randint(4, 29, (3, length))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
        count = torch.tensor(3 * length)
        outputs = compiled(**inputs, num_items_in_batch=count, skip_logits=skip_logits)
        outputs.loss.backward()
        assert (outputs.logits is None) == skip_logits


@pytest.mark.long
def test_training_forward_compiles_whole(batch):
    model = small_model()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(**batch).loss, model(**batch).loss)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_inductor_gives_the_same_loss_and_gradients(batch):
    """Slow because it is compiled, by torch's default backend."""
    model, other = small_model(), small_model()
    loss, expected = torch.compile(model, fullgraph=True)(**batch).loss, other(**batch).loss
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    loss.backward()
    expected.backward()
    for (name, ours), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-4, msg=name)


def test_the_trainer_of_transformers_finds_labels_and_nothing_else():
    """It takes every argument with "label" in its name for one, and scores nothing without all."""
    assert find_labels(AiaynForConditionalGeneration) == ["labels"]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_label_smoothing_is_its_closed_form_and_ignores_padding(smoothing):
    """Cross-entropy against (1 - e) times the label plus e / V everywhere."""
    logits = torch.randn(2, 4, 31)
    labels = torch.tensor([[15, 16, 17, 2], [18, 19, 2, -100]])
    real = labels >= 0
    target = (1 - smoothing) * functional.one_hot(labels.clamp(min=0), 31) + smoothing / 31
    expected = -(target * logits.log_softmax(-1)).sum(-1)[real].mean()
    options = {"label_smoothing_factor": smoothing}
    torch.testing.assert_close(label_smoothed_cross_entropy(logits, labels, **options), expected)
    of_several_batches = label_smoothed_cross_entropy(logits, labels, 21, **options)
    torch.testing.assert_close(of_several_batches, expected / 3)
    wider = functional.pad(labels, (0, 3), value=-100)
    padded = functional.pad(logits, (0, 0, 0, 3), value=9.0)
    torch.testing.assert_close(label_smoothed_cross_entropy(padded, wider, **options), expected)


def test_loss_does_not_depend_on_how_a_step_is_cut(model, batch):
    model(**batch, label_smoothing_factor=0.1).loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    for row in range(2):
        piece = {name: tensor[row : row + 1] for name, tensor in batch.items()}
        model(
            **piece, label_smoothing_factor=0.1, num_items_in_batch=torch.tensor(7)
        ).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], atol=1e-6, rtol=1e-4)


def test_a_batch_without_targets_has_loss_0_and_no_gradient(model, batch, caplog):
    logger.warning_once.cache_clear()
    for _ in range(2):
        loss = model(batch["input_ids"], labels=torch.full((2, 4), -100)).loss
    loss.backward()
    assert caplog.text.count("All labels of a batch are -100") == 1
    assert loss == 0
    logger.warning_once.cache_clear()
    with torch.no_grad():  # two processes mask rows that both have
        model(batch["input_ids"], labels=torch.full((2, 4), -100))
    assert caplog.text.count("All labels of a batch are -100") == 1
    assert all((p.grad == 0).all() for p in model.parameters())


def test_labels_are_shifted_right_and_left_as_they_are():
    labels = torch.tensor([[15, 16, 2], [17, 2, -100]])
    before = labels.clone()
    assert shift_right(labels, 0, 1).tolist() == [[0, 15, 16], [0, 17, 2]]
    assert shift_right(torch.tensor([[7, -100, 2]]), 3, 1).tolist() == [[3, 7, 1]]
    torch.testing.assert_close(labels, before)


SOURCE = {"input_ids": torch.tensor([[5, 2]])}
STATES = {"encoder_outputs": (torch.zeros(1, 7, 12),), "decoder_input_ids": torch.tensor([[0]])}
THREE = torch.tensor([[7, 8, 2]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "encoder needs either input_ids or inputs_embeds"),
        (SOURCE, "decoder needs exactly one input: decoder_input_ids, labels"),
        (SOURCE | {"attention_mask": torch.ones(1, 3), "labels": THREE}, r"mask of shape \(1, 3\) for tokens of shape \(1, 2\)"),
        (SOURCE | {"attention_mask": torch.ones(1, 2, 2), "labels": THREE}, r"one entry per token, got a mask of shape \(1, 2, 2\)"),
        (STATES | {"attention_mask": torch.ones(1, 5)}, r"mask of shape \(1, 5\) for states of shape \(1, 7\)"),
        ({"input_ids": torch.tensor([[5, 6], [7, 31]]), "labels": torch.tensor([[7], [2]])}, r"input id must be in \[0, 31\), got 31 at index \[1, 1\]"),
        (SOURCE | {"decoder_input_ids": torch.tensor([[0, -100]])}, r"input id must be in \[0, 31\), got -100 at index \[0, 1\]"),
        (SOURCE | {"labels": torch.tensor([[7, -100, 31]]), "decoder_input_ids": THREE}, r"label must be in \[0, 31\) or -100, got 31 at index \[0, 2\]"),
        (SOURCE | {"labels": THREE, "logits_to_keep": 2}, r"needs a label, got labels of shape \(1, 3\) for positions of shape \(1, 2\)"),
    ],
)  # fmt: skip
def test_calls_that_cannot_be_are_refused(model, arguments, message):
    with pytest.raises(ValueError, match=message):
        model(**arguments)


def test_input_beyond_a_learned_table_is_refused():
    model = small_model(position_type="learned", max_position_embeddings=4)
    fits = torch.tensor([[5, 6, 7, 2]])
    model(fits, labels=fits)
    longer = torch.tensor([[5, 6, 7, 8, 2]])
    message = "max_position_embeddings=4 positions, the input needs 5"
    with pytest.raises(ValueError, match=message):
        model(longer, labels=fits)
    with pytest.raises(ValueError, match=message):
        model(fits, labels=longer)


def test_all_that_a_model_computes_with_moves_with_it():
    """docs/seeds.md, trap 20: a tensor left behind would be on another device than the rest."""
    for position_type in ("sinusoidal", "learned"):
        model = small_model(position_type=position_type)
        assert not dict(model.named_buffers())
        tensors = [
            value
            for module in model.modules()
            for name, value in vars(module).items()
            if isinstance(value, torch.Tensor) and name not in module._parameters
        ]
        assert not tensors
        position_ids = torch.arange(3, device="meta")[None]
        assert model.model.encoder.to("meta").embed_positions(position_ids).device.type == "meta"


def test_sinusoids_have_no_limit(model):
    model.config.max_position_embeddings = 4
    source = torch.randint(4, 31, (1, 600))
    assert model(source, labels=source).loss.isfinite()


@pytest.mark.skipif(
    "num_hidden_layers_key" not in inspect.signature(OutputRecorder).parameters,
    reason="this version of transformers counts no layers",
)
def test_negative_hidden_state_indices_count_the_decoder_layers():
    model = small_model()  # 2 layers and 3
    ids = torch.tensor([[5, 6, 2]])
    every = model(ids, decoder_input_ids=ids, output_hidden_states=True)
    last = model(ids, decoder_input_ids=ids, output_hidden_states=[-1])
    torch.testing.assert_close(last.decoder_hidden_states[-1], every.decoder_hidden_states[-1])


def test_checkpointed_layers_leave_a_cache_alone():
    """They run again in backward, and would add to it twice."""
    model = small_model(dropout=0.0).train()
    ids = torch.tensor([[5, 6, 7, 2]])
    expected = model(ids, labels=ids).loss
    enable_checkpointing(model)
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    loss = model(ids, labels=ids, cache=cache).loss
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert cache.get_seq_length() == 0


def test_targets_do_not_read_the_rows_of_a_source_mask():
    model = small_model()
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    rows = torch.block_diag(torch.ones(2, 2), torch.ones(3, 3)).bool()[None, None]
    with pytest.raises(ValueError, match=r"a row for each source token, .* \(1, 1, 5, 5\)\. Pass"):
        model(ids, attention_mask=rows, decoder_input_ids=ids)
    states = model.get_encoder()(ids, attention_mask=rows)
    one_row = torch.ones(1, 1, 1, 5, dtype=torch.bool)
    logits = [
        model(encoder_outputs=states, attention_mask=mask, decoder_input_ids=ids[:, :3]).logits
        for mask in (one_row, torch.ones_like(ids))
    ]
    torch.testing.assert_close(*logits)
    plain = model(ids, attention_mask=one_row, decoder_input_ids=ids).logits
    torch.testing.assert_close(plain, model(ids, decoder_input_ids=ids).logits)


def test_the_hand_written_attention_is_the_default_for_every_way_to_build_a_model(tmp_path):
    model = small_model()
    model.save_pretrained(tmp_path)
    for built in (
        model,
        AutoModelForSeq2SeqLM.from_config(small_config(), attn_implementation=None),
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path, attn_implementation=None),
    ):
        assert built.config._attn_implementation == "eager"
        assert built.model.decoder.config._attn_implementation == "eager"
    other = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, attn_implementation="sdpa")
    assert other.config._attn_implementation == "sdpa"


def test_positions_of_the_target_can_be_passed(batch):
    parameters = inspect.signature(AiaynForConditionalGeneration.forward).parameters
    assert "decoder_position_ids" in parameters  # a Trainer drops other columns
    model = small_model()
    ids = batch["input_ids"]
    inputs = {"input_ids": ids, "decoder_input_ids": torch.tensor([[0, 5, 6]] * len(ids))}
    expected = model(**inputs).logits
    positions = torch.arange(3)[None].expand(len(expected), -1)
    given = model(**inputs, decoder_position_ids=positions).logits
    torch.testing.assert_close(given, expected)
    assert not torch.allclose(model(**inputs, decoder_position_ids=positions + 1).logits, expected)


class Factorised(nn.Module):
    """An embedding without a matrix of its own."""

    def __init__(self, vocab_size, d_model):
        super().__init__()
        self.table, self.width = nn.Embedding(vocab_size, 3), nn.Linear(3, d_model)

    def forward(self, input_ids):
        return self.width(self.table(input_ids))


def test_an_embedding_need_not_have_a_matrix():
    model = small_model(tie_word_embeddings=False)
    model.set_input_embeddings(Factorised(model.config.vocab_size, model.config.d_model))
    assert model.generate(torch.tensor([[5, 6, 2]]), max_new_tokens=3).size(0) == 1


def test_weights_may_be_empty_while_their_module_does_not_run():
    """As tools that divide weights among processes may leave them."""
    model = small_model()
    ids = torch.tensor([[5, 6, 7, 2]])
    expected = model.generate(ids, max_new_tokens=5)
    embeddings = [model.get_encoder().embed_tokens, model.get_decoder().embed_tokens]
    weight = embeddings[0].weight
    values = weight.data

    def fill(*_):
        weight.data = values

    def empty(*_):
        weight.data = torch.empty(0)

    for module in (*embeddings, model.lm_head):
        module.register_forward_pre_hook(fill)
        module.register_forward_hook(empty)
    empty()
    assert torch.equal(model.generate(ids, max_new_tokens=5), expected)


def test_gradients_of_each_sample_come_from_vmap():
    """In training too, where our dropout would draw the same numbers for all samples."""
    model = small_model(dropout=0.5).eval()
    weights = {name: each.detach() for name, each in model.named_parameters()}
    sources, targets = torch.tensor([[5, 6, 2], [7, 8, 2]]), torch.tensor([[9, 2], [10, 2]])

    def loss(weights, source, target):
        inputs = {"input_ids": source[None], "labels": target[None]}
        inputs["attention_mask"] = torch.ones(1, 3, dtype=torch.long)
        return functional_call(model, weights, (), inputs, tie_weights=True).loss

    options = {"in_dims": (None, 0, 0), "randomness": "different"}
    found = vmap(grad(loss), **options)(weights, sources, targets)
    for sample in range(2):
        expected = grad(loss)(weights, sources[sample], targets[sample])
        for name, each in expected.items():
            torch.testing.assert_close(found[name][sample], each)
    model.train()
    dropped = vmap(grad(loss), **options)(weights, sources, targets)
    name = "model.encoder.layers.0.fc1.weight"
    assert not torch.allclose(dropped[name], found[name])


def test_parameter_names_are_the_public_ones(model):
    names = {name for name, _ in model.named_parameters()}
    for attention in ("encoder.layers.1.self_attn", "decoder.layers.2.encoder_attn"):
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            assert f"model.{attention}.{projection}.weight" in names
    for module in ("self_attn_layer_norm", "encoder_attn_layer_norm", "fc1", "fc2"):
        assert f"model.decoder.layers.0.{module}.bias" in names
    assert "model.encoder.layers.0.final_layer_norm.weight" in names
    assert "model.encoder.embed_tokens.weight" in names


def test_a_decoder_without_a_source_raises_an_error(model):
    with pytest.raises(ValueError, match="needs encoder_hidden_states"):
        model.model.decoder(torch.tensor([[0]]))

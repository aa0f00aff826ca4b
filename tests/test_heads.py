"""The other heads: a classifier on the encoder, a language model from the decoder."""

import copy

import pytest
import torch
from conftest import small_model, warning_of_name
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, StaticCache
from transformers.loss.loss_utils import ForSequenceClassificationLoss

from modeling_aiayn import (
    AiaynEncoderModel,
    AiaynForCausalLM,
    AiaynForConditionalGeneration,
    AiaynForSequenceClassification,
)
from modeling_aiayn.layers import pool_states
from modeling_aiayn.losses import classification_loss

IDS = torch.tensor([[5, 6, 7, 2, 1, 1], [9, 10, 11, 12, 13, 2]])


def classifier(**options):
    return small_model(AiaynForSequenceClassification, num_labels=3, **options)


def language_model(**options):
    return small_model(AiaynForCausalLM, **options)


# --- classification


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_pooling_sees_real_tokens_alone(pooling):
    model = classifier(classifier_pooling=pooling)
    pooled = []
    for row in IDS:
        states = model.model(row[row != 1][None]).last_hidden_state[0]
        pooled.append(states.mean(0) if pooling == "mean" else states.max(0).values)
    expected = model.classifier(torch.stack(pooled))
    torch.testing.assert_close(model(IDS).logits, expected, atol=1e-5, rtol=1e-5)
    left = torch.stack([torch.cat([row[row == 1], row[row != 1]]) for row in IDS])
    torch.testing.assert_close(model(left).logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_a_text_without_a_token_is_finite_and_hurts_no_neighbour(pooling):
    model = classifier(classifier_pooling=pooling)
    logits = model(torch.tensor([[1, 1, 1], [5, 6, 2]])).logits
    torch.testing.assert_close(logits[0], model.classifier.bias)
    torch.testing.assert_close(logits[1:], model(torch.tensor([[5, 6, 2]])).logits)


def test_embeddings_without_a_mask_are_all_real():
    model = classifier()
    ids = torch.tensor([[5, 6, 7]])
    embeds = model.get_input_embeddings()(ids)
    torch.testing.assert_close(model(inputs_embeds=embeds).logits, model(ids).logits)


PROBLEMS = [
    (3, torch.tensor([2, 0]), "single_label_classification"),
    (3, torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]), "multi_label_classification"),
    (3, torch.tensor([[0.3, -1.0, 2.0], [0.1, 0.2, 0.3]]), "regression"),
    (1, torch.tensor([0.3, -1.0]), "regression"),
]


@pytest.mark.parametrize(("num_labels", "labels", "problem_type"), PROBLEMS)
def test_classification_losses_equal_those_of_transformers(num_labels, labels, problem_type):
    options = {"num_labels": num_labels}
    if num_labels == 3 and problem_type == "regression":
        options["problem_type"] = problem_type
    model = small_model(AiaynForSequenceClassification, **options)
    output = model(IDS, labels=labels)
    assert model.config.problem_type == problem_type  # pipelines choose softmax or sigmoid by it
    config = copy.deepcopy(model.config)
    config.problem_type = options.get("problem_type")
    expected = ForSequenceClassificationLoss(labels, output.logits, config)
    torch.testing.assert_close(output.loss, expected)
    assert config.problem_type == problem_type


def test_the_smoothed_loss_of_classes_is_its_closed_form():
    labels = torch.tensor([2, 0])
    output = classifier()(IDS, labels=labels, label_smoothing_factor=0.3)
    targets = 0.7 * torch.eye(3)[labels] + 0.3 / 3
    expected = -(targets * output.logits.log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(output.loss, expected)
    numbers = {"labels": torch.zeros(2, 3), "label_smoothing_factor": 0.3}
    with pytest.raises(ValueError, match=r"one class for each text, got .*regression"):
        classifier(problem_type="regression")(IDS, **numbers)


@pytest.mark.parametrize(("num_labels", "labels", "problem_type"), PROBLEMS)
def test_classification_losses_do_not_depend_on_accumulation(num_labels, labels, problem_type):
    model = small_model(
        AiaynForSequenceClassification, num_labels=num_labels, problem_type=problem_type
    )
    whole = model(IDS, labels=labels).loss
    pieces = [
        model(IDS[row : row + 1], labels=labels[row : row + 1], num_items_in_batch=labels.numel())
        for row in (0, 1)
    ]
    torch.testing.assert_close(sum(piece.loss for piece in pieces), whole)


@pytest.mark.parametrize("cls", [AiaynForSequenceClassification, AiaynForCausalLM])
@pytest.mark.parametrize("options", [{}, {"norm_first": True}, {"decoder_vocab_size": 29}], ids=str)
def test_every_parameter_learns(cls, options):
    model = small_model(cls, num_labels=3, **options)
    labels = IDS.masked_fill(IDS == 1, -100) if cls is AiaynForCausalLM else torch.tensor([2, 0])
    model(IDS, labels=labels).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.abs().max() > 1e-9, name


def test_classifier_dropout_acts_only_in_training():
    model = classifier(classifier_dropout=0.5, dropout=0.0)
    assert torch.equal(model(IDS).logits, model(IDS).logits)
    model.train()
    assert not torch.equal(model(IDS).logits, model(IDS).logits)


def test_classifier_loads_from_a_translation_checkpoint(tmp_path):
    whole = small_model()
    whole.save_pretrained(tmp_path)
    model, info = AutoModelForSequenceClassification.from_pretrained(
        tmp_path, num_labels=3, output_loading_info=True
    )
    assert type(model) is AiaynForSequenceClassification
    assert set(info.pop("missing_keys")) == {"classifier.weight", "classifier.bias"}
    assert not any(info.values())
    assert model.config.num_labels == 3
    states = model.eval().model(IDS).last_hidden_state
    torch.testing.assert_close(states, whole.model.encoder(IDS).last_hidden_state)


# --- language model


def test_language_model_s_loss_is_that_of_the_next_token():
    model = language_model()
    output = model(IDS, labels=IDS.masked_fill(IDS == 1, -100))
    logits = output.logits.double().log_softmax(-1)
    places = (IDS[:, 1:] != 1).nonzero().tolist()
    scores = [logits[row, at, IDS[row, at + 1]] for row, at in places]
    assert output.loss.item() == pytest.approx(-torch.stack(scores).mean().item(), rel=1e-5)
    spread = -logits[:, :5].mean(-1)[IDS[:, 1:] != 1].mean()
    smoothed = model(IDS, labels=IDS.masked_fill(IDS == 1, -100), label_smoothing_factor=0.1).loss
    assert smoothed.item() == pytest.approx((0.9 * output.loss + 0.1 * spread).item(), rel=1e-5)


def test_language_model_sees_the_past_alone():
    model = language_model()
    changed = IDS.clone()
    changed[:, 3] = 30
    before, after = model(IDS).logits, model(changed).logits
    torch.testing.assert_close(before[:, :3], after[:, :3])
    assert (before[:, 3:] - after[:, 3:]).abs().amax(-1).min() > 1e-4


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("options", [{}, {"position_type": "learned"}], ids=str)
def test_language_model_s_cache_changes_nothing(num_beams, options):
    model = language_model(**options)
    settings = {"max_new_tokens": 6, "num_beams": num_beams, "eos_token_id": None}
    expected = model.generate(IDS[1:], **settings, use_cache=False)
    assert model.generate(IDS[1:], **settings).tolist() == expected.tolist()


@pytest.mark.parametrize("cache", [None, "static"])
def test_language_model_continues_padded_prompts_like_single_prompts(cache):
    model = language_model()
    prompts = torch.tensor([[1, 1, 5, 6], [9, 10, 11, 12]])
    settings = {"max_new_tokens": 5, "eos_token_id": None, "cache_implementation": cache}
    together = model.generate(prompts, attention_mask=(prompts != 1).long(), **settings)
    for row, prompt in enumerate(prompts):
        alone = model.generate(prompt[prompt != 1][None], max_new_tokens=5, eos_token_id=None)
        assert together[row, 4:].tolist() == alone[0, -5:].tolist()


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_a_mask_can_be_as_long_as_a_static_cache(name):
    model = language_model()
    cache = StaticCache(model.config, max_cache_len=12)
    mask = torch.zeros(2, 12)
    mask[:, :6] = IDS != 1
    with warning_of_name(name):
        model(IDS[:, :3], attention_mask=mask[:, :3], **{name: cache})
        found = model(IDS[:, 3:], attention_mask=mask, **{name: cache}).logits
    expected = model(IDS, attention_mask=mask[:, :6]).logits[:, 3:]
    is_real = IDS[:, 3:] != 1
    torch.testing.assert_close(found[is_real], expected[is_real])


def test_packed_texts_do_not_see_each_other_in_training():
    """transformers' masks recognise packed texts only without a cache."""
    model = language_model()
    texts = [IDS[0, :4], IDS[1]]
    packed = torch.cat(texts)[None]
    labels = torch.cat([text.clone().index_fill_(0, torch.tensor([0]), -100) for text in texts])
    positions = torch.cat([torch.arange(len(text)) for text in texts])[None]
    output = model(packed, position_ids=positions, labels=labels[None])
    losses = torch.stack([model(text[None], labels=text[None]).loss for text in texts])
    weights = torch.tensor([len(text) - 1.0 for text in texts])
    torch.testing.assert_close(output.loss, (losses * weights).sum() / weights.sum())
    assert output.past_key_values is None
    assert model(packed, labels=packed, use_cache=True).past_key_values is not None


def test_packed_texts_fit_a_learned_table():
    model = language_model(position_type="learned", max_position_embeddings=4)
    text = IDS[:1, :4]
    positions = torch.arange(4).repeat(2)[None]
    packed = model(text.repeat(1, 2), position_ids=positions, use_cache=False).logits
    torch.testing.assert_close(packed[:, 4:], model(text).logits)
    with pytest.raises(ValueError, match="max_position_embeddings=4 positions, the input needs 5"):
        model(text[:, :2], position_ids=torch.tensor([[3, 4]]))


@pytest.mark.parametrize("make_model", [classifier, lambda: small_model(AiaynEncoderModel)])
def test_encoders_take_position_ids(make_model):
    model = make_model()
    counted = torch.tensor([[0, 1, 2, 3, 3, 3], [0, 1, 2, 3, 4, 5]])
    torch.testing.assert_close(model(IDS, position_ids=counted)[0], model(IDS)[0])
    assert not torch.allclose(model(IDS, position_ids=counted.flip(1))[0], model(IDS)[0])


@pytest.mark.parametrize(
    "options", [{}, {"tie_word_embeddings": False}, {"decoder_vocab_size": 29}], ids=str
)
def test_language_model_loads_from_a_translation_checkpoint(options, tmp_path):
    whole = small_model(**options)
    whole.save_pretrained(tmp_path / "whole")
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "whole", output_loading_info=True)
    assert type(model) is AiaynForCausalLM
    assert not any(info.values())
    decoder = whole.model.decoder
    assert torch.equal(model.get_input_embeddings().weight, decoder.embed_tokens.weight)
    assert torch.equal(model.lm_head.weight, whole.lm_head.weight)
    assert (model.lm_head.weight is model.get_input_embeddings().weight) == (
        "tie_word_embeddings" not in options
    )
    own = {name.removeprefix("model.decoder."): weight for name, weight in model.named_parameters()}
    for name, weight in decoder.named_parameters():
        if "encoder_attn" not in name:
            assert torch.equal(own[name], weight), name
    model.save_pretrained(tmp_path / "own")
    again, info = AutoModelForCausalLM.from_pretrained(tmp_path / "own", output_loading_info=True)
    assert not any(info.values())
    torch.testing.assert_close(again(IDS[:, :3]).logits, model(IDS[:, :3]).logits)


def test_translation_model_loads_from_a_language_model(tmp_path):
    model = language_model()
    model.save_pretrained(tmp_path)
    whole, info = AiaynForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert whole.config.is_encoder_decoder
    new = {name.split(".")[1] for name in info["missing_keys"] if "encoder_attn" not in name}
    assert new == {"encoder"}
    tied = whole.get_input_embeddings().weight
    assert whole.lm_head.weight is tied
    assert torch.equal(tied, model.lm_head.weight)


def test_shift_labels_are_not_shifted_again():
    model = language_model()
    labels = IDS.masked_fill(IDS == 1, -100)
    shifted = functional.pad(labels[:, 1:], (0, 1), value=-100)
    expected = model(IDS, labels=labels).loss
    torch.testing.assert_close(model(IDS, shift_labels=shifted).loss, expected)


def test_labels_without_a_loss_do_not_set_the_problem_type():
    model = classifier(problem_type=None)
    several = torch.eye(3, dtype=torch.long)[: len(IDS)]
    with pytest.raises(ValueError, match="needs one label for each text"):
        model(IDS, labels=several)
    assert model.config.problem_type is None
    expected = model(IDS, labels=several.float()).loss
    assert model.config.problem_type == "multi_label_classification"
    model.config.problem_type = None
    torch.testing.assert_close(model(IDS, labels=several.bool()).loss, expected)
    assert model.config.problem_type == "multi_label_classification"


def test_a_language_model_adds_20_tokens_or_fills_the_position_table():
    prompt = torch.randint(4, 31, (1, 25))
    sinusoids = small_model(AiaynForCausalLM, max_position_embeddings=24)
    assert sinusoids.generate(prompt, suppress_tokens=[2]).size(1) == 45
    learned = {"position_type": "learned", "max_position_embeddings": 30}
    model = small_model(AiaynForCausalLM, **learned)
    assert model.generate(prompt, suppress_tokens=[2]).size(1) == 31
    for cache in (None, "static"):
        with pytest.raises(ValueError, match="max_position_embeddings=30 positions"):
            model.generate(prompt, max_new_tokens=7, cache_implementation=cache)


@pytest.mark.parametrize("position_type", ["sinusoidal", "learned"])
def test_attention_masks_can_be_floating_point(position_type):
    """As PEFT's prompt tuning makes it."""
    model = small_model(AiaynForCausalLM, position_type=position_type)
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    ids = torch.randint(4, 31, (2, 4))
    expected = model(ids, attention_mask=mask).logits
    torch.testing.assert_close(model(ids, attention_mask=mask.float()).logits, expected)


def test_mean_pooling_of_long_texts_does_not_overflow_in_float16():
    states = torch.full((1, 4000, 3), 20.0, dtype=torch.float16)
    pooled = pool_states(states, None, "mean")
    assert pooled.dtype == torch.float16
    torch.testing.assert_close(pooled, states[:, 0])
    exact = torch.rand(2, 7, 3, dtype=torch.float64)
    torch.testing.assert_close(pool_states(exact, None, "mean"), exact.mean(1), rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("problem_type", "shape"),
    [
        ("multi_label_classification", (3, 2)),
        ("regression", (2,)),
        ("single_label_classification", (3,)),
    ],
)
def test_labels_of_another_shape_are_rejected(problem_type, shape):
    """As many numbers in another shape would belong to other texts."""
    with pytest.raises(ValueError, match=rf"{problem_type} needs one label .* shape \({shape[0]},"):
        classification_loss(torch.zeros(2, 3), torch.zeros(shape), problem_type)


def test_minus_100_is_an_ordinary_number_in_regression():
    logits, labels = torch.zeros(2, 1), torch.tensor([-100.0, 0.0])
    assert classification_loss(logits, labels, "regression").item() == 5000.0


def test_a_model_with_one_of_two_vocabularies_can_be_resized():
    classifier = small_model(AiaynForSequenceClassification, decoder_vocab_size=29)
    assert classifier.resize_token_embeddings(35).num_embeddings == 35
    assert (classifier.config.vocab_size, classifier.config.decoder_vocab_size) == (35, 29)
    writer = small_model(AiaynForCausalLM, decoder_vocab_size=29)
    writer.resize_token_embeddings(33)
    assert writer.config.decoder_vocab_size == 33
    assert writer(torch.tensor([[5, 32]])).logits.size(-1) == 33


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_a_classifier_pools_real_tokens_of_a_4d_mask(pooling):
    model = classifier(classifier_pooling=pooling)
    expected = model(IDS).logits
    mask = (IDS != 1)[:, None, None].expand(-1, 1, 6, -1)  # [B, 1, S, S]
    torch.testing.assert_close(model(IDS, attention_mask=mask).logits, expected)
    torch.testing.assert_close(model(IDS[1:], attention_mask=mask[1:]).logits, expected[1:])


def test_padding_on_the_left_needs_no_position():
    learned = {"position_type": "learned", "max_position_embeddings": 4}
    model = language_model(**learned)
    ids = torch.tensor([[1] * 5 + [7, 8, 9]])
    logits = model(ids, attention_mask=(ids != 1).long()).logits[:, 5:]
    torch.testing.assert_close(logits, model(ids[:, 5:]).logits)
    with pytest.raises(ValueError, match="max_position_embeddings=4 positions, the input needs 5"):
        model(ids, attention_mask=torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]]))


def test_continuous_batching_raises_an_error():
    model = small_model(AiaynForCausalLM)
    with pytest.raises(ValueError, match=r"generate_batch, .* needs a paged cache"):
        model.generate_batch([[5, 6, 7]])
    with pytest.raises(ValueError, match=r"generate_batch, .* needs a paged cache"):
        model.generate(torch.tensor([[5, 6, 7]]), cache_implementation="paged")

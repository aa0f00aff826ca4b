"""The loss from hidden states: equal to the plain one, and without its logits."""

import pytest
import torch
from conftest import small_model
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from modeling_aiayn import AiaynForCausalLM, AiaynForConditionalGeneration, chunked_loss
from modeling_aiayn.chunked_loss import chunked_cross_entropy, is_plain_linear
from modeling_aiayn.losses import label_smoothed_cross_entropy
from modeling_aiayn.training import r_drop


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Chunks of three positions at a vocabulary of 31."""
    monkeypatch.setattr(chunked_loss, "LOGITS_IN_CHUNK", 100)


class Watch(TorchDispatchMode):
    """Calls a function with each operation, its arguments and its result."""

    def __init__(self, see):
        super().__init__()
        self.see = see

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.see(func, args, result)
        return result


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_chunks_are_larger_on_a_gpu(monkeypatch, device):
    states, weight = torch.zeros(21, 5, device=device), torch.zeros(31, 5, device=device)
    labels = torch.ones(21, dtype=torch.int64, device=device)
    monkeypatch.setattr(chunked_loss, "LOGITS_IN_GPU_CHUNK", 310)
    sizes = []

    def see(func, args, result):
        if func._schema.name in ("aten::exp", "aten::exp_"):  # a softmax
            sizes.append(result.size(-2))

    with Watch(see):
        options = (weight, None, labels, 0.1, torch.float32, False)
        chunked_loss._SummedCrossEntropy.apply(states, *options)
    assert sizes == ([3] * 7 if device == "cpu" else [10, 10, 1])
    sizes.clear()
    monkeypatch.setattr(r_drop, "LOGITS_IN_CHUNK", 93)
    monkeypatch.setattr(r_drop, "LOGITS_IN_GPU_CHUNK", 310)
    with Watch(see):
        r_drop._SummedRDrop.apply(torch.zeros(2, 21, 31, device=device), labels, 1.0, 0.1)
    assert sizes == ([3] * 7 if device == "cpu" else [10, 10, 1])


def losses_and_gradients(function, labels, bias, **options):
    torch.manual_seed(0)
    states = torch.randn(3, 7, 5, requires_grad=True)
    weight = torch.randn(31, 5, requires_grad=True)
    parameters = [states, weight]
    if bias:
        parameters.append(torch.randn(31, requires_grad=True))
    loss = function(*parameters, labels, **options)
    return loss, torch.autograd.grad(3 * loss, parameters)


def plain(states, weight, *rest, **options):
    *bias, labels = rest
    logits = nn.functional.linear(states, weight, *bias)
    return label_smoothed_cross_entropy(logits, labels, **options)


def chunked(states, weight, *rest, **options):
    *bias, labels = rest
    return chunked_cross_entropy(states, weight, *(bias or [None]), labels, **options)


@pytest.fixture
def labels():
    labels = torch.randint(0, 31, (3, 7), generator=torch.Generator().manual_seed(1))
    labels[1, 4:] = labels[2, :2] = -100
    return labels


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("items", [None, 11, torch.tensor(40)], ids=str)
def test_loss_and_gradients_are_the_plain_ones(labels, bias, smoothing, items):
    options = {"label_smoothing_factor": smoothing, "num_items_in_batch": items}
    expected = losses_and_gradients(plain, labels, bias, **options)
    got = losses_and_gradients(chunked, labels, bias, **options)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_without_a_target_the_loss_and_its_gradients_are_zero(labels):
    loss, gradients = losses_and_gradients(chunked, torch.full_like(labels, -100), True)
    assert loss == 0
    assert all(gradient.eq(0).all() for gradient in gradients)


def test_under_autocast_the_chunked_loss_is_as_exact_as_the_plain_loss(labels):
    exact = losses_and_gradients(plain, labels, True, label_smoothing_factor=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        expected = losses_and_gradients(plain, labels, True, label_smoothing_factor=0.1)
        got = losses_and_gradients(chunked, labels, True, label_smoothing_factor=0.1)
    assert got[0].dtype == torch.float32
    torch.testing.assert_close(got, expected, rtol=0.05, atol=0.02)
    errors = [
        sum((a - b).square().sum() for a, b in zip(run[1], exact[1], strict=True))
        for run in (got, expected)
    ]
    assert errors[0] < 2 * errors[1]


def test_a_second_backward_gives_the_same_gradients(labels):
    states = torch.randn(3, 7, 5, requires_grad=True)
    loss = chunked_cross_entropy(states, torch.randn(31, 5), None, labels)
    first, second = (torch.autograd.grad(loss, states, retain_graph=True)[0] for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("cls", [AiaynForConditionalGeneration, AiaynForCausalLM])
@pytest.mark.parametrize(
    "options",
    [{}, {"tie_word_embeddings": False}, {"lm_head_bias": True}, {"decoder_vocab_size": 37}],
    ids=str,
)
def test_skipping_logits_changes_neither_loss_nor_gradients(batch, cls, options):
    runs = []
    for skip_logits in (False, True):
        model = small_model(cls, **options)
        inputs = dict(batch)
        if cls is AiaynForCausalLM:
            inputs["input_ids"] = batch["labels"].clamp(0)
        outputs = model(**inputs, label_smoothing_factor=0.1, skip_logits=skip_logits)
        outputs.loss.backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        runs.append((outputs.loss, gradients))
        assert (outputs.logits is None) == skip_logits
    assert len(runs[0][1]) > 20
    torch.testing.assert_close(runs[1], runs[0], rtol=1e-5, atol=1e-6)


def test_logits_are_there_in_training_steps_unless_they_are_skipped(batch):
    """A user's compute_loss reads them, also where a trainer passes num_items_in_batch."""
    for model in (small_model().train(), small_model(AiaynForCausalLM).train()):
        inputs = {**batch, "num_items_in_batch": 7}
        if not model.config.is_encoder_decoder:
            inputs["labels"] = batch["input_ids"]
        assert model(**inputs).logits.shape[:2] == inputs["labels"].shape
        assert model(**inputs, skip_logits=True).logits is None


def test_the_chunked_loss_never_holds_all_logits():
    """Memory is independent of batch x vocabulary: 20 x 30 targets, 500 entries."""
    model = small_model(vocab_size=500).train()
    ids = torch.randint(4, 500, (20, 30))
    largest = {False: 0, True: 0}

    def see(_func, _args, result):
        if isinstance(result, torch.Tensor):
            largest[skip_logits] = max(largest[skip_logits], result.numel())

    for skip_logits in largest:
        with Watch(see):
            model(input_ids=ids, labels=ids, skip_logits=skip_logits).loss.backward()
    assert largest[False] == 20 * 30 * 500
    assert largest[True] < 20 * 30 * 500 / 5


def test_padding_is_not_projected(monkeypatch, labels):
    rows = []

    def see(func, args, _):
        if func is torch.ops.aten.mm.out and args[1].shape == (5, 31):
            rows.append(len(args[0]))

    # Chunks of 6 are padded to a multiple of 4, so that few sizes of products occur.
    monkeypatch.setattr(chunked_loss, "LOGITS_IN_CHUNK", 6 * 31)
    monkeypatch.setattr(chunked_loss, "POSITIONS_MULTIPLE", 4)
    with Watch(see):
        chunked_cross_entropy(torch.randn(3, 7, 5), torch.randn(31, 5), None, labels)
    assert (labels != -100).sum() == 16
    assert rows == [8, 8, 4]


def test_an_adapter_on_the_projection_is_called(batch):
    model = get_peft_model(
        small_model(tie_word_embeddings=False),
        LoraConfig(target_modules=["lm_head"], r=3, init_lora_weights=False),
    )
    assert not is_plain_linear(model.base_model.model.lm_head)
    expected = model(**batch)
    skipped = model(**batch, skip_logits=True)
    assert skipped.logits is None
    torch.testing.assert_close(skipped.loss, expected.loss)


def test_hooks_on_the_projection_are_called(batch):
    model = small_model()
    seen = []
    model.lm_head.register_full_backward_hook(lambda module, *gradients: seen.append(module))
    model(**batch, skip_logits=True).loss.backward()
    assert seen == [model.lm_head]
    model = small_model()
    model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    model(**batch, skip_logits=True)
    assert seen[1:] == [(2, 4, 31)]


def test_labels_outside_the_vocabulary_raise_an_error(batch):
    batch["decoder_input_ids"] = batch["labels"].clamp(0)
    batch["labels"][0, 1] = 31
    with pytest.raises(ValueError, match=r"must be in \[0, 31\) or -100, got 31 at index \[0, 1\]"):
        small_model()(**batch, skip_logits=True)


def test_second_derivatives_raise_an_error(batch):
    model = small_model()
    output = model(**batch, skip_logits=True)
    weight = model.lm_head.weight
    with pytest.raises(ValueError, match="has no second derivatives"):
        torch.autograd.grad(output.loss, weight, create_graph=True)


def test_new_tokens_may_be_trained_by_an_adapter():
    """PEFT puts a wrapper in the place of a tied head that has no size of its own."""
    tokens = LoraConfig(r=3, target_modules=["q_proj"], trainable_token_indices=[4, 5])
    adapted = get_peft_model(small_model(), tokens)
    ids = torch.tensor([[5, 6, 2]])
    loss = adapted(input_ids=ids, labels=ids).loss
    loss.backward()
    assert loss.isfinite()
    grown = [name for name, each in adapted.named_parameters() if each.grad is not None]
    assert any("trainable_tokens" in name for name in grown)

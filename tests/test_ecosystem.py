"""The training ecosystem treats our models as its own: Trainer, Accelerate, PEFT, export, int8."""

import copy

import pytest
import torch
from accelerate import Accelerator
from conftest import small_config, small_model
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from torch.utils.data import DataLoader
from training_setup import logged
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
)

from modeling_aiayn import (
    AiaynForCausalLM,
    AiaynForConditionalGeneration,
    AiaynForSequenceClassification,
)


@pytest.fixture
def data(pairs, tokenizer):
    sources, targets = zip(*((pair.source, pair.target) for pair in pairs[:16]), strict=True)
    return Dataset.from_dict(dict(tokenizer(list(sources), text_target=list(targets))))


def fresh(tokenizer, cls=AiaynForConditionalGeneration, **options):
    torch.manual_seed(0)
    return cls(small_config(vocab_size=len(tokenizer), dropout=0.0, **options))


def plain_arguments(cls, folder, **options):
    return cls(
        output_dir=str(folder), use_cpu=True, max_steps=3, learning_rate=0.01, save_strategy="no",
        per_device_train_batch_size=8, logging_steps=1, disable_tqdm=True, **options,
    )  # fmt: skip


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    ("trainer_class", "arguments_class"),
    [(Trainer, TrainingArguments), (Seq2SeqTrainer, Seq2SeqTrainingArguments)],
)
def test_library_trainers(data, tokenizer, tmp_path, trainer_class, arguments_class, smoothing):
    """They train, evaluate, and do not see how a step is cut into batches."""
    losses = []
    for options in ({}, {"gradient_accumulation_steps": 4}):
        model = fresh(tokenizer)
        options |= {"label_smoothing_factor": smoothing, "max_grad_norm": 0}
        args = plain_arguments(arguments_class, tmp_path, **options)
        args.per_device_train_batch_size //= args.gradient_accumulation_steps
        trainer = trainer_class(
            model=model,
            args=args,
            train_dataset=data,
            eval_dataset=data,
            data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        )
        trainer.train()
        losses.append(logged(trainer, "loss"))
        assert losses[-1][-1] < losses[-1][0]
        assert "eval_loss" in trainer.evaluate()
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


SEVERAL = {"num_labels": 3, "problem_type": "multi_label_classification"}


@pytest.mark.parametrize(
    ("cls", "options", "columns"),
    [
        (AiaynForSequenceClassification, {"num_labels": 3}, {"labels": [0, 1, 2, 1] * 4}),
        (AiaynForSequenceClassification, {"num_labels": 1}, {"labels": [0.5, 1.0, 2.0, -1.0] * 4}),
        (
            AiaynForSequenceClassification,
            SEVERAL,
            {"labels": [[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]] * 8},
        ),
        (AiaynForCausalLM, {}, {}),
    ],
    ids=["classes", "regression", "several", "language"],
)
def test_other_heads_under_the_trainer(data, tokenizer, tmp_path, cls, options, columns):
    """Accumulation changes no loss, for the three kinds of classification either."""
    columns = columns or {"labels": data["input_ids"]}
    rows = Dataset.from_dict({"input_ids": data["input_ids"], **columns})
    rows = rows.map(lambda row: {"attention_mask": [1] * len(row["input_ids"])})
    pad = DataCollatorForSeq2Seq(tokenizer)

    def collate(features):
        if cls is AiaynForCausalLM:
            return pad(features)
        labels = [feature.pop("labels") for feature in features]
        return {**tokenizer.pad(features, return_tensors="pt"), "labels": torch.tensor(labels)}

    losses = []
    for steps in (1, 4):
        once = {"max_grad_norm": 0, "gradient_accumulation_steps": steps}
        args = plain_arguments(TrainingArguments, tmp_path, **once)
        args.per_device_train_batch_size = 8 // steps
        model = fresh(tokenizer, cls, classifier_dropout=0.0, **options)
        trainer = Trainer(model=model, args=args, train_dataset=rows, data_collator=collate)
        trainer.train()
        losses.append(logged(trainer, "loss"))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_label_smoothing_of_the_trainer_shifts_a_language_model_s_labels(tokenizer, tmp_path):
    """transformers shifts the labels of the classes that it knows; others learn to copy."""
    model = fresh(tokenizer, AiaynForCausalLM)
    args = plain_arguments(TrainingArguments, tmp_path, label_smoothing_factor=0.2)
    ids = torch.tensor([[5, 9, 7, 11, 6], [8, 10, 5, 7, 9]])
    loss = Trainer(model=model, args=args).compute_loss(model, {"input_ids": ids, "labels": ids})
    logits = model(ids).logits[:, :-1].flatten(0, 1)
    expected = nn.functional.cross_entropy(logits, ids[:, 1:].flatten(), label_smoothing=0.2)
    torch.testing.assert_close(loss, expected)


def test_a_bare_accelerate_loop(data, tokenizer):
    """It gives the weights of a loop without Accelerate."""
    weights = []
    for accelerator in (Accelerator(cpu=True), None):
        model = fresh(tokenizer)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        collator = DataCollatorForSeq2Seq(tokenizer, model=model)
        loader = DataLoader(data, batch_size=8, collate_fn=collator)
        if accelerator:
            model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for batch in loader:
            loss = model(**batch).loss
            accelerator.backward(loss) if accelerator else loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        weights.append(torch.cat([weight.detach().flatten() for weight in model.parameters()]))
    assert torch.equal(*weights)


@pytest.mark.parametrize("cls", [AiaynForConditionalGeneration, AiaynForSequenceClassification])
def test_lora_trains_saves_loads_and_merges(cls, tmp_path, batch):
    task = "SEQ_2_SEQ_LM" if cls is AiaynForConditionalGeneration else "SEQ_CLS"
    torch.manual_seed(0)
    base = cls(small_config(dropout=0.0, num_labels=3))
    inputs = {**batch, "labels": torch.tensor([2, 0])} if task == "SEQ_CLS" else batch
    config = LoraConfig(r=3, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type=task)
    model = get_peft_model(copy.deepcopy(base), config)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert all("lora_" in name or "classifier" in name for name in trained)
    assert any("encoder_attn.q_proj" in name for name in trained) == (task == "SEQ_2_SEQ_LM")
    optimizer = torch.optim.SGD([w for w in model.parameters() if w.requires_grad], lr=0.3)
    losses = []
    for _ in range(3):
        loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    model.eval()
    expected = model(**inputs).logits
    assert not torch.allclose(expected, base.eval()(**inputs).logits, atol=1e-3)
    model.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(copy.deepcopy(base), tmp_path).eval()
    torch.testing.assert_close(again(**inputs).logits, expected)
    merged = again.merge_and_unload()
    assert type(merged) is cls
    torch.testing.assert_close(merged(**inputs).logits, expected, atol=1e-5, rtol=1e-5)
    if task == "SEQ_2_SEQ_LM":
        kept = model.generate(input_ids=batch["input_ids"], max_new_tokens=5).tolist()
        assert merged.generate(batch["input_ids"], max_new_tokens=5).tolist() == kept


@pytest.mark.usefixtures("library_adapters")
@pytest.mark.parametrize(
    "cls", [AiaynForConditionalGeneration, AiaynForSequenceClassification, AiaynForCausalLM]
)
def test_adapters_of_transformers_are_saved_and_loaded(cls, tmp_path, batch):
    cls(small_config(num_labels=3)).save_pretrained(tmp_path / "base")
    model = cls.from_pretrained(tmp_path / "base")
    inputs = batch if cls is AiaynForConditionalGeneration else {"input_ids": batch["input_ids"]}
    plain = model(**inputs).logits
    config = LoraConfig(r=3, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model.add_adapter(config)
    expected = model(**inputs).logits
    assert not torch.allclose(expected, plain, atol=1e-3)
    model.save_pretrained(tmp_path / "adapter")
    assert not (tmp_path / "adapter" / "model.safetensors").exists()
    again = cls.from_pretrained(tmp_path / "adapter")
    torch.testing.assert_close(again(**inputs).logits, expected)
    later = cls.from_pretrained(tmp_path / "base")
    later.load_adapter(str(tmp_path / "adapter"))
    torch.testing.assert_close(later(**inputs).logits, expected)


@pytest.mark.parametrize("options", [{}, {"tie_word_embeddings": False}], ids=str)
@pytest.mark.parametrize("size", [38, 29])
def test_vocabulary_changes_its_size_in_both_halves(options, size, batch, tmp_path):
    model = small_model(**options)
    old = model.lm_head.weight.detach().clone()
    model.resize_token_embeddings(size)
    kept = min(size, 31)
    assert torch.equal(model.lm_head.weight[:kept], old[:kept])
    embedding = model.get_input_embeddings()
    assert (model.lm_head.weight is embedding.weight) == (not options)
    assert (model.model.decoder.embed_tokens.weight is embedding.weight) == (not options)
    assert model.config.vocab_size == size
    assert model.model.decoder.embed_tokens.num_embeddings == size
    output = model(**batch)
    assert output.logits.size(-1) == size
    model.save_pretrained(tmp_path)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(again(**batch).logits, output.logits)


@pytest.mark.parametrize(
    "options", [{}, {"tie_word_embeddings": False}, {"lm_head_bias": True}], ids=str
)
@pytest.mark.parametrize(("half", "size"), [("encoder", 38), ("decoder", 37), ("decoder", 23)])
def test_each_of_two_vocabularies_is_resized_alone(options, half, size, batch, tmp_path):
    model = small_model(decoder_vocab_size=29, **options)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    inputs = {**batch, "labels": batch["labels"].clamp(max=22)}
    logits = model(**inputs).logits
    resize = "resize_token_embeddings" if half == "encoder" else "resize_decoder_token_embeddings"
    embedding = getattr(model, resize)(size)
    assert embedding is getattr(model.model, half).embed_tokens
    sizes = {"encoder": 31, "decoder": 29} | {half: size}
    config = model.config
    assert (config.vocab_size, config.decoder_vocab_size) == (sizes["encoder"], sizes["decoder"])
    for name, rows in (
        ("model.encoder.embed_tokens.weight", sizes["encoder"]),
        ("model.decoder.embed_tokens.weight", sizes["decoder"]),
        ("lm_head.weight", sizes["decoder"]),
    ):
        after = model.state_dict()[name]
        kept = min(rows, len(before[name]))
        assert len(after) == rows and torch.equal(after[:kept], before[name][:kept]), name
    assert (model.lm_head.weight is model.model.decoder.embed_tokens.weight) == (
        "tie_word_embeddings" not in options
    )
    output = model(**inputs).logits
    kept = min(sizes["decoder"], 29)
    torch.testing.assert_close(output[..., :kept], logits[..., :kept])
    model.save_pretrained(tmp_path)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(again(**inputs).logits, output)


PARTS = ["lm_head", "model.decoder", *(f"model.encoder.{name}" for name in (
    "embed_tokens", "embed_positions", "layer_norm", "layers",
))]  # fmt: skip


@pytest.mark.parametrize(
    "device_map",
    [
        {"": "cpu"},
        {"model.encoder": "cpu", "model.decoder": "cpu", "lm_head": "cpu"},
        dict.fromkeys(PARTS, "cpu") | {"model.encoder.layers": "disk"},
    ],
    ids=["one", "halves", "disk"],
)
def test_parts_are_placed_by_a_device_map(model, batch, tmp_path, device_map):
    model.save_pretrained(tmp_path)
    placed = AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path, device_map=device_map, offload_folder=tmp_path / "offload"
    ).eval()
    torch.testing.assert_close(placed(**batch).logits, model(**batch).logits)
    output = placed.generate(batch["input_ids"], max_new_tokens=4)
    assert output.tolist() == model.generate(batch["input_ids"], max_new_tokens=4).tolist()


@pytest.mark.long
def test_forward_is_exported_for_any_batch_and_length(model):
    names = ("input_ids", "attention_mask", "decoder_input_ids")
    shapes = dict.fromkeys(names, (torch.export.Dim.DYNAMIC, torch.export.Dim.DYNAMIC))

    def inputs(batch_size, source_length, target_length):
        source = torch.randint(4, 31, (batch_size, source_length))
        target = torch.randint(4, 31, (batch_size, target_length))
        return dict(zip(names, (source, torch.ones_like(source), target), strict=True))

    given = {**inputs(3, 7, 4), "use_cache": False}
    shapes["use_cache"] = None
    program = torch.export.export(model, (), given, dynamic_shapes=shapes)
    other = inputs(2, 5, 6)
    output = program.module()(**other, use_cache=False)
    torch.testing.assert_close(output.logits, model(**other).logits)

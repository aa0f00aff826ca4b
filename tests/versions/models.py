"""Saved folders of every head, each with the outputs that it must give under every version."""

import json
from pathlib import Path

import torch

from modeling_aiayn import (
    AiaynConfig,
    AiaynEncoderModel,
    AiaynForCausalLM,
    AiaynForConditionalGeneration,
    AiaynForSequenceClassification,
    AiaynModel,
)

# No two sizes are equal where they may differ.
SIZES = {
    "vocab_size": 31, "d_model": 12, "encoder_layers": 2, "decoder_layers": 3,
    "encoder_attention_heads": 3, "decoder_attention_heads": 2, "encoder_ffn_dim": 13,
    "decoder_ffn_dim": 17,
}  # fmt: skip
# So that losses can be compared.
NO_DROPOUT = {"dropout": 0.0, "classifier_dropout": 0.0}
OPTIONS = {
    "position_type": "learned", "max_position_embeddings": 80, "norm_first": True,
    "final_norm": True, "attention_bias": True, "lm_head_bias": True, "scale_embedding": False,
    "head_dim": 5, "activation_function": "gelu",
}  # fmt: skip
# Each folder's name, its class, its Auto class, and options of its configuration.
TRANSLATOR = (AiaynForConditionalGeneration, "AutoModelForSeq2SeqLM")
CLASSIFIER = (AiaynForSequenceClassification, "AutoModelForSequenceClassification")
MODELS = (
    ("AiaynModel", AiaynModel, "AutoModel", {}),
    ("AiaynEncoderModel", AiaynEncoderModel, "AutoModel", {}),
    ("AiaynForConditionalGeneration", *TRANSLATOR, {}),
    ("AiaynForConditionalGeneration-two-vocabularies", *TRANSLATOR, {"decoder_vocab_size": 37}),
    ("AiaynForConditionalGeneration-other-options", *TRANSLATOR, OPTIONS),
    ("AiaynForSequenceClassification", *CLASSIFIER, {"num_labels": 3}),
    ("AiaynForCausalLM", AiaynForCausalLM, "AutoModelForCausalLM", {}),
)
# Two sources of 5 and 7 tokens, two targets of 4 and 3, padded on the right.
SOURCES = {
    "input_ids": [[5, 6, 7, 8, 2, 1, 1], [9, 10, 11, 12, 13, 14, 2]],
    "attention_mask": [[1, 1, 1, 1, 1, 0, 0], [1] * 7],
}
BATCHES = {
    AiaynModel: SOURCES | {"decoder_input_ids": [[0, 15, 16, 17], [0, 18, 19, 2]]},
    AiaynEncoderModel: SOURCES,
    AiaynForConditionalGeneration: SOURCES | {"labels": [[15, 16, 17, 2], [18, 19, 2, -100]]},
    AiaynForSequenceClassification: SOURCES | {"labels": [2, 0]},
    AiaynForCausalLM: {
        "input_ids": [[15, 16, 17, 20, 2], [18, 19, 2, 1, 1]],
        "attention_mask": [[1] * 5, [1, 1, 1, 0, 0]],
        # Nothing predicts a first token, but trainers before 5.10 count it where it has a label.
        "labels": [[-100, 16, 17, 20, 2], [-100, 19, 2, -100, -100]],
    },
}


def write_models(folder: Path) -> list[Path]:
    """Save a model of every head in a folder of its own, with its inputs and outputs."""
    return [_write_model(folder / name, *rest) for name, *rest in MODELS]


def _write_model(folder: Path, cls: type, auto_class: str, options: dict) -> Path:
    torch.manual_seed(0)
    model = cls(AiaynConfig(**(SIZES | NO_DROPOUT | options))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Biases and norms too: an option that a version ignores must change the outputs.
            parameter.add_(0.3 * torch.randn_like(parameter))
    batch = BATCHES[cls]
    inputs = {name: torch.tensor(value) for name, value in batch.items()}
    with torch.no_grad():
        outputs = model(**inputs)
    expected = {"output": (outputs.logits if "logits" in outputs else outputs[0]).tolist()}
    case = {"auto_class": auto_class, "batch": batch, "expected": expected}
    if "loss" in outputs:
        expected["loss"] = outputs.loss.item()
    if model.can_generate():
        prompt = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        if cls is AiaynForCausalLM:  # the first tokens, of which none is padding
            prompt = {name: ids[:, :2] for name, ids in prompt.items()}
        case["prompt"] = {name: ids.tolist() for name, ids in prompt.items()}
        for name, beams in (("greedy", 1), ("beam 4", 4)):
            expected[name] = model.generate(**prompt, num_beams=beams, max_new_tokens=9).tolist()
        # Small models give the same ids even if a cache is lost: logits, [T, N, V].
        steps = {"max_new_tokens": 9, "return_dict_in_generate": True, "output_logits": True}
        logits = model.generate(**prompt, num_beams=1, **steps).logits
        expected["steps"] = torch.stack(logits).tolist()
    model.save_pretrained(folder)
    if cls is AiaynForConditionalGeneration:  # its decoder alone, with a matrix of the encoder's
        with torch.no_grad():
            written = AiaynForCausalLM.from_pretrained(folder).eval()(inputs["input_ids"])
        expected["language model"] = written.logits.tolist()
    (folder / "contract.json").write_text(json.dumps(case), "utf-8")
    return folder

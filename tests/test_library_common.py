"""transformers' own common model tests, held to our models.

They are in its source distribution alone. To run them (CONTRIBUTING.md says which apply):

    pip download --no-deps --no-binary transformers transformers==5.24.0
    pip install parameterized
    TRANSFORMERS_SOURCE=transformers-5.24.0 pytest -o addopts= -W default tests/test_library_common.py
"""

import os
import sys
import types
import unittest

import pytest
import torch
from conftest import small_config

from modeling_aiayn import (
    AiaynEncoderModel,
    AiaynForCausalLM,
    AiaynForConditionalGeneration,
    AiaynForSequenceClassification,
    AiaynModel,
)

SOURCE = os.environ.get("TRANSFORMERS_SOURCE")
if SOURCE is None:
    pytest.skip(
        "needs TRANSFORMERS_SOURCE, an unpacked source distribution", allow_module_level=True
    )

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

sys.path.insert(0, SOURCE)
# The source distribution has not the mixins of these two folders.
for path, name in (
    ("exporters.test_export", "ExportTesterMixin"),
    ("generation.test_utils", "GenerationTesterMixin"),
):
    module = types.ModuleType(f"tests.{path}")
    setattr(module, name, type(name, (), {}))
    sys.modules[f"tests.{path.split('.')[0]}"] = types.ModuleType(f"tests.{path.split('.')[0]}")
    sys.modules[f"tests.{path}"] = module

from tests import test_modeling_common as common  # noqa: E402

# The mixin knows by these names which labels a class takes, and which takes none.
for mapping, *names in (
    ("MODEL_MAPPING_NAMES", "AiaynModel", "AiaynEncoderModel"),
    ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "AiaynForConditionalGeneration"),
    ("MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES", "AiaynForSequenceClassification"),
    ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "AiaynForCausalLM"),
):
    getattr(common, mapping).update({f"aiayn-{name}": name for name in names})

soften = common.set_config_for_less_flaky_test


def soften_known_fields(config):
    """It sets every name that any model has for an epsilon; ours takes foreign ones for slips."""
    known = set(vars(config))
    soften(config)
    for name in set(vars(config)) - known:
        delattr(config, name)


common.set_config_for_less_flaky_test = soften_known_fields


class Inputs:
    """What the mixin asks a model's tester for."""

    batch_size, seq_length, is_training = 3, 7, True
    hidden_size, num_attention_heads, num_hidden_layers = 16, 4, 2
    encoder_seq_length = key_length = decoder_seq_length = decoder_key_length = 7
    num_labels = 3

    def __init__(self, with_target):
        self.with_target = with_target

    def prepare_config_and_inputs_for_common(self):
        torch.manual_seed(0)
        config = small_config(
            vocab_size=99, d_model=16, encoder_layers=2, decoder_layers=2, num_labels=3,
            encoder_attention_heads=4, decoder_attention_heads=4,
            is_encoder_decoder=self.with_target,
        )  # fmt: skip
        ids = torch.randint(4, 99, (self.batch_size, self.seq_length))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if self.with_target:
            inputs["decoder_input_ids"] = torch.randint(4, 99, (self.batch_size, self.seq_length))
            inputs["decoder_attention_mask"] = torch.ones_like(ids)
        return config, inputs


# What does not hold, and why: CONTRIBUTING.md has the same list.
DEPARTURES = {
    "test_generation_tester_mixin_inheritance": "its mixin is not in the source distribution",
    "test_sdpa_can_dispatch_non_composite_models": "our default is the hand-written attention",
    "test_eager_matches_sdpa_inference_24_fp32_pad_left_output_attentions": (
        "sdpa computes no attention weights here"
    ),
}


class Common(common.ModelTesterMixin):
    with_target = False

    def setUp(self):
        self.model_tester = Inputs(self.with_target)


class TestEncoderDecoder(Common, unittest.TestCase):
    all_model_classes = (AiaynModel, AiaynForConditionalGeneration)
    is_encoder_decoder = True
    with_target = True


class TestEncoderAlone(Common, unittest.TestCase):
    all_model_classes = (AiaynEncoderModel, AiaynForSequenceClassification)


class TestDecoderAlone(Common, unittest.TestCase):
    all_model_classes = (AiaynForCausalLM,)


for cls in (TestEncoderDecoder, TestEncoderAlone, TestDecoderAlone):
    for name, reason in DEPARTURES.items():
        setattr(cls, name, unittest.skip(reason)(getattr(cls, name)))

del Common

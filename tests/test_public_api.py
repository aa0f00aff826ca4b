"""Public names are fixed: others load by them."""

import dataclasses
import inspect
import re
from typing import ClassVar, get_origin

import pytest
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

import modeling_aiayn
from modeling_aiayn import AiaynConfig, AiaynForConditionalGeneration, AiaynModel

CONFIG_FIELDS = [
    *("vocab_size", "decoder_vocab_size", "d_model", "encoder_layers", "decoder_layers"),
    *("encoder_attention_heads", "decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim"),
    *("head_dim", "dropout", "attention_dropout", "activation_dropout", "classifier_dropout"),
    *("classifier_pooling", "activation_function", "position_type", "max_position_embeddings"),
    *("position_base", "position_offset", "norm_first", "final_norm", "layer_norm_eps"),
    *("attention_bias", "lm_head_bias", "scale_embedding", "tie_word_embeddings", "use_cache"),
    *("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id"),
    "is_encoder_decoder",
]


def test_names_of_the_package():
    assert sorted(modeling_aiayn.__all__) == [
        *("AiaynConfig", "AiaynEncoderModel", "AiaynForCausalLM", "AiaynForConditionalGeneration"),
        *("AiaynForSequenceClassification", "AiaynModel"),
    ]
    assert all(hasattr(modeling_aiayn, name) for name in modeling_aiayn.__all__)


def test_fields_of_the_config():
    annotations = AiaynConfig.__annotations__.items()
    own = [name for name, kind in annotations if get_origin(kind) is not ClassVar]
    assert own == CONFIG_FIELDS
    assert set(own) <= {field.name for field in dataclasses.fields(AiaynConfig)}


def test_every_field_is_documented():
    """Fields that mean the same for both halves share an entry."""
    entries = re.findall(r"^    ([a-z_, ]+): ", inspect.getdoc(AiaynConfig), flags=re.M)
    documented = {name for entry in entries for name in entry.split(", ")}
    assert set(CONFIG_FIELDS) - documented == set()


def test_auto_classes_return_our_classes():
    config = AiaynConfig(d_model=8, encoder_layers=1, decoder_layers=1, vocab_size=9)
    assert AiaynConfig.model_type == "aiayn"
    assert type(AutoConfig.for_model("aiayn")) is AiaynConfig
    assert type(AutoModel.from_config(config)) is AiaynModel
    assert type(AutoModelForSeq2SeqLM.from_config(config)) is AiaynForConditionalGeneration


@pytest.mark.parametrize("cls", [AiaynModel, AiaynForConditionalGeneration])
def test_forward_has_the_arguments_of_marian(cls):
    from transformers import MarianModel, MarianMTModel

    peer = MarianModel if cls is AiaynModel else MarianMTModel
    ours, theirs = (inspect.signature(model.forward).parameters for model in (cls, peer))
    missing = theirs.keys() - ours.keys()
    assert missing <= {"self"}

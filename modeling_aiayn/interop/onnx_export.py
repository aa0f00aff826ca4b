"""Export a translation model to ONNX, in the files that transformers.js and optimum read.

The graphs are our own layers, traced by torch. Inputs and outputs are Marian's, and the folder's
configuration names Marian's class: it tells both clients how to call an encoder-decoder.
"""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from onnxruntime.quantization import QuantType, quant_pre_process, quantize_dynamic
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import GenerationConfig, MarianConfig

from ..attention import eager_attention_forward
from ..configuration_aiayn import AiaynConfig
from ..modeling_aiayn import AiaynForConditionalGeneration
from ..saved.whole_files import new_folder
from ..stacks import AiaynDecoder, AiaynEncoder
from ..translation import Translator
from .library_models import (
    SHARED_FIELDS,
    check_head_width,
    copy_to_export,
    library_generation_config,
)

OPSET = 18
# Subfolder of the graphs, and their names; int8 graphs have the suffix that both clients expect.
FOLDER = "onnx"
ENCODER, DECODER = "encoder_model", "decoder_model_merged"
SUFFIXES = {"float32": "", "int8": "_quantized"}
# The clients' limit for a translation, in tokens, if the model has none.
LONGEST_OUTPUT = 512


class EncoderGraph(nn.Module):
    """The encoder, from ids to states."""

    def __init__(self, encoder: AiaynEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Encode source ids, [B, S], with a mask, [B, S], to states, [B, S, D]."""
        encoder = self.encoder
        states = encoder.embed(encoder.embed_tokens(input_ids), attention_mask)
        mask = hide_padding(attention_mask, states.dtype)
        for layer in encoder.layers:
            states = layer(states, mask, attention_function=eager_attention_forward)
        return encoder.layer_norm(states)


class DecoderGraph(nn.Module):
    """The decoder with its cache, from ids to logits: one graph for the first step and all others.

    At the first step, clients pass a cache of length 0. The graph computes keys and values of the
    source states that the cache lacks: all of them at first, and none later.
    """

    def __init__(self, decoder: AiaynDecoder, lm_head: nn.Linear) -> None:
        super().__init__()
        self.decoder, self.lm_head = decoder, lm_head

    def forward(
        self,
        encoder_attention_mask: Tensor,
        input_ids: Tensor,
        encoder_hidden_states: Tensor,
        past: Sequence[Tensor],
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the logits of new target ids, [B, T, V], and the cache for the next step.

        Args:
            encoder_attention_mask: 1 for real source tokens, [B, S].
            input_ids: New target ids, [B, T].
            encoder_hidden_states: The encoder's output, [B, S, D].
            past: For each layer, keys and values of the earlier target tokens, [B, H, P, K] each,
                and of the source, [B, H, 0, K] at the first step and [B, H, S, K] later.
        """
        decoder, new_length, past_length = self.decoder, input_ids.size(1), past[0].size(2)
        states = decoder.embed(decoder.embed_tokens(input_ids), None, past_length)
        queries = torch.arange(new_length) + past_length
        is_later = torch.arange(past_length + new_length)[None] > queries[:, None]
        causal_mask = is_later * torch.finfo(states.dtype).min
        source_mask = hide_padding(encoder_attention_mask, states.dtype)
        unread = encoder_hidden_states[:, past[2].size(2) :]
        cache = GraphCache(past)
        for layer in decoder.layers:
            states = layer(
                states,
                unread,
                causal_mask,
                source_mask,
                cache=cache,
                attention_function=eager_attention_forward,
            )
        return self.lm_head(decoder.layer_norm(states)), cache.tensors


class CacheHalf:
    """Keys and values of one kind of attention, at `first` and the next of a layer's 4 tensors."""

    def __init__(self, tensors: list[Tensor], first: int) -> None:
        self.tensors, self.first = tensors, first

    def update(self, key: Tensor, value: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Append new keys and values, [B, H, N, K] each, and return all of the layer."""
        place = 4 * layer_idx + self.first
        for index, new in enumerate((key, value), place):
            self.tensors[index] = torch.cat((self.tensors[index], new), dim=2)
        return self.tensors[place], self.tensors[place + 1]


class GraphCache(CacheHalf):
    """The part of EncoderDecoderCache that decoder layers use, stored in a graph's tensors."""

    def __init__(self, past: Sequence[Tensor]) -> None:
        super().__init__(list(past), 0)
        self.cross_attention_cache = CacheHalf(self.tensors, 2)
        # Empty at each step, so that layers project the source states that are not cached yet.
        self.is_updated: dict[int, bool] = {}


def hide_padding(attention_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Make a mask to add to scores, [B, 1, 1, S], from one that is 1 for real tokens, [B, S]."""
    return (1 - attention_mask[:, None, None].to(dtype)) * torch.finfo(dtype).min


def export_onnx(
    translator: Translator,
    folder: str | Path,
    dtypes: Sequence[str] = tuple(SUFFIXES),
    *,
    show_progress: bool = False,
) -> None:
    """Write a model as ONNX graphs with its tokenizer, for transformers.js and optimum.

    Args:
        translator: The model and its tokenizer.
        folder: The folder to create. It must be new or empty.
        dtypes: Types of the weights, "float32", "int8" or both; each has its own files.
        show_progress: Whether to show a progress bar on stderr.

    Raises:
        ValueError: The clients do not support the model: it is an ensemble, has two vocabularies,
            or heads of an unusual width.
        OSError: The folder is not empty, or cannot be written.
    """
    model = copy_to_export(translator)
    check_head_width(model.config, "ONNX export")
    if translator.target_tokenizer is not translator.source_tokenizer:
        raise ValueError(
            "ONNX export needs one tokenizer for both languages, and this model has two, as "
            "imported models do. A model that is trained with --vocabulary bpe has one."
        )
    with new_folder(Path(folder)) as unfinished:
        (unfinished / FOLDER).mkdir()
        graphs = [(ENCODER, _write_encoder), (DECODER, _write_decoder)]
        for name, write in tqdm(graphs, "Exporting", unit="graph", disable=not show_progress):
            path = unfinished / FOLDER / f"{name}.onnx"
            write(model, path)
            for dtype in dtypes:
                if dtype != "float32":
                    write_int8(path, path.with_stem(f"{name}{SUFFIXES[dtype]}"))
            if "float32" not in dtypes:
                path.unlink()
        client_config(model.config).save_pretrained(unfinished)
        client_generation_config(model).save_pretrained(unfinished)
        translator.source_tokenizer.save_pretrained(unfinished)


def client_config(config: AiaynConfig) -> MarianConfig:
    """Make the configuration from which clients read sizes and special tokens."""
    marian = MarianConfig(
        **{name: getattr(config, name) for name in SHARED_FIELDS},
        max_position_embeddings=config.max_position_embeddings,
        forced_eos_token_id=None,
        architectures=["MarianMTModel"],
    )
    # transformers.js computes the shape of all cached keys from it, but they are the decoder's.
    marian.encoder_attention_heads = config.decoder_attention_heads
    return marian


def client_generation_config(model: AiaynForConditionalGeneration) -> GenerationConfig:
    """Return the model's decoding rules: greedy, because transformers.js has no beam search."""
    found = library_generation_config(model)
    found.num_beams, found.length_penalty = 1, 1.0
    found.early_stopping, found.num_return_sequences = False, 1
    longest = model.model.decoder.embed_positions.max_length or LONGEST_OUTPUT
    found.max_length = min(found.max_length or longest, longest)
    return found


def _write_encoder(model: AiaynForConditionalGeneration, path: Path) -> None:
    batch, length = torch.export.Dim("batch_size"), torch.export.Dim("encoder_sequence_length")
    mask = torch.tensor([[1, 1, 1, 0, 0, 0, 0], [1] * 7])
    _export(
        EncoderGraph(model.model.encoder),
        (torch.full_like(mask, 2), mask),
        path,
        input_names=["input_ids", "attention_mask"],
        output_names=["last_hidden_state"],
        dynamic_shapes=({0: batch, 1: length},) * 2,
    )


def _write_decoder(model: AiaynForConditionalGeneration, path: Path) -> None:
    config = model.config
    dim = torch.export.Dim
    batch, source = {0: dim("batch_size")}, {1: dim("encoder_sequence_length")}
    halves = {"decoder": 3, "encoder": 2}  # example lengths of their caches
    sides = [(half, side) for half in halves for side in ("key", "value")]
    names = [f"{n}.{half}.{side}" for n in range(config.decoder_layers) for half, side in sides]
    lengths = {half: dim(f"past_{half}_sequence_length") for half in halves}
    heads = config.decoder_attention_heads
    width = config.d_model // heads
    past = [torch.zeros(2, heads, halves[name.split(".")[1]], width) for name in names]
    mask = torch.ones(2, 7, dtype=torch.long)
    _export(
        DecoderGraph(model.model.decoder, model.lm_head),
        (mask, mask[:, :5], torch.zeros(2, 7, config.d_model), past),
        path,
        input_names=[
            *("encoder_attention_mask", "input_ids", "encoder_hidden_states"),
            *(f"past_key_values.{name}" for name in names),
        ],
        output_names=["logits", *(f"present.{name}" for name in names)],
        dynamic_shapes=(
            batch | source,
            batch | {1: dim("decoder_sequence_length")},
            batch | source,
            [batch | {2: lengths[name.split(".")[1]]} for name in names],
        ),
    )


@contextmanager
def _without_messages() -> Iterator[None]:
    """Silence the exporters, which report on every node of a graph; errors are raised anyway."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _export(graph: nn.Module, arguments: tuple[Any, ...], path: Path, **options: Any) -> None:
    with _without_messages():
        program = torch.onnx.export(
            graph.eval(), arguments, dynamo=True, opset_version=OPSET, verbose=False, **options
        )
    if program is not None:  # always true with dynamo
        program.save(str(path))


def write_int8(path: Path, output: Path) -> None:
    """Write a graph with weights in 8 bits, a scale for each output channel."""
    with TemporaryDirectory() as folder, _without_messages():
        with_shapes = Path(folder, path.name)
        quant_pre_process(path, with_shapes, skip_optimization=True, skip_symbolic_shape=True)
        # reduce_range limits weights to 7 bits: without VNNI, two 8-bit products overflow 16 bits.
        options = {"weight_type": QuantType.QInt8, "per_channel": True, "reduce_range": True}
        quantize_dynamic(with_shapes, output, **options)

"""Checkpoints in the formats of other systems, and the computations of those systems.

The systems cannot be installed here, so their formats and formulas are written out as plain
functions. They use neither the tables nor the conversions of the package.
"""

import argparse
import json
import math
from pathlib import Path

import sentencepiece
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional
from transformers import (
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MarianTokenizer,
    NllbTokenizer,
)

from modeling_aiayn.data.embedded_corpus import generate_pairs

VOCAB = 40


def random_state(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, Tensor]:
    """Draw random tensors; gains of norms are near 1."""
    chance = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in shapes.items():
        tensor = torch.randn(shape, generator=chance) * (0.3 if len(shape) > 1 else 0.2)
        is_gain = "norm" in name and name.endswith(("weight", "a_2", "norms.0.weight"))
        state[name] = 1 + tensor if is_gain else tensor
    return state


def linear(state: dict[str, Tensor], name: str, states: Tensor) -> Tensor:
    return functional.linear(states, state[f"{name}.weight"], state.get(f"{name}.bias"))


def attend(query: Tensor, key: Tensor, value: Tensor, heads: int, allowed: Tensor) -> Tensor:
    """Attend over projected states, [B, T, D] and [B, S, D]; allowed is [B, 1, T or 1, S]."""

    def split(states: Tensor) -> Tensor:
        return states.unflatten(-1, (heads, -1)).transpose(1, 2)

    query, key, value = split(query), split(key), split(value)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    weights = scores.masked_fill(~allowed, -1e9).softmax(-1)
    return (weights @ value).transpose(1, 2).flatten(-2)


def attention(
    state: dict[str, Tensor],
    names: list[str],
    query: Tensor,
    memory: Tensor,
    heads: int,
    allowed: Tensor,
) -> Tensor:
    """Attend by the projections of query, key, value and output, in this order of names."""
    inputs = (query, memory, memory)
    projected = [linear(state, *pair) for pair in zip(names[:3], inputs, strict=True)]
    return linear(state, names[3], attend(*projected, heads, allowed))


def masks(source: Tensor, target: Tensor, pad: int) -> tuple[Tensor, Tensor]:
    is_real = (source != pad)[:, None, None, :]
    causal = torch.ones(target.size(1), target.size(1), dtype=torch.bool).tril()
    return is_real, causal[None, None]


# The Annotated Transformer


def affine(name: str, out: int, into: int, bias: bool = True) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, into)} | ({f"{name}.bias": (out,)} if bias else {})


def norm_shapes(name: str, width: int, leaves: tuple[str, str] = ("weight", "bias")) -> dict:
    return {f"{name}.{leaf}": (width,) for leaf in leaves}


def annotated_shapes(depths: tuple[int, int], width: int, inner: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for half, depth, attentions in (
        ("encoder", depths[0], ("self_attn",)),
        ("decoder", depths[1], ("self_attn", "src_attn")),
    ):
        for n in range(depth):
            layer = f"{half}.layers.{n}"
            for attention in attentions:
                for index in range(4):
                    shapes |= affine(f"{layer}.{attention}.linears.{index}", width, width)
            shapes |= affine(f"{layer}.feed_forward.w_1", inner, width)
            shapes |= affine(f"{layer}.feed_forward.w_2", width, inner)
            for number in range(len(attentions) + 1):
                shapes |= norm_shapes(f"{layer}.sublayer.{number}.norm", width, ("a_2", "b_2"))
        shapes |= norm_shapes(f"{half}.norm", width, ("a_2", "b_2"))
    return shapes


def paper_positions(length: int, width: int) -> Tensor:
    """Compute interleaved sinusoids from position 0, in float32, by an exponential."""
    table = torch.zeros(length, width)
    position = torch.arange(0, length).unsqueeze(1)
    step = torch.exp(torch.arange(0, width, 2) * -(math.log(10000.0) / width))
    table[:, 0::2] = torch.sin(position * step)
    table[:, 1::2] = torch.cos(position * step)
    return table


def annotated_state(target_vocab: int = VOCAB + 7) -> dict[str, Tensor]:
    width = 12
    shapes = annotated_shapes((2, 3), width, 20)
    shapes |= affine("src_embed.0.lut", VOCAB, width, bias=False)
    shapes |= affine("tgt_embed.0.lut", target_vocab, width, bias=False)
    shapes |= affine("generator.proj", target_vocab, width)
    state = random_state(shapes)
    table = paper_positions(5000, width)[None]
    return state | {"src_embed.1.pe": table, "tgt_embed.1.pe": table.clone()}


def deviation_norm(state: dict[str, Tensor], name: str, states: Tensor) -> Tensor:
    mean, deviation = states.mean(-1, keepdim=True), states.std(-1, keepdim=True)
    return state[f"{name}.a_2"] * (states - mean) / (deviation + 1e-6) + state[f"{name}.b_2"]


def run_annotated(
    state: dict[str, Tensor], source: Tensor, target: Tensor, heads: int, pad: int
) -> Tensor:
    """Compute logits, [B, T, V]."""
    width = state["encoder.norm.a_2"].numel()
    source_mask, causal = masks(source, target, pad)

    def embed(side: str, ids: Tensor) -> Tensor:
        rows = state[f"{side}.0.lut.weight"][ids] * math.sqrt(width)
        return rows + state[f"{side}.1.pe"][:, : ids.size(1)]

    def attended(name: str, states: Tensor, memory: Tensor | None, mask: Tensor) -> Tensor:
        names = [f"{name}.linears.{index}" for index in range(4)]
        return attention(state, names, states, states if memory is None else memory, heads, mask)

    def run_half(half: str, states: Tensor, mask: Tensor, memory: Tensor | None) -> Tensor:
        for n in range(1 + max(int(n.split(".")[2]) for n in state if f"{half}.layers" in n)):
            layer = f"{half}.layers.{n}"
            norms = iter(f"{layer}.sublayer.{index}.norm" for index in range(3))
            normed = deviation_norm(state, next(norms), states)
            states = states + attended(f"{layer}.self_attn", normed, None, mask)
            if memory is not None:
                normed = deviation_norm(state, next(norms), states)
                states = states + attended(f"{layer}.src_attn", normed, memory, source_mask)
            normed = deviation_norm(state, next(norms), states)
            inner = linear(state, f"{layer}.feed_forward.w_1", normed).relu()
            states = states + linear(state, f"{layer}.feed_forward.w_2", inner)
        return deviation_norm(state, f"{half}.norm", states)

    memory = run_half("encoder", embed("src_embed", source), source_mask, None)
    states = run_half("decoder", embed("tgt_embed", target), causal, memory)
    return linear(state, "generator.proj", states)


# OpenNMT-py


def opennmt_layer(layer: str, half: str, width: int, inner: int, leaves, query_bias: bool) -> dict:
    attentions, norms = ("self_attn",), ("layer_norm",)
    if half == "decoder":
        attentions, norms = ("self_attn", "context_attn"), ("layer_norm_1", "layer_norm_2")
    shapes: dict[str, tuple[int, ...]] = {}
    for attention in attentions:
        for part in ("linear_query", "linear_keys", "linear_values"):
            shapes |= affine(f"{layer}.{attention}.{part}", width, width, query_bias)
        shapes |= affine(f"{layer}.{attention}.final_linear", width, width)
    shapes |= affine(f"{layer}.feed_forward.w_1", inner, width)
    shapes |= affine(f"{layer}.feed_forward.w_2", width, inner)
    for norm in (*norms, "feed_forward.layer_norm"):
        shapes |= norm_shapes(f"{layer}.{norm}", width, leaves)
    return shapes


def opennmt_checkpoint(
    *, old_norms: bool = False, query_bias: bool = True, halves: bool = False
) -> dict:
    """Make a checkpoint of OpenNMT-py 3: model, generator, vocab, opt and optim."""
    depths, width, inner = (2, 1), 12, 20
    leaves = ("a_2", "b_2") if old_norms else ("weight", "bias")
    shapes: dict[str, tuple[int, ...]] = {}
    layers = {"encoder": "encoder.transformer", "decoder": "decoder.transformer_layers"}
    for half, depth in zip(layers, depths, strict=True):
        for n in range(depth):
            shapes |= opennmt_layer(f"{layers[half]}.{n}", half, width, inner, leaves, query_bias)
        shapes |= norm_shapes(f"{half}.layer_norm", width, leaves)
        shapes[f"{half}.embeddings.make_embedding.emb_luts.0.weight"] = (VOCAB, width)
    shapes["decoder.embeddings.make_embedding.emb_luts.0.weight"] = (VOCAB + 5, width)
    model = random_state(shapes)
    table = tensor2tensor_positions(5000, width, 0) if halves else paper_positions(5000, width)
    for half in ("encoder", "decoder"):
        model[f"{half}.embeddings.make_embedding.pe.pe"] = table[:, None].clone()
    generator = random_state({"weight": (VOCAB + 5, width), "bias": (VOCAB + 5,)}, seed=1)
    specials = ["<unk>", "<blank>", "<s>", "</s>"]
    return {
        "model": model,
        "generator": generator,
        "vocab": {
            "src": specials + [f"s{n}" for n in range(VOCAB - 4)],
            "tgt": specials + [f"t{n}" for n in range(VOCAB + 1)],
            "src_feats": {},
            "decoder_start_token": "<s>",
        },
        "opt": argparse.Namespace(
            encoder_type="transformer",
            decoder_type="transformer",
            enc_layers=depths[0],
            dec_layers=depths[1],
            heads=3,
            transformer_ff=inner,
            dropout=[0.2],
            attention_dropout=[0.1],
            position_encoding=True,
            max_relative_positions=0,
            self_attn_type="scaled-dot",
            pos_ffn_activation_fn="relu",
            layer_norm="standard",
            copy_attn=False,
        ),
        "optim": {"training_step": 10},
    }


def tensor2tensor_positions(length: int, width: int, first: int) -> Tensor:
    """Compute sines, then cosines, with D / 2 - 1 steps between the wavelengths."""
    half = width // 2
    step = torch.exp(torch.arange(half).float() * -(math.log(10000) / (half - 1)))
    angles = torch.arange(first, first + length).float()[:, None] * step[None]
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def run_opennmt(checkpoint: dict, source: Tensor, target: Tensor) -> Tensor:
    """Compute logits, [B, T, V]."""
    state, options = checkpoint["model"], checkpoint["opt"]
    width = state["encoder.embeddings.make_embedding.emb_luts.0.weight"].size(1)
    source_mask, causal = masks(source, target, pad=1)

    def norm(name: str, states: Tensor) -> Tensor:
        if f"{name}.a_2" in state:
            return deviation_norm(state, name, states)
        return functional.layer_norm(
            states, (width,), state[f"{name}.weight"], state[f"{name}.bias"], 1e-6
        )

    def embed(half: str, ids: Tensor) -> Tensor:
        name = f"{half}.embeddings.make_embedding"
        rows = state[f"{name}.emb_luts.0.weight"][ids] * math.sqrt(width)
        return rows + state[f"{name}.pe.pe"][: ids.size(1), 0]

    def attended(name: str, states: Tensor, memory: Tensor | None, mask: Tensor) -> Tensor:
        parts = ("linear_query", "linear_keys", "linear_values", "final_linear")
        names = [f"{name}.{part}" for part in parts]
        memory = states if memory is None else memory
        return attention(state, names, states, memory, options.heads, mask)

    def feed(layer: str, states: Tensor) -> Tensor:
        normed = norm(f"{layer}.feed_forward.layer_norm", states)
        inner = linear(state, f"{layer}.feed_forward.w_1", normed).relu()
        return states + linear(state, f"{layer}.feed_forward.w_2", inner)

    states = embed("encoder", source)
    for n in range(options.enc_layers):
        layer = f"encoder.transformer.{n}"
        normed = norm(f"{layer}.layer_norm", states)
        states = feed(layer, states + attended(f"{layer}.self_attn", normed, None, source_mask))
    memory = norm("encoder.layer_norm", states)
    states = embed("decoder", target)
    for n in range(options.dec_layers):
        layer = f"decoder.transformer_layers.{n}"
        normed = norm(f"{layer}.layer_norm_1", states)
        states = states + attended(f"{layer}.self_attn", normed, None, causal)
        normed = norm(f"{layer}.layer_norm_2", states)
        states = states + attended(f"{layer}.context_attn", normed, memory, source_mask)
        states = feed(layer, states)
    states, generator = norm("decoder.layer_norm", states), checkpoint["generator"]
    return functional.linear(states, generator["weight"], generator["bias"])


# fairseq


def fairseq_layer(layer: str, half: str, width: int, inner: int) -> dict:
    attentions = ("self_attn",) if half == "encoder" else ("self_attn", "encoder_attn")
    shapes: dict[str, tuple[int, ...]] = {}
    for attention in attentions:
        for part in ("k_proj", "v_proj", "q_proj", "out_proj"):
            shapes |= affine(f"{layer}.{attention}.{part}", width, width)
        shapes |= norm_shapes(f"{layer}.{attention}_layer_norm", width)
    shapes |= affine(f"{layer}.fc1", inner, width) | affine(f"{layer}.fc2", width, inner)
    return shapes | norm_shapes(f"{layer}.final_layer_norm", width)


def unused_fairseq_weights(layers: int, width: int, inner: int) -> dict:
    """Make the tensors that fairseq 0.12.2 saves for a fused kernel and never uses."""
    shapes = {"in_proj": (3 * width, width), "out_proj": (width, width)}
    shapes |= {"fc1": (inner, width), "fc2": (width, inner)}
    return {
        f"encoder.layers.{n}.{name}_{leaf}": torch.full(shape[:size], torch.nan)
        for n in range(layers)
        for name, shape in shapes.items()
        for leaf, size in (("weight", 2), ("bias", 1))
    }


def fairseq_checkpoint(
    *,
    pre_norm: bool = False,
    learned: bool = False,
    target_vocab: int | None = None,
    share_output: bool = True,
) -> dict:
    """Make a recent fairseq checkpoint: one name a projection, and the options under "cfg"."""
    width, halves = 12, {"encoder": (2, 20, 2), "decoder": (3, 28, 3)}
    options = {"arch": "transformer", "share_all_embeddings": target_vocab is None}
    shapes: dict[str, tuple[int, ...]] = {}
    for half, (depth, inner, heads) in halves.items():
        for n in range(depth):
            shapes |= fairseq_layer(f"{half}.layers.{n}", half, width, inner)
        if pre_norm:
            shapes |= norm_shapes(f"{half}.layer_norm", width)
        if learned:
            shapes[f"{half}.embed_positions.weight"] = (32 + 2, width)
        options |= {
            f"{half}_layers": depth,
            f"{half}_embed_dim": width,
            f"{half}_ffn_embed_dim": inner,
            f"{half}_attention_heads": heads,
            f"{half}_normalize_before": pre_norm,
            f"{half}_learned_pos": learned,
        }
    shapes["encoder.embed_tokens.weight"] = (VOCAB, width)
    shapes["decoder.embed_tokens.weight"] = (target_vocab or VOCAB, width)
    state = random_state(shapes)
    if target_vocab is None:
        state["decoder.embed_tokens.weight"] = state["encoder.embed_tokens.weight"]
    output = state["decoder.embed_tokens.weight"]
    state["decoder.output_projection.weight"] = (
        output if share_output else torch.randn_like(output) * 0.3
    )
    for half in halves:
        state[f"{half}.version"] = torch.tensor([3.0])
        if not learned:
            state[f"{half}.embed_positions._float_tensor"] = torch.zeros(1)
    state |= unused_fairseq_weights(2, width, 20)
    options = argparse.Namespace(**options, dropout=0.3, activation_fn="relu")
    return {"args": None, "cfg": {"model": options, "task": None}, "model": state}


def in_old_style(checkpoint: dict) -> dict:
    """Convert a checkpoint to the format of fairseq's first years."""
    state, old = checkpoint["model"], {}
    for name, tensor in state.items():
        if any(part in name for part in (".k_proj.", ".v_proj.", "version", "output_projection")):
            continue
        if ".q_proj." in name:
            parts = [state[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")]
            old[name.replace("q_proj.", "in_proj_")] = torch.cat(parts)
            continue
        is_encoder = name.startswith("encoder")
        numbers = {
            "self_attn_layer_norm": 0,
            "encoder_attn_layer_norm": 1,
            "final_layer_norm": 1 if is_encoder else 2,
        }
        for norm, number in numbers.items():
            name = name.replace(f".{norm}.", f".layer_norms.{number}.")
        old[name] = tensor
    return {"args": checkpoint["cfg"]["model"], "model": old, "extra_state": {"epoch": 3}}


def fairseq_embed(checkpoint: dict, half: str, ids: Tensor) -> Tensor:
    state = checkpoint["model"]
    rows = state[f"{half}.embed_tokens.weight"]
    is_real = (ids != 1).long()
    positions = is_real.cumsum(1) * is_real + 1
    learned = state.get(f"{half}.embed_positions.weight")
    table = tensor2tensor_positions(64, rows.size(1), 0) if learned is None else learned
    return rows[ids] * math.sqrt(rows.size(1)) + table[positions]


def fairseq_norm(state: dict[str, Tensor], name: str, states: Tensor) -> Tensor:
    weight, bias = state[f"{name}.weight"], state[f"{name}.bias"]
    return functional.layer_norm(states, weight.shape, weight, bias, 1e-5)


def fairseq_block(checkpoint: dict, half: str, states: Tensor, mask: Tensor, memory=None) -> Tensor:
    """Run the layers of one half and its final norm; memory is the source's states and mask."""
    state, options = checkpoint["model"], checkpoint["cfg"]["model"]
    is_pre_norm = options.encoder_normalize_before

    def sublayer(name: str, states: Tensor, function) -> Tensor:
        if is_pre_norm:
            return states + function(fairseq_norm(state, name, states))
        return fairseq_norm(state, name, states + function(states))

    def attended(name: str, states: Tensor, kept: Tensor, allowed: Tensor) -> Tensor:
        names = [f"{name}.{part}_proj" for part in ("q", "k", "v", "out")]
        heads = getattr(options, f"{half}_attention_heads")
        return attention(state, names, states, kept, heads, allowed)

    def run_layer(layer: str, states: Tensor) -> Tensor:
        name = f"{layer}.self_attn"
        states = sublayer(f"{name}_layer_norm", states, lambda x: attended(name, x, x, mask))
        if memory is not None:
            cross = f"{layer}.encoder_attn"
            states = sublayer(f"{cross}_layer_norm", states, lambda x: attended(cross, x, *memory))
        return sublayer(
            f"{layer}.final_layer_norm",
            states,
            lambda x: linear(state, f"{layer}.fc2", linear(state, f"{layer}.fc1", x).relu()),
        )

    for n in range(getattr(options, f"{half}_layers")):
        states = run_layer(f"{half}.layers.{n}", states)
    return fairseq_norm(state, f"{half}.layer_norm", states) if is_pre_norm else states


def run_fairseq(checkpoint: dict, source: Tensor, target: Tensor) -> Tensor:
    """Compute logits, [B, T, V], of a recent checkpoint."""
    source_mask, causal = masks(source, target, pad=1)
    states = fairseq_embed(checkpoint, "encoder", source)
    memory = fairseq_block(checkpoint, "encoder", states, source_mask)
    states = fairseq_embed(checkpoint, "decoder", target)
    states = fairseq_block(checkpoint, "decoder", states, causal, (memory, source_mask))
    return functional.linear(states, checkpoint["model"]["decoder.output_projection.weight"])


# OPUS-MT


def train_pieces(folder: Path, name: str, texts: list[str], size: int) -> list[str]:
    """Train a SentencePiece model, NAME.spm, and return its pieces."""
    options = {"vocab_size": size, "character_coverage": 1.0, "minloglevel": 2}
    with (folder / f"{name}.spm").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=file, **options
        )
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.spm"))
    return [model.id_to_piece(index) for index in range(3, model.get_piece_size())]


def marian_tokenizer(folder: Path, is_separate: bool) -> MarianTokenizer:
    """Make a tokenizer like OPUS-MT's: two models with pieces that the vocabulary lacks."""
    folder.mkdir()
    pairs = generate_pairs("train", 300)
    source = train_pieces(folder, "source", [pair.source for pair in pairs], 110)
    target = train_pieces(folder, "target", [pair.target for pair in pairs], 120)
    source, target = source[:-1], target[:-1]  # the vocabulary lacks a rare piece
    ends = ["</s>", "<unk>"]
    if is_separate:
        # Both vocabularies must have the same id of padding.
        source = [*source, *(f"unused{n}" for n in range(len(target) - len(source)))]
        lists = {"vocab": [*ends, *source, "<pad>"], "target_vocab": [*ends, *target, "<pad>"]}
    else:
        lists = {"vocab": [*ends, *dict.fromkeys([*source, *target]), "<pad>"]}
    for name, tokens in lists.items():
        entries = {token: index for index, token in enumerate(tokens)}
        (folder / f"{name}.json").write_text(json.dumps(entries))
    return MarianTokenizer(
        str(folder / "source.spm"),
        str(folder / "target.spm"),
        str(folder / "vocab.json"),
        target_vocab_file=str(folder / "target_vocab.json") if is_separate else None,
        separate_vocabs=is_separate,
        source_lang="en",
        target_lang="de",
    )


def opus_folder(folder: Path) -> Path:
    """Write a folder like OPUS-MT's, with random weights."""
    tokenizer = marian_tokenizer(folder / "parts", is_separate=False)
    sizes = {"encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 20}
    sizes |= {name.replace("encoder", "decoder"): size for name, size in sizes.items()}
    config = MarianConfig(
        **sizes,
        vocab_size=len(tokenizer),
        d_model=16,
        scale_embedding=True,
        pad_token_id=tokenizer.pad_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
        eos_token_id=0,
    )
    MarianMTModel(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return folder / "model"


# NLLB-200


def nllb_tokenizer(texts, is_legacy):
    """A tokenizer with merges, as NLLB-200's has."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.BpeTrainer(vocab_size=250, special_tokens=specials, show_progress=False)
    trained.train_from_iterator(texts, trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    return NllbTokenizer(model["vocab"], merges, src_lang="eng_Latn", legacy_behaviour=is_legacy)


def nllb_folder(folder: Path) -> Path:
    """Write a folder like NLLB-200's, with random weights."""
    tokenizer = nllb_tokenizer([pair.source for pair in generate_pairs("train", 50)], False)
    sizes = {"encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 20}
    sizes |= {name.replace("encoder", "decoder"): size for name, size in sizes.items()}
    config = M2M100Config(**sizes, vocab_size=len(tokenizer), d_model=16)
    M2M100ForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder

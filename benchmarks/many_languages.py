"""Train a small model of many languages in transformers' own class, import it, and compare.

python benchmarks/many_languages.py --data data/multi30k --kind nllb

The languages are English, German, French, and English in Greek letters, in all twelve directions.
Sources and targets are the files train.en and test_2016_flickr.en, ..., plain or .gz.
"""

import json
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import sentencepiece
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    M2M100Config,
    M2M100ForConditionalGeneration,
    M2M100Tokenizer,
    NllbTokenizer,
)
from transformers.hf_argparser import HfArg

from modeling_aiayn.commands.command_line import parse_arguments, run_command
from modeling_aiayn.data.corpus import files_of
from modeling_aiayn.data.lines import read_lines
from modeling_aiayn.interop.importing import import_model
from modeling_aiayn.interop.m2m100 import read_m2m100
from modeling_aiayn.translation import Translator

GREEK = str.maketrans("abdefghiklmnoprstuvwyz", "αβδεφγηικλμνοπρστυβωυζ")
NAMES = {"en": "eng_Latn", "de": "deu_Latn", "fr": "fra_Latn", "el": "ell_Grek"}
DIRECTIONS = [(source, target) for source in NAMES for target in NAMES if source != target]
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]
SENTENCES, LONGEST, BATCH, RATE = 50, 60, 96, 3e-3


@dataclass
class Arguments:
    """The data and the kind of model."""

    data: str = HfArg(help="Folder of Multi30k.")
    kind: str = HfArg(default="nllb", help="nllb, or small: the target's tag in the source.")
    seconds: float = HfArg(default=300, help="Time to train.")


def read_texts(folder: str, split: str) -> dict[str, list[str]]:
    """The same sentences in four languages, in small letters."""
    texts = {}
    for language in ("en", "de", "fr"):
        path, _ = files_of(f"{folder}/{split}", language, language)
        texts[language] = [line.lower() for line in read_lines(path)]
    return texts | {"el": [text.translate(GREEK) for text in texts["en"]]}


def train_nllb_tokenizer(texts: list[str]) -> NllbTokenizer:
    """Train a tokenizer of NLLB-200's class."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    options = {"vocab_size": 6000, "special_tokens": SPECIALS, "show_progress": False}
    trained.train_from_iterator(texts, trainers.BpeTrainer(**options))
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    return NllbTokenizer(model["vocab"], merges, src_lang="eng_Latn")


def train_m2m100_tokenizer(texts: list[str], folder: Path) -> M2M100Tokenizer:
    """Train a tokenizer of M2M-100's class."""
    with (folder / "pieces.spm").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=file, vocab_size=6000, minloglevel=2
        )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "pieces.spm"))
    names = [*SPECIALS, *(pieces.id_to_piece(n) for n in range(3, len(pieces)))]
    (folder / "vocab.json").write_text(json.dumps({name: n for n, name in enumerate(names)}))
    files = (str(folder / "vocab.json"), str(folder / "pieces.spm"))
    return M2M100Tokenizer(*files, src_lang="en", tgt_lang="de")


def train(
    tokenizer: Any, size: int, tags: dict[str, int], texts: dict[str, list[str]], given: Arguments
) -> M2M100ForConditionalGeneration:
    """Train on sentences of random directions for the given time."""
    ids = {
        language: [tokenizer(text, add_special_tokens=False).input_ids for text in some]
        for language, some in texts.items()
    }
    sizes = {"encoder_layers": 3, "decoder_layers": 3 if given.kind == "nllb" else 1}
    for half in ("encoder", "decoder"):
        sizes |= {f"{half}_attention_heads": 4, f"{half}_ffn_dim": 512, f"{half}_layerdrop": 0}
    config = M2M100Config(**sizes, vocab_size=size, d_model=128, max_position_embeddings=256)
    model = M2M100ForConditionalGeneration(config).train()
    optimizer = torch.optim.AdamW(model.parameters())
    start, step = time.monotonic(), 0
    while (share := (time.monotonic() - start) / given.seconds) < 1:
        step += 1
        optimizer.param_groups[0]["lr"] = RATE * min(1, step / 400) * max(0.02, 1 - share)
        sources, inputs, labels = [], [], []
        for row in random.sample(range(len(texts["en"])), BATCH):
            source, target = random.choice(DIRECTIONS)
            begin = [] if given.kind == "small" else [tags[target]]
            tag = tags[target if given.kind == "small" else source]
            sources.append(torch.tensor([tag, *ids[source][row], 2]))
            labels.append(torch.tensor([*begin, *ids[target][row], 2]))
            inputs.append(torch.tensor([2, *labels[-1][:-1]]))
        padded = pad_sequence(sources, True, 1)
        loss = model(
            input_ids=padded,
            attention_mask=(padded != 1).long(),
            decoder_input_ids=pad_sequence(inputs, True, 1),
            labels=pad_sequence(labels, True, -100),
        ).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    sys.stdout.write(f"{step} steps, last loss {loss.item():.2f}\n")
    return model.eval()


def compare(peer: Path, ours: Path, texts: dict[str, list[str]], names: dict, kind: str) -> None:
    """Translate by the peer, by our class in transformers, and by `Translator` in mixed batches."""
    theirs = M2M100ForConditionalGeneration.from_pretrained(peer).eval()
    mine = AutoModelForSeq2SeqLM.from_pretrained(ours).eval()
    tokenizer = AutoTokenizer.from_pretrained(ours)
    same, expected = 0, {}
    for source, target in DIRECTIONS:
        tokenizer.src_lang = names[target if kind == "small" else source]
        batch = tokenizer(texts[source], return_tensors="pt", padding=True)
        tag = None
        if kind == "nllb":
            tag = tokenizer.convert_tokens_to_ids(names[target])
        for beams in (1, 4):
            options = {"num_beams": beams, "max_length": LONGEST, "forced_bos_token_id": tag}
            rows, other = (model.generate(**batch, **options) for model in (mine, theirs))
            same += sum(a.tolist() == b.tolist() for a, b in zip(rows, other, strict=True))
        first = 1 if tag is None else 2
        for number, row in enumerate(rows):
            if int((row == 2).sum()) > 1:  # at the limit our engine adds an end
                text = tokenizer.decode(row[first:], skip_special_tokens=True)
                expected[source, target, number] = text
    sys.stdout.write(f"same ids: {same} of {2 * SENTENCES * len(DIRECTIONS)}\n")
    jobs = random.sample(sorted(expected), len(expected))
    for dtype in ("float32", "int8"):
        translator, same = Translator.from_pretrained(ours, dtype=dtype), 0
        for source in NAMES:
            some = [job for job in jobs if job[0] == source]
            found = translator(
                [texts[source][number] for _, _, number in some],
                source_lang=names[source],
                target_lang=[names[target] for _, target, _ in some],
                num_beams=4, length_penalty=1.0, length_normalization="power",
                max_length_factor=0.0, max_length_offset=LONGEST,
            )  # fmt: skip
            same += sum(text == expected[job] for text, job in zip(found, some, strict=True))
        sys.stdout.write(f"same in mixed batches, {dtype}: {same} of {len(jobs)}\n")


def main() -> None:
    """Train, import and compare; print the report."""
    (given,) = parse_arguments(__doc__, Arguments)
    torch.manual_seed(0)
    random.seed(0)
    texts = read_texts(given.data, "train")
    every = [text for some in texts.values() for text in some]
    with TemporaryDirectory() as place:
        folder = Path(place)
        tokenizer: Any
        if given.kind == "nllb":
            tokenizer, names = train_nllb_tokenizer(every), NAMES
            size, tags = len(tokenizer), NAMES
        else:
            tokenizer = train_m2m100_tokenizer(every[::5], folder)
            names = {code: code for code in NAMES}
            size, tags = tokenizer.encoder_size + 108, {code: f"__{code}__" for code in NAMES}
        ids = {code: tokenizer.convert_tokens_to_ids(tag) for code, tag in tags.items()}
        model = train(tokenizer, size, ids, texts, given)
        model.save_pretrained(folder / "peer")
        tokenizer.save_pretrained(folder / "peer")
        if given.kind == "small":  # the name of its own class says where the tag stands
            path = folder / "peer" / "tokenizer_config.json"
            settings = json.loads(path.read_text()) | {"tokenizer_class": "SMALL100Tokenizer"}
            path.write_text(json.dumps(settings))
        report = import_model(read_m2m100(folder / "peer"), folder / "ours")
        sys.stdout.write(f"{report}\n")
        held_out = read_texts(given.data, "test_2016_flickr")
        some = {code: lines[:SENTENCES] for code, lines in held_out.items()}
        compare(folder / "peer", folder / "ours", some, names, given.kind)


if __name__ == "__main__":
    run_command(main)

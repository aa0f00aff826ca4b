"""Train a small model of many languages in transformers' own class, import it, and compare.

python benchmarks/many_languages.py --data data/multi30k --kind nllb

The languages are English, German, English in Greek letters and German in Cyrillic letters, in all
twelve directions. Sources and targets are the files train.en and test_2016_flickr.en, ..., plain or
.gz.
"""

import json
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import sub
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ctranslate2
import sentencepiece
import torch
from ctranslate2.converters import TransformersConverter
from peft import LoraConfig, get_peft_model
from starlette.testclient import TestClient
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
from modeling_aiayn.interop.ctranslate2_export import export_ctranslate2
from modeling_aiayn.interop.importing import import_model
from modeling_aiayn.interop.m2m100 import M2M100Options, read_m2m100
from modeling_aiayn.saved.languages import LanguageTags
from modeling_aiayn.serving.batching import ModelThread
from modeling_aiayn.serving.service import Service, every_direction, make_app, served_model
from modeling_aiayn.training.fine_tuning import LORA_MODULES
from modeling_aiayn.translation import Translator

GREEK = str.maketrans("abdefghiklmnoprstuvwyz", "αβδεφγηικλμνοπρστυβωυζ")
CYRILLIC = str.maketrans("abdefghiklmnoprstuvwz", "абдефгхиклмнопрстувшз")
NAMES = {"en": "eng_Latn", "de": "deu_Latn", "el": "ell_Grek", "ru": "rus_Cyrl"}
KINDS = ("nllb", "legacy", "m2m", "small")
DIRECTIONS = [(source, target) for source in NAMES for target in NAMES if source != target]
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]
SENTENCES, LONGEST, BATCH, RATE = 50, 60, 96, 3e-3
# generate()'s length penalty and limit.
SEARCH: dict[str, Any] = {"num_beams": 4, "length_penalty": 1.0, "length_normalization": "power"}
SEARCH |= {"max_length_factor": 0.0, "max_length_offset": LONGEST}


@dataclass
class Arguments:
    """The data and the kind of model."""

    data: str = HfArg(help="Folder of Multi30k.")
    kind: str = HfArg(
        default="nllb",
        help="NLLB-200, with its tag behind the source, M2M-100 or SMaLL-100.",
        metadata={"choices": KINDS},
    )
    seconds: float = HfArg(default=300, help="Time to train.")


def read_texts(folder: str, split: str) -> dict[str, list[str]]:
    """The same sentences in four languages, in small letters."""
    texts = {}
    for language in ("en", "de"):
        path, _ = files_of(f"{folder}/{split}", language, language)
        texts[language] = [line.lower() for line in read_lines(path)]
    texts["el"] = [text.translate(GREEK) for text in texts["en"]]
    return texts | {"ru": [text.translate(CYRILLIC) for text in texts["de"]]}


def train_nllb_tokenizer(texts: list[str], is_legacy: bool) -> NllbTokenizer:
    """Train a tokenizer of NLLB-200's class."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    options = {"vocab_size": 6000, "special_tokens": SPECIALS, "show_progress": False}
    trained.train_from_iterator(texts, trainers.BpeTrainer(**options))
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    options = {"src_lang": "eng_Latn", "legacy_behaviour": is_legacy}
    return NllbTokenizer(model["vocab"], merges, **options)


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
    sizes = {"encoder_layers": 3, "decoder_layers": 1 if given.kind == "small" else 3}
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
            front, behind = ([], [2, tag]) if given.kind == "legacy" else ([tag], [2])
            sources.append(torch.tensor([*front, *ids[source][row], *behind]))
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


def translations_of_peer(
    peer: Path, ours: Path, texts: dict[str, list[str]], names: dict, kind: str
) -> dict[tuple[str, str, int], str]:
    """Compare with our class in transformers; return the peer's translations by 4 beams."""
    theirs = M2M100ForConditionalGeneration.from_pretrained(peer).eval()
    mine = AutoModelForSeq2SeqLM.from_pretrained(ours).eval()
    tokenizer = AutoTokenizer.from_pretrained(ours)
    same, expected = 0, {}
    for source, target in DIRECTIONS:
        tokenizer.src_lang = names[target if kind == "small" else source]
        batch = tokenizer(texts[source], return_tensors="pt", padding=True)
        tag = None if kind == "small" else LanguageTags.of(tokenizer).ids[names[target]]
        for beams in (1, 4):
            options = {"num_beams": beams, "max_length": LONGEST, "forced_bos_token_id": tag}
            rows, other = (model.generate(**batch, **options) for model in (mine, theirs))
            same += sum(a.tolist() == b.tolist() for a, b in zip(rows, other, strict=True))
        first = 1 if tag is None else 2
        for number, row in enumerate(rows):
            if int((row == 2).sum()) > 1:  # at the limit our engine adds an end
                # skip_special_tokens would hide `<unk>`.
                ids = [token for token in row[first:].tolist() if token not in (1, 2)]
                expected[source, target, number] = tokenizer.decode(ids)
    show("transformers alone, same ids", same, 2 * SENTENCES * len(DIRECTIONS))
    return expected


def show(title: str, same: int, total: int) -> None:
    """Print a row of the report."""
    sys.stdout.write(f"{title}: {same} of {total}\n")


def translate_mixed(
    translator: Translator, jobs: list[tuple[str, str, int]], texts: dict, names: dict
) -> list[str]:
    """Translate jobs of a source, a target and a number, in batches of several targets."""
    found: dict[tuple[str, str, int], str] = {}
    for source in NAMES:
        some = [job for job in jobs if job[0] == source]
        translated = translator(
            [texts[source][number] for _, _, number in some],
            source_lang=names[source],
            target_lang=[names[target] for _, target, _ in some],
            **SEARCH,
        )
        found |= dict(zip(some, translated, strict=True))
    return [found[job] for job in jobs]


def ask_server(
    translator: Translator, jobs: list[tuple[str, str, int]], texts: dict, names: dict
) -> list[str]:
    """The answers of the service to one request for each job, twelve at a time."""
    translator.set_languages(*translator.directions[0])
    served = served_model(
        translator, ModelThread(), lambda text, _="": text, 999, "all", batch_size=32, **SEARCH
    )
    app = make_app(Service(every_direction(served, translator.directions), 9000))
    with TestClient(app) as client, ThreadPoolExecutor(len(DIRECTIONS)) as pool:

        def answer(job: tuple[str, str, int]) -> str:
            source, target, number = job
            fields = {"q": texts[source][number], "source": names[source]}
            found = client.post("/translate", json=fields | {"target": names[target]})
            return found.json()["translatedText"]

        return list(pool.map(answer, jobs))


def compare_converters(
    peer: Path, exported: Path, sources: list[list[str]], tag: list[str]
) -> None:
    """Compare our export with CTranslate2's own of the peer, by all beams and their scores."""
    try:
        TransformersConverter(str(peer)).convert(str(peer.parent / "own"))
    except ValueError as error:
        sys.stdout.write(f"CTranslate2's own converter: {error}\n")
        return
    found = [
        ctranslate2.Translator(str(folder)).translate_batch(
            sources, [tag] * len(sources), beam_size=4, num_hypotheses=4, return_scores=True
        )
        for folder in (exported, peer.parent / "own")
    ]
    same = sum(
        a.hypotheses == b.hypotheses and max(map(abs, map(sub, a.scores, b.scores))) < 1e-4
        for a, b in zip(*found, strict=True)
    )
    show("CTranslate2's own converter", same, len(sources))


def compare_adapters(peer: Path, ours: Path, order: torch.Tensor, texts: dict, names: dict) -> None:
    """Train LoRA adapters on both models from the same numbers, and compare the losses."""
    translator = Translator.from_pretrained(ours)
    translator.set_languages(names["en"], names["ru"])
    models = [M2M100ForConditionalGeneration.from_pretrained(peer), translator.model]
    torch.manual_seed(0)
    config = LoraConfig(r=8, target_modules=list(LORA_MODULES), task_type="SEQ_2_SEQ_LM")
    theirs, mine = (get_peft_model(model, config).eval() for model in models)
    copies = dict(mine.named_parameters())
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "lora_A" in name:  # our residual stream has another order
                reads_stream = not ("out_proj" in name or "fc2" in name)
                copies[name].copy_(parameter[:, order] if reads_stream else parameter)
    sources, labels = (
        pad_sequence([torch.tensor(encode(text)) for text in texts[code][:32]], True, 1)
        for code, encode in (("en", translator.encode), ("ru", translator.encode_target))
    )
    inputs = torch.cat((torch.full((32, 1), 2), labels[:, :-1]), 1)
    labels = labels.masked_fill(labels == 1, -100)
    losses: list[list[float]] = []
    for model in (theirs, mine):
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
        losses.append([])
        for _ in range(20):
            batch = {"attention_mask": (sources != 1).long(), "decoder_input_ids": inputs}
            logits = model(input_ids=sources, **batch).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    difference = max(map(abs, map(sub, *losses)))
    first, last = losses[1][0], losses[1][-1]
    sys.stdout.write(f"LoRA, 20 steps: loss {first:.4f} to {last:.4f}, within {difference:.1e}\n")


def trim(peer: Path, folder: Path, held_out: dict, train: dict, names: dict) -> None:
    """Cut the vocabulary to English and German captions; count unknown pieces of others."""
    files = []
    for code in ("en", "de"):
        files.append(str(folder / f"captions.{names[code]}"))
        Path(files[-1]).write_text("\n".join([*train[code][:5000], ""]), "utf-8")
    import_model(read_m2m100(peer, M2M100Options(keep_tokens_of=files)), folder / "small")
    sizes = [
        sum(file.stat().st_size for file in (folder / name).glob("*.safetensors")) / 1e6
        for name in ("ours", "small")
    ]
    translator = Translator.from_pretrained(folder / "small")
    for code in ("en", "de"):
        ids = [translator.source_tokenizer(text).input_ids for text in held_out[code]]
        unknown = sum(row.count(3) for row in ids)
        sys.stdout.write(f"unknown pieces, {code}: {unknown} of {sum(map(len, ids))}\n")
    sys.stdout.write(f"weights: {sizes[0]:.1f} MB, cut {sizes[1]:.1f} MB\n")


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
        if given.kind in ("nllb", "legacy"):
            tokenizer, names = train_nllb_tokenizer(every, given.kind == "legacy"), NAMES
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
        foreign = read_m2m100(folder / "peer")
        sys.stdout.write(f"{import_model(foreign, folder / 'ours')}\n")
        held_out = read_texts(given.data, "test_2016_flickr")
        some = {code: lines[:SENTENCES] for code, lines in held_out.items()}
        peer, ours = folder / "peer", folder / "ours"
        expected = translations_of_peer(peer, ours, some, names, given.kind)
        jobs = random.sample(sorted(expected), len(expected))
        wanted = [expected[job] for job in jobs]
        translator = Translator.from_pretrained(ours)
        export_ctranslate2(translator, folder / "ct2", "float32")
        for title, found in {
            "Translator, mixed batches": translate_mixed(translator, jobs, some, names),
            "the same, int8": translate_mixed(
                Translator.from_pretrained(ours, dtype="int8"), jobs, some, names
            ),
            "the same, CTranslate2": translate_mixed(
                Translator.from_pretrained(folder / "ct2", engine="ctranslate2"), jobs, some, names
            ),
            "HTTP": ask_server(translator, jobs, some, names),
        }.items():
            show(title, sum(map(str.__eq__, found, wanted)), len(wanted))
        directed = translator.directed((names["en"], names["ru"]))
        sources = [tokenizer.convert_ids_to_tokens(directed.encode(x)) for x in some["en"]]
        if given.kind != "small":
            compare_converters(peer, folder / "ct2", sources, [tags["ru"]])
        compare_adapters(peer, ours, foreign.sinusoids.order, texts, names)
        if given.kind in ("nllb", "legacy"):
            trim(peer, folder, held_out, texts, names)


if __name__ == "__main__":
    run_command(main)

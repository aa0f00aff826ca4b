r"""Train a small model with the classes of NLLB-200, for trying docs/new-language.md without it.

python benchmarks/small_nllb.py --pairs data/multi30k --output models/small

Tokenizer, model and trainer are those of transformers. It translates English and German captions in
both directions, and its vocabulary has pieces of these two languages only.
"""

import argparse
import gzip
import json
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import (
    DataCollatorForSeq2Seq,
    M2M100Config,
    M2M100ForConditionalGeneration,
    NllbTokenizer,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

LANGUAGES = {"en": "eng_Latn", "de": "deu_Latn"}


def main() -> None:
    """Read the flags, train, and save a folder like NLLB-200's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=Path, required=True, help="folder of Multi30k")
    parser.add_argument("--output", required=True)
    parser.add_argument("--max_steps", type=int, default=2000)
    flags = parser.parse_args()
    torch.manual_seed(0)
    sides = {code: _lines(flags.pairs / f"train.{code}.gz") for code in LANGUAGES}
    tokenizer = _tokenizer([line for lines in sides.values() for line in lines])
    rows = [
        row for pair in (("en", "de"), ("de", "en")) for row in _encoded(tokenizer, sides, *pair)
    ]
    config = M2M100Config(
        vocab_size=len(tokenizer), d_model=128, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=512,
        decoder_ffn_dim=512, dropout=0.1, attention_dropout=0.0, encoder_layerdrop=0.0,
        decoder_layerdrop=0.0, max_position_embeddings=256,
    )  # fmt: skip
    model = M2M100ForConditionalGeneration(config)
    arguments = Seq2SeqTrainingArguments(
        f"{flags.output}-run", max_steps=flags.max_steps, per_device_train_batch_size=64,
        learning_rate=3e-3, warmup_steps=300, lr_scheduler_type="cosine", report_to=[],
        use_cpu=True, train_sampling_strategy="group_by_length", save_strategy="no",
    )  # fmt: skip
    collate = DataCollatorForSeq2Seq(tokenizer, model=model)
    Seq2SeqTrainer(model, arguments, collate, Dataset.from_list(rows)).train()
    model.save_pretrained(flags.output)
    tokenizer.save_pretrained(flags.output)


def _lines(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def _tokenizer(texts: list[str]) -> NllbTokenizer:
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.NFKC()
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.BpeTrainer(vocab_size=6000, special_tokens=specials, limit_alphabet=75)
    trained.train_from_iterator(texts, trainer)
    model = json.loads(trained.to_str())["model"]
    return NllbTokenizer(
        model["vocab"],
        [tuple(merge) for merge in model["merges"]],
        src_lang="eng_Latn",
        extra_special_tokens=[*LANGUAGES.values()],
    )


def _encoded(
    tokenizer: NllbTokenizer, sides: dict[str, list[str]], source: str, target: str
) -> list[dict[str, list[int]]]:
    tokenizer.src_lang, tokenizer.tgt_lang = LANGUAGES[source], LANGUAGES[target]
    batch = tokenizer(sides[source], text_target=sides[target])
    return [
        {"input_ids": ids, "labels": labels}
        for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True)
    ]


if __name__ == "__main__":
    main()

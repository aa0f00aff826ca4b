"""Tokenizers made from other systems' vocabularies."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import FSMTTokenizer, PreTrainedTokenizerBase

from ..data.lines import read_lines
from ..tokenization import PortableTokenizer

# subword-nmt's mark at the end of a piece if its word continues.
CONTINUED = "@@"
# Special tokens, in the order of their ids.
FAIRSEQ_SPECIALS = {
    "bos_token": "<s>",
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
}
# The special tokens of OpenNMT-py and of the Annotated Transformer.
OPENNMT_SPECIALS = FAIRSEQ_SPECIALS | {"pad_token": "<blank>"}


def tokenizer_of_pieces(
    tokens: Sequence[str], specials: Mapping[str, str], template: str = "$A </s>"
) -> PreTrainedTokenizerBase:
    """Build a tokenizer for texts that are already split into pieces with spaces between them.

    Decoding joins the pieces that subword-nmt has split. `tokens` are in the order of their ids;
    `template` shows the special tokens around a text, $A.
    """
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        twice = next(token for index, token in enumerate(tokens) if vocabulary[token] != index)
        raise ValueError(f"Each token must occur in the vocabulary once, got {twice!r} twice.")
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=specials["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # The WordPiece decoder puts a space before tokens without its prefix; no token has "\0".
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.WordPiece(prefix="\0", cleanup=False),
            decoders.Fuse(),
            decoders.Replace(Regex(f"{CONTINUED}( |$)"), ""),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template,
        pair=f"{template} {template.replace('$A', '$B')}",
        special_tokens=[(token, tokens.index(token)) for token in set(specials.values())],
    )
    return PortableTokenizer(tokenizer_object=tokenizer, split_special_tokens=True, **specials)


def check_vocabulary_size(where: str | Path, tokens: Sequence[str], size: int) -> None:
    """Check that a vocabulary has a token for each of the model's `size` embeddings."""
    if len(tokens) != size:
        raise ValueError(
            f"{where} must have one token for each of the model's {size} embeddings, got "
            f"{len(tokens)} tokens."
        )


def read_fairseq_dictionary(path: str | Path) -> list[str]:
    """Read a fairseq dict.txt: each line has a token and its count, in the order of ids."""
    lines = (line.removesuffix(" #fairseq:overwrite") for line in read_lines(path))
    return [*FAIRSEQ_SPECIALS.values(), *(line.rpartition(" ")[0] for line in lines)]


def moses_tokenizer(
    tokens: Sequence[str], bpe_codes: str | Path, language: str
) -> PreTrainedTokenizerBase:
    """Build transformers' tokenizer for fairseq's models: Moses, then byte-pair encoding.

    It needs the package sacremoses. `tokens` are in the order of their ids.
    """
    codes = list(read_lines(bpe_codes))
    has_version = bool(codes) and codes[0].startswith("#version: 0.2")
    pairs = codes[has_version:]
    # Codes of fastBPE have no version, but a third column with counts.
    if not pairs or len(pairs[0].split()) != 3 - has_version:
        raise ValueError(
            f"{bpe_codes} must hold merges after a line '#version: 0.2'. Older codes of "
            "subword-nmt split words differently and are not supported."
        )
    # subword-nmt marks pieces that do not end a word; transformers marks pieces that do.
    vocabulary = {token: index for index, token in enumerate(FAIRSEQ_SPECIALS.values())}
    for index, token in enumerate(tokens[len(vocabulary) :], len(vocabulary)):
        word = token.removesuffix(CONTINUED)
        vocabulary[word if word != token else f"{token}</w>"] = index
    with tempfile.TemporaryDirectory() as folder:
        entries, merges = Path(folder) / "vocab.json", Path(folder) / "merges.txt"
        entries.write_text(json.dumps(vocabulary, ensure_ascii=False), "utf-8")
        merges.write_text("\n".join([*codes, ""]), "utf-8")
        return FSMTTokenizer(
            langs=[language, language],
            src_vocab_file=str(entries),
            tgt_vocab_file=str(entries),
            merges_file=str(merges),
            eos_token="</s>",
        )

"""Other systems' vocabularies as tokenizers."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import FSMTTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ..corpus import read_lines

# What subword-nmt writes at the end of a piece that the word goes on after.
CONTINUED = "@@"
FAIRSEQ_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]


def tokenizer_of_pieces(
    tokens: Sequence[str], specials: Mapping[str, str], around: str = "$A </s>"
) -> PreTrainedTokenizerBase:
    """A tokenizer of texts that come in pieces between spaces, as other systems read them.

    Args:
        tokens: The vocabulary in the order of its ids.
        specials: The tokens called bos_token, pad_token, eos_token and unk_token.
        around: What stands around a text, $A: special tokens between spaces.

    Returns:
        The tokenizer; decoding joins pieces that subword-nmt has cut.

    Raises:
        ValueError: A token is there twice, or one of the special ones is not.
    """
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        twice = next(token for index, token in enumerate(tokens) if vocabulary[token] != index)
        raise ValueError(f"Each token must be in a vocabulary once, got {twice!r} twice.")
    for name, token in specials.items():
        if token not in vocabulary:
            raise ValueError(f"The vocabulary has no {token!r}, its {name}.")
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=specials["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # WordPiece puts a space before each token that does not continue one by its own mark.
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.WordPiece(prefix="\0", cleanup=False),
            decoders.Fuse(),
            decoders.Replace(f"{CONTINUED} ", ""),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=around,
        pair=f"{around} {around.replace('$A', '$B')}",
        special_tokens=[(token, vocabulary[token]) for token in set(specials.values())],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, split_special_tokens=True, **specials
    )


def read_tokens(path: str | Path, size: int) -> list[str]:
    """The vocabulary of a file that holds a token a line.

    Args:
        path: The file.
        size: Entries that the model has.

    Returns:
        Tokens in the order of their ids.

    Raises:
        OSError: The file cannot be read.
        ValueError: There are not as many tokens as entries.
    """
    tokens = read_lines(path)
    if len(tokens) != size:
        raise ValueError(f"{path} must hold a token for each of {size} entries, got {len(tokens)}.")
    return tokens


def read_fairseq_dictionary(path: str | Path) -> list[str]:
    """The vocabulary of a fairseq dict.txt, which holds a token and how often it was seen a line.

    Args:
        path: The file.

    Returns:
        Tokens in the order of their ids, fairseq's own four first.

    Raises:
        OSError: The file cannot be read.
        ValueError: A line is no token and a number.
    """
    tokens = [*FAIRSEQ_SPECIALS]
    for number, line in enumerate(read_lines(path), start=1):
        token, _, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not token or not count.isdigit():
            raise ValueError(
                f"{path}, line {number}: must be a token and a number, got {line[:80]!r}."
            )
        tokens.append(token)
    return tokens


def moses_tokenizer(
    tokens: Sequence[str], bpe_codes: str | Path, language: str
) -> PreTrainedTokenizerBase:
    """The library's tokenizer for fairseq's models: Moses, then byte-pair encoding.

    Args:
        tokens: The vocabulary in the order of its ids.
        bpe_codes: The file of merges that subword-nmt wrote.
        language: The language of the texts, for Moses.

    Returns:
        The tokenizer; it needs the package sacremoses.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is of the first version of subword-nmt's format.
    """
    codes = list(read_lines(bpe_codes))
    if codes and not codes[0].startswith("#version: 0.2") and len(codes[0].split()) == 2:
        raise ValueError(
            f"{bpe_codes} must begin with '#version: 0.2', got {codes[0][:80]!r}: older codes of "
            "subword-nmt cut words in another way."
        )
    # subword-nmt marks pieces that go on, and the library those that end a word.
    vocabulary = {}
    for index, token in enumerate(tokens):
        if index < len(FAIRSEQ_SPECIALS):
            vocabulary[token] = index
        elif token.endswith(CONTINUED):
            vocabulary[token.removesuffix(CONTINUED)] = index
        else:
            vocabulary[f"{token}</w>"] = index
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

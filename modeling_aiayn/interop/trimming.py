"""Reduce the vocabulary of NLLB-200 to the pieces that given texts use."""

import json
import logging
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.lines import read_lines
from ..saved.languages import LanguageTags
from .library_models import load_if_present
from .parity import LONGEST_SOURCE, TOLERANCE, computing_in

logger = logging.getLogger(__name__)


def trim_vocabulary(
    peer: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, files: Sequence[str]
) -> PreTrainedTokenizerBase:
    """Reduce a peer's embeddings to the pieces of texts, special tokens and language tags.

    Files end in their language: texts.eng_Latn. Returns the tokenizer with the remaining pieces.
    The log says how many translations stay the same.

    Raises:
        ValueError: Endings are not two or more languages of the model, or ids or logits change.
    """
    tags: Any = LanguageTags.of(tokenizer)
    texts: dict[str, list[str]] = {}
    for file in files:
        texts.setdefault(tags.check(Path(file).suffix[1:], "The ending"), []).extend(
            read_lines(file)
        )
    if len(texts) < 2 or not all(texts.values()) or not tokenizer.is_fast:
        raise ValueError("keep_tokens_of needs an NLLB-200 and texts in at least two languages.")
    ids = {language: tags.text_ids(lines) for language, lines in texts.items()}
    used = {token for lines in ids.values() for text in lines for token in text}
    with TemporaryDirectory() as place:
        tokenizer.save_pretrained(place)
        rows = _keep_pieces(Path(place) / "tokenizer.json", used.union(tokenizer.all_special_ids))
        trimmed: Any = load_if_present(type(tokenizer), Path(place), "tokenizer.json")
    kept: Any = LanguageTags.of(trimmed)
    logits, translations = _outputs(peer, tags, texts)
    for weight in {peer.get_input_embeddings().weight, peer.get_output_embeddings().weight}:
        weight.data[: len(rows)] = weight.data[rows]
    decoding, before = peer.generation_config, peer.config.vocab_size
    if decoding.forced_bos_token_id is not None:
        decoding.forced_bos_token_id = rows.index(decoding.forced_bos_token_id)
    peer.resize_token_embeddings(len(rows), mean_resizing=False)
    new_logits, found = _outputs(peer, kept, texts)
    difference = float((logits[:, rows] - new_logits).abs().max() / logits.abs().max())
    new_ids = {language: kept.text_ids(lines) for language, lines in texts.items()}
    is_same = {x: [[rows[i] for i in text] for text in y] for x, y in new_ids.items()} == ids
    if difference > TOLERANCE or not is_same:
        raise ValueError(
            "The cut vocabulary must give the same ids and logits on the texts. The ids are "
            f"{'the same' if is_same else 'different'}; logits differ by {difference:.1e}."
        )
    same = sum([rows[i] for i in text] == y for text, y in zip(found, translations, strict=True))
    message = "%d of %d embeddings are left; %d of %d translations of the texts are the same."
    logger.info(message, len(rows), before, same, len(found))
    return trimmed


@torch.no_grad()
def _outputs(
    peer: Any, tags: LanguageTags, texts: dict[str, list[str]]
) -> tuple[Tensor, list[list[int]]]:
    """Return the last logits, [N, V], and greedy translations of ten texts in each direction."""
    logits, translations = [], []
    with computing_in(torch.float32, peer):
        for source, target in permutations(texts, 2):
            sources = tags.encode(texts[source][:10], source, target)
            targets = tags.encode_target(texts[target][:10], target)
            for ids, labels in zip(map(torch.tensor, sources), targets, strict=False):
                options: Any = {"num_beams": 1, "max_new_tokens": LONGEST_SOURCE}
                output = peer.generate(ids[None], forced_bos_token_id=labels[0], **options)
                translations += output.tolist()
                given = torch.tensor([labels[-1:] + labels[:-1]])  # `</s>` starts the decoder
                logits.append(peer(ids[None], decoder_input_ids=given).logits[0, -1])
    return torch.stack(logits), translations


def _keep_pieces(path: Path, used: set[int]) -> list[int]:
    """Reduce tokenizer.json to the used ids; return the old id of each new id.

    The pieces from which merges build a used piece also stay, so texts are split as before.
    """
    content = json.loads(path.read_text("utf-8"))
    vocabulary, merges = (content["model"][name] for name in ("vocab", "merges"))
    for parts in sorted(merges, key=lambda parts: -len("".join(parts))):
        if vocabulary["".join(parts)] in used:
            used |= {vocabulary[part] for part in parts}
    rows = sorted(used)
    new = {old: index for index, old in enumerate(rows)}
    kept = {piece: new[old] for piece, old in vocabulary.items() if old in new}
    left = [parts for parts in merges if kept.keys() >= {*parts, "".join(parts)}]
    content["model"] |= {"vocab": kept, "merges": left}
    for token in content["added_tokens"]:
        token["id"] = new[token["id"]]
    content["post_processor"] = None  # the tokenizer's class adds the tags
    path.write_text(json.dumps(content), "utf-8")
    return rows

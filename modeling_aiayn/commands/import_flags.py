"""Flags of import-weights."""

from dataclasses import dataclass

from transformers.hf_argparser import HfArg

from ..interop.parity import SOURCES

# The flags that each system takes besides --source, and the flag that each of them needs.
SYSTEM_FLAGS: dict[str, dict[str, str | None]] = {
    "marian": {"hub": None},
    "fsmt": {"hub": None},
    "fairseq": {
        "source_dictionary": None,
        "target_dictionary": "source_dictionary",
        "bpe_codes": "source_dictionary",
        "source_lang": "bpe_codes",
        "target_lang": "bpe_codes",
    },
    "torch": {"config": None, "names": None},
    "annotated": {
        "config": None,
        "source_dictionary": "target_dictionary",
        "target_dictionary": "source_dictionary",
    },
    "opennmt": {},
}


@dataclass
class ImportFlags:
    """The foreign model, the folder to write, and the size of the comparison."""

    system: str = HfArg(
        help="System that wrote the model.", metadata={"choices": sorted(SYSTEM_FLAGS)}
    )
    source: str = HfArg(
        help="marian, fsmt: a folder, or with --hub a repository. Other systems: the file of the "
        "checkpoint or state dict."
    )
    output: str = HfArg(help="Folder to write.")
    hub: bool = HfArg(default=False, help="--source is a repository on the Hub.")
    config: str | None = HfArg(
        default=None,
        help="torch, annotated: fields of AiaynConfig that cannot be inferred from the weights, "
        "as YAML: '{encoder_attention_heads: 8, decoder_attention_heads: 8}'.",
    )
    names: str | None = HfArg(
        default=None,
        help="torch: the module's names for transformer, source_embedding, target_embedding, "
        "output and, if positions are tensors, positions and target_positions, as YAML.",
    )
    source_dictionary: str | None = HfArg(
        default=None, help="fairseq: the source's dict.txt. annotated: file with a word per line."
    )
    target_dictionary: str | None = HfArg(
        default=None, help="The same for the target. Default with fairseq: the source's."
    )
    bpe_codes: str | None = HfArg(
        default=None, help="fairseq: the codes of subword-nmt, to translate raw text."
    )
    source_lang: str | None = HfArg(
        default=None, help="fairseq with --bpe_codes: source language. Default: en."
    )
    target_lang: str | None = HfArg(
        default=None, help="fairseq with --bpe_codes: target language. Default: de."
    )
    sources: int = HfArg(default=SOURCES, help="Number of random sources to compare on.")
    dtype: str | None = HfArg(
        default=None,
        help="Type of the written weights. Default: unchanged.",
        metadata={"choices": ["float32", "bfloat16", "float16"]},
    )
    check: str | None = HfArg(
        default=None,
        help="File of torch.save with input_ids, decoder_input_ids, and the logits that the "
        "original module computed for them. The import checks that it computes the same logits.",
    )
    license: str = HfArg(default="other", help="Licence of the weights, for the model card.")

    def __post_init__(self) -> None:
        if self.system not in SYSTEM_FLAGS:
            raise ValueError(
                f"system must be one of {', '.join(SYSTEM_FLAGS)}, got {self.system!r}."
            )
        for name in {name for flags in SYSTEM_FLAGS.values() for name in flags}:
            if getattr(self, name):
                self._check_use(name)

    def _check_use(self, name: str) -> None:
        if name not in SYSTEM_FLAGS[self.system]:
            raise ValueError(f"--{name} is not for --system {self.system}. Leave it out.")
        needed = SYSTEM_FLAGS[self.system][name]
        if needed is not None and not getattr(self, needed):
            raise ValueError(f"--{name} needs --{needed}. Pass both.")

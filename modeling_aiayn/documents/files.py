"""Split a file of any format with markup into sentences, and write it with translations."""

import io
import logging
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from zipfile import BadZipFile, ZipFile

from torch import Tensor

from ..tokenization import has_words
from ..translation import Translator
from ..translation.options import SearchOptions
from ..translation.pools import POOL_SIZE, read_pools, source_texts
from ..translation.progress import translation_bar
from ..translation.segments.placement import Attention
from ..translation.segments.word_attention import word_attention
from ..translation.translator import Translation
from .document import Document
from .formats import FORMATS

logger = logging.getLogger(__name__)

MAX_UNPACKED, MAX_TEXTS = 200_000_000, 20_000_000  # bytes of all files, and of files with text
DAMAGED = (BadZipFile, zlib.error, lzma.LZMAError, EOFError)
# Macros in a document.
MACROS = re.compile(r"(.*/)?vbaProject\.bin|Basic/.*|Scripts/.*")


@dataclass(frozen=True)
class DocumentFile:
    """The content of a file: a text, or a zip with texts in it. Languages are those of `Document`.

    Raises:
        ValueError: The content is not in the format, has macros, or is too large when unpacked.
    """

    content: bytes
    format_name: str
    language: str
    target: str | None = None

    @cached_property
    def documents(self) -> dict[str, Document]:
        """The texts by the names of their files in a zip; a single text has the name ""."""
        options = (self.format_name, self.language, self.target)
        members = FORMATS[self.format_name].members
        if members is None:
            return {"": Document(_decoded(self.content, "The file"), *options)}
        return {
            name: Document(_decoded(content, name), *options)
            for name, content in self._unpacked(members).items()
            if _is_member(members, name)
        }

    def _unpacked(self, members: str) -> dict[str, bytes]:
        try:
            with ZipFile(io.BytesIO(self.content)) as archive:
                for pattern, most in ((".*", MAX_UNPACKED), (members, MAX_TEXTS)):
                    those = [x for x in archive.infolist() if _is_member(pattern, x.filename)]
                    if sum(info.file_size for info in those) > most:
                        raise ValueError(f"The file must have at most {most:,} bytes unpacked.")
                if any(MACROS.fullmatch(name) for name in archive.namelist()):
                    raise ValueError("The document has macros. Save it without them.")
                return {name: archive.read(name) for name in archive.namelist()}
        # RuntimeError: it is encrypted; NotImplementedError: unsupported compression.
        except (*DAMAGED, RuntimeError, NotImplementedError) as error:
            raise ValueError(f"The file is not a valid .{self.format_name}: {error}.") from error

    @cached_property
    def sentences(self) -> list[str]:
        """The sentences to translate."""
        return [*chain.from_iterable(x.sentences for x in self.documents.values())]

    def check_words(self) -> None:
        """Check that there is something to translate."""
        if not any(map(has_words, self.sentences)):
            raise ValueError("The file has no untranslated text. Check its content and format.")

    def translate(
        self,
        translator: Translator,
        options: SearchOptions | None = None,
        prepare: Callable[[str], str] = str,
        translate_pools: Callable[..., Iterator[list[Translation]]] | None = None,
        **batch_sizes: int,
    ) -> bytes:
        """Translate the file, with a progress bar. Arguments are those of `translate_file`.

        prepare is applied to each sentence before it is translated.

        Raises:
            ValueError: No sentence has a word.
        """
        self.check_words()
        pools = read_pools(source_texts(map(prepare, self.sentences)), POOL_SIZE)
        translate_pools = translate_pools or translator.translate_pools
        with translation_bar(len(self.sentences)) as report:
            options = options or translator.search_options()
            found = [*translate_pools(pools, options, report=report, **batch_sizes)]
        logger.info("Translated %d segments.", len(found))

        def attention(sentence: str, translation: str) -> Tensor:
            return word_attention(translator, prepare(sentence), translation)

        return self.translated([best.text for best, *_ in found], attention)

    def translated(self, translations: Sequence[str], attention: Attention) -> bytes:
        """Return the file with the translations of its sentences; attention places marks."""
        remaining = iter(translations)
        texts = {
            name: document.translated([*islice(remaining, len(document.sentences))], attention)
            for name, document in self.documents.items()
        }
        if "" in texts:
            return texts[""].encode()
        written = io.BytesIO()
        with ZipFile(io.BytesIO(self.content)) as archive, ZipFile(written, "w") as new:
            for info in archive.infolist():
                text = texts.get(info.filename)
                content = archive.read(info) if text is None else text.encode()
                new.writestr(info, content, info.compress_type)
        return written.getvalue()


def _is_member(pattern: str, name: str) -> bool:
    return re.fullmatch(pattern, name, re.IGNORECASE | re.DOTALL) is not None


def _decoded(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig").replace("\0", "\ufffd")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not UTF-8 ({error.reason}). Convert it to UTF-8.") from error

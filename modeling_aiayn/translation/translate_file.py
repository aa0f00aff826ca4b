"""Translate a file line by line; a stopped translation can be resumed."""

import gzip
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from ..data.lines import content_sha256, stream_lines
from ..data.parsing import read_json_object
from ..saved.whole_files import new_file, write_file
from ..tokenization import vocabulary_sha256
from .options import SearchOptions
from .pools import POOL_SIZE, read_pools, source_texts
from .progress import translation_bar
from .translator import Translation, Translator

logger = logging.getLogger(__name__)

# Suffixes of the names of an incomplete output and of the note about it.
PARTIAL, NOTE = ".partial", ".json"

# Returns the lines of a text, given its number and its translations, best first.
FormatLines = Callable[[int, list[Translation]], Iterable[str]]


def translate_file(
    translator: Translator,
    source: str | Path | Iterable[str],
    output: str | Path | None,
    options: SearchOptions | None = None,
    *,
    resume: bool = False,
    prefixes: str | Path | None = None,
    translate_pools: Callable[..., Iterator[list[Translation]]] | None = None,
    format_lines: FormatLines = lambda _, translations: [translations[0].text],
    inputs: Iterable[str | Path | None] = (),
    settings: Mapping[str, Any] | None = None,
    is_resumable: bool = True,
    show_progress: bool = True,
    pool_size: int = POOL_SIZE,
    **batch_sizes: int,
) -> None:
    """Translate a file of sentences, one on each line, into a file with as many lines.

    An incomplete output is named OUTPUT.partial, and keeps its lines if the run is killed or fails.
    OUTPUT.partial.json beside it has hashes of the weights and of the files that are read, the
    options, and the settings. A run resumes only if all of these are the same.

    Args:
        translator: The translator.
        source: A file of sentences, plain or .gz, or the sentences.
        output: File to write, plain or .gz. None: stdout.
        options: How to search. None: the defaults of `Translator.search_options`.
        resume: Whether to keep the lines of OUTPUT.partial, if there are any, and to translate the
            rest. Not for .gz.
        prefixes: File with a line for each sentence: the words its translation starts with.
        translate_pools: Translates pools of texts instead of the translator.
        format_lines: Returns the lines of a text. Default: its best translation.
        inputs: More files on whose content the lines depend.
        settings: More values that JSON can hold and on which the lines depend, by name.
        is_resumable: Whether each text has one line, so that the number of lines shows the rest.
        show_progress: Whether to show a bar on stderr.
        pool_size: As for `Translator.stream`.
        **batch_sizes: As for `Translator.stream`: batch_size and max_tokens_per_batch.

    Raises:
        OSError: A file cannot be read or written, or another process writes this output.
        ValueError: The lines of OUTPUT.partial would be lost, or cannot be resumed. The engine does
            not support the options. There are fewer prefixes than texts. A file changed
            while it was read.
    """
    options = options or translator.search_options()
    translator.engine.check_options(options)
    files = [x for x in (source, prefixes, *inputs) if isinstance(x, (str, Path))]
    hashes, note = _hashes(files), None
    if is_resumable and output is not None and not str(output).endswith(".gz"):
        tokenizers = (translator.source_tokenizer, translator.target_tokenizer)
        note = asdict(options) | dict(settings or {}) | hashes
        note["the languages"] = translator.direction()
        note["the model"] = translator.engine.fingerprint
        note["the vocabularies"] = [vocabulary_sha256(tokenizer) for tokenizer in tokenizers]
    with (
        open_output(output, note, resume) as (file, first),
        translation_bar(is_shown=show_progress) as report,
    ):
        begun = None if prefixes is None else _rest(prefixes, first)
        pools = read_pools(source_texts(_rest(source, first), begun, first), pool_size)
        translate_pools = translate_pools or translator.translate_pools
        results = translate_pools(pools, options, report=report, **batch_sizes)
        number = first
        for number, translations in enumerate(results, start=first + 1):
            for line in format_lines(number - 1, translations):
                file.write(f"{line}\n".encode())
            if not isinstance(file, gzip.GzipFile):  # flushing would make compression useless
                file.flush()
        if not number:
            logger.warning("There is nothing to translate.")
        if changed := hashes.items() - _hashes(files).items():
            if output is not None:  # its lines may come from both versions of the file
                Path(f"{_partial(output)}{NOTE}").unlink(missing_ok=True)
            raise ValueError(f"{min(changed)[0]} changed while it was translated. Start again.")


def translation_lines(
    translations: Iterable[Translation],
    number: int | None = None,
    with_scores: bool = False,
    alignment: Callable[[Translation], str] | None = None,
) -> list[str]:
    """Format translations as lines without line ends; columns are separated by tabs.

    The columns are number, unless it is None, the text, the score, and what alignment returns.
    """
    lines = []
    for translation in translations:
        columns = [translation.text]
        if number is not None:
            columns.insert(0, str(number))
        if with_scores:
            columns.append(f"{translation.score:.4f}")
        if alignment is not None:
            columns.append(alignment(translation))
        if len(columns) > 1:
            columns = [column.replace("\t", " ") for column in columns]
        lines.append("\t".join(columns))
    return lines


def _hashes(files: Iterable[str | Path]) -> dict[str, str]:
    paths = filter(Path.is_file, map(Path, files))
    return {f"the content of {path}": content_sha256([path])[:16] for path in paths}


def _rest(source: str | Path | Iterable[str], count: int) -> Iterator[str]:
    """Return the lines of a file, or the texts, without the first `count`."""
    lines = stream_lines(source) if isinstance(source, (str, Path)) else iter(source)
    if sum(1 for _ in islice(lines, count)) < count:
        raise ValueError(f"The unfinished output has {count} lines, more than there are texts.")
    return lines


def _partial(output: str | Path) -> Path:
    return Path(f"{Path(output).resolve()}{PARTIAL}")


@contextmanager
def open_output(
    path: str | Path | None, note: Mapping[str, Any] | None, resume: bool
) -> Iterator[tuple[BinaryIO, int]]:
    """Open an output that gets its final name once complete; yield it and its number of lines.

    note records everything that its lines depend on; None: it cannot be resumed.
    """
    is_file = path is not None and (Path(path).is_file() or not Path(path).exists())
    if resume and (note is None or not is_file):
        raise ValueError("Only an output that is a file, and not a .gz, can be resumed.")
    if path is None:
        yield sys.stdout.buffer, 0
    elif not is_file:  # a device or a pipe
        with open(path, "wb") as file:
            yield file, 0
    else:
        partial = _partial(path)
        opened: Any = gzip.open if str(path).endswith(".gz") else open
        with _locked(partial), _kept_note(partial, note, resume):
            lines = _keep_whole_lines(partial)
            try:
                with new_file(path, kept=PARTIAL), opened(partial, "ab") as file:
                    yield file, lines
            except BaseException:
                if partial.is_file() and partial.stat().st_size:
                    logger.warning("The lines written so far are in %s.", partial)
                raise


@contextmanager
def _kept_note(partial: Path, note: Mapping[str, Any] | None, resume: bool) -> Iterator[None]:
    """Check and write the note of an unfinished output; delete it if the block succeeds."""
    path = Path(f"{partial}{NOTE}")
    if note is None:
        partial.write_bytes(b"")
        path.unlink(missing_ok=True)
        yield
        return
    if partial.stat().st_size:
        difference = _difference(path, note)
        if resume and difference:
            raise ValueError(
                f"{partial} {difference}. Repeat the command as before, or delete that file to "
                "translate everything again."
            )
        if not resume and not difference:
            raise ValueError(
                f"{partial} holds the lines of a stopped run of this command. Add --resume auto to "
                "keep them, or delete that file to translate everything again."
            )
    if not resume:  # lines of an older run must not get this note
        partial.write_bytes(b"")
    if path.is_symlink():  # writing would follow the link
        path.unlink()
    write_file(path, json.dumps(note))
    yield
    path.unlink(missing_ok=True)


def _difference(path: Path, note: Mapping[str, Any]) -> str | None:
    if not path.is_file():
        return f"has no {path.name} beside it, which says on what its lines depend"
    earlier = read_json_object(path)
    for name in sorted({*earlier, *note}):
        found, expected = json.dumps(earlier.get(name)), json.dumps(note.get(name))
        if found != expected:
            return f"was written with {name}={found}, got {expected}"
    return None


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Create and lock a file, so that only one process writes it; Windows has no such lock.

    A symbolic link at its path, perhaps made by another user, is not followed.
    """
    with open(path, "ab", opener=_open_no_link) as file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OSError(
                f"{path} is being written by another process. Wait until it has ended, or give "
                "another output."
            ) from error
        except OSError as error:  # some network file systems have no locks
            reason = error.strerror
            logger.warning("%s cannot be locked (%s). Start only one job for it.", path, reason)
        yield


def _keep_whole_lines(path: Path) -> int:
    lines, end = 0, 0
    with path.open("rb+") as file:
        for line in file:
            if line.endswith(b"\n"):
                lines, end = lines + 1, end + len(line)
        file.truncate(end)
    return lines

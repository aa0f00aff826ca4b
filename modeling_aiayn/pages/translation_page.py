"""A page to try a translator: the best translations of a text, and the attention."""

import html
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import gradio

from ..documents.files import DocumentFile
from ..documents.formats import ENDINGS, format_of
from ..inspection.attention_weights import attention_maps
from ..saved.languages import iso_639
from ..serving.batching import ModelThread
from ..translation import Translator
from ..translation.options import SearchOptions
from ..translation.pools import SourceText
from ..translation.segments.whole_texts import SplitText
from ..translation.translator import Translation
from .parts import ONE_AT_A_TIME, PAGE_OPTIONS, WIDTH, add_examples, attention_frame, check_length

# A translator of one direction, and the best translations of each sentence of a text.
Sentences = tuple[Translator, list[list[Translation]]]
SHOWN, MAX_BEAMS = 5, 10  # maximum number of translations of a sentence, and of beams
STEP = 64  # sentences of a file between two updates of the progress bar


@dataclass(frozen=True)
class TranslationPage:
    """A page for one translator, which computes in thread.

    Texts are split into sentences by the rules of the language source_lang. prepare_sentence
    converts a sentence, by its language, for the model. examples are texts to choose from.
    """

    translator: Translator
    thread: ModelThread
    title: str
    source_lang: str
    max_characters: int
    examples: list[str]
    prepare_sentence: Callable[..., str] = lambda sentence, _: sentence

    def translate(
        self, text: str, num_beams: int, length_penalty: float, terms: str | None, *languages: Any
    ) -> Iterator[tuple[str, Sentences, Any]]:
        """Translate sentence by sentence.

        Yields the text so far, the best translations of its sentences with the translator of their
        direction, and the list from which a visitor chooses one.
        """
        check_length(text, self.max_characters)
        source_lang = iso_639((languages or [self.source_lang])[0])
        split = SplitText.of(text, source_lang)
        translator = self.directed(terms, languages)
        for sentence in split.sentences:
            if translator.is_too_long(self.prepare_sentence(sentence, source_lang)):
                beginning = html.escape(repr(sentence[:60]))  # gradio renders HTML
                raise gradio.Error(f"A sentence is too long: {beginning}... Split it.")
        beams = int(num_beams)
        options = translator.search_options(
            num_beams=beams, nbest=min(beams, SHOWN), length_penalty=length_penalty
        )
        sentences: list[list[Translation]] = []
        for sentence in split.sentences:
            pool = [SourceText(0, self.prepare_sentence(sentence, source_lang))]
            sentences += self.thread(translator.translate_pool, pool, options)
            done = SplitText(split.sentences[: len(sentences)], split.blanks[: len(sentences) + 1])
            choices = [(best.source, index) for index, (best, *_) in enumerate(sentences)]
            yield (
                done.joined([best.text for best, *_ in sentences]),
                (translator, sentences),
                gradio.Dropdown(choices=choices, value=0, visible=len(split.sentences) > 1),
            )

    def directed(self, terms: str | None, languages: tuple[Any, ...]) -> Translator:
        """Return the translator of a direction, with a glossary of "term = translation" lines."""
        translator = self.translator.directed(languages or None)
        pairs = (line.partition("=") for line in (terms or "").splitlines() if "=" in line)
        glossary = {term.strip(): translation.strip() for term, _, translation in pairs}
        try:
            translator.direction()
            if glossary:
                translator.use_glossary(glossary)
        except (ValueError, ModuleNotFoundError) as error:
            raise gradio.Error(html.escape(str(error)), print_exception=False) from error
        return translator

    def translate_file(
        self,
        path: str | None,
        num_beams: int,
        length_penalty: float,
        terms: str | None,
        *languages: Any,
        progress: gradio.Progress = gradio.Progress(),  # noqa: B008
    ) -> str:
        """Translate a visitor's file; return the path of a new one."""
        translator = self.directed(terms, languages)
        text_format = format_of(path or "")
        if path is None or text_format is None:
            message = f"Choose a file that ends in {' or '.join(ENDINGS)}."
            raise gradio.Error(message, print_exception=False)
        source_lang = iso_639((languages or [self.source_lang])[0])
        content = Path(path).read_bytes()
        file = DocumentFile(content, text_format.name, source_lang, translator.codes[1])
        options = translator.search_options(num_beams=int(num_beams), length_penalty=length_penalty)

        def in_steps(
            pools: Iterable[list[SourceText]], options: SearchOptions, **_: Any
        ) -> Iterator[list[Translation]]:
            texts, done = [*chain.from_iterable(pools)], 0
            while done < len(texts):
                yield from translator.translate_pool(texts[done : done + STEP], options)
                done = min(done + STEP, len(texts))
                progress((done, len(texts)), unit="sentences")

        def prepare(sentence: str) -> str:
            return self.prepare_sentence(sentence, source_lang)

        try:
            written = self.thread(file.translate, translator, options, prepare, in_steps)
        except (ValueError, OSError, ModuleNotFoundError) as error:
            raise gradio.Error(html.escape(str(error)), print_exception=False) from error
        name = f"{Path(path).stem}-translated{text_format.endings[0]}"
        output = Path(tempfile.mkdtemp(dir=Path(path).parent), name)
        output.write_bytes(written)
        return str(output)

    def details(self, sentences: Sentences, chosen: int) -> tuple[list[list[str]], str]:
        """Return the best translations of a sentence with scores, and the attention of the best."""
        translator, translations = sentences[0], sentences[1][chosen]
        best = translations[0]
        maps = self.thread(
            attention_maps, translator, best.read or best.source, best.token_ids or None
        )
        table = [[f"{found.score:.3f}", found.text] for found in translations]
        return table, attention_frame(maps)

    def build(self) -> gradio.Blocks:
        """Build the page."""
        rules = self.translator.search_options()
        with gradio.Blocks(title=self.title, **PAGE_OPTIONS) as page:
            sentences = gradio.State([])
            gradio.Markdown(f"# {self.title}")
            menus = self._menus() if self.translator.languages else []
            with gradio.Row():
                size: dict[str, Any] = {"lines": 5, "min_width": WIDTH}
                text = gradio.Textbox(
                    label="Text", max_length=self.max_characters, elem_id="text", **size
                )
                output = gradio.Textbox(label="Translation", elem_id="output", **size)
            with gradio.Row():
                beams = gradio.Slider(
                    1, MAX_BEAMS, rules.num_beams, step=1, label="Beam size", min_width=WIDTH
                )
                penalty = gradio.Slider(
                    0, 2, rules.length_penalty, label="Length penalty", min_width=WIDTH
                )
            button = gradio.Button("Translate", variant="primary")
            with gradio.Accordion("Files and glossary", open=False):
                terms = gradio.Textbox(
                    label="Glossary", lines=3, placeholder="term = translation", elem_id="terms"
                )
                with gradio.Row():
                    file = gradio.File(label="File", file_types=ENDINGS, height=120)
                    translated_file = gradio.File(label="Translated file", height=120)
                file_button = gradio.Button("Translate the file")
            add_examples(self.examples, text)
            chosen = gradio.Dropdown(label="Sentence", type="value", visible=False)
            table = gradio.Dataframe(
                headers=["score", "best translations"],
                column_widths=["25%", "75%"],
                wrap=True,
                interactive=False,
                elem_id="best",
            )
            frame = gradio.HTML(elem_id="attention")
            rest = [beams, penalty, terms, *menus]
            file_button.click(self.translate_file, [file, *rest], translated_file, **ONE_AT_A_TIME)
            inputs, outputs = [text, *rest], [output, sentences, chosen]
            events = [button.click, text.submit]
            translated = gradio.on(events, self.translate, inputs, outputs, **ONE_AT_A_TIME)
            for event in (translated.success, chosen.input):
                event(self.details, [sentences, chosen], [table, frame], **ONE_AT_A_TIME)
        return page

    def _menus(self) -> list[gradio.Dropdown]:
        """Make menus of the languages to translate from and to."""
        directions = self.translator.directions
        start = directions[0]
        with suppress(ValueError):  # no default languages
            start = self.translator.direction() or start
        with gradio.Row():
            return [
                gradio.Dropdown([*dict.fromkeys(some)], value=value, label=label, min_width=WIDTH)
                for label, value, some in zip(
                    ("From", "To"), start, zip(*directions, strict=True), strict=True
                )
            ]

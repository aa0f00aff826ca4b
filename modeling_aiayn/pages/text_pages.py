"""Pages to try a classifier and a language model."""

import html
from dataclasses import dataclass
from typing import Any

import gradio
from transformers import PreTrainedModel, PreTrainedTokenizerBase, pipeline

from ..inspection.attention_weights import text_attention_maps
from ..language_model.completion import complete
from ..serving.batching import ModelThread
from ..tokenization import clean_text
from .parts import ONE_AT_A_TIME, PAGE_OPTIONS, WIDTH, add_examples, attention_frame, check_length

# Maximum number of tokens that a visitor may request from a language model.
MAX_NEW_TOKENS = 500
# A page with the attention of more tokens takes hundreds of megabytes.
SHOWN_TOKENS = 256


@dataclass(frozen=True)
class TextPage:
    """A page for a model of single texts, which computes in its own thread."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    thread: ModelThread
    title: str
    max_characters: int
    examples: list[str]

    def attention(self, text: str) -> str:
        """Return the attention inside a text, as an element of the page."""
        shown = min(SHOWN_TOKENS, self.model.config.max_position_embeddings)
        maps = self.thread(text_attention_maps, self.model, self.tokenizer, text, shown)
        return attention_frame(maps)


class ClassificationPage(TextPage):
    """A page for a classifier."""

    def classify(self, text: str) -> tuple[dict[str, float], str]:
        """Return the probability of each class, and the attention."""
        check_length(text, self.max_characters)
        return self.thread(self._probabilities, text), self.attention(text)

    def _probabilities(self, text: str) -> dict[str, float]:
        classifier = pipeline(
            "text-classification", self.model, tokenizer=self.tokenizer, device=self.model.device
        )
        length = self.model.config.max_position_embeddings
        (predictions,) = classifier(
            [clean_text(text)], top_k=None, truncation=True, max_length=length
        )
        return {found["label"]: found["score"] for found in predictions}

    def build(self) -> gradio.Blocks:
        """The page."""
        with gradio.Blocks(title=self.title, **PAGE_OPTIONS) as page:
            gradio.Markdown(f"# {self.title}")
            text = gradio.Textbox(
                label="Text", lines=5, max_length=self.max_characters, elem_id="text"
            )
            button = gradio.Button("Classify", variant="primary")
            add_examples(self.examples, text)
            classes = gradio.Label(label="Class", elem_id="output")
            frame = gradio.HTML(elem_id="attention")
            events = [button.click, text.submit]
            gradio.on(events, self.classify, text, [classes, frame], **ONE_AT_A_TIME)
        return page


class CompletionPage(TextPage):
    """A page for a language model."""

    def complete(self, text: str, new_tokens: int, temperature: float) -> tuple[str, str]:
        """Continue a text; return it and the attention inside it."""
        check_length(text, self.max_characters)
        options: dict[str, Any] = {"do_sample": temperature > 0, "top_k": 0}  # 0: all tokens
        if temperature > 0:
            options["temperature"] = temperature
        try:
            (completion,) = self.thread(
                complete, self.model, self.tokenizer, text, int(new_tokens), 1, **options
            )
        except ValueError as error:
            raise gradio.Error(html.escape(str(error))) from error
        return completion, self.attention(completion)

    def build(self) -> gradio.Blocks:
        """The page."""
        with gradio.Blocks(title=self.title, **PAGE_OPTIONS) as page:
            gradio.Markdown(f"# {self.title}")
            text = gradio.Textbox(
                label="Beginning", lines=3, max_length=self.max_characters, elem_id="text"
            )
            with gradio.Row():
                tokens = gradio.Slider(
                    1, MAX_NEW_TOKENS, 100, step=1, label="New tokens", min_width=WIDTH
                )
                temperature = gradio.Slider(0, 2, 0.8, label="Temperature", min_width=WIDTH)
            button = gradio.Button("Continue", variant="primary")
            add_examples(self.examples, text)
            output = gradio.Textbox(label="Text", lines=8, elem_id="output")
            frame = gradio.HTML(elem_id="attention")
            events, inputs = [button.click, text.submit], [text, tokens, temperature]
            gradio.on(events, self.complete, inputs, [output, frame], **ONE_AT_A_TIME)
        return page

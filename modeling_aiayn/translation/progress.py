"""The progress bar of a translation."""

from typing import Any, Self

from tqdm import tqdm


class TranslationBar:
    """A bar on stderr with the rates of sentences and of target tokens; total None: unknown."""

    def __init__(self, total: int | None = None, is_shown: bool = True) -> None:
        self.sentences = 0
        self.tokens = 0
        # A shown bar passes no value for `disable`, so that TQDM_DISABLE can hide it.
        hidden: dict[str, Any] = {} if is_shown else {"disable": True}
        self.bar: tqdm[Any] = tqdm(total=total, unit="sentence", **hidden)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.close()

    def report(self, sentences: int, tokens: int) -> None:
        """Add translated sentences and their target tokens."""
        self.sentences += sentences
        self.tokens += tokens
        elapsed = self.bar.format_dict["elapsed"] or 1e-9
        self.bar.set_postfix_str(f"{self.tokens / elapsed:,.0f} tokens/s", refresh=False)
        self.bar.update(sentences)

"""The progress bar of a translation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm


@contextmanager
def translation_bar(
    total: int | None = None, is_shown: bool = True
) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on stderr; yield a function that adds translated sentences and target tokens."""
    # Pass `disable` only to hide the bar, so that TQDM_DISABLE can hide a shown bar.
    hidden: dict[str, Any] = {} if is_shown else {"disable": True}
    all_tokens = 0
    with tqdm(total=total, unit="sentence", **hidden) as bar:

        def report(sentences: int, tokens: int) -> None:
            nonlocal all_tokens
            all_tokens += tokens
            elapsed = bar.format_dict["elapsed"] or 1e-9
            bar.set_postfix_str(f"{all_tokens / elapsed:,.0f} tokens/s", refresh=False)
            bar.update(sentences)

        yield report

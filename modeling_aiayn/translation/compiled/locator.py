"""Where Numba keeps machine code."""

from numba.core.caching import UserProvidedCacheLocator


class Locator(UserProvidedCacheLocator):
    """The folder itself, whose name stands for the sources, wherever they are installed."""

    def ensure_cache_path(self) -> None:
        """Do nothing: the folder exists, and a read-only one, as of an image, can be read."""

    @classmethod
    def get_suitable_cache_subpath(cls, _: str) -> str:
        """Return no part for the place of the sources."""
        return ""

    def get_source_stamp(self) -> str:
        """Return the same for all sources in the folder."""
        return ""

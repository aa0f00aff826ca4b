"""Where Numba keeps machine code."""

from numba.core.caching import UserProvidedCacheLocator


class Locator(UserProvidedCacheLocator):
    """Stores machine code in `machine_code_folder`, whose name has the hash of the sources."""

    def ensure_cache_path(self) -> None:
        """Do nothing: the folder exists, and may be read-only, as in a container image."""

    @classmethod
    def get_suitable_cache_subpath(cls, _: str) -> str:
        """Return no subfolder, so that the path of the sources does not matter."""
        return ""

    def get_source_stamp(self) -> str:
        """Return the same stamp for all sources: the folder's name has their hash."""
        return ""

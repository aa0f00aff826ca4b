"""Translate documents and keep their markup."""

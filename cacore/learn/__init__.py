"""Nouns that commands and estimators share: options declared once, their groups, the record of a method."""

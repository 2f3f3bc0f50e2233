"""Declarations that commands and estimators share: options, their groups, and the record of a method."""

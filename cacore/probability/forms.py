"""Forms of calibrated probabilities, as options name them."""

from __future__ import annotations

import numpy as np

from cacore.errors import InputError

FORMS = ("sigmoid", "isotonic")


def check_form(value: object, name: str) -> str | None:
    """The form that an option asks for, or None for no probabilities; an InputError names the option."""
    if value is None or (isinstance(value, bool | np.bool_) and not value):
        return None
    if isinstance(value, bool | np.bool_):
        return FORMS[0]
    if isinstance(value, str) and value in FORMS:
        return value
    shown = value if isinstance(value, str) and name.startswith("-") else repr(value)
    words = "" if name.startswith("-") else "True, False, "
    raise InputError(f"{name} {shown}: it must be one of {words}{', '.join(FORMS)}")

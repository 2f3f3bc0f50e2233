"""The table of options and parameters, which :doc:`names` shows: made from the declarations, when the pages are."""

from __future__ import annotations

import inspect
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

import cakernels
from asygcd.options import AsyGCDOptions
from cacore.learn.options import GROUPS, declared
from cacore.run.launch import Training
from cakrr.options import RidgeOptions
from casvm.options import SVMOptions, ValueOptions

FAMILIES = {
    "ridge regression": RidgeOptions, "SVM": SVMOptions, "SVM of values": ValueOptions, "Asy-GCD": AsyGCDOptions,
}  # fmt: skip
# Parameters that estimators handle by themselves, and what replaces an option in Python.
BY_HAND = {
    "--seed": "`random_state`", "--balanced": '`class_weight="balanced"`', "--nu": "`nu`",
    "--classify": "a class whose name ends with `Classifier`", "--exact": "the classes `DisSMOSVR`, `SMOSVR`",
    "--initial": "none: with `comm`, rows are where they are", "--quick": 'none: a list in the place of `"grid"`',
    "--checkpoint": "none", "--out-of-core": "none", "--scratch": "`scratch`", "--threads": "`threads`",
    "--memory-limit": "none", "--model": "the method `save`", "--report": "attributes that end with `_`",
    "--dtype": "the type of the rows",
}  # fmt: skip


def parameters() -> dict[str, list[str]]:
    """Names of the parameters of all estimators, with the estimators that have them."""
    found: dict[str, list[str]] = {}
    for name in cakernels.__all__:
        one = getattr(cakernels, name)
        if inspect.isclass(one) and hasattr(one, "get_params"):
            for parameter in one._get_param_names():
                found.setdefault(parameter, []).append(name)
    return found


def rows() -> dict[str, list[tuple[str, str, str, str]]]:
    """Lines of the table by group: option, parameter, families, help."""
    known = parameters()
    lines: dict[str, dict[str, list[Any]]] = {group: {} for group in ("", *GROUPS)}
    for family, kind in {**FAMILIES, "all": Training}.items():
        for _, one in declared(kind):
            if not one.flag.startswith("--"):
                continue
            python = f"`{one.estimator}`" if one.estimator in known else BY_HAND.get(one.flag, "none")
            line = lines[one.group].setdefault(one.flag, [python, [], one.help])
            line[1].append(family)
    return {
        group: [(flag, python, ", ".join(who), text) for flag, (python, who, text) in found.items()]
        for group, found in lines.items()
        if found
    }


def without_option() -> list[tuple[str, str]]:
    """Parameters that no option sets, with some of the estimators that have them."""
    named = " ".join(python for lines in rows().values() for _, python, _, _ in lines)
    alone = {
        name: owners for name, owners in parameters().items() if f"`{name}`" not in named and f"`{name}=" not in named
    }
    return [
        (name, ", ".join(owners[:4]) + (", ..." if len(owners) > 4 else "")) for name, owners in sorted(alone.items())
    ]


def text() -> list[str]:
    """Lines of Markdown."""
    made: list[str] = []
    for group, found in rows().items():
        made += [
            f"**{(group or 'common options').capitalize()}**",
            "",
            "| option | parameter | who has it | meaning |",
            "|---|---|---|---|",
        ]
        made += [
            f"| `{flag}` | {python} | {who} | {meaning.replace('|', chr(92) + '|')} |"
            for flag, python, who, meaning in found
        ]
        made.append("")
    made += ["**Parameters without an option**", "", "| parameter | estimators |", "|---|---|"]
    made += [f"| `{name}` | {owners} |" for name, owners in without_option()]
    return made


class Names(SphinxDirective):
    """The table, as ``{names}`` in a page."""

    def run(self) -> list[nodes.Node]:
        """Nodes of the table."""
        node = nodes.container()
        self.state.nested_parse(StringList(text(), source="names_table"), self.content_offset, node)
        return list(node.children)

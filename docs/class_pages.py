"""A page per estimator: its command, its example, and its parameters in the groups of the commands' options.

Docstrings say of many parameters that they are those of another class; here
they are taken from there, so that each page is whole.
"""

from __future__ import annotations

import inspect
import re
from itertools import groupby
from pathlib import Path
from typing import Any

import names_table

import cakernels
from cacore.learn.options import GROUPS, declared
from cakrr.options import SubsetOptions

DOCS = Path(__file__).resolve().parent
SHOWN = (
    "fit", "fit_predict", "predict", "predict_interval", "predict_proba", "decision_function", "score_samples",
    "transform", "score", "explain", "save", "load",
)  # fmt: skip
_PAGES = {
    "CASVC": "casvm", "CASVR": "svr", "SMOQuantileSVR": "smo", "CAQuantileSVR": "svr", "DisSMOSVC": "dissmo",
    "DisSMOSVR": "svr", "AsyGCDSVC": "asygcd", "SubsetKRR": "subset", "SubsetKRRClassifier": "subset",
    **dict.fromkeys(("SMOSVC", "SMONuSVC", "SMOSVR", "SMONuSVR", "SMOOneClassSVM"), "smo"),
    **dict.fromkeys(("RandomPartition", "FCFS", "KMeans", "BalancedKMeans", "KBalance"), "partitioners"),
}  # fmt: skip
_COMMANDS = {
    "AutoKernelRegressor": "cakernels fit", "AutoKernelClassifier": "cakernels fit",
    "CASVC": "python -m casvm.casvm, fcfssvm, bkmsvm, cpsvm", "CASVR": "python -m casvm.svr",
    "CAQuantileSVR": "python -m casvm.svr --quantile", "DisSMOSVR": "python -m casvm.svr --exact",
    "AsyGCDSVC": "python -m asygcd", "Kriging": "python -m cakriging",
}  # fmt: skip
# Groups of parameters that no option of a command sets.
_GROUPS = {
    "comm": GROUPS[-1], "random_state": GROUPS[-1], "max_time": GROUPS[-1], "cache_gib": GROUPS[-1],
    "dtype": GROUPS[-1], "verbose": GROUPS[-1], "class_weight": GROUPS[2], "nu": GROUPS[2],
    "decision_function_shape": GROUPS[2],
    "scoring": GROUPS[3], "shrinking": GROUPS[5], "max_iter": GROUPS[5], "tol": GROUPS[5], "solver": GROUPS[5],
    "calibrate": GROUPS[6], "probability": GROUPS[6], "keep_factors": GROUPS[6],
}  # fmt: skip
COMMON = "common parameters"

Entry = tuple[str, list[str]]  # type, lines of text


def estimators() -> dict[str, Any]:
    """Every estimator of the package by name."""
    found = {name: getattr(cakernels, name) for name in cakernels.__all__}
    return {name: one for name, one in found.items() if inspect.isclass(one) and hasattr(one, "get_params")}


def context() -> dict[str, Any]:
    """Names and texts for the template of a class' page."""
    made = {}
    for name, one in estimators().items():
        package = one.__module__.partition(".")[0]
        stem = _PAGES.get(name, name.removesuffix("Classifier").removesuffix("SVC").lower())
        stem = {"twolevelkrr": "twolevel", "dc": "dcsvm"}.get(stem, stem)
        command = _COMMANDS.get(name, "")
        if not command and stem not in ("smo", "partitioners"):
            command = f"python -m {package}.{stem}" + (" --classify" if name.endswith("Classifier") else "")
        page = {"kriging": "kriging", "autokernel": "front", "autokernelregressor": "front"}.get(
            stem, f"methods/{stem}"
        )
        title = (DOCS / f"{page}.md").read_text().splitlines()[0].removeprefix("# ")
        made[name] = {"package": package, "command": command, "page": page, "title": title}
    return {"estimators": made, "shown": SHOWN}


def groups() -> dict[str, str]:
    """Group of each parameter: that of the option that sets it."""
    found = dict(_GROUPS)
    for kind in (*names_table.FAMILIES.values(), SubsetOptions):
        found |= {one.estimator: one.group or COMMON for _, one in declared(kind) if one.estimator not in _GROUPS}
    return found


# -- docstrings --------------------------------------------------------------------------------


def _sections(lines: list[str]) -> dict[str, list[str]]:
    """Sections of a numpydoc docstring by title; the text before them is ""."""
    made: dict[str, list[str]] = {"": []}
    title = ""
    for number, line in enumerate(lines):
        if number + 1 < len(lines) and re.fullmatch(r"-{3,}", lines[number + 1].strip()):
            title = line.strip()
            made[title] = []
        elif not re.fullmatch(r"-{3,}", line.strip()):
            made[title].append(line)
    return made


def _entries(lines: list[str]) -> dict[str, Entry]:
    """Entries of a section by name; names that share a text each get it."""
    made: dict[str, Entry] = {}
    names: list[str] = []
    for line in lines:
        if line.strip() and not line.startswith(" "):
            head, _, kind = line.partition(" : ")
            names = [name.strip() for name in head.split(",")]
            made |= {name: (kind.strip(), []) for name in names}
        else:
            for name in names:
                made[name][1].append(line)
    return made


def _referred(text: str) -> list[str]:
    """Names of estimators that a text refers to."""
    known = estimators()
    return [name for name in re.findall(r":class:`~?(?:\w+\.)*(\w+)`", text) if name in known]


def _is_reference(text: str) -> bool:
    return re.match(r"(See|As (for|in)|Parameters of)\b", text.strip()) is not None


def entry(owner: str, section: str, name: str, seen: tuple[str, ...] = ()) -> Entry | None:
    """The text on a parameter or an attribute of a class, from there or from the classes that its docstring names."""
    if owner in seen:
        return None
    found = _sections(inspect.cleandoc(estimators()[owner].__doc__ or "").splitlines())
    own = _entries(found.get(section, [])).get(name)
    text = " ".join(own[1]) if own else ""
    if own and text.strip() and not _is_reference(text):
        return own
    others = _referred(text) if own else _referred(" ".join(found[""]))
    for other in others:
        more = entry(other, section, name, (*seen, owner))
        if more is not None:
            return (own[0] if own and own[0] else more[0]), more[1]
    return own


def differences(owner: str) -> list[str]:
    """Additions of a docstring to parameters that are those of another class, as a list."""
    made = []
    section = _sections(inspect.cleandoc(estimators()[owner].__doc__ or "").splitlines()).get("Parameters", [])
    shared: dict[str, list[str]] = {}
    for name, (_, text) in _entries(section).items():
        if _is_reference(" ".join(text)):
            shared.setdefault(" ".join(" ".join(text).split()), []).append(name)
    for text, names in shared.items():
        rest = re.sub(r"^.*?:class:`[^`]*`[;,.]?\s*", "", text)
        if rest and not rest.startswith("also for"):
            made.append(f"* {', '.join(f'`{name}`' for name in names)}: {rest}")
    return made


def grouped(owner: str) -> dict[str, dict[str, Entry]]:
    """Parameters of an estimator by group, in the order of the groups."""
    known = groups()
    made: dict[str, dict[str, Entry]] = {group: {} for group in (COMMON, *GROUPS)}
    one = estimators()[owner]
    for name in inspect.signature(one).parameters:
        if name in one._get_param_names():
            group = known.get(name, COMMON)
            made[group][name] = entry(owner, "Parameters", name) or ("", [])
    return {group: found for group, found in made.items() if found}


def whole(_app: Any, what: str, name: str, item: Any, _options: Any, lines: list[str]) -> None:
    """Put a class' parameters into groups, with defaults and what other classes say of them; napoleon reads it then."""
    owner = name.rpartition(".")[2]
    if what != "class" or item is not estimators().get(owner):
        return
    sections = _sections(lines)
    page = [*sections[""], "", "Examples", "--------", *sections["Examples"]]
    defaults = inspect.signature(item).parameters
    for group, parameters in grouped(owner).items():
        page += ["", group, "-" * len(group)]
        for (kind, text), together in groupby(parameters, key=lambda name: parameters[name]):
            names = list(together)  # parameters that share one description have it once
            values = [repr(defaults[name].default) for name in names
                      if defaults[name].default is not inspect.Parameter.empty]  # fmt: skip
            values = values[:1] if len(set(values)) == 1 and len(values) == len(names) else values
            said = f"default{'s' * (len(values) > 1)} {', '.join(values)}".replace("'", '"') if values else ""
            page += [f"{', '.join(names)} : {', '.join(filter(None, (kind, said)))}", *text]
    sections["Notes"] = [*sections.get("Notes", []), "", *differences(owner)]
    attributes = {}
    for attribute, own in _entries(sections.get("Attributes", [])).items():
        attributes[attribute] = entry(owner, "Attributes", attribute) or own
    if attributes:
        page += ["", "Attributes", "----------"]
        for attribute, (kind, text) in attributes.items():
            page += [f"{attribute} : {kind}" if kind else attribute, *text]
    for title, text in sections.items():
        if title not in ("", "Parameters", "Attributes", "Examples"):
            page += ["", title, "-" * len(title), *text]
    lines[:] = page


SECTIONS = [(title, "params_style") for title in (COMMON, *GROUPS, "Attributes")]

"""The commands that :mod:`benchmarks.unchanged` records, and the subsets of real data that they read."""

from __future__ import annotations

import bz2
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cut:
    """Subset of a data file: the first of every `step`-th lines. Without test rows, `split` of them train.

    Of a CSV file it may have some of the `columns`.
    """

    file: str
    train: int | None = None
    test: int | None = None
    step: int = 1
    split: int = 0
    columns: tuple[int, ...] = ()


CUTS = {
    "cadata": Cut("cal_housing.csv.bz2", 5001, split=4000),
    "space_ga": Cut("space_ga_scale", split=2560),
    "mg": Cut("mg_scale", split=1024),
    "a9a": Cut("a9a.bz2", 3000, 2000),
    "ijcnn1": Cut("ijcnn1.bz2", 5000, 3000, step=9),  # its first rows are easy
    "small": Cut("ijcnn1.bz2", 600, 300, step=50),
    "usps": Cut("usps.bz2", 1000, 1000),
    "field": Cut("cal_housing.csv.bz2", 3001, split=2000, columns=(0, 1, 8)),  # places and prices, for kriging
}


@dataclass(frozen=True)
class Case:
    """One command.

    Attributes
    ----------
    name : str
        Name of the record's file.
    module : str
        The command is ``python -m module DATA options``.
    data : str
        Name in :data:`CUTS`; with a leading "@", the text files from which the subset was converted.
    options : str
    ranks : int
    predict : int
        Number of ranks on which the saved model then predicts the test rows; 0 for no prediction.
    resumed : bool
        Run with a checkpoint, remove half of its pieces, and run again; the second run is recorded.
    threads : int
        More than one only for Asy-GCD; fields that depend on the order of its threads are not recorded.
    """

    name: str
    module: str
    data: str
    options: str = ""
    ranks: int = 1
    predict: int = 0
    resumed: bool = False
    threads: int = 1


_GRID = "--sigma 0.5:4:4 --lambda 1e-6:1e-3:7"  # from 6 lambdas on, they share one band reduction
_NEAR = "--kernel wendland2 --degree 6 --near --sigma 2 --lambda 1e-3"
_SMALL = "--sigma 0.5,1,2 --lambda 1e-5,1e-4,1e-3"
_PLAIN = "--no-standardize --validation-fraction 0.25 --seed 3"
_IJCNN1 = "--C 32 --gamma 2"
_A9A = "--allow-overlap --C 1 --gamma 0.008"
_POLYNOMIAL = "--allow-overlap --kernel polynomial --degree 2 --coef0 1"
_USPS = "--C 10 --gamma 0.0078125"

KRR = [
    Case("dkrr", "cakrr.dkrr", "space_ga", _SMALL, predict=2),
    Case("dkrr-2", "cakrr.dkrr", "mg", "--sigma 0.5,1 --lambda 1e-5,1e-3", 2, predict=3),
    Case("dkrr-float32", "cakrr.dkrr", "mg", "--sigma 1 --lambda 1e-3 --dtype float32", 1),
    Case("dckrr", "cakrr.dckrr", "cadata", f"--partitions 6 {_SMALL}", 3),
    Case("kkrr", "cakrr.kkrr", "space_ga", f"--partitions 4 {_SMALL}", 2),
    Case("kkrr2-band", "cakrr.kkrr2", "cadata", f"--partitions 8 {_GRID}", 4, predict=1),
    Case("kkrr3", "cakrr.kkrr3", "mg", f"--partitions 4 {_SMALL}"),
    Case("bkrr", "cakrr.bkrr", "mg", f"--partitions 5 {_SMALL}", 3),
    Case("bkrr2-band", "cakrr.bkrr2", "cadata", f"--partitions 8 {_GRID}", 4, predict=3),
    Case("bkrr2-defaults", "cakrr.bkrr2", "mg", "--partitions 3"),
    Case("bkrr2-soft", "cakrr.bkrr2", "space_ga", f"--partitions 8 --route soft {_SMALL}", 2, predict=3),
    Case("bkrr2-all", "cakrr.bkrr2", "space_ga", f"--partitions 4 --route all {_SMALL}", 2),
    Case("bkrr2-loo", "cakrr.bkrr2", "cadata", f"--partitions 8 --select loo {_SMALL}", 2),
    Case("bkrr2-select-test", "cakrr.bkrr2", "mg", f"--partitions 4 --select test {_GRID}"),
    Case("bkrr2-float32", "cakrr.bkrr2", "cadata", f"--partitions 8 --dtype float32 {_SMALL}", 2),
    Case("bkrr2-plain", "cakrr.bkrr2", "mg", f"--partitions 4 {_PLAIN} {_SMALL}"),
    Case("bkrr2-csr", "cakrr.bkrr2", "a9a", "--allow-overlap --partitions 4 --route soft --sigma 4,8 --lambda 1e-2", 2),
    Case("bkrr2-text", "cakrr.bkrr2", "@cadata", "--partitions 4 --target medianHouseValue --sigma 1 --lambda 1e-4", 2),
    Case("bkrr2-resumed", "cakrr.bkrr2", "cadata", f"--partitions 8 {_SMALL}", 2, resumed=True),
    Case("bkrr3", "cakrr.bkrr3", "space_ga", f"--partitions 6 {_SMALL}", 2),
    Case("twolevel", "cakrr.twolevel", "cadata", "--partitions 6 --centers 100,200", 3, predict=1),
    Case("twolevel-nearest", "cakrr.twolevel", "mg", "--partitions 4 --route nearest --centers 60,120", 2),
    Case("twolevel-resumed", "cakrr.twolevel", "space_ga", "--partitions 4 --centers 100", 2, resumed=True),
]  # fmt: skip

SVM = [
    Case("dissmo", "casvm.dissmo", "ijcnn1", _IJCNN1),
    Case("dissmo-4", "casvm.dissmo", "ijcnn1", _IJCNN1, 4, predict=2),
    Case("dissmo-pairs", "casvm.dissmo", "a9a", f"{_A9A} --working-set 2 --max-iter 400", 2),
    Case("dissmo-multi", "casvm.dissmo", "usps", f"{_USPS} --working-set 256 --initial root", 2, resumed=True),
    Case("cascade", "casvm.cascade", "ijcnn1", f"{_IJCNN1} --partitions 4", 4, predict=1),
    Case("cascade-root", "casvm.cascade", "ijcnn1", f"{_IJCNN1} --partitions 8 --passes 1 --initial root", 2),
    Case("cascade-resumed", "casvm.cascade", "a9a", f"{_A9A} --partitions 4 --passes 3", 2, resumed=True),
    Case("dcsvm", "casvm.dcsvm", "a9a", f"{_A9A} --partitions 4", 3),
    Case("dcfilter", "casvm.dcfilter", "usps", f"{_USPS} --partitions 4", 2),
    Case("dcfilter-asygcd", "casvm.dcfilter", "ijcnn1", f"{_IJCNN1} --partitions 4 --solver asygcd", 2),
    Case("cpsvm", "casvm.cpsvm", "ijcnn1", f"{_IJCNN1} --partitions 8", 4, predict=3),
    Case("cpsvm-soft", "casvm.cpsvm", "usps", f"{_USPS} --partitions 4 --route soft", 2),
    Case("cpsvm-linear", "casvm.cpsvm", "a9a", "--allow-overlap --kernel linear --partitions 4"),
    Case("cpsvm-text", "casvm.cpsvm", "@a9a", f"{_A9A} --partitions 4", 2),
    Case("cpsvm-limit", "casvm.cpsvm", "ijcnn1", "--C 32 --gamma auto --partitions 3 --max-iter 100 --seed 5"),
    Case("cpsvm-resumed", "casvm.cpsvm", "ijcnn1", f"{_IJCNN1} --partitions 8", 2, resumed=True),
    Case("bkmsvm-polynomial", "casvm.bkmsvm", "a9a", f"{_POLYNOMIAL} --partitions 4", 2),
    Case("bkmsvm-ratio", "casvm.bkmsvm", "ijcnn1", f"{_IJCNN1} --ratio --partitions 6", 3),
    Case("fcfssvm-sigmoid", "casvm.fcfssvm", "a9a", "--allow-overlap --kernel sigmoid --gamma 0.004 --partitions 4", 2),
    Case("fcfssvm-ratio", "casvm.fcfssvm", "ijcnn1", f"{_IJCNN1} --ratio --balanced --partitions 8", 4),
    Case("casvm-all", "casvm.casvm", "ijcnn1", f"{_IJCNN1} --route all --partitions 6", 3),
    Case("casvm-root", "casvm.casvm", "ijcnn1", f"{_IJCNN1} --route nearest --initial root --partitions 8", 4),
    Case(
        "casvm-float32", "casvm.casvm", "usps",
        f"{_USPS} --route nearest --standardize --dtype float32 --partitions 2", 2,
    ),
    Case("casvm-libsvm", "casvm.casvm", "a9a", f"{_A9A} --route nearest --partitions 2 --libsvm OUT.model"),
    Case("casvm-asygcd", "casvm.casvm", "ijcnn1", f"{_IJCNN1} --route nearest --solver asygcd --partitions 4", 1),
]  # fmt: skip

ASYGCD = [
    Case("asygcd", "asygcd", "ijcnn1", _IJCNN1, predict=2),
    Case("asygcd-2-threads", "asygcd", "ijcnn1", f"{_IJCNN1} --tol 1e-6", threads=2),
    Case("asygcd-multi", "asygcd", "usps", f"{_USPS} --standardize"),
    Case("asygcd-ovo", "asygcd", "usps", f"{_USPS} --multi-class ovo"),
    Case("asygcd-csr", "asygcd", "a9a", f"{_A9A} --kernel polynomial --coef0 1 --balanced"),
    Case("asygcd-atomic", "asygcd", "a9a", f"{_A9A} --update atomic --dtype float32"),
]

_VALUES = "--C 2 --gamma 1 --epsilon 0.05"

OTHERS = [
    Case("dkrr-cg", "cakrr.dkrr", "mg", f"--solver cg {_SMALL}", 2, predict=1),
    Case("dkrr-near", "cakrr.dkrr", "mg", f"--solver cg {_NEAR}", 2),
    Case("bkrr2-calibrate", "cakrr.bkrr2", "cadata", f"--partitions 8 --calibrate 0.2 {_SMALL}", 2),
    Case("bkrr2-metric", "cakrr.bkrr2", "space_ga", f"--partitions 4 --metric diagonal --metric-rounds 2 {_SMALL}", 2),
    Case("subset", "cakrr.subset", "cadata", f"--centers 60,120 {_SMALL}", 3, predict=2),
    Case("subset-pivots", "cakrr.subset", "space_ga", f"--centers 80 --pick pivots --select gcv {_SMALL}", 2),
    Case("kriging", "cakriging", "field", "--nugget 0.2 --range 1 --sill 1 --solver cholesky", 2, predict=1),
    Case("kriging-estimated", "cakriging", "field", "--kernel wendland2 --sample 400 --solver cg", 1),
    Case("svr", "casvm.svr", "space_ga", f"{_VALUES} --partitions 4", 2, predict=1),
    Case("svr-exact", "casvm.svr", "mg", f"{_VALUES} --exact", 2),
    Case("svr-nu", "casvm.svr", "mg", "--C 2 --gamma 1 --nu 0.4 --partitions 2"),
    Case("svr-search", "casvm.svr", "mg", "--C 1,4 --gamma 0.5,2 --epsilon 0.05 --cv 3 --partitions 2", 2),
    Case("svr-quantiles", "casvm.svr", "mg", "--C 2 --gamma 1 --quantile 0.1,0.9 --calibrate 0.2 --partitions 2", 2),
    Case("svr-resumed", "casvm.svr", "space_ga", f"{_VALUES} --partitions 8", 2, resumed=True),
    Case("oneclass", "casvm.oneclass", "ijcnn1", "--gamma 2 --nu 0.05 --partitions 4", 2, predict=1),
    Case("oneclass-exact", "casvm.oneclass", "mg", "--gamma 1 --nu 0.1 --exact", 2),
    Case("cpsvm-search", "casvm.cpsvm", "ijcnn1", "--C 1,32 --gamma 0.5,2 --cv 3 --partitions 4", 2),
    Case("cpsvm-probability", "casvm.cpsvm", "ijcnn1", f"{_IJCNN1} --partitions 4 --probability", 2),
    Case("cpsvm-per-part", "casvm.cpsvm", "ijcnn1", "--C 1,32 --gamma 0.5,2 --per-part --partitions 4", 2),
    Case("dissmo-search", "casvm.dissmo", "ijcnn1", "--C 1,32 --gamma 2 --probability", 2),
    Case("casvm-metric", "casvm.casvm", "ijcnn1", f"{_IJCNN1} --partitions 2 --metric diagonal --metric-rounds 1", 2),
    Case("svr-quantile-search", "casvm.svr", "mg", "--C 1,4 --gamma 2 --quantile 0.1,0.9 --partitions 2", 2),
    Case("bkrr2-cv", "cakrr.bkrr2", "space_ga", f"--partitions 4 --cv 3 --route soft {_SMALL}", 2),
    Case("bkrr2-per-part", "cakrr.bkrr2", "space_ga", f"--partitions 4 --cv 3 --per-part {_SMALL}", 2, resumed=True),
    Case("dkrr-folds", "cakrr.dkrr", "mg", "--lambda 1e-3 --metric diagonal --metric-rounds 1", 2, resumed=True),
    Case("dkrr-early", "cakrr.dkrr", "mg", f"--solver cg --early 0.01 --select test {_SMALL}", 2),
    Case("dkrr-auto", "cakrr.dkrr", "mg", f"--scaling auto --kernel auto {_SMALL}"),
    Case("kriging-blocks", "cakriging", "field", "--estimation blocks --sample 400", 2),
]  # fmt: skip

COMMANDS = KRR + SVM + ASYGCD + OTHERS


def make_data(source: Path, folder: Path, checkout: Path, env: dict[str, str]) -> None:
    """Write the subsets, and convert them with the checkout's own ``cacore.io``; existing files are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, cut in CUTS.items():
        target = folder / f"{name}.h5"
        if target.exists():
            continue
        text = _copy(source / cut.file, text_file(folder, name), cut.train, cut.step)
        if cut.columns:
            table = [line.split(",") for line in text.read_text().splitlines()]
            text.write_text("".join(",".join(line[k] for k in cut.columns) + "\n" for line in table))
        options = ["--split", str(cut.split)]
        if cut.test is not None:
            others = source / cut.file.replace(".bz2", ".t.bz2")
            options = ["--test", str(_copy(others, text_file(folder, f"{name}.t"), cut.test, cut.step))]
        command = [sys.executable, "-m", "cacore.io", "convert", str(text), str(target), *options]
        subprocess.run(command, check=True, cwd=checkout, env=env, stdout=subprocess.DEVNULL)


def text_file(folder: Path, name: str) -> Path:
    """Path of the text from which a subset is converted."""
    return folder / (f"{name}.csv" if CUTS[name.removesuffix(".t")].file.endswith(".csv.bz2") else name)


def data_arguments(case: Case, folder: Path) -> list[str]:
    """Arguments of a case for DATA and its test rows."""
    if not case.data.startswith("@"):
        return [str(folder / f"{case.data}.h5")]
    name = case.data[1:]
    test = ["--test", str(text_file(folder, f"{name}.t"))] if CUTS[name].test is not None else []
    return [str(text_file(folder, name)), *test]


def _copy(source: Path, target: Path, lines: int | None, step: int) -> Path:
    content = bz2.decompress(source.read_bytes()) if source.suffix == ".bz2" else source.read_bytes()
    target.write_bytes(b"".join(content.splitlines(keepends=True)[::step][:lines]))
    return target

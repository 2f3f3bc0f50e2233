"""The two commands of every family: train a model, and predict with a saved one."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from cacore.comm import Communicator
from cacore.data.rows import is_sparse, take_rows
from cacore.data.stored import is_stored
from cacore.errors import InputError, OutputError
from cacore.files import STDOUT, check_apart, check_writable, printing
from cacore.io.arrays import Arrays, is_zarr, matching
from cacore.learn.method import Method, flags, same_command
from cacore.learn.options import add_options, from_arguments
from cacore.machine.threads import blocks
from cacore.run.launch import Job, Parser, Predicting, Training, compiled_ahead, may_compile, parsed, run, start
from cacore.terminal import say

if TYPE_CHECKING:
    from cacore.data.dataset import Dataset
    from cacore.data.encoding import Columns
    from cacore.run.family import Answer, AnyAnswering, AnyFamily, AnyRun
    from cacore.run.reading import TrainedModel
    from cacore.run.report import Report

    Load = Callable[[Path, Communicator], tuple[Any, AnyAnswering]]

# Share of the memory for a block of test rows. Reasoned: it is there in double precision, standardised, sorted by part,
# sent and received, each up to twice the bytes in the file; the model and the kernel values need the rest.
_TEST_SHARE = 16
OWN = ("decisions", "probability", "std", "interval", "adaptive")  # predicting options that not all families have


_NEW_ROWS = "test the model on other rows"
# Folder from which a job was submitted, by the variables of Slurm, PBS and LSF.
_SUBMITTED_FROM = ("SLURM_SUBMIT_DIR", "PBS_O_WORKDIR", "LS_SUBCWD")


@dataclass(frozen=True)
class Commands:
    """The commands of a package: one per method, which trains, and one that predicts with a saved model.

    Attributes
    ----------
    package : str
    family : str
        Module and class of the family, such as "cakrr.ridge_family:Ridge", whose :meth:`cacore.run.family.Family.of`
        says which one trains. By name, as it imports compiled code, which ``--help`` does without.
    flags : tuple of str
        The options of :data:`OWN` that its models have.
    """

    package: str
    family: str
    flags: tuple[str, ...]

    def load_family(self) -> type[AnyFamily]:
        """Import the class of the family."""
        family: type[AnyFamily] = resolve_name(self.family)
        return family

    def train(self, method: Method, comm: Communicator, argv: list[str] | None = None) -> None:
        """Train as the command of `method` does, but do not end the process; collective."""
        train(method, lambda options: self.load_family().of(method, options), comm, argv)

    def main(self, method: Method, argv: list[str] | None = None) -> None:
        """Run the command of `method`, ``python -m PACKAGE.METHOD DATA``, and end the process."""
        run(lambda comm: self.train(method, comm, argv), method.prog, argv=argv)

    def main_predict(self, argv: list[str] | None = None) -> None:
        """Run ``python -m PACKAGE.predict MODEL DATA``, and end the process."""
        prog = f"{self.package}.predict"
        run(lambda comm: predict(lambda: self.load_family()().load, prog, comm, argv, self.flags), prog, argv=argv)


def train(method: Method, load_family: Callable[[Any], AnyFamily], comm: Communicator, argv: list[str] | None) -> None:
    """``python -m PACKAGE.METHOD DATA``: read, train, test, save, report; ``load_family(options)`` is the family."""
    parser = Parser(
        prog=f"python -m {method.prog}", description=f"{method.name}: {method.summary}.", rank=comm.rank,
        epilog=f"example: {method.example}",
    )  # fmt: skip
    add_options(parser, (Training, method.options), method.has, method.defaults, method.choices)
    args = parsed(parser, argv, comm)
    with comm.agreed():
        job, options = from_arguments(Training, args), from_arguments(method.options, args)
        if lacking := [key for key in job.columns or () if not method.has(key)]:
            raise InputError(
                f"--columns: {', '.join(lacking)}: {method.prog} has no such option: leave it out of the file"
            )
    same_command(method.prog, flags(job, options), comm, {"DATA": job.data, "--test": job.test})
    limit = start(job, comm)
    from cacore.run.family import Run

    family, this_run = load_family(options), Run(method, job, options, comm, limit)
    checkpoint = getattr(options, "checkpoint", None)
    with comm.agreed():
        others = family.check(this_run)
        if job.plot is not None and not family.draws(this_run):
            raise InputError(f"--plot: there is nothing to plot; give --metric diagonal or full{family.also}")
        check_pictures(job.plot, job.html, comm)
        outputs = {
            "--model": job.model, "--report": job.report, "--comm-matrix": job.comm_matrix, "--plot": job.plot,
            "--html": job.html, **others,
        }  # fmt: skip
        folder = None if checkpoint is None else checkpoint.path
        check_files(outputs, {"DATA": job.data, "--test": job.test, "--checkpoint": folder}, comm, job.more)
        _check_rows(job.arrays, job.data, job.test, comm=comm)
    if job.dry_run:
        with comm.agreed():
            options.check_rules(method)
        if comm.rank == 0 and not job.quiet:
            _tell(f"{method.prog}: options and files are accepted; no row was read, nothing written (--dry-run)")
        return
    if checkpoint is not None and not job.quiet:
        checkpoint.tell = _tell
    compiled_ahead(lambda: family.warm_up(this_run), comm, not job.quiet)
    from cacore.io import training_rows
    from cacore.machine.clock import ctrl_c_waits
    from cacore.run import reading, report

    with ctrl_c_waits(), family.progress(comm.rank == 0 and not job.quiet) as progress:
        rows, test = family.read(this_run)
        options = replace(options, memory_limit=limit, **progress)
        this_run = replace(this_run, options=options)
        columns, chosen = rows.columns, rows.chosen
        n_train, d = rows.n, rows.X.shape[1]
        source: dict[str, object] = {"base": rows.base, "sparse": is_sparse(rows.X)}
        if job.model is not None:  # nothing but a saved model needs them, and all rows are read for them
            source |= training_rows.of(rows, comm)
        fitted = method(rows, options, comm, test)
        fitted.model.source |= {"target": job.target, **source, **job.arrays.remembered}
        overlap, tested = _tested(family, fitted.model, test, comm, limit)
    notes = reading.notes(rows, test, job.test or job.data)
    data = {"path": str(job.data), "n_train": n_train, "n_test": 0 if test is None else test.n, "n_features": d}
    fields = {**tested, **family.report(this_run, fitted)}
    fields["resumed"] = None if checkpoint is None else checkpoint.resumed
    document = report.build(method.name, comm, data | named(columns, chosen) | overlap, fitted.sizes, fields)
    fitted.model.source["training"] |= _held_out_error(family, document)
    if "metric" in document and columns.features:
        document["metric"]["names"] = list(columns.features)
    with may_compile(comm, not job.quiet):
        _write(family, this_run, fitted, document, notes)


def _held_out_error(family: AnyFamily, document: Report) -> Report:
    """Score of the test rows, or else the best one of the settings compared, for the model's file; may be empty."""
    metrics, grid = document["metrics"], document["grid"]
    if name := next((name for name in ("rmse", "accuracy") if name in metrics), ""):
        return {"error": {"score": f"{name} on {document['data']['n_test']:,} test rows", "value": metrics[name]}}
    columns = family.columns(document) if grid else None
    if columns is None:
        return {}
    values = [row[columns.score] for row in grid if row[columns.score] is not None and not row.get("ended")]
    best = min if columns.smaller else max
    return {"error": {"score": columns.title, "value": best(values)}} if values else {}


def _tell(line: str) -> None:
    with printing():
        say(line)


def check_pictures(plot: Path | None, html: Path | None, comm: Communicator) -> None:
    """Refuse, before training, a figure or a page that rank 0 cannot draw."""
    if comm.rank == 0 and (plot is not None or html is not None):
        from cacore.run import figures

        figures.check(plot)


def _write(family: AnyFamily, this_run: AnyRun, fitted: Any, document: Report, notes: list[str]) -> None:
    """Write model, other files and table; if one cannot be written, the others still are. Collective."""
    from cacore.run import report

    job, comm, method = this_run.job, this_run.comm, this_run.method
    unwritten = Unwritten()
    with unwritten, comm.agreed():
        checkpoint = vars(this_run.options).get("checkpoint")
        if checkpoint is not None and checkpoint.failure is not None:
            raise checkpoint.failure
    traffic = None
    if job.comm_matrix is not None or job.html is not None:
        from cacore.traffic import collect, described

        traffic = collect(comm, method.name)  # before what follows is sent
        if traffic is not None and comm.size > 1:
            document["traffic"] = described(traffic)
    with comm.phase("write"):
        if job.model is not None:
            with unwritten:
                save_model(fitted.model, job.model, comm)
        with unwritten:
            family.save(this_run, fitted)
        with unwritten, comm.agreed():
            if traffic is not None and job.comm_matrix is not None:
                traffic.save(job.comm_matrix)
    report.clock(document, comm)  # with the files' seconds
    with comm.agreed():
        if comm.rank == 0:
            document["notes"] = [*family.notes(this_run, fitted), *_notes(document["data"]), *notes]
    if comm.rank == 0:
        out = _Out(family, this_run, fitted, document)
    for write in (_Out.plot, _Out.report, _Out.page, _Out.table):
        with unwritten, comm.agreed():
            if comm.rank == 0:
                write(out)
    unwritten.tell()


@dataclass(frozen=True)
class _Out:
    """Output files and the printed table of a run; rank 0 writes them from the report."""

    family: AnyFamily
    run: AnyRun
    fitted: Any
    document: Report

    def plot(self) -> None:
        if self.run.job.plot is not None:
            figure = self.family.figure(self.run, self.fitted, self.document)
            if isinstance(figure, str):
                self.document["notes"].append(figure)
            else:
                from cacore.run import figures

                figures.save(figure, self.run.job.plot)

    def report(self) -> None:
        _report(self.run.job, self.document)

    def page(self) -> None:
        if self.run.job.html is not None:
            from cacore.run import page

            page.write(self.run.job.html, {self.document["method"]: self.document})

    def table(self) -> None:
        with printing():
            trained = self.fitted.model.source["training"]
            _show(self.run.job, self.document, self.family.lines(self.document), trained)
            if self.run.job.verbose:
                say(*self.family.details(self.document))


def _notes(data: Report) -> Iterator[str]:
    """Notes about the test rows."""
    if not data["n_test"]:
        yield "no test rows: give --test, or convert the data with --split"
    if data.get("overlap"):
        yield f"{data['overlap']:,} of {data['n_test']:,} test rows are training rows too, which flatters the error"


def _tested(
    family: AnyFamily, model: TrainedModel, test: Dataset | None, comm: Communicator, limit: int
) -> tuple[dict[str, int], Report]:
    """The number of test rows that are training rows, and metrics of all test rows and of the others, for the report.

    Both by their names.
    """
    from cacore.run.family import origin_of_probabilities

    if test is None:
        return {}, {"metrics": {}, "probability": origin_of_probabilities(model)}
    answer = _answer(family, model, test, comm, limit)
    metrics = answer.metrics(test, comm)
    fields: Report = {"metrics": metrics, "probability": answer.probability(test, metrics, comm)}
    if test.overlap is None:
        return {}, fields
    with comm.uncounted():
        count = int(comm.allreduce(np.array([np.count_nonzero(test.overlap)]))[0])
    if 0 < count < test.n:
        new = ~test.overlap
        y = None if test.y is None else test.y[new]
        new_rows = replace(test, X=take_rows(test.X, new), y=y, n=test.n - count)
        fields["metrics_without_overlap"] = answer.take(new).metrics(new_rows, comm)
    return {"overlap": count}, fields


def _answer(family: AnyFamily, model: TrainedModel, test: Dataset, comm: Communicator, limit: int) -> Answer:
    """Predict the test rows; rows in a file in blocks that fit in `limit` bytes."""
    if not is_stored(test.X):
        return family.tested(model, test, comm)
    step = max(1, min(limit // _TEST_SHARE, 1 << 30) // test.X.row_bytes)
    with comm.uncounted():
        longest = int(comm.allreduce(np.array([len(test.X)]), "max")[0])
    answers = []
    for lo, hi in blocks(longest, step):
        y = None if test.y is None else test.y[lo:hi]
        answers.append(family.tested(model, replace(test, X=test.X[lo:hi], y=y, overlap=None), comm))
    return answers[0].joined(answers[1:])


def predict(
    load: Callable[[], Load], prog: str, comm: Communicator, argv: list[str] | None,
    flags_of_family: tuple[str, ...] = (),
) -> None:  # fmt: skip
    """``python -m PACKAGE.predict MODEL DATA``: predict with a saved model, on any number of ranks or without MPI.

    ``load()`` is the function that loads a model with its family. `prog` is the module, or the command and its first
    word. `flags_of_family` names those options of :data:`OWN` that it has.
    """
    typed = prog if " " in prog else f"python -m {prog}"
    parser = Parser(prog=typed, description="Predict with a saved model.", rank=comm.rank)
    add_options(parser, (Predicting,), lambda name: name in flags_of_family or name not in OWN)
    args = parsed(parser, argv, comm)
    with comm.agreed():
        job = from_arguments(Predicting, args)
    same_command(prog, flags(job), comm, {"MODEL": job.model, "DATA": job.data})
    with comm.agreed():
        output = None if job.output == STDOUT else job.output
        outputs = {"--output": output, "--report": job.report}
        check_files(outputs, {"MODEL": job.model, "DATA": job.data}, comm, job.more)
    limit, load_model = start(job, comm), load()
    from cacore.io import predictions

    model, family = load_model(job.model, comm)
    with comm.agreed():
        family.check_prediction(model, job)
        _check_rows(job.arrays, job.data, comm=comm)
        if job.output is not None and comm.rank == 0:
            predictions.check(job.output)
    compiled_ahead(lambda: family.warm_up_prediction(model.dtype), comm, not job.quiet)
    with may_compile(comm, not job.quiet):
        document = _answered(model, family, job, comm, limit)
    with comm.agreed():
        if comm.rank == 0:
            _report(job, document)
            with redirect_stdout(sys.stderr if job.output == STDOUT else sys.stdout), printing():
                _show(job, document, (), model.source.get("training", {}))


def _answered(model: TrainedModel, family: AnyAnswering, job: Predicting, comm: Communicator, limit: int) -> Report:
    """Read the rows, predict them and write the predictions; the report. Collective."""
    from cacore.io import predictions, training_rows
    from cacore.run import reading, report

    rows = reading.read_to_predict(job, comm, model, limit, *family.targets(model))
    notes = reading.notes(None, rows, job.data)
    answer = family.answer(model, rows, job, comm)
    metrics = {} if rows.y is None else answer.metrics(rows, comm)
    notes.extend(answer.notes)
    repeated, exact = training_rows.trained_on(model.source, rows, comm)
    if repeated:
        about = "" if exact else "about "
        notes.append(f"{about}{repeated:,} of {rows.n:,} rows trained the model, which flatters the error: {_NEW_ROWS}")
    data = {"path": str(job.data), "n_train": 0, "n_test": rows.n, "n_features": rows.X.shape[1]}
    data |= {"overlap": repeated} if repeated else {}
    fields = {
        "params": {"model": str(job.model), **model.described()}, "metrics": metrics,
        "intervals": answer.intervals(rows, comm), "probability": answer.probability(rows, metrics, comm),
    }  # fmt: skip
    document = report.build("predict", comm, data | named(rows.columns, rows.chosen), model.sizes, fields)
    if job.output is not None:
        with comm.phase("write"):
            predictions.write(job.output, answer.columns(job.decisions), comm, rows.keys)
    report.clock(document, comm)  # with the file's seconds
    document["notes"] = notes if job.output else [*notes, "give -o OUT.csv to keep the predictions"]
    return document


def named(columns: Columns, chosen: dict[str, Any]) -> dict[str, Any]:
    """Names of the columns, and the target if the user named none, for the report; nothing that is not known."""
    fields = {"columns": columns.described(), "target": chosen}
    return {key: value for key, value in fields.items() if value}


def check_files(
    outputs: dict[str, Path | None], inputs: dict[str, Path | None], comm: Communicator, more: Sequence[Path] = ()
) -> None:  # fmt: skip
    """Refuse, before training, outputs that rank 0 could not write or that would replace another file.

    Inputs may be patterns; `more` are files with further rows.
    """
    if comm.rank == 0:
        patterns = [*inputs.items(), *(("MORE", path) for path in more)]
        files = [(name, path) for name, each in patterns if each is not None for path in matching(each)]
        check_apart(outputs.items(), files)
        for path in outputs.values():
            if path is not None:
                check_writable(path)


def _check_rows(arrays: Arrays, *paths: Path | None, comm: Communicator) -> None:
    """Refuse files that hold no rows before code is compiled, which may take minutes."""
    if comm.rank == 0:
        from cacore.io import text

        for pattern in (*paths, *arrays.files):
            for path in () if pattern is None else matching(pattern):
                if not is_zarr(path):
                    text.kind(path)


def _show(job: Job, document: Report, lines: Iterable[tuple[str, str]], trained: Report) -> None:
    if not job.quiet:
        from cacore.run import report

        report.show(document, lines, trained)


def _report(job: Job, document: Report) -> None:
    if job.report is not None:
        from cacore.run import report

        report.write(job.report, document)


class Unwritten:
    """Context for writing one file, entered once per file: it delays any :class:`OutputError` until :meth:`tell`.

    So it does an InputError, such as that of a folder which was deleted during the run.
    """

    def __init__(self) -> None:
        self._errors: list[InputError | OutputError] = []

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, InputError | OutputError):
            self._errors.append(error)
            return True
        return False

    def tell(self) -> None:
        """Raise the first delayed error, if any; its attribute `others` has the rest, each for a line of its own."""
        if self._errors:
            first, *others = self._errors
            first.others = others
            raise first


class Saveable(Protocol):
    """A model that can be written to a file."""

    def save(self, path: Path, comm: Communicator) -> None:
        """Write the model; collective."""


def save_model(model: Saveable, path: Path, comm: Communicator) -> None:
    """Save a model, which may be hours of work; if that fails, save it elsewhere. Collective.

    The other places are the folder from which the job was submitted, the working directory, and the folder of temporary
    files, which may be a node's own.

    Raises
    ------
    OutputError
        On all ranks, if the model could not be written to `path`; the message names the other place, if any.
    """
    try:
        model.save(path, comm)
    except (InputError, OutputError) as error:
        failure = OutputError(str(error))
        for elsewhere in _elsewhere(path, comm):
            try:
                model.save(elsewhere, comm)
            except (InputError, OutputError):
                if comm.rank == 0:
                    with suppress(OSError):
                        elsewhere.parent.rmdir()
                continue
            failure = OutputError(f"{error}; the model was saved as {elsewhere} instead")
            break
        with comm.agreed():
            raise failure from error


def _elsewhere(path: Path, comm: Communicator) -> Iterator[Path]:
    """The same name in a new folder of each other place, which rank 0 chooses; collective."""
    folders = _folders(path) if comm.rank == 0 else iter(())
    while True:
        with comm.uncounted():
            folder = comm.bcast(np.frombuffer(os.fsencode(next(folders, "")), np.uint8)).tobytes()
        if not folder:
            return
        yield Path(os.fsdecode(folder)) / path.name


def _folders(path: Path) -> Iterator[str]:
    """A new folder in each place but that of `path`, where one can be made."""
    submitted = [os.environ[name] for name in _SUBMITTED_FROM if os.environ.get(name)]
    tried = set[str]()
    for number, place in enumerate((str(path.parent), *submitted, os.curdir, tempfile.gettempdir())):
        try:
            real = os.path.realpath(place)
        except OSError:  # the working directory has been deleted
            continue
        if real not in tried and number and (folder := _made_in(real)):
            yield folder
        tried.add(real)


def _made_in(place: str) -> str:
    """A new folder in `place`; "" if none can be made there."""
    try:
        return tempfile.mkdtemp(prefix="cakernels-", dir=place)
    except OSError:
        return ""

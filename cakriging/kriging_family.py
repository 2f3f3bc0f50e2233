"""Kriging in the commands: checks, warm-up, reading, report, figures and output files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.rows import dense
from cacore.errors import InputError
from cacore.io.fingerprints import row_hashes
from cacore.io.table import Targets
from cacore.learn.options import reported
from cacore.metrics import interval_metrics, regression_metrics
from cacore.progress import bar, line_while_compiling
from cacore.run import figures, reading
from cacore.run.family import Answer, Family, NumberAnswer, Run
from cacore.run.launch import Predicting
from cacore.run.report import Report
from cakriging import maps
from cakriging.counts import checked, deviance
from cakriging.estimation import Variogram
from cakriging.kriging_fit import KrigingFit, solver_of
from cakriging.kriging_method import METHOD, KrigingMethod
from cakriging.kriging_model import KrigingModel, normal_interval
from cakriging.maps import Grid
from cakriging.options import KrigingOptions
from cakriging.space import column_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_NO_EXPOSURES = (
    "the model was fitted with exposures that no column has, so its rates are not compared with counts; train by the "
    "command with --exposure COLUMN"
)
_VALUES = Targets(remedy="the values to krige are numbers; name their column with --target")


KrigingRun = Run[KrigingMethod, KrigingOptions]


class KrigedAnswer(NumberAnswer):
    """Means and standard deviations at test rows."""

    def metrics(self, rows: Dataset, comm: Communicator) -> Report:
        """Errors, scores of the predicted normal distributions, and the coverage of 95 % intervals."""
        with comm.phase("predict"):
            ends = normal_interval(self.arrays["mean"], self.arrays["std"], 0.95)
            inside = interval_metrics(rows.target(), *ends, comm)
        return super().metrics(rows, comm) | {"coverage_of_95_%": inside["coverage"]}


class CountAnswer(NumberAnswer):
    """Rates or probabilities, with standard deviations and intervals of them on request."""

    def metrics(self, rows: Dataset, comm: Communicator) -> Report:
        """Errors of the expected counts, and the mean deviance of the counts; none without their exposures."""
        if self.model.exposed:
            self.notes = (_NO_EXPOSURES,)
            return {}
        exposure = _exposures(rows, self.model.drift.ignored)
        expected, y = self.arrays["mean"] * exposure, rows.target()
        with comm.phase("predict"):
            scores: Report = regression_metrics(y, expected, comm)
            sums = np.array([deviance(self.model.likelihood, y, expected, exposure).sum(), len(y)])
            total, n = comm.allreduce(sums).tolist()
        return scores | {"deviance": total / n}

    def intervals(self, rows: Dataset, comm: Communicator) -> Report:
        """Mean width of the intervals, which are not of counts and hold no share of them; collective."""
        return super().intervals(replace(rows, y=None), comm)


def _exposures(rows: Dataset, columns: tuple[int, ...]) -> NDArray[np.float64]:
    """Exposures, or numbers of trials, in the first of the columns; 1 if there is none."""
    return np.asarray(dense(rows.X), np.float64)[:, columns[0]] if columns else np.ones(rows.X.shape[0])


def _check_counts(rows: Dataset, likelihood: str, columns: tuple[int, ...], comm: Communicator) -> None:
    """Raise an InputError for rows whose targets are no counts; collective."""
    with comm.agreed(own_rows=True):
        checked(rows.target(), _exposures(rows, columns), likelihood, rows.where)


class Kriged(Family[KrigingMethod, KrigingOptions, KrigingFit, KrigingModel]):
    """The family of kriging."""

    kind = KrigingModel

    def check(self, run: KrigingRun) -> dict[str, Path]:
        """Check --map, and return it as an output file."""
        options = run.options
        if options.map is None or options.grid is None:
            return {}
        if run.comm.rank == 0:  # only rank 0 writes
            maps.check(options.map)
            if maps.is_picture(options.map):
                figures.check(options.map)
        return {"--map": options.map}

    def warm_up(self, run: KrigingRun) -> None:
        """Compile all code, whatever kernel is named or chosen."""
        self.warm_up_prediction(run.job.dtype)

    def warm_up_prediction(self, dtype: str) -> None:
        """Compile all code with a few points."""
        X = np.random.default_rng(0).random((40, 2))
        row_hashes(X, X[:, 0])
        options = KrigingOptions(kernel="wendland2", range=0.5, sill=1.0, nugget=0.1, solver="cg")
        METHOD(Dataset(X.copy(), X[:, 0].copy(), len(X)), options).model.predict_std(X[:2], variance="local")

    @contextmanager
    def progress(self, shown: bool) -> Iterator[dict[str, object]]:
        """No options: training takes few iterations."""
        with line_while_compiling(shown):
            yield {}

    def read(self, run: KrigingRun) -> tuple[Dataset, Dataset | None]:
        """Read rows with their values, and test rows if there are any."""
        job, options, comm, limit = run.job, run.options, run.comm, run.limit
        train, test = reading.read(job, comm, limit, _VALUES)
        with comm.agreed():
            if options.grid is not None and options.map is not None:
                coordinates = train.X.shape[1] - ((options.errors, options.exposure) != (None, None))
                grid = Grid.of(options.grid)
                grid.check(coordinates, maps.is_picture(options.map), options.geographic)
                maps.check_grid(options.map, grid)
                draws, dense = options.simulate or 0, train.n if solver_of(options, train.n) == "cholesky" else 0
                grid.check_memory(draws, dense, maps.is_picture(options.map), limit, comm.size)
                if comm.rank == 0:  # only rank 0 writes
                    maps.check_room(options.map, grid, draws)
        if test is not None and options.likelihood != "gaussian":
            named, names = options.exposure, train.columns.features
            with comm.agreed():
                columns = () if named is None else (column_of(named, train.X.shape[1], names, "exposure"),)
            _check_counts(test, options.likelihood, columns, comm)
        return train, test

    def targets(self, model: KrigingModel) -> tuple[Targets, tuple[int, ...]]:
        """Targets to compare predictions with: one number per row."""
        return _VALUES, ()

    def tested(self, model: KrigingModel, test: Dataset, comm: Communicator) -> Answer:
        """Means and standard deviations at the test rows; collective."""
        mean, std = model.predict_std(test.X, comm)
        if model.likelihood != "gaussian":
            return CountAnswer(model, {"mean": mean, "std": std})
        return KrigedAnswer(model, {"mean": mean, "std": std})

    def report(self, run: KrigingRun, fitted: KrigingFit) -> Report:
        """Fields of the report: parameters, the solution, the estimate and the variogram."""
        model, variogram = fitted.model, fitted.variogram
        return {
            "params": {**reported(fitted.options, run.method.has), **model.described()},
            "solver": fitted.solver,
            "estimate": {
                **({} if fitted.estimate is None else fitted.estimate.described()),
                **({"left_out": fitted.left_out} if fitted.left_out else {}),
            },
            "variogram": {name: getattr(variogram, name).tolist() for name in ("lags", "values", "pairs", "fitted")},
        }

    def draws(self, run: KrigingRun) -> str:
        """Name of the figure of --plot."""
        return "variogram"

    def figure(self, run: KrigingRun, fitted: KrigingFit, report: Report) -> Figure:
        """The variogram."""
        model = fitted.model
        title = f"{model.kernel.kind}: range {model.range:.4g}, sill {model.sill:.4g}, nugget {model.nugget:.4g}"
        return variogram(fitted.variogram, title)

    def save(self, run: KrigingRun, fitted: KrigingFit) -> None:
        """Write the map; collective."""
        options, model = fitted.options, fitted.model
        if options.map is None or options.grid is None:
            return
        grid, count = Grid.of(options.grid), options.simulate or 0
        with model.ranks(None, "save") as comm:
            if not maps.is_picture(options.map):
                with bar(comm.rank == 0 and not run.job.quiet) as begin:
                    maps.write(options.map, grid, model, comm, count, options.seed, begin)
                return
            fields = grid.arrays(model, comm)
            draws = list(grid.drawn(model, comm, min(count, 1), options.seed))
            if fields is not None:
                figures.save(panels(grid, *fields, *(draw for draw in draws if draw is not None)), options.map)

    def lines(self, report: Report) -> Iterator[tuple[str, str]]:
        """Yield the lines of the printed table about the solution."""
        solution = report["solver"]
        if "residual" in solution:
            iterations, residual = solution["iterations"][0], solution["residual"][0]
            text = f"{solution['solver']}, {iterations} iterations, relative residual {residual:.1e}"
        else:
            text = f"neighbours: each place from {solution['neighbours']} near points"
        if "pairs_per_point" in solution:
            storage = "kept" if solution["pairs_kept"] else "computed again in every product"
            text += f"; {solution['pairs_per_point']:.1f} near points per point, {storage}"
        yield "solution", text
        if solution.get("halo"):
            per = f"{solution['halo_bytes_per_iteration']:,} bytes per iteration and right side"
            yield "halo", f"{solution['sent_bytes']:,} bytes sent, {solution['predicted_bytes']:,} predicted; {per}"
        if "cut" in solution:
            cut = solution["cut"]
            yield (
                "cut",
                f"at distance {cut['radius']:.4g}: norm at most {cut['bound']:.1e}, {cut['allowed']:.1e} allowed",
            )

    def notes(self, run: KrigingRun, fitted: KrigingFit) -> list[str]:
        """Notes on the estimate, and on the standard deviations of a map."""
        options = run.options
        notes = list(fitted.notes)
        if options.grid is not None:
            count = Grid.of(options.grid).count
            kind = fitted.model.variance_of(count)
            window = fitted.model.window
            nearest = 2 * options.neighbors if window is None else sum(window)
            how = "exact" if kind == "exact" else f"local: of {nearest} near points, a little larger"
            notes.append(f"{options.map}: {count:,} places; standard deviations are {how}")
        return notes

    def details(self, report: Report) -> Iterator[str]:
        """Yield the lines of --verbose: the variogram."""
        variogram = report["variogram"]
        for lag, value, fitted in zip(variogram["lags"], variogram["values"], variogram["fitted"], strict=True):
            yield f"lag {lag:<10.4g} semivariance {value:<10.4g} fitted {fitted:.4g}"

    def check_prediction(self, model: KrigingModel, job: Predicting) -> None:
        """Raise an InputError for options that need classes or parts."""
        if job.probability:
            raise InputError("--probability: the model predicts numbers and has no classes; leave it out")
        if job.adaptive == "parts":
            raise InputError(
                "--adaptive parts: the model has no parts; leave it out, widths vary with the place anyway"
            )

    def answer(self, model: KrigingModel, rows: Dataset, job: Predicting, comm: Communicator) -> Answer:
        """Means at this rank's rows, with standard deviations and intervals on request; collective."""
        counted = model.likelihood != "gaussian"
        kind = CountAnswer if counted else NumberAnswer
        if counted and rows.y is not None and not model.exposed:
            _check_counts(rows, model.likelihood, model.drift.ignored, comm)
        if not (job.std or job.interval):
            return kind(model, {"mean": model.predict(rows.X, comm)})
        latent = model.latent(rows.X, comm)
        mean, std = model.response(*latent)
        answer = kind(model, {"mean": mean} | ({"std": std} if job.std else {}))
        if job.interval is not None:
            answer.arrays["lower"], answer.arrays["upper"] = model.interval(*latent, job.interval)
            answer.facts = {
                "asked": job.interval, "adaptive": job.adaptive, "rows": "by the kriging variance",
                "calibration_rows": model.n,
            }  # fmt: skip
        return answer


# -- pictures --------------------------------------------------------------------------------------------


def variogram(fitted: Variogram, title: str) -> Figure:
    """The empirical variogram as points, and the fitted one as a line."""
    figure = figures.blank(6.0, 4.0)
    panel = figure.subplots()
    panel.plot(fitted.lags, fitted.values, "o", label="empirical")
    panel.plot(fitted.lags, fitted.fitted, "-", label="fitted")
    panel.set(xlabel="distance", ylabel="semivariance", title=title, xlim=(0, None), ylim=(0, None))
    panel.legend()
    return figure


def panels(
    grid: Grid, mean: NDArray[np.float64], std: NDArray[np.float64], draw: NDArray[np.float64] | None = None
) -> Figure:
    """Means and standard deviations on a grid of two axes, the first one to the right, and a draw if there is one."""
    fields = {"mean": mean, "standard deviation": std} | ({} if draw is None else {"a draw": draw})
    figure = figures.blank(5.5 * len(fields), 4.6)
    ends = [end for axis in grid.axes for end in (axis[0], axis[-1])]
    for panel, (title, values) in zip(figure.subplots(1, len(fields)), fields.items(), strict=True):
        image = panel.imshow(values.T, origin="lower", extent=ends, aspect="equal")
        panel.set_title(title)
        figure.colorbar(image, ax=panel, shrink=0.8)
    return figure

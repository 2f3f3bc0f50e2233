"""Plans: extrapolation of short runs, memory, what fits, job scripts, and the command ``cakernels plan``."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import flat, read, run
from helpers.data import write_csv

from cacore.errors import InputError
from cakernels.plan import command, plan
from cakernels.plan import command as queues
from cakernels.plan.machine import PRESETS, Machine
from cakernels.plan.plan import extrapolated, flops, traffic
from cakernels.plan.runs import (
    METHODS,
    JobLayout,
    Kind,
    Ran,
    Trials,
    Workload,
    generated,
    kind_of,
    method_named,
    of_job,
    with_points,
)
from cakrr.options import RidgeOptions, SubsetOptions
from casvm.options import SVMOptions

MIB = 1 << 20
SVM = Workload(method_named("dissmo"), SVMOptions())
JOB = JobLayout(n=400_000, d=90, parts=1_024, ranks=512, ranks_per_node=16, threads=1)


def ran(layout, seconds, peak=200.0, sent=None, **solver):
    """A run whose report says this."""
    comm = {phase: {"bytes": nbytes, "messages": count} for phase, (nbytes, count) in (sent or {}).items()}
    return Ran(layout, {
        "seconds": {"start": 1.0, "compile": 0.5, **seconds}, "memory": {"peak_rss_mib": [peak]}, "comm": comm,
        "partition_sizes": [layout.n // layout.parts] * layout.parts, "solver": solver,
    })  # fmt: skip


def in_parts(count=4, **more):
    """Layouts of growing parts on two ranks."""
    return [
        replace(JOB, n=4 * part, parts=4, ranks=2, ranks_per_node=2, **more) for part in 100 * 2 ** np.arange(count)
    ]


def test_every_method_has_a_kind():
    kinds = {name: kind_of(method_named(name), None) for name in METHODS}
    assert {name for name, kind in kinds.items() if kind is Kind.TREE} == {"cascade", "dcsvm", "dcfilter"}
    assert (kinds["dkrr"], kinds["dissmo"], kinds["subset"]) == (Kind.SYSTEM, Kind.SHARED, Kind.POINTS)
    assert (kinds["bkrr2"], kinds["cpsvm"], kinds["svr"]) == (Kind.RIDGE_PARTS, Kind.SVM_PARTS, Kind.SVM_PARTS)


def test_ridge_parts_grow_as_the_cube_of_a_part():
    """Terms with which the runs were made are found again, at 50 times the size."""

    def train(one):
        return 0.01 + one.parts_per_rank * (3e-8 * one.part**2 + 2e-10 * one.part**3)

    runs = [ran(one, {"train": train(one), "read": 1e-3 + 1e-6 * one.rows_per_rank}) for one in in_parts()]
    job = replace(JOB, n=80_000, parts=16, ranks=4)
    found = extrapolated(runs, Kind.RIDGE_PARTS, job, True)
    assert found["train"] == pytest.approx(train(job), rel=1e-6)
    assert found["read"] == pytest.approx(1e-3 + 1e-6 * 20_000, rel=1e-6)
    assert found["start"] == 1.5


POINTS = JobLayout(n=500_000, d=20, parts=1, ranks=4, ranks_per_node=4, threads=1, centers=(2_000, 4_000))


def of_points():
    """Layouts of growing rows and points, on 2 ranks."""
    base = replace(POINTS, ranks=2, ranks_per_node=2)
    sizes = [(4_000, 125), (16_000, 125), (16_000, 250), (64_000, 250), (64_000, 500)]
    return [with_points(replace(base, n=n), M) for n, M in sizes]


def test_least_squares_on_points_grow_with_rows_and_points():
    """Rows are shared by the ranks, the work on triangles is not; numbers of points keep their ratio."""

    def train(one):
        return 0.01 + one.n / one.ranks * (2e-9 * one.points + 5e-11 * one.points**2) + 3e-10 * one.points**3

    def sent(one):
        return {"train": (16.0 * one.points**2 * one.ranks + 100 * one.ranks, 30 * one.ranks)}

    layouts = [*of_points(), replace(of_points()[0], ranks=4)]
    assert [one.centers for one in layouts[:3]] == [(62, 125), (62, 125), (125, 250)]
    drawing = [0.01, 0.01, 0.012, 0.04, 0.04]  # random points: whatever the noise, not with the cube of their number
    runs = [
        ran(one, {"train": train(one), "partition": drawing[i % 5]}, sent=sent(one)) for i, one in enumerate(layouts)
    ]
    found = extrapolated(runs, Kind.POINTS, POINTS, False)
    assert found["train"] == pytest.approx(train(POINTS), rel=1e-6)
    assert found["partition"] < 1 < extrapolated(runs, Kind.POINTS, POINTS, True)["partition"]
    assert traffic(runs, Kind.POINTS, POINTS, "bytes")["train"] == pytest.approx(sent(POINTS)["train"][0], rel=1e-6)
    few = replace(POINTS, n=17_000, ranks=64)  # two leaves of 2 M rows and more
    assert plan.folded(few) == 8_500


def test_memory_and_flops_of_least_squares_on_points():
    options, method = SubsetOptions(sigma=(1.0, 2.0), lam=(1e-6, 1e-3)), method_named("subset")
    rows, squares = plan.memory(POINTS, Workload(method, options))
    assert rows == 2 * 125_000 * (160 + 48)
    assert 8 * 8 * 4_000**2 < squares < 8 * 14 * 4_000**2
    n = POINTS.n
    chosen = sum(3 * n * M**2 + 12 * M**3 * 4 for M in (2_000, 4_000))
    expected = 2 * (2 * n * 4_000 * 4_020 + chosen)
    assert flops([ran(of_points()[0], {})], POINTS, Workload(method, options)) == expected
    one = SubsetOptions(sigma=(1.0,), lam=(1e-6,))
    alone = replace(POINTS, centers=(4_000,))
    assert flops([ran(alone, {})], alone, Workload(method, one)) == 2 * n * 4_000 * 4_020


def test_svms_grow_with_the_power_that_is_seen():
    runs = [ran(one, {"train": one.parts_per_rank * 1e-6 * one.part**1.7}) for one in in_parts(6)]
    job = replace(JOB, n=64_000, parts=4, ranks=4)
    assert extrapolated(runs, Kind.SVM_PARTS, job, False)["train"] == pytest.approx(1e-6 * 16_000**1.7, rel=1e-6)


def test_replicated_work_does_not_scale_with_ranks():
    """A fifth of one problem's time does not shrink with more ranks."""

    def train(one):
        return 1e-7 * one.n**1.5 * (0.2 + 0.8 / one.ranks)

    layouts = [JobLayout(n, 8, 1, 2, 2, 1) for n in (10_000, 20_000, 40_000)]
    runs = [ran(one, {"train": train(one)}) for one in (*layouts, replace(layouts[1], ranks=1))]
    job = JobLayout(100_000, 8, 1, 64, 16, 1)
    assert extrapolated(runs, Kind.SHARED, job, False)["train"] == pytest.approx(train(job), rel=1e-6)


def test_bytes_and_messages():
    def sent(one):
        rows = 700 * one.n * (1 - 1 / one.ranks)
        return {"partition": (rows + 90 * one.parts * one.ranks, 20 * one.ranks + 3 * one.ranks * (one.ranks - 1))}

    layouts = [*in_parts(2), replace(in_parts()[0], parts=64), replace(in_parts()[0], ranks=4)]
    runs = [ran(one, {"train": 1.0}, sent=sent(one)) for one in layouts]
    for number, what in enumerate(("bytes", "messages")):
        found = traffic(runs, Kind.RIDGE_PARTS, JOB, what)
        assert found["partition"] == pytest.approx(sent(JOB)["partition"][number], rel=1e-6)
    assert traffic(runs, Kind.RIDGE_PARTS, replace(JOB, ranks=1), "bytes") == {}


@pytest.mark.parametrize(("method", "expected"), [
    ("bkrr2", 2 * 1_000 * (160 + 48) + 8 * 500**2),
    ("dkrr", 2 * 1_000 * (160 + 48) + 8 * 4_000**2 / 4),
])  # fmt: skip
def test_memory_by_formula(method, expected):
    work = Workload(method_named(method), RidgeOptions())
    layout = JobLayout(4_000, 20, 8, 4, 4, 1)
    assert sum(plan.memory(layout, work)) == expected
    runs = [ran(replace(layout, n=400), {}, peak=300.0)]
    base = 300 * MIB - sum(plan.memory(runs[0].layout, work))
    assert plan.peak(runs, layout, work) == pytest.approx(base + expected)


def test_memory_prediction_with_a_fifth_of_the_kernel_cached():
    """Runs of 200 MiB besides their rows and a fifth of 4 n^2 bytes; the job's cache is full at 1 GiB."""
    jobs = [JobLayout(n, 20, 1, 1, 1, 1) for n in (4_000, 8_000, 16_000, 40_000)]
    terms = [plan.memory(one, SVM) for one in jobs]
    peaks = [200 * MIB + rows + 0.2 * values for rows, values in terms]
    runs = [ran(one, {}, peak=peak / MIB) for one, peak in zip(jobs[:3], peaks, strict=False)]
    assert plan.peak(runs, jobs[3], SVM) == pytest.approx(peaks[3])
    assert terms[3][1] == 2**30
    assert plan.peak(runs, jobs[1], SVM) == peaks[1]  # it was run itself


@pytest.mark.parametrize(("seconds", "times"), [(0.2, 3), (20.0, 1)])
def test_a_brief_job_is_run_three_times(seconds, times, monkeypatch):
    """Otherwise a single slow moment would be the plan: the median counts."""
    job = replace(JOB, n=500, parts=1, ranks=1, ranks_per_node=1)
    slow = [1.0, 5.0, 2.0, 1.0]

    def run(trials, layout):
        trials.runs.append(ran(layout, {"train": seconds * slow[len(trials.runs)]}))
        return trials.runs[-1]

    monkeypatch.setattr(Trials, "run", run)
    runs = Trials("casvm.dissmo", [], generated(500, 2, True, seed=0), "float64", Path(), 100.0).all(
        job, Kind.SHARED, 1
    )
    assert len(of_job(runs, job)) == times
    took = extrapolated(runs, Kind.SHARED, job, False)
    assert took["train"] == pytest.approx(seconds * np.median(slow[1 : 1 + times]))


def test_memory_of_tiny_runs_scales_with_their_support_vectors():
    """The job keeps as large a share of K as that of support vectors in the largest run."""
    job, small = JobLayout(10_000, 20, 1, 1, 1, 1), JobLayout(2_000, 20, 1, 1, 1, 1)
    rows, values = plan.memory(small, SVM)
    share = 0.4
    one = ran(small, {}, peak=(200 * MIB + rows + share * values) / MIB, n_support=[800])
    rows, values = plan.memory(job, SVM)
    expected = 200 * MIB + rows + share * values
    assert plan.peak([one], job, SVM) == pytest.approx(expected)
    assert values == 4.0e8


def test_flops_of_ridge_parts():
    """One pair: m^2 d + m^3/3 per part, in choosing nothing; a grid of 5 x 5 on 90 % of the rows adds to that."""
    job, method = replace(JOB, n=8_000, parts=8), method_named("bkrr2")
    one = RidgeOptions(sigma=(1.0,), lam=(1e-4,))
    final = 8 * (1_000**2 * 90 + 1_000**3 / 3)
    grid = 8 * 5 * (900**2 * 90 + 5 / 3 * 900**3)
    several = RidgeOptions(sigma=(1.0, 2.0, 3.0, 4.0, 5.0), lam=(1e-6, 1e-5, 1e-4, 1e-3, 1e-2))
    assert flops([ran(job, {})], job, Workload(method, several)) == pytest.approx(grid + final)
    alone = flops([ran(job, {})], job, Workload(method, one))
    assert alone == pytest.approx(2 * final - final)


def test_coarse_models_count():
    """Their flops and memory."""
    job, method = replace(JOB, n=8_000, parts=8, ranks=2, coarse=600), method_named("twolevel")
    given = {"sigma": (1.0,), "lam": (1e-4,), "coarse_sigma": (9.0,), "coarse_lam": (1e-6,), "centers": (600,)}
    pairs = 2 * 8_000 * 600 * (600 + 2 * 90)  # W'W and the solves for W; kernel values twice
    small = 2 * 2 * 600**3 / 3  # on each of two ranks: a factor of the centres, and one system

    def counted(job, **more):
        return flops([ran(job, {})], job, Workload(method, RidgeOptions(**given, **more)))

    parts = counted(replace(job, coarse=0))
    assert counted(job) - parts == pytest.approx(pairs + small)
    assert counted(job, refine=3) - counted(job) == pytest.approx(4 * 8_000**2 * 95)
    options = RidgeOptions(**given)
    assert plan.memory(job, Workload(method, options, 4))[1] == 8 * (5 * 600**2 + 2 * 600 * 2048)


def test_coarse_models_take_time_in_proportion_to_the_rows():
    """The cube of a part is found beside it."""

    def train(one):
        return 1e-5 * one.rows_per_rank + 1e-9 * one.parts_per_rank * one.part**3

    runs = [ran(one, {"train": train(one)}) for one in in_parts(5, coarse=50)]
    job = replace(JOB, n=160_000, parts=160, ranks=1, coarse=50)
    assert extrapolated(runs, Kind.RIDGE_PARTS, job, True)["train"] == pytest.approx(train(job), rel=1e-6)


@pytest.mark.parametrize(("words", "most"), [([], 1500), (["--centers", "70,90"], 90), (["--centers", "99999"], 3_000)])
def test_plans_of_two_levels_know_their_centres(words, most):
    job, method = command.Planning(method="twolevel", rows=3_000, features=4), method_named("twolevel")
    source, options = generated(100, 4, False), command._options(method, words)
    assert [one.coarse for one in command._layouts(job, Workload(method, options), Machine.this(), source)] == [most]


def test_flops_of_svms_follow_the_kernel_values():
    job, small = replace(JOB, n=8_000, parts=8), replace(JOB, n=800, parts=4)
    runs = [ran(small, {}, kernel_values=[100, 200, 300, 400])]
    expected = 1_000 * (1_000 / 200) ** 2 * (8 / 4) * (2 * 90 + 10)
    assert flops(runs, job, Workload(method_named("cpsvm"), SVMOptions())) == expected


def _plan(job, peak=3_000.0, **machine):
    runs = [
        ran(one, {"train": 1e-9 * one.part**3, "partition": 0.01}, peak, {"partition": (1e5, 40)}) for one in in_parts()
    ]
    node = Machine("test", 24, 64 * 2**30, PRESETS["aries"], **machine)
    options = RidgeOptions(sigma=(1.0,), lam=(1e-4,))
    return plan.planned(runs, job, Workload(method_named("bkrr2"), options), node)


def test_jobs_beyond_memory_are_flagged():
    """24 ranks of 3 GiB do not fit into 90 % of 64 GiB; 19 do."""
    crowded = _plan(replace(JOB, ranks=96, ranks_per_node=24))
    assert not crowded.fits
    assert crowded.nodes_needed == -(-96 // int(0.9 * 64 * 2**30 / crowded.peak)) == 6
    assert _plan(replace(JOB, ranks=96, ranks_per_node=16)).fits
    assert _plan(replace(JOB, ranks=2, ranks_per_node=1), peak=70_000.0).nodes_needed is None


@pytest.mark.parametrize(("seconds", "least", "most"), [(1e-7, 0.5, 0.5), (3.0, 5.0, 5.1)])
def test_plans_from_tiny_runs_are_bounded_by_flops(seconds, least, most):
    """A factorisation takes from half the time of its flops in products to five times as long, besides its start."""
    job = JobLayout(1_000_000, 90, 1, 1, 1, 1)
    layouts = [replace(job, n=n) for n in (250, 500)]
    runs = [ran(layout, {"train": seconds * (layout.n / 250) ** 3}) for layout in layouts]
    options = RidgeOptions(sigma=(1.0,), lam=(1e-4,))
    node = Machine("test", 24, 64 * 2**30, PRESETS["aries"])
    bounded = plan.planned(runs, job, Workload(method_named("dkrr"), options), node, rate=1e10)
    products = bounded.flops / 1e10
    assert least * products <= bounded.seconds["train"] <= most * products + 24.0
    assert bounded.flops >= 1e18 / 3


def test_advice_names_the_quickest_and_the_cheapest_layout():
    """Four times the nodes halve the time, or save nothing."""
    few = _plan(replace(JOB, ranks=16, ranks_per_node=16))
    many = replace(few, layout=replace(JOB, ranks=64, ranks_per_node=16))
    half = replace(many, seconds={phase: taken / 2 for phase, taken in few.seconds.items()})
    assert many.core_hours == pytest.approx(4 * few.core_hours)
    assert next(plan.advice([few, many])) == "16 ranks are enough: more save less than a tenth of the time"
    assert next(plan.advice([few, half])).startswith("quickest: 64 ranks, in ")
    assert next(plan.advice([few, half])).endswith(" s for 50 % of the core-hours")
    fast = replace(many, seconds={phase: taken / 10 for phase, taken in few.seconds.items()})
    assert not any("enough" in line for line in plan.advice([few, fast]))  # the largest is quickest and cheapest
    (start,) = plan.advice([many])
    assert "64 ranks open about 64,000 files" in start
    assert list(plan.advice([few])) == []


@pytest.mark.parametrize("name", command._NETWORKS)
def test_every_network_of_the_option_is_there(name):
    assert PRESETS[name].name == name


def test_slower_machines_networks_and_shared_cores():
    job = replace(JOB, ranks=24, ranks_per_node=24)
    alone = _plan(job)
    assert _plan(job, slower=2.0).total == pytest.approx(2 * alone.total)
    assert _plan(replace(job, threads=2)).seconds["train"] == pytest.approx(alone.seconds["train"])
    several = _plan(replace(job, ranks_per_node=12))
    assert several.seconds["partition"] > alone.seconds["partition"]
    assert several.seconds["train"] == pytest.approx(alone.seconds["train"])


@pytest.mark.parametrize(("queue", "lines"), [
    ("slurm", ["#SBATCH --nodes=32", "#SBATCH --ntasks=512", "#SBATCH --ntasks-per-node=16", "#SBATCH --mem=40G",
               "#SBATCH --time=01:40:00", "srun ${MPI_TYPE:+--mpi=$MPI_TYPE} python -m cakrr.bkrr2 big.h5"]),
    ("pbs", ["#PBS -l select=32:ncpus=16:mpiprocs=16:ompthreads=1:mem=40gb", "#PBS -l walltime=01:40:00",
             "mpiexec -n 512 python -m cakrr.bkrr2 big.h5"]),
    ("lsf", ["#BSUB -n 512", '#BSUB -R "span[ptile=16] rusage[mem=40GB]"', "#BSUB -W 01:40",
             "mpiexec -n 512 -ppn 16 python -m cakrr.bkrr2 big.h5"]),
])  # fmt: skip
def test_job_scripts(queue, lines):
    text = queues.script(queue, JOB, 3_600.0, 2.0 * 2**30, "python -m cakrr.bkrr2 big.h5").splitlines()
    assert text[0] == "#!/bin/bash"
    assert set(lines) <= set(text)


def test_plan_and_check(tmp_path, monkeypatch, capfd):
    """A plan of a real file beside its run: the same layout, memory within a quarter, and both in one table."""
    monkeypatch.chdir(tmp_path)
    rows = generated(900, 3, classes=False)
    write_csv("rows.csv", rows.X, rows.y)
    words = ["--sigma", "2", "--lambda", "1e-3"]
    command = ["-m", "cakrr.bkrr2", "rows.csv", "--partitions", "3", "--report", "r.json", "--quiet", *words]
    subprocess.run([sys.executable, *command], check=True, timeout=100)  # its peak is not that of the tests
    run("cakernels", ["plan", "--check", "r.json", "--within", "1s", "--report", "p.json", "--queue", "slurm"])
    out, made, (plan,) = flat(capfd.readouterr().out), read(tmp_path / "r.json"), read(tmp_path / "p.json")["plans"]
    assert "planned and measured: bkrr2" in out
    assert "python -m cakrr.bkrr2 rows.csv --sigma 2 --lambda 1e-3 --partitions 3" in out
    assert (plan["ranks"], plan["partitions"], plan["data"]["n_train"]) == (1, 3, 900)
    assert plan["comm"] == {}
    assert plan["seconds"]["train"] > 0
    ratio = plan["memory"]["peak_rss_mib"] / max(made["memory"]["peak_rss_mib"])
    assert 0.75 < ratio < 1.25


def test_plan_of_least_squares_on_points(tmp_path, monkeypatch, capfd):
    """Short runs have fewer points than the job, and none more than its rows."""
    monkeypatch.chdir(tmp_path)
    words = ["--rows", "20000", "--features", "3", "--sigma", "2", "--lambda", "1e-3,1e-2", "--centers", "300,600"]
    run("cakernels", ["plan", "subset", *words, "--threads", "1", "--within", "1s", "--report", "p.json"])
    (plan,) = read(tmp_path / "p.json")["plans"]
    assert (plan["centers"], plan["partitions"], plan["data"]["n_train"]) == ([300, 600], 1, 20_000)
    assert plan["seconds"]["train"] > 0
    assert plan["flops"] == flops(
        [ran(POINTS, {})], replace(POINTS, n=20_000, d=3, ranks=1, centers=(300, 600)),
        Workload(method_named("subset"), SubsetOptions(sigma=(2.0,), lam=(1e-3, 1e-2))),
    )  # fmt: skip
    assert "20,000, 300, 600" in flat(capfd.readouterr().out)


def test_commands_of_one_process_on_ranks(mpiexec, tmp_path):
    """One line, of rank 0; rank 1, which does not end the job, need not give it five seconds for each."""
    (tmp_path / "both.py").write_text(
        "import runpy, sys\n"
        "from cacore.comm import communicator\n"
        "communicator._HEAD_START = 0.0\n"
        "for command in ('plan', 'export'):\n"
        "    sys.argv[1:] = [command, 'subset', '--rows', '10']\n"
        "    try:\n        runpy.run_module('cakernels', run_name='__main__')\n"
        "    except SystemExit as end:\n        assert end.code == 2\n"
        "    else:\n        raise AssertionError\n"
    )
    done = mpiexec(2, "-W", "ignore", "both.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    lines = [line for line in done.stderr.splitlines() if line.startswith("cakernels")]
    assert [line.split(":")[0] for line in lines] == ["cakernels plan", "cakernels export"]
    assert all(line.endswith(": run it without mpiexec") for line in lines)


INFO = {
    "ranks": [{"threads": 2, "product_gflop_s": 50.0, "node_cores": 64}], "memory": {"node": 2**38}, "cpu": "fast",
    "messages": {"latency_us": 2.0, "bandwidth_gb_s": 20.0},
}  # fmt: skip


def test_machine_of_a_report(tmp_path):
    path = tmp_path / "node.json"
    path.write_text(json.dumps(INFO))
    machine = Machine.of_report(path, 1 << 40)
    assert (machine.name, machine.cores, machine.memory) == ("fast", 64, 2**38)
    assert machine.network.between.step == pytest.approx(2e-6)
    assert machine.network.between.per_byte == pytest.approx(5e-11)
    assert machine.slower > 0
    for text in ("{", "[]", '{"ranks": []}', json.dumps(INFO | {"ranks": [{"threads": 0}]})):
        path.write_text(text)
        with pytest.raises(InputError, match="--machine"):
            Machine.of_report(path, 1 << 40)


@pytest.mark.parametrize(("words", "message"), [
    ([], "METHOD is needed"),
    (["best"], "METHOD best: choose one of"),
    (["bkrr2"], "give DATA, or --rows N --features D"),
    (["bkrr2", "none.csv"], "none.csv"),
    (["bkrr2", "--rows", "1", "--features", "2"], "--rows 1"),
    (["bkrr2", "--rows", "10", "--features", "2", "--partitions", "11"], "11 parts of 10 rows: ask for fewer"),
    (["dissmo", "--rows", "10", "--features", "2", "--ranks", "12"], "12 ranks of 10 rows: ask for fewer"),
    (["bkrr2", "--rows", "10", "--features", "2", "--ranks", "2", "--nodes", "1"], "--ranks, --nodes: give one"),
    (["bkrr2", "--rows", "10", "--features", "2", "--C", "1"], "--C"),
    (["bkrr2", "--rows", "10", "--features", "2", "--sigma", "-1"], "--sigma"),
    (["subset", "--rows", "10", "--features", "2", "--centers", "5,11"], "centers = 11: there are 10 rows"),
    (["subset", "--rows", "10", "--features", "2", "--partitions", "2"], "--partitions: subset has one model"),
    (["--check", "none.json"], "--check none.json"),
    (["--check", "rows.json"], "--check rows.json: not the report of a training"),
    (["bkrr2", "--machine", "rows.json", "--rows", "10", "--features", "2"], "--machine rows.json: not a report"),
])  # fmt: skip
def test_refused(words, message, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.json").write_text("{}")
    with pytest.raises(SystemExit) as ended:
        run("cakernels", ["plan", *words])
    assert ended.value.code == 2
    err = capfd.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_generated_rows_repeat():
    first, again = generated(50, 3, classes=True), generated(50, 3, classes=True)
    assert np.array_equal(first.X, again.X)
    assert set(first.y) == {-1.0, 1.0}
    assert abs(first.y.mean()) < 0.1

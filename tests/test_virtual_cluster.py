"""The cluster that this machine does not have: the same results, messages and errors as under mpiexec; its model."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import read
from helpers.data import blobs, write_hdf5

from benchmarks import race
from benchmarks.__main__ import compare, main
from benchmarks.cluster import exact, programs, simgrid
from benchmarks.cluster.company import company
from benchmarks.cluster.costs import collective, noticed, summary
from benchmarks.cluster.extrapolate import at, fitted, loads
from benchmarks.cluster.namespaces import Line, nodes, unavailable
from benchmarks.cluster.programs import PROGRAMS, least, method_only
from benchmarks.cluster.timeline import replay
from benchmarks.cluster.trace import Step, collectives
from benchmarks.cluster.world import World
from benchmarks.results import Results
from cacore.errors import InputError
from cakernels.plan.machine import LONG_ALLREDUCE, PRESETS, Link, Network
from partition import KBalance

LINK = Link(latency=1.0, overhead=0.25, gap=0.5, per_byte=0.01)
NETWORK = Network("test", "none", LINK, LINK)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Rows whose sign is their class, on a file."""
    X = np.random.default_rng(0).normal(size=(203, 3))
    y = np.where(X[:, 0] * X[:, 1] > 0, 1.0, -1.0)
    return write_hdf5(tmp_path_factory.mktemp("data") / "rows.h5", train=(X, y), test=(X[:20] + 0.1, y[:20]))


def test_same_as_under_mpiexec(data, in_one_job, tmp_path):
    """Metrics, parts, and every byte and message of every phase."""
    ranks, words = 3, {}
    for name in ("bkrr2", "casvm", "cascade", "dissmo"):
        program = PROGRAMS[name]
        words[f"{program.package}.{program.method}"] = program.arguments(data, ranks)
    reports = {module: tmp_path / f"{module}.json" for module in words}
    in_one_job(ranks, *([module, *words[module], "--report", reports[module]] for module in words))
    for module, path in reports.items():
        method = __import__(module, fromlist=["METHOD"]).METHOD
        command = __import__(f"{module.split('.')[0]}.command", fromlist=["train"])
        argv = [*words[module], "--memory-limit", "4", "--report", str(tmp_path / "virtual.json")]
        World(ranks).run(lambda comm, train=command.train, method=method, argv=argv: train(method, comm, argv))
        real, virtual = read(path), read(tmp_path / "virtual.json")
        assert virtual["partition_sizes"] == real["partition_sizes"]
        for metric, value in real["metrics"].items():
            np.testing.assert_allclose(virtual["metrics"][metric], value, rtol=1e-9)
        for phase in ("partition", "train", "predict"):
            for count in ("bytes", "messages"):
                assert virtual["comm"][phase][count] == real["comm"][phase][count], (module, phase)


def test_calls_of_all_kinds():
    """Every call of the communicator gives each rank what the other ranks brought."""
    seen = {}

    def work(comm):
        mine = np.arange(comm.rank + 1) + 10 * comm.rank
        got = [comm.bcast(mine, 1), comm.allreduce(mine[:1], "max"), comm.allgather(mine)]
        got += comm.alltoall(np.repeat(mine[:1], comm.size), np.ones(comm.size, np.int64))
        if comm.rank == 2:
            comm.send(mine, 0)
        if comm.rank == 0:
            got.append(comm.recv(2))
        got.append(comm.gather(mine[:1], 1))
        comm.barrier()
        seen[comm.rank] = got

    traces = World(3).run(work)
    for rank, got in seen.items():
        bcast, most, everything, rows, arrived, *rest = got
        assert bcast.tolist() == [10, 11]
        assert most.tolist() == [20]
        assert everything.tolist() == [0, 10, 11, 20, 21, 22]
        assert (rows.tolist(), arrived.tolist()) == ([0, 10, 20], [1, 1, 1])
        if rank == 0:
            assert rest.pop(0).tolist() == [20, 21, 22]
        assert (rest[0] is None) if rank != 1 else rest[0].tolist() == [0, 10, 20]
    assert all(trace[-1].call in ("barrier", "") for trace in traces)
    assert replay(traces, NETWORK).end > 0


def test_the_first_error_of_a_rank_is_raised():
    def work(comm):
        if comm.rank == 2:
            raise ZeroDivisionError("row 17")
        comm.barrier()

    with pytest.raises(ZeroDivisionError, match="row 17"):
        World(4).run(work)


def test_deadlocked_ranks_are_reported():
    with pytest.raises(RuntimeError, match="all 2 ranks wait"):
        World(2).run(lambda comm: comm.recv(1 - comm.rank))


def test_agreed_errors(data):
    """A command's one-line error is raised as under mpiexec."""
    with pytest.raises(InputError, match="parts"):
        replace(PROGRAMS["bkrr2"], parts=100).virtual(data, 3, 1, 1.0)


# -- the model --------------------------------------------------------------------------------------


def test_teams(tuned):
    """Parts in two levels on virtual ranks, 3 groups on 8 of them, are the parts of one process; the traces fit."""
    tuned(one_level=1)
    X = blobs(203, 3, apart=4)
    found = [None] * 8

    def work(comm):
        found[comm.rank] = KBalance(9, random_state=0).fit(
            X[comm.rank * 203 // 8 : (comm.rank + 1) * 203 // 8], comm=comm
        )

    traces = World(8).run(work)
    labels = np.concatenate([one.labels_ for one in found])
    assert np.mean(labels != KBalance(9, random_state=0).fit(X).labels_) < 0.02
    teams = {step.team for trace in traces for step in trace} - {()}
    assert sorted(rank for team in teams for rank in team) == list(range(8))
    assert replay(traces, PRESETS["aries"]).end > 0


def test_costs():
    """Some by hand: 8 ranks are 3 stages of 1.5 seconds."""
    assert collective(NETWORK, "barrier", 8, 0, 0) == 4.5
    assert collective(NETWORK, "bcast", 4, 100, 0) == pytest.approx(2 * (1.5 + 1.0))
    assert collective(NETWORK, "allreduce", 8, 100, 0) == pytest.approx(3 * (1.5 + 1.0), rel=1e-6)
    long = 4 * LONG_ALLREDUCE
    assert collective(NETWORK, "allreduce", 4, long, 0) == pytest.approx(4 * 1.5 + 2 * 0.75 * long * 0.01, rel=1e-6)
    assert collective(NETWORK, "alltoall", 4, 1000, 3000) == pytest.approx(1.5 + 3 * 0.5 + 30.0)
    assert collective(NETWORK, "allgather", 4, 1e6, 4e6) == pytest.approx(3 * 1.5 + 3e4)


@pytest.mark.parametrize("call", ["barrier", "bcast", "allreduce", "allgather", "alltoall"])
@pytest.mark.parametrize("name", PRESETS)
def test_costs_grow(call, name):
    """With ranks, and with bytes; one rank sends nothing."""
    network = PRESETS[name]
    by_ranks = [collective(network, call, R, 1000.0, 1000.0 * R) for R in (1, 2, 4, 64, 1024, 65_536)]
    assert by_ranks[0] == 0 or call == "alltoall"
    assert by_ranks == sorted(by_ranks)
    by_bytes = [collective(network, call, 64, most, 64 * most) for most in (0.0, 1e4, 1e6, 1e8)]
    assert by_bytes == sorted(by_bytes)


def test_summary():
    table = [np.array([5, 1, 2]), np.array([9, 5, 0]), np.array([3, 4, 5])]
    assert summary("alltoall", table) == (9.0, 12.0)  # rank 0 receives 9 + 3
    assert summary("allgather", [3, 4]) == (4.0, 7.0)


def step(seconds, call="", sizes=None, peer=-1):
    return Step("train", seconds, call, sizes, peer)


def test_replay_waits_for_the_slowest():
    traces = [[step(1.0, "barrier", 0), step(2.0)], [step(5.0, "barrier", 0), step(1.0)]]
    line = replay(traces, NETWORK)
    assert line.end == 5.0 + 1.5 + 2.0
    assert line.phases == {"train": 8.5}
    assert line.spans[0] == [(0.0, 1.0, "train", True), (1.0, 6.5, "train", False), (6.5, 8.5, "train", True)]


def test_replay_of_a_message():
    traces = [[step(1.0, "send", 100, 1), step(0.0)], [step(0.5, "recv", 100, 0), step(1.0)]]
    line = replay(traces, NETWORK)
    assert line.end == 1.0 + 1.5 + 1.0 + 1.0  # sent after 1, on its way 2.5, then 1


def test_replay_on_fewer_cores():
    """Four ranks of one second each, on two cores."""
    network = Network("test", "none", LINK, LINK, ranks_per_node=4, cores_per_node=2)
    assert replay([[step(1.0)] for _ in range(4)], network).end == pytest.approx(2.0)
    assert replay([[step(1.0)], [step(1.0)], [step(2.0)]], network).end == pytest.approx(2.5)


def test_noticed():
    """A rank that waits pauses for a tenth of the time waited so far, or 5 ms: it is late by no more than that."""
    pausing = replace(NETWORK, pauses=True)
    for waited in (0.0, 5e-4, 1e-3, 1.01e-3, 7e-3, 0.049, 0.0501, 0.3, 12.0):
        late = noticed(pausing, waited) - waited
        assert noticed(NETWORK, waited) == waited
        assert 0 <= late <= (min(0.1 * waited, 5e-3) + 1e-4 if waited > 1e-3 else 0.0)


def test_replay_of_ranks_that_pause():
    """The last one to come goes on at once, the one that has waited for it a little later."""
    traces = [[step(0.1, "barrier", 0), step(0.0)], [step(0.5, "barrier", 0), step(0.0)]]
    network = replace(PRESETS["aries"], pauses=True)
    ends = [spans[-1][1] for spans in replay(traces, network).spans]
    assert ends[1] == replay(traces, PRESETS["aries"]).end
    assert ends[1] < ends[0] <= ends[1] + 6e-3


def test_replay_refuses_mismatched_traces():
    with pytest.raises(ValueError, match="allreduce, barrier"):
        replay([[step(1.0, "barrier", 0)], [step(1.0, "allreduce", 8)]], NETWORK)
    with pytest.raises(ValueError, match="wait for one another"):
        replay([[step(1.0, "barrier", 0)], [step(1.0)]], NETWORK)


def test_least():
    runs = [[[step(1.0, "barrier", 0), step(4.0)]], [[step(2.0, "barrier", 0), step(3.0)]]]
    assert [one.seconds for one in least(runs)[0]] == [1.0, 3.0]
    with pytest.raises(ValueError, match="different calls"):
        least([runs[0], [[step(1.0), step(2.0)]]])


def test_extrapolation():
    """A quantity that grows as a + b R is recovered; so are the calls of a phase."""
    assert fitted([2, 4, 8], [5.0, 7.0, 11.0], 100) == pytest.approx(103.0)
    assert fitted([4, 16, 64], [2.0, 4.0, 8.0], 256) == pytest.approx(16.0)
    assert fitted([2, 4], [0.0, 0.0], 100) == 0.0
    runs = {R: loads([[step(0.1 * R, "allreduce", 8 * R)] for _ in range(R)]) for R in (2, 4, 8)}
    load = at(runs, 64)["train"]
    assert load.compute == pytest.approx(6.4)
    assert load.calls["allreduce"][:2] == pytest.approx((1.0, 512.0))


def test_exact():
    """Twice the ranks and rows are four times the time of the arithmetic; the memory is n^2 / R."""
    assert exact.memory(1 << 15, 4) == 2.0
    one, two = (exact.seconds(20_000 * R, 90, R, 1e10, PRESETS["aries"]) for R in (16, 32))
    assert two / one == pytest.approx(4.0, rel=0.1)


@pytest.mark.skipif(not simgrid.installed(), reason="no smpirun: apt install libsimgrid-dev")
@pytest.mark.parametrize("name", ["bkrr2", "cascade"])
def test_simgrid_agrees(name, data):
    """Another engine's time line of the same traces, all computations made as long."""
    traces = method_only(PROGRAMS[name].virtual(data, 4, 1, 4.0))
    slow = [[Step(one.phase, 1e-4, one.call, one.sizes, one.peer) for one in trace] for trace in traces]
    network = PRESETS["aries"]
    assert simgrid.predicted(slow, network) == pytest.approx(replay(slow, network).end, rel=0.1)


@pytest.mark.skipif(not simgrid.installed(), reason="no smpirun: apt install libsimgrid-dev")
def test_simgrid_shares_cores():
    """Four ranks on a node of two cores compute for as long as on our time line."""
    network = replace(PRESETS["aries"], ranks_per_node=4, cores_per_node=2)
    traces = [[step(0.1 * (rank + 1), "barrier", 0), step(0.1)] for rank in range(4)]
    assert simgrid.predicted(traces, network) == pytest.approx(replay(traces, network).end, rel=0.02)


def test_the_first_run_is_not_timed(monkeypatch):
    """Whatever the repeats: it compiles. Runs of 9, 1 and 2 s stand in for a program."""
    runs = iter([9.0, 1.0, 2.0, 9.0, 3.0])

    class Clocked:
        def __init__(self, ranks):
            pass

        def run(self, work):
            return [[Step("train", next(runs), "", None, -1)]]

    monkeypatch.setattr(programs, "World", Clocked)
    for repeats, seconds in ((2, 1.0), (1, 3.0)):
        ((one,),) = PROGRAMS["bkrr2"].timed(Path("none.h5"), 1, repeats, 1.0)
        assert one.seconds == seconds


# -- a slow line --------------------------------------------------------------------------------------


def test_over_a_slow_line(data, tmp_path):
    """Ranks behind a line get what ranks of one machine get, and wait for each exchange as long as it is delayed."""
    if why := unavailable():
        pytest.skip(why)
    program, ranks, line = PROGRAMS["dissmo"], 2, Line(delay=2e-3, rate=1e7)
    traces = method_only(program.virtual(data, ranks, 1, 4.0))
    exchanges = sum(steps[0].call in ("allreduce", "allgather") for steps in collectives(traces))
    words = ["-m", "casvm.dissmo", *program.arguments(data, ranks)]
    reports = []
    with nodes(ranks, line) as (launch, environment):
        for start, variables in ((launch, environment), (["mpiexec", "-n", "2"], None)):
            out = tmp_path / f"{len(reports)}.json"
            subprocess.run(
                [*start, sys.executable, *words, "--report", str(out)], env=variables, check=True, timeout=300
            )
            reports.append(json.loads(out.read_text()))
    slow, quick = reports
    assert slow["metrics"] == quick["metrics"]
    assert slow["solver"]["iterations"] == quick["solver"]["iterations"]
    seconds = sum(slow["seconds"][phase] for phase in ("partition", "train", "predict", "wait"))
    assert seconds > exchanges * line.delay > 0.02
    assert f"{line}" == "a delay of 2 ms, 10 MB/s"


def test_a_line_needs_root(monkeypatch, capsys):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert main(["network"]) == 2
    assert "network namespaces need Linux and root" in capsys.readouterr().err


# -- the commands -------------------------------------------------------------------------------------


def test_commands(elsewhere, capsys):
    assert main(["list"]) == 0
    assert "weak-scaling" in capsys.readouterr().out
    few = ["--ranks", "2", "4", "--rows", "60", "--repeats", "1", "--no-simgrid", "--methods", "bkrr2", "dkrr"]
    assert main(["weak-scaling", *few, "--up-to", "1024"]) == 0
    records = Results.load(elsewhere / "weak-scaling.json").records
    assert [(record["method"], record["ranks"], record["how"]) for record in records] == [
        ("bkrr2", 2, "computed"), ("bkrr2", 4, "computed"), ("bkrr2", 1024, "extrapolated"),
        ("dkrr", 2, "formula"), ("dkrr", 4, "formula"), ("dkrr", 1024, "formula"),
    ]  # fmt: skip
    assert main(["strong-scaling", *few, "--results", "strong.json", "--timeline", "lines"]) == 0
    assert {file.name for file in (elsewhere / "lines").iterdir()} == {"bkrr2_2.png", "bkrr2_4.png"}
    assert main(["plot", "weak-scaling.json", "weak.png"]) == 0
    assert (elsewhere / "weak.png").stat().st_size > 10_000
    assert main(["compare", "weak-scaling.json", "weak-scaling.json"]) == 0
    capsys.readouterr()
    (elsewhere / "other.json").write_text("[1, 2]")
    (elsewhere / "torn.json").write_text('{"benchmark": ')
    for wrong in (
        ["nothing"], ["compare", "a.json", "b.json"], ["weak-scaling", "--results"], ["plot", "other.json", "o.png"],
        ["compare", "weak-scaling.json", "torn.json"],
    ):  # fmt: skip
        assert main(wrong) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_validate(elsewhere, monkeypatch, tuned):
    """The model's seconds beside those of mpiexec, of a rank that is timed while another one computes."""
    monkeypatch.setattr("benchmarks.scaling.this_machine", lambda ranks: replace(PRESETS["aries"], cores_per_node=2))
    tuned(race_tries=1)
    few = ["--methods", "casvm", "--ranks", "2", "--rows", "100", "--repeats", "1", "--no-simgrid"]
    assert main(["validate", *few]) == 0
    (record,) = Results.load(elsewhere / "validate.json").records
    assert record["ratio"] == record["seconds"] / record["measured_seconds"] > 0
    assert main(["plot", "validate.json", "validate.png"]) == 0


def test_company_that_ends(data):
    with (
        pytest.raises(RuntimeError, match="it ended with status 1"),
        company(1, "none", PROGRAMS["casvm"], data, 2, 4.0),
    ):
        pytest.fail("the block must not run")


def test_least_time_is_that_of_undisturbed_runs(tuned):
    """The least of those that were not; of all where there is no other."""
    runs = iter([(1.0, 0.9), (3.0, 0.0), (2.0, 0.05), (9.0, 0.0)])
    tuned(race_others=lambda work: next(runs))
    assert race.least(float, 2) == (2.0, 0.05)
    tuned(race_others=lambda work: (work(), 1.5))
    assert race.least(iter([3.0, 2.0, 4.0, 5.0]).__next__, 1) == (2.0, 1.5)


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="no /proc/stat")
def test_cores_used_by_other_processes():
    """The cores of processes that were not waited for, from the system's count; ours are taken off."""
    spin = [sys.executable, "-c", "import time; b = time.time()\nwhile time.time() < b + 0.5: pass"]
    with subprocess.Popen([*spin[:2], spin[2].replace("0.5", "30")]) as other:
        other_busy = race.others(lambda: float(time.sleep(1.0) is not None))[1]
        other.kill()
    assert other_busy > 0.05


def test_compare(tmp_path, capsys):
    """A measurement counts as slower from a ratio of 1.1 on."""
    for name, seconds in (("a", 1.0), ("b", 1.05), ("c", 1.2)):
        Results("x", [{"race": "one", "seconds": seconds}]).save(tmp_path / f"{name}.json")
    assert compare(tmp_path / "a.json", tmp_path / "b.json")
    assert not compare(tmp_path / "a.json", tmp_path / "c.json")
    assert "1 of 1 got slower" in capsys.readouterr().out
    Results("y", [{"race": "other", "seconds": 1.0}]).save(tmp_path / "d.json")
    with pytest.raises(InputError, match="in common"):
        compare(tmp_path / "a.json", tmp_path / "d.json")

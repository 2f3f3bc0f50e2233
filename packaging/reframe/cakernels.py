"""ReFrame's tests of an installation: what `cacore.info` says of a job, and a training on all of its ranks.

On a cluster with the site's own configuration, in an environment where ``python3 -m cacore.info`` works:

    reframe -c packaging/reframe/cakernels.py -r -S num_tasks=64 -S num_tasks_per_node=16

On one machine add ``-C packaging/reframe/local.py``. Another interpreter is ``-S python=...``.
"""

import json
from pathlib import Path

import reframe as rfm
import reframe.utility.sanity as sn
import reframe.utility.typecheck as typ
from reframe.core.builtins import deferrable, performance_function, run_before, sanity_function, variable


class Job(rfm.RunOnlyRegressionTest):
    """A module of the package on all ranks, which writes a report."""

    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    num_tasks = 2
    time_limit = "15m"  # a new installation compiles at its first training
    python = variable(str, value="python3")
    module = variable(str)
    words = variable(typ.List[str], value=[])

    @run_before("run")
    def set_command(self):
        """The command, with this job's interpreter."""
        self.executable = self.python
        self.executable_opts = ["-m", self.module, *self.words, "--report", "report.json"]

    @deferrable
    def report(self):
        """What the job has reported."""
        return json.loads(Path(self.stagedir, "report.json").read_text())

    @deferrable
    def ended_well(self):
        """Its exit status is 0. Launchers print what they like on stderr."""
        return sn.assert_eq(self.job.exitcode, 0)


@rfm.simple_test
class CakernelsInfo(Job):
    """All ranks are there and nothing is wrong; how fast messages and matrix products are."""

    module = "cacore.info"

    @sanity_function
    def nothing_is_wrong(self):
        """Every rank has found the others, and no fault is told."""
        made = self.report()
        return sn.all([
            sn.assert_eq(made["faults"], []),
            sn.assert_eq(sn.len(made["ranks"]), self.num_tasks),
            self.ended_well(),
        ])  # fmt: skip

    @performance_function("GFLOP/s")
    def slowest_product(self):
        """Of the ranks' matrix products, all at once."""
        return sn.min([one["product_gflop_s"] for one in self.report()["ranks"].evaluate()])

    @performance_function("GB/s")
    def slowest_copy(self):
        """Of the ranks' copies of memory, all at once."""
        return sn.min([one["copy_gb_s"] for one in self.report()["ranks"].evaluate()])

    @performance_function("us")
    def latency(self):
        """Between rank 0 and the last; 0 for one rank, which sends nothing."""
        return self.report().evaluate()["messages"].get("latency_us", 0.0)


@rfm.simple_test
class CakernelsTraining(Job):
    """BKRR2 on a known function: the right error, on all ranks, without a byte sent in training."""

    module = "cakrr.bkrr2"
    words = ["rows.csv", "--partitions", "4", "--sigma", "0.5", "--lambda", "1e-6", "--test", "rows.csv", "--quiet"]

    @run_before("run")
    def make_rows(self):
        """The file of rows."""
        self.prerun_cmds = [f"{self.python} rows.py"]

    @sanity_function
    def learned(self):
        """The error is far below the target's spread, 0.8."""
        made = self.report()
        return sn.all([
            sn.assert_eq(made["ranks"], self.num_tasks),
            sn.assert_lt(made["metrics"]["rmse"], 0.02),
            sn.assert_eq(made["comm"]["train"]["bytes"], 0),
            self.ended_well(),
        ])  # fmt: skip

    @performance_function("s")
    def seconds_of_training(self):
        """Of the slowest rank."""
        return self.report()["seconds"]["train"]

"""What tests set inside the packages, so that few rows reach code for many; only this file says where it is.

The fixture `tuned` sets it for the rest of a test: ``tuned(working_set=16, touch=0.0)``. At the end of the table are
functions: clocks, what the machine has, and decisions.
"""

from __future__ import annotations

CONSTANTS = {
    # SMO and its kernel cache
    "working_set": "casvm.solver.smo.WORKING_SET",  # rows per round
    "smo_chunk": "casvm.solver.smo._CHUNK",  # pairs between two checks for inactive rows
    "smo_shrinking": "casvm.solver.smo.SHRINKING",
    "pair_steps": "casvm.solver.active_set._STEPS",  # single-precision pairs before v is computed again
    "touch": "casvm.solver.kernel_rows.TOUCH",  # price of memory not used yet: 0 stores all that is computed
    "support_block": "casvm.solver.kernel_rows._SOME",  # rows computed per product
    "mirrored": "casvm.solver.kernel_rows._MIRRORED",  # price from which half of a square is computed
    "square_strip": "casvm.solver.kernel_rows._STRIP",  # rows of a square computed at a time
    "expensive_value": "casvm.solver.kernel_rows._EXPENSIVE",  # price from which stored values are read again
    "near_problem_rows": "casvm.solver.near_smo.LEAST_ROWS",  # fewer have a whole kernel matrix
    "near_problem_share": "casvm.solver.near_smo.MOST_NEAR",  # largest share of kernel values not negligible
    "near_pool_rows": "casvm.solver.near_rows._LEAST",  # rows that always fit in the pool
    "pairs_pass": "casvm.solver.class_pairs._PASSED",  # rows that pairs pass between two looks at the clock
    # Tables with words
    "mixed_block": "cacore.io.mixed.BLOCK",  # bytes of features made at a time
    "mixed_sample": "cacore.io.mixed._SEEN",  # bytes of a text that show which columns are decimal numbers
    # Dis-SMO
    "look": "casvm.solver.distributed._LOOK",  # rows of working sets between two checks for inactive rows
    "dissmo_shrinking": "casvm.solver.distributed.SHRINKING",
    "visitors": "casvm.solver.distributed._VISITORS",  # rows sent to all ranks at a time
    "near_columns": "casvm.solver.near_smo._NEAR",  # largest share of near columns whose rows are computed anew
    "near_columns_fine": "casvm.solver.near_smo._NEAR_FINE",  # likewise, of few columns
    "sample": "casvm.solver.distributed._SAMPLE",
    "common_rows": "casvm.solver.near_shares._COMMON",  # rows that all ranks optimise alike
    "common_share": "casvm.solver.near_shares._FEW",  # share of the active rows up to which they are optimised alike
    # searches and probabilities of SVMs
    "search_rows": "casvm.methods.all_rows.ROWS",
    "search_whole": "casvm.methods.all_rows.WHOLE",
    "piece_rows": "casvm.search.classes.ROWS",  # rows per piece of a part
    "piece_most": "casvm.search.classes.MOST",  # a larger part is cut into pieces
    "search_coefficients": "casvm.search.cross_validation.COEFFICIENTS",  # bytes; 1: gammas one after the other
    "whole_parts": "casvm.search.classes.WHOLE",  # rows up to which parts stay whole
    "errors_apart": "cacore.tuning.ERRORS",  # standard errors by which a setting trails that is dropped
    "telling_rows": "cacore.tuning._TELLING",  # rows per fold from which a round has one fold
    "probability_rows": "casvm.methods.probability.MOST",  # rows whose kernel matrix serves all folds
    "probability_tol": "casvm.methods.probability.LOOSE",
    "scales_rows": "casvm.methods.length_scales.LEARN",
    # ridge regression
    "island_box": "cakrr.iterative.islands.BOX",  # rows of a box
    "island_rows": "cakrr.iterative.islands.LEAST",  # smaller islands are solved together
    "preconditioner_block": "cakrr.iterative.systems.PART",
    "tile_rows": "cakrr.iterative.products._ROWS",
    "tile_columns": "cakrr.iterative.products._COLUMNS",
    "save_every": "cakrr.iterative.solver.SAVE_EVERY",  # seconds between two checkpoints
    "band_from": "cakrr.solver.local.BAND_FROM",  # lambdas from which one band reduction is made
    "eigen_from": "cakrr.solver.local.EIGEN_FROM",  # lambdas from which one eigendecomposition is made
    "band_many": "cakrr.solver.local.MANY",
    "band_few": "cakrr.solver.local.FEW",
    "band_steps": "cakrr.solver.local.STEPS",
    "eigen_bytes": "cakrr.solver.local.EIGEN_BYTES",
    "worst_condition": "cakrr.solver.coarse.WORST",  # condition from which the triangle is taken
    "soft_tried": "cakrr.methods.choose.SOFT_TRIED",
    "rows_per_part": "cakrr.methods.prepare.ROWS_PER_PART",
    "model_piece": "cakrr.methods.factored.PIECE",  # rows per piece of an exact model
    # kriging
    "likelihood_rows": "cakriging.estimation.EXACT",  # points up to which the likelihood is exact
    "estimate_digits": "cakriging.estimation._CLOSE",  # change at which the search for parameters ends
    "first_ranges": "cakriging.estimation._RANGES",
    "kriging_dense": "cakriging.kriging_fit.DENSE",  # points up to which the system is dense
    "screened": "cakriging.selection.SCREENED",  # points of the fits that are compared
    "compared": "cakriging.selection.COMPARED",  # points of left-out blocks
    "kriging_save_every": "cakriging.kriging_fit.SAVE_EVERY",
    "map_box": "cakriging.maps.BOX",  # places per rank that are predicted together
    "halvings": "cakriging.counts._HALVINGS",  # lengths that a Newton step for counts may have
    # near rows
    "group": "cacore.near.expansion.GROUP",  # rows of a group
    "group_columns": "cacore.near.expansion._COLUMNS",  # columns of a tile
    "sort_cost": "cacore.near.expansion._SORT",  # 0 or 1: grouping always pays
    "halo_group": "cacore.near.halo.GROUP",
    "halo_rows": "cacore.near.halo.ROWS",  # rows that visit at a time
    "decision_box": "cacore.svm.decision._BOX",
    "decision_near": "cacore.svm.decision._NEAR",  # share of near pairs that pays
    "decision_rows": "cacore.svm.decision._ROWS",
    "decision_bytes": "cacore.svm.decision._BLOCK_BYTES",
    # kernels and linear algebra
    "wide_columns": "cacore.kernels.wide.COLUMNS",  # columns of a tile
    "gradient_bytes": "cacore.kernels.gradients._BYTES",
    "pairs_per_row": "casvm.solver.class_pairs._HARD",  # steps per row before free rows are solved together
    "most_whole": "casvm.solver.class_pairs.MOST_WHOLE",  # rows of a problem whose K is computed at once
    "length_bytes": "cacore.data.lengths._BYTES",
    "lapack_block": "cacore.linalg.lapack.BLOCK",
    "lapack_update": "cacore.linalg.lapack.UPDATE",  # rows per call of dsyrk
    "lapack_inverse": "cacore.linalg.lapack.INVERSE",  # columns of an inverse per block
    "pivot_block": "cacore.linalg.pivoted.BLOCK",
    "tsqr_block": "cacore.linalg.tsqr.BLOCK",
    "scalapack_block": "cacore.linalg.scalapack.BLOCK",
    "scalapack_layout": "cacore.linalg.scalapack.layout.__defaults__",
    # files and rows on disk
    "text_block": "cacore.io.stream._BLOCK",  # bytes read at a time
    "spool_chunk": "cacore.io.spool.CHUNK",
    "array_block": "cacore.io.native.BLOCK",
    "table_block": "cacore.io.table.BLOCK",
    "stored_block": "cacore.data.stored.BLOCK_BYTES",
    "stored_gap": "cacore.data.stored._OVER",  # gaps up to this many bytes are read and dropped
    # partition, the front and exports
    "one_level": "partition.algorithms.clusters.ONE_LEVEL",  # most parts whose centres are found in one level
    "message_numbers": "partition.algorithms.clusters._MESSAGE",  # numbers sent in the time of one more message
    "loading_seconds": "cakernels.dropin.calls._LOADING",
    "onnx_numbers": "cakernels.onnx.svm._MOST",
    "onnx_bytes": "cakernels.onnx.graph._LARGEST",
    "threads": "cacore.machine.threads._limit",  # of the package; the BLAS keeps its number
    "turns": "asygcd.solver.asygcd.TURNS",  # turns of a thread before it returns from compiled code
    # clocks, in seconds
    "cg_clock": "cakrr.iterative.solver.working_time",
    "islands_clock": "cakrr.iterative.systems.working_time",
    "whole_clock": "cakrr.methods.whole_system.working_time",
    "budget_clock": "cakernels.search.trial.working_time",
    "phase_clock": "cacore.comm.communicator.time.perf_counter",
    "virtual_clock": "benchmarks.cluster.world.time.thread_time",
    "verbose_time": "cacore.svm.classifier.time",  # the module
    # the machine
    "available_memory": "cacore.machine.memory.available",
    "processor": "casvm.methods.all_rows.cpu_name",
    "scalapack_library": "cacore.linalg.scalapack._library",
    "scalapack_files": "cacore.linalg.scalapack._files",
    "temporary_folder": "tempfile.tempdir",
    # decisions
    "first_candidates": "cakernels.search.race.first",
    "race_until": "cakernels.search.race.until",  # the context that ends a candidate
    "blending_until": "cakernels.search.blending.until",
    "gathers": "cakrr.iterative.systems.gathers",  # False: pieces of the rows go round in a ring
    "borrows": "cakrr.iterative.systems.borrows",
    "pairs_together": "casvm.solver.class_pairs.ClassRows.of",  # None: each pair of classes is solved by itself
    "metric_sample": "cakrr.methods.factored.sample_of",
    "pool_capacity": "casvm.solver.distributed.Distributed._capacity",
    "set_threads": "cacore.machine.threads.set_threads",
    "race_run": "cakernels.search.race.Race.run",
    "race_folds": "cakernels.search.race.Race._folds",  # errors of a candidate on held-out rows
    "race_training": "cakernels.search.race.Race.trained",  # trains a candidate on some rows
    "race_baseline": "cakernels.search.race.Race.baseline_error",
    "candidate_after": "cakernels.search.candidates.Candidate.after",  # what the next training takes over
    "blend": "cakernels.search.blending.combined",
    # how ranks wait
    "wait_clock": "cacore.comm.failure.perf_counter",
    "transport_clock": "cacore.comm.communicator.perf_counter",
    "pause": "cacore.comm.failure.sleep",
    # benchmarks
    "race_matrix": "benchmarks.race._A",
    "machine_rate": "benchmarks.race.machine_rate",
    "asygcd_machine_rate": "benchmarks.asygcd_speed.machine_rate",
    "race_tries": "benchmarks.race.TRIES",
    "race_others": "benchmarks.race.others",  # a call's result, and cores that other programs used meanwhile
    "generated_files": "benchmarks.generated.FILES",
    "svm_warm_up": "benchmarks.svm_speed._warm",
    "asygcd_warm_up": "benchmarks.asygcd_speed.warm",
    "anytime_draws": "benchmarks.anytime._DRAWS",
    "touched_gib": "benchmarks.weak_parts._TOUCHED",
}

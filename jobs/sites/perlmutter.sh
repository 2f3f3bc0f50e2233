# shellcheck shell=bash disable=SC2034
# Perlmutter (NERSC), nodes without GPUs: two AMD EPYC 7763, 128 cores, 8 NUMA domains, 512 GB.
# Written from the centre's documentation, not run there.
#   jobs/submit.sh --site perlmutter --account mNNNN --nodes 4 --time 01:00:00 large RUN casvm.cpsvm DATA.h5 --C 32
# mpi4py: module load python; MPICC="cc -shared" pip install --no-binary=mpi4py mpi4py
site_queue=slurm
site_cores=128
site_ranks_per_node=8
site_options='--constraint=cpu --qos=regular --hint=nomultithread'
site_modules='python'
# HDF5's file locks fail on some of the centre's file systems.
export HDF5_USE_FILE_LOCKING=FALSE

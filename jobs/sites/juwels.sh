# shellcheck shell=bash disable=SC2034
# JUWELS Cluster (Juelich): two Intel Xeon Platinum 8168, 48 cores, 2 NUMA domains, 96 GB.
# Written from the centre's documentation, not run there.
#   jobs/submit.sh --site juwels --account PROJECT --nodes 4 --time 01:00:00 large RUN casvm.cpsvm DATA.h5 --C 32
# srun speaks pspmix to ParaStationMPI by itself; mpi4py is a module there.
site_queue=slurm
site_cores=48
site_ranks_per_node=2
site_options='--partition=batch --hint=nomultithread'
site_modules='GCC ParaStationMPI Python mpi4py'

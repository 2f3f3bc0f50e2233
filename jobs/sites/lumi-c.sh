# shellcheck shell=bash disable=SC2034
# LUMI-C (CSC): two AMD EPYC 7763, 128 cores, 8 NUMA domains, 224 GB for jobs.
# Written from the centre's documentation, not run there.
#   jobs/submit.sh --site lumi-c --account project_NNN --nodes 4 --time 01:00:00 large RUN casvm.cpsvm DATA.h5 --C 32
# Its file system is slow with many small files: pack the environment (STAGE, jobs/stage.sh), or use a container.
site_queue=slurm
site_cores=128
site_ranks_per_node=8
site_options='--partition=standard --mem=0'
site_modules='LUMI cray-python'
# site_container='singularity exec --bind /scratch,/project cakernels.sif'

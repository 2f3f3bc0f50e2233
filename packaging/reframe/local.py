"""ReFrame on one machine: jobs are started at once, by mpiexec."""

site_configuration = {
    "systems": [
        {
            "name": "local",
            "hostnames": [".*"],
            "partitions": [
                {"name": "mpi", "scheduler": "local", "launcher": "mpiexec", "environs": ["installed"], "max_jobs": 1},
            ],
        },
    ],
    "environments": [{"name": "installed"}],
}

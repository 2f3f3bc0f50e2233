"""``python -m cakriging DATA``: kriging, with or without mpiexec."""

from cakriging import METHOD
from cakriging.command import main

if __name__ == "__main__":
    main(METHOD)

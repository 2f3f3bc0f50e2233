"""``python -m cakriging DATA``: kriging, with or without mpiexec."""

from cakriging.command import main
from cakriging.kriging_method import METHOD

if __name__ == "__main__":
    main(METHOD)

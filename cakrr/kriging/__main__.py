"""``python -m cakrr.kriging DATA``: kriging, with or without mpiexec."""

from cakrr.command import main
from cakrr.kriging import METHOD

if __name__ == "__main__":
    main(METHOD)

"""``python -m cakrr.predict MODEL DATA``: prediction with a saved model, with or without mpiexec."""

from cakrr.command import main_predict

if __name__ == "__main__":
    main_predict()

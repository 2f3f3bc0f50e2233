"""``python -m cakriging.predict MODEL DATA``: prediction with a saved model, with or without mpiexec."""

from cakriging.command import main_predict

if __name__ == "__main__":
    main_predict()

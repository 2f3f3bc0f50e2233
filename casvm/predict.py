"""``python -m casvm.predict MODEL DATA``: prediction with a saved model, with or without mpiexec."""

from casvm.command import main_predict

if __name__ == "__main__":
    main_predict()

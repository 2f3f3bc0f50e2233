"""``python -m asygcd.predict MODEL DATA``: predict with a saved model, on any number of ranks or without MPI."""

from asygcd.command import main_predict

if __name__ == "__main__":
    main_predict()

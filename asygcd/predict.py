"""``python -m asygcd.predict MODEL DATA``: labels by a saved model, on any number of ranks or none."""

from asygcd.command import main_predict

if __name__ == "__main__":
    main_predict()

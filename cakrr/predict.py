"""``python -m cakrr.predict MODEL DATA``: predictions of a saved model, on any number of ranks or none."""

from cakrr.command import main_predict

if __name__ == "__main__":
    main_predict()

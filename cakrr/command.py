"""The commands of kernel ridge regression: training, one per method, and prediction with a saved model."""

from cacore.run.command import Commands

COMMANDS = Commands("cakrr", "cakrr.ridge_family:Ridge", ("probability", "std", "interval", "adaptive"))
train, main, main_predict = COMMANDS.train, COMMANDS.main, COMMANDS.main_predict

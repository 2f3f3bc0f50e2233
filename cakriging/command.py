"""The commands of kriging: training, and prediction with a saved model."""

from cacore.run.command import Commands

COMMANDS = Commands("cakriging", "cakriging.kriging_family:Kriged", ("std", "interval"))
train, main, main_predict = COMMANDS.train, COMMANDS.main, COMMANDS.main_predict

"""The commands of Asy-GCD: train, and predict with a saved model."""

from cacore.run.command import Commands

COMMANDS = Commands("asygcd", "asygcd.asygcd_family:AsyGCDFamily", ("decisions", "probability"))
train, main, main_predict = COMMANDS.train, COMMANDS.main, COMMANDS.main_predict

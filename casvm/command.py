"""The commands of kernel SVMs: training, with one command per method, and prediction with a saved model."""

from cacore.run.command import Commands

COMMANDS = Commands("casvm", "casvm.svm_family:SupportVectors", ("decisions", "probability", "interval"))
train, main, main_predict = COMMANDS.train, COMMANDS.main, COMMANDS.main_predict

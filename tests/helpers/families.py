"""The program of each family that predicts, and its model in the fixture `inputs`."""

from __future__ import annotations

from asygcd import AsyGCDModel
from cakrr import KRRModel
from casvm import SVMModel

PREDICT = {"cakrr": ("krr.h5", KRRModel), "casvm": ("svm.h5", SVMModel), "asygcd": ("asygcd.h5", AsyGCDModel)}


def model_of(program, path):
    return PREDICT[program.split(".")[0]][1].load(path)


def predict(program):
    return program.split(".")[0] + ".predict"

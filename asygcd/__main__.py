"""``python -m asygcd DATA``: train, test, save and report, in one process with several threads."""

from asygcd.asygcd_method import METHOD
from asygcd.command import main

main(METHOD)

"""``python -m asygcd DATA``: train, test, save and report, in one process with several threads."""

from asygcd.command import main
from asygcd.options import METHOD

main(METHOD)

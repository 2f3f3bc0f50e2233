"""``python -m asygcd DATA``: train, test, save, report; one process and its threads."""

from asygcd.command import main
from asygcd.options import METHOD

main(METHOD)

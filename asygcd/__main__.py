"""``python -m asygcd DATA``."""

from asygcd.cli import main

main()

"""``python -m asygcd DATA``: train, test, save, report; one process and its threads."""

from asygcd.options import METHOD

METHOD.main()

"""Remarks on a file that is read: what was passed over or taken for granted, said once for all records."""

from __future__ import annotations

import warnings

from molflt.errors import InputWarning


class Notes:
    """Collects remarks on a file, to be given as one ``InputWarning`` each, however many records they concern.

    Args:
        where: the file.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._records: dict[str, list[str]] = {}

    def add(self, remark: str, record: str = "") -> None:
        """Note something about a record, named ``FILE#INDEX`` or by its line, or about the whole file."""
        records = self._records.setdefault(remark, [])
        if record:
            records.append(record)

    def give(self) -> None:
        """Warn of everything that was noted, and forget it."""
        for remark, records in self._records.items():
            n = len(records)
            which = "" if n == 0 else f" ({records[0]})" if n == 1 else f" ({n:,} structures, first: {records[0]})"
            warnings.warn(f"{self._where}: {remark}{which}", InputWarning, stacklevel=3)
        self._records.clear()

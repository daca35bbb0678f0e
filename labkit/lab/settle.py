"""What follows a final run folder: its ledger entry, its picture and its page."""

from pathlib import Path


def enter_ledger(root: Path, folder: Path) -> list[Path]:
    """Adds the run to the ledger; the event files written."""
    from labkit.lab import ledger

    return list(ledger.append(root, folder))

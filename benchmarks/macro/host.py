"""How much of this machine its host took away while something ran.

On a shared host a virtual machine's cores are taken away for some milliseconds at a time. A
latency's p99 is then the host's, not the broker's: rounds with the same programs differ tenfold.
"""

from pathlib import Path

STEAL = 7
"""The column of ``/proc/stat``, behind user, nice, system, idle, iowait, irq and softirq."""


class Stolen:
    """Counts from where it is made."""

    def __init__(self):
        self._begun = _ticks()

    @property
    def percent(self):
        """Of the time of all cores; 0 where there is no host, or none that tells."""
        passed = [now - then for now, then in zip(_ticks(), self._begun, strict=True)]
        return 100 * passed[STEAL] / max(1, sum(passed))


def _ticks():
    first = Path("/proc/stat").read_text().partition("\n")[0]
    return [int(each) for each in first.split()[1 : STEAL + 2]]

"""A limit with hysteresis: raised at one value, cleared only at a better one.

Used by the alarms (F3) and wherever "resume at half" would otherwise be written by hand. As a
ceiling (too much) it is raised above ``high`` and cleared below ``low``; as a floor (too little) it
is raised below ``low`` and cleared above ``high``. A limit of 0 is raised whatever the value is:
the operator's way to say "stop now".
"""


class Watermark:
    """Two marks and one bit."""

    __slots__ = ("high", "is_floor", "is_raised", "low")

    def __init__(self, high: int, low: int, *, is_floor: bool = False) -> None:
        self.is_floor = is_floor
        self.is_raised = False
        self.high = high
        self.low = low
        self.resize(high, low)

    @property
    def limit(self) -> int:
        """The mark that raises."""
        return self.low if self.is_floor else self.high

    def resize(self, high: int, low: int) -> None:
        """New marks; they count from the next update on."""
        if not 0 <= low <= high:
            raise ValueError(f"low mark {low} and high mark {high}: 0 <= low <= high must hold")
        self.high = high
        self.low = low

    def update(self, value: int) -> bool:
        """Look at a new value; True while raised."""
        if self.limit == 0:
            self.is_raised = True
        elif self.is_floor:
            self.is_raised = value <= self.high if self.is_raised else value < self.low
        else:
            self.is_raised = value >= self.low if self.is_raised else value > self.high
        return self.is_raised

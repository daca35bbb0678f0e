"""Where a program's time goes: each dispatch with its GPU seconds, as a list that shows itself."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labkit.vulkan.device import Device
    from labkit.vulkan.program import Dispatch


class Profile(list["tuple[Dispatch, float]"]):
    """(dispatch, GPU seconds) of a program on `device`, in its order. Each was timed behind a barrier, so the sum is a
    little over the program's own time: for shares."""

    def __init__(self, device: "Device", timed: "Iterable[tuple[Dispatch, float]]" = ()) -> None:
        super().__init__(timed)
        self.device = device

    @property
    def seconds(self) -> float:
        """GPU seconds of all dispatches together."""
        return sum(seconds for _, seconds in self)

    def __repr__(self) -> str:
        from labkit.show.step import profile_text

        return profile_text(self)

    def _repr_html_(self) -> str:
        from labkit.show.step import profile_html

        return profile_html(self)

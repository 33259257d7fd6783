"""What has to be closed, and is at the end of a `with` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Context manager that gives itself and is closed at the end, whatever happened."""

    @abstractmethod
    def close(self) -> None:
        """Give up what is held; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""What chooses the partition of a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from .. import _native
from .._errors import Invalid


@dataclass(frozen=True)
class Hash:
    """The hash of these columns: equal rows meet in one partition, if their columns have one type, with one scale or unit."""

    columns: tuple[str, ...]

    def __init__(self, *columns: str) -> None:
        object.__setattr__(self, "columns", _names("Hash", columns))


@dataclass(frozen=True)
class Sort:
    """Their order by these columns, rising, null first: all rows of a partition come before those of the next one, and each partition is sorted."""

    columns: tuple[str, ...]

    def __init__(self, *columns: str) -> None:
        object.__setattr__(self, "columns", _names("Sort", columns))


@dataclass(frozen=True)
class Random:
    """Chance, of a seed. The order within a partition is of the seed, too: the result is the same in every run."""

    seed: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", _native._whole("seed", self.seed))


@dataclass(frozen=True)
class Column:
    """A column of integers, which names the partition."""

    name: str


By: TypeAlias = str | Sequence[str] | Hash | Sort | Random | Column


def read(by: Any) -> Hash | Sort | Random | Column:
    """What the argument `by` says."""
    if isinstance(by, (Hash, Sort, Random, Column)):
        return by
    if isinstance(by, str):
        return Hash(by)
    if isinstance(by, Sequence) and by and all(isinstance(name, str) for name in by):
        return Hash(*by)
    raise Invalid(f"by is {by!r}: it has to be the name of a column, a list of names, or one of tr.Hash, Sort, Random and Column")


def how(by: Hash | Sort | Random | Column, bounds: Any) -> dict[str, Any]:
    """The arguments of `ExchangeTask.write`. `bounds` are those of a sort; None where there are no rows."""
    if isinstance(by, Hash):
        return {"hash": list(by.columns)}
    if isinstance(by, Random):
        return {"random": by.seed}
    if isinstance(by, Column):
        return {"column": by.name}
    return {} if bounds is None else {"range": bounds}


def _names(what: str, columns: tuple[str, ...]) -> tuple[str, ...]:
    if not columns or not all(isinstance(name, str) for name in columns):
        raise Invalid(f"{what}{columns!r}: it takes the names of columns")
    return columns

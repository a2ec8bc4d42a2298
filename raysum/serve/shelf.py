"""The models of a replica, which are loaded when they are asked for, within a budget of memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Generic, NamedTuple, Protocol, TypeVar


class Closing(Protocol):
    """A model that can be unloaded."""

    def close(self) -> None: ...


T = TypeVar("T", bound=Closing)


class Book(NamedTuple, Generic[T]):
    """How a model is loaded, and the bytes of its weights."""

    load: Callable[[], T]
    size: int


class Shelf(Generic[T]):
    """Loads models by name, the first ones at once as far as they fit into ``budget`` bytes (None: all).

    If another one is asked for and does not fit, those without requests are unloaded, the least recently used first,
    or the request waits for one of them. A model that is larger than the budget is loaded alone.
    """

    def __init__(self, books: Mapping[str, Book[T]], budget: int | None):
        self._books, self._budget = books, budget
        self._loaded = dict[str, T]()  # the least recently used first
        self._loading = dict[str, asyncio.Task[None]]()
        self._users = dict.fromkeys(books, 0)
        self._changed = asyncio.Condition()
        for name, book in books.items():
            if self._fits(book):
                self._loaded[name] = book.load()

    @property
    def names(self) -> list[str]:
        """The loaded models, the least recently used first."""
        return [*self._loaded]

    @asynccontextmanager
    async def using(self, name: str) -> AsyncIterator[T]:
        """Yield a model, which stays loaded during the block. Raises what its loading raises."""
        model = await self._taken(name)
        try:
            yield model
        finally:
            self._users[name] -= 1
            await self._notify()

    async def _taken(self, name: str) -> T:
        """Return the model, which now has one user more and is the most recently used."""
        while True:
            async with self._changed:
                if name in self._loaded:
                    self._users[name] += 1
                    self._loaded[name] = self._loaded.pop(name)
                    return self._loaded[name]
                loading = self._loading.get(name)
                if loading is None and self._make_room(self._books[name]):
                    loading = self._loading[name] = asyncio.create_task(self._load(name))
                if loading is None:
                    await self._changed.wait()
                    continue
            await asyncio.shield(loading)  # a client that disconnects does not end it for the others

    async def _load(self, name: str) -> None:
        try:
            self._loaded[name] = await asyncio.to_thread(self._books[name].load)
        finally:
            del self._loading[name]
            await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _make_room(self, book: Book[T]) -> bool:
        """Unload models without requests until ``book`` fits, and return whether it does."""
        idle = [name for name in self._loaded if self._books[name].size and not self._users[name]]
        while not self._fits(book) and idle:
            self._loaded.pop(idle.pop(0)).close()
        return self._fits(book)

    def _fits(self, book: Book[T]) -> bool:
        held = sum(self._books[name].size for name in (*self._loaded, *self._loading))
        return self._budget is None or not held or held + book.size <= self._budget

"""So many tokens and no more: what a request may cost is held before it is sent, and counted when it is answered."""

import math
import threading

_TOKENS = 0.3  # a character, before the server has counted any


class Spent(Exception):
    """The next request might cost more than is left."""


class Budget:
    """``most`` tokens, of which some are ``spent`` already; None is no limit. Threads share it."""

    def __init__(self, most: int | None, spent: int):
        self._most, self.spent = most, spent
        self._held = 0
        self._characters, self._tokens = 0, 0  # of prompts that the server has counted
        self._free = threading.Condition()

    def take(self, characters: int, answer: int) -> int:
        """Hold what a prompt of so many characters and an ``answer`` of so many tokens may cost; what is held is told.

        Waits for requests on their way where these leave too little. Raises Spent where that would not help.
        """
        if self._most is None:
            return 0
        with self._free:
            while True:
                rate = self._tokens / self._characters if self._characters else _TOKENS
                need = math.ceil(rate * characters) + answer
                if self.spent + self._held + need <= self._most:
                    self._held += need
                    return need
                if not self._held:
                    raise Spent
                self._free.wait()

    def settle(self, held: int, characters: int = 0, prompt: int = 0, answer: int = 0) -> None:
        """Give back what was held, for what it was; nothing where there was no answer."""
        with self._free:
            self._held -= held
            self.spent += prompt + answer
            if prompt:
                self._characters += characters
                self._tokens += prompt
            self._free.notify_all()

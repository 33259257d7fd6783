"""An agent whose import does what a fork of an earlier import cannot stand in for."""

import os
import threading
import time

import foreign_agent

KIND = os.environ["KIND"]
"""A variable of the rollout."""

BEATS = []


def beat():
    while True:
        BEATS.append(KIND)
        time.sleep(0.01)


if os.environ.get("BEATING"):
    threading.Thread(target=beat, daemon=True).start()


class Agent(foreign_agent.Agent):
    def is_imported(self):
        time.sleep(0.1)
        self.say([KIND, set(BEATS) == {KIND}])

"""An agent of somebody else's: nothing of this repository in it, and endings of every kind. KIND says which."""

import asyncio
import atexit
import json
import logging
import logging.handlers
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import weakref
from pathlib import Path

KEPT = []

os.environ["OF_THE_IMPORT"] = "set"
os.environ["OF_BOTH"] = "the import's"
os.environ.pop("TAKEN_AWAY", None)


def square(number):
    return number * number


class Agent:
    def __init__(self):
        self.kind = os.environ["KIND"]
        self.file = Path(os.environ["FACTS"]) / self.kind.replace(" ", "_")

    def run(self):
        return getattr(self, self.kind.partition(" ")[0])()

    def say(self, value):
        self.file.write_text(json.dumps(value))

    def ends(self):
        pass

    def exits(self):
        sys.exit(json.loads(self.kind.partition(" ")[2]))

    def leaves(self):
        os._exit(5)

    def raises(self):
        raise ValueError("the agent fell over")

    def interrupted(self):
        raise KeyboardInterrupt

    def killed(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    async def awaits(self):
        await asyncio.sleep(0.01)
        sys.exit(0)

    def threads(self):
        def work():
            time.sleep(0.3)
            self.say("the thread ended")

        threading.Thread(target=work).start()
        sys.exit(6)

    def handlers(self):
        weakref.finalize(self, self.file.with_suffix(".finalized").write_text, "finalized")
        atexit.register(self.say, "the handler ran")
        sys.exit(7)

    def buffers(self):
        KEPT.append(self.file.open("w"))
        KEPT[0].write("what nobody flushed")

    def logs(self):
        """Into a file of its own, whose number could be that of somebody else's."""
        found = [repr(handler) for handler in logging.root.handlers]
        with self.file.with_suffix(".opened").open("w") as file:
            logging.getLogger("agent").warning("a warning")
            logging.basicConfig(
                filename=self.file.with_suffix(".log"), level=logging.INFO, format="%(message)s"
            )
            logging.getLogger("agent").info("what it did")
            file.write("its own line\n")
        self.say(found)

    def remembers(self):
        """Log lines that are written at the end alone."""
        target = logging.FileHandler(self.file)
        logging.root.addHandler(logging.handlers.MemoryHandler(10, target=target))
        logging.getLogger("agent").warning("what was kept back")

    def is_a_program(self):
        main = sys.modules["__main__"]
        opened = sorted(Path("/proc/self/fd").iterdir())
        self.say(
            {
                "argv": sys.argv,
                "main": [main.__name__, getattr(main, "__file__", None), main.__spec__],
                "opened": [path.name for path in opened if path.exists()],
                "input": os.read(0, 10).decode(),
                "signals": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)],
                "leads": os.getpid() == os.getpgid(0) == os.getsid(0),
                "folder": str(Path.cwd()),
                "threads": threading.active_count(),
                "import": [os.environ.get(name) for name in ("OF_THE_IMPORT", "OF_BOTH", "TAKEN_AWAY")],
            }
        )

    def has_children(self):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            self.say(pool.map(square, [3]))

    def has_variables(self):
        self.say(dict(os.environ))

    def draws(self):
        self.say(random.random())

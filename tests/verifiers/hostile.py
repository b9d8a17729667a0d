"""A verifier that does what a completion says, for the worst that verification can do to a worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from vipray.data.prompts import Prompt
from vipray.errors import ConfigError
from vipray.records import Outcome
from vipray.verifiers.protocol import Score

HELD: list[bytearray] = []
SLEEPER = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]


def _descriptors() -> list[int]:
    """Whatever is open beside the standard ones; their numbers are those of the process that started this one."""
    return [number for number in map(int, os.listdir("/proc/self/fd")) if number > 2]


class HostileVerifier:
    def verify(self, prompt: Prompt, completion: str) -> Score:
        what, _, rest = completion.partition(" ")
        if what == "reward":
            return Score(float(rest), Outcome.CORRECT, rest)
        extracted = getattr(self, f"do_{what}")(rest) if hasattr(self, f"do_{what}") else completion
        right = extracted == prompt.answer
        return Score(float(right), Outcome.CORRECT if right else Outcome.WRONG, extracted)

    def check_gold(self, _prompt: Prompt) -> str | None:
        return None

    def do_pid(self, _rest):
        return str(os.getpid())

    def do_limit(self, _rest):
        import resource

        return str(resource.getrlimit(resource.RLIMIT_AS)[0])

    def do_descriptors(self, _rest):
        return str(len(os.listdir("/proc/self/fd")))

    def do_hang(self, _rest):
        while True:
            pass

    def do_power(self, _rest):
        return str(9**9**9)[:1]  # never gives the interpreter back, to a signal handler or to another thread

    def do_deaf(self, _rest):
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        time.sleep(600)

    def do_allocate(self, mib):
        size = len(bytearray(int(mib) << 20))
        return f"{size >> 20} MiB"

    def do_hold(self, mib):
        HELD.append(bytearray(b"x") * (int(mib) << 20))
        return str(os.getpid())

    def do_exit(self, status):
        os._exit(int(status))

    def do_quit(self, status):
        sys.exit(int(status))

    def do_kill(self, number):
        os.kill(os.getpid(), int(number))

    def do_raise(self, message):
        raise ZeroDivisionError(message)

    def do_print(self, text):
        print(text, flush=True)
        return text

    def do_garbage(self, _rest):
        for descriptor in _descriptors():
            try:
                os.write(descriptor, b"no reply\n")
            except OSError:
                continue
        return "garbage"

    def do_forge(self, _rest):
        """Write scores of its own making to whatever is open."""
        for descriptor in _descriptors():
            for reply in (b'[1.0,"correct","forged","",false]\n', b'["",1.0,"correct","forged","",false]\n'):
                try:
                    os.write(descriptor, reply)
                except OSError:
                    continue
        return "forged"

    def do_orphan(self, path):
        """Leave a child in a session of its own, and kill the supervisor, which would end it."""
        child = subprocess.Popen(SLEEPER, start_new_session=True)
        with open(path, "w") as file:
            file.write(str(child.pid))
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)

    def do_copy(self, rest):
        os.fork()
        return rest

    def do_family(self, path):
        """Leave a child, and a grandchild in a session of its own, that would outlive this process; then hang."""
        child = subprocess.Popen(SLEEPER)
        code = (
            "import subprocess\n"
            f"child = subprocess.Popen({SLEEPER!r}, start_new_session=True, stdout=subprocess.DEVNULL)\n"
            "print(child.pid)\n"
        )
        orphan = subprocess.run([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, text=True)
        with open(path, "w") as file:
            file.write(f"{os.getpid()} {child.pid} {orphan.stdout}")
        os.rename(path, path + ".done")
        time.sleep(600)


def build(name: str) -> HostileVerifier:
    if name == "unknown":
        raise ConfigError("unknown verifier 'unknown'")
    if name == "dies":
        os._exit(7)
    return HostileVerifier()

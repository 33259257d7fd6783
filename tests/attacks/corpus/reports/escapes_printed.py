"""Prints terminal escapes that hide the real report from a reader that obeys them."""

from attack import PRINT_PASSED, Attack, code

ATTACK = Attack(
    (
        code(
            PRINT_PASSED
            + "_claim(); os.write(1, b'\\x1b]8;;' + b'\\x1b[2J\\x1b[8m\\x1b[1A\\x1b[2K' * 40 + b'\\r')"
        ),
    )
)

"""Never comes to an end in the grader, at full load and with the signal of its limit ignored."""

from attack import Attack, code

ATTACK = Attack(
    (code("import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"),), timeout_s=1
)

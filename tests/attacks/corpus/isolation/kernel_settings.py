"""Writes the machine's settings below /proc/sys, where a core pattern would run a program as root."""

from attack import Attack, tried

ATTACK = Attack(
    (
        tried(
            "find /proc -type f -writable -not -path '/proc/[0-9]*' -not -path '/proc/*self/*' -exec test -f {} \\; -print 2>/dev/null |"
            " grep -v -e ^/proc/mtrr$ -e ^/proc/pressure/ && echo GAINED\n"
            "(echo disable=99 > /proc/mtrr) 2>/dev/null && echo GAINED\n"
            "cat /proc/sys/kernel/core_pattern > /tmp/same; cat /tmp/same > /proc/sys/kernel/core_pattern && echo GAINED\n"
            "test -w /proc/sysrq-trigger && echo GAINED"
        ),
    )
)

"""Makes user namespaces to become root, to mount and to leave its root folder."""

from attack import Attack, tried

ATTACK = Attack(
    (
        tried(
            "unshare -Ur true && echo GAINED; unshare -m true && echo GAINED; unshare -n true && echo GAINED\n"
            "nsenter -t 1 -a true && echo GAINED; mount -t tmpfs none /tmp && echo GAINED; chroot / true && echo GAINED\n"
            "mount -o remount,rw / && echo GAINED; umount /proc && echo GAINED"
        ),
    )
)

"""Makes and opens device files for memory, disks and the kernel's messages."""

from attack import Attack, tried

ATTACK = Attack(
    (
        tried(
            "mknod disk b 8 0 && head -c 1 disk && echo GAINED; mknod memory c 1 1 && head -c 1 memory && echo GAINED\n"
            "for device in mem kmem port kmsg sda vda nvme0n1 kvm fuse loop-control; do\n"
            "    head -c 1 /dev/$device 2>/dev/null && echo GAINED; done\n"
            "head -c 1 /proc/kcore && echo GAINED; timeout 2 head -c 1 /proc/kmsg && echo GAINED; rm -f disk memory"
        ),
    )
)

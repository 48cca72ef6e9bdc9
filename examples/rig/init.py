"""Process 1 of a machine of the rig, and of the rig itself: sets the machine up, then reaps.

Run by a bare interpreter, without Muster's modules. Killing it kills every process of the machine
at once, because it is process 1 of a PID namespace.
"""

import os
import signal
import socket
import subprocess
import sys


def run(*argv: str) -> None:
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)


def set_up(name: str, folder: str, port_range: str, cgroups: str) -> None:
    """Set up what differs from the host: its own /etc, /run, /sys and boot id.

    Unmount the old ones first: the kernel still lists mounts that are covered.
    """
    socket.sethostname(name)
    run("umount", "--recursive", "--lazy", "/sys")
    run("mount", "-t", "sysfs", "sysfs", "/sys")
    if cgroups:
        run("mount", "-t", "cgroup2", "cgroup2", "/sys/fs/cgroup")
    for volatile in ("/run", "/dev/shm"):  # noqa: S108 - mounted, not written
        run("mount", "-t", "tmpfs", "tmpfs", volatile)
    run("mount", "--bind", f"{folder}/boot_id", "/proc/sys/kernel/random/boot_id")
    run("mount", "--bind", f"{folder}/etc", "/etc")
    if port_range:
        with open("/proc/sys/net/ipv4/ip_local_port_range", "w") as file:
            file.write(port_range)


def reap() -> None:
    while True:
        signal.sigwaitinfo({signal.SIGCHLD})
        try:
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        except ChildProcessError:
            pass


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    run("ip", "link", "set", "lo", "up")
    if sys.argv[1:]:
        set_up(*sys.argv[1:])
    os.write(1, b"ready\n")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    reap()


if __name__ == "__main__":
    main()

"""A real sshd on a loopback port, with keys and a configuration of its own, for the tests of several hosts.

`with serving(folder) as cluster:` knows the hosts a and b, and stranger, whose key is not accepted.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from trainer.cluster.launch.launch_agent import free_port

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/sbin")
PRIVILEGE_FOLDER = Path("/run/sshd")


def listening() -> socket.socket:
    """Return a socket that accepts connections on a free loopback port and never says a word."""
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.listen()
    return made


def make_privilege_folder() -> None:
    """Make the folder that root's sshd asks for at each connection; packages make it at boot.

    It stays: another test's sshd may need it still.
    """
    if os.getuid() == 0:
        PRIVILEGE_FOLDER.mkdir(mode=0o755, exist_ok=True)


@dataclass(frozen=True)
class Cluster:
    """`ssh`: the command that knows the hosts a, b and stranger by a configuration of its own."""

    ssh: str
    folder: Path


@contextmanager
def serving(folder: Path, prints: str = "", **environment: str) -> Iterator[Cluster]:
    """Start the sshd, with its files in `folder`; skips the test where there is none, or where it fails.

    `environment` is that of every session, beside what sshd gives; HOST_OF_TEST is the host that was asked
    for. `prints` comes before every command's output, as from a login script.
    """
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("no OpenSSH client and server here (apt-get install openssh-server openssh-client)")
    folder.chmod(0o700)
    for name in ("host_key", "user_key", "stranger_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    port = free_port()
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host_key\nPidFile none\nUsePAM no\n"
        "StrictModes no\nAcceptEnv HOST_OF_TEST\n"
        f"AuthorizedKeysFile {folder}/user_key.pub\nPasswordAuthentication no\nPermitRootLogin yes\n"
    )
    (folder / "printed").write_text(prints)
    with (folder / "sshd_config").open("a") as config:
        if environment:
            given = " ".join(f'"{name}={value}"' for name, value in environment.items())
            config.write(f"SetEnv {given}\n")
        if prints:
            config.write(f'ForceCommand cat {folder}/printed; exec sh -c "$SSH_ORIGINAL_COMMAND"\n')
    key = (folder / "host_key.pub").read_text()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {key}")
    (folder / "ssh_config").write_text(
        f"Host a b stranger\n  HostName 127.0.0.1\n  Port {port}\n  UserKnownHostsFile {folder}/known_hosts\n"
        f"  IdentitiesOnly yes\nHost stranger\n  IdentityFile {folder}/stranger_key\n"
        f"Host a b\n  IdentityFile {folder}/user_key\n"
        "Host a\n  SetEnv HOST_OF_TEST=a\nHost b\n  SetEnv HOST_OF_TEST=b\n"
    )
    make_privilege_folder()
    # From 9.8 on sshd shuts out who was refused a few times: here that is everybody.
    patient = ["-o", "PerSourcePenalties=no"]
    checked = [SSHD, "-t", "-f", str(folder / "sshd_config"), *patient]
    if subprocess.run(checked, capture_output=True, check=False).returncode:
        patient = []
    with (folder / "sshd.log").open("w") as log:
        server = subprocess.Popen([SSHD, "-D", "-e", "-f", str(folder / "sshd_config"), *patient], stderr=log)
        try:
            ssh = f"ssh -F {folder}/ssh_config"
            for _ in range(50):
                tried = subprocess.run(
                    [*ssh.split(), "-o", "BatchMode=yes", "a", "true"], capture_output=True, text=True
                )
                if tried.returncode == 0 or server.poll() is not None:
                    break
                time.sleep(0.1)
            if tried.returncode != 0:
                pytest.skip(f"sshd does not serve here: {tried.stderr} {(folder / 'sshd.log').read_text()}")
            yield Cluster(ssh=ssh, folder=folder)
        finally:
            server.terminate()
            server.wait()


FAKE = """\
#!/bin/sh
# An ssh without a network: the host is the word behind --.
while [ "$1" != -- ]; do shift; done
case "$2" in
  a|b) cat {folder}/printed; exec env {environment} sh -c "$3" ;;
  stranger) echo "root@127.0.0.1: Permission denied (publickey)." >&2; exit 255 ;;
  closed) echo "ssh: connect to host 127.0.0.1 port 9: Connection refused" >&2; exit 255 ;;
  *) exec sleep 1000 ;;
esac
"""


def fake(folder: Path, prints: str = "", **environment: str) -> Cluster:
    """Return hosts as `serving` and `with_hosts_that_fail` have, for where there is no OpenSSH."""
    (folder / "printed").write_text(prints)
    program = folder / "ssh"
    given = " ".join(f"'{name}={value}'" for name, value in environment.items())
    program.write_text(FAKE.format(environment=given, folder=folder))
    program.chmod(0o755)
    return Cluster(ssh=str(program), folder=folder)


@contextmanager
def with_hosts_that_fail(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, and two hosts more: silent accepts connections and says nothing, closed has no sshd."""
    with closing(listening()) as silent:
        config = cluster.folder / "with_silent"
        config.write_text(
            f"Host silent\n  HostName 127.0.0.1\n  Port {silent.getsockname()[1]}\n"
            f"Host closed\n  HostName 127.0.0.1\n  Port {free_port()}\n"
            + (cluster.folder / "ssh_config").read_text()
        )
        yield Cluster(ssh=f"ssh -F {config}", folder=cluster.folder)


NAMED = """\
#!/bin/sh
# An ssh without a network: node1, node2 and node3 are this machine under other names, node4 is off.
while [ "$1" != -- ]; do shift; done
case "$2" in
  node[123]) exec unshare {flags} --uts sh -c "hostname $2; PATH={folder}/$2:\\$PATH; $3" ;;
  *) echo "ssh: connect to host $2 port 22: No route to host" >&2; exit 255 ;;
esac
"""


def named(folder: Path) -> Path:
    """Write an `ssh` into `folder` whose hosts have names of their own, and return the folder, for PATH.

    A program in folder/node1 comes before all others on node1. Skips the test where a process may have no
    host name of its own.
    """
    flags = "" if os.getuid() == 0 else "--map-root-user"
    tried = (
        subprocess.run(
            ["unshare", *flags.split(), "--uts", "hostname", "node1"],
            capture_output=True,
            text=True,
            check=False,
        )
        if shutil.which("unshare") and shutil.which("hostname")
        else None
    )
    if tried is None or tried.returncode:
        pytest.skip("no process may have a host name of its own here (unshare --uts)")
    program = folder / "ssh"
    program.write_text(NAMED.format(flags=flags, folder=folder))
    program.chmod(0o755)
    return folder

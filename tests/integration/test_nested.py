"""Whole systems inside: systemd with its units, Docker, podman, FUSE, and the software that people run.

There is no network, so the containers' root is made of the sandbox's own files."""

import pytest

USERS = ("runner", "root")

# Leaves root.tar and a Dockerfile in the working directory.
MAKE_ROOT = """
mkdir -p root/bin root/lib64 root/proc root/sys root/dev root/etc root/tmp
cp /bin/dash root/bin/sh
cp /bin/cat /bin/head /bin/tail /bin/stat /bin/mount root/bin
for library in $(ldd root/bin/* | grep -o '/[^ ]*' | grep -v :); do
	mkdir -p root$(dirname $library)
	cp -L $library root$library
done
tar -C root -cf root.tar .
cat >Dockerfile <<'end'
FROM scratch
ADD root.tar /
RUN ["/bin/sh", "-c", "echo built in a sandbox > /hello"]
CMD ["cat", "/hello"]
end
"""

HELLO = b"built in a sandbox\n"
LIMIT_FILE = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes || cat /sys/fs/cgroup/memory.max"


def inside(runner, script, *options, user="runner"):
    """Runs a script in a sandbox whose system is up."""
    sizes = ("--job-disk", "4G", "--job-memory", "2G")
    return runner.run("--ready", "system", *sizes, *options, "--user", user, "--", "sh", "-euc", script)


def output_of(runner, script, *options, user="runner"):
    outcome = inside(runner, script, *options, user=user)
    assert (outcome.status, outcome.reason) == (0, "exited"), outcome
    return outcome.stdout


@pytest.mark.only("system", why="in a container there is no systemd")
def test_system_is_running(runner):
    script = """
    systemctl is-system-running
    systemctl --failed --plain --no-legend
    systemctl is-active docker.socket
    systemctl is-active docker.service containerd.service || true
    [ "$(hostname)" = "$(cat /etc/hostname)" ] && getent hosts "$(hostname)" | tr -s ' ' | cut -d ' ' -f 1
    sudo journalctl --boot --priority err --quiet
    """
    assert output_of(runner, script).split() == [b"running", b"active", b"inactive", b"inactive", b"127.0.1.1"]


@pytest.mark.only("system", why="in a container there is no systemd")
def test_first_use_of_the_socket_starts_docker(runner):
    script = """
    docker info --format '{{.Driver}} {{.DockerRootDir}} {{.CgroupDriver}}'
    systemctl is-active docker.service
    stat --file-system --format %T /var/lib/docker /var/lib/containerd /var/lib/containers
    systemctl is-system-running
    sudo journalctl --boot --priority err --quiet
    """
    lines = output_of(runner, script).decode().splitlines()
    assert lines == ["overlay2 /var/lib/docker cgroupfs", "active", *3 * ["ext2/ext3"], "running"]


@pytest.mark.parametrize("user", USERS)
def test_docker_builds_and_runs(runner, user):
    script = f"""{MAKE_ROOT}
    docker build --quiet --tag first . >&2
    docker build --quiet --no-cache --network none --tag second . >&2
    docker run --rm first
    docker run --rm --network none second
    docker run --rm --network host first
    docker run --rm --privileged first
    docker run --rm --read-only --volume "$PWD:/there:ro" first cat /there/Dockerfile | head -n 1
    docker run --detach --name stays first tail -f /dev/null >&2
    docker exec stays cat /hello
    docker stop --time 0 stays >&2
    docker start --attach=false stays >&2
    docker rm --force stays >&2
    echo '{{"services": {{"one": {{"image": "first"}}}}}}' >compose.yaml
    docker compose run --quiet-pull --rm one 2>/dev/null
    """
    assert output_of(runner, script, user=user) == 4 * HELLO + b"FROM scratch\n" + 2 * HELLO


def test_limits_of_a_container_hold(runner):
    """What a container exceeds is its own end: neither Docker's nor the job's."""
    script = f"""{MAKE_ROOT}
    docker build --quiet --tag tiny . >&2
    docker run --rm -m 64m tiny sh -c '{LIMIT_FILE}' 2>/dev/null
    docker run --name hog -m 64m tiny tail /dev/zero || echo "status $?"
    docker inspect --format '{{{{.State.OOMKilled}}}}' hog
    docker run --rm --pids-limit 8 tiny sh -c 'cat & cat & cat & cat & cat & cat & cat & cat & cat' 2>&1 </dev/zero |
        grep -o 'Cannot fork'
    docker run --rm --cpus 0.5 tiny sh -c 'cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us || cat /sys/fs/cgroup/cpu.max' \
        2>/dev/null | cut -d ' ' -f 1
    """
    lines = output_of(runner, script).decode().splitlines()
    assert lines == ["67108864", "status 137", "true", "Cannot fork", "50000"]


PODMAN = f"""{MAKE_ROOT}
podman info --format '{{{{.Store.GraphDriverName}}}}'
podman build --quiet --tag tiny . >&2
podman run --rm --network none tiny
podman run --rm --network none tiny cat /proc/self/uid_map | tr -s ' '
"""


def test_podman_runs_for_the_user(runner):
    lines = output_of(runner, PODMAN).decode().splitlines()
    assert lines == ["overlay", HELLO.decode().strip(), " 0 1000 1", " 1 10000 50000"]


def test_podman_runs_for_root(runner):
    # Where podman takes itself for root of a host, it asks for more descriptors and processes than a host whose root
    # lacks CAP_SYS_RESOURCE can give.
    limits = r"""
    printf '[containers]\ndefault_ulimits = ["%s=%d:%d", "%s=%d:%d"]\n' $(
        prlimit --raw --noheadings --output RESOURCE,HARD,HARD --nofile --nproc | tr A-Z a-z
    ) >/etc/containers/containers.conf
    """
    more = f"""
    podman run --rm tiny
    podman run --rm --network none -m 64m tiny sh -c '{LIMIT_FILE}' 2>/dev/null
    podman run --rm --network none -m 64m tiny tail /dev/zero || echo "status $?"
    """
    lines = output_of(runner, limits + PODMAN + more, user="root").decode().splitlines()
    assert lines[0] == "overlay"
    assert lines[1] == lines[3] == HELLO.decode().strip()
    assert lines[4:] == ["67108864", "status 137"]


def test_fuse_mount(runner):
    script = """
    mkdir lower upper work merged
    echo below >lower/file
    fuse-overlayfs -o lowerdir=lower,upperdir=upper,workdir=work merged
    cat merged/file
    stat --file-system --format %T merged
    echo above >merged/file
    cat lower/file upper/file
    fusermount3 -u merged
    ls -A merged
    """
    for user in USERS:
        assert output_of(runner, script, user=user).split() == [b"below", b"fuse", b"below", b"above"]


UNIT = """
[Service]
Type=oneshot
ProtectSystem=strict
PrivateTmp=yes
ExecStart=sh -c 'touch /tmp/mine; ls /tmp; for f in /usr/f /etc/f /var/f; do touch $f; done; true'
StandardOutput=file:/run/output
StandardError=file:/run/errors
"""


@pytest.mark.only("system", why="in a container there is no systemd")
def test_unit_with_a_private_and_protected_system(runner):
    script = f"""
    touch /tmp/of-the-job
    printf '%s' "{UNIT}" >/run/systemd/system/hidden.service
    systemctl daemon-reload
    systemctl start hidden.service
    cat /run/output
    grep -c 'Read-only file system' /run/errors
    [ ! -e /tmp/mine ] && [ ! -e /usr/f ]
    """
    assert output_of(runner, script.replace("$f", "\\$f"), user="root").split() == [b"mine", b"3"]


# The settings that hardened services of distributions use.
HARDENING = """DynamicUser=yes NoNewPrivileges=yes PrivateDevices=yes PrivateNetwork=yes PrivateUsers=yes
ProtectHome=yes ProtectKernelTunables=yes ProtectKernelModules=yes ProtectKernelLogs=yes ProtectControlGroups=yes
ProtectClock=yes ProtectHostname=yes ProtectProc=invisible RestrictNamespaces=yes RestrictRealtime=yes RestrictSUIDSGID=yes
LockPersonality=yes MemoryDenyWriteExecute=yes SystemCallArchitectures=native SystemCallFilter=@system-service
StateDirectory=hidden MemoryMax=64M TasksMax=16""".split()


@pytest.mark.only("system", why="in a container there is no systemd")
def test_units_with_all_hardening_and_limits(runner):
    options = " ".join(f"--property {word}" for word in HARDENING)
    script = f"""
    systemd-run --quiet --wait --pipe {options} sh -c 'echo started'
    systemd-run --quiet --wait --pipe --property MemoryMax=64M tail /dev/zero || echo stopped
    systemd-run --quiet --scope sh -c 'echo scope'
    """
    assert output_of(runner, script, user="root").split() == [b"started", b"stopped", b"scope"]


@pytest.mark.only("system", why="in a container there is no systemd")
def test_user_manager(runner):
    script = """
    sudo loginctl enable-linger runner
    sudo systemctl start user@1000.service
    export XDG_RUNTIME_DIR=/run/user/1000
    systemctl --user is-system-running --wait
    systemd-run --user --quiet --wait --pipe id --user
    systemctl is-system-running
    """
    assert output_of(runner, script).split() == [b"running", b"1000", b"running"]


SHARED_MEMORY = "from multiprocessing.shared_memory import SharedMemory as S; S(None, True, 1).unlink()"
TRACED = "import ctypes, os; assert os.fork() or ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0"
WORKER = 'const {Worker} = require("worker_threads"); new Worker("process.exitCode = 0", {eval: true})'
COMMIT = "git -c user.name=a -c user.email=b commit --quiet --message x --allow-empty"
EMPTY_PROGRAM = "echo 'int main(void) { return 0; }' >a.c"

# Each must end with status 0; what it writes does not matter.
SOFTWARE = {
    "sudo": "sudo -n true && sudo -nu nobody true",
    "su": "sudo su - runner -c true",
    "pool of processes": "python3 -c 'import multiprocessing as m; m.Pool(2).map(abs, range(9))'",
    "shared memory": f"python3 -c '{SHARED_MEMORY}'",
    "virtual environment": "python3 -m venv --without-pip /tmp/venv && /tmp/venv/bin/python -c 'import ssl, sqlite3'",
    "node": f"node -e '{WORKER}'",
    "npm": "npm --version",
    "perl": "perl -e 'fork or exit; wait'",
    "git": f"git init --quiet && {COMMIT} && git gc --quiet && git fsck",
    "gcc": f"{EMPTY_PROGRAM}; gcc a.c && ./a.out && gcc -static a.c && ./a.out",
    "address sanitizer": f"{EMPTY_PROGRAM}; gcc -fsanitize=address,undefined a.c && ./a.out",
    "thread sanitizer": f"{EMPTY_PROGRAM}; gcc -fsanitize=thread a.c && ./a.out",
    "cmake": "cmake --version && ninja --version && meson --version",
    "apt": "apt-get --version && apt-cache policy bash && dpkg --verify bash",
    "terminal": "script --quiet --return --command tty /dev/null",
    "user namespace": "unshare --user --map-root-user --mount --pid --fork --mount-proc true",
    "network namespace": "sudo ip netns add n && sudo ip netns exec n ip link && sudo ip netns delete n",
    "links": "sudo ip link add left type veth peer right && sudo ip link add middle type bridge",
    "tunnel": "sudo ip tuntap add tap9 mode tap && sudo ip link delete tap9",
    "firewall": "sudo iptables -A INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT && sudo iptables -t nat -S",
    "loopback": "python3 -m http.server 8000 & curl --silent --retry 9 --retry-connrefused localhost:8000",
    "overlay": "sudo sh -c 'cd /scratch && mkdir l u w m && mount -t overlay -o lowerdir=l,upperdir=u,workdir=w x m'",
    "tmpfs": "sudo mount -t tmpfs none /mnt && sudo umount /mnt",
    "system facts": "lscpu && lsblk && findmnt && free && uptime && df",
    "trace": f"python3 -c '{TRACED}'",
    "devices": "head -c 9 /dev/urandom && echo >/dev/null && : </dev/zero && ! echo >/dev/full",
}

# Where there is a systemd.
SYSTEMD_SOFTWARE = {
    "journal": "logger hello && sudo journalctl --sync && sudo journalctl --boot --quiet --grep hello",
    "timers": "sudo systemd-run --quiet --on-active 1h true && systemctl list-timers",
    "facts": "hostnamectl && timedatectl && loginctl",
}


def test_ordinary_software_works(runner):
    software = {**SOFTWARE, **(SYSTEMD_SOFTWARE if runner.isolation == "system" else {})}
    steps = [
        f"if (cd $(mktemp -d); {command}) >log 2>&1; then echo '{name}: works'; else echo '{name}: fails'; cat log; fi"
        for name, command in software.items()
    ]
    lines = output_of(runner, "\n".join(steps)).decode(errors="replace").splitlines()
    assert lines == [f"{name}: works" for name in software], "\n".join(lines)

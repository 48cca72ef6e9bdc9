"""A machine without Muster and without a package index becomes a node by one line."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pty
import re
import shutil
import ssl
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path

import pytest

from muster.daemon.certificates import Authority, new_key, public_key_pin, server_certificate
from muster.daemon.clock import SystemClock
from muster.daemon.tls import client_context
from muster.wheels.manifest import MANIFEST, own_target, read_manifest
from orchestrator.api.enrolment.install_script import install_script
from tests.cluster.enrolment import Site
from tests.cluster.jobs import until

WHEEL = "some_thing-1.5-py3-none-any.whl"
CONTENT = b"the bytes of a wheel" * 50_000

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    try:
        made.up()
        made.serve()
        yield made
    finally:
        for daemon in made.daemons:
            daemon.stop()


@pytest.fixture
def wheels(site: Site) -> Iterator[Path]:
    """The directory of wheels, with one in it."""
    folder = site.root / "etc" / "state" / "wheels"
    folder.mkdir()
    (folder / WHEEL).write_bytes(CONTENT)
    write_manifest(folder, WHEEL)
    yield folder
    shutil.rmtree(folder)


def write_manifest(folder: Path, *names: str) -> None:
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    targets = {own_target(): dict.fromkeys(names, sha256)}
    (folder / MANIFEST).write_text(json.dumps({"requirements": "0" * 64, "targets": targets}))


def get(site: Site, path: str) -> tuple[int, bytes]:
    context = client_context(site.root / "etc" / "ca.pem")
    connection = HTTPSConnection("127.0.0.1", site.port, timeout=300, context=context)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()


def run(command: str, site: Site, code: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a line as a person would, with neither a terminal nor a package index."""
    kept = {name: text for name, text in site.env.items() if not name.startswith("PIP_")}
    nowhere = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "MUSTER_PYTHON": sys.executable}
    done = subprocess.run(
        ["sh", "-c", command],
        env={**kept, **nowhere, **env},
        cwd=site.root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        start_new_session=True,
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    return done


def install_line(up: str) -> str:
    found = re.search(r"curl .* --run-as SUBMITTER$", up, re.MULTILINE)
    assert found is not None, up
    return found[0]


def test_nothing_but_wheels_of_the_manifest_is_served(site: Site, wheels: Path) -> None:
    assert get(site, f"/v1/wheels/{WHEEL}") == (200, CONTENT)
    secret = "other-1-py3-none-any.whl"
    (wheels / secret).write_bytes(b"not in the manifest")
    (wheels / "link-1-py3-none-any.whl").symlink_to(site.root / "etc" / "ca-key.pem")
    write_manifest(wheels, WHEEL, "link-1-py3-none-any.whl", "gone-1-py3-none-any.whl")
    for name in (
        secret,
        MANIFEST,
        "link-1-py3-none-any.whl",
        "gone-1-py3-none-any.whl",
        "..%2F..%2Fca-key.pem",
        "%2Fetc%2Fpasswd",
        "",
        "..",
    ):
        status, body = get(site, f"/v1/wheels/{name}")
        assert status in {401, 404}, name
        assert b"PRIVATE" not in body
        assert b"root:" not in body


def test_an_address_has_a_bounded_number_of_answers(site: Site, wheels: Path) -> None:
    with (wheels / WHEEL).open("wb") as file:
        file.truncate(1 << 30)  # more than the buffers of any connection take
    context = client_context(site.root / "etc" / "ca.pem")
    with contextlib.ExitStack() as opened:
        held = []
        for _ in range(8):
            one = HTTPSConnection("127.0.0.1", site.port, timeout=300, context=context)
            opened.callback(one.close)
            one.request("GET", f"/v1/wheels/{WHEEL}")
            held.append(one.getresponse())
        assert [answer.status for answer in held] == [200] * 8
        status, body = get(site, f"/v1/wheels/{WHEEL}")
        assert (status, json.loads(body)["code"]) == (429, "too_many_installs")
    (wheels / WHEEL).write_bytes(CONTENT)
    until(lambda: get(site, f"/v1/wheels/{WHEEL}")[0] == 200, "the places are free again")


def test_up_warns_when_it_cannot_fill_the_folder_of_wheels(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    site = Site(tmp_path)
    options = ("--no-start", "--run-as", "SUBMITTER", "--name", "127.0.0.1", "--dir", "etc")
    nowhere = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "none")}
    done = site.muster("up", *options, timeout_s=300, env=nowhere)
    assert "warning: nodes cannot install Muster from here" in done.stderr
    assert "run `muster up` again where pip reaches an index" in done.stderr
    assert "curl" not in done.stdout
    assert "muster join 127.0.0.1:7077 --run-as SUBMITTER" in done.stdout


def test_without_wheels_there_is_nothing_to_install(site: Site) -> None:
    for path in ("/v1/install.sh", f"/v1/wheels/{WHEEL}"):
        status, body = get(site, path)
        assert (status, json.loads(body)["code"]) == (404, "no_wheels")
    assert "curl" not in site.up()
    assert "curl" not in site.muster("token", "create", "--join").stderr


def test_a_broken_manifest_serves_nothing_and_hinders_no_join(site: Site, wheels: Path) -> None:
    (wheels / MANIFEST).write_text('{"targets": {"x": {"../../ca-key.pem": ""}}}')
    assert get(site, "/v1/install.sh")[0] == 404
    assert site.secret().startswith("mj1.")


def test_the_script_is_for_every_sh_and_names_hashes_and_pin(site: Site, wheels: Path) -> None:
    status, body = get(site, "/v1/install.sh")
    text = body.decode()
    assert status == 200
    assert f"coordinator=127.0.0.1:{site.port}\n" in text
    assert "SUBMITTER" not in text  # as whom jobs run is not for those without a token
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    assert f"\n{own_target()} some_thing==1.5 {sha256} {WHEEL}\n" in text
    pin = public_key_pin((site.root / "etc" / "server.pem").read_bytes())
    assert f"pin={pin}\n" in text
    assert f"--pinnedpubkey {pin} https://127.0.0.1:{site.port}/v1/install.sh" in site.up()
    for shell in ("sh", "dash", "bash", "busybox"):
        if shutil.which(shell) is not None:
            argv = [shell, "sh"] if shell == "busybox" else [shell]
            subprocess.run([*argv, "-n"], input=body, check=True, timeout=30)


def test_what_the_configuration_says_is_no_part_of_the_script(site: Site, wheels: Path) -> None:
    manifest = read_manifest(wheels)
    assert manifest is not None
    text = install_script(manifest, "h:1", "a'; touch pwned; '")
    run(f"cat <<'EOF' | sh\n{text}\nEOF", site, code=1, MUSTER_VENV=str(site.root))
    assert not (site.root / "pwned").exists()


def test_a_wrong_pin_gets_nothing(site: Site, wheels: Path) -> None:
    line = install_line(site.up())
    other = re.sub(r"sha256//\S{43}=", f"sha256//{'A' * 43}=", line)
    done = run(other, site, MUSTER_VENV=str(site.root / "wrong"), MUSTER_JOIN="mj1.x")
    assert "(90)" in done.stderr
    assert not (site.root / "wrong").exists()


def test_the_line_stays_good_when_the_certificate_is_renewed_with_its_key(
    site: Site, wheels: Path
) -> None:
    line, etc = install_line(site.up()), site.root / "etc"
    old = (etc / "server.pem").read_bytes()

    def shown() -> bytes:
        return ssl.get_server_certificate(("127.0.0.1", site.port)).strip().encode()

    assert shown() == old.strip()
    authority = Authority((etc / "ca.pem").read_bytes(), (etc / "ca-key.pem").read_bytes())
    key, now = (etc / "server-key.pem").read_bytes(), SystemClock().now().wall
    new = server_certificate(authority, key, ["localhost"], ["127.0.0.1"], now)
    (etc / "server.pem").write_bytes(new)
    until(lambda: shown() == new.strip(), "the coordinator shows the new certificate")
    fetch = line.partition(" | ")[0]
    assert 'main "$@"' in run(fetch, site).stdout
    other = server_certificate(authority, new_key(), ["localhost"], ["127.0.0.1"], now)
    assert public_key_pin(new) == public_key_pin(old) != public_key_pin(other)


def script_of(site: Site) -> Path:
    path = site.root / "install.sh"
    path.write_bytes(get(site, "/v1/install.sh")[1])
    return path


def test_a_machine_that_does_not_fit_learns_why(site: Site, wheels: Path, tmp_path: Path) -> None:
    script = script_of(site)
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho 3.99-riscv\n")
    other.chmod(0o755)
    done = run(f"sh {script}", site, code=1, MUSTER_PYTHON=str(other), MUSTER_JOIN="mj1.x")
    assert "no wheels for 3.99-riscv; on its machine" in done.stderr
    done = run(f"sh {script}", site, code=1, MUSTER_PYTHON="/nowhere", MUSTER_JOIN="mj1.x")
    assert "Python 3.11 or newer with venv is needed. Debian" in done.stderr
    for version, text in (
        ("3.10", "is needed, and this system has 3.10. Debian"),
        ("3.12", "Python 3.12 is here, but without venv. Debian, Ubuntu: apt-get install "),
    ):
        # An interpreter whose distribution has put venv into a package of its own.
        fake = f'#!/bin/sh\ncase "$2" in *ensurepip*) exit 1 ;; esac\necho {version}\n'
        other.write_text(fake)
        done = run(f"sh {script}", site, code=1, MUSTER_PYTHON=str(other), MUSTER_JOIN="mj1.x")
        assert text in done.stderr
    assert "apt-get install python3.12-venv" in done.stderr
    done = run(f"sh {script}", site, code=1, MUSTER_VENV=str(tmp_path), MUSTER_JOIN="mj1.x")
    assert "is not a venv" in done.stderr
    done = run(f"sh {script}", site, code=1, MUSTER_VENV=str(tmp_path / "venv"))
    assert "no terminal to ask for the secret: set MUSTER_JOIN" in done.stderr
    done = run(f"sh {script} login", site, code=1, MUSTER_VENV=str(tmp_path / "venv"))
    assert "no terminal to ask for the secret: set MUSTER_LOGIN" in done.stderr
    mac = tmp_path / "uname"
    mac.write_text("#!/bin/sh\necho Darwin\n")
    mac.chmod(0o755)
    done = run(f"sh {script}", site, code=1, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert "Muster runs on Linux, and this is Darwin" in done.stderr
    assert other.exists()


def test_the_script_for_other_users_needs_root(site: Site, wheels: Path, tmp_path: Path) -> None:
    """`sudo curl ... | sh` runs the shell as its caller."""
    script = script_of(site)
    caller = tmp_path / "id"
    caller.write_text("#!/bin/sh\necho 1000\n")
    caller.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = run(f"sh {script} --run-as trainer", site, code=1, PATH=path, MUSTER_JOIN="mj1.x")
    line = "curl ... | sudo env MUSTER_JOIN=SECRET sh -s -- --run-as USER"
    assert line in done.stderr
    assert not (site.root / ".local").exists()


def test_the_script_asks_at_the_terminal_and_shows_no_secret(
    site: Site, wheels: Path, tmp_path: Path
) -> None:
    """Its standard input is the script itself."""
    (wheels / WHEEL).unlink()
    script = script_of(site)
    env = {**site.env, "MUSTER_PYTHON": sys.executable, "MUSTER_VENV": str(tmp_path / "venv")}
    terminal, theirs = pty.openpty()
    # A session of its own, of which this is the terminal.
    argv = ["setsid", "--ctty", "--wait", "sh", "-c", f"cat {script} | sh"]
    with subprocess.Popen(argv, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        try:
            seen = b""
            while b"Join secret: " not in seen:
                seen += os.read(terminal, 4096)
            os.write(terminal, b"mj1.typed\n")
            with contextlib.suppress(OSError):  # the end of a terminal
                while more := os.read(terminal, 4096):
                    seen += more
        finally:
            os.close(terminal)
    assert process.returncode == 1
    assert f"{WHEEL} cannot be fetched" in seen.decode()
    assert b"mj1.typed" not in seen


def test_curl_never_waits_for_ever_and_speaks_https_only(site: Site, wheels: Path) -> None:
    script = get(site, "/v1/install.sh")[1].decode()
    for text in (install_line(site.up()), script):
        [called] = re.findall(r"curl -\S+ [^|]*?(?=-o | https:)", text.replace("\\\n", " "))
        for option in ("--proto =https", "--connect-timeout ", "--speed-limit ", "--speed-time "):
            assert option in called, called


def installable(folder: Path, version: int) -> str:
    """Make a wheel with a program `muster` that prints its version and arguments. Returns its
    name."""
    name = f"fake-{version}-py3-none-any.whl"
    info = f"fake-{version}.dist-info"
    with zipfile.ZipFile(folder / name, "w") as wheel:
        program = (
            "import sys\n"
            f"def main(): print('fake', {version}, *sys.argv[1:], 'reads', sys.stdin.readline())\n"
        )
        wheel.writestr("fake.py", program)
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: fake\nVersion: {version}\n"
        )
        tag = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", tag)
        wheel.writestr(f"{info}/entry_points.txt", "[console_scripts]\nmuster = fake:main\n")
        wheel.writestr(f"{info}/RECORD", "")
    return name


def offer(folder: Path, version: int) -> Path:
    """Make a wheel of this version the one that the coordinator serves."""
    name = installable(folder, version)
    sha256 = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    targets = {own_target(): {name: sha256}}
    (folder / MANIFEST).write_text(json.dumps({"requirements": "0" * 64, "targets": targets}))
    return folder / name


def files_below(folder: Path) -> dict[Path, tuple[int, int]]:
    return {
        path: (path.lstat().st_ino, path.lstat().st_mtime_ns)
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }


@pytest.mark.timeout(300)
def test_an_installation_is_replaced_as_a_whole_and_only_if_it_must_be(
    site: Site, wheels: Path, tmp_path: Path
) -> None:
    venv = tmp_path / "opt" / "muster"
    bin_ = str(tmp_path / "bin")

    def again(code: int = 0) -> subprocess.CompletedProcess[str]:
        line = f"MUSTER_VENV={venv} MUSTER_BIN={bin_} sh {script_of(site)} --run-as SUBMITTER"
        return run(line, site, code, MUSTER_JOIN="mj1.x")

    joined = f"join 127.0.0.1:{site.port} --run-as SUBMITTER"
    wheel = offer(wheels, 1)
    assert f"fake 1 {joined}" in again().stdout
    before = files_below(venv.parent)

    # The same wheels again: nothing is fetched, and nothing changes.
    wheel.unlink()
    assert f"fake 1 {joined}" in again().stdout
    assert files_below(venv.parent) == before

    # New wheels that cannot be installed: the old ones stay.
    new = offer(wheels, 2)
    good = new.read_bytes()
    new.write_bytes(good + b"x")
    assert "nothing was changed" in again(1).stderr
    assert files_below(venv.parent) == before

    # They can be installed: a whole new venv, which works at the place of the old one.
    new.write_bytes(good)
    assert f"fake 2 {joined}" in again().stdout
    assert [path.name for path in venv.parent.iterdir()] == ["muster"]
    program = (tmp_path / "bin" / "muster").resolve()
    assert program == venv / "bin" / "muster"
    assert program.read_text().startswith(f"#!{venv}/bin/python")

    # A venv whose Python is gone, as after an upgrade of the system.
    for python in (venv / "bin").glob("python*"):
        python.unlink()
        python.symlink_to("/nowhere/python3")
    assert f"fake 2 {joined}" in again().stdout
    assert [path.name for path in venv.parent.iterdir()] == ["muster"]


@pytest.mark.timeout(300)
def test_a_person_gets_muster_and_logs_in_by_one_line(
    site: Site, wheels: Path, tmp_path: Path
) -> None:
    offer(wheels, 1)
    line = site.muster("user", "add", "ann", "--login").stdout.strip()
    assert line.startswith("curl -fsSk --proto =https ")
    token = line.partition("MUSTER_LOGIN=")[2].partition(" ")[0]
    assert token.startswith("ml1.")
    where = f"| MUSTER_VENV={tmp_path}/venv MUSTER_BIN={tmp_path}/bin"
    done = run(line.replace("|", where), site)
    # The token is in no argument, so that no other user of the machine sees it.
    assert f"fake 1 login https://127.0.0.1:{site.port} reads {token}" in done.stdout
    assert f"{tmp_path}/bin is not in PATH" in done.stderr
    assert (tmp_path / "bin" / "muster").resolve() == tmp_path / "venv" / "bin" / "muster"

    # A later release, without a token.
    offer(wheels, 2)
    [upgrade] = re.findall(r"curl .* sh -s -- install$", site.up(), re.MULTILINE)
    done = run(upgrade.replace("|", where), site)
    assert f"{tmp_path}/venv is ready: fake 2 --version reads" in done.stderr

    # For a user who has one, and from the other command.
    made = site.muster("token", "create", "--user", "ann").stderr
    assert re.search(
        r"need not have Muster: curl .* \| MUSTER_LOGIN=ml1\.\S+ sh$", made, re.MULTILINE
    )
    assert site.muster("user", "add", "x", "--login", "--json", code=2).stdout == ""


@pytest.mark.timeout(300)
def test_the_venv_of_the_coordinator_stays_as_it_is(
    site: Site, wheels: Path, tmp_path: Path
) -> None:
    """A node on the coordinator's machine: the script must not replace what runs there."""
    offer(wheels, 1)
    venv, script = tmp_path / "venv", script_of(site)
    unit = tmp_path / "muster-coordinator.service"
    text = script.read_text().replace("units=/etc/systemd/system", f"units={tmp_path}")
    script.write_text(text)
    where = f"MUSTER_VENV={venv} MUSTER_BIN={tmp_path}/bin"
    run(f"{where} sh {script}", site, MUSTER_JOIN="mj1.x")
    unit.write_text(f"ExecStart={venv}/bin/muster coordinator --config x\n")
    offer(wheels, 2)
    script.write_bytes(get(site, "/v1/install.sh")[1])
    script.write_text(script.read_text().replace("units=/etc/systemd/system", f"units={tmp_path}"))
    done = run(f"{where} sh {script}", site, MUSTER_JOIN="mj1.x")
    if os.geteuid() == 0:
        assert f"the coordinator runs from {venv}, which stays as it is" in done.stderr
        assert f"fake 1 join 127.0.0.1:{site.port}" in done.stdout


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_machine_without_an_index_installs_muster_and_joins(tmp_path: Path) -> None:
    site = Site(tmp_path, wheels=True)
    try:
        up = site.up()
        if "curl" not in up:
            pytest.skip("pip reaches no index with the wheels")
        site.serve()
        whole_way(site, install_line(up))
    finally:
        for daemon in reversed(site.daemons):
            daemon.stop()


def whole_way(site: Site, line: str) -> None:
    # One line for nodes, and one for upgrades.
    assert site.up().count("curl") == 2
    venv, bin_ = site.root / "opt" / "muster", site.root / "bin"
    fetch, _, shell = line.partition(" | ")
    where = f"MUSTER_VENV={venv} MUSTER_BIN={bin_}"
    own = f"{fetch} | {where} {shell} --dir gpu-01 --node gpu-01 --no-start"
    folder = site.root / "etc" / "state" / "wheels"
    manifest = read_manifest(folder)
    assert manifest is not None
    name = next(name for name in manifest.wheels() if name.startswith("muster_cluster-"))

    # Another wheel than the script names: nothing is installed, and no secret is sent.
    good = (folder / name).read_bytes()
    (folder / name).write_bytes(good + b"x")
    done = run(own, site, code=1, MUSTER_JOIN=site.secret())
    assert "HASHES" in done.stderr
    assert not venv.exists()
    (folder / name).write_bytes(good)

    secret = site.secret()
    done = run(own, site, MUSTER_JOIN=secret)
    assert secret not in done.stdout + done.stderr
    assert "gpu-01 joined" in done.stdout
    assert (bin_ / "muster").resolve() == venv / "bin" / "muster"
    site.agent("gpu-01")
    until(lambda: site.links().get("gpu-01") == "connected", "the node is in the pool")

    # The installed package is all that `muster up` needs there: it packs the same wheel.
    again = "from muster.wheels.pack import pack; import sys; sys.stdout.buffer.write(pack().data)"
    done_ = subprocess.run(
        [venv / "bin" / "python", "-I", "-c", again], capture_output=True, check=True, timeout=60
    )
    assert done_.stdout == good

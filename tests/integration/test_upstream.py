"""Three projects that many people build: copied in as workspaces, built and tested inside.

The sources are upstream's part of the source packages of the image's Debian, checked by apt, fetched once and kept in
/var/cache/ermite-runner-tests."""

import json
import pathlib
import subprocess

import pytest

from conftest import IMAGE

CACHE = pathlib.Path("/var/cache/ermite-runner-tests")

LIMIT_S = 300

# Package -> how it is built and tests itself, and what it says then.
PROJECTS = {
    "zlib": ("./configure && make -j2 check", b"*** zlib shared test OK ***"),
    "lua5.4": ("make -j2 linux && make test", b"Lua 5.4"),
    "jq": ("autoreconf -fi && ./configure --disable-docs --disable-maintainer-mode && make -j2 check", b"# FAIL:  0"),
}


def apt_get(folder, *words):
    """apt-get with lists of its own, so that the host's stay as they are."""
    folders = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",
    }
    options = [word for name, value in folders.items() for word in ("-o", f"{name}={value}")]
    subprocess.run(["apt-get", "-qq", *options, *words], cwd=folder, check=True, timeout=300)


def source_line(suite):
    """Sources of a suite, from the archive that this host takes its packages from."""
    targets = ("Created-By: Packages", "Component: main", "Origin: Debian")
    command = ("apt-get", "indextargets", "--format", "$(REPO_URI) $(LABEL)", *targets)
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    [archive, *_] = [line.removesuffix(" Debian") for line in lines if line.endswith(" Debian")]
    return f"deb-src {archive} {suite} main\n"


@pytest.fixture(scope="module")
def sources(one_runner):
    """The folder of the archives."""
    suite = json.loads((IMAGE / "image.json").read_text())["suite"]
    folder = CACHE / suite
    if not all(list(folder.glob(f"{package}_*.orig.tar.*")) for package in PROJECTS):
        for name in ("lists/partial", "cache/archives/partial"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "sources.list").write_text(source_line(suite))
        apt_get(folder, "update")
        apt_get(folder, "source", "--download-only", "--tar-only", *PROJECTS)
    return folder


@pytest.mark.parametrize("package", PROJECTS)
def test_project_builds_and_passes_its_own_tests(runner, sources, tmp_path, package):
    script, words = PROJECTS[package]
    [archive] = sources.glob(f"{package}_*.orig.tar.*")
    workspace = tmp_path / package
    workspace.mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", workspace, "--strip-components=1", "--no-same-owner"], check=True)
    options = ("--job-disk", "4G", "--job-memory", "2G", "--workspace", workspace)
    job = ("sh", "-euxc", f'[ "$(id -un)" = runner ]; {script}')
    outcome = runner.run(*options, "--", *job, limit_s=LIMIT_S)
    assert outcome.status == 0, outcome
    assert words in outcome.stdout

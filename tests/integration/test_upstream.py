"""Three projects that many people build: as Debian source packages, copied in as workspaces, built and tested inside.

The sources are fetched once and kept in /var/cache/ermite-runner-tests."""

import pathlib
import subprocess

import pytest

CACHE = pathlib.Path("/var/cache/ermite-runner-tests")

LIMIT_S = 300

# Package -> how it is built and tests itself, and what it says then.
PROJECTS = {
    "zlib": ("./configure && make -j2 check", b"*** zlib shared test OK ***"),
    "lua5.4": ("make -j2 linux && make test", b"Lua 5.4"),
    "jq": ("autoreconf -fi && ./configure --disable-docs --disable-maintainer-mode && make -j2 check", b"# FAIL:  0"),
}


def apt_get(*words):
    """apt-get with lists of its own, so that the host's stay as they are."""
    folders = {
        "Dir::Etc::sourcelist": CACHE / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": CACHE / "lists",
        "Dir::Cache": CACHE / "cache",
        "APT::Sandbox::User": "root",
    }
    options = [word for name, value in folders.items() for word in ("-o", f"{name}={value}")]
    subprocess.run(["apt-get", "-qq", *options, *words], cwd=CACHE, check=True, timeout=300)


def source_line():
    """The archive that this host takes its packages from, for sources."""
    wanted = ["Created-By: Packages", "Component: main"]
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)", *wanted]
    targets = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    plain = [line for line in targets if not line.split()[1].endswith(("-security", "-updates", "-backports"))]
    return f"deb-src {plain[0]} main\n"


@pytest.fixture(scope="module")
def sources():
    """The folder of the source packages."""
    CACHE.mkdir(parents=True, exist_ok=True)
    if not all(list(CACHE.glob(f"{package}_*.dsc")) for package in PROJECTS):
        for folder in ("lists/partial", "cache/archives/partial"):
            (CACHE / folder).mkdir(parents=True, exist_ok=True)
        (CACHE / "sources.list").write_text(source_line())
        apt_get("update")
        apt_get("source", "--download-only", *PROJECTS)
    return CACHE


@pytest.mark.parametrize("package", PROJECTS)
def test_project_builds_and_passes_its_own_tests(runner, sources, tmp_path, package):
    script, words = PROJECTS[package]
    [description] = sources.glob(f"{package}_*.dsc")
    workspace = tmp_path / package
    # Debian's patches to Lua want Debian's way of building.
    unpack = ("dpkg-source", "--no-check", "--skip-patches", "--extract", description, workspace)
    subprocess.run(unpack, check=True, capture_output=True)
    options = ("--job-disk", "4G", "--job-memory", "2G", "--workspace", workspace)
    job = ("sh", "-euxc", f'[ "$(id -un)" = runner ]; {script}')
    outcome = runner.run(*options, "--", *job, limit_s=LIMIT_S)
    assert outcome.status == 0, outcome
    assert words in outcome.stdout

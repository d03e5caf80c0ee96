"""The programs of the build with a hostile one (torture/) in the place of the guest program."""

import shutil

from conftest import BUILD, PROGRAM

TORTURE = BUILD / "tests" / "integration" / "torture" / "torture"
MODE_BYTES = 32  # the name of its mode stands at the end of the program, as in torture/main.c


class Farm:
    """A copy of the programs in an empty directory."""

    def __init__(self, directory):
        self.directory = directory
        for place in (".", "guest"):
            (directory / place).mkdir(exist_ok=True)
            for file in (PROGRAM.parent / place).iterdir():
                if file.is_file():
                    shutil.copy2(file, directory / place)

    def command(self, mode, command):
        """The command with this copy of the runner, whose guest program has the mode."""
        program = self.directory / "guest" / "ermite-runner"
        shutil.copy2(TORTURE, program)
        with program.open("ab") as file:
            file.write(mode.encode().ljust(MODE_BYTES, b"\0"))
        return [str(self.directory / PROGRAM.name), *command[1:]]

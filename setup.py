"""What pyproject.toml cannot say: the bundled data, which live in data/, go into the wheel as molflt/data_sets/."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithData(build_py):
    """Copies the databases of data/ besides the modules. An editable installation reads them where they are."""

    def run(self) -> None:
        """Build the modules, then copy."""
        super().run()
        if self.editable_mode:
            return
        for source in sorted(Path("data").glob("*/*.lmdb")):
            folder = Path(self.build_lib, "molflt", "data_sets", source.parent.name)
            folder.mkdir(parents=True, exist_ok=True)
            self.copy_file(str(source), str(folder / source.name))


setup(cmdclass={"build_py": BuildWithData})

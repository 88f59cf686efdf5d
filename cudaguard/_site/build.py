"""Put the start-up files and the pytest plugin at the root of site-packages, in wheels and in editable installs.

`package_data` with `../` and `data_files` reach that root in a wheel only; copying in build_py reaches it in both, and setuptools lists the
files in RECORD, so that an uninstall takes them away. setuptools loads this file by path: it may import nothing but setuptools.
"""

from setuptools.command.build_py import build_py as _build_py

# The same stem for .pth and .start: Python 3.15 and later then run the second only.
FILES = ("cudaguard.pth", "cudaguard.start", "_cudaguard_start.py", "_cudaguard_pytest.py")


class build_py(_build_py):
    def run(self) -> None:
        super().run()
        # In an editable build, install_lib is the folder that becomes the wheel.
        root = self.get_finalized_command("install").install_lib if self.editable_mode else self.build_lib
        for name in FILES:
            self.copy_file(f"cudaguard/_site/{name}", f"{root}/{name}")

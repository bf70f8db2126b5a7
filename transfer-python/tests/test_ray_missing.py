"""`transferd.ray` where Ray is not installed, or is another one than it was written for. The tests with Ray are in tests_ray."""

from __future__ import annotations

import subprocess
import sys

import pytest

CALLS = ["init()", "client()", "register()"]


def run(code: str, *path: str) -> str:
    script = f"import sys; sys.path[:0] = {list(path)!r}\n{code}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def error_of(call: str, *path: str) -> str:
    return run(
        f"""
import transferd as td, transferd.ray as tr
try:
    tr.{call}
except ImportError as error:
    assert isinstance(error, td.Error) and isinstance(error, tr.RayUnusable) and error.fault == "operator"
    print(error)
""",
        *path,
    )


# Promise: ray-versions
def test_importing_needs_no_ray():
    code = "import sys, transferd, transferd.ray; print(sorted({'ray', 'torch', 'pyarrow'} & set(sys.modules)))"
    assert run(code) == "[]"
    assert run("import sys, transferd; print('transferd.ray' in sys.modules)") == "False"


# Promise: ray-versions
@pytest.mark.parametrize("call", CALLS)
def test_without_ray_each_call_says_what_to_install(call):
    assert error_of(call, "").startswith("transferd.ray needs Ray 2.60.0 or later, and it cannot be imported")
    assert error_of(call, "").endswith("Install it: pip install 'ray==2.60.0'")


# Promise: ray-versions
@pytest.mark.parametrize(
    "manager, says",
    [
        (None, "Ray 2.40.0 has no interface for tensor transports"),
        ("class TensorTransportManager:\n    __abstractmethods__ = ()", "it has no abort_transport"),
        (
            "class TensorTransportManager:\n    __abstractmethods__ = ('warm_up',)",
            "it asks a transport for warm_up, and transferd.ray implements that of Ray 2.60.0",
        ),
    ],
    ids=["none", "older", "newer"],
)
def test_a_version_of_ray_with_another_interface_is_named(tmp_path, manager, says):
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/__init__.py").write_text("__version__ = '2.40.0'")
    if manager is not None:
        inner = tmp_path / "ray/experimental/rdt"
        inner.mkdir(parents=True)
        (inner / "tensor_transport_manager.py").write_text(manager)
        (inner / "util.py").write_text("transport_manager_info = {}\ndef register_tensor_transport(): ...")
    error = error_of("register()", str(tmp_path))
    assert error.startswith("Ray 2.40.0 has") and says in error and error.endswith("pip install 'ray==2.60.0'")

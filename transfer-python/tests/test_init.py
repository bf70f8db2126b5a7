"""`td.init()`: processes with the environment that torchrun sets, and the sidecars that they start."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import transferd as td
from conftest import ROOT, TRANSFERCTL, until
from torchrun import OURS, Job, Rank, free_port, is_alive, kill_sidecar, process_of, tcp_listeners

PUSH = """
import numpy as np
c.push("w", np.arange(100_000))
"""

FETCH = """
w = c.fetch("w", timeout=60)
print(w.numpy().sum(), w.report.fabric, w.report.copied, flush=True)
"""


# Promise: init-of-a-node
def test_two_ranks_of_one_host_share_a_sidecar(folder):
    job = Job(folder)
    with job.rank(1, FETCH) as second, job.rank(0, PUSH) as first:
        one, two = first.ready(), second.ready()
        assert (one["name"], two["name"]) == ("rank-0", "rank-1")
        assert one["node"] == two["node"] == "node-0" and one["path"] == two["path"]
        assert second.line() == f"{sum(range(100_000))} local 0"
        # A job of one node listens nowhere.
        assert tcp_listeners(process_of(one["path"])) == set()
        at = os.stat(os.path.dirname(one["path"]))
        assert (at.st_mode & 0o777, at.st_uid) == (0o700, os.geteuid())
        name = os.path.basename(os.path.dirname(one["path"]))
        assert re.fullmatch(rf"transferd-{os.geteuid()}-job-7-[0-9a-f]{{8}}-n0-r0", name)
        second.end()
        first.end()
    until("the folder is removed with the sidecar", lambda: not list(folder.iterdir()))


# Promise: init-of-several-nodes
@pytest.mark.parametrize("own_port", [False, True])
def test_two_nodes_share_a_directory(folder, own_port):
    port = free_port()
    job = Job(folder, nodes=2, of_each=1, **({"TRANSFERD_PORT": str(port)} if own_port else {}))
    wanted = port if own_port else int(job.all["MASTER_PORT"]) + 1
    # The order of the nodes does not matter.
    with job.rank(1, FETCH) as second, job.rank(0, PUSH) as first:
        one, two = first.ready(), second.ready()
        assert (one["node"], two["node"], two["name"]) == ("node-0", "node-1", "rank-1")
        assert one["path"] != two["path"]
        total, fabric, _ = second.line().split()
        assert (int(total), fabric) == (sum(range(100_000)), "tcp")
        assert wanted in tcp_listeners(process_of(one["path"]))
        second.end()
        first.end()


def certificates(folder: Path, *nodes: str) -> dict[str, str]:
    """The variables for certificates of these nodes, which `transferctl certs` makes."""
    out = folder / "certs"
    named = [word for node in nodes for word in ("--node", node)]
    subprocess.run([TRANSFERCTL, "certs", "--out", out, *named], check=True, stdout=subprocess.DEVNULL)
    files = {"CERT": "{node}.pem", "KEY": "{node}.key", "CA": "ca.pem"}
    return {f"TRANSFERD_TLS_{name}": str(out / file) for name, file in files.items()}


# Promise: init-of-several-nodes
def test_two_nodes_with_certificates(folder):
    job = Job(folder, nodes=2, of_each=1, **certificates(folder, "node-0=127.0.0.1", "node-1"))
    with job.rank(0, PUSH) as first, job.rank(1, FETCH) as second:
        path = second.ready()["path"]
        first.ready()
        assert second.line().split()[0] == str(sum(range(100_000)))
        status = [TRANSFERCTL, "status", "--admin", Path(path).with_name("admin.sock")]
        said = subprocess.run(status, stdout=subprocess.PIPE, check=True, text=True).stdout
        assert "https://127.0.0.1" in said and "TLS 1.3" in said


# Promise: init-of-several-nodes
def test_a_certificate_of_another_node_does_not_come_in(folder):
    job = Job(folder, nodes=2, of_each=1, **certificates(folder, "node-0=127.0.0.1", "node-7"))
    tls = {name: value for name, value in job.all.items() if name.startswith("TRANSFERD_")}
    wrong = {name: value.replace("{node}", "node-7") for name, value in tls.items()}
    with job.rank(0) as first, job.rank(1, **wrong) as second:
        first.ready()
        said = second.fails()
        assert "node-7" in said and "local rank 0" not in said, said


@pytest.fixture
def as_rank(monkeypatch, folder):
    """Makes this process one of a job, with the variables that are named set otherwise, or not at all."""

    def become(**others: str | None) -> Job:
        job = Job(folder)
        for name in os.environ:
            if OURS.fullmatch(name):
                monkeypatch.delenv(name)
        for name, value in {**job.environment(1), **others}.items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)
        return job

    return become


# Promise: init-errors
def test_without_torchrun_it_says_what_to_use(as_rank):
    as_rank(RANK=None, MASTER_ADDR=None)
    right = r"missing: RANK, MASTER_ADDR\. .*torchrun.*td\.embedded\(\).*td\.connect\(path\)"
    with pytest.raises(td.Invalid, match=right):
        td.init()


# Promise: init-errors
@pytest.mark.parametrize(
    "variable, value, right",
    [
        ("RANK", "two", "'two' has to be a whole number from 0 to 1"),
        ("RANK", "2", "RANK=2 has to be a whole number from 0 to 1"),
        ("LOCAL_RANK", "-1", "'-1' has to be a whole number from 0 to 1"),
        ("LOCAL_WORLD_SIZE", "3", "LOCAL_WORLD_SIZE=3 has to be a whole number from 1 to 2"),
        ("WORLD_SIZE", "0", "WORLD_SIZE=0 has to be a whole number of 1 or more"),
        ("MASTER_PORT", "70000", "MASTER_PORT=70000 has to be a whole number from 1 to 65535"),
        ("TORCHELASTIC_RESTART_COUNT", "x", "TORCHELASTIC_RESTART_COUNT='x' has to be a whole number of 0 or more"),
    ],
)
def test_a_variable_that_cannot_be_is_named(as_rank, variable, value, right):
    as_rank(**{variable: value})
    with pytest.raises(td.Invalid, match=re.escape(right)):
        td.init()


# Promise: init-errors
@pytest.mark.parametrize(
    "others, right",
    [
        ({"MASTER_PORT": "65535"}, "MASTER_PORT=65535 .*TRANSFERD_PORT"),
        ({"MASTER_PORT": "29500", "TRANSFERD_PORT": "29500"}, "TRANSFERD_PORT=29500 is torch's own port"),
        ({"TRANSFERD_PORT": "no"}, "TRANSFERD_PORT='no' has to be a whole number from 1 to 65535"),
        ({"MASTER_ADDR": "no.such.host.invalid"}, "MASTER_ADDR='no.such.host.invalid' has no IP address"),
        ({"TRANSFERD_TLS_KEY": "k"}, "not set: TRANSFERD_TLS_CERT, TRANSFERD_TLS_CA"),
        (
            {"MASTER_ADDR": "192.0.2.7"},
            r"MASTER_ADDR=192\.0\.2\.7 is not on loopback.*not set: TRANSFERD_TLS_CERT, TRANSFERD_TLS_KEY, "
            r"TRANSFERD_TLS_CA\. .*transferctl certs --out certs --node node-0=192\.0\.2\.7 --node node-1",
        ),
    ],
)
def test_what_several_nodes_need_is_named(as_rank, others, right):
    as_rank(WORLD_SIZE="4", **others)
    with pytest.raises(td.Invalid, match=right):
        td.init()


# What Compose and Helm make of values that nobody gave, and Kubernetes of Services named transferd, transfer and transfer-verbs.
AROUND = {
    **{f"TRANSFERD_{name}": "" for name in ("TLS_CERT", "TLS_KEY", "TLS_CA")},
    **{f"TRANSFER_{name}": "" for name in ("LISTEN", "NODE", "SOCKET", "PINNED_LIMIT", "HUGE_PAGES", "CONFIG", "LOG")},
    **{f"{name}_SERVICE_HOST": "10.0.0.1" for name in ("TRANSFERD", "TRANSFER", "TRANSFER_VERBS")},
    **{f"{name}_SERVICE_PORT": "7471" for name in ("TRANSFERD", "TRANSFER", "TRANSFER_VERBS")},
    **{f"{name}_PORT": "tcp://10.0.0.1:7471" for name in ("TRANSFERD", "TRANSFER", "TRANSFER_VERBS")},
    **{f"{name}_PORT_7471_TCP": "tcp://10.0.0.1:7471" for name in ("TRANSFERD", "TRANSFER", "TRANSFER_VERBS")},
    **{f"{name}_PORT_7471_TCP_PORT": "7471" for name in ("TRANSFERD", "TRANSFER", "TRANSFER_VERBS")},
    "TORCHELASTIC_RESTART_COUNT": "",
}


# Promise: environment
def test_what_orchestrators_put_into_the_environment_is_no_setting(folder):
    job = Job(folder, nodes=2, of_each=1, **AROUND)
    with job.rank(0) as first, job.rank(1) as second:
        assert first.line() and second.line()


def test_an_embedded_sidecar_takes_no_settings_from_orchestrators():
    code = "import transferd as td\nwith td.embedded(sidecar={'node': 'a'}) as c: print(c.node)"
    environment = {**os.environ, **AROUND}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "a\n", done.stderr


# Promise: init-errors
def test_certificates_that_cannot_be_read_are_named(folder):
    names = ("CERT", "KEY", "CA")
    job = Job(folder, nodes=2, of_each=1, **{f"TRANSFERD_TLS_{name}": f"/nowhere/{{node}}-{name}" for name in names})
    with job.rank(0) as first:
        said = first.fails()
    assert said.startswith("transferd._errors.SidecarGone") and "status 2" in said and "/nowhere/node-0-" in said, said


def test_a_path_that_is_too_long_for_a_socket_is_named(as_rank, folder):
    deep = folder / ("x" * 60)
    deep.mkdir()
    as_rank(XDG_RUNTIME_DIR=str(deep))
    with pytest.raises(td.Invalid, match=f"{deep}.*too long.*XDG_RUNTIME_DIR"):
        td.init()


# Promise: init-waits
def test_a_rank_waits_until_its_deadline(as_rank, folder):
    as_rank()
    with pytest.raises(td.Timeout) as e:
        td.init(timeout=0.2)
    assert e.value.code == "deadline" and e.value.can_retry and e.value.waited >= 0.2
    right = rf"rank 1 has waited .* no sidecar listens at {folder}/transferd-.*-n0-r0/worker\.sock"
    assert re.search(right, str(e.value))
    assert isinstance(e.value, TimeoutError)


# The sidecar itself waits for two seconds before it is ready without the directory.
# Promise: init-of-several-nodes
@pytest.mark.parametrize("timeout", [0.1, 3])
def test_a_node_without_its_directory_says_where_it_looked(folder, timeout):
    job = Job(folder, nodes=2, of_each=1)
    command = [sys.executable, "-c", f"import transferd as td; td.init(timeout={timeout})"]
    with Rank(command, job.environment(1)) as second:
        said = second.fails()
    port = int(job.all["MASTER_PORT"]) + 1
    assert said.startswith("transferd._errors.Timeout") and f"at http://127.0.0.1:{port}" in said, said
    assert "MASTER_PORT + 1" in said and "TRANSFERD_PORT" in said, said


# Such a rank lives on, as one does that is the others' to be told of.
FAIL = """
import sys, transferd as td
try:
    td.init()
except td.SidecarGone as e:
    print("failed", e.code, e, flush=True)
sys.stdin.read()
"""


# Promise: init-waits
def test_the_others_hear_why_local_rank_0_failed(folder):
    job = Job(folder, TRANSFER_POOL_BYTES="1")
    with Rank([sys.executable, "-c", FAIL], job.environment(0)) as first:
        said = first.line()
        assert said.startswith("failed not_started") and "--pool-bytes 1" in said, said
        command = [sys.executable, "-c", "import transferd as td; td.init(timeout=None)"]
        with Rank(command, job.environment(1)) as second:
            said = second.fails()
    assert "local rank 0 did not start the sidecar" in said and "--pool-bytes 1" in said and "worker.sock" in said, said
    # One that waits until the end says it as well.
    with Rank([sys.executable, "-c", "import transferd as td; td.init(timeout=0.1)"], job.environment(1)) as second:
        said = second.fails()
    assert "Timeout" in said and "local rank 0 said:" in said and "--pool-bytes 1" in said, said
    # What is left of it does not end a later start.
    good = {"TRANSFER_POOL_BYTES": "16MiB"}
    with job.rank(1, **good) as second, job.rank(0, **good) as first:
        assert first.ready()["path"] == second.ready()["path"]


def make_wrong(path: Path, wrong: str, folder: Path) -> None:
    if wrong == "mode":
        path.mkdir(mode=0o700)
        path.chmod(0o770)
    elif wrong == "link":
        path.symlink_to(folder)
    elif wrong == "file":
        path.touch(mode=0o700)
    elif wrong == "owner":
        path.mkdir(mode=0o700)
        os.chown(path, 65534, 65534)


def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("it needs root: it makes what belongs to another user")


# Promise: init-other-users
@pytest.mark.parametrize("local_rank", ["0", "1"])
@pytest.mark.parametrize(
    "wrong, said",
    [
        ("mode", "has mode 0770"),
        ("link", "is a symbolic link"),
        ("file", "is no folder"),
        ("owner", "belongs to user id 65534"),
    ],
)
def test_a_folder_that_another_user_could_have_made_is_refused(as_rank, folder, wrong, said, local_rank):
    if wrong == "owner":
        needs_root()
    as_rank(LOCAL_RANK="1")
    with pytest.raises(td.Timeout) as e:
        td.init(timeout=0)
    path = Path(re.search(r"(/\S+)/worker\.sock", str(e.value))[1])
    make_wrong(path, wrong, folder)
    as_rank(LOCAL_RANK=local_rank, MASTER_PORT=os.environ["MASTER_PORT"])
    with pytest.raises(td.PermissionDenied) as e:
        td.init()
    assert f"{path} {said}" in str(e.value) and "mode 0700" in str(e.value) and e.value.code == "permission_denied"
    assert isinstance(e.value, PermissionError) and not e.value.can_retry


# Promise: init-other-users
def test_a_sidecar_of_another_user_is_refused(as_rank, folder):
    needs_root()
    as_rank()
    with pytest.raises(td.Timeout) as e:
        td.init(timeout=0)
    path = Path(re.search(r"(/\S+/worker\.sock)", str(e.value))[1])
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        # The kernel remembers who it was that began to listen.
        os.seteuid(65534)
        try:
            listener.listen()
        finally:
            os.seteuid(0)
        with pytest.raises(td.PermissionDenied, match="runs as user id 65534, and this process as user id 0"):
            td.init()


# Promise: end-of-a-node
@pytest.mark.parametrize("how", ["returns", "is killed", "fails"])
def test_the_sidecar_ends_with_local_rank_0(folder, how):
    job = Job(folder)
    with job.rank(0, "raise SystemExit('over')" if how == "fails" else "") as first:
        path = first.ready()["path"]
        if how == "fails":
            assert "over" in first.process.communicate()[1]
        else:
            sidecar = process_of(path)
            first.process.kill() if how == "is killed" else first.end()
            first.process.wait()
            until("the sidecar is gone", lambda: not is_alive(sidecar))
    until("its folder is removed", lambda: not list(folder.iterdir()))


# Promise: end-of-a-node
def test_ctrl_c_at_the_terminal_does_not_end_the_sidecar_before_its_ranks(folder):
    job = Job(folder)
    with job.rank(0) as first:
        assert os.getsid(process_of(first.ready()["path"])) != os.getsid(first.process.pid)


# Promise: init-restarts
def test_a_restart_gets_a_sidecar_of_its_own(folder):
    job = Job(folder)
    with job.rank(0) as first:
        before = first.ready()
        # The old one still lives: the new ranks do not meet it.
        again = {"TORCHELASTIC_RESTART_COUNT": "1"}
        with job.rank(1, **again) as second, job.rank(0, **again) as new_first:
            after = new_first.ready()
            assert after["path"] != before["path"] and after["path"].endswith("-n0-r1/worker.sock")
            assert second.ready()["incarnation"] == after["incarnation"] != before["incarnation"]


# Promise: init-restarts
def test_a_restart_of_two_nodes_takes_the_port_over(folder):
    job = Job(folder, nodes=2, of_each=1)
    again = {"TORCHELASTIC_RESTART_COUNT": "1"}
    with job.rank(0) as first, job.rank(1) as second:
        first.ready()
        second.ready()
        # They begin while those of the first start live, and wait for the port.
        with job.rank(0, PUSH, **again) as new_first, job.rank(1, FETCH, **again) as new_second:
            first.process.kill()
            second.process.kill()
            assert new_first.ready()["path"].endswith("-n0-r1/worker.sock")
            assert new_second.ready()["path"].endswith("-n1-r1/worker.sock")
            assert new_second.line().startswith(f"{sum(range(100_000))} tcp")


# Promise: init-restarts
def test_a_restart_takes_the_name_of_a_node_over(folder):
    job = Job(folder, nodes=2, of_each=1)
    again = {"TORCHELASTIC_RESTART_COUNT": "1"}
    with job.rank(0) as first, job.rank(1) as second:
        first.ready()
        admin = Path(second.ready()["path"]).with_name("admin.sock")

        def directory() -> dict[str, object]:
            status = [TRANSFERCTL, "status", "--json", "--admin", admin]
            return json.loads(subprocess.run(status, stdout=subprocess.PIPE, check=True).stdout)["directory"]

        first.process.kill()
        with job.rank(0, **again) as new_first:
            new_first.ready()
            # The second node's sidecar has not ended, and finds the new directory where the old one was.
            until("it has attached again", lambda: directory()["attached"] and directory()["attachments"] == 2)
            with job.rank(1, **again) as new_second:
                assert new_second.ready()["node"] == "node-1"
                until("the old one is not node-1 any more", lambda: not directory()["attached"])


# Promise: init-of-several-nodes
def test_a_port_that_another_program_has_is_named(folder):
    job = Job(folder, nodes=2, of_each=1)
    port = int(job.all["MASTER_PORT"]) + 1
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        # How long it takes until the sidecar finds the port taken is the machine's affair.
        for timeout in (1, 4, 16, 60):
            command = [sys.executable, "-c", f"import transferd as td; td.init(timeout={timeout})"]
            with Rank(command, job.environment(0)) as first:
                said = first.fails()
            assert said.startswith("transferd._errors.Timeout"), said
            if "Address already in use" in said:
                break
        assert f"--listen 127.0.0.1:{port}: cannot listen there: Address already in use" in said, said
        assert "MASTER_PORT + 1" in said and "TRANSFERD_PORT" in said, said
        # It begins as soon as the port is free.
        with job.rank(0) as first:
            log = job.the_folder() / "log"
            until("it has met the other program", lambda: log.exists() and "Address already in use" in log.read_text())
            other.close()
            first.ready()


# Promise: init-restarts
def test_a_dead_sidecar_is_replaced(folder):
    job = Job(folder)
    with job.rank(0) as first:
        before = first.ready()
        kill_sidecar(before["path"])
        first.process.kill()
        first.process.wait()
    # Its folder is still there, with a socket at which nobody listens.
    assert job.sockets() == [Path(before["path"])]
    with job.rank(1) as second, job.rank(0) as first:
        after = first.ready()
        assert after["path"] == before["path"] and after["incarnation"] != before["incarnation"]
        assert second.ready()["incarnation"] == after["incarnation"]


# Promise: init-restarts
def test_a_second_job_of_the_same_name_waits_for_the_first(folder):
    job = Job(folder)
    with job.rank(0) as first:
        before = first.ready()
        command = [sys.executable, "-c", "import transferd as td; td.init(timeout=0.1)"]
        with Rank(command, job.environment(0)) as other:
            said = other.fails()
        assert f"process {first.process.pid} has started" in said and "--rdzv-id" in said, said
        with job.rank(0) as next_first:
            first.end()
            after = next_first.ready()
            assert after["path"] == before["path"] and after["incarnation"] != before["incarnation"]


# Promise: init-restarts
def test_two_jobs_on_one_host_do_not_meet(folder):
    # torchrun calls each job "none" that is given no name: then its port tells it from others.
    jobs = [Job(folder), Job(folder, TORCHELASTIC_RUN_ID="job-8"), Job(folder, TORCHELASTIC_RUN_ID="none")]
    jobs.append(Job(folder, TORCHELASTIC_RUN_ID="none"))
    ranks = [job.rank(0, f"c.push('k', b'{n}')\nprint(bytes(c.fetch('k')), flush=True)") for n, job in enumerate(jobs)]
    try:
        paths = {rank.ready()["path"] for rank in ranks}
        assert len(paths) == 4
        assert [rank.line() for rank in ranks] == [f"b'{n}'" for n in range(4)]
    finally:
        for rank in ranks:
            rank.__exit__()


# Promise: init-of-a-node
def test_a_process_calls_it_again(folder):
    code = """
        import os
        with td.init(name="another", arena="1MiB") as again:
            assert (again.name, again.incarnation) == ("another", c.incarnation)
        child = os.fork()
        if child == 0:
            with td.init(name="child", arena="1MiB") as own:
                own.push("k", b"1", outlive=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(bytes(c.fetch("k")), flush=True)
    """
    with Job(folder).rank(0, code) as first:
        first.ready()
        assert first.line() == "b'1'"


# Promise: init-of-a-node
def test_a_sidecar_that_died_is_started_again(folder):
    code = """
        sys.stdin.readline()
        with td.init(name="again", arena="1MiB") as again:
            print(again.incarnation != before, flush=True)
    """
    with Job(folder).rank(0, "before = c.incarnation" + textwrap.dedent(code)) as first:
        kill_sidecar(first.ready()["path"])
        first.process.stdin.write("go\n")
        first.process.stdin.flush()
        assert first.line() == "True"


def test_the_recipe_of_the_page_does_what_it_says(folder):
    page = (ROOT / "docs/python.md").read_text()
    (code,) = re.findall(r"^```python\n([^`]*td\.init\(.*?)^```", page, re.M | re.S)
    job = Job(folder)
    with Rank([sys.executable, "-c", code], job.environment(1)) as second:
        with Rank([sys.executable, "-c", code], job.environment(0)) as first:
            first.end()
            second.end()

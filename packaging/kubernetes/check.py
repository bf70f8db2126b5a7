"""Gives transferd each configuration file and each command line that is in a manifest: check.py TRANSFERD MANIFEST...

Also checks that no pod gets the environment variables of Services.

Certificates are files of the pod; here a set is made up for them, so that everything but these paths is checked as it stands. So is what a pod
knows of its cluster: the API server, its authority and a token.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

import yaml


def pods(path):
    for document in yaml.safe_load_all(pathlib.Path(path).read_text()):
        if document and document["kind"] in ("Pod", "DaemonSet", "StatefulSet"):
            yield document["spec"] if document["kind"] == "Pod" else document["spec"]["template"]["spec"]


def configurations(path):
    for document in yaml.safe_load_all(pathlib.Path(path).read_text()):
        if document and document["kind"] == "ConfigMap":
            yield from document["data"].items()


def command_lines(path):
    """Those of containers that have no configuration file."""
    for pod in pods(path):
        for container in pod["containers"]:
            if any(word.startswith("--listen=") for word in container.get("args", [])):
                yield container["name"], container["args"]


def certificates(folder):
    """An authority, a certificate and its key, as PEM files."""
    run = lambda *words: subprocess.run(["openssl", *words], check=True, cwd=folder, capture_output=True)
    ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    run("req", "-x509", *ec, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=authority")
    run(
        "req", "-x509", *ec, "-keyout", "tls.key", "-out", "tls.crt", "-subj", "/CN=node",
        "-addext", "subjectAltName=DNS:node", "-addext", "basicConstraints=critical,CA:FALSE",
        "-CA", "ca.crt", "-CAkey", "ca.key",
    )  # fmt: skip


def by_leases(text):
    """As leases.yaml says to change it."""
    return re.sub(r'static:[^"\s]*', "kubernetes:transfer/transfer-directory", text)


def cluster(folder):
    """What a pod has of its cluster."""
    token = pathlib.Path(folder, "token")
    token.write_text("token")
    return ["--kubernetes-url", "https://192.0.2.1:443", "--kubernetes-ca", f"{folder}/ca.crt", "--kubernetes-token-file", str(token)]


def check(transferd, told, where, folder):
    done = subprocess.run([transferd, "--check", *told], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{where}: {re.sub(re.escape(folder), '/etc/transfer/tls', done.stderr)}")


def main(transferd, manifests):
    checked = 0
    with tempfile.TemporaryDirectory() as folder:
        certificates(folder)
        for manifest in manifests:
            if not all(pod.get("enableServiceLinks") is False for pod in pods(manifest)):
                sys.exit(f"{manifest}: a pod has no enableServiceLinks: false")
            for name, text in configurations(manifest):
                file = pathlib.Path(folder, name)
                file.write_text(text.replace("/etc/transfer/tls", folder))
                told = ["--config", str(file), "--node", "node", "--advertise", "node.example:7471", "--data-advertise", "192.0.2.1"]
                check(transferd, told, f"{manifest}: {name}", folder)
                if (changed := by_leases(file.read_text())) != file.read_text():
                    file.write_text(changed)
                    check(transferd, [*told, *cluster(folder)], f"{manifest}: {name} by Leases", folder)
                checked += 1
            for name, words in command_lines(manifest):
                told = " ".join(words).replace("/etc/transfer/tls", folder).replace("$(POD_IP)", "192.0.2.1")
                told = told.replace("$(TRANSFER_NODE)", "node").split()
                check(transferd, ["--node", "node", *told], f"{manifest}: container {name}", folder)
                if any("static:" in word for word in told):
                    told = [by_leases(word) for word in told] + ["--directory-host", *cluster(folder)]
                    check(transferd, ["--node", "node", *told], f"{manifest}: container {name} by Leases", folder)
    # leases.yaml has no pods.
    of_pods = sum(any(pods(manifest)) for manifest in manifests)
    if not 0 < of_pods <= checked:
        sys.exit(f"{of_pods} manifests with pods have only {checked} configurations")


main(sys.argv[1], sys.argv[2:])

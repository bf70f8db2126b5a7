"""The admin service as a client in another language sees it: Python's grpcio, with no code of this project but the .proto files.

Arguments: the folder of the .proto files, one to generate code into, and two addresses HOST:PORT. The first is of a sidecar whose
worker "giver" has published the tensors many/000 to many/299 and "sole", and waits for a fetch of "never"; the second is of another
sidecar, with a link to the first and without workers. It is drained at the end.
"""

import importlib
import subprocess
import sys
import threading
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from google.protobuf.descriptor_pool import DescriptorPool

SOON = 30


def generated(protos, folder):
    """A client made of the .proto files."""
    names = [f"transfer/v1/{name}.proto" for name in ("types", "events", "lists", "admin")]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{protos}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
    subprocess.run(command + names, check=True)
    sys.path.insert(0, folder)
    return importlib.import_module("transfer.v1.admin_pb2"), importlib.import_module("transfer.v1.admin_pb2_grpc")


def refused(code, call, *arguments):
    """The text of the failure that a call has to end with."""
    try:
        answer = call(*arguments, timeout=SOON)
        # A stream fails when it is read.
        if hasattr(answer, "__iter__"):
            list(answer)
    except grpc.RpcError as error:
        assert error.code() == code, error
        return error.details()
    raise AssertionError(f"{arguments} was not refused")


def by_reflection(channel, called):
    """The services and methods as grpcurl finds them; all of the service's methods have been called, by the end."""
    database = ProtoReflectionDescriptorDatabase(channel)
    services = database.get_services()
    for name in ["transfer.v1.Admin", "transfer.v1.Peering", "grpc.health.v1.Health"]:
        assert name in services, services
    service = DescriptorPool(database).FindServiceByName("transfer.v1.Admin")
    methods = {method.name for method in service.methods}
    assert methods == called, (methods - called, called - methods)


class Client:
    """Calls, and notes which were called."""

    def __init__(self, stub):
        self.stub, self.called = stub, set()

    def __getattr__(self, name):
        self.called.add(name)
        return getattr(self.stub, name)

    def all(self, name, request, entries):
        """The entries of all pages, and how many pages there were."""
        found, pages = [], 0
        while True:
            page = getattr(self, name)(request, timeout=SOON)
            got = getattr(page, entries)
            assert len(got) <= (request.page_size or 100), (name, len(got))
            found.extend(got)
            pages += 1
            if not page.next_page_token:
                return found, pages
            request.page_token = page.next_page_token


def looks(pb, a):
    status = a.Status(pb.StatusRequest(), timeout=SOON)
    assert (status.node, status.state, list(status.reasons)) == ("a", pb.STATE_SERVING, []), status
    assert (status.counters.tensors, status.counters.sessions, status.counters.links) == (301, 1, 1), status
    assert status.log_level == "info", status

    for size in [7, 0, 1000]:
        found, pages = a.all("Tensors", pb.TensorsRequest(page_size=size), "tensors")
        assert sorted(t.key for t in found) == sorted([f"many/{i:03}" for i in range(300)] + ["sole"]), size
        assert all(0 <= time.time() - t.published_at_unix_ns / 1e9 < 3600 for t in found), found[0]
        assert pages >= -(-301 // (size or 100)), (size, pages)
    some, _ = a.all("Tensors", pb.TensorsRequest(prefix="many/29", page_size=3), "tensors")
    assert sorted(t.key for t in some) == [f"many/{i}" for i in range(290, 300)], some
    assert a.all("Tensors", pb.TensorsRequest(owner="nobody"), "tensors")[0] == []
    text = refused(grpc.StatusCode.INVALID_ARGUMENT, a.Tensors, pb.TensorsRequest(page_token="many/007"))
    assert "page_token" in text and "many/007" in text, text

    (session,), _ = a.all("Sessions", pb.SessionsRequest(prefix="giv"), "sessions")
    assert (session.worker, session.operations) == ("giver", 1), session
    (peer,), _ = a.all("Peers", pb.PeersRequest(), "peers")
    assert (peer.node, peer.state) == ("b", pb.PEER_STATE_UP) and peer.incarnation > 0, peer
    nodes, pages = a.all("Nodes", pb.NodesRequest(page_size=1), "nodes")
    assert [n.node for n in nodes] == ["a", "b"] and pages >= 2, nodes
    assert all(n.address and n.incarnation > 0 and not n.HasField("lost_ns") for n in nodes), nodes
    page = a.Nodes(pb.NodesRequest(), timeout=SOON)
    assert (page.asked, page.tls, page.why_not_all) == ("a", False, ""), page
    assert "page_token" in refused(grpc.StatusCode.INVALID_ARGUMENT, a.Nodes, pb.NodesRequest(page_token="7"))
    (link,), _ = a.all("Links", pb.LinksRequest(peer="b"), "links")
    assert (link.link, link.incarnation) == (peer.link, peer.incarnation) and link.bytes_out > 0, (link, peer)
    assert a.all("Links", pb.LinksRequest(peer="c"), "links")[0] == []

    ping = a.Ping(pb.PingRequest(node="b", timeout_ns=9 * 10**9), timeout=SOON)
    assert (ping.link, ping.fabric, ping.why) == (link.link, link.fabric, link.why) and ping.round_trip_ns > 0, ping
    assert "node a is this node itself" in refused(grpc.StatusCode.INVALID_ARGUMENT, a.Ping, pb.PingRequest(node="a"))
    assert "timeout_ns" in refused(grpc.StatusCode.INVALID_ARGUMENT, a.Ping, pb.PingRequest(node="b", timeout_ns=10**10))

    # Without verbs between them, these sidecars have --verbs off.
    fabrics = link.DESCRIPTOR.fields_by_name["fabric"].enum_type.values_by_name
    if link.fabric != fabrics["FABRIC_VERBS"].number:
        text = refused(grpc.StatusCode.FAILED_PRECONDITION, a.Ping, pb.PingRequest(node="b", datagrams=True))
        assert "node a has no verbs: it was started with --verbs off" in text, text

    text = refused(grpc.StatusCode.FAILED_PRECONDITION, a.Copy, pb.CopyRequest(path="x", message_bytes=4096, key="k", **{"from": "b"}))
    assert "--copy-folder" in text, text

    segments, _ = a.all("Segments", pb.SegmentsRequest(page_size=1), "segments")
    kinds = sorted(s.kind for s in segments)
    assert kinds == [pb.SEGMENT_KIND_ARENA, pb.SEGMENT_KIND_POOL, pb.SEGMENT_KIND_HEADERS], segments
    (arena,), _ = a.all("Segments", pb.SegmentsRequest(kind=pb.SEGMENT_KIND_ARENA), "segments")
    assert arena.worker == "giver" and arena.ranges == 301 and arena.bytes == session.arena_bytes, arena
    assert a.all("Segments", pb.SegmentsRequest(uid=arena.uid + 1), "segments")[0] == []
    assert "kind 9" in refused(grpc.StatusCode.INVALID_ARGUMENT, a.Segments, pb.SegmentsRequest(kind=9))

    (waiting,), _ = a.all("Transfers", pb.TransfersRequest(worker="giver"), "transfers")
    assert (waiting.operation, waiting.key) == ("fetch", "never") and waiting.age_ns > 0 and waiting.left_ns > 0, waiting
    assert "the directory" in waiting.waits_for, waiting
    assert a.all("Transfers", pb.TransfersRequest(peer="b"), "transfers")[0] == []
    hour = pb.TransfersRequest(min_age_ns=3600 * 10**9)
    assert a.all("Transfers", hour, "transfers")[0] == []
    assert a.all("Exchanges", pb.ExchangesRequest(page_size=1, partition_bytes=True), "exchanges")[0] == []
    text = refused(grpc.StatusCode.INVALID_ARGUMENT, a.Exchanges, pb.ExchangesRequest(page_token="7"))
    assert "page_token" in text, text
    assert a.all("Quarantine", pb.QuarantineRequest(), "slots")[0] == []


def changes(pb, a):
    events = a.Events(pb.EventsRequest(after=0), timeout=SOON)
    first = next(events)
    assert first.sequence == 1 and first.unix_ns > 0, first

    deleted = a.Delete(pb.DeleteRequest(key="sole"), timeout=SOON)
    assert (deleted.owner, deleted.versions) == ("giver", 1) and deleted.bytes > 0, deleted
    assert "sole" in refused(grpc.StatusCode.NOT_FOUND, a.Delete, pb.DeleteRequest(key="sole"))
    assert "key" in refused(grpc.StatusCode.INVALID_ARGUMENT, a.Delete, pb.DeleteRequest(key=""))

    level = a.SetLogLevel(pb.SetLogLevelRequest(level="warn,transfer_fabric=debug"), timeout=SOON)
    assert (level.before, level.now) == ("info", "warn,transfer_fabric=debug"), level
    assert "loud" in refused(grpc.StatusCode.INVALID_ARGUMENT, a.SetLogLevel, pb.SetLogLevelRequest(level="loud"))

    poll = a.SetPoll(pb.SetPollRequest(poll=pb.Poll(strategy=pb.POLL_STRATEGY_EVENT)), timeout=SOON)
    assert poll.now.strategy == pb.POLL_STRATEGY_EVENT, poll
    refused(grpc.StatusCode.INVALID_ARGUMENT, a.SetPoll, pb.SetPollRequest())

    # The only host.
    alone = refused(grpc.StatusCode.FAILED_PRECONDITION, a.MoveDirectory, pb.MoveDirectoryRequest())
    assert "one host only" in alone, alone

    evicted = a.Evict(pb.EvictRequest(), timeout=SOON)
    assert (evicted.keys, evicted.bytes) == (0, 0), evicted

    seen, called, at = set(), [], 1
    while len(called) < 4:
        event = next(events)
        assert event.sequence == at + 1 and event.text, event
        at = event.sequence
        seen.add(event.WhichOneof("what"))
        if event.HasField("changed"):
            called.append(event.changed.call)
    assert called == ["Delete", "SetLogLevel", "SetPoll", "Evict"], called
    assert {"session_opened", "link_up"} <= seen, seen
    events.cancel()
    future = refused(grpc.StatusCode.INVALID_ARGUMENT, a.Events, pb.EventsRequest(after=10**6))
    assert "restarted" in future, future


def drains(pb, b, channel):
    health = health_pb2_grpc.HealthStub(channel)
    told = health.Watch(health_pb2.HealthCheckRequest(service=""), timeout=SOON)
    assert next(told).status == health_pb2.HealthCheckResponse.SERVING
    assert "deadline_ns" in refused(grpc.StatusCode.INVALID_ARGUMENT, b.Drain, pb.DrainRequest(deadline_ns=2**63))
    events = b.Events(pb.EventsRequest(), timeout=SOON)
    steps = []
    reader = threading.Thread(target=lambda: steps.extend(p.step for p in b.Drain(pb.DrainRequest(), timeout=SOON)))
    reader.start()
    assert next(told).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert next(e for e in events if e.HasField("drain")).drain.step == pb.DRAIN_STEP_FINISHING
    reader.join(SOON)
    # It has so little to do that it may be done at once.
    assert steps[-1] == pb.DRAIN_STEP_FINISHED and set(steps[:-1]) <= {pb.DRAIN_STEP_FINISHING}, steps
    # Its streams end with it.
    try:
        for _ in events:
            pass
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNAVAILABLE, error


def main():
    protos, folder, first, second = sys.argv[1:]
    pb, pb_grpc = generated(protos, folder)
    # For a Unix socket the library makes an authority of its path: any is good there.
    with grpc.insecure_channel(first) as channel, grpc.insecure_channel(second) as other:
        a, b = Client(pb_grpc.AdminStub(channel)), Client(pb_grpc.AdminStub(other))
        looks(pb, a)
        changes(pb, a)
        drains(pb, b, other)
        by_reflection(channel, a.called | b.called)
    print("every call was made")


main()

"""`transferd.vllm` against vLLM's own classes: its factories, its configuration, its layerwise reloading of real modules of torch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from transferd.vllm import RoundFailed, TransferdEngine, TransferdTrainerEngine, TransferdTrainerInitInfo, register
from vllm.config import VllmConfig
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer import ModuleSource, VLLMWeightSyncClient, WeightTransferEngineFactory, WeightTransferTrainerFactory
from vllm.model_executor.model_loader.reload.layerwise import record_metadata_for_reloading


class Model(torch.nn.Module):
    """Modules of several sizes, one larger than a bucket, loaded as vLLM's models are."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(100, 200) for _ in range(20))
        self.head = torch.nn.Linear(700, 600)
        self.to(torch.bfloat16)
        self.loaded: list[str] = []
        self.fails = False

    def load_weights(self, weights: Any) -> set[str]:
        parameters = dict(self.named_parameters())
        for name, weight in weights:
            assert weight.dtype == torch.bfloat16
            self.loaded.append(name)
            if self.fails and len(self.loaded) == 20:
                raise ArithmeticError("the model takes no more")
            parameter = parameters[name]
            getattr(parameter, "weight_loader", default_loader)(parameter, weight)
        return set(self.loaded)


def default_loader(param: torch.Tensor, loaded_weight: torch.Tensor) -> None:
    param.data.copy_(loaded_weight)


class Workers:
    """vLLM's control plane, with workers in threads of this process: each has an engine of vLLM's factory."""

    def __init__(self, count: int) -> None:
        self.models = [Model() for _ in range(count)]
        config = WeightTransferConfig(backend="transferd")
        vllm_config = VllmConfig(weight_transfer_config=config)
        for model in self.models:
            record_metadata_for_reloading(model)
        device = torch.device("cpu")
        self.engines = [WeightTransferEngineFactory.create_engine(config, vllm_config, device, model) for model in self.models]

    def _each(self, call: Callable[[Any], Any]) -> None:
        with ThreadPoolExecutor(len(self.engines)) as threads:
            for called in [threads.submit(call, engine) for engine in self.engines]:
                called.result()

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._each(lambda engine: engine.init_transfer_engine(engine.parse_init_info(init_info)))

    def start_weight_update(self) -> None:
        self._each(lambda engine: engine.start_weight_update())

    def update_weights(self, update_info: Any) -> None:
        self._each(lambda engine: engine.update_weights(update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._each(lambda engine: engine.finish_weight_update())

    def shutdown(self) -> None:
        self._each(lambda engine: engine.shutdown())


@pytest.fixture
def workers() -> Iterator[Workers]:
    register()
    made = Workers(2)
    assert isinstance(made, VLLMWeightSyncClient)
    yield made
    made.shutdown()


@pytest.fixture
def trainer(workers: Workers, sidecar: Any) -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def make(model: torch.nn.Module, **options: Any) -> Any:
        info = TransferdTrainerInitInfo(**{"rank": 0, "socket": sidecar.path, "arena": "2MiB", "timeout": 20.0, **options})
        made.append(WeightTransferTrainerFactory.trainer_init(info, client=workers, source=ModuleSource(model)))
        return made[-1]

    yield make
    for engine in made:
        engine.shutdown()


def equal(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())


# Promise: vllm-rounds
def test_both_factories_know_it_once_and_vllm_finds_it_by_its_entry_point():
    from importlib.metadata import entry_points

    (point,) = (point for point in entry_points(group="vllm.general_plugins") if point.name == "transferd")
    assert point.load() is register
    register()
    register()
    assert WeightTransferEngineFactory._registry["transferd"]() is TransferdEngine
    assert WeightTransferTrainerFactory._registry["transferd"]() is TransferdTrainerEngine


# Promise: vllm-rounds, seen to fail
def test_weights_are_loaded_round_after_round(workers, trainer):
    model = Model()
    engine = trainer(model)
    for _ in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_()
        engine.send_weights()
        for worker in workers.models:
            assert equal(model, worker) and worker.loaded == [name for name, _ in model.named_parameters()]
            worker.loaded.clear()


# Promise: vllm-rounds
def test_without_a_sidecar_the_trainer_starts_one(workers, trainer):
    model = Model()
    engine = trainer(model, socket=None)
    engine.send_weights()
    assert all(equal(model, worker) for worker in workers.models)


# Promise: vllm-rounds
def test_other_ranks_walk_through_their_weights_and_send_nothing(workers, trainer):
    trainer(Model(), rank=1, socket="/nowhere").send_weights()
    assert not any(worker.loaded for worker in workers.models)


# Promise: vllm-errors
@pytest.mark.parametrize("info", [{}, {"socket": "/x"}, {"socket": "/x", "key": "k", "more": 1}, {"socket": "", "key": "k"}, {"socket": "/x", "key": "k", "timeout": -1}])
def test_init_info_that_cannot_be_is_a_value_error(workers, info):
    with pytest.raises(ValueError):
        workers.engines[0].parse_init_info(info)


# Promise: vllm-errors
@pytest.mark.parametrize("info", [{}, {"first": 0}, {"first": "x"}, {"first": 1, "names": []}])
def test_update_info_that_cannot_be_is_a_value_error(workers, info):
    with pytest.raises((ValueError, TypeError)):
        workers.engines[0].parse_update_info(info)


# Promise: vllm-errors
def test_weights_before_the_handshake_are_refused(workers):
    with pytest.raises(RuntimeError, match="call init_transfer_engine"):
        workers.engines[0].update_weights({"first": 1})


# Promise: vllm-errors
def test_a_trainer_needs_a_source(workers):
    with pytest.raises(ValueError, match="give a WeightSource"):
        WeightTransferTrainerFactory.trainer_init(TransferdTrainerInitInfo(rank=0), client=workers, source=None)


# Promise: vllm-errors
def test_a_version_that_does_not_come_is_named(workers, trainer, sidecar):
    trainer(Model(), timeout=2.0)
    with pytest.raises(TimeoutError, match="version 7 of 'vllm/.*' did not come within 2 s"):
        workers.engines[0].receive_weights(workers.engines[0].parse_update_info({"first": 7}))


# Promise: vllm-failures
def test_a_worker_that_fails_ends_the_update_and_the_next_goes_well(workers, trainer):
    model = Model()
    engine = trainer(model)
    workers.models[1].fails = True
    with pytest.raises((ArithmeticError, RoundFailed), match="takes no more|has stopped|has ended the round"):
        engine.send_weights()
    workers.models[1].fails = False
    engine.send_weights()
    assert all(equal(model, worker) for worker in workers.models)


# Promise: vllm-failures
def test_a_trainer_that_fails_ends_the_update_of_the_workers(workers, trainer):
    model = Model()
    engine, failed, ended = trainer(model), [], threading.Event()
    source, update = engine.source, workers.update_weights

    class Failing(type(source)):
        def iter_full(self) -> Iterator[Any]:
            yield "head.bias", torch.zeros(600, dtype=torch.bfloat16)
            raise ArithmeticError("the trainer has failed")

        __iter__ = iter_full

    def note(info: Any) -> None:
        try:
            update(info)
        except RoundFailed as error:
            failed.append(str(error))
        ended.set()

    workers.update_weights = note
    engine.source = Failing(model)
    with pytest.raises(ArithmeticError, match="the trainer has failed"):
        engine.send_weights()
    assert ended.wait(20) and "ArithmeticError: the trainer has failed" in failed[0]
    workers.update_weights, engine.source = update, source
    engine.send_weights()
    assert all(equal(model, worker) for worker in workers.models)


# Promise: vllm-jobs, seen to fail
def test_two_jobs_of_one_sidecar_do_not_meet(workers, trainer, sidecar):
    others, (one, another) = Workers(1), (Model(), Model())
    info = TransferdTrainerInitInfo(rank=0, socket=sidecar.path, arena="2MiB", timeout=20.0)
    engines = [trainer(one), WeightTransferTrainerFactory.trainer_init(info, client=others, source=ModuleSource(another))]
    with ThreadPoolExecutor(2) as threads:
        for sent in [threads.submit(engine.send_weights) for engine in engines]:
            sent.result()
    assert all(equal(one, worker) for worker in workers.models) and equal(another, others.models[0])
    engines[1].shutdown()
    others.shutdown()

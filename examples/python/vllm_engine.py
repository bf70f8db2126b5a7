#!/usr/bin/env python3
"""A trainer sends the weights of a tiny language model to a vLLM engine, whose worker is a process of its own.

The engine starts with other random weights. The check: after an update it generates the tokens that torch generates with the trainer's weights.

    examples/python/vllm_engine.py [--updates N]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

PROMPT, TOKENS = [5, 9, 200], 12


class Control:
    """The trainer's way to the engine: the calls that vLLM's own clients make by HTTP or Ray."""

    def __init__(self, llm) -> None:
        self.llm = llm

    def init_weight_transfer_engine(self, init_info) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        self.llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=init_info))

    def start_weight_update(self) -> None:
        self.llm.start_weight_update()

    def update_weights(self, update_info) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        self.llm.update_weights(WeightTransferUpdateRequest(update_info=update_info))

    def finish_weight_update(self, weight_version=None) -> None:
        self.llm.finish_weight_update()


def main() -> None:
    arguments = argparse.ArgumentParser(description="Weights from a trainer to a vLLM engine.")
    arguments.add_argument("--updates", type=int, default=2)
    given = arguments.parse_args()

    import torch
    from transferd.vllm import TransferdTrainerInitInfo, register
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from vllm import LLM, SamplingParams
    from vllm.config.weight_transfer import WeightTransferConfig
    from vllm.distributed.weight_transfer import ModuleSource, WeightTransferTrainerFactory

    sizes = {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "max_position_embeddings": 256}
    shape = Qwen2Config(**sizes, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False)
    with tempfile.TemporaryDirectory() as folder:
        Qwen2ForCausalLM(shape).bfloat16().save_pretrained(folder)
        config = WeightTransferConfig(backend="transferd")
        llm = LLM(folder, skip_tokenizer_init=True, enforce_eager=True, dtype="bfloat16", max_model_len=64, max_num_seqs=2, weight_transfer_config=config)

    def generated() -> list[int]:
        greedy = SamplingParams(temperature=0, max_tokens=TOKENS, detokenize=False)
        (answer,) = llm.generate([{"prompt_token_ids": PROMPT}], greedy, use_tqdm=False)
        return list(answer.outputs[0].token_ids)

    register()
    trained = Qwen2ForCausalLM(shape).bfloat16()
    # A small arena, so that the model needs several buckets.
    info = TransferdTrainerInitInfo(rank=0, arena="1MiB")
    engine = WeightTransferTrainerFactory.trainer_init(info, client=Control(llm), source=ModuleSource(trained))
    equal = []
    for update in range(given.updates):
        # Stands for a step of training.
        torch.manual_seed(update)
        trained.load_state_dict(Qwen2ForCausalLM(shape).bfloat16().state_dict())
        with torch.no_grad():
            expected = trained.generate(torch.tensor([PROMPT]), max_new_tokens=TOKENS, do_sample=False)[0, len(PROMPT) :].tolist()
        engine.send_weights()
        equal.append((found := generated()) == expected)
        print(f"update {update}: the engine generates {found}, torch {expected}")
    engine.shutdown()
    print(f"updates: {given.updates}; the engine generates what torch does: {all(equal)}")
    assert all(equal)


if __name__ == "__main__":
    sys.exit(main())

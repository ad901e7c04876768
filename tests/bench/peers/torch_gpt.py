#!/usr/bin/env python3
"""The model and training step of `speedrun` in PyTorch, for a comparison with the same weights and tokens.

Usage: torch_gpt.py --config RUN/config.json --weights INIT/checkpoints/final [--device cpu|cuda] [--threads N] < commands
RUN and INIT are run folders of `speedrun train` with data.shuffle=false; INIT, trained for 0 steps, holds initial weights.

Each line of standard input is one command "MODE STEPS"; MODE is eager or compiled, a dash, f32 or bf16. The mode (built by
its first command) continues its training for STEPS steps and prints one line of JSON: losses (nats per token) and step_ms
(by the device's clock) of these steps, peak_mib of device memory, and first_step_s: time from the start of Python to the end
of the mode's first step, without the modes before it. After an error the line has "error", and this mode ends.
"""

import time

BEGIN = time.perf_counter()  # before the imports, which take seconds

import argparse
import gc
import json
import sys

import torch

from gpt import Gpt
from known_config import read_config
from optimizers import Optimizers
from run_input import Batches, read_weights

IMPORTED = time.perf_counter()
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class Trainer:
    def __init__(self, config, weights, mode, device):
        kind, precision = mode.split("-")
        compiled, dtype = {"eager": False, "compiled": True}[kind], DTYPES[precision]
        model = Gpt(config, dtype)
        model.load_state_dict(read_weights(weights))  # strict: names and shapes must be the ones of our
                                                      # parameter table
        model.to(device)
        self.optimizers = Optimizers(config, model, dtype, compiled)
        model.compiled = compiled
        self.plain_model = model
        self.model = torch.compile(model, dynamic=False) if compiled else model
        self.batches = Batches(config)
        self.microbatches = config["batch"]["tokens_per_step"] // config["batch"]["microbatch_tokens"]
        self.device, self.steps = device, 0

    def step(self):
        total = torch.zeros((), device=self.device)
        for _ in range(self.microbatches):
            tokens, targets, documents = self.batches.next()
            if self.device == "cuda":
                tokens, targets, documents = (tensor.pin_memory().to(self.device, non_blocking=True)
                                              for tensor in (tokens, targets, documents))
            loss = self.model(tokens, targets, self.plain_model.mask(documents)) / self.microbatches
            loss.backward()
            total += loss.detach()
        self.optimizers.step(self.steps)
        self.steps += 1
        return total

    def run(self, steps):
        """Losses and milliseconds of each step. The host runs ahead of the device, as in a usual training loop."""
        losses, marks = [], [self.mark()]
        for _ in range(steps):
            losses.append(self.step())
            marks.append(self.mark())
        if self.device == "cuda":
            torch.cuda.synchronize()
            times = [a.elapsed_time(b) for a, b in zip(marks, marks[1:])]
        else:
            times = [1e3 * (b - a) for a, b in zip(marks, marks[1:])]
        return [loss.item() for loss in losses], times

    def mark(self):
        if self.device == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def answer(trainers, options, config, mode, steps):
    result = {"mode": mode}
    if mode not in trainers:
        begin = time.perf_counter()
        trainers[mode] = Trainer(config, options.weights, mode, options.device)
        losses, times = trainers[mode].run(1)
        result["first_step_s"] = time.perf_counter() - begin + IMPORTED - BEGIN
        steps -= 1
    else:
        losses, times = [], []
    more_losses, more_times = trainers[mode].run(steps)
    result.update(losses=losses + more_losses, step_ms=times + more_times)
    if options.device == "cuda":
        result["peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
        torch.cuda.reset_peak_memory_stats()
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="of the CPU; 0: torch's own choice")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    config, trainers = read_config(options.config), {}
    print(json.dumps({"torch": torch.__version__, "device": torch.cuda.get_device_name() if options.device == "cuda"
                      else f"cpu, {torch.get_num_threads()} threads"}), flush=True)
    for line in sys.stdin:
        mode, steps = line.split()
        try:
            result = answer(trainers, options, config, mode, int(steps))
        except Exception as error:  # a mode that cannot run here (no compiler, no memory) must not end the
                                    # others
            trainers.pop(mode, None)
            result = {"mode": mode, "error": f"{type(error).__name__}: {error}"[:500]}
        print(json.dumps(result), flush=True)
        gc.collect()
        if options.device == "cuda":
            torch.cuda.empty_cache()  # frees the GPU for the other program


if __name__ == "__main__":
    main()

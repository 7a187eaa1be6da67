"""Train a language model: the whole run, in order.

python train.py model=llama data=text data.path=book.txt name=book
torchrun --nproc_per_node=8 train.py parallel=fsdp size=350m
"""

import itertools
import math
import shlex
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import hydra
import torch
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from configs.cli import print0, run_hydra
from configs.errors import StopRequested
from configs.schema import Config
from data.batch import Batch
from data.corpus import load_data
from data.loader import prefetch
from model.adapt import adapt
from model.checkpoint import newest_undamaged
from model.pretrained import init_tokenizer
from model.runs import RUNS
from model.transformer import build_model
from training import distributed, fsdp, plan, processes, run_folder
from training.checkpointer import Checkpointer
from training.checks import check_batches, check_finite, check_gradients
from training.classifier import with_classes
from training.compile import compile_module, recompute_blocks
from training.ema import EMA
from training.evaluation import evaluate, sample
from training.finetune import starting_model
from training.log import Log
from training.metrics import measure
from training.optimizer import build_optimizers, set_lr
from training.restore import final_loss, restore, truncate_logs
from training.run import Run, TrainState
from training.schedule import RunLength, Schedule, build_schedule
from training.settings import read_settings
from training.step import LossModule, fit_micro_batch, micro_batches, read_batch, seed_step
from training.summary import summarize


def train(config: Config, origin: dict | None = None) -> float:
    """Build all that a run needs, run it, and return its validation loss. origin: what the config
    was composed from, if it came from a command line."""
    world = distributed.start(config)

    with run_folder.open_folder(config, world) as folder:
        stored = newest_undamaged(folder) if config.resume else None

        # data: the tokens of a text, cached, and the batch of any step
        tokenizer = None
        if config.init_from is not None:
            tokenizer = init_tokenizer(str(folder if stored else config.init_from))
        data = load_data(config, tokenizer)
        config = replace(config, objective=data.objective_settings)  # not auto any more
        if data.objective.classes:
            config = with_classes(config, data.objective.classes)
        check_batches(data.objective, data.train)

        # the model (with FSDP, only the main process has memory for all of it), and the loss of a
        # batch; init_from has its weights, unless a checkpoint has
        model = None
        if config.init_from is not None and stored is None:
            model = starting_model(config)
        world.wait()  # not limited by ddp_timeout: one may have tokenized a large text
        has_weights = world.is_main or world.parallel != "fsdp"

        with torch.device("cpu" if has_weights else "meta"):
            model = model or build_model(config.model, data.tokenizer.vocab_size, config.seed)
        if config.adapt["kind"] != "none":  # only a part of it is trained
            adapt(model, config.adapt, config.seed)

        loss_module = LossModule(model, config.loss)
        if world.parallel == "fsdp":
            fsdp.shard(loss_module, world)
        else:
            loss_module.to(world.device)

        # the optimizers (two with Muon); a checkpoint then fills in weights, state and progress
        optimizers = build_optimizers(config.optimizer, model)
        ema = EMA(model, config.ema.decay) if config.ema.decay else None
        state = TrainState(dataset=data.content_hash)
        run = Run(config, data, world, loss_module, optimizers, ema, state)
        saver = Checkpointer(folder, run)
        if stored:
            restore(saver, stored)

        run_length = RunLength(config.train, data.train.tokens_per_example, data.train.n)
        is_finished = stored is not None and run_length.is_over(state)
        if is_finished:
            print0(f"{folder} is finished; raise train.steps, another length or train.patience")
            last = final_loss(folder)  # if None, go on: no step is left, only the last evaluation
            if last is not None:
                return last

        schedule = build_schedule(config.schedule, run_length.scheduled_steps)

        # torch.compile (in place, but eager in eval mode) and DDP, for training steps only:
        # evaluations and samples have other shapes
        if world.compiles:
            compile_module(loss_module, config, world)
        if config.train.recompute == "block":
            recompute_blocks(model)
        train_module: nn.Module = loss_module
        if world.parallel == "ddp":
            train_module = DistributedDataParallel(loss_module, gradient_as_bucket_view=True)

        state.micro_batch_size = fit_micro_batch(run, train_module)
        # only now: while it is fitted, a process that runs out of memory makes fewer passes
        if world.size > 1:
            loss_module.register_forward_pre_hook(processes.share_buffers)

        # the folder of the run, with what it needs besides its weights
        if not is_finished:  # a finished run keeps the settings that it was trained with
            origin = origin or {"code": run_folder.code_hashes()}
            saver.begin(origin, run_folder.environment(world), stored is not None)
        print0(run_folder.describe(folder, run, run_length.scheduled_steps))
        if config.resume and world.is_main:
            truncate_logs(folder, state.step)
        log = Log(folder, run)

        # however the run ends, a checkpoint that is being written is completed
        with distributed.catch_signals(), saver.executor, closing(log):
            try:
                loop(run, run_length, schedule, train_module, saver, log)
                metrics = evaluate(run, bar=log.bar)
                log.evaluation(metrics, full=True)
            except StopRequested:
                if state.step:
                    saver.finish()

                world.wait()  # torchrun ends all processes once one has exited
                parts = f" parts={shlex.quote(config.parts)}" if config.parts else ""
                name = f"name={folder.relative_to(RUNS).as_posix()}{parts}"
                print0(f"stopped; to resume: python train.py {name} resume=true")
                raise

        if world.is_main:
            print0(summarize(folder, run))
    return metrics["val_loss"]


def loop(
    run: Run,
    run_length: RunLength,
    schedule: Schedule,
    train_module: nn.Module,
    saver: Checkpointer,
    log: Log,
) -> None:
    """Train until the run is over. The weights are a function of (seed, step); with train.minutes
    also of time, because the learning rate then follows the clock. Evaluations, samples and logs
    change no weight."""
    config, world, state = run.config, run.world, run.state
    batches = prefetch(partial(read_batch, run), itertools.count(state.step))
    start = time.perf_counter() - state.seconds

    def is_due(every: int | None) -> bool:
        return every is not None and state.step % every == 0

    def validate() -> bool:
        """Evaluate a fixed part of the validation set. Returns whether its loss is the best yet."""
        metrics = evaluate(run, config.eval.max_examples)
        log.evaluation(metrics)
        return state.record(metrics["val_loss"])

    evaluates = config.eval.every is not None or config.init_from is not None
    if state.step == 0 and evaluates:
        validate()
        if config.init_from:  # the best checkpoint may be the model that fine-tuning starts from
            saver.save()

    while not run_length.is_over(state):
        progress = run_length.progress(state)
        lr = set_lr(run.optimizers, schedule(progress))
        seed_step(config.seed, state.step, world.rank)  # for dropout
        clock = time.perf_counter() - start
        batch = next(batches)
        result = update(run, train_module, batch, clock)
        state.step += 1
        state.tokens += batch.n_tokens  # of the whole batch, whatever share of it is here
        state.seconds = result.clock
        if run.ema:
            run.ema.update(state.step)
        log.step(progress, result.losses | {"lr": lr, "grad_norm": result.grad_norm})

        is_best = False
        if is_due(config.eval.every) or (evaluates and run_length.is_over(state)):
            is_best = validate()
        if is_due(config.sample.every):
            log.sample(sample(run))
        if config.metrics.names and is_due(config.metrics.every):
            log.record(measure(run))
        if is_best or is_due(config.checkpoint.every):
            saver.save()
        if result.stop:
            raise StopRequested

    if state.step:
        saver.finish()


class StepResult(NamedTuple):
    """The same in all processes."""

    losses: dict[str, float]  # means over the targets of the step
    grad_norm: float  # before clipping
    clock: float  # seconds of the run when the step began, as the main process measured them
    stop: bool  # one of the processes has received a signal


def update(run: Run, train_module: Any, batch: Batch, clock: float) -> StepResult:
    """One step: forward and backward passes, clipping, update."""
    world = run.world
    state = run.state
    optimizers = run.optimizers
    scaler = world.scaler

    # the gradient of the mean over all targets of all processes, micro-batch by micro-batch; with
    # several processes, the number of targets stays a tensor: reading it would wait for the GPU
    n_targets = world.sum(batch.count)[0] if world.size > 1 else batch.count
    size = state.micro_batch_size

    # terms: own modules with a method losses(), usually none; some need a count of the whole step
    if run.loss_module.terms:
        run.loss_module.terms.find_ratios(run, micro_batches(batch, size, world.device), n_targets)
    totals: dict[str, Tensor] = {}
    for micro_batch, is_last in micro_batches(batch, size, world.device):
        # only DDP reads it: gradients are exchanged once they are accumulated
        train_module.require_backward_grad_sync = is_last
        with world.precision.autocast():
            # (inputs, targets, count, weights if any) -> {name: sum over the targets}
            losses = train_module(*micro_batch)
        # DDP and FSDP average over the processes, but the sum is needed
        loss = sum(losses.values()) * (world.size / n_targets)
        scaler.scale(loss).backward()
        for name, part in losses.items():
            totals[name] = totals.get(name, 0.0) + part.detach()

    if state.step == 0:
        check_gradients(run, totals)

    # clip
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    max_norm = run.config.train.grad_clip or math.inf
    norm = clip_grad_norm_(train_module.parameters(), max_norm)
    if world.parallel == "fsdp":
        norm = fsdp.whole(norm)

    # all that the host reads (also n_targets), in one exchange: the only wait for the GPU
    own_clock = clock if world.is_main else 0.0  # summed below: all get that of the main process
    n_signals = len(distributed.received_signals)
    sums = world.sum(batch.count, norm, own_clock, n_signals, *totals.values())
    total_count, total_norm, clock, all_signals, *total_losses = sums.tolist()
    means = {name: s / total_count for name, s in zip(totals, total_losses, strict=True)}
    grad_norm = total_norm / world.size  # all processes have the same norm

    overflow = scaler.is_enabled() and not math.isfinite(grad_norm)  # in float16: skip the step
    check_finite(means if overflow else means | {"gradient": grad_norm}, state.step + 1)

    # update; after an overflow, the scaler itself would skip only the optimizer that met it
    for optimizer in optimizers:
        if not overflow:
            scaler.step(optimizer)
        optimizer.zero_grad()
    scaler.update()
    return StepResult(means, grad_norm, clock, stop=all_signals > 0)


@hydra.main(config_path="configs", config_name="train", version_base="1.3")
def main(node: DictConfig) -> float | None:
    """One run. In a sweep (-m), Hydra calls it once for each combination of settings."""
    config, origin = read_settings(node)
    if config.dry_run:
        print0(plan.report(config))
        return None
    return train(config, origin)


if __name__ == "__main__":
    distributed.end(run_hydra(main))

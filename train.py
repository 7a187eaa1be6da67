"""The story of a run: config -> data -> model -> loop -> checkpoint.

python train.py model=llama data=text data.path=book.txt
"""

import sys

from training.sweep import COMPLETION, HELP, launch

if __name__ == "__main__" and (HELP | COMPLETION) & {*sys.argv}:
    sys.exit(launch(None, None, sys.argv[1:]))  # before torch is imported, which takes a second

from configs.cli import print
from configs.compose import compose
from data.corpus import load, tokenizing_progress
from data.loader import prefetch
from model.checkpoint.files import RUNS_DIR
from model.hub.convert import init_config, init_model
from model.precision import (
    choose_device,
    choose_precision,
    tune_malloc,
    use_deterministic_algorithms,
)
from model.transformer import build_model
from training.distributed import (
    catching_signals,
    exit_process,
    init_distributed,
    is_main_rank,
    waiting_for,
)
from training.estimate import estimate, preview
from training.evaluate import evaluate_run, sample_validation
from training.monitor import open_monitor
from training.plan import check_batch_size, check_parts, plan
from training.profile import profile_step
from training.resume import latest_whole, reload_data, resolve_config, restore
from training.run import Run
from training.run_folder import check_name, lock_if_resuming
from training.step import seed_step
from training.summary import summarize


def prepare(config, overrides):
    """The run of a config, ready for its first step. Wrong settings are refused before any text is read."""
    check_name(config.name, config.resume)
    check_parts(config)
    dist, device = init_distributed(
        choose_device(config.device), config.parallel, config.ddp_timeout
    )
    check_batch_size(config.train, dist.world_size)
    tune_malloc()
    precision = choose_precision(device, config.precision)
    use_deterministic_algorithms(config.deterministic)
    stored = latest_whole(RUNS_DIR / config.name, dist, device) if config.resume else None
    model, tokenizer = (
        init_model(config.init_from) if config.init_from and not stored else (None, None)
    )
    with tokenizing_progress() as report:
        loaders = dist.run_slow(
            lambda: (
                reload_data(config, stored, report) if stored else load(config, tokenizer, report)
            ),
            device,
        )
    model = model or build_model(config.model, loaders.tokenizer.vocab_size, config.seed)
    train_step, cost = profile_step(config, dist, precision, loaders, model.to(device), stored)
    run = Run(config, overrides, loaders, train_step, cost, stored)
    if stored:
        restore(run)
    return run


def train(run, monitor):
    """The loop. Every weight is a function of (seed, step); logs, samples and evaluations only observe."""
    config, state, on_gpu = run.config, run.state, run.precision.device.type == "cuda"
    steps = range(state.step, run.steps)
    batches = prefetch(
        lambda step: run.loaders.train.batch(step, *run.dist.share), steps, pin=on_gpu
    )
    for step, batch in zip(steps, batches, strict=False):
        log_sample(run, monitor)
        if due(step, config.eval.every) or (step == steps.start and run.from_best):
            evaluate_subset(run, monitor)
            if state.out_of(config.train.patience):
                break
        seed_step(config.seed, step, run.dist.rank)
        lr_factor = run.schedule(step)
        with run.error_context(step):
            metrics = run.train_step(batch, lr_factor, run.flags)
        run.advance(metrics)
        monitor.step(state.step, metrics)
        if run.ends_here(metrics.flags):
            break
        if due(state.step, config.checkpoint.every):
            run.save()
    if state.step:
        run.save()
    if 0 < state.step == run.steps:
        log_sample(run, monitor)
        evaluate_subset(run, monitor)
    val_metrics = evaluate_run(run)
    monitor.evaluation(state.step, val_metrics, full=True)
    return val_metrics


def due(step, every):
    return every is not None and step % every == 0


def log_sample(run, monitor):
    if run.state.step and due(run.state.step, run.config.sample.every):
        monitor.sample(run.state.step, sample_validation(run))


def evaluate_subset(run, monitor):
    """Evaluate the same part of the validation set each time; save the best checkpoint."""
    val_metrics = evaluate_run(run, run.config.eval.max_examples)
    monitor.evaluation(run.state.step, val_metrics, full=False)
    if run.state.step and val_metrics["val_loss"] < run.state.best_val_loss:
        run.save(best=True)
    run.state.judge(val_metrics["val_loss"])


def validate(overrides):
    """The config of a command line, after every check that needs no data."""
    config = compose(overrides, init_config)
    check_parts(config)
    return config


def main(overrides):
    config, overrides = resolve_config(overrides, init_config)
    if config.dry_run == "plan":
        if is_main_rank():
            print(estimate(config))
        return
    if config.dry_run and is_main_rank():
        print(preview(config))
    with waiting_for("another process"), lock_if_resuming(config) as check_lock:
        run = prepare(config, overrides)
        if run.dist.is_main:
            print(plan(run))
        if config.dry_run:
            return
        with catching_signals(), run.open(check_lock), open_monitor(run) as monitor:
            val_metrics = train(run, monitor)
        if run.dist.is_main:
            print(summarize(run, val_metrics))


if __name__ == "__main__":
    exit_process(launch(main, validate, sys.argv[1:]))
